"""Offsets of a streaming query: the position in each partition, and the end of the next batch.

What it is: the pure arithmetic on offsets by partition, which Spark keeps as JSON in its checkpoint, and of which topic they are. What it is
not: the cluster (`topic`).

Invariants:
    I1. A batch has no more records than `most`, and each partition with something to read gets some where there is room.
    I2. An offset never goes back, unless its partition ends before it, and a partition that is added later is read from its first record.
    I3. The end of the first batch names where the query began: Spark keeps no begin, and asks for it again when it plans that batch, and
        when it repeats it in another run; by then a partition has another end.
    I4. Offsets of a topic that is gone are none of the topic that was made again under its name, whatever they are, nor of one of another
        cluster.
    I5. The leader epoch of each offset is kept, where the cluster reports it (KIP-320): it shows that a log was truncated before an offset
        and has grown past it since. The end of a batch names where it begins then, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "Offsets",
    "begin_of",
    "epochs_of",
    "first_offset",
    "from_spark",
    "is_another",
    "next_offsets",
    "offset_after",
    "passed",
    "start_of",
    "to_spark",
    "topic_of",
]

Offsets = Mapping[int, int]

_BEGIN, _TOPIC, _EPOCHS = "begin", "topic", "epochs"
_NONE: Offsets = {}


def from_spark(offset: Mapping[str, Any]) -> dict[int, int]:
    """Parses the offsets of a checkpoint."""
    return {int(number): int(position) for number, position in offset.items() if number.isdecimal()}


def topic_of(offset: Mapping[str, Any]) -> str:
    """The topic of a checkpoint's offsets, `CLUSTER:ID`; empty where it was not known."""
    return str(offset.get(_TOPIC, ""))


def epochs_of(offset: Mapping[str, Any]) -> dict[int, int]:
    """The leader epochs of a checkpoint's offsets, where they are known."""
    return from_spark(offset.get(_EPOCHS, {}))


def is_another(before: str, topic: str) -> bool:
    """Whether a topic is not the one of a checkpoint's offsets. Of another cluster it never is: a checkpoint outlives its cluster, whereas the
    offsets of a group are copied with the topic (`offset_note.is_another`).
    """
    ids = [each.rpartition(":")[2] for each in (before, topic)]
    return all(ids) and ids[0] != ids[1]


def to_spark(offsets: Offsets) -> dict[str, int]:
    """Offsets in the form of a checkpoint."""
    return {str(number): offsets[number] for number in sorted(offsets)}


def first_offset(offsets: Offsets, topic: str = "", epochs: Offsets = _NONE) -> dict[str, Any]:
    """Where a query begins, as a checkpoint keeps it."""
    return {**to_spark(offsets), _BEGIN: to_spark(offsets), **_named(topic), **_with_epochs(offsets, epochs)}


def offset_after(
    start: Mapping[str, Any],
    offsets: Offsets,
    topic: str = "",
    epochs: Offsets = _NONE,
    truncated: Offsets = _NONE,
) -> dict[str, Any]:
    """The end of the batch that begins at `start`, as a checkpoint keeps it; `start` itself where the batch is empty.

    Args:
        start: where the batch begins.
        offsets: where it ends.
        topic: of which topic these are; empty where that is not known.
        epochs: the leader epochs of the present ends; negative where they are not known.
        truncated: the partitions whose logs were truncated before `start`, and where (I5).
    """
    read = from_spark(start)
    is_new = is_another(topic_of(start), topic)
    if offsets == read and not is_new and not truncated:
        return dict(start)
    begin: dict[str, Any] = {}
    if truncated:
        begin = {_BEGIN: to_spark({**read, **truncated})}
    elif begin_of(start, {}) == read:
        begin = {_BEGIN: to_spark(dict.fromkeys(offsets, 0) if is_new else read)}
    return {**to_spark(offsets), **begin, **_named(topic or topic_of(start)), **_with_epochs(offsets, epochs)}


def begin_of(end: Mapping[str, Any], start: Offsets) -> Offsets:
    """The start of the batch that ends at `end`: `start`, except for the first one (I3)."""
    begin = end.get(_BEGIN)
    return from_spark(begin) if isinstance(begin, Mapping) else start


def start_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> Offsets:
    """Where a batch of a checkpoint begins; with the first records where `end` is of another topic than `start`."""
    read = begin_of(end, from_spark(start))
    if _BEGIN not in end and is_another(topic_of(start), topic_of(end)):
        read = {}
    return {**read, **dict.fromkeys(passed(read, from_spark(end)), 0)}  # a partition that begins again


def _named(topic: str) -> dict[str, str]:
    return {_TOPIC: topic} if topic else {}


def _with_epochs(offsets: Offsets, epochs: Offsets) -> dict[str, Any]:
    known = {number: epochs[number] for number in offsets if epochs.get(number, -1) >= 0}
    return {_EPOCHS: to_spark(known)} if known else {}


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
