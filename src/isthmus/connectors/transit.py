"""Whether sent deliveries are still on their way to the remote machine.

What it is: a comparison of what a connection has to send with what the remote machine has acknowledged. A large message over a slow network gets
no outcome for minutes; a time-out for outcomes counts only from when its last byte has arrived. What it is not: a time-out.

Invariants:
    I1. Bytes that were queued after a target's deliveries, such as heartbeats and deliveries of others, are no progress of it.
    I2. A connection that delivers nothing more makes no progress.
"""

from __future__ import annotations

import math
from typing import Protocol

__all__ = ["LOOK_SECONDS", "Carrier", "Transit"]

LOOK_SECONDS = 5.0
"""How often a target that waits for outcomes asks."""


class Carrier(Protocol):
    """A connection."""

    @property
    def queued_bytes(self) -> int:
        """Bytes that it had to send so far."""
        ...

    @property
    def arrived_bytes(self) -> int:
        """Of these, those that the remote machine has acknowledged."""
        ...


class Transit:
    """The deliveries of one target on one connection.

    Args:
        carrier: the connection.
    """

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._deliveries = 0
        self._end = self._arrived = 0
        self._looked_at = -math.inf

    def due(self, since: float) -> float:
        """When to look, in monotonic seconds; `since`: since when no outcome has come, infinite where none is missing."""
        return max(since, self._looked_at) + LOOK_SECONDS

    def progresses(self, now: float, since: float, deliveries: int) -> bool:
        """Whether more of their bytes have arrived since the last look; also at the first one after further deliveries, if some have not. It looks
        only when that is due.

        Args:
            now: monotonic seconds.
            since: as for `due`.
            deliveries: how many were sent so far; their bytes are queued.
        """
        if now < self.due(since):
            return False
        self._looked_at = now
        arrived = self._carrier.arrived_bytes
        if deliveries != self._deliveries:
            self._deliveries, self._end = deliveries, self._carrier.queued_bytes
            is_moving = arrived < self._end
        else:
            is_moving = self._arrived < min(arrived, self._end)
        self._arrived = min(arrived, self._end)
        return is_moving
