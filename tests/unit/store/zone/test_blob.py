"""Bodies of large messages in three copies."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.check.until import until
from isthmus.errors import StoreError
from isthmus.store import blob as store_blob
from isthmus.store.zone import ZonedBlobs, body_folder, body_stream
from isthmus.store.zone.body_folder import BodyFolder

LONG_SECONDS = 60.0
BODY = os.urandom(600_000)


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in "abc"]


@pytest.fixture
def blobs(folders: list[Path]) -> Iterator[ZonedBlobs]:
    made = ZonedBlobs(folders)
    yield made
    made.close()


def store(blobs: ZonedBlobs, number: int, body: bytes = BODY) -> None:
    writer = blobs.create(number)
    writer.write([body[:100_000], body[100_000:]])
    writer.settle()
    writer.sync()
    writer.close()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".body", ".sums")}


def test_a_body_is_in_every_folder_and_reads_from_any_place(blobs: ZonedBlobs, folders: list[Path]) -> None:
    store(blobs, 1)
    reader = blobs.open(1)
    assert reader.read(0, 600_000) == BODY
    assert reader.read(262_143, 2) == BODY[262_143:262_145]
    assert reader.read(599_999, 1) == BODY[-1:]
    with pytest.raises(StoreError, match="ends"):
        reader.read(599_999, 2)
    assert files(folders[0]) == files(folders[1]) == files(folders[2])
    blobs.remove(1)
    assert blobs.numbers() == []
    assert not any(files(folder) for folder in folders)


@pytest.mark.parametrize("damage", ["removed", "overwritten", "short"])
def test_i2_what_is_damaged_is_read_elsewhere_and_mended(blobs: ZonedBlobs, folders: list[Path], damage: str) -> None:
    store(blobs, 1)
    whole = files(folders[1])
    (body,) = folders[0].glob("*.body")
    if damage == "removed":
        body.unlink()
    elif damage == "short":
        os.truncate(body, 300_000)
    else:
        body.write_bytes(os.urandom(600_000))
    assert blobs.open(1).read(0, 600_000) == BODY
    until(lambda: blobs.reasons() == [""] * 3)
    assert files(folders[0]) == whole


def test_i3_a_folder_that_missed_the_end_of_a_body_is_stale_after_a_restart(folders: list[Path]) -> None:
    blobs = ZonedBlobs(folders)
    store(blobs, 1)
    store(blobs, 2)
    blobs.close()
    away = folders[0].with_name("away")
    folders[0].rename(away)
    blobs = ZonedBlobs(folders)
    blobs.remove(2)
    blobs.close()
    shutil.rmtree(folders[0], ignore_errors=True)
    away.rename(folders[0])
    # The number is used again for another body; the first folder still has the old one.
    other = os.urandom(600_000)
    blobs = ZonedBlobs(folders)
    store(blobs, 2, other)
    assert blobs.open(2).read(0, 600_000) == other
    until(lambda: blobs.reasons() == [""] * 3)
    assert blobs.open(2).read(0, 600_000) == other
    blobs.close()
    assert files(folders[0]) == files(folders[1])


def test_a_folder_that_fails_while_a_body_comes_delays_no_other(blobs: ZonedBlobs, folders: list[Path]) -> None:
    writer = blobs.create(1)
    writer.write([BODY[:300_000]])
    shutil.rmtree(folders[2])
    folders[2].write_text("in the way")
    writer.write([BODY[300_000:]])
    writer.sync()
    writer.close()
    assert blobs.open(1).read(0, 600_000) == BODY
    assert blobs.reasons()[2]
    folders[2].unlink()
    until(lambda: blobs.reasons() == [""] * 3)
    assert files(folders[2]) == files(folders[0])


def test_i1_with_one_folder_a_body_is_refused(blobs: ZonedBlobs, folders: list[Path]) -> None:
    store(blobs, 1)
    for folder in folders[1:]:
        shutil.rmtree(folder)
        folder.write_text("in the way")
    with pytest.raises(StoreError, match="need 2 of 3 zones"):
        store(blobs, 2)
    assert blobs.open(1).read(0, 600_000) == BODY
    for folder in folders[1:]:
        folder.unlink()
    until(lambda: blobs.reasons() == [""] * 3)
    store(blobs, 2)


def test_i6_disks_that_are_all_full_are_read_and_take_bodies_once_there_is_room(
    blobs: ZonedBlobs, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(blobs, 1)
    with monkeypatch.context() as full:
        full.setattr(os, "writev", _refusing)
        full.setattr(body_folder, "write_file", _refusing)
        with pytest.raises(StoreError, match="need 2 of 3 zones"):
            store(blobs, 2)
        assert blobs.open(1).read(0, 600_000) == BODY
        with pytest.raises(StoreError, match="need 2 of 3 zones"):
            store(blobs, 2)
        assert sum(not reason for reason in blobs.reasons()) == 1
    until(lambda: blobs.reasons() == [""] * 3)
    store(blobs, 2)
    assert blobs.open(2).read(0, 600_000) == BODY
    assert files(folders[0]) == files(folders[1]) == files(folders[2])


def test_i6_the_others_come_back_though_the_last_takes_no_mark(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = ZonedBlobs(folders)
    store(blobs, 1)
    write_mark = BodyFolder.write_mark

    def read_only(self: BodyFolder, version: int, stale: list[int], lacking: list[int]) -> None:
        if self.index == 1:
            raise OSError(errno.EROFS, "Read-only file system")
        write_mark(self, version, stale, lacking)

    monkeypatch.setattr(BodyFolder, "write_mark", read_only)
    blobs.drop(blobs._folders[0], "it failed")
    blobs.drop(blobs._folders[2], "it failed")
    until(lambda: "Read-only" in blobs.reasons()[1] and not blobs.reasons()[0] and not blobs.reasons()[2])
    store(blobs, 2)
    monkeypatch.undo()
    until(lambda: blobs.reasons() == [""] * 3)
    blobs.close()
    assert files(folders[0]) == files(folders[1]) == files(folders[2])
    assert len(files(folders[0])) == 4


def _refusing(*args: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_back_up_is_a_plain_folder(blobs: ZonedBlobs, tmp_path: Path) -> None:
    store(blobs, 1)
    with blobs.kept():
        blobs.copy_to(tmp_path / "copy")
    assert files(tmp_path / "copy") == {"0000000000000001.body": BODY}


def test_a_body_begins_while_a_back_up_is_made(blobs: ZonedBlobs) -> None:
    """A wait for its end would delay all others, and the back-up itself where it finds damage."""
    with blobs.kept():
        coming = threading.Thread(target=store, args=(blobs, 1), daemon=True)
        coming.start()
        coming.join(LONG_SECONDS / 10)
        assert not coming.is_alive()
    assert blobs.open(1).read(0, 600_000) == BODY


def test_a_body_that_goes_while_it_is_copied_is_no_fault_of_its_folder(
    blobs: ZonedBlobs, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(blobs, 1)
    store(blobs, 2)
    blobs._closed.set()
    blobs._thread.join(LONG_SECONDS)
    blobs._folders[2].reason = "it failed"
    shutil.rmtree(folders[2])
    read = body_folder.read_block
    removing: list[threading.Thread] = []

    def reading(folder: BodyFolder, number: int, sums: body_folder.Sums, block: int) -> bytes:
        """As the thread that removes bodies, which shortens them first."""
        if not removing:
            removing.append(threading.Thread(target=blobs.remove, args=(number,), daemon=True))
            removing[0].start()
            removing[0].join(0.2)
        return read(folder, number, sums, block)

    monkeypatch.setattr(body_stream, "read_block", reading)
    monkeypatch.setattr(store_blob, "_REMOVED_BYTES", 100_000)
    monkeypatch.setattr(store_blob, "_REMOVAL_REST_SECONDS", 0.2)
    blobs._closed.clear()
    blobs._try_return(blobs._folders[2])
    removing[0].join(LONG_SECONDS)
    assert blobs.reasons() == [""] * 3


def test_a_body_that_was_removed_before_it_is_copied_is_passed_over(
    blobs: ZonedBlobs, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(blobs, 1)
    store(blobs, 2)
    blobs._closed.set()
    blobs._thread.join(LONG_SECONDS)
    blobs._folders[2].reason = "it failed"
    shutil.rmtree(folders[2])
    copy = ZonedBlobs._copy

    def late(self: ZonedBlobs, number: int, folder: BodyFolder) -> None:
        if number == 1:
            self.remove(2)
        copy(self, number, folder)

    monkeypatch.setattr(ZonedBlobs, "_copy", late)
    blobs._try_return(blobs._folders[2])
    assert blobs.reasons() == [""] * 3
    assert files(folders[2]) == files(folders[0])


def test_i4_a_folder_that_missed_a_part_does_not_count(blobs: ZonedBlobs) -> None:
    """It serves again before the body ends, and another one fails: the body would be in one folder alone."""
    blobs.close()
    writer = blobs.create(1)
    writer.write([BODY[:300_000]])
    blobs._folders[2].reason = "it failed"
    writer.write([BODY[300_000:500_000]])
    blobs._folders[2].reason = ""
    blobs._folders[1].reason = "it failed"
    with pytest.raises(StoreError, match="need 2 of 3 zones"):
        writer.write([BODY[500_000:]])
    writer.close()


def test_i4_a_folder_that_was_away_between_two_parts_does_not_count(blobs: ZonedBlobs, folders: list[Path]) -> None:
    """What it had of the body was removed; what comes now goes to a file without a name."""
    blobs._closed.set()
    blobs._thread.join(LONG_SECONDS)
    blobs._closed.clear()
    writer = blobs.create(1)
    writer.write([BODY[:300_000]])
    shutil.rmtree(folders[2])
    blobs.drop(blobs._folders[2], "its files are missing")
    back = threading.Thread(target=blobs._try_return, args=(blobs._folders[2],))
    back.start()
    until(lambda: not blobs.reasons()[2])
    writer.write([BODY[300_000:]])
    blobs._folders[1].reason = "it failed"
    with pytest.raises(StoreError, match="need 2 of 3 zones"):
        writer.sync()
    writer.close()
    back.join(LONG_SECONDS)


def test_i10_a_folder_that_lacks_bodies_is_no_whole_one_after_a_kill(
    blobs: ZonedBlobs, folders: list[Path], tmp_path: Path
) -> None:
    """A body ends while a folder that came back waits for it, and one of the two that have it fails."""
    blobs._closed.set()
    blobs._thread.join(LONG_SECONDS)
    blobs._closed.clear()
    blobs.drop(blobs._folders[1], "it failed")
    writer = blobs.create(1)
    writer.write([BODY])
    back = threading.Thread(target=blobs._try_return, args=(blobs._folders[1],))
    back.start()
    until(lambda: not blobs.reasons()[1])
    writer.sync()
    blobs.drop(blobs._folders[0], "it failed")
    left = [tmp_path / "left" / name for name in "abc"]
    for source, target in zip(folders, left, strict=True):
        shutil.copytree(source, target)
    writer.close()
    back.join(LONG_SECONDS)
    away = left[2].rename(tmp_path / "away")
    with pytest.raises(StoreError, match="stale"):
        ZonedBlobs(left)
    shutil.rmtree(left[2], ignore_errors=True)
    away.rename(left[2])
    again = ZonedBlobs(left)
    until(lambda: not any(again.reasons()))
    assert again.open(1).read(0, len(BODY)) == BODY
    again.close()
    assert files(left[0]) == files(left[1]) == files(left[2])


def test_i10_a_folder_is_whole_once_it_has_what_it_lacked(blobs: ZonedBlobs, folders: list[Path]) -> None:
    blobs._closed.set()
    blobs._thread.join(LONG_SECONDS)
    blobs._closed.clear()
    blobs.drop(blobs._folders[1], "it failed")
    writer = blobs.create(1)
    writer.write([BODY])
    back = threading.Thread(target=blobs._try_return, args=(blobs._folders[1],))
    back.start()
    until(lambda: not blobs.reasons()[1])
    marks = [folder.read_mark() for folder in blobs._folders]
    assert [mark and mark[1] for mark in marks] == [[1]] * 3
    writer.sync()
    writer.close()
    back.join(LONG_SECONDS)
    blobs._check_all()
    marks = [folder.read_mark() for folder in blobs._folders]
    assert [mark and mark[1] for mark in marks] == [[]] * 3


def test_i10_what_the_last_folder_lacks_is_kept_in_those_that_come_back(blobs: ZonedBlobs, folders: list[Path]) -> None:
    """Both that have a body fail before the third one has copied it."""
    blobs._closed.set()
    blobs._thread.join(LONG_SECONDS)
    blobs._closed.clear()
    blobs.drop(blobs._folders[1], "it failed")
    writer = blobs.create(1)
    writer.write([BODY])
    back = threading.Thread(target=blobs._try_return, args=(blobs._folders[1],))
    back.start()
    until(lambda: not blobs.reasons()[1])
    writer.sync()
    blobs.drop(blobs._folders[0], "it failed")
    blobs.drop(blobs._folders[2], "it failed")
    writer.close()
    back.join(LONG_SECONDS)
    blobs._try_return(blobs._folders[0])
    blobs._try_filling(blobs._folders[1])
    blobs._try_return(blobs._folders[2])
    assert not any(blobs.reasons())
    assert blobs.open(1).read(0, len(BODY)) == BODY
    bodies = [{name: data for name, data in files(folder).items() if name != "zone"} for folder in folders]
    assert len(bodies[0]) == 2
    assert bodies[0] == bodies[1] == bodies[2]
    assert [folder.lacks for folder in blobs._folders] == [set()] * 3


def test_i9_where_no_folder_is_whole_a_start_removes_nothing(
    blobs: ZonedBlobs, folders: list[Path], tmp_path: Path
) -> None:
    """As the test before, and killed before one of the two comes back."""
    blobs._closed.set()
    blobs._thread.join(LONG_SECONDS)
    blobs._closed.clear()
    blobs.drop(blobs._folders[1], "it failed")
    writer = blobs.create(1)
    writer.write([BODY])
    back = threading.Thread(target=blobs._try_return, args=(blobs._folders[1],))
    back.start()
    until(lambda: not blobs.reasons()[1])
    writer.sync()
    blobs.drop(blobs._folders[0], "it failed")
    blobs.drop(blobs._folders[2], "it failed")
    left = [tmp_path / "left" / name for name in "abc"]
    for source, target in zip(folders, left, strict=True):
        shutil.copytree(source, target)
    writer.close()
    back.join(LONG_SECONDS)
    again = ZonedBlobs(left)
    until(lambda: not any(again.reasons()))
    assert again.open(1).read(0, len(BODY)) == BODY
    again.close()


def test_i5_a_disk_that_was_removed_is_not_one_without_bodies(blobs: ZonedBlobs, folders: list[Path]) -> None:
    store(blobs, 1)
    blobs._closed.set()
    blobs._thread.join(LONG_SECONDS)
    whole = files(folders[0])
    blobs._folders[0].reason = blobs._folders[2].reason = "it failed"
    shutil.rmtree(folders[1])
    blobs._try_return(blobs._folders[0])
    assert blobs.reasons()[0]
    assert files(folders[0]) == whole


def test_a_body_that_comes_while_a_folder_is_brought_back_is_in_it(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = ZonedBlobs(folders)
    store(blobs, 1)
    blobs.close()
    copy = ZonedBlobs._copy

    def late(self: ZonedBlobs, number: int, folder: BodyFolder) -> None:
        if number == 1:
            store(self, 2)
        copy(self, number, folder)

    monkeypatch.setattr(ZonedBlobs, "_copy", late)
    shutil.rmtree(folders[2])
    blobs = ZonedBlobs(folders)
    until(lambda: blobs.reasons() == [""] * 3)
    until(lambda: files(folders[2]).keys() == files(folders[0]).keys())
    blobs.close()
    assert files(folders[2]) == files(folders[0])


def test_i3_a_folder_that_fails_at_the_end_of_its_repair_is_stale_in_the_others(
    blobs: ZonedBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(blobs, 1)
    blobs._closed.set()
    blobs._thread.join(LONG_SECONDS)
    blobs._folders[2].reason = "it failed"
    writer = blobs.create(2)
    writer.write([BODY])
    writer.sync()
    fill = ZonedBlobs._fill
    blobs._closed.clear()

    def full(self: ZonedBlobs, folder: BodyFolder, only: set[int]) -> None:
        if only:
            raise StoreError("No space left on device")
        fill(self, folder, only)
        writer.close()

    monkeypatch.setattr(ZonedBlobs, "_fill", full)
    blobs._try_return(blobs._folders[2])
    assert blobs.reasons() == ["", "", "No space left on device"]
    marks = [folder.read_mark() for folder in blobs._folders]
    assert [mark[1] for mark in marks[:2] if mark is not None] == [[2], [2]]


@pytest.mark.parametrize("is_killed", [False, True], ids=["it goes on", "a kill"])
def test_i7_a_folder_that_is_brought_back_gives_no_former_body_of_a_number(
    folders: list[Path], is_killed: bool
) -> None:
    """Its disk was away while the body went, and at the start that used the number again."""
    blobs = ZonedBlobs(folders)
    store(blobs, 2)
    blobs.close()
    away = folders[0].with_name("away")
    folders[0].rename(away)
    folders[0].write_text("in the way")
    blobs = ZonedBlobs(folders)
    blobs.remove(2)
    blobs.close()
    blobs = ZonedBlobs(folders)
    blobs._closed.set()  # what its thread would do comes below
    blobs._thread.join(LONG_SECONDS)
    other = os.urandom(600_000)
    writer = blobs.create(2)
    writer.write([other])
    folders[0].unlink()
    away.rename(folders[0])
    blobs._try_return(blobs._folders[0])  # does not wait until the body has come
    assert blobs.reasons() == [""] * 3
    writer.sync()
    writer.close()
    if is_killed:
        blobs = ZonedBlobs(folders)
    assert blobs.open(2).read(0, 600_000) == other
    if is_killed:
        blobs.close()
    else:
        assert blobs.reasons() == [""] * 3


def test_a_folder_serves_only_once_its_mark_is_on_disk(
    blobs: ZonedBlobs, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in between, it would not count, and the operator had lost another one."""
    reported: list[list[str]] = []
    write_mark = BodyFolder.write_mark

    def write(folder: BodyFolder, version: int, stale: list[int], lacking: list[int]) -> None:
        if not stale:
            reported.append(blobs.reasons())
        write_mark(folder, version, stale, lacking)

    store(blobs, 1)
    monkeypatch.setattr(BodyFolder, "write_mark", write)
    shutil.rmtree(folders[2])
    until(lambda: len(reported) == 3)  # it may be back before its failure is noticed
    until(lambda: not any(blobs.reasons()))
    assert len(reported) == 3
    assert all(reasons[2] for reasons in reported)


def test_i3_a_folder_is_back_only_when_a_start_would_take_it(
    blobs: ZonedBlobs, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(blobs, 1)
    blobs._closed.set()
    blobs._thread.join(LONG_SECONDS)
    shutil.rmtree(folders[2])
    blobs._folders[2].reason = "it failed"
    reported: list[tuple[int, str]] = []
    write_mark = BodyFolder.write_mark

    def watched(self: BodyFolder, version: int, stale: list[int], lacking: list[int]) -> None:
        reported.append((self.index, blobs.reasons()[2]))
        write_mark(self, version, stale, lacking)

    monkeypatch.setattr(BodyFolder, "write_mark", watched)
    blobs._try_return(blobs._folders[2])
    assert reported == [(0, "it failed"), (1, "it failed"), (2, "it failed")]
    assert blobs.reasons() == [""] * 3
    assert [folder.read_mark() for folder in blobs._folders] == [blobs._folders[0].read_mark()] * 3


def test_i3_a_folder_that_refuses_its_mark_stays_stale_in_the_others(
    blobs: ZonedBlobs, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(blobs, 1)
    blobs._closed.set()
    blobs._thread.join(LONG_SECONDS)
    blobs._folders[2].reason = "it failed"
    write_mark = BodyFolder.write_mark

    def refusing(self: BodyFolder, version: int, stale: list[int], lacking: list[int]) -> None:
        write_mark(self, version, stale, lacking)
        if self.index == 2:
            raise OSError("the mark was written, and its sync refused")

    monkeypatch.setattr(BodyFolder, "write_mark", refusing)
    blobs._try_return(blobs._folders[2])
    assert blobs.reasons() == ["", "", "the mark was written, and its sync refused"]
    marks = [folder.read_mark() for folder in blobs._folders]
    assert marks[0] == marks[1]
    assert marks[0] is not None
    assert marks[2] is not None
    assert marks[0][0] > marks[2][0]
    assert marks[0][1] == [2]


def stopped(blobs: ZonedBlobs) -> None:
    """What its thread would do comes in the test."""
    blobs._closed.set()
    blobs._thread.join(LONG_SECONDS)
    blobs._closed.clear()


@pytest.mark.parametrize("damage", ["removed", "overwritten"])
def test_i11_a_folder_whose_files_went_counts_no_more_though_it_was_marked_since(
    blobs: ZonedBlobs, folders: list[Path], damage: str
) -> None:
    """Another folder fails before the look at the one that lost its files: both others get a new mark."""
    store(blobs, 1)
    stopped(blobs)
    whole = files(folders[1])
    harm(folders[0], damage)
    blobs.drop(blobs._folders[1], "it failed")
    blobs.drop(blobs._folders[2], "it failed")
    blobs._try_return(blobs._folders[1])
    assert files(folders[1]) == whole
    blobs._try_return(blobs._folders[2])
    assert files(folders[2]) == whole
    with pytest.raises(StoreError):
        blobs.open(1).read(0, 600_000)
    blobs._check_all()  # no folder that is whole serves: one of the two takes the place of the last
    blobs._check_all()
    assert blobs.reasons() == [""] * 3
    assert blobs.open(1).read(0, 600_000) == BODY
    assert files(folders[0]) == files(folders[1]) == files(folders[2]) == whole


@pytest.mark.parametrize("damage", ["removed", "overwritten"])
def test_i11_a_folder_whose_files_went_is_stale_after_a_kill_though_it_was_marked_since(
    blobs: ZonedBlobs, folders: list[Path], damage: str
) -> None:
    store(blobs, 1)
    stopped(blobs)
    whole = files(folders[1])
    harm(folders[0], damage)
    blobs.drop(blobs._folders[1], "it failed")
    again = ZonedBlobs(folders)
    until(lambda: not any(again.reasons()))
    again.close()
    assert files(folders[0]) == files(folders[1]) == files(folders[2]) == whole


def test_i11_what_a_folder_was_marked_with_is_read_after_a_kill_during_its_repair(
    blobs: ZonedBlobs, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start needs two marks: the repair of the one must not remove its own while a third is missing."""
    store(blobs, 1)
    stopped(blobs)
    blobs.drop(blobs._folders[0], "it failed")
    with monkeypatch.context() as killed:
        killed.setattr(BodyFolder, "write_mark", _refusing)
        blobs._try_return(blobs._folders[0])
    shutil.rmtree(folders[2])
    again = ZonedBlobs(folders)
    assert again.open(1).read(0, 600_000) == BODY
    again.close()


def harm(folder: Path, damage: str) -> None:
    if damage == "removed":
        shutil.rmtree(folder)
        return
    for path in folder.iterdir():
        path.write_bytes(os.urandom(path.stat().st_size))


def test_i2_a_body_whose_checksums_cannot_be_read_is_not_given(blobs: ZonedBlobs, folders: list[Path]) -> None:
    store(blobs, 1)
    stopped(blobs)
    for folder in folders:
        for path in folder.glob("0*"):
            path.write_bytes(os.urandom(path.stat().st_size))
    with pytest.raises(StoreError, match="no checksums that can be read"):
        blobs.open(1)


@pytest.mark.parametrize("body", [b"", BODY], ids=["empty", "not empty"])
def test_a_folder_with_the_checksums_of_a_body_alone_gets_the_body(
    blobs: ZonedBlobs, folders: list[Path], body: bytes
) -> None:
    store(blobs, 1, body)
    stopped(blobs)
    blobs.drop(blobs._folders[0], "it failed")
    next(folders[0].glob("*.body")).unlink()
    blobs._try_return(blobs._folders[0])
    assert files(folders[0]) == files(folders[1])


def test_a_back_up_has_no_body_that_never_ended(blobs: ZonedBlobs, tmp_path: Path) -> None:
    store(blobs, 1)
    writer = blobs.create(2)
    writer.write([BODY])
    writer.close()
    with blobs.kept():
        blobs.copy_to(tmp_path / "copy")
    assert files(tmp_path / "copy") == {"0000000000000001.body": BODY}


@pytest.mark.parametrize("at", ["_sums", "_fill"], ids=["it is listed", "it was copied"])
def test_a_body_that_goes_while_a_folder_is_brought_back_is_left_in_none(
    blobs: ZonedBlobs, folders: list[Path], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    store(blobs, 1)
    store(blobs, 2)
    stopped(blobs)
    blobs.drop(blobs._folders[2], "it failed")
    run = getattr(ZonedBlobs, at)

    def late(self: ZonedBlobs, *args: object) -> object:
        if at == "_sums":
            self.remove(1)
        found = run(self, *args)
        self.remove(1)
        return found

    monkeypatch.setattr(ZonedBlobs, at, late)
    blobs._try_return(blobs._folders[2])
    assert blobs.reasons() == [""] * 3
    assert [len(files(folder)) for folder in folders] == [2] * 3


@pytest.mark.parametrize("lacking", [[0, 2], [0]], ids=["two lack bodies", "one is stale, one lacks bodies"])
@pytest.mark.parametrize("steps", [1, 3], ids=["as it was", "as it came back"])
def test_a_kill_between_the_marks_of_two_folders_refuses_no_start(
    folders: list[Path], lacking: list[int], steps: int
) -> None:
    """The whole one has not got the newest mark, and the one that has lacks bodies."""
    blobs = ZonedBlobs(folders)
    store(blobs, 1)
    blobs.close()
    first = blobs._folders[0]
    mark = first.read_mark()
    assert mark is not None
    first.write_mark(mark.version + steps, [] if len(lacking) == 2 else [2], lacking)
    blobs = ZonedBlobs(folders)
    assert blobs.open(1).read(0, 600_000) == BODY
    until(lambda: not any(blobs.reasons()))
    blobs.close()
    assert files(folders[0]) == files(folders[1]) == files(folders[2])


class Killed(BaseException):
    """The process dies here."""


def lacking(folder: Path) -> None:
    """Leave a folder as one that serves again and has not got body 1."""
    for path in folder.glob("*1.*"):
        path.unlink()


def test_i9_a_start_that_is_killed_before_another_folder_is_back_shows_none_as_whole(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are stale, and the third lacks a body that both have."""
    blobs = ZonedBlobs(folders)
    store(blobs, 1)
    store(blobs, 2)
    blobs.close()
    mark = blobs._folders[2].read_mark()
    assert mark is not None
    blobs._folders[2].write_mark(mark.version + 1, [0, 1], [2])
    lacking(folders[2])

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ZonedBlobs, "_try_return", killed)
        with pytest.raises(Killed):
            ZonedBlobs(folders)
    blobs = ZonedBlobs(folders)
    assert blobs.open(1).read(0, 600_000) == BODY
    until(lambda: not any(blobs.reasons()) and not any(each.lacks for each in blobs._folders))
    blobs.close()
    assert len(files(folders[0])) == 4
    assert files(folders[0]) == files(folders[1]) == files(folders[2])


def test_i9_a_folder_that_lacks_bodies_is_filled_from_the_first_one_that_is_back(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it lacks is nowhere else once the other two are away again."""
    monkeypatch.setattr(ZonedBlobs, "_run", lambda self: None)
    blobs = ZonedBlobs(folders)
    store(blobs, 1)
    blobs.close()
    mark = blobs._folders[2].read_mark()
    assert mark is not None
    blobs._folders[2].write_mark(mark.version + 1, [0, 1], [2])
    lacking(folders[2])
    blobs = ZonedBlobs(folders)
    marks = [folder.read_mark() for folder in (blobs._folders[0], blobs._folders[2])]
    assert [mark and mark.stale for mark in marks] == [[1, 2]] * 2
    blobs._check_all()
    assert blobs._folders[2].lacks == set()
    assert files(folders[0]) == files(folders[1]) == files(folders[2])
    marks = [folder.read_mark() for folder in blobs._folders]
    assert [mark and mark.stale for mark in marks] == [[]] * 3
    blobs.close()


def test_i9_none_that_lacks_bodies_serves_alone_where_the_others_do_not_come_back(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the third folder lacks is in them."""
    blobs = ZonedBlobs(folders)
    store(blobs, 1)
    blobs.close()
    mark = blobs._folders[2].read_mark()
    assert mark is not None
    blobs._folders[2].write_mark(mark.version + 1, [0, 1], [2])
    lacking(folders[2])
    write_mark = BodyFolder.write_mark

    def refusing(self: BodyFolder, *args: object) -> None:
        if self.index < 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_mark(self, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(BodyFolder, "write_mark", refusing)
        for _ in range(2):
            with pytest.raises(StoreError, match=r"zone 1: .*No space left"):
                ZonedBlobs(folders)
    blobs = ZonedBlobs(folders)
    assert blobs.open(1).read(0, 600_000) == BODY
    blobs.close()


def test_an_operator_joins_two_folders_of_which_none_is_whole(folders: list[Path]) -> None:
    """The whole one was destroyed, the second is stale, the third lacks a body: docs/how-to/keep-the-store-in-three-zones.md."""
    blobs = ZonedBlobs(folders)
    store(blobs, 1)
    store(blobs, 2)
    blobs.close()
    mark = blobs._folders[2].read_mark()
    assert mark is not None
    for at in (0, 2):
        blobs._folders[at].write_mark(mark.version + 1, [1], [2])
    lacking(folders[2])
    for path in folders[1].glob("*2.*"):
        path.unlink()
    shutil.rmtree(folders[0])
    with pytest.raises(StoreError, match="zone 1: there is no copy"):
        ZonedBlobs(folders)
    for sums in folders[1].glob("*.sums"):
        if not (folders[2] / sums.name).exists():
            for path in folders[1].glob(f"{sums.stem}.*"):
                shutil.copy(path, folders[2] / path.name)
    for at in (0, 1):
        shutil.rmtree(folders[at], ignore_errors=True)
        shutil.copytree(folders[2], folders[at])
    blobs = ZonedBlobs(folders)
    assert [blobs.open(number).read(0, 600_000) for number in (1, 2)] == [BODY] * 2
    until(lambda: not any(blobs.reasons()))
    blobs.close()
    assert len(files(folders[0])) == 4
    assert files(folders[0]) == files(folders[1]) == files(folders[2])


@pytest.mark.parametrize("refuses", [0, 1, 2])
def test_i3_a_folder_that_refuses_its_mark_at_the_start_is_stale_in_the_others(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, refuses: int
) -> None:
    blobs = ZonedBlobs(folders)
    blobs.close()
    write_mark = BodyFolder.write_mark

    def refusing(self: BodyFolder, *args: object) -> None:
        if self.index == refuses:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write_mark(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(BodyFolder, "write_mark", refusing)
    monkeypatch.setattr(ZonedBlobs, "_run", lambda self: None)
    blobs = ZonedBlobs(folders)
    marks = [folder.read_mark() for folder in blobs._folders if folder.index != refuses]
    assert [mark and mark.stale for mark in marks] == [[refuses]] * 2


def test_a_body_that_comes_slowly_delays_no_look_at_other_folders(blobs: ZonedBlobs, folders: list[Path]) -> None:
    store(blobs, 1)
    stopped(blobs)
    writer = blobs.create(2)
    writer.write([BODY[:300_000]])
    blobs.drop(blobs._folders[1], "it failed")
    look = threading.Thread(target=blobs._check_all, daemon=True)
    look.start()
    look.join(LONG_SECONDS / 10)
    assert not look.is_alive()
    writer.write([BODY[300_000:]])
    writer.sync()
    writer.close()
    blobs._check_all()
    assert [folder.lacks for folder in blobs._folders] == [set()] * 3
    assert files(folders[0]) == files(folders[1]) == files(folders[2])


def test_one_folder_alone_is_refused(folders: list[Path]) -> None:
    """It may be the one that missed bodies; the others would be made as it is."""
    blobs = ZonedBlobs(folders)
    store(blobs, 1)
    blobs.close()
    away = folders[2].with_name("away")
    folders[2].rename(away)
    blobs = ZonedBlobs(folders)
    store(blobs, 2)
    blobs.close()
    shutil.rmtree(folders[2], ignore_errors=True)
    away.rename(folders[2])
    whole = files(folders[1])
    shutil.rmtree(folders[0])
    (folders[1] / "zone").write_text("torn")
    with pytest.raises(StoreError, match="Of the 3 copies of the bodies of large messages 2 are needed"):
        ZonedBlobs(folders)
    assert files(folders[1]) == whole
