"""The relay of a namespace: hybrid connections, to which listeners connect from inside a network and requesters from outside.

`gate` serves HTTP, `relay` has the listeners, `listener` is one control channel, `exchange` one HTTP request, `tunnel` one
WebSocket from end to end. See docs/explanation/protocol.md, Hybrid connections.
"""
