"""What a group's offset says beside it: the records behind it that were given back and not read again.

What it is: the form of the note, and its reading. What it is not: when it is written (`commit`), or what follows from it (`removed`). Without
it the next reader could not tell a record that was read, given back and compacted away from one that nobody has read.
Specification: Apache Kafka documentation, protocol guide, "OffsetCommit": the metadata of an offset, a text that is the client's own.

Invariants:
    I1. A note has at most `MOST_RANGES` ranges: a broker takes 4096 bytes (`offset.metadata.max.bytes`). What there is no room for is not told.
    I2. A text that is no such note, as other clients may write, says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["MOST_RANGES", "read", "write"]

MOST_RANGES = 100
_BEGIN = "isthmus returned"
_NOTE = re.compile(rf"{_BEGIN}((?: \d{{1,15}}-\d{{1,15}}){{1,{MOST_RANGES}}})", re.ASCII)


def write(ranges: Iterable[tuple[int, int]]) -> str:
    """The note; ranges are ascending, each with the offset behind its last. Empty where there is none."""
    told = [f"{first}-{stop - 1}" for first, stop in ranges][:MOST_RANGES]
    return " ".join([_BEGIN, *told]) if told else ""


def read(text: str | None) -> Sequence[tuple[int, int]]:
    """The ranges of a note."""
    found = _NOTE.fullmatch((text or "").rstrip("\0"))
    if found is None:
        return ()
    parts = [each.partition("-") for each in found[1].split()]
    return [(int(first), int(last) + 1) for first, _, last in parts if int(first) <= int(last)]
