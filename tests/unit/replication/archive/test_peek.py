"""An archive as verification and replay read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.fixture.archive_filling import move, receive
from isthmus.amqp import section, types
from isthmus.connectors.servicebus.head import peeked_message
from isthmus.connectors.spool.block import Block, Record
from isthmus.connectors.spool.reader import Range, SpoolReader
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.errors import EntityNotFoundError
from isthmus.replication.archive.folder import ArchiveError, ArchiveFolder
from isthmus.replication.archive.peek import ArchivePeek, rows_of
from isthmus.replication.archive.query import archive_columns
from isthmus.replication.verification.audit.passage import messages
from isthmus.replication.verification.identity import identify

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS


def record(number: int, *, ms: int = 0, body: bytes = b"x", key: str = "ewr/q 01") -> Record:
    enqueued_ms = START_MS + (ms or number)
    message = section.encode_message(
        body,
        annotations={
            "x-opt-sequence-number": types.Long(number),
            "x-opt-enqueued-time": types.Timestamp(enqueued_ms),
        },
        properties={"message_id": f"m{number}", "group_id": f"s{number % 2}"},
        application_properties={"n": types.ULong(number)},
    )
    return Record(key, number, enqueued_ms, message)


def seen(peek: ArchivePeek) -> list[int]:
    return [identity.sequence for _, identity in messages(peek, 0, identify)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def test_i1_what_waits_in_the_spool_is_found_with_what_is_in_the_table(table: Path, spool: Path) -> None:
    receive(spool, [record(number) for number in range(1, 6)])
    assert seen(ArchivePeek(table, spool)) == [1, 2, 3, 4, 5]
    assert move(spool, table) == 5
    receive(spool, [record(number) for number in range(6, 9)])
    peek = ArchivePeek(table, spool)
    assert seen(peek) == list(range(1, 9))
    assert peek(3, 2) == [record(3).message, record(4).message]
    move(spool, table)
    assert seen(ArchivePeek(table, spool)) == list(range(1, 9))


def test_i1_segments_that_are_given_up_during_a_look_are_found_in_the_table(
    table: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SpoolWriter(spool, segment_bytes=1).open()
    for number in range(1, 5):
        writer.append([record(number)])
        writer.sync()
    writer.close()
    blocks, is_moved = SpoolReader.blocks, False

    def moved(reader: SpoolReader, part: Range) -> Iterator[tuple[Block, list[Record]]]:
        nonlocal is_moved
        if not is_moved:
            is_moved = True
            move(spool, table)
            reader.release(reader.last())
        return blocks(reader, part)

    monkeypatch.setattr(SpoolReader, "blocks", moved)
    assert seen(ArchivePeek(table, spool)) == [1, 2, 3, 4]


def test_what_comes_later_is_found_by_the_same_look(table: Path, spool: Path) -> None:
    receive(spool, [record(1)])
    peek = ArchivePeek(table, spool)
    assert len(peek(0, 10)) == 1
    receive(spool, [record(2)])
    assert [peeked_message(each).sequence for each in peek(2, 10)] == [2]


def test_i2_a_row_that_appears_twice_is_shown_twice(table: Path, spool: Path) -> None:
    receive(spool, [record(1), record(2)])
    move(spool, table)
    (file,) = (path for path in table.rglob("*.parquet"))
    file.with_name("copy.parquet").write_bytes(file.read_bytes())
    assert [len(ArchivePeek(table, spool)(start, 1)) for start in (0, 2)] == [2, 2]
    assert seen(ArchivePeek(table, spool)) == [1, 1, 2, 2]


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("key", ["ewr/other 01", "ewr/flights/Subscriptions/isthmus.a.table 01"])
def test_i3_of_a_task_that_was_given_another_queue_its_messages_are_found(
    table: Path, spool: Path, is_moved: bool, key: str
) -> None:
    """`verify` would find a message of the former one in the place of one that is lost."""
    receive(spool, [record(number) for number in range(1, 6)])
    receive(spool, [record(1), record(1, ms=900)])  # the former one was made again: it has an epoch of its own
    receive(spool, [record(number, key=key) for number in (1, 3)])
    if is_moved:
        move(spool, table)
    entered = key.partition("/")[2].partition("/")[0].partition(" ")[0]
    assert seen(ArchivePeek(table, spool, entered.upper())) == [1, 3]
    assert seen(ArchivePeek(table, spool, "none")) == []


def test_i3_what_came_by_a_mailbox_is_of_any_topic(table: Path, spool: Path) -> None:
    receive(spool, [record(1, key="renamed/isthmus.a.table 01"), record(2, key="renamed/q 01")])
    assert seen(ArchivePeek(table, spool, "q")) == [1, 2]


def test_of_an_entity_that_was_made_again_its_present_messages_are_found(table: Path, spool: Path) -> None:
    receive(spool, [record(1), record(2), record(3)])
    receive(spool, [record(1, ms=500), record(2, ms=501)])
    move(spool, table)
    assert [peeked_message(each).enqueued_ms - START_MS for each in ArchivePeek(table, spool)(0, 10)] == [500, 501]


@pytest.mark.parametrize("is_moved", [True, False])
def test_of_a_stream_that_was_made_again_every_partition_shows_its_present_messages(
    table: Path, spool: Path, is_moved: bool
) -> None:
    """A partition that had no record before does not begin again; nor does one that has none since."""
    second, third = 1 << 48, 2 << 48
    receive(spool, [record(0), record(1), record(third, ms=2), record(third + 1, ms=3)])
    receive(spool, [record(second, ms=500), record(0, ms=501), record(second + 1, ms=502)])
    if is_moved:
        move(spool, table)
    found = ArchivePeek(table, spool)(0, 10)
    assert [peeked_message(each).sequence for each in found] == [0, second, second + 1]
    assert [peeked_message(each).enqueued_ms - START_MS for each in found] == [501, 500, 502]


def test_there_is_no_archive(table: Path, spool: Path) -> None:
    with pytest.raises(EntityNotFoundError):
        ArchivePeek(table, spool)


def test_rows_come_in_the_order_of_the_source_over_hours_and_batches(table: Path, spool: Path) -> None:
    receive(spool, [record(1), record(2, ms=HOUR_MS), record(3)])
    move(spool, table)
    receive(spool, [record(4)])
    move(spool, table)
    assert [row["sequence_number"] for row in rows_of(table)] == [1, 2, 3, 4]


def test_a_batch_that_is_moved_while_rows_are_read_is_read(
    table: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive(spool, [record(1)])
    move(spool, table)
    receive(spool, [record(2)])
    with monkeypatch.context() as before:
        before.setattr(ArchiveFolder, "_move", lambda self, commit: None)
        move(spool, table)
    rows = rows_of(table)
    assert next(rows)["sequence_number"] == 1
    ArchiveFolder(table, archive_columns()).open().close()
    assert [row["sequence_number"] for row in rows] == [2]


def test_damage_is_reported_with_its_file(table: Path, spool: Path) -> None:
    """`isthmus verify` then cannot decide, and does not end in a traceback."""
    receive(spool, [record(number) for number in range(1, 6)])
    move(spool, table)
    (file,) = table.rglob("*.parquet")
    whole = file.read_bytes()
    rows = pq.read_table(file, partitioning=None)
    at = rows.column_names.index("digest")
    altered = pa.array([b"wrong"] * rows.num_rows, rows.schema.field(at).type)
    pq.write_table(rows.set_column(at, rows.schema.field(at), altered), file)
    with pytest.raises(ArchiveError, match="digest does not match"):
        ArchivePeek(table, spool)(0, 10)
    file.write_bytes(whole[:-7])
    for look in (lambda: ArchivePeek(table, spool)(0, 10), lambda: list(rows_of(table))):
        with pytest.raises(ArchiveError, match="parquet cannot be read"):
            look()
