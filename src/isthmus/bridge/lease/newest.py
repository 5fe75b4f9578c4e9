"""The newest messages of a source, to distinguish a new message under a reused position from a redelivery.

What it is: of each partition of a source the message with the highest position and the one that came last, and when the source's system
enqueued them. Positions are numbers of the system. If an entity is created again, or restored to an earlier state, it gives them to other
messages; those were enqueued later (`x-opt-enqueued-time`) than all earlier ones. What it is not: an account of outstanding or settled
messages.

Invariants:
    I1. Memory grows with the number of partitions, and nothing is decoded before it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.bridge.lease.message_age import enqueued_ms
from isthmus.bridge.port import PARTITION_SHIFT

__all__ = ["Newest", "partition_of"]


class Newest:
    """The newest messages of one route."""

    def __init__(self) -> None:
        self._highest: dict[int, tuple[int, bytes]] = {}
        self._last: dict[int, tuple[int, bytes]] = {}

    def came(self, positions: Sequence[int], payloads: Sequence[bytes]) -> None:
        """Messages came, at least one."""
        if isinstance(positions, range):
            self._came(positions[-1], payloads[-1])
            return
        lasts = {position >> PARTITION_SHIFT: at for at, position in enumerate(positions)}
        for at in lasts.values():
            self._came(positions[at], payloads[at])

    def _came(self, position: int, payload: bytes) -> None:
        partition = position >> PARTITION_SHIFT
        found = self._last[partition] = position, payload
        if partition not in self._highest or position > self._highest[partition][0]:
            self._highest[partition] = found

    def taken_in_ms(self) -> dict[int, int]:
        """By partition, when the newest was enqueued; 0 where no message has the time."""
        return {
            partition: max(enqueued_ms(payload), enqueued_ms(self._last[partition][1]))
            for partition, (_, payload) in self._highest.items()
        }


def partition_of(position: int) -> int:
    """The partition of a position."""
    return position >> PARTITION_SHIFT
