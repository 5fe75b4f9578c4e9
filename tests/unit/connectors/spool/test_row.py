"""Rows of a spool: every message of an archive can be restored."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest

from isthmus.amqp import codec, section, types
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.row import ARCHIVE_DDL, ARCHIVE_SCHEMA, MESSAGE_SCHEMA, batch_of, restore

ANNOTATIONS = {
    "x-opt-sequence-number": types.Long(7),
    "x-opt-enqueued-time": types.Timestamp(1_700_000_000_123),
    "x-own": 5,
}
MESSAGE = section.encode_message(
    b"hello",
    header=section.Header(durable=True, priority=9, ttl_ms=60_000),
    annotations=ANNOTATIONS,
    properties={"message_id": uuid.UUID(int=3), "user_id": b"me", "content_encoding": "gzip", "group_id": "s"},
    application_properties={"a": types.UByte(1), "b": types.Float(1.5), "c": None, "d": [1, "x"]},
)
VALUE = section.encode_message({"k": [1, 2]}, annotations=ANNOTATIONS, value_body=True)
FOOTER = MESSAGE + b"\0Sx" + codec.encode({types.Symbol("f"): 1})
TWO = section.encode_message(b"one", annotations=ANNOTATIONS) + b"\0Su" + codec.encode(b"two")
WRONG = section.encode_message([b"one"], annotations=ANNOTATIONS)  # a data section with a list in it
BARE = b"\0Sr" + codec.encode({types.Symbol("x-opt-sequence-number"): types.Long(1)})


def row_of(message: bytes) -> dict[str, object]:
    batch = batch_of("archive", "id", 40, 1_700_000_000_000, [Record("ewr/q 0123", 7, 1_700_000_000_123, message, 2)])
    assert batch.schema == ARCHIVE_SCHEMA
    (row,) = batch.to_pylist()
    return row


@pytest.mark.parametrize("message", [MESSAGE, VALUE, FOOTER, BARE, WRONG, b"no message"])
def test_i1_i2_a_message_is_made_again_to_the_byte(message: bytes) -> None:
    assert restore(row_of(message)) == message


def test_a_message_that_no_row_can_hold_does_not_delay_the_others() -> None:
    odd = b"\0Sr" + codec.encode({types.Symbol("x-opt-sequence-number"): True})
    batch = batch_of("archive", "id", 0, 0, [Record("q ", 1, 0, each) for each in (MESSAGE, odd, VALUE)])
    assert batch.column("body_type").to_pylist() == ["data", "unreadable", "value"]
    assert [restore(row) for row in batch.to_pylist()] == [MESSAGE, odd, VALUE]


def test_data_sections_are_joined() -> None:
    again = restore(row_of(TWO))
    start, stop = section.locate(again).body
    assert section.contents(again, start, stop) == b"onetwo"


def test_a_row_has_the_fields_of_its_message() -> None:
    row = row_of(MESSAGE)
    assert (row["spool"], row["spool_number"]) == ("id", 40)
    assert (row["source"], row["source_namespace"]) == ("ewr/q", "0123")
    assert (row["sequence_number"], row["sequence_epoch"]) == (7, 2)
    assert (row["date"], row["hour"]) == ("2023-11-14", 22)
    assert (row["message_id"], row["session_id"], row["body"]) == (str(uuid.UUID(int=3)), "s", b"hello")
    assert row["time_to_live_ms"] == 60_000


def test_a_row_that_was_altered_is_refused() -> None:
    with pytest.raises(ValueError, match="digest does not match"):
        restore(row_of(MESSAGE) | {"body": b"other"})


def test_a_message_without_a_number_or_a_time_has_a_row() -> None:
    batch = batch_of("archive", "id", 0, 1_700_000_000_000, [Record("ewr/q ", -1, 0, b"junk")])
    (row,) = batch.to_pylist()
    assert (row["sequence_number"], row["body_type"], row["date"]) == (None, "unreadable", "2023-11-14")


def test_a_time_that_no_calendar_has_has_a_row() -> None:
    (row,) = batch_of("archive", "id", 0, 0, [Record("q ", 1, 1 << 62, MESSAGE)]).to_pylist()
    assert (row["date"], row["hour"]) == ("0001-01-01", 0)


def test_rows_of_messages_are_the_messages() -> None:
    batch = batch_of("message", "id", 5, 0, [Record("q ", 1, 0, MESSAGE), Record("q ", 2, 0, VALUE)])
    assert batch.schema == MESSAGE_SCHEMA
    assert batch.column("message").to_pylist() == [MESSAGE, VALUE]
    assert batch.column("spool_number").to_pylist() == [5, 6]


def test_spark_and_arrow_have_the_same_columns() -> None:

    names = [each.split()[0] for each in ARCHIVE_DDL.partition(", application_properties")[0].split(", ")]
    assert names == ARCHIVE_SCHEMA.names[: len(names)]
    assert pa.types.is_map(ARCHIVE_SCHEMA.field("application_properties").type)
