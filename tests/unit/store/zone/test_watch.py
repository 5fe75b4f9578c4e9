"""The check of a copy's files from outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isthmus.store import RocksJournal
from isthmus.store.zone.watch import FileWatch


def fill(journal: RocksJournal, first: int) -> None:
    batch = journal.batch()
    for number in range(first, first + 500):
        batch.put(b"%06d" % number, b"x" * 100)
    journal.write(batch)
    journal.sync()


def test_i1_what_the_store_does_itself_is_not_reported(tmp_path: Path) -> None:
    journal = RocksJournal(tmp_path / "db")
    watch = FileWatch(tmp_path / "db")
    for iteration in range(8):
        fill(journal, 500 * iteration)
        assert watch.check(journal.tables) == ""
        if iteration % 2:
            journal.checkpoint(tmp_path / f"checkpoint-{iteration}")  # writes a table, and begins a log
            assert watch.check(journal.tables) == ""
    assert journal.tables()
    journal.close()


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        *(("overwritten", kind) for kind in ("*.sst", "*.log", "MANIFEST-*", "CURRENT")),
        *(("removed", kind) for kind in ("*.sst", "MANIFEST-*", "CURRENT")),  # the store itself misses its log
    ],
)
def test_what_others_do_is(tmp_path: Path, kind: str, how: str) -> None:
    journal = RocksJournal(tmp_path / "db")
    fill(journal, 0)
    journal.checkpoint(tmp_path / "checkpoint")
    fill(journal, 500)
    watch = FileWatch(tmp_path / "db")
    assert watch.check(journal.tables) == ""
    file = max((tmp_path / "db").glob(kind), key=lambda path: path.stat().st_size)
    if how == "removed":
        file.unlink()
    else:
        with file.open("r+b") as opened:
            opened.write(os.urandom(max(1, file.stat().st_size)))
    assert watch.check(journal.tables) != ""


def test_a_block_that_decays_is_found_by_reading_everything(tmp_path: Path) -> None:
    from isthmus.errors import StoreError

    journal = RocksJournal(tmp_path / "db")
    fill(journal, 0)
    journal.close()
    journal = RocksJournal(tmp_path / "db")
    assert sum(journal.verified()) == 500 * 106
    journal.close()
    (table,) = (tmp_path / "db").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[20_000] ^= 1
    table.write_bytes(data)
    journal = RocksJournal(tmp_path / "db")
    with pytest.raises(StoreError, match="damaged"):
        list(journal.verified())
    journal.close()
