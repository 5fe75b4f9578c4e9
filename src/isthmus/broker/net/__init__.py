"""The sockets of a namespace: listeners, TLS, WebSocket, HTTP, and how many connections there may be."""
