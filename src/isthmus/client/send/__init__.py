"""The sending side of the client library: senders, what they store, and when they send it."""
