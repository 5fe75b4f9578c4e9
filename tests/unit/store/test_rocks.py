"""The journal on RocksDB."""

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
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
        # What a kill leaves: the files as they are now, opened by another process.
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


def test_without_room_to_reopen_reads_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_reopen_makes_no_empty_store_where_the_files_are_missing(tmp_path: Path) -> None:
    journal = with_ten_keys(tmp_path)
    for file in (tmp_path / "store").iterdir():
        file.unlink()
    journal.reopen()
    assert "CURRENT" in journal.failure
    assert len(list(journal.scan(b"", b"\xff"))) == 10
    with pytest.raises(StoreError, match="CURRENT"):
        put(journal, b"more", b"x")
    assert not (tmp_path / "store" / "CURRENT").exists()
    journal.close()


def test_a_full_disk_refuses_writes_and_keeps_what_was_synced(tmp_path: Path) -> None:
    """A file size limit replaces the full disk: the log cannot grow."""
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


def filled(folder: Path, count: int = 300, size: int = 1000) -> RocksJournal:
    journal = RocksJournal(folder)
    for number in range(count):
        put(journal, b"%06d" % number, bytes([number % 251]) * size)
    journal.sync()
    return journal


def put(journal: RocksJournal, key: bytes, value: bytes) -> None:
    batch = journal.batch()
    batch.put(key, value)
    journal.write(batch)


def test_i5_a_reopen_that_failed_is_reported_and_healed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled(tmp_path / "s")
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise StoreError("the disk is away")

        patch.setattr("isthmus.store.rocks.open_database", fail)
        with pytest.raises(StoreError, match="the disk is away"):
            journal.reopen()
        for use in (
            lambda: journal.get(b"000001"),
            lambda: journal.get_many([b"000001"]),
            lambda: list(journal.scan(b"0", b"9")),
            lambda: journal.write(journal.batch()),
            journal.sync,
            lambda: journal.checkpoint(tmp_path / "copy"),
        ):
            with pytest.raises(StoreError, match="the disk is away"):
                use()
        usage = shutil.disk_usage(tmp_path)
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        with pytest.raises(StoreError, match="the disk is full"):
            journal.reopen()
    journal.reopen()
    assert len(list(journal.scan(b"0", b"9"))) == 300
    put(journal, b"after", b"1")
    journal.sync()
    journal.close()
    with pytest.raises(StoreError, match="closed"):
        journal.get(b"000001")


class SlowSync:
    """A database whose sync waits for the test."""

    def __init__(self, database: object) -> None:
        self.database = database
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def flush_wal(self, _: bool) -> None:
        self.begun.set()
        assert self.goes_on.wait(60)

    def __getattr__(self, name: str) -> object:
        return getattr(self.database, name)


def test_a_reopen_during_a_sync_leaves_the_store_open(tmp_path: Path) -> None:
    journal = filled(tmp_path / "s")
    slow = journal._database = SlowSync(journal._database)
    thread = threading.Thread(target=journal.sync)
    thread.start()
    assert slow.begun.wait(60)
    journal.reopen()
    assert journal.get(b"000001") is not None
    with pytest.raises(StoreError, match="a sync is in progress"):
        journal.write(journal.batch())
    slow.goes_on.set()
    thread.join()
    journal.reopen()
    put(journal, b"after", b"1")
    journal.close()


def test_i5_a_damaged_table_is_reported_by_every_read(tmp_path: Path) -> None:
    filled(tmp_path / "s", 3000).checkpoint(tmp_path / "left")  # a checkpoint has all in tables
    [table] = (tmp_path / "left").glob("*.sst")
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 0x55
    table.write_bytes(content)
    journal = RocksJournal(tmp_path / "left")
    keys = [b"%06d" % number for number in range(3000)]
    for read in (
        lambda: list(journal.scan(b"0", b"9")),
        lambda: list(journal.scan(b"0", b"9", read_ahead=True)),
        lambda: [journal.get(key) for key in keys],
        lambda: journal.get_many(keys),
    ):
        with pytest.raises(StoreError, match=r"is damaged: .*Restore a back-up"):
            read()
    journal.close()


class OtherLook:
    """A database that lets a test act when another iterator is made."""

    def __init__(self, database: object, act: Callable[[], object]) -> None:
        self.database = database
        self.act = act

    def iter(self, options: object) -> object:
        self.act()
        return self.database.iter(options)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self.database, name)


@pytest.mark.parametrize("wanted", [b"000000", b"001600"], ids=["behind it", "at it"])
def test_i5_a_block_that_can_be_read_again_a_moment_later_is_not_left_out(tmp_path: Path, wanted: bytes) -> None:
    """A disk, or a process out of descriptors, may fail one read and serve the next."""
    filled(tmp_path / "s", 3000).checkpoint(tmp_path / "left")
    [table] = (tmp_path / "left").glob("*.sst")
    content = table.read_bytes()
    middle = len(content) // 2
    journal = RocksJournal(tmp_path / "left")
    table.write_bytes(content[:middle] + bytes(200_000) + content[middle + 200_000 :])
    began: list[object] = []
    journal._database = OtherLook(journal._database, lambda: [table.write_bytes(content) for _ in began])
    scan = journal.scan(wanted, b"9")
    began.append(scan)
    with pytest.raises(StoreError):
        list(scan)
    assert len(list(journal.scan(wanted, b"9"))) == 3000 - int(wanted)
    journal.close()


class FailsOnce:
    """A database whose disk reports once that it could not take something, as Linux does."""

    def __init__(self, database: object) -> None:
        self.database = database
        self.reported = False

    def flush_wal(self, _: bool) -> None:
        if not self.reported:
            self.reported = True
            raise OSError("Input/output error")

    def __getattr__(self, name: str) -> object:
        return getattr(self.database, name)


def test_i8_a_sync_that_failed_for_a_back_up_fails_for_all(tmp_path: Path) -> None:
    """What was written before it need not be on the disk, though the disk reports no further error."""
    journal = filled(tmp_path / "s")
    put(journal, b"staged", b"1")
    journal._database = FailsOnce(journal._database)
    with pytest.raises(StoreError, match="could not be copied"):
        journal.checkpoint(tmp_path / "copy")
    with pytest.raises(StoreError, match=r"could not be synced: .*Input/output error"):
        journal.sync()
    with pytest.raises(StoreError, match="takes no writes"):
        journal.write(journal.batch())
    journal.reopen()
    put(journal, b"after", b"1")
    journal.sync()
    journal.close()


@pytest.mark.parametrize("from_end", [5, 60, 300, 1000])
def test_a_table_damaged_where_a_start_reads_it_is_not_called_in_use(tmp_path: Path, from_end: int) -> None:
    filled(tmp_path / "s").checkpoint(tmp_path / "left")
    [table] = (tmp_path / "left").glob("*.sst")
    content = bytearray(table.read_bytes())
    content[-from_end] ^= 0x55
    table.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged: "):
        RocksJournal(tmp_path / "left")


def test_a_missing_table_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "s").checkpoint(tmp_path / "left")
    for table in (tmp_path / "left").glob("*.sst"):
        table.unlink()
    with pytest.raises(StoreError, match=r"is damaged: .*Restore a back-up"):
        RocksJournal(tmp_path / "left")


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o777])
def test_i6_folder_and_files_are_for_their_owner_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        filled(tmp_path / "s").close()
        journal = RocksJournal(tmp_path / "s")
        journal.checkpoint(tmp_path / "copy")
        for folder in (tmp_path / "s", tmp_path / "copy"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert not {file.name for file in folder.iterdir() if file.stat().st_mode & 0o077} - made_since(folder)
        journal.close()
    finally:
        os.umask(before)


def made_since(folder: Path) -> set[str]:
    """What RocksDB made while it was open has the process's umask."""
    return {"LOG"} if folder.name == "s" else set()


def with_ten_keys(tmp_path: Path) -> RocksJournal:
    journal = RocksJournal(tmp_path / "store")
    batch = journal.batch()
    for number in range(10):
        batch.put(b"%d" % number, b"x")
    journal.write(batch)
    journal.sync()
    return journal


def test_i5_a_scan_that_has_not_ended_keeps_no_store_from_being_opened_again(tmp_path: Path) -> None:
    journal = with_ten_keys(tmp_path)
    scan = journal.scan(b"0", b"9")
    assert next(scan) == (b"0", b"x")
    journal.reopen()
    assert journal.get(b"5") == b"x"
    with pytest.raises(StoreError, match="opened again during a scan"):
        next(scan)
    assert len(list(journal.scan(b"0", b":"))) == 10
    journal.close()


def test_i5_a_scan_that_has_not_ended_keeps_no_store_from_being_closed(tmp_path: Path) -> None:
    journal = with_ten_keys(tmp_path)
    scan = journal.scan(b"0", b"9")
    next(scan)
    journal.close()
    with pytest.raises(StoreError, match="closed"):
        next(scan)
    RocksJournal(tmp_path / "store").close()
