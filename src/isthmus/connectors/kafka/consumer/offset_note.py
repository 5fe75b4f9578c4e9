"""The note of a group's offset: its topic's id, and the records before it that were released and not read again.

What it is: the form of the note, and its parsing. What it is not: when it is written (`commit`), or its effects (`removed`). Without
it the next reader could not distinguish a record that was read, released and compacted from an unread one, nor the offset of a deleted
topic from one of the new topic of the same name.
Specification: Apache Kafka documentation, protocol guide, "OffsetCommit": the metadata of an offset, a text of the client's choice.

Invariants:
    I1. A note has at most `MOST_RANGES` ranges: a broker accepts 4096 bytes (`offset.metadata.max.bytes`). Further ranges are omitted.
    I2. Any other text, as other clients may write, is ignored.
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
        topic: the topic of the offset, `CLUSTER:ID`; empty: unknown.
        returned: released ranges, each with the offset after its last.
    """

    topic: str = ""
    returned: Sequence[tuple[int, int]] = ()


def write(returned: Iterable[tuple[int, int]], topic: str = "") -> str:
    """The note; ranges are ascending, each with the offset after its last. Empty where there is nothing to note."""
    parts = [_BEGIN, _TOPIC, topic] if topic else [_BEGIN]
    listed = [f"{first}-{stop - 1}" for first, stop in returned][:MOST_RANGES]
    parts += [_RETURNED, *listed] if listed else []
    return " ".join(parts) if len(parts) > 1 else ""


def read(text: str | None) -> OffsetNote:
    """Parses a note."""
    found = _NOTE.fullmatch((text or "").rstrip("\0"))
    if found is None:
        return OffsetNote()
    parts = [each.partition("-") for each in (found[2] or "").split()]
    ranges = [(int(first), int(last) + 1) for first, _, last in parts if int(first) <= int(last)]
    return OffsetNote(found[1] or "", ranges)


def is_another(before: str, topic: str) -> bool:
    """Whether a topic differs from the noted one, which no longer exists: a topic of another cluster may be its copy, with its group copied, too."""
    topics = [each.rpartition(":") for each in (before, topic)]
    return all(number for _, _, number in topics) and topics[0][0] == topics[1][0] and before != topic
