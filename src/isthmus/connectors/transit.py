"""Whether sent deliveries are still on their way to the remote machine.

What it is: a comparison of what a connection has to send with what the remote machine has acknowledged. A large message over a slow network gets
no outcome for minutes; a time-out for outcomes counts only from when its last byte has arrived. What it is not: a time-out.

Invariants:
    I1. Bytes that were queued after the deliveries for whose outcomes a target waits are no progress of it: heartbeats, deliveries of others, and
        its own later ones. Without this, a target that gives no outcome would never be given up while messages come.
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
        self._end = self._arrived = 0  # of the bytes queued when the wait was looked at first
        self._looked_at = -math.inf

    def due(self, since: float) -> float:
        """When to look, in monotonic seconds; `since`: since when no outcome has come, infinite where none is missing."""
        return max(since, self._looked_at) + LOOK_SECONDS

    def progresses(self, now: float, since: float) -> bool:
        """Whether more of their bytes have arrived since the last look; also at the first one since the last outcome, if some have not. It looks only
        when that is due.

        Args:
            now: monotonic seconds.
            since: as for `due`; where it is later than the last look, the bytes that are queued now count.
        """
        if now < self.due(since):
            return False
        is_first, self._looked_at = since > self._looked_at, now
        arrived = self._carrier.arrived_bytes
        if is_first:
            self._end = self._carrier.queued_bytes
            is_moving = arrived < self._end
        else:
            is_moving = self._arrived < min(arrived, self._end)
        self._arrived = min(arrived, self._end)
        return is_moving
