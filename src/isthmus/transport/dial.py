"""A socket to a namespace.

What it is: the connection that an endpoint asks for, with TLS where it says so, and the name of its host. What it is not: the protocol
on it (`client`), or WebSocket (`websocket`).

Invariants:
    I1. A socket that failed is closed before its error is raised.
"""

from __future__ import annotations

import socket

from isthmus.errors import ConnectionLostError, OperationTimeoutError
from isthmus.transport.endpoint import Endpoint

__all__ = ["dial", "place_of"]

SOCKET_BUFFER_BYTES = 1 << 20
# AMQP over TLS, and over WebSocket.
_USUAL_PORTS = (5671, 443)


def place_of(endpoint: Endpoint) -> str:
    """Host and port of an endpoint, to identify a namespace that gives no identity; the ports of Azure are left out."""
    host = endpoint.host.lower()
    return host if endpoint.port in _USUAL_PORTS else f"{host}:{endpoint.port}"


def dial(endpoint: Endpoint, timeout_seconds: float) -> socket.socket:
    """Connects; blocks.

    Raises:
        OperationTimeoutError: no connection in that time.
        ConnectionLostError: the host does not answer, or not with TLS.
    """
    where = f"{endpoint.host}:{endpoint.port}"
    raw: socket.socket | None = None
    try:
        raw = socket.create_connection((endpoint.host, endpoint.port), timeout_seconds)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            raw.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        context = endpoint.ssl_context()
        return raw if context is None else context.wrap_socket(raw, server_hostname=endpoint.host)
    except (OSError, UnicodeError) as error:  # not a valid host name, e.g. a label of 64 characters
        if raw is not None:
            raw.close()
        if isinstance(error, TimeoutError):
            raise OperationTimeoutError(f"{where}: no connection within {timeout_seconds:g} s") from None
        raise ConnectionLostError(f"{where}: {getattr(error, 'strerror', None) or error}") from None
