"""TCP keep-alive for connections that may be idle for long.

What it is: the socket options by which TCP itself checks that the other end is reachable. A load balancer or an address translation
forgets an idle connection after some minutes (Azure's after four), and then drops its packets: a request would wait for its time-out, with
an unknown outcome. What it is not: for protocols with heartbeats of their own.
Specification: tcp(7), `TCP_KEEPIDLE`; Microsoft Learn, "Configure Load Balancer TCP reset and idle timeout".
"""

from __future__ import annotations

import socket

__all__ = ["KEEP_ALIVE"]

_IDLE_SECONDS = 60
_INTERVAL_SECONDS = 15
_PROBES = 4
_TCP = (("TCP_KEEPIDLE", _IDLE_SECONDS), ("TCP_KEEPINTVL", _INTERVAL_SECONDS), ("TCP_KEEPCNT", _PROBES))

KEEP_ALIVE: tuple[tuple[int, int, int], ...] = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    # Linux has all of these constants.
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _TCP if hasattr(socket, name)),
)
"""Arguments of `setsockopt`."""
