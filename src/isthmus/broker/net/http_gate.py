"""Holds HTTP connections while the HTTP server is still being loaded.

What it is: a protocol factory in place of the server's: early connections are kept, with the bytes received, and handed over
once the server is loaded. What it is not: a server; loading one takes half a second, for which AMQP clients need not wait.

Invariants:
    I1. Every connection reaches the server with all its bytes in order, or ends with its client.
    I2. A waiting connection keeps at most `_KEPT_BYTES` and the bytes of one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from isthmus.broker.net.listener import feed

__all__ = ["HttpGate"]

_KEPT_BYTES = 64 << 10


class HttpGate:
    """Makes protocols for HTTP connections, before and after the server is loaded."""

    def __init__(self) -> None:
        self._make: Callable[[], asyncio.BaseProtocol] | None = None
        self._waiting: dict[_Waiting, None] = {}

    def __call__(self) -> asyncio.BaseProtocol:
        """A protocol for a connection."""
        return self._make() if self._make is not None else _Waiting(self._waiting)

    def open(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """Hands over the waiting connections, and from now on every connection at once."""
        self._make = make
        for waiting in list(self._waiting):
            waiting.hand_over(make())

    def close(self) -> None:
        """Ends the connections that still wait."""
        for waiting in list(self._waiting):
            waiting.drop()


class _Waiting(asyncio.Protocol):
    """One early connection."""

    def __init__(self, others: dict[_Waiting, None]) -> None:
        self._others = others
        self._transport: asyncio.Transport | None = None
        self._said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._others[self] = None

    def data_received(self, data: bytes) -> None:
        self._said += data
        if len(self._said) > _KEPT_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.pop(self, None)
        self._transport = None

    def hand_over(self, protocol: asyncio.BaseProtocol) -> None:
        """Gives the connection to `protocol`."""
        self._others.pop(self, None)
        transport, self._transport = self._transport, None
        if transport is None or transport.is_closing():
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        feed(protocol, self._said)
        if len(self._said) > _KEPT_BYTES and not transport.is_closing():
            transport.resume_reading()

    def drop(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()
