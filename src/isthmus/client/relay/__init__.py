"""The relay's clients: a listener at two relays, and a requester that selects one of them.

`pair` decides, `address` reads endpoints and makes tokens, `requester` and `listener` are for asyncio, `blocking` has both for
threads. See docs/how-to/reach-a-service-through-a-relay.md.
"""
