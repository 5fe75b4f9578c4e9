"""Offsets of a streaming query: how far each partition has been read, and how far the next batch goes.

What it is: the pure arithmetic on offsets by partition, which Spark keeps as JSON in its checkpoint. What it is not: the cluster
(`topic`).

Invariants:
    I1. A batch has no more records than `most`, and each partition with something to read gets some where there is room.
    I2. An offset never goes back, unless its partition ends before it, and a partition that is added later is read from its first record.
    I3. The end of the first batch names where the query began: Spark keeps no begin, and asks for it again when it plans that batch, and
        when it repeats it in another run; by then a partition has another end.
    I4. Offsets name the topic that they are of, by its id: of a topic that was made again since, all are read, however many records it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.connectors.kafka.consumer.offset_note import is_another

__all__ = [
    "Offsets",
    "begin_of",
    "first_offset",
    "from_spark",
    "next_offsets",
    "offset_after",
    "passed",
    "to_spark",
    "topic_of",
]

Offsets = Mapping[int, int]

_BEGIN, _TOPIC = "begin", "topic"


def from_spark(offset: Mapping[str, Any]) -> dict[int, int]:
    """Offsets of a checkpoint."""
    return {int(number): int(place) for number, place in offset.items() if number not in (_BEGIN, _TOPIC)}


def topic_of(offset: Mapping[str, Any]) -> str:
    """The topic that offsets of a checkpoint are of, `CLUSTER:ID`; empty: they do not tell it."""
    return str(offset.get(_TOPIC, ""))


def to_spark(offsets: Offsets) -> dict[str, int]:
    """Offsets as a checkpoint keeps them."""
    return {str(number): offsets[number] for number in sorted(offsets)}


def first_offset(offsets: Offsets, topic: str = "") -> dict[str, Any]:
    """Where a query begins in a topic, as a checkpoint keeps it."""
    return {**to_spark(offsets), _BEGIN: to_spark(offsets), **_named(topic)}


def offset_after(start: Mapping[str, Any], offsets: Offsets, topic: str = "") -> dict[str, Any]:
    """The end of the batch that begins at `start`, in a topic, as a checkpoint keeps it; `start` itself where the batch is empty."""
    read, before = from_spark(start), topic_of(start)
    if offsets == read and not is_another(before, topic):
        return dict(start)
    begin = begin_of(start, {})
    is_first = bool(begin) and begin == read
    if is_another(before, topic):
        begin = dict.fromkeys(offsets, 0)
    return {**to_spark(offsets), **({_BEGIN: to_spark(begin)} if is_first else {}), **_named(topic or before)}


def _named(topic: str) -> dict[str, str]:
    return {_TOPIC: topic} if topic else {}


def begin_of(end: Mapping[str, Any], start: Offsets) -> Offsets:
    """Where a batch begins that ends at `end`: `start`, but for the first one (I3)."""
    begin = end.get(_BEGIN)
    return from_spark(begin) if isinstance(begin, Mapping) else start


def passed(start: Offsets, ends: Offsets) -> dict[int, int]:
    """The partitions that end before the offset that was read up to, with their ends: they were made again, or truncated."""
    return {number: ends.get(number, 0) for number, offset in start.items() if ends.get(number, 0) < offset}


def next_offsets(start: Offsets, ends: Offsets, most: int) -> dict[int, int]:
    """How far the next batch goes.

    Args:
        start: how far the last one went.
        ends: behind the last record of each partition.
        most: records that it may have.
    """
    found = {number: start.get(number, 0) for number in {*start, *ends}}
    waiting = {number: end - found[number] for number, end in ends.items() if end > found[number]}
    left = most
    # The partitions with the least first: what they leave over goes to the others.
    for place, number in enumerate(sorted(waiting, key=lambda each: (waiting[each], each))):
        share = min(waiting[number], -(-left // (len(waiting) - place)))
        found[number] += share
        left -= share
    return found
