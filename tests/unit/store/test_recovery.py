"""The write-ahead logs that a start recovers, and those that it refuses."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.errors import StoreError
from isthmus.store import RocksJournal, recovery
from isthmus.store.log_walk import walk
from isthmus.store.manifest import oldest_log

COUNT = 300
Mutate = Callable[[bytearray], bytearray]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a kill leaves: one log with a record for each key."""
    folder = tmp_path_factory.mktemp("killed")
    journal = RocksJournal(folder / "s")
    for number in range(COUNT):
        batch = journal.batch()
        batch.put(b"%06d" % number, bytes([number % 251]) * 1000)
        journal.write(batch)
    journal.sync()
    shutil.copytree(folder / "s", folder / "left")
    journal.close()
    return folder / "left"


@pytest.fixture
def left(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(killed, tmp_path / "left")
    return tmp_path / "left"


def change(folder: Path, mutate: Mutate) -> bytes:
    [log] = folder.glob("*.log")
    changed = bytes(mutate(bytearray(log.read_bytes())))
    log.write_bytes(changed)
    return changed


def flip(at: float) -> Mutate:
    def mutate(content: bytearray) -> bytearray:
        content[int(at * len(content)) if 0 < at < 1 else int(at)] ^= 0x10
        return content

    return mutate


def zero(at: int, count: int) -> Mutate:
    def mutate(content: bytearray) -> bytearray:
        content[at : at + count] = bytes(count)
        return content

    return mutate


DAMAGE = {
    "a bit of a body": flip(0.5),
    "a bit of the first record": flip(20),
    "a bit of a length": flip(32768 + 4),
    "a bit of a checksum": flip(32768),
    "a bit of a type": flip(32768 + 6),
    "a bit of the last record but one": flip(-1100),
    "a page of zeros": zero(65536, 4096),
    "a block of zeros": zero(65536, 32768),
    "blocks taken out": lambda content: content[:65536] + content[131072:],
}


@pytest.mark.parametrize("name", DAMAGE)
def test_i3_damage_with_records_behind_it_is_refused_and_left(left: Path, name: str) -> None:
    changed = change(left, DAMAGE[name])
    for _ in range(2):
        with pytest.raises(StoreError, match=r"is damaged: .*Restore a back-up"):
            RocksJournal(left)
    assert changed in [log.read_bytes() for log in left.glob("*.log")]


TORN = {
    "nothing": (lambda content: content, COUNT),
    "cut within a record": (lambda content: content[:-500], COUNT - 1),
    "cut within a header": (lambda content: content[:-1026], COUNT - 1),
    "zeros within the last record": (lambda content: content[:-500] + bytes(500), COUNT - 1),
    "zeros from within the last record on": (lambda content: content[:-500] + bytes(90_000), COUNT - 1),
    "zeros behind the last record": (lambda content: content + bytes(40_000), COUNT),
    "scrap behind the last record": (lambda content: content + b"\x07" * 40_000, COUNT),
    "a bit of the last record": (flip(-10), COUNT - 1),
    "nothing but the begin of a record": (lambda content: content[:30], 0),
}


@pytest.mark.parametrize("name", TORN)
def test_i1_a_torn_end_is_cut_off(left: Path, name: str) -> None:
    mutate, count = TORN[name]
    change(left, mutate)
    for added in range(3):  # what was cut off does not come back, whatever is written behind it
        journal = RocksJournal(left)
        keys = [key for key, _ in journal.scan(b"0", b"a")]
        assert keys == [b"%06d" % number for number in range(count)] + [b"9%05d" % number for number in range(added)]
        batch = journal.batch()
        batch.put(b"9%05d" % added, b"1")
        journal.write(batch)
        journal.sync()
        journal.close()


def logs_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def test_i3_a_log_that_ends_before_the_next_begins_is_refused(left: Path) -> None:
    [log] = logs_of(left)
    content = log.read_bytes()
    cut = walk(content[:100_000]).end
    log.write_bytes(content[:cut])
    later = log.with_name(f"{int(log.stem) + 7:06d}.log")
    begin = walk(content[:200_000]).end
    assert begin > cut
    later.write_bytes(_moved(content, begin))
    with pytest.raises(StoreError, match=r"is damaged: log .*has to follow"):
        RocksJournal(left)
    log.write_bytes(content[: cut + 100])
    with pytest.raises(StoreError, match=r"is damaged: log .*ends within a record"):
        RocksJournal(left)


def _moved(content: bytes, begin: int) -> bytes:
    """One whole record from the middle of a log, as the first of another."""
    record = content[begin:][: 7 + int.from_bytes(content[begin + 4 : begin + 6], "little")]
    assert record[6] == 1, "a record in one piece"
    return record


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What a kill leaves in each of three runs; in each, the changes of those before are in tables."""
    folder = tmp_path_factory.mktemp("generations")
    left = []
    for run in range(3):
        journal = RocksJournal(folder / "s")
        for number in range(run * 10, run * 10 + 10):
            batch = journal.batch()
            batch.put(b"%06d" % number, b"x")
            journal.write(batch)
        journal.sync()
        left.append(folder / f"left-{run}")
        shutil.copytree(folder / "s", left[-1])
        journal.close()
    return left


@pytest.mark.parametrize("is_damaged", [False, True])
def test_i2_a_log_that_is_not_needed_any_more_is_no_damage(
    generations: list[Path], tmp_path: Path, is_damaged: bool
) -> None:
    left = tmp_path / "left"
    shutil.copytree(generations[2], left)
    [old] = generations[0].glob("*.log")
    content = bytearray(old.read_bytes())
    if is_damaged:
        content[len(content) // 2] ^= 0xFF
    (left / old.name).write_bytes(content)
    journal = RocksJournal(left)
    assert [key for key, _ in journal.scan(b"0", b"9")] == [b"%06d" % number for number in range(30)]
    journal.close()


def test_i3_a_gap_before_a_log_that_is_needed_is_refused(generations: list[Path], tmp_path: Path) -> None:
    left = tmp_path / "left"
    shutil.copytree(generations[0], left)
    [late] = generations[2].glob("*.log")
    shutil.copy(late, left)
    with pytest.raises(StoreError, match="sequence number 21, where 11 has to follow"):
        RocksJournal(left)


@pytest.mark.parametrize("current", [None, "", "MANIFEST-999999", "\xff", "../left", "\0" * 16])
def test_a_manifest_that_cannot_be_followed_makes_no_log_obsolete(tmp_path: Path, current: str | None) -> None:
    if current is not None:
        (tmp_path / "CURRENT").write_text(current, encoding="latin-1")
    assert oldest_log(tmp_path) == 0
    for name in ("", "MANIFEST-000005"):
        if name:
            (tmp_path / "CURRENT").write_text(name)
            (tmp_path / name).write_bytes(b"\x01\x02\x03" * 20)
            assert oldest_log(tmp_path) == 0


# ---- logs that are removed


def fill(journal: RocksJournal, numbers: range) -> None:
    for number in numbers:
        batch = journal.batch()
        batch.put(b"%06d" % number, b"x" * 100)
        journal.write(batch)
    journal.sync()


def keys(journal: RocksJournal) -> list[bytes]:
    return [key for key, _ in journal.scan(b"0", b"9")]


def test_i4_a_log_that_was_removed_is_missed_at_the_start(generations: list[Path], tmp_path: Path) -> None:
    for index, each in enumerate(generations):
        left = tmp_path / f"left-{index}"
        shutil.copytree(each, left)
        [log] = left.glob("*.log")
        log.unlink()
        before = sorted(left.iterdir())
        with pytest.raises(StoreError, match=rf"is damaged: log {log.name} is missing.*Restore a back-up"):
            RocksJournal(left)
        assert sorted(left.iterdir()) == before


def test_i4_of_a_log_that_is_removed_while_it_is_written_nothing_synced_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = RocksJournal(tmp_path / "s")
    fill(journal, range(10))
    [log] = (tmp_path / "s").glob("*.log")
    log.unlink()
    fill(journal, range(10, 20))
    shutil.copytree(tmp_path / "s", tmp_path / "left")
    assert any(log.name in each for each in caplog.messages)
    fill(journal, range(20, 30))
    assert len(keys(journal)) == 30
    shutil.copytree(tmp_path / "s", tmp_path / "later")
    journal.close()
    for name, count in (("left", 20), ("later", 30)):
        again = RocksJournal(tmp_path / name)
        assert len(keys(again)) == count
        again.close()


def test_i4_neither_a_flush_nor_a_copy_is_taken_for_a_removal(tmp_path: Path) -> None:
    journal = RocksJournal(tmp_path / "s")
    for run in range(4):
        fill(journal, range(run * 10, run * 10 + 10))
        journal.checkpoint(tmp_path / f"copy-{run}")  # flushes, so that the log changes
        shutil.copytree(tmp_path / "s", tmp_path / f"left-{run}")
        fill(journal, range(run * 10, run * 10 + 10))
        if run == 2:
            journal.reopen()
    journal.close()
    for run in range(4):
        for name in ("copy", "left"):
            again = RocksJournal(tmp_path / f"{name}-{run}")
            assert len(keys(again)) == run * 10 + 10
            again.close()


def test_a_file_whose_name_is_no_number_of_a_log_is_passed_over(left: Path) -> None:
    """Python calls a superscript a digit, and does not read it; another script's digits it reads as a number."""
    for name in ("²", "٠٠٩٩٩٩", "000009.old"):
        (left / f"{name}.log").write_bytes(b"of somebody else")
    RocksJournal(left).close()
    journal = RocksJournal(left)
    assert len(list(journal.scan(b"0", b"a"))) == COUNT
    journal.close()


def test_a_log_that_cannot_be_read_a_second_time_is_reported(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The OSError ended the program with a traceback."""
    change(left, flip(-10))
    reads: list[Path] = []
    whole = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.suffix == ".log":
            reads.append(path)
            if len(reads) > 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return whole(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(StoreError, match=r"cannot be opened: Input/output error: .*\.log"):
        RocksJournal(left)


def test_an_end_that_cannot_be_put_back_is_reported_with_the_damage(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(left, lambda content: flip(-10)(flip(0.5)(content)))
    opened = Path.open

    def refuse(path: Path, mode: str = "r", *rest: Any) -> Any:
        if mode == "ab":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return opened(path, mode, *rest)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StoreError, match=r"is damaged: .*could not be put back: No space left"):
        RocksJournal(left)


@pytest.mark.parametrize("point", ["before it is put back", "within", "after it"])
def test_i5_a_damaged_store_is_left_as_it_was_though_its_start_is_killed(
    left: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The damaged end was cut off, and no record of it was left."""
    changed = change(left, lambda content: flip(-10)(flip(-1100)(flip(0.5)(content))))
    whole = recovery._restore_cut

    def killed(file: Path | None, *rest: Any) -> str:
        assert file is not None
        assert len(file.read_bytes()) < len(changed)
        if point == "within":
            with file.open("ab") as opened:
                opened.write(b"part")
        if point == "after it":
            whole(file, *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recovery, "_restore_cut", killed)
        with pytest.raises(KeyboardInterrupt):
            RocksJournal(left)
    for _ in range(2):
        with pytest.raises(StoreError, match="is damaged"):
            RocksJournal(left)
        assert [log.read_bytes() for log in left.glob("*.log")] == [changed]
    assert list(left.glob("*.cut")) == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_i5_what_was_cut_off_does_not_come_back_behind_a_start_that_went_well(
    left: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    change(left, flip(-10))
    if is_killed:  # before it was forgotten
        monkeypatch.setattr(recovery, "_forget_cut", lambda *_: None)
    for added in range(3):
        journal = RocksJournal(left)
        assert len(list(journal.scan(b"0", b"a"))) == COUNT - 1 + added
        assert bool(list(left.glob("*.cut"))) is (is_killed and not added)
        batch = journal.batch()
        batch.put(b"9%05d" % added, b"1")
        journal.write(batch)
        journal.sync()
        journal.close()
        monkeypatch.undo()


def test_an_end_is_cut_off_where_there_is_no_room_to_keep_it(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(left, flip(-10))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("isthmus.store.recovery.write_file", refuse)
    journal = RocksJournal(left)
    assert len(list(journal.scan(b"0", b"a"))) == COUNT - 1
    journal.close()


def test_a_store_in_use_is_not_looked_at(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is being written to may seem torn; cutting it would destroy it."""
    journal = RocksJournal(left)

    def look(_: object) -> None:
        raise AssertionError("the logs were looked at")

    monkeypatch.setattr("isthmus.store.recovery._check_logs", look)
    with pytest.raises(StoreError, match="in use by another process"):
        RocksJournal(left)
    journal.close()
