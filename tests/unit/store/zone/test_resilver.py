"""The changes that a returning copy needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from isthmus.errors import StoreError
from isthmus.store import MemoryJournal
from isthmus.store.zone.change import Position, Touched, ZoneBatch, log_key
from isthmus.store.zone.member import write_changes
from isthmus.store.zone.resilver import touched_after


class Trimming(MemoryJournal):
    """Its oldest rows go when they are about to be read."""

    def scan(self, first: bytes, end: bytes, *, read_ahead: bool = False) -> Iterator[tuple[bytes, bytes]]:
        batch = self.batch()
        batch.delete_range(log_key(0), log_key(4))
        self.write(batch)
        return super().scan(first, end, read_ahead=read_ahead)


def test_rows_that_go_while_they_are_read_are_missed() -> None:
    journal = Trimming()
    for sequence in range(1, 6):
        batch = ZoneBatch()
        batch.put(b"key %d" % sequence, b"x")
        batch.seal(Position(1, sequence))
        write_changes(journal, batch.changes)
    with pytest.raises(StoreError, match="More was changed meanwhile"):
        touched_after(journal, 1, Touched())
    touched = Touched()
    touched_after(journal, 4, touched)
    assert touched.keys == {b"key 5"}
