"""The relay of a namespace: hybrid connections, to which listeners connect out and at which requesters find them.

`gate` serves HTTP, `relay` knows the listeners, `listener` is one control channel, `exchange` one HTTP request, `tunnel` one
WebSocket from end to end. See docs/explanation/protocol.md, Hybrid connections.
"""
