"""The journal on RocksDB."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.entities import Journal
from isthmus.errors import StoreError
from isthmus.store import RocksJournal
from isthmus.testing.store_conformance import JournalConformance


class TestRocksJournal(JournalConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "store"
        self.copies = 0

    def open(self) -> Journal:
        return RocksJournal(self.folder)

    def crash(self, journal: Journal) -> Journal:
        # What a kill leaves: the files as they are now, opened by somebody else.
        self.copies += 1
        left = self.folder.with_name(f"left-{self.copies}")
        shutil.copytree(self.folder, left)
        journal.close()
        self.folder = left
        return RocksJournal(left)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """Journal I4."""
    journal = RocksJournal(tmp_path)
    script = (
        "import sys, pathlib\n"
        "from isthmus.errors import StoreError\n"
        "from isthmus.store import RocksJournal\n"
        "try:\n"
        "    RocksJournal(pathlib.Path(sys.argv[1]))\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "is in use by another process" in answer.stdout
    assert str(tmp_path) in answer.stdout
    journal.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        RocksJournal(tmp_path / "file" / "store")


def test_a_scan_holds_what_it_needs(tmp_path: Path) -> None:
    journal = RocksJournal(tmp_path)
    batch = journal.batch()
    for number in range(1000):
        batch.put(b"%04d" % number, b"x" * 50)
    journal.write(batch)
    scan = journal.scan(b"0000", b"0900")
    scrap = [bytes(100) for _ in range(10_000)]
    assert len(list(scan)) == 900
    assert len(scrap) == 10_000
    journal.close()


def test_without_room_to_reopen_reads_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = RocksJournal(tmp_path / "s")
    batch = journal.batch()
    batch.put(b"a", b"1")
    journal.write(batch)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    journal.reopen()
    assert journal.get(b"a") == b"1"
    with pytest.raises(StoreError, match="takes no writes: the disk is full"):
        journal.write(journal.batch())
    monkeypatch.undo()
    journal.reopen()
    journal.write(journal.batch())
    assert journal.get(b"a") == b"1"
    journal.close()


def test_a_full_disk_refuses_writes_and_keeps_what_was_synced(tmp_path: Path) -> None:
    """A file size limit stands in for the full disk: the log cannot grow."""
    script = """
import pathlib, resource, signal, sys
from isthmus.errors import StoreError
from isthmus.store import RocksJournal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = RocksJournal(pathlib.Path(sys.argv[1]))
def write(key, size=1000):
    batch = journal.batch()
    batch.put(key, b"x" * size)
    journal.write(batch)
write(b"first")
journal.sync()
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
refused = 0
for number in range(1000):
    try:
        write(b"%04d" % number)
    except StoreError:
        refused += 1
        break
assert refused, "no write was refused"
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.reopen()
assert journal.get(b"first") is not None
kept = len(list(journal.scan(b"0", b"9")))
assert kept == number, (kept, number)
write(b"after")
journal.sync()
assert journal.get(b"after") is not None
journal.close()
print("ok")
"""
    answer = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, text=True, check=False
    )
    assert answer.stdout == "ok\n", answer.stderr
