from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from harness.check.until import until
from isthmus.client.outbox.backlog import Backlog, oldest_ms, waiting
from isthmus.client.outbox.folder import Folder
from isthmus.client.outbox.journal import Journal
from isthmus.errors import OutcomeUnknownError, StoreError


def journal(folder: Folder, **options: Any) -> Journal:
    return Journal(folder, sync=lambda _: None, **options)


def drained(folder: Folder, limit_bytes: int = 1000, limit_count: int = 3) -> list[bytes]:
    """Everything that waits, delivered batch by batch."""
    backlog = Backlog(folder)
    found: list[bytes] = []
    while (batch := backlog.next_batch(limit_bytes, limit_count)) is not None:
        found += batch.payloads
        backlog.done(batch.ends[-1])
    backlog.next_batch(limit_bytes, limit_count)
    backlog.close()
    return found


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def test_what_was_appended_is_read_in_order_over_many_files(tmp_path: Path) -> None:
    """I1."""
    folder = Folder(tmp_path)
    writer = journal(folder, segment_bytes=300)
    for number in range(100):
        writer.append([b"%d" % number, b"%d b" % number])
    writer.close()
    assert len(folder.segments()) > 5
    assert drained(folder) == [text for number in range(100) for text in (b"%d" % number, b"%d b" % number)]
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".log", ".done")] == []


def test_a_record_larger_than_a_batch_is_delivered_in_parts_and_each_part_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    writer = journal(folder)
    writer.append(numbers(0, 10))
    writer.close()
    backlog = Backlog(folder)
    batch = backlog.next_batch(1000, 4)
    assert batch is not None
    assert batch.payloads == numbers(0, 4)
    backlog.done(batch.ends[1])  # two of the four were taken
    backlog.close()
    assert drained(folder, limit_count=4) == numbers(2, 10)


def test_what_was_not_acknowledged_is_read_again(tmp_path: Path) -> None:
    """I2."""
    folder = Folder(tmp_path)
    writer = journal(folder)
    for number in numbers(0, 6):
        writer.append([number])
    backlog = Backlog(folder)
    first = backlog.next_batch(1000, 2)
    assert first is not None
    backlog.done(first.ends[-1])
    assert backlog.next_batch(1000, 2) is not None  # and then the process is killed
    backlog.close()
    assert drained(folder) == numbers(2, 6)


def test_a_file_of_a_living_writer_is_kept(tmp_path: Path) -> None:
    """I3."""
    folder = Folder(tmp_path)
    writer = journal(folder)
    writer.append([b"a"])
    assert drained(folder) == [b"a"]
    assert len(folder.segments()) == 1
    writer.append([b"b"])
    assert drained(folder) == [b"b"]
    writer.close()
    assert drained(folder) == []
    assert folder.segments() == []


def test_a_stream_waits_for_those_that_had_ended_before_it_began(tmp_path: Path) -> None:
    """I1, and I1 of `folder`."""
    folder = Folder(tmp_path)
    for first in (0, 10, 20):
        writer = journal(folder)
        for number in numbers(first, first + 10):
            writer.append([number])
        writer.close()
    assert drained(folder) == numbers(0, 30)


def test_a_file_is_seen_only_with_the_note_that_says_what_comes_before_it(tmp_path: Path) -> None:
    """I1: the drain looks while the file is being made."""
    folder = Folder(tmp_path)
    before = journal(folder)
    before.append([b"first"])
    before.close()
    backlog = Backlog(folder)
    looked: list[bytes] = []

    def sync(_: int) -> None:
        if not looked:
            batch = backlog.next_batch(1000, 1)
            assert batch is not None
            looked.extend(batch.payloads)

    writer = Journal(folder, sync=sync)
    writer.append([b"second"])
    assert looked == [b"first"]
    again = backlog.next_batch(1000, 1)
    assert again is not None
    assert again.payloads == [b"first"], "it has not been acknowledged yet"
    backlog.close()
    assert drained(folder) == [b"first", b"second"]


def test_what_a_killed_process_left_without_a_record_is_swept(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "1-2-3-00000001.new").write_bytes(b"x")
    (tmp_path / "1-2-3.lock").touch()
    (tmp_path / "1-2-3-00000007.done").touch()
    living = journal(folder)
    folder.sweep()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        f"{living.stream}.lock",
        "folder.lock",
    ]


def test_streams_that_live_at_the_same_time_take_turns(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    one, other = journal(folder), journal(folder)
    for number in range(6):
        one.append([b"one %d" % number])
        other.append([b"other %d" % number])
    found = drained(folder, limit_count=2)
    assert [text for text in found if text.startswith(b"one")] == [b"one %d" % number for number in range(6)]
    assert {text[:3] for text in found[:4]} == {b"one", b"oth"}


@pytest.mark.parametrize("cut", [1, 20, 40])
def test_a_write_that_was_broken_off_is_passed_over(tmp_path: Path, cut: int) -> None:
    folder = Folder(tmp_path)
    writer = journal(folder)
    writer.append([b"whole"])
    writer.append([b"broken off" * 10])
    writer.close()
    [segment] = folder.segments()
    with segment.path.open("rb+") as file:
        file.truncate(segment.path.stat().st_size - cut)
    assert drained(folder) == [b"whole"]
    assert [path.suffix for path in folder.quarantine_path.iterdir()] == [".torn"]


def test_damaged_bytes_are_quarantined_and_the_rest_is_delivered(tmp_path: Path) -> None:
    """I4."""
    folder = Folder(tmp_path)
    writer = journal(folder)
    for number in numbers(0, 50):
        writer.append([number * 20])
    writer.close()
    [segment] = folder.segments()
    size = segment.path.stat().st_size
    with segment.path.open("rb+") as file:
        file.seek(size // 2)
        file.write(b"\0" * 64)
    found = drained(folder)
    lost = [number for number in numbers(0, 50) if number * 20 not in found]
    assert 1 <= len(lost) <= 4
    assert found == [number * 20 for number in numbers(0, 50) if number not in lost]
    [kept] = folder.quarantine_path.glob("*.damaged")
    assert kept.stat().st_size >= 64


def test_a_record_that_a_living_writer_is_at_is_waited_for(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    writer = journal(folder)
    writer.append([b"first"])
    [segment] = folder.segments()
    at = segment.path.stat().st_size
    writer.append([b"second"])
    whole = segment.path.read_bytes()
    os.truncate(segment.path, at + 10)
    assert drained(folder) == [b"first"]
    assert not list(folder.quarantine_path.iterdir())
    segment.path.write_bytes(whole)
    assert drained(folder) == [b"second"]


@pytest.mark.parametrize("ends", [True, False])
def test_a_record_that_becomes_whole_while_the_drain_looks_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """A writer that continues, or ends, after the drain has read half of its record has written all of it."""
    folder = Folder(tmp_path)
    writer = journal(folder, segment_bytes=150)
    writer.append([b"first"])
    [segment] = folder.segments()
    at = segment.path.stat().st_size
    writer.append([b"second" * 20])
    whole = segment.path.read_bytes()
    os.truncate(segment.path, at + 10)
    pread = os.pread

    def read(descriptor: int, size: int, offset: int) -> bytes:
        data = pread(descriptor, size, offset)
        if size == 10:  # the rest of the file, to be passed over
            segment.path.write_bytes(whole)
            if ends:
                writer.close()
            else:
                writer.append([b"third"])
        return data

    backlog = Backlog(folder)
    batch = backlog.next_batch(1000, 3)
    assert batch is not None
    backlog.done(batch.ends[-1])
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", read)
        assert backlog.next_batch(1000, 3) is None
    backlog.close()
    assert not list(folder.quarantine_path.iterdir())
    assert drained(folder) == [b"second" * 20, *([] if ends else [b"third"])]


def test_without_sound_progress_everything_is_delivered_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    writer = journal(folder)
    for number in numbers(0, 4):
        writer.append([number])
    backlog = Backlog(folder)
    batch = backlog.next_batch(1000, 2)
    assert batch is not None
    backlog.done(batch.ends[-1])
    backlog.close()
    [segment] = folder.segments()
    segment.done_path.write_bytes(os.urandom(48))
    assert drained(folder) == numbers(0, 4)


def test_what_waits_can_be_looked_at(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    writer = journal(folder)
    writer.append(numbers(0, 3))
    writer.append(numbers(3, 5))
    backlog = Backlog(folder)
    batch = backlog.next_batch(1000, 2)
    assert batch is not None
    backlog.done(batch.ends[-1])
    assert [payload for _, record, index in waiting(folder) for payload in record.payloads[index:]] == numbers(2, 5)
    assert oldest_ms(folder) == next(waiting(folder))[1].written_ms
    backlog.done(batch.ends[-1])
    backlog.close()
    drained(folder)
    assert oldest_ms(folder) == 0


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3 of `journal`."""
    folder = Folder(tmp_path)
    writer = journal(folder)
    writer.append([b"a"])
    real = os.pwrite

    def half(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) > 200:
            return real(descriptor, bytes(data[:100]), offset)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", half)
        with pytest.raises(StoreError, match="No space left"):
            writer.append([b"b" * 250])
    writer.append([b"c"])
    writer.close()
    assert drained(folder) == [b"a", b"c"]
    assert not list(folder.quarantine_path.iterdir())


def test_what_the_drain_read_of_a_group_whose_write_failed_costs_no_later_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3 of `journal`: the drain is ahead of where the file was cut."""
    folder = Folder(tmp_path)
    writer = journal(folder)
    writer.append([b"a"])
    backlog = Backlog(folder)
    real = os.pwrite
    read: list[bytes] = []

    def breaks_off(descriptor: int, data: bytes, offset: int) -> int:
        if descriptor != writer._descriptor:
            return real(descriptor, data, offset)
        if read:
            raise OSError(28, "No space left on device")
        written = real(descriptor, data, offset)
        while (batch := backlog.next_batch(1000, 10)) is not None:
            read.extend(batch.payloads)
            backlog.done(batch.ends[-1])
        return written - 1

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", breaks_off)
        with pytest.raises(StoreError):
            writer.append([b"b" * 100])
    assert read == [b"a", b"b" * 100]
    for number in numbers(0, 5):
        writer.append([number])
    found = []
    while (batch := backlog.next_batch(1000, 10)) is not None:
        found += batch.payloads
        backlog.done(batch.ends[-1])
    backlog.close()
    assert found == numbers(0, 5)


def test_a_failed_sync_is_reported_as_unknown_and_the_file_is_not_used_again(tmp_path: Path) -> None:
    """I1 of `journal`."""
    folder = Folder(tmp_path)
    fails: list[bool] = []

    def sync(_: int) -> None:
        if fails and fails.pop():
            raise OSError(5, "Input/output error")

    writer = Journal(folder, sync=sync)
    writer.append([b"a"])
    fails.append(True)
    with pytest.raises(OutcomeUnknownError, match="may be delivered or not"):
        writer.append([b"b"])
    writer.append([b"c"])
    assert len(folder.segments()) == 2
    writer.close()
    assert drained(folder) == [b"a", b"b", b"c"]


def test_a_file_whose_making_failed_when_the_drain_had_seen_it_costs_no_later_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drain holds a file that has no name any more: another one under its name would be removed unread."""
    folder = Folder(tmp_path)
    writer = journal(folder)
    backlog = Backlog(folder)

    def sync() -> None:
        assert backlog.next_batch(1000, 3) is None  # the file has its name by now
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(folder, "sync", sync)
        with pytest.raises(StoreError, match="nothing was kept"):
            writer.append([b"refused"])
    writer.append([b"kept"])
    batch = backlog.next_batch(1000, 3)
    assert batch is not None
    assert batch.payloads == [b"kept"]
    writer.close()
    backlog.close()
    assert drained(folder) == [b"kept"]


def test_a_call_that_is_interrupted_blocks_no_other(tmp_path: Path) -> None:
    """The main thread commits for all when Ctrl-C comes."""
    folder = Folder(tmp_path)
    syncing, go_on = threading.Event(), threading.Event()
    interrupts: list[bool] = []

    def sync(_: int) -> None:
        if interrupts:
            syncing.set()
            go_on.wait(10)
            if interrupts.pop():
                raise KeyboardInterrupt

    writer = Journal(folder, sync=sync)
    writer.append([b"a"])
    interrupts.append(True)
    others = [threading.Thread(target=writer.append, args=([b"%d" % number],)) for number in range(3)]

    def start_others() -> None:
        syncing.wait(10)
        for other in others:
            other.start()
        until(lambda: len(writer._waiting) == 3)
        go_on.set()

    starter = threading.Thread(target=start_others)
    starter.start()
    with pytest.raises(KeyboardInterrupt):
        writer.append([b"interrupted"])
    starter.join(10)
    for other in others:
        other.join(10)
        assert not other.is_alive()
    writer.close()
    found = drained(folder)
    assert found[0] == b"a"
    assert sorted(found[-3:]) == [b"0", b"1", b"2"]


def test_a_forked_child_that_closes_what_it_never_used_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    writer = journal(folder)
    writer.append([b"a"])
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        writer.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not folder.has_ended(writer.stream)
    assert drained(folder) == [b"a"]
    writer.append([b"b"])
    assert drained(folder) == [b"b"]


def test_a_writer_whose_files_were_removed_writes_to_others(tmp_path: Path) -> None:
    """E.g. by a program that removes old files: without its lock a stream seems to have ended, and its file goes once it is delivered."""
    folder = Folder(tmp_path)
    writer = journal(folder)
    writer.append([b"a"])
    (tmp_path / f"{writer.stream}.lock").unlink()
    assert drained(folder) == [b"a"]
    for payload in (b"b", b"c"):
        writer.append([payload])
        assert drained(folder) == [payload]
    assert not folder.has_ended(writer.stream)
    writer.append([b"d"])
    shutil.rmtree(tmp_path)
    with pytest.raises(StoreError):
        writer.append([b"e"])


def test_a_file_that_is_removed_while_it_is_written_is_written_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    writer = journal(folder)
    writer.append([b"a"])
    assert writer.segment is not None
    path, sync = writer.segment.path, writer._sync

    def removing(descriptor: int) -> None:
        sync(descriptor)
        path.unlink(missing_ok=True)

    writer._sync = removing
    writer.append([b"b"])
    assert drained(folder) == [b"b"]


def test_a_full_disk_is_reported_before_a_message_is_given_out_not_after_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: what is sent and cannot be noted is sent again and again."""
    folder = Folder(tmp_path)
    writer = journal(folder)
    writer.append(numbers(0, 3))
    writer.close()
    is_full = True
    pwrite = os.pwrite

    def write(descriptor: int, data: bytes, offset: int) -> int:
        if is_full and offset + len(data) > os.fstat(descriptor).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    for _ in range(3):
        backlog = Backlog(folder)
        with pytest.raises(OSError, match="No space left"):
            backlog.next_batch(1000, 3)
        backlog.close()
    is_full = False
    backlog = Backlog(folder)
    batch = backlog.next_batch(1000, 3)
    assert batch is not None
    assert batch.payloads == numbers(0, 3)
    is_full = True
    backlog.done(batch.ends[-1])
    backlog.close()
