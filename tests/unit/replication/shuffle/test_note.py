"""Notes of batches are found again after a kill at any point."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.replication.shuffle.note import BatchNote, last_note, write_note

MESSAGE = Record("ewr/q here", -1, 0, b"x")


def batch(number: int) -> BatchNote:
    return BatchNote(number=number, query="q", batch=number - 1, taken=number * 2, passed=number)


def write(path: Path, *notes: BatchNote, segment_bytes: int = 1 << 20) -> None:
    writer = SpoolWriter(path, segment_bytes=segment_bytes).open()
    for note in notes:
        writer.append([MESSAGE, note.record()])
        writer.sync()
    writer.close()


def test_a_batch_is_known_once_its_block_is_on_disk(tmp_path: Path) -> None:
    assert last_note(tmp_path) == BatchNote()
    write(tmp_path, batch(1), batch(2))
    note = last_note(tmp_path)
    assert note == batch(2)
    assert note.has("q", 1)
    assert note.has("q", 0)
    assert not note.has("q", 2)
    assert not note.has("another query", 1)


def test_a_block_that_was_half_written_has_no_note(tmp_path: Path) -> None:
    write(tmp_path, batch(1), batch(2))
    (segment,) = SpoolFolder(tmp_path).segments.iterdir()
    segment.write_bytes(segment.read_bytes()[:-1])
    (tmp_path / "durable").unlink()
    SpoolWriter(tmp_path).open().close()
    assert last_note(tmp_path) == batch(1)


def test_the_last_note_outlives_its_segment(tmp_path: Path) -> None:
    write(tmp_path, batch(1), segment_bytes=1)
    write_note(tmp_path, batch(1))
    SpoolFolder(tmp_path).segment(0).unlink()
    assert last_note(tmp_path) == batch(1)


def test_the_segments_show_what_the_file_does_not_yet(tmp_path: Path) -> None:
    write(tmp_path, batch(1), batch(2), batch(3), segment_bytes=1)
    write_note(tmp_path, batch(2))
    assert last_note(tmp_path) == batch(3)


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(b"{")
    with pytest.raises(SpoolError, match="note is damaged"):
        last_note(tmp_path)
