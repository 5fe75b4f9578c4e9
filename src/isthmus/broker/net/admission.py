"""Admission control: which of the open connections are closed when there are too many.

What it is: a pure account of sockets by their descriptor: strangers, whose client has shown no token yet, and those whose
client has. It decides which ones to close. What it is not: a socket, or a check of a token.

Invariants:
    I1. Strangers never displace a client that has shown a token: they have a limit of their own, and are closed first
        where all sockets together are too many.
    I2. A flood of strangers from one host affects that host: the oldest connection of the host with the most is closed.
    I3. The account's size is bounded by the number of open sockets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

__all__ = ["Admission", "AdmissionLimits", "Connected", "admit"]


class Connected(Protocol):
    """A connection, as the account uses it."""

    peer: str
    """Address and port of its client."""

    def abort(self) -> None:
        """Ends it at once."""
        ...


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The limits of sockets.

    Attributes:
        sockets: all together, for any use; from the process's limit of descriptors.
        strangers: whose client has shown no token.
    """

    sockets: int = 1 << 20
    strangers: int = 5000


class Admission:
    """The open sockets.

    Args:
        limits: of their number.

    Attributes:
        evicted_total: connections that were closed for others.
    """

    def __init__(self, limits: AdmissionLimits = AdmissionLimits()) -> None:
        self.limits = limits
        self.evicted_total = 0
        self._strangers: dict[int, tuple[str, Connected]] = {}
        self._by_host: dict[str, dict[int, None]] = {}
        self._known: set[int] = set()

    @property
    def strangers(self) -> int:
        """Connections whose client has shown no token."""
        return len(self._strangers)

    @property
    def sockets(self) -> int:
        """All connections."""
        return len(self._strangers) + len(self._known)

    def enter(self, descriptor: int, host: str, connection: Connected) -> Connected | None:
        """A connection was accepted; returns the one to close, perhaps this one.

        Args:
            descriptor: of its socket.
            host: of the client, without the port.
            connection: to be ended if it is chosen.
        """
        self.leave(descriptor)
        self._strangers[descriptor] = host, connection
        self._by_host.setdefault(host, {})[descriptor] = None
        if len(self._strangers) <= self.limits.strangers and self.sockets <= self.limits.sockets:
            return None
        self.evicted_total += 1
        most = max(self._by_host.values(), key=len)
        descriptor = next(iter(most))
        _, evicted = self._strangers[descriptor]
        self.leave(descriptor)
        return evicted

    def know(self, descriptor: int) -> None:
        """The client of a connection has shown a token or a key."""
        if self._forget(descriptor):
            self._known.add(descriptor)

    def leave(self, descriptor: int) -> None:
        """A connection has ended, or is about to; no error if it has already."""
        self._forget(descriptor)
        self._known.discard(descriptor)

    def _forget(self, descriptor: int) -> bool:
        if descriptor not in self._strangers:
            return False
        host, _ = self._strangers.pop(descriptor)
        others = self._by_host[host]
        del others[descriptor]
        if not others:
            del self._by_host[host]
        return True


def admit(admission: Admission, transport: asyncio.BaseTransport | None) -> None:
    """The client behind a transport has shown a token or a key."""
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is not None:
        admission.know(connection.fileno())
