"""Rows to copies, with fake brokers."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from isthmus.amqp import section, types
from isthmus.amqp.section import Header
from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.servicebus.message.sequence import broker_times_of
from isthmus.connectors.servicebus.option import SinkOptions
from isthmus.connectors.servicebus.spark.error import RowRefusedError
from isthmus.connectors.servicebus.spark.row import DECODED_SCHEMA, RAW_SCHEMA, decode, decoded_batch, raw_batch
from isthmus.connectors.servicebus.spark.sink import StreamWriter
from isthmus.connectors.servicebus.spark.source import ServiceBusDataSource
from isthmus.connectors.servicebus.spark.source_settler import SourceSettler
from isthmus.errors import ConfigError, InvalidArgumentError, IsthmusError, LockLostError
from isthmus.testing import peer as peer_module
from isthmus.testing.peer import Peer


@pytest.fixture(name="target")
def _target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    with Peer("target") as peer:
        monkeypatch.setenv("TARGET", place_of(peer))
        yield peer


def place_of(peer: Peer) -> str:
    place = f"Endpoint=sb://127.0.0.1:{peer.port}/;SharedAccessKeyName=a;SharedAccessKey=b;"
    return place + "UseDevelopmentEmulator=true"


def write(*batches: pa.RecordBatch, **options: str) -> None:
    given = {"connection": "env:TARGET", "entity": "target"}
    StreamWriter(SinkOptions.read(given | options), batches[0].schema.names).write(iter(batches))


def copies(target: Peer) -> list[bytes]:
    with target.lock:
        return list(target.queues["target"].messages.values())


def copied(target: Peer, batch: pa.RecordBatch, **options: str) -> list[tuple[Any, dict[str, Any]]]:
    """MessageId and application properties of the copies of rows."""
    write(batch, **options)
    return [
        (
            section.decode_properties(copy, section.locate(copy).properties).get("message_id"),
            {
                str(name): value
                for name, value in section.decode_map(copy, section.locate(copy).application_properties).items()
            },
        )
        for copy in copies(target)
    ]


def stored(number: int, **more: Any) -> bytes:
    annotations = {
        "x-opt-sequence-number": types.Long(number),
        "x-opt-enqueued-time": types.Timestamp(1_700_000_000_000 + number),
    }
    return section.encode_message(b"x", annotations=annotations | more)


def test_copies_of_decoded_rows_bear_the_identity_of_their_messages(target: Peer) -> None:
    numbered = {"x-opt-enqueue-sequence-number": types.Long(70)}
    found = copied(target, decoded_batch([stored(7), stored(8, **numbered)], [b"", b""], [7, 8]), origin="ewr/q")
    made = [message_id for message_id, _ in found]
    assert all(re.fullmatch("isthmus-[0-9a-f]{32}", each) for each in made)
    assert len(set(made)) == 2
    assert [own["repl-sequence"] for _, own in found] == ["7", "70"]
    assert [own["repl-enqueued-time"][-7:] for _, own in found] == ["20.007Z", "20.008Z"]


def test_rows_from_elsewhere_without_a_message_id_get_none_that_is_equal(target: Peer) -> None:
    """Duplicate detection would drop all but the first of them."""
    batch = pa.RecordBatch.from_pydict({"body": [b"one", b"two"]})
    assert [message_id for message_id, _ in copied(target, batch, origin="kafka/flights")] == [None, None]


def body(message: bytes) -> bytes:
    value = decode(message)["body"]
    assert isinstance(value, bytes)
    return value


def raw(*payloads: bytes, **columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"message": list(payloads), **columns})


def test_rows_are_sent_in_their_order_and_all_are_acknowledged_i1_i2(target: Peer) -> None:
    batches = [raw(*(section.encode_message(b"%d" % (at + n)) for n in range(100))) for at in range(0, 500, 100)]
    write(*batches)
    assert [body(copy) for copy in copies(target)] == [b"%d" % n for n in range(500)]


def test_messages_share_envelopes_where_that_is_asked_for(target: Peer) -> None:
    write(raw(*(section.encode_message(b"%d" % n) for n in range(50))), batch_messages="10")
    assert [body(copy) for copy in copies(target)] == [b"%d" % n for n in range(50)]


def test_a_message_that_the_target_refuses_fails_a_write_that_has_no_source(target: Peer) -> None:
    """It is too large for the target, whatever the time."""
    with pytest.raises(RowRefusedError, match="MessageTooLarge"):
        write(raw(section.encode_message(bytes(2 << 20)), section.encode_message(b"x")))


def test_a_task_without_rows_connects_to_nothing(target: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "TARGET", "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    )
    write(raw())


def test_a_target_that_is_not_there_fails_the_write_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "TARGET", "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    )
    with pytest.raises(IsthmusError, match=r"servicebus write to target.*127\.0\.0\.1"):
        write(raw(section.encode_message(b"x")), target_timeout_seconds="1")


def test_an_entity_that_is_not_there_fails_the_write_at_once(target: Peer) -> None:
    with pytest.raises(IsthmusError, match="nowhere"):
        write(raw(section.encode_message(b"x")), entity="nowhere")


def test_a_row_with_a_disposition_and_no_source_is_an_error_i3(target: Peer) -> None:
    rows = raw(section.encode_message(b"x"), section.encode_message(b"y"), disposition=["complete", "defer"])
    with pytest.raises(RowRefusedError, match="options source_connection and source_entity name one"):
        write(rows)
    write(raw(section.encode_message(b"x"), disposition=["complete"]))


def test_a_disposition_without_its_lock_token_is_refused(place: Peer, target: Peer) -> None:
    rows = raw(section.encode_message(b"x"), sequence_number=[1], disposition=["dead-letter"])
    with pytest.raises(InvalidArgumentError, match="keep the column 'lock_token'"):
        write(rows, source_connection="env:PLACE", source_entity="source")


def test_rows_get_their_disposition_and_the_others_are_sent_i3(place: Peer, target: Peer) -> None:
    token = os.urandom(8) + (1).to_bytes(8, "big")
    rows = raw(
        section.encode_message(b"x"), section.encode_message(b"y"), sequence_number=[1, 2], lock_token=[token, b"t" * 16],
        disposition=["dead-letter", None], reason=["why", None],
    )  # fmt: skip
    write(rows, source_connection="env:PLACE", source_entity="source")
    assert place.queues["source"].fates == {1: "dead-lettered: why"}
    assert len(copies(target)) == 1


def test_abandoning_a_row_of_a_batch_is_refused(place: Peer, target: Peer) -> None:
    """It would come again as one that is committed already, and be completed."""
    rows = raw(section.encode_message(b"x"), sequence_number=[1], lock_token=[b"t" * 16], disposition=["abandon"])
    with pytest.raises(InvalidArgumentError, match="write 'dead-letter' or 'defer'"):
        write(rows, source_connection="env:PLACE", source_entity="source")
    assert place.queues["source"].fates == {}


@pytest.fixture(name="place")
def _place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    """A source with one locked message."""
    with Peer("source") as peer:
        monkeypatch.setenv("PLACE", place_of(peer))
        queue = peer.queues["source"]
        assert queue.put(section.encode_message(b"x")) == 1
        with peer.lock:
            queue.waiting.remove(1)
            queue.locked[1] = None  # type: ignore[assignment]
        yield peer


@pytest.fixture(name="settler")
def _settler(place: Peer) -> Iterator[SourceSettler]:
    given = {"connection": "env:NOWHERE", "entity": "q", "source_connection": "env:PLACE", "source_entity": "source"}
    settler = SourceSettler(SinkOptions.read(given))
    settler.know([1], [os.urandom(8) + (1).to_bytes(8, "big")])
    yield settler
    settler.close()


def test_a_source_that_ended_its_connection_meanwhile_is_reported_over_another(
    place: Peer, settler: SourceSettler
) -> None:
    """A batch may take longer than a namespace keeps a connection on which nothing moves."""
    with place.lock:
        place.drop_connections()
        place.queues["source"].locked[1] = None  # type: ignore[assignment]
    settler.settle(1, Disposition("dead-letter", "why"))
    assert place.queues["source"].fates == {1: "dead-lettered: why"}


def test_a_repeated_task_goes_past_what_the_first_one_has_settled(
    place: Peer, settler: SourceSettler, monkeypatch: pytest.MonkeyPatch
) -> None:
    settler.settle(1, Disposition("dead-letter", "why"))
    refuse_settling(monkeypatch)
    settler.settle(1, Disposition("dead-letter", "why"))
    assert place.queues["source"].fates == {1: "dead-lettered: why"}


def test_a_disposition_whose_lock_is_lost_is_an_error(
    place: Peer, settler: SourceSettler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the message would be completed as written, with the rest of its batch."""
    refuse_settling(monkeypatch)
    with pytest.raises(LockLostError, match=r"'source': the lock of message 1 is lost.*option spool"):
        settler.settle(1, Disposition("dead-letter", "why"))


def refuse_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is locked any more."""
    manage = peer_module._Served._manage

    def refuse(served: Any, queue: Any, operation: str, body: Any) -> tuple[int, Any]:
        return (410, None) if operation == "update-disposition" else manage(served, queue, operation, body)

    monkeypatch.setattr(peer_module._Served, "_manage", refuse)


def source() -> ServiceBusDataSource:
    return ServiceBusDataSource({"connection": "env:PLACE", "entity": "target"})


def columns(*names: str) -> StructType:
    known = {**dict(_OWN), "disposition": StringType(), "reason": StringType(), "description": StringType()}
    return StructType([StructField(name, known.get(name, BinaryType())) for name in names])


_OWN = [
    (field.name, field.dataType)
    for schema in (RAW_SCHEMA, DECODED_SCHEMA)
    for field in from_arrow_schema(schema).fields
]


def test_overwriting_is_refused_when_the_write_is_planned_i4() -> None:
    with pytest.raises(InvalidArgumentError, match=r"write mode\('append'\)"):
        source().writer(columns("body"), True)
    with pytest.raises(InvalidArgumentError, match=r"write outputMode\('append'\)"):
        source().streamWriter(columns("body"), True)


@pytest.mark.parametrize(
    ("names", "reported"),
    [
        (("body", "messageid"), "there is no column 'messageid'; write message_id"),
        (("body", "order"), "there is no column 'order'; drop it, or put it into application_properties"),
        (("body", "subject", "body"), "there are two columns 'body'; drop one of them"),
        (("message", "subject"), "nothing is written from column 'subject'; drop it; the column 'message' contains"),
    ],
)
def test_columns_that_no_message_is_made_of_are_refused_by_name_i4(names: tuple[str, ...], reported: str) -> None:
    for make in (source().writer, source().streamWriter):
        with pytest.raises(ConfigError) as caught:
            make(columns(*names), False)
        assert reported in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "reported"),
    [
        ("body", IntegerType(), "column 'body' is int; cast it to binary or string"),
        ("body", ArrayType(IntegerType()), "column 'body' is array<int>; cast it to binary or string"),
        ("body", BooleanType(), "column 'body' is boolean; cast it"),
        ("message_id", LongType(), "column 'message_id' is bigint; cast it to string"),
        ("session_id", IntegerType(), "column 'session_id' is int; cast it to string"),
        ("subject", BooleanType(), "column 'subject' is boolean; cast it to string"),
        ("scheduled_enqueue_time", TimestampNTZType(), "is timestamp_ntz; cast it to timestamp"),
        ("scheduled_enqueue_time", LongType(), "is bigint; cast it to timestamp"),
        ("scheduled_enqueue_time", DateType(), "is date; cast it to timestamp"),
        ("time_to_live_ms", FloatType(), "column 'time_to_live_ms' is float; cast it to bigint"),
        ("sequence_number", StringType(), "column 'sequence_number' is string; cast it to bigint"),
        ("disposition", BooleanType(), "column 'disposition' is boolean; cast it to string"),
        ("application_properties", StringType(), "make a map<string, struct>"),
        ("application_properties", MapType(StringType(), DecimalType(10, 2)), "no property is made of decimal(10,2)"),
        ("application_properties", MapType(StringType(), ArrayType(StringType())), "is made of array<string>"),
        (
            "application_properties",
            MapType(StringType(), StructType([StructField("string", StringType()), StructField("number", LongType())])),
            "nothing is written from the fields number",
        ),
        (
            "application_properties",
            MapType(StringType(), StructType([StructField("long", StringType())])),
            "nothing is written from the fields long",
        ),
    ],
)
def test_a_column_whose_values_would_be_sent_as_others_is_refused_i4(name: str, kind: DataType, reported: str) -> None:
    schema = StructType(
        [*columns("body").fields, StructField(name, kind)] if name != "body" else [StructField(name, kind)]
    )
    for make in (source().writer, source().streamWriter):
        with pytest.raises(ConfigError) as caught:
            make(schema, False)
        assert reported in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("message_id", NullType()),
        ("sequence_number", IntegerType()),
        *(
            ("application_properties", MapType(StringType(), kind))
            for kind in (StringType(), LongType(), BooleanType(), BinaryType(), TimestampType(), NullType())
        ),
        ("application_properties", MapType(StringType(), StructType([StructField("long", IntegerType())]))),
    ],
)
def test_a_column_of_a_kindred_type_is_written(name: str, kind: DataType) -> None:
    source().writer(StructType([StructField("body", BinaryType()), StructField(name, kind)]), False)


def test_a_message_that_is_no_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="column 'message' is string; cast it to binary"):
        source().writer(StructType([StructField("message", StringType())]), False)


def test_columns_of_nulls_and_times_beyond_pythons_are_written(target: Peer) -> None:
    far_us = 300_000_000_000_000_000
    rows = {
        "body": pa.array([b"x"]),
        "sequence_number": pa.nulls(1),
        "message_id": pa.nulls(1),
        "scheduled_enqueue_time": pa.array([far_us]).cast(pa.timestamp("us", tz="Europe/Berlin")),
        "application_properties": pa.array(
            [[("at", datetime(2026, 1, 1, tzinfo=UTC))]], pa.map_(pa.string(), pa.timestamp("us", tz="UTC"))
        ),
    }
    write(pa.RecordBatch.from_arrays(list(rows.values()), names=list(rows)))
    (copy,) = copies(target)
    row = decode(copy)
    assert row["scheduled_enqueue_time"] == far_us // 1000
    assert row["application_properties"] == [("at", {"datetime": 1_767_225_600_000_000, "type": "timestamp"})]


def test_every_column_that_is_read_can_be_written() -> None:
    source().streamWriter(columns(*RAW_SCHEMA.names, "disposition", "reason", "description"), False)
    source().writer(columns(*DECODED_SCHEMA.names, "disposition", "reason", "description"), False)


@pytest.mark.parametrize(("wall_ms", "left_ms"), [(-60_000, 100_000), (5_000, 95_000), (60_000, 90_000)])
def test_the_time_to_live_goes_by_a_clock_within_the_messages_own_times(
    target: Peer, monkeypatch: pytest.MonkeyPatch, wall_ms: int, left_ms: int
) -> None:
    enqueued_ms = 1_700_000_000_000
    annotations = {
        "x-opt-sequence-number": types.Long(1),
        "x-opt-enqueued-time": types.Timestamp(enqueued_ms),
        "x-opt-locked-until": types.Timestamp(enqueued_ms + 10_000),
    }
    message = section.encode_message(b"x", header=Header(ttl_ms=100_000), annotations=annotations)
    monkeypatch.setattr(time, "time_ns", lambda: (enqueued_ms + wall_ms) * 1_000_000)
    write(raw_batch([message], [b""], [1]), origin="ewr/q")
    (copy,) = copies(target)
    found_ms = section.decode_header(copy, section.locate(copy).header).ttl_ms
    assert found_ms is not None
    assert left_ms - 1000 <= found_ms <= left_ms


@pytest.mark.parametrize("value", ["soon", b"\x00", 1.5])
def test_times_of_another_type_show_nothing(value: Any) -> None:
    annotations = {"x-opt-enqueued-time": value, "x-opt-locked-until": types.Timestamp(7)}
    assert broker_times_of(section.encode_message(b"x", annotations=annotations)) == (0, 7)
    assert broker_times_of(b"no message") == (0, 0)
