"""The bytes of a socket that its machine still has to deliver, those that it has delivered, and those that have come.

What it is: questions to the operating system. What it is not: the bytes that the program itself keeps.
Specification: tcp(7) and unix(7), SIOCOUTQ; tcp(7), TCP_INFO, and struct tcp_info of linux/tcp.h.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from typing import Any

__all__ = ["delivered_bytes", "received_bytes", "unsent_bytes"]

_COUNT = struct.Struct("Q")
_BYTES_ACKED_AT, _BYTES_RECEIVED_AT = 120, 128


def unsent_bytes(sock: socket.socket) -> int | None:
    """Bytes that the remote machine has not acknowledged, for a Unix socket those that its other end has not read; None: it is not known."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0])
    except (OSError, ValueError):  # a closed socket has no descriptor
        return None


def delivered_bytes(sock: Any) -> int:
    """Bytes that the remote machine has acknowledged since the connection was made; 0 where that is not known."""
    return _tcp_info(sock, _BYTES_ACKED_AT)


def received_bytes(sock: Any) -> int:
    """Bytes that have come from the remote machine since the connection was made, read or not; 0 where that is not known."""
    return _tcp_info(sock, _BYTES_RECEIVED_AT)


def _tcp_info(sock: Any, at: int) -> int:
    option = getattr(socket, "TCP_INFO", None)
    if option is None or not isinstance(sock, socket.socket):
        return 0
    try:
        found = sock.getsockopt(socket.IPPROTO_TCP, option, at + _COUNT.size)
    except OSError:  # closed, or no TCP
        return 0
    return int(_COUNT.unpack_from(found, at)[0]) if len(found) >= at + _COUNT.size else 0
