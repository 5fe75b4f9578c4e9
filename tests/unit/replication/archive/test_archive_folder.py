"""The commit of an archive is atomic and happens once, whatever is killed."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from isthmus.replication.archive import folder as module
from isthmus.replication.archive.folder import ArchiveError, ArchiveFolder

COLUMNS = {"a": "int64"}


class Killed(BaseException):
    """The process ends here."""


def opened(path: Path) -> ArchiveFolder:
    return ArchiveFolder(path, COLUMNS).open()


def stage(folder: ArchiveFolder, *names: str) -> None:
    staging = folder.staging()
    for name in names:
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).write_bytes(name.encode())


def visible(path: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(path.glob("date=*/hour=*/*.parquet"))]


def test_a_batch_is_seen_when_it_is_committed_and_not_before(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    stage(folder, "date=d/hour=1/x.parquet", "date=d/hour=2/y.parquet")
    assert visible(tmp_path) == []
    folder.commit("s", 0, 10, 10)
    assert visible(tmp_path) == [b"date=d/hour=1/x.parquet", b"date=d/hour=2/y.parquet"]
    assert (folder.watermark("s"), folder.watermark("other"), folder.total) == (10, 0, 10)


def test_what_is_in_a_folder_within_the_table_is_none_of_it(tmp_path: Path) -> None:
    """E.g. another table, which another file names: what replays the outer one would send its messages, too."""
    folder = opened(tmp_path)
    stage(folder, "date=d/hour=1/x.parquet")
    folder.commit("s", 0, 10, 10)
    for name in ("inner/date=d/hour=1/y.parquet", "ledger/date=d/z.parquet", "date=d/z.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [file.read_bytes() for file in folder.files()] == [b"date=d/hour=1/x.parquet"]


def test_i1_what_is_below_the_watermark_is_not_committed_again(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    stage(folder, "date=d/hour=1/x.parquet")
    folder.commit("s", 0, 10, 10)
    stage(folder, "date=d/hour=1/x.parquet")
    with pytest.raises(ArchiveError, match="in the table already"):
        folder.commit("s", 9, 12, 3)
    assert len(visible(tmp_path)) == 1


def test_watermarks_and_counts_are_those_of_all_batches_after_a_restart(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for at in range(3):
        stage(folder, "date=d/hour=1/x.parquet")
        folder.commit("s", at * 10, at * 10 + 10, 10)
    stage(folder, "date=d/hour=1/x.parquet")
    folder.commit("t", 0, 5, 5)
    folder.close()
    again = opened(tmp_path)
    assert (again.watermark("s"), again.watermark("t"), again.total) == (30, 5, 35)


@pytest.mark.parametrize("step", ["before the note", "after the note", "within the move", "after the move"])
def test_i2_i3_a_kill_leaves_a_batch_whole_or_undone(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = opened(tmp_path)
    stage(folder, "date=d/hour=1/x.parquet", "date=d/hour=2/y.parquet")
    real_write, real_rename = module.write_file, Path.rename
    moved = []

    def write(path: Path, data: bytes) -> None:
        if step == "before the note":
            raise Killed
        real_write(path, data)
        if step == "after the note":
            raise Killed

    def rename(path: Path, target: Path) -> Path:
        if path.name.startswith("0") and step == "within the move" and moved:
            raise Killed
        found = real_rename(path, target)
        if path.name.startswith("0"):
            moved.append(path)
        return found

    def rmtree(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(module, "write_file", write)
    monkeypatch.setattr(Path, "rename", rename)
    if step == "after the move":
        monkeypatch.setattr(shutil, "rmtree", rmtree)
    with pytest.raises(Killed):
        folder.commit("s", 0, 10, 10)
    monkeypatch.undo()
    folder.close()
    again = opened(tmp_path)
    if step == "before the note":
        assert (visible(tmp_path), again.watermark("s")) == ([], 0)
        stage(again, "date=d/hour=1/x.parquet", "date=d/hour=2/y.parquet")
        again.commit("s", 0, 10, 10)
    assert (len(visible(tmp_path)), again.watermark("s"), again.total) == (2, 10, 10)


def test_a_batch_that_was_noted_and_not_moved_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = opened(tmp_path)
    stage(folder, "date=d/hour=1/x.parquet")
    monkeypatch.setattr(ArchiveFolder, "_move", lambda self, commit: None)
    folder.commit("s", 0, 10, 10)
    folder.close()
    assert len(ArchiveFolder(tmp_path, COLUMNS).files()) == 1


def test_a_file_of_the_last_batch_that_was_removed_is_not_listed(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    stage(folder, "date=d/hour=1/x.parquet", "date=d/hour=2/y.parquet")
    folder.commit("s", 0, 10, 10)
    removed, kept = sorted(tmp_path.glob("date=*/hour=*/*.parquet"))
    removed.unlink()
    assert folder.files() == [kept]


def test_i4_an_archive_has_one_writer(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    with pytest.raises(ArchiveError, match="written by another run"):
        opened(tmp_path)
    folder.close()
    opened(tmp_path).close()


def test_a_note_that_cannot_be_read_leaves_the_archive_to_the_next_start(tmp_path: Path) -> None:
    """A route is started again in the same process: a lock that it still holds would look like that of another run."""
    folder = opened(tmp_path)
    stage(folder, "date=d/hour=1/x.parquet")
    folder.commit("s", 0, 10, 10)
    folder.close()
    (note,) = (tmp_path / "_isthmus" / "commits").iterdir()
    reported = note.read_text()
    note.write_text("{")
    with pytest.raises(ArchiveError, match="cannot be read"):
        opened(tmp_path)
    note.write_text(reported)
    assert opened(tmp_path).watermark("s") == 10


def test_notes_do_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT", 3)
    folder = opened(tmp_path)
    for at in range(10):
        stage(folder, "date=d/hour=1/x.parquet")
        folder.commit("s", at, at + 1, 1)
    assert len(list((tmp_path / "_isthmus" / "commits").iterdir())) == 3
    assert len(visible(tmp_path)) == 10


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text("x")
    with pytest.raises(ArchiveError, match=r"contains report\.csv and is no archive"):
        ArchiveFolder(tmp_path, COLUMNS).check()


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(ArchiveError, match="column a is int64 there and string here"):
        ArchiveFolder(tmp_path, {"a": "string"}).check()
    with pytest.raises(ArchiveError, match="column b is absent there and int32 here"):
        ArchiveFolder(tmp_path, {**COLUMNS, "b": "int32"}).check()


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArchiveError, match="is no folder"):
        ArchiveFolder(tmp_path / "file" / "lake", COLUMNS).check()


def test_a_check_changes_nothing(tmp_path: Path) -> None:
    ArchiveFolder(tmp_path / "lake", COLUMNS).check()
    assert not (tmp_path / "lake").exists()


def test_a_batch_that_is_moved_while_it_is_looked_at_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was noted before, so that the spool does not contain it any more."""
    writer = opened(tmp_path)
    stage(writer, "date=d/hour=1/x.parquet")
    move = ArchiveFolder._move
    monkeypatch.setattr(ArchiveFolder, "_move", lambda self, commit: None)
    commit = writer.commit("s", 0, 10, 10)
    looking = ArchiveFolder(tmp_path, COLUMNS)
    walk = module.files_of

    def walked(folder: Path):  # type: ignore[no-untyped-def]
        found = list(walk(folder))
        if folder == tmp_path:
            move(writer, commit)
        return iter(found)

    monkeypatch.setattr(module, "files_of", walked)
    assert [file.read_bytes() for file in looking.files()] == [b"date=d/hour=1/x.parquet"]


def test_i3_the_names_of_all_folders_are_on_disk_before_the_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note whose files a power cut has taken is a watermark behind which messages are lost."""
    synced: set[Path] = set()
    noted: list[set[Path]] = []
    sync, write = os.fsync, module.write_file

    def note(path: Path, content: bytes) -> None:
        noted.append(set(synced))
        write(path, content)

    def synced_by(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced_by)
    monkeypatch.setattr(module, "write_file", note)
    table = tmp_path / "new" / "table"
    folder = opened(table)
    assert {tmp_path, tmp_path / "new", table} <= synced
    stage(folder, "date=d/hour=1/x.parquet")
    synced.clear()
    folder.commit("s", 0, 10, 10)
    staging = table / "_isthmus" / "staging"
    assert noted[-1] >= {staging.parent, staging, staging / "1", staging / "1" / "date=d"}
    assert {table, table / "date=d", table / "date=d" / "hour=1"} <= synced


def test_i3_a_note_that_a_start_finds_is_on_disk_before_its_files_are_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was killed, or whose disk refused, between the note and its sync has a note that a power cut may still take."""
    folder = opened(tmp_path)
    stage(folder, "date=d/hour=1/x.parquet")
    monkeypatch.setattr(ArchiveFolder, "_move", lambda self, commit: None)
    folder.commit("s", 0, 10, 10)
    folder.close()
    monkeypatch.undo()
    synced: list[Path] = []
    monkeypatch.setattr(module, "sync_folder", synced.append)
    before_move: list[list[Path]] = []
    move = ArchiveFolder._move
    monkeypatch.setattr(
        ArchiveFolder, "_move", lambda self, commit: (before_move.append(list(synced)), move(self, commit))
    )
    opened(tmp_path)
    assert before_move == [[tmp_path / "_isthmus" / "commits"]]


def test_a_file_that_cannot_be_looked_at_is_moved_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Python 3.14 `Path.exists` is false for any error: the file counted as moved, and was removed with its staging folder."""
    folder = opened(tmp_path)
    stage(folder, "date=d/hour=1/x.parquet")
    real = os.stat

    def stat(path: Any, **more: Any) -> os.stat_result:
        if str(path).endswith("-0000.parquet"):
            raise OSError(errno.EIO, "Input/output error")
        return real(path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", stat)
        patched.setattr(Path, "exists", os.path.exists)
        with pytest.raises(OSError, match="Input/output error"):
            folder.commit("s", 0, 10, 10)
    folder.close()
    opened(tmp_path).close()
    assert visible(tmp_path) == [b"date=d/hour=1/x.parquet"]


def test_a_folder_that_cannot_be_listed_is_not_taken_for_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of its batch was committed without its files, which were removed with the staging folder, and `verify` counted it as lost."""
    folder = opened(tmp_path)
    stage(folder, "date=d/hour=1/x.parquet", "date=d/hour=2/y.parquet")
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith(("hour=1", "lost+found")):
            raise OSError(errno.EIO, "Input/output error")
        return real(path)

    (tmp_path / "lost+found").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scandir)
        with pytest.raises(OSError, match="Input/output error"):
            folder.commit("s", 0, 10, 10)
    folder.commit("s", 0, 10, 10)
    assert visible(tmp_path) == [b"date=d/hour=1/x.parquet", b"date=d/hour=2/y.parquet"]
    monkeypatch.setattr(os, "scandir", lambda path: real(path) if "hour=" in str(path) else scandir(path))
    assert len(folder.files()) == 2, "a foreign folder is not looked into"
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(ArchiveError, match="cannot be read: Input/output error"):
        folder.files()
