"""Whether bytes move on a connection while an answer is awaited.

What it is: a comparison of what a connection has received, and of what the remote machine has acknowledged, over time. A large answer over a slow
network takes minutes, and so do a request behind large messages and an answer behind others; a time-out for an answer counts from when bytes moved.
What it is not: a time-out.

Invariants:
    I1. Heartbeats, and what is queued after the wait began, are no motion.
    I2. A connection that carries nothing more has no motion.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["LEAST_BYTES", "LOOK_SECONDS", "Motion"]

LOOK_SECONDS = 1.0
"""How often one looks; the operating system is asked each time."""
LEAST_BYTES = 1 << 10
"""Fewer received bytes within a time-out are those of heartbeats."""


class _Connection(Protocol):
    @property
    def queued_bytes(self) -> int: ...
    @property
    def arrived_bytes(self) -> int: ...
    @property
    def received_bytes(self) -> int: ...


class Motion:
    """The motion on one connection since a wait began; what was queued for the wait has to be counted in its `queued_bytes`.

    Args:
        connection: the connection.
        now: monotonic seconds.

    Attributes:
        since: when bytes moved last, in monotonic seconds.
    """

    def __init__(self, connection: _Connection, now: float) -> None:
        self.since = self._looked_at = now
        self._connection = connection
        self._end = connection.queued_bytes
        self._arrived = min(connection.arrived_bytes, self._end)
        self._received = connection.received_bytes

    def look(self, now: float) -> None:
        """Look whether bytes have moved, if that is due."""
        if now < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = now
        arrived, received = min(self._connection.arrived_bytes, self._end), self._connection.received_bytes
        if arrived > self._arrived or received >= self._received + LEAST_BYTES:
            self.since, self._arrived, self._received = now, arrived, received
