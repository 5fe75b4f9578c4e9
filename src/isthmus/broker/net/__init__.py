"""The sockets of a namespace: listeners, TLS, WebSocket, HTTP, and the limit of connections."""
