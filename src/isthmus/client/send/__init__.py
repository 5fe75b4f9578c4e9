"""The sending side of the client library: senders, what they keep and when they send it."""
