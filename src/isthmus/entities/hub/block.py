"""A block: the events that one group commit added to one partition, one row of the store.

What it is: the row's form and its reading. Events of a block have one enqueued time and are stored ready for the wire, so that
writing a batch is one row and reading it back is slices.

A row is::

    base u64 | offset u64 | enqueued_ms u64 | count u32 | count times u32: where each event ends | events

Offsets are positions in the partition's bytes: an event's offset is its start. The difference of two offsets is
therefore the size of the bytes between them; retention by size needs nothing else.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from itertools import accumulate, pairwise

__all__ = ["Block", "BlockCache"]

_HEAD = struct.Struct(">QQQI")


class Block:
    """Events of one partition that were written together.

    Attributes:
        base: sequence number of the first event.
        offset: of the first event.
        enqueued_ms: wall time of all of them.
        events: encoded messages.
    """

    __slots__ = ("base", "enqueued_ms", "events", "offset", "size_bytes")

    def __init__(self, base: int, offset: int, enqueued_ms: int, events: list[bytes]) -> None:
        self.base = base
        self.offset = offset
        self.enqueued_ms = enqueued_ms
        self.events = events
        self.size_bytes = sum(map(len, events))

    @property
    def last(self) -> int:
        """Sequence number of the last event."""
        return self.base + len(self.events) - 1

    @property
    def last_offset(self) -> int:
        """Offset of the last event."""
        return self.offset + self.size_bytes - len(self.events[-1])

    def offsets(self) -> list[int]:
        """Offset of each event."""
        return list(accumulate(map(len, self.events[:-1]), initial=self.offset))

    def pack(self) -> bytes:
        """The row's value."""
        count = len(self.events)
        ends = struct.pack(f">{count}I", *accumulate(map(len, self.events)))
        return b"".join((_HEAD.pack(self.base, self.offset, self.enqueued_ms, count), ends, *self.events))

    @classmethod
    def unpack(cls, row: bytes) -> Block:
        """The block that `pack` wrote."""
        base, offset, enqueued_ms, count = _HEAD.unpack_from(row)
        start = _HEAD.size + 4 * count
        ends = struct.unpack_from(f">{count}I", row, _HEAD.size)
        body = memoryview(row)[start:].tobytes()
        return cls(base, offset, enqueued_ms, [body[at:end] for at, end in pairwise((0, *ends))])


class BlockCache:
    """Blocks just written, for receivers that keep up with the producers; the oldest are dropped first.

    Args:
        limit_bytes: of all of them together.
    """

    __slots__ = ("_blocks", "_limit_bytes", "_used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._blocks: OrderedDict[tuple[int, int], Block] = OrderedDict()
        self._limit_bytes = limit_bytes
        self._used_bytes = 0

    def put(self, number: int, block: Block) -> None:
        """Cache a block of the partition with that number."""
        self._blocks[number, block.base] = block
        self._used_bytes += block.size_bytes
        while self._used_bytes > self._limit_bytes:
            self._used_bytes -= self._blocks.popitem(last=False)[1].size_bytes

    def get(self, number: int, base: int) -> Block | None:
        """The block that begins with a sequence number, if it is cached."""
        return self._blocks.get((number, base))

    def clear(self) -> None:
        """Drop all blocks."""
        self._blocks.clear()
        self._used_bytes = 0
