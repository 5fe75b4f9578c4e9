"""The conformance suite of journals, run for each implementation.

What it is: a class of tests to inherit from; the subclass defines how to open a journal, close it cleanly, and lose what
was not synced. What it is not: a benchmark.

    class TestMemory(JournalConformance):
        def open(self): ...
"""

from __future__ import annotations

import threading

from isthmus.entities.storage.journal import Journal
from isthmus.errors import StoreError

__all__ = ["JournalConformance"]


class JournalConformance:
    """Tests of `isthmus.entities.Journal`, invariants I1 to I4."""

    def open(self) -> Journal:
        """A journal over the test's own storage, with the contents that are there."""
        raise NotImplementedError

    def crash(self, journal: Journal) -> Journal:
        """Stop without closing, and open again; everything not synced may be lost, and the suite loses as much of it as it can."""
        raise NotImplementedError

    def test_reads_what_was_written_before_any_sync(self) -> None:
        journal = self.open()
        _write(journal, (b"a", b"1"), (b"b", b""))
        assert journal.get(b"a") == b"1"
        assert journal.get(b"b") == b""
        assert journal.get(b"c") is None
        assert journal.get_many([b"b", b"x", b"a"]) == [b"", None, b"1"]
        assert journal.get_many([]) == []
        journal.close()

    def test_tells_about_how_much_a_sync_has_to_do(self) -> None:
        journal = self.open()
        journal.sync()
        assert journal.unsynced_bytes == 0
        _write(journal, (b"a", b"1" * 1000))
        _write(journal, (b"b", b"2" * 1000))
        assert 2000 <= journal.unsynced_bytes <= 2200
        journal.sync()
        assert journal.unsynced_bytes == 0
        journal.close()

    def test_scans_in_byte_order_within_half_open_bounds(self) -> None:
        """I3: order and bounds."""
        journal = self.open()
        _write(journal, (b"b2", b"3"), (b"a", b"1"), (b"b10", b"2"), (b"c", b"4"), (b"b\xff", b"5"))
        assert list(journal.scan(b"b", b"c")) == [(b"b10", b"2"), (b"b2", b"3"), (b"b\xff", b"5")]
        assert list(journal.scan(b"b2", b"b2")) == []
        assert list(journal.scan(b"b", b"c", read_ahead=True)) == list(journal.scan(b"b", b"c"))
        journal.close()

    def test_a_scan_sees_the_store_as_it_stood(self) -> None:
        """I3: later writes do not change a scan that was made."""
        journal = self.open()
        _write(journal, *((b"k%03d" % number, b"old") for number in range(100)))
        scan = journal.scan(b"k", b"l")
        assert next(scan) == (b"k000", b"old")
        batch = journal.batch()
        batch.put(b"k050", b"new")
        batch.put(b"k0505", b"new")
        batch.delete_range(b"k060", b"k100")
        journal.write(batch)
        assert [value for _, value in scan] == [b"old"] * 99
        assert len(list(journal.scan(b"k", b"l"))) == 61
        journal.close()

    def test_many_scans_live_at_once(self) -> None:
        journal = self.open()
        _write(journal, *((b"k%05d" % number, b"x" * 100) for number in range(2000)))
        scans = [journal.scan(b"k%05d" % (100 * number), b"k%05d" % (100 * number + 100)) for number in range(20)]
        for _ in range(100):
            for scan in scans:
                next(scan)
        assert [next(scan, None) for scan in scans] == [None] * 20
        journal.close()

    def test_later_changes_of_a_batch_win(self) -> None:
        journal = self.open()
        batch = journal.batch()
        batch.put(b"a", b"1")
        batch.put(b"a", b"2")
        batch.put(b"b", b"1")
        batch.delete(b"b")
        batch.put(b"c", b"1")
        batch.delete_range(b"c", b"d")
        batch.put(b"c", b"2")
        batch.delete(b"never-there")
        journal.write(batch)
        assert list(journal.scan(b"", b"\xff")) == [(b"a", b"2"), (b"c", b"2")]
        journal.close()

    def test_a_range_goes_and_its_end_stays(self) -> None:
        journal = self.open()
        _write(journal, (b"a", b""), (b"b", b""), (b"b1", b""), (b"c", b""))
        batch = journal.batch()
        batch.delete_range(b"b", b"c")
        journal.write(batch)
        assert [key for key, _ in journal.scan(b"", b"\xff")] == [b"a", b"c"]
        journal.close()

    def test_what_was_synced_survives_a_crash(self) -> None:
        """I2: at least everything synced is there, and what is there is a prefix of the batches."""
        journal = self.open()
        for number in range(10):
            _write(journal, (b"%02d" % number, b"x"), (b"%02dm" % number, b"x"))
            if number == 4:
                journal.sync()
        journal = self.crash(journal)
        keys = [key for key, _ in journal.scan(b"", b"\xff")]
        kept = len(keys) // 2
        assert kept >= 5
        assert keys == [key for number in range(kept) for key in (b"%02d" % number, b"%02dm" % number)]  # I1
        journal.close()

    def test_a_clean_close_keeps_everything(self) -> None:
        journal = self.open()
        _write(journal, (b"a", b"1"))
        journal.close()
        journal.close()
        journal = self.open()
        assert journal.get(b"a") == b"1"
        journal.close()

    def test_reopen_goes_back_to_what_was_synced_or_later(self) -> None:
        journal = self.open()
        _write(journal, (b"a", b"1"))
        journal.sync()
        _write(journal, (b"b", b"1"))
        journal.reopen()
        assert journal.get(b"a") == b"1"
        assert journal.get(b"b") in (None, b"1")
        _write(journal, (b"c", b"1"))
        journal.sync()
        assert journal.get(b"c") == b"1"
        journal.close()

    def test_syncs_in_another_thread_while_writes_go_on(self) -> None:
        """I2: `sync` may be called from another thread."""
        journal = self.open()
        stop = threading.Event()
        failures: list[StoreError] = []

        def sync() -> None:
            while not stop.is_set():
                try:
                    journal.sync()
                except StoreError as error:
                    failures.append(error)

        thread = threading.Thread(target=sync)
        thread.start()
        for number in range(200):
            _write(journal, (b"%04d" % number, b"x" * 200))
        stop.set()
        thread.join()
        journal.sync()
        journal = self.crash(journal)
        assert not failures
        assert len(list(journal.scan(b"", b"\xff"))) == 200
        journal.close()

    def test_large_values_come_back_whole(self) -> None:
        journal = self.open()
        value = bytes(range(256)) * 20_000
        _write(journal, (b"big", value))
        journal.sync()
        journal = self.crash(journal)
        assert journal.get(b"big") == value
        journal.close()


def _write(journal: Journal, *pairs: tuple[bytes, bytes]) -> None:
    batch = journal.batch()
    for key, value in pairs:
        batch.put(key, value)
    journal.write(batch)
