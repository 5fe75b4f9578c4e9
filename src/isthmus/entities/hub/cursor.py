"""A receiver's position in a partition.

What it is: reading in order from a sequence number on, a part of a block at a time. It keeps no scan of the store open, and
no block once all is read. What it is not: a link's credit (`isthmus.broker.hub.sender_link`).

Invariants:
    I1. Events are returned in order, each once, none before it is durable; events that retention removed first are skipped.
"""

from __future__ import annotations

from collections import deque

from isthmus.entities.hub.block import Block
from isthmus.entities.hub.partition import Partition

__all__ = ["Cursor"]


class Cursor:
    """A position in a partition.

    Args:
        partition: to read.
        start: sequence number of the first event wanted.

    Attributes:
        next: sequence number of the next event.
    """

    __slots__ = ("_blocks", "next", "partition")

    def __init__(self, partition: Partition, start: int) -> None:
        self.partition = partition
        self.next = start
        self._blocks: deque[Block] = deque()

    def take(self, count: int, size_bytes: int) -> list[bytes]:
        """Up to `count` events of together about `size_bytes`, at least one; none if all has been read."""
        begin = self.partition.begin
        while self._blocks and self._blocks[0].last < begin:
            self._blocks.popleft()  # retention may have removed it while the receiver had no credit
        if not self._blocks:
            self._blocks.extend(self.partition.blocks(self.next))
            if not self._blocks:
                return []
        block = self._blocks[0]
        at = max(self.next, block.base) - block.base
        mean_bytes = block.size_bytes // len(block.events) + 1
        events = block.events[at : at + max(1, min(count, size_bytes // mean_bytes))]
        self.next = block.base + at + len(events)
        if self.next > block.last:
            self._blocks.popleft()
        return events
