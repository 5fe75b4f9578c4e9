"""Untaken records, and the credit to take them.

What it is: a queue of batches, pure. What it is not: thread-safe; its owner has a lock.

Invariants:
    I1. No more is taken than was granted; batches are taken in the order in which they were put.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from isthmus.bridge.port import PARTITION_SHIFT

__all__ = ["Batch", "ReadQueue"]


class Batch(NamedTuple):
    """Records as messages, in the order in which they were read."""

    positions: list[int]
    payloads: list[bytes]


class ReadQueue:
    """The queue.

    Attributes:
        credit: records that may be taken.
        count: records in the queue.
    """

    def __init__(self) -> None:
        self.credit = 0
        self.count = 0
        self._batches: deque[Batch] = deque()

    @property
    def room(self) -> int:
        """Records that may be read."""
        return self.credit - self.count

    def put(self, batch: Batch) -> None:
        """Records were read."""
        self._batches.append(batch)
        self.count += len(batch.positions)

    def take(self) -> list[Batch]:
        """The records within the credit."""
        taken: list[Batch] = []
        while self._batches and self.credit > 0:
            batch = self._batches.popleft()
            count = len(batch.positions)
            if count > self.credit:
                count = self.credit
                self._batches.appendleft(Batch(batch.positions[count:], batch.payloads[count:]))
                batch = Batch(batch.positions[:count], batch.payloads[:count])
            self.credit -= count
            self.count -= count
            taken.append(batch)
        return taken

    def remove(self, partitions: Collection[int]) -> list[int]:
        """Removes the records of some partitions; returns their positions."""
        removed: list[int] = []
        if not partitions or not self._batches:
            return removed
        kept: deque[Batch] = deque()
        for batch in self._batches:
            stays = [at for at, position in enumerate(batch.positions) if position >> PARTITION_SHIFT not in partitions]
            removed += [position for position in batch.positions if position >> PARTITION_SHIFT in partitions]
            if stays:
                kept.append(Batch([batch.positions[at] for at in stays], [batch.payloads[at] for at in stays]))
        self._batches = kept
        self.count -= len(removed)
        return removed
