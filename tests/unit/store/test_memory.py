"""The journal in memory."""

import pytest

from isthmus.entities import Journal
from isthmus.errors import StoreError
from isthmus.store import MemoryJournal
from isthmus.testing.store_conformance import JournalConformance


class TestMemoryJournal(JournalConformance):
    @pytest.fixture(autouse=True)
    def _journal(self) -> None:
        self.journal = MemoryJournal()

    def open(self) -> Journal:
        self.journal.reopen()
        return self.journal

    def crash(self, journal: Journal) -> Journal:
        self.journal.crash()
        return journal


def test_a_crash_can_keep_some_of_the_unsynced_batches() -> None:
    journal = MemoryJournal()
    for number in range(4):
        batch = journal.batch()
        batch.put(b"%d" % number, b"")
        journal.write(batch)
    assert journal.unsynced_count == 4
    journal.crash(keep=3)
    assert [key for key, _ in journal.scan(b"", b"\xff")] == [b"0", b"1", b"2"]
    journal.crash()
    assert len(list(journal.scan(b"", b"\xff"))) == 3


def test_failures_can_be_ordered() -> None:
    journal = MemoryJournal()
    journal.fail_writes = OSError("no space left on device")
    with pytest.raises(StoreError, match="no space left"):
        journal.write(journal.batch())
    journal.fail_syncs = OSError("I/O error")
    with pytest.raises(StoreError, match="I/O error"):
        journal.sync()


def test_a_closed_journal_refuses() -> None:
    journal = MemoryJournal()
    journal.close()
    with pytest.raises(StoreError, match="closed"):
        journal.get(b"a")
