"""Offsets of a streaming query: the position in each partition, and the end of the next batch.

What it is: the pure arithmetic on offsets by partition, which Spark stores as JSON in its checkpoint. What it is not: the cluster
(`topic`).

Invariants:
    I1. A batch has no more records than `most`, and each partition with unread records gets some where there is room.
    I2. An offset never decreases, unless its partition ends before it, and a partition that is added later is read from its first record.
    I3. The end of the first batch contains the start of the query: Spark does not store the start, and requests it again when it plans that
        batch, and when it repeats it in another run; by then a partition has another end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Offsets", "begin_of", "first_offset", "from_spark", "next_offsets", "offset_after", "passed", "to_spark"]

Offsets = Mapping[int, int]

_BEGIN = "begin"


def from_spark(offset: Mapping[str, Any]) -> dict[int, int]:
    """Parses the offsets of a checkpoint."""
    return {int(number): int(position) for number, position in offset.items() if number != _BEGIN}


def to_spark(offsets: Offsets) -> dict[str, int]:
    """Offsets in the form of a checkpoint."""
    return {str(number): offsets[number] for number in sorted(offsets)}


def first_offset(offsets: Offsets) -> dict[str, Any]:
    """The start of a query, in the form of a checkpoint."""
    return {**to_spark(offsets), _BEGIN: to_spark(offsets)}


def offset_after(start: Mapping[str, Any], offsets: Offsets) -> dict[str, Any]:
    """The end of the batch that begins at `start`, in the form of a checkpoint; `start` itself where the batch is empty."""
    read = from_spark(start)
    if offsets == read:
        return dict(start)
    begin = begin_of(start, {})
    return {**to_spark(offsets), **({_BEGIN: to_spark(begin)} if begin == read else {})}


def begin_of(end: Mapping[str, Any], start: Offsets) -> Offsets:
    """The start of the batch that ends at `end`: `start`, except for the first one (I3)."""
    begin = end.get(_BEGIN)
    return from_spark(begin) if isinstance(begin, Mapping) else start


def passed(start: Offsets, ends: Offsets) -> dict[int, int]:
    """The partitions that end before the offset read so far, with their ends: they were created again, or truncated."""
    return {number: ends.get(number, 0) for number, offset in start.items() if ends.get(number, 0) < offset}


def next_offsets(start: Offsets, ends: Offsets, most: int) -> dict[int, int]:
    """The end of the next batch.

    Args:
        start: the end of the last batch.
        ends: after the last record of each partition.
        most: records of a batch at most.
    """
    found = {number: start.get(number, 0) for number in {*start, *ends}}
    waiting = {number: end - found[number] for number, end in ends.items() if end > found[number]}
    left = most
    # The partitions with the fewest records first: the rest of their share is left to the others.
    for position, number in enumerate(sorted(waiting, key=lambda each: (waiting[each], each))):
        share = min(waiting[number], -(-left // (len(waiting) - position)))
        found[number] += share
        left -= share
    return found
