"""A spool on disk: the state after a kill at each point, and its reading."""

from __future__ import annotations

import errno
import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from isthmus.connectors.spool import seen as seen_module
from isthmus.connectors.spool import writer as writer_module
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder, SpoolInUseError
from isthmus.connectors.spool.reader import SpoolMissingError, SpoolPosition, SpoolReader
from isthmus.connectors.spool.writer import SpoolWriter

KEY = "ewr/q 0123"


def records(start: int, stop: int) -> list[Record]:
    return [
        Record(KEY, number, 1_000_000 + number, b"message %d " % number + b"x" * 50) for number in range(start, stop)
    ]


def numbers_read(path: Path, start: SpoolPosition | None = None, end: SpoolPosition | None = None) -> list[int]:
    reader = SpoolReader(path)
    begin = start or reader.first()
    stop = end or reader.end(begin, 1 << 40)
    return [
        record.sequence
        for part in reader.ranges(begin, stop, 1 << 40)
        for _, found in reader.blocks(part)
        for record in found
    ]


def write(path: Path, *groups: tuple[int, int], segment_bytes: int = 1 << 20) -> None:
    writer = SpoolWriter(path, segment_bytes).open()
    for start, stop in groups:
        writer.append(records(start, stop))
        writer.sync()
    writer.close()


def test_what_is_written_is_read_over_segments_in_order(tmp_path: Path) -> None:
    write(tmp_path, *((at, at + 5) for at in range(0, 100, 5)), segment_bytes=1000)
    assert numbers_read(tmp_path) == list(range(100))
    assert len(list((tmp_path / "segments").iterdir())) > 5


def test_i3_a_stream_without_times_that_was_made_again_is_written(tmp_path: Path) -> None:
    """Its offsets had come: what the new one holds was taken for the old, and was settled at the source."""

    def stream(name: bytes) -> list[Record]:
        return [Record(KEY, number, 0, b"%b %d" % (name, number)) for number in range(20)]

    for _ in range(2):  # the second time they come again
        writer = SpoolWriter(tmp_path).open()
        writer.append(stream(b"old"))
        writer.sync()
        writer.close()
    assert numbers_read(tmp_path) == list(range(20))
    writer = SpoolWriter(tmp_path).open()
    assert writer.append(stream(b"new")) == 20
    writer.sync()
    writer.close()
    assert SpoolWriter(tmp_path).open().append(stream(b"new")) == 0


def test_what_a_stream_received_in_place_of_its_lost_end_is_reported_where_it_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(seen_module, "MARKS", 5)
    writer = SpoolWriter(tmp_path).open()
    writer.append([Record(KEY, number, 0, b"old %d" % number) for number in range(40)])
    assert writer.append([Record(KEY, number, 0, b"new %d" % number) for number in range(20, 35)]) == 0
    assert not caplog.records, "they may be redelivered ones"
    assert writer.append([Record(KEY, number, 0, b"new %d" % number) for number in range(35, 45)]) == 10
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "up to 15 messages with numbers from 20 to 34" in record.message
    writer.close()


def test_i3_a_topic_that_was_made_again_with_the_times_of_days_is_written(tmp_path: Path) -> None:
    """Publishers may give all records of a day one time: it does not distinguish one from another with the same offset."""
    first, second = ([Record(KEY, n, 86_400_000, b"%b %d" % (name, n)) for n in range(20)] for name in (b"old", b"new"))
    for records_of, count in ((first, 20), (first, 0), (second, 20), (second, 0)):
        writer = SpoolWriter(tmp_path, compares=True).open()
        assert writer.append(records_of) == count
        writer.sync()
        writer.close()


def test_a_segment_is_followed_by_another_when_it_is_old(tmp_path: Path) -> None:
    now = [100.0]
    writer = SpoolWriter(tmp_path, segment_seconds=60.0, wall=lambda: now[0]).open()
    writer.append(records(0, 1))
    now[0] += 61
    writer.append(records(1, 2))
    writer.sync()
    writer.close()
    assert len(list((tmp_path / "segments").iterdir())) == 2
    assert numbers_read(tmp_path) == [0, 1]


def test_i1_what_is_not_synced_is_not_read(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path).open()
    writer.append(records(0, 3))
    writer.sync()
    writer.append(records(3, 6))
    assert numbers_read(tmp_path) == [0, 1, 2]
    writer.sync()
    writer.close()
    assert numbers_read(tmp_path) == list(range(6))


def test_i2_a_spool_has_one_writer(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path).open()
    with pytest.raises(SpoolInUseError, match="written by another process"):
        SpoolWriter(tmp_path).open()
    writer.close()
    SpoolWriter(tmp_path).open().close()


def test_i3_what_comes_again_is_kept_once_also_after_a_kill(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, 1000).open()
    assert writer.append(records(0, 20)) == 20
    assert writer.append(records(10, 30)) == 10
    writer.sync()
    writer.close()
    again = SpoolWriter(tmp_path, 1000).open()
    assert again.append(records(0, 31)) == 1
    again.sync()
    again.close()
    assert numbers_read(tmp_path) == list(range(31))


def test_i3_what_comes_again_after_its_segment_was_given_up_is_kept_once(tmp_path: Path) -> None:
    write(tmp_path, *((at, at + 5) for at in range(0, 40, 5)), segment_bytes=500)
    reader = SpoolReader(tmp_path)
    reader.release(reader.end(reader.first(), 1 << 40))
    assert len(list((tmp_path / "segments").iterdir())) == 1
    writer = SpoolWriter(tmp_path, 500).open()
    assert writer.append(records(0, 40)) == 0
    writer.close()


def test_i3_what_follows_a_segment_that_could_not_be_made_is_kept_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`seen` is written before the next segment is made; where that fails, the last one continues after what `seen` records."""
    writer = SpoolWriter(tmp_path, 200).open()
    writer.append(records(0, 3))
    writer.sync()
    with monkeypatch.context() as patched:

        def refuse(*_: object) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(writer, "_open_segment", refuse)
        with pytest.raises(SpoolError):
            writer.append(records(3, 4))
    again = SpoolWriter(tmp_path, 1 << 20).open()
    again.append(records(3, 6))
    again.sync()
    again.close()  # and killed before it was reported to the source
    write(tmp_path, (3, 7))
    assert numbers_read(tmp_path) == list(range(7))


def test_i3_a_message_of_the_group_in_which_a_segment_ends_is_not_known_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file `seen` is written when a segment ends: what it records has to be in a segment already."""
    writer = SpoolWriter(tmp_path, 500).open()
    writer.append(records(0, 10))
    writer.sync()

    def killed(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer_module, "encode", killed)
    with pytest.raises(KeyboardInterrupt):
        writer.append(records(10, 20))
    writer.close()
    monkeypatch.undo()
    again = SpoolWriter(tmp_path, 500).open()
    assert again.append(records(10, 20)) == 10
    again.close()


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_i4_a_torn_end_is_cut_off_and_comes_again(tmp_path: Path, kept: float) -> None:
    writer = SpoolWriter(tmp_path).open()
    writer.append(records(0, 5))
    writer.sync()
    (segment,) = (tmp_path / "segments").iterdir()
    whole = segment.stat().st_size
    writer.append(records(5, 9))
    writer.close()
    torn = whole + int((segment.stat().st_size - whole) * kept)
    os.truncate(segment, torn)
    again = SpoolWriter(tmp_path).open()
    assert again.append(records(5, 9)) == 4
    again.sync()
    again.close()
    assert numbers_read(tmp_path) == list(range(9))


def test_what_was_written_and_not_synced_when_its_process_was_killed_is_kept_once(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path).open()
    writer.append(records(0, 5))
    writer.sync()
    writer.append(records(5, 9))
    writer.close()
    again = SpoolWriter(tmp_path).open()
    assert numbers_read(tmp_path) == list(range(9))
    assert again.append(records(5, 9)) == 0
    again.close()


def test_i4_what_was_on_disk_is_not_cut_off_where_it_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, (0, 5), (5, 9))
    (segment,) = (tmp_path / "segments").iterdir()
    data = bytearray(segment.read_bytes())
    data[-3] ^= 0xFF
    segment.write_bytes(data)
    writer = SpoolWriter(tmp_path).open()
    writer.append(records(20, 25))
    writer.sync()
    writer.close()
    assert segment.read_bytes() == bytes(data)
    assert numbers_read(tmp_path) == [0, 1, 2, 3, 4, 20, 21, 22, 23, 24]


def test_i5_what_a_failed_sync_covered_is_not_taken_for_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SpoolWriter(tmp_path).open()
    writer.append(records(0, 5))
    writer.sync()
    writer.append(records(5, 9))
    real = os.fdatasync

    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(SpoolError, match="cannot be synced: Input/output error"):
        writer.sync()
    monkeypatch.setattr(os, "fdatasync", real)
    writer.open()
    assert numbers_read(tmp_path) == list(range(5))
    assert writer.append(records(5, 9)) == 4
    writer.close()


def test_a_disk_that_is_full_is_reported_and_the_spool_continues_when_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SpoolWriter(tmp_path).open()
    real = os.write

    def half(descriptor: int, data: memoryview) -> int:
        real(descriptor, bytes(data[: len(data) // 2]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(SpoolError, match="No space left"):
        writer.append(records(0, 5))
    monkeypatch.setattr(os, "write", real)
    writer.open()
    assert writer.append(records(0, 5)) == 5
    writer.sync()
    writer.close()
    assert numbers_read(tmp_path) == list(range(5))


def test_a_batch_that_is_read_again_is_the_same(tmp_path: Path) -> None:
    write(tmp_path, *((at, at + 5) for at in range(0, 100, 5)), segment_bytes=1000)
    reader = SpoolReader(tmp_path)
    places = [reader.first()]
    while (place := reader.end(places[-1], 700)) != places[-1]:
        places.append(place)
    batches = [numbers_read(tmp_path, start, end) for start, end in pairwise(places)]
    write(tmp_path, (100, 140), segment_bytes=1000)
    again = [numbers_read(tmp_path, start, end) for start, end in pairwise(places)]
    assert batches == again
    assert [number for batch in batches for number in batch] == list(range(100))
    assert len(batches) > 5


def test_the_parts_of_a_batch_are_its_records(tmp_path: Path) -> None:
    write(tmp_path, *((at, at + 5) for at in range(0, 100, 5)), segment_bytes=1000)
    reader = SpoolReader(tmp_path)
    parts = reader.ranges(reader.first(), reader.end(reader.first(), 1 << 40), 300)
    found = [record.sequence for part in parts for _, group in reader.blocks(part) for record in group]
    assert found == list(range(100))
    assert len(parts) > 10


def test_i3_a_segment_is_given_up_whole_and_only_behind_what_committed(tmp_path: Path) -> None:
    write(tmp_path, *((at, at + 5) for at in range(0, 100, 5)), segment_bytes=1000)
    reader = SpoolReader(tmp_path)
    middle = reader.end(reader.first(), 2500)
    done = numbers_read(tmp_path, reader.first(), middle)
    reader.release(middle)
    assert numbers_read(tmp_path, middle) == list(range(len(done), 100))
    # The same batch once more, as after a crash before the commit was known: what was given up has committed.
    assert set(numbers_read(tmp_path, SpoolPosition(0, 0, 0), middle)) <= set(done)


def test_i3_a_damaged_segment_is_kept_and_its_loss_is_noted(tmp_path: Path) -> None:
    write(tmp_path, *((at, at + 5) for at in range(0, 30, 5)), segment_bytes=600)
    first = min((tmp_path / "segments").iterdir())
    data = bytearray(first.read_bytes())
    data[60] ^= 0xFF
    first.write_bytes(data)
    reader = SpoolReader(tmp_path)
    end = reader.end(reader.first(), 1 << 40)
    assert numbers_read(tmp_path) == list(range(5, 30))
    reader.release(end)
    note = json.loads((tmp_path / "quarantine" / f"{first.stem}.json").read_text())
    assert note["missing"] == [[0, 5]]
    assert note["messages"] == 5
    assert (tmp_path / "quarantine" / first.name).read_bytes() == bytes(data)
    assert not first.exists()


def test_i4_a_segment_that_is_missing_is_named(tmp_path: Path) -> None:
    write(tmp_path, *((at, at + 5) for at in range(0, 30, 5)), segment_bytes=600)
    reader = SpoolReader(tmp_path)
    start = reader.first()
    first = min((tmp_path / "segments").iterdir())
    first.unlink()
    with pytest.raises(SpoolMissingError, match=first.name):
        reader.end(start, 1 << 40)


@pytest.mark.parametrize("left", [0, 2])
def test_i7_the_numbers_of_a_missing_segment_are_not_given_again(tmp_path: Path, left: int) -> None:
    """A table that had those numbers left out the messages that came later under them, and nothing was said."""
    write(tmp_path, *((at, at + 5) for at in range(0, 30, 5)), segment_bytes=600)
    reader = SpoolReader(tmp_path)
    taken, behind = reader.last(), reader.at(25)
    for each in sorted((tmp_path / "segments").iterdir())[left:]:
        each.unlink()
    write(tmp_path, (30, 33))
    assert numbers_read(tmp_path, taken) == [30, 31, 32]
    assert reader.last().number == 33
    with pytest.raises(SpoolMissingError, match="is missing"):
        reader.end(behind, 1 << 40)


def test_a_spool_that_does_not_exist_has_nothing_to_read(tmp_path: Path) -> None:
    reader = SpoolReader(tmp_path / "none")
    assert reader.first() == reader.last() == SpoolPosition(0, 0, 0)
    assert reader.end(reader.first(), 100) == SpoolPosition(0, 0, 0)


def test_a_damaged_note_of_what_came_is_read_from_the_segments(tmp_path: Path) -> None:
    write(tmp_path, *((at, at + 5) for at in range(0, 30, 5)), segment_bytes=600)
    (tmp_path / "seen").write_bytes(b"garbage")
    writer = SpoolWriter(tmp_path, 600).open()
    assert writer.append(records(0, 31)) == 1
    writer.close()


def test_i1_the_names_of_the_folders_that_a_spool_is_in_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut takes the whole spool, with messages that were settled at their source."""
    synced: set[Path] = set()
    sync = os.fsync

    def synced_by(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced_by)
    path = tmp_path / "state" / "spools" / "t"
    SpoolWriter(path).open().close()
    assert {tmp_path, tmp_path / "state", tmp_path / "state" / "spools", path} <= synced


def test_i1_the_name_of_a_segment_that_is_found_is_on_disk_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk took the segment and refused its name: what is synced in it would go with a power cut."""

    def refused(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(writer_module, "sync_folder", refused)
    with pytest.raises(SpoolError, match="Input/output error"):
        SpoolWriter(tmp_path).open()
    synced: list[Path] = []
    monkeypatch.setattr(writer_module, "sync_folder", synced.append)
    writer = SpoolWriter(tmp_path).open()
    assert writer.append(records(0, 1)) == 1
    writer.close()
    assert synced == [tmp_path / "segments"]


def test_a_spool_that_cannot_be_looked_at_keeps_its_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since Python 3.14 `Path.exists` is false for any error: the spool was another one, and what it had came into its table again."""
    folder = SpoolFolder(tmp_path)
    folder.make()
    identity, real = folder.identity(), os.stat

    def stat(path: Any, **more: Any) -> os.stat_result:
        if str(path).endswith("/id"):
            raise OSError(errno.EIO, "Input/output error")
        return real(path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", stat)
        patched.setattr(Path, "exists", os.path.exists)
        folder.make()
    assert folder.identity() == identity


def test_a_spool_that_was_made_is_not_made_again(tmp_path: Path) -> None:
    """Its file system may not be mounted; a run makes it before its route starts."""
    with pytest.raises(SpoolError, match="is missing; is its file system not mounted"):
        SpoolWriter(tmp_path / "spool", made=True).open()
    assert not (tmp_path / "spool").exists()
    SpoolFolder(tmp_path / "spool").make()
    SpoolWriter(tmp_path / "spool", made=True).open().close()


def test_i8_what_goes_into_a_deleted_segment_does_not_count_as_written(tmp_path: Path) -> None:
    """An operator removes the folder to begin again from nothing, and the run continues: what came was settled at its source until the next segment began."""
    writer = SpoolWriter(tmp_path / "spool").open()
    writer.append(records(0, 5))
    writer.sync()
    shutil.rmtree(tmp_path / "spool")
    writer.append(records(5, 8))
    with pytest.raises(SpoolError, match="its last segment was deleted"):
        writer.sync()
    again = SpoolWriter(tmp_path / "spool").open()
    assert again.append(records(5, 8)) == 3  # they come again
    again.sync()
    again.close()
    assert numbers_read(tmp_path / "spool") == [5, 6, 7]
