"""Reading a queue in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from isthmus.entities.queue.window import Budget, Pair, Window
from isthmus.entities.storage.key import MESSAGE, message_key, unpack_message
from isthmus.errors import StoreError
from isthmus.store import MemoryJournal


class Scan:
    """Fails once, before a sequence number, and continues after what it gave if it is called again."""

    def __init__(self, pairs: Iterator[Pair], fails_at: list[int]) -> None:
        self._pairs = list(pairs)
        self._fails_at = fails_at

    def __iter__(self) -> Iterator[Pair]:
        return self

    def __next__(self) -> Pair:
        if not self._pairs:
            raise StopIteration
        if unpack_message(self._pairs[0][0]) in self._fails_at:
            self._fails_at.clear()
            raise StoreError("Input/output error")
        return self._pairs.pop(0)


class FlakyJournal(MemoryJournal):
    """Whose scans fail once at each of these sequence numbers."""

    fails_at: list[int]

    def scan(self, first: bytes, end: bytes, *, read_ahead: bool = False) -> Iterator[Pair]:
        return Scan(super().scan(first, end), self.fails_at)


@pytest.mark.parametrize("fails_at", [1, 3, 7])
def test_i1_what_was_read_before_an_error_is_read_again(fails_at: int) -> None:
    journal = FlakyJournal()
    journal.fails_at = [fails_at]
    batch = journal.batch()
    for sequence in range(1, 11):
        batch.put(message_key(MESSAGE, 1, sequence), b"%d" % sequence)
    journal.write(batch)
    window = Window(journal, 1, Budget(0), 1, caught_up=False)
    seen: list[int] = []
    errors = 0
    while len(seen) < 10:
        try:
            pairs, gaps = window.take(5, 10)
        except StoreError:
            errors += 1
            continue
        assert gaps == []
        seen += [unpack_message(key) for key, _ in pairs]
    assert seen == list(range(1, 11))
    assert errors == 1
