"""The bytes of a socket that its machine still has to deliver.

What it is: a question to the operating system. What it is not: the bytes that the program itself keeps.
Specification: tcp(7) and unix(7), SIOCOUTQ.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios

__all__ = ["unsent_bytes"]


def unsent_bytes(sock: socket.socket) -> int | None:
    """Bytes that the remote machine has not acknowledged, for a Unix socket those that its other end has not read; None: it is not known."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0])
    except (OSError, ValueError):  # a closed socket has no descriptor
        return None
