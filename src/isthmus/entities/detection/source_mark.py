"""Source marks: the highest sequence number among each source's copies, so that later ones need no lookup.

What it is: one mark for each source of an entity's copies (the namespace and entity where they entered, and there the
upper 16 bits of the number, which name a partition), kept in the store. What it is not: a record of the copies taken; a
number at or below its mark may have been taken or not.

A position is the part of a duplicate key after its `KEY_BYTES`: the source, and the sequence number there.

Invariants:
    I1. No copy whose key an entity has stored has a number above the mark of its source, except for keys stored before
        `trusted_from_ms`.
    I2. Marks are written in the batch of the keys that they cover: a kill keeps both or neither.
    I3. There are at most `MOST_SOURCES`, in memory and in the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from operator import lt

from isthmus.entities.record.copy import SOURCE_BYTES
from isthmus.entities.storage.key import SOURCE_MARK, numbered_span
from isthmus.entities.storage.staging import Staging

__all__ = ["BLOCK_BYTES", "MOST_SOURCES", "SourceMarks"]

MOST_SOURCES = 1024
BLOCK_BYTES = SOURCE_BYTES + 2
"""The part of a position that identifies its mark."""
_PREFIX_BYTES = 5
_TIME_BYTES = 8


class SourceMarks:
    """The marks of one entity.

    Args:
        number: the entity's.
        staging: takes their rows.

    Attributes:
        trusted_from_ms: all keys that were stored from this wall time on are covered; None: the store has no such time.
    """

    __slots__ = ("_end", "_marks", "_row", "_staging", "trusted_from_ms")

    def __init__(self, number: int, staging: Staging) -> None:
        self._staging = staging
        self._row, self._end = numbered_span(SOURCE_MARK, number)
        self._marks: dict[bytes, bytes] = {}
        self.trusted_from_ms: int | None = None
        for key, value in staging.journal.scan(self._row, self._end):
            block = key[_PREFIX_BYTES:]
            if block:
                self._marks[block] = value
            else:
                self.trusted_from_ms = int.from_bytes(value, "big")

    def begin(self, trusted_from_ms: int) -> None:
        """Stage that there are no marks, and from when on they will exist."""
        batch = self._staging.batch
        batch.delete_range(self._row, self._end)
        batch.put(self._row, trusted_from_ms.to_bytes(_TIME_BYTES, "big"))
        self._marks = {}
        self.trusted_from_ms = trusted_from_ms

    def ahead(self, positions: Sequence[bytes]) -> dict[bytes, bytes] | None:
        """The marks that result from these, if each is above its source's mark and above those before it; None otherwise."""
        block = positions[0][:BLOCK_BYTES]
        if block and positions[-1].startswith(block) and all(map(lt, positions, islice(positions, 1, None))):
            # In ascending order, two positions of one block have none of another block between them.
            return {block: positions[-1]} if positions[0] > self._marks.get(block, b"") else None
        ahead: dict[bytes, bytes] = {}
        for position in positions:
            block = position[:BLOCK_BYTES]
            if not block or position <= (ahead.get(block) or self._marks.get(block, b"")):
                return None
            ahead[block] = position
        return ahead

    def highest(self, positions: Sequence[bytes]) -> dict[bytes, bytes]:
        """The marks that result from these, in any order."""
        highest: dict[bytes, bytes] = {}
        for position in positions:
            block = position[:BLOCK_BYTES]
            if block and position > (highest.get(block) or self._marks.get(block, b"")):
                highest[block] = position
        return highest

    def has_room(self, marks: Mapping[bytes, bytes]) -> bool:
        """Whether these may be raised without exceeding the limit of sources."""
        return len(self._marks) + len(marks) <= MOST_SOURCES or len(self._marks.keys() | marks.keys()) <= MOST_SOURCES

    def raise_to(self, marks: Mapping[bytes, bytes]) -> None:
        """Stage marks that are higher than the present ones."""
        put = self._staging.batch.put
        for block, position in marks.items():
            put(self._row + block, position)
        self._marks.update(marks)
