"""Rows to copies, with an outlet that only listens, and with a fake broker."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from isthmus.amqp import section, types
from isthmus.amqp.section import Header
from isthmus.connectors.servicebus.channel import listen
from isthmus.connectors.servicebus.option import SinkOptions
from isthmus.connectors.servicebus.row import DECODED_SCHEMA, RAW_SCHEMA, decoded_batch, flush_batch, raw_batch
from isthmus.connectors.servicebus.sequence import broker_times_of
from isthmus.connectors.servicebus.sink import StreamWriter, _Rows, _SourceSettler
from isthmus.connectors.servicebus.source import ServiceBusDataSource
from isthmus.connectors.servicebus.splice import Refused
from isthmus.errors import ConfigError, InvalidArgumentError, LockLostError
from isthmus.testing import peer as peer_module
from isthmus.testing.peer import Peer


class Listener:
    """Keeps what is handed over."""

    def __init__(self) -> None:
        self.copies: list[bytes] = []

    def send(self, payloads: list[bytes], sequences: Sequence[int] | None, refused: Any = ()) -> None:
        self.copies += payloads

    def source_wall_ms(self) -> int | None:
        return None


def copied(batch: pa.RecordBatch, **options: str) -> list[tuple[Any, dict[str, Any]]]:
    """MessageId and application properties of the copies of rows."""
    listener = Listener()
    given = {"connection": "env:NOWHERE", "entity": "q"}
    _Rows(SinkOptions.read(given | options), listener, None).take(batch)  # type: ignore[arg-type]
    return [
        (
            section.decode_properties(copy, section.locate(copy).properties).get("message_id"),
            {
                str(name): value
                for name, value in section.decode_map(copy, section.locate(copy).application_properties).items()
            },
        )
        for copy in listener.copies
    ]


def stored(number: int, **more: Any) -> bytes:
    annotations = {
        "x-opt-sequence-number": types.Long(number),
        "x-opt-enqueued-time": types.Timestamp(1_700_000_000_000 + number),
    }
    return section.encode_message(b"x", annotations=annotations | more)


def test_copies_of_decoded_rows_bear_the_identity_of_their_messages() -> None:
    numbered = {"x-opt-enqueue-sequence-number": types.Long(70)}
    copies = copied(decoded_batch([stored(7), stored(8, **numbered)], [b"", b""], [7, 8]), origin="ewr/q")
    made = [message_id for message_id, _ in copies]
    assert all(re.fullmatch("isthmus-[0-9a-f]{32}", each) for each in made)
    assert len(set(made)) == 2
    assert [own["repl-sequence"] for _, own in copies] == ["7", "70"]
    assert [own["repl-enqueued-time"][-7:] for _, own in copies] == ["20.007Z", "20.008Z"]


def test_rows_from_elsewhere_without_a_message_id_get_none_that_is_equal() -> None:
    """Duplicate detection would drop all but the first of them."""
    batch = pa.RecordBatch.from_pydict({"body": [b"one", b"two"]})
    assert [message_id for message_id, _ in copied(batch, origin="kafka/flights")] == [None, None]


def test_rows_of_a_lease_without_their_sequence_numbers_are_refused_before_one_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing could be settled, and flush rows would be taken for messages."""
    with Peer("target") as target:
        place = f"Endpoint=sb://127.0.0.1:{target.port}/;SharedAccessKeyName=a;SharedAccessKey=b;"
        monkeypatch.setenv("PLACE", place + "UseDevelopmentEmulator=true")
        reader = listen(tmp_path / "task.lease")
        rows = flush_batch(
            0, b"\0" * 1000, pa.schema([("message", pa.binary()), ("a", pa.binary()), ("b", pa.int64())])
        )
        writer = StreamWriter(SinkOptions.read({"connection": "env:PLACE", "entity": "target"}), ["message"])
        with pytest.raises(InvalidArgumentError, match="sequence_number"):
            writer._write(iter([rows.select(["message"])]), tmp_path / "task.lease")
        assert not target.queues["target"].messages
        reader.discard()


@pytest.fixture(name="place")
def _place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    """A source with one locked message."""
    with Peer("source") as peer:
        place = f"Endpoint=sb://127.0.0.1:{peer.port}/;SharedAccessKeyName=a;SharedAccessKey=b;"
        monkeypatch.setenv("PLACE", place + "UseDevelopmentEmulator=true")
        queue = peer.queues["source"]
        assert queue.put(section.encode_message(b"x")) == 1
        with peer.lock:
            queue.waiting.remove(1)
            queue.locked[1] = None  # type: ignore[assignment]
        yield peer


@pytest.fixture(name="settler")
def _settler(place: Peer) -> Iterator[_SourceSettler]:
    given = {"connection": "env:NOWHERE", "entity": "q", "source_connection": "env:PLACE", "source_entity": "source"}
    settler = _SourceSettler(SinkOptions.read(given))
    settler.know([1], [os.urandom(8) + (1).to_bytes(8, "big")])
    yield settler
    settler.close()


def test_a_source_that_ended_its_connection_meanwhile_is_told_over_another(
    place: Peer, settler: _SourceSettler
) -> None:
    """With settle=commit a batch may go on for longer than a namespace keeps a connection on which nothing moves."""
    with place.lock:
        place.drop_connections()
        place.queues["source"].locked[1] = None  # type: ignore[assignment]
    settler(1, Refused(0, "dead-letter", "why", ""))
    assert place.queues["source"].fates == {1: "dead-lettered: why"}


def test_a_repeated_task_goes_past_what_the_first_one_has_settled(
    place: Peer, settler: _SourceSettler, monkeypatch: pytest.MonkeyPatch
) -> None:
    settler(1, Refused(0, "dead-letter", "why", ""))
    refuse_settling(monkeypatch)
    settler(1, Refused(0, "dead-letter", "why", ""))
    assert place.queues["source"].fates == {1: "dead-lettered: why"}


def test_a_disposition_whose_lock_is_lost_is_an_error(
    place: Peer, settler: _SourceSettler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the message would be completed as written, with the rest of its batch."""
    refuse_settling(monkeypatch)
    with pytest.raises(LockLostError, match=r"'source': the lock of message 1 is lost.*option spool"):
        settler(1, Refused(0, "dead-letter", "why", ""))


def refuse_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lock is held any more."""
    manage = peer_module._Served._manage

    def refuse(served: Any, queue: Any, operation: str, body: Any) -> tuple[int, Any]:
        return (410, None) if operation == "update-disposition" else manage(served, queue, operation, body)

    monkeypatch.setattr(peer_module._Served, "_manage", refuse)


def test_abandoning_a_row_of_a_batch_is_refused(place: Peer, settler: _SourceSettler) -> None:
    """It would come again as one that is committed already, and be completed."""
    with pytest.raises(InvalidArgumentError, match="settle=sink"):
        settler(1, Refused(0, "abandon", "", ""))
    assert place.queues["source"].fates == {}


def source() -> ServiceBusDataSource:
    return ServiceBusDataSource({"connection": "env:PLACE", "entity": "target"})


def columns(*names: str) -> StructType:
    return StructType([StructField(name, BinaryType()) for name in names])


def test_overwriting_is_refused_when_the_write_is_planned_i4() -> None:
    with pytest.raises(InvalidArgumentError, match=r"write mode\('append'\)"):
        source().writer(columns("body"), True)
    with pytest.raises(InvalidArgumentError, match=r"write outputMode\('append'\)"):
        source().streamWriter(columns("body"), True)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("body", "messageid"), "there is no column 'messageid'; write message_id"),
        (("body", "order"), "there is no column 'order'; drop it, or put it into application_properties"),
        (("message", "subject"), "nothing is written from column 'subject'; drop it; the column 'message' holds"),
    ],
)
def test_columns_that_no_message_is_made_of_are_refused_by_name_i4(names: tuple[str, ...], told: str) -> None:
    for make in (source().writer, source().streamWriter):
        with pytest.raises(ConfigError) as caught:
            make(columns(*names), False)
        assert told in str(caught.value)


def test_every_column_that_is_read_can_be_written() -> None:
    source().streamWriter(columns(*RAW_SCHEMA.names, "disposition", "reason", "description"), False)
    source().writer(columns(*DECODED_SCHEMA.names, "disposition", "reason", "description"), False)


@pytest.mark.parametrize(("wall_ms", "left_ms"), [(-60_000, 100_000), (5_000, 95_000), (60_000, 90_000)])
def test_without_a_reader_the_time_to_live_goes_by_a_clock_within_the_messages_own_times(
    monkeypatch: pytest.MonkeyPatch, wall_ms: int, left_ms: int
) -> None:
    enqueued_ms = 1_700_000_000_000
    annotations = {
        "x-opt-sequence-number": types.Long(1),
        "x-opt-enqueued-time": types.Timestamp(enqueued_ms),
        "x-opt-locked-until": types.Timestamp(enqueued_ms + 10_000),
    }
    message = section.encode_message(b"x", header=Header(ttl_ms=100_000), annotations=annotations)
    monkeypatch.setattr(time, "time_ns", lambda: (enqueued_ms + wall_ms) * 1_000_000)
    listener = Listener()
    options = SinkOptions.read({"connection": "env:NOWHERE", "entity": "q", "origin": "ewr/q"})
    _Rows(options, listener, None).take(raw_batch([message], [b""], [1]))  # type: ignore[arg-type]
    (copy,) = listener.copies
    assert section.decode_header(copy, section.locate(copy).header).ttl_ms == left_ms


@pytest.mark.parametrize("value", ["soon", b"\x00", 1.5])
def test_times_of_another_type_tell_nothing(value: Any) -> None:
    annotations = {"x-opt-enqueued-time": value, "x-opt-locked-until": types.Timestamp(7)}
    assert broker_times_of(section.encode_message(b"x", annotations=annotations)) == (0, 7)
    assert broker_times_of(b"no message") == (0, 0)
