"""What a group's offset says beside it: of which topic it is, and the records behind it that were given back and not read again.

What it is: the form of the note, and its reading. What it is not: when it is written (`commit`), or what follows from it (`removed`). Without
it the next reader could not tell a record that was read, given back and compacted away from one that nobody has read, nor the offset of a topic
that was deleted since from one of the topic of its name that was made again.
Specification: Apache Kafka documentation, protocol guide, "OffsetCommit": the metadata of an offset, a text that is the client's own.

Invariants:
    I1. A note has at most `MOST_RANGES` ranges: a broker takes 4096 bytes (`offset.metadata.max.bytes`). What there is no room for is not told.
    I2. A text that is no such note, as other clients may write, says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["MOST_RANGES", "OffsetNote", "is_another", "read", "write"]

MOST_RANGES = 100
_BEGIN, _TOPIC, _RETURNED = "isthmus", "topic", "returned"
_NOTE = re.compile(
    rf"{_BEGIN}(?: {_TOPIC} (\S{{1,200}}))?(?: {_RETURNED}((?: \d{{1,15}}-\d{{1,15}}){{1,{MOST_RANGES}}}))?", re.ASCII
)


class OffsetNote(NamedTuple):
    """A note.

    Attributes:
        topic: that the offset is of, `CLUSTER:ID`; empty: it is not told.
        returned: ranges that were given back, each with the offset behind its last.
    """

    topic: str = ""
    returned: Sequence[tuple[int, int]] = ()


def write(returned: Iterable[tuple[int, int]], topic: str = "") -> str:
    """The note; ranges are ascending, each with the offset behind its last. Empty where there is nothing to tell."""
    parts = [_BEGIN, _TOPIC, topic] if topic else [_BEGIN]
    told = [f"{first}-{stop - 1}" for first, stop in returned][:MOST_RANGES]
    parts += [_RETURNED, *told] if told else []
    return " ".join(parts) if len(parts) > 1 else ""


def read(text: str | None) -> OffsetNote:
    """What a note says."""
    found = _NOTE.fullmatch((text or "").rstrip("\0"))
    if found is None:
        return OffsetNote()
    parts = [each.partition("-") for each in (found[2] or "").split()]
    ranges = [(int(first), int(last) + 1) for first, _, last in parts if int(first) <= int(last)]
    return OffsetNote(found[1] or "", ranges)


def is_another(before: str, topic: str) -> bool:
    """Whether a topic is not the one that was noted, which is gone: that of another cluster may be its copy, whose group was copied, too."""
    places = [each.rpartition(":") for each in (before, topic)]
    return all(number for _, _, number in places) and places[0][0] == places[1][0] and before != topic
