"""isthmus.connectors.rabbitmq_streams.record: offsets and digests of records, and their messages."""

from __future__ import annotations

import pytest

from harness.bridge.rabbitmq_stream_broker import delivery
from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table
from isthmus.connectors.rabbitmq.protocol.error import ClosedByBrokerError, is_not_ready, may_pass
from isthmus.connectors.rabbitmq.protocol.property import Properties, Record
from isthmus.connectors.rabbitmq_streams.record import StreamReader, delivered, digest_of, offset_of


def record(body: bytes = b"body", offset: int = 7, **fields: object) -> Record:
    headers = (("x-stream-offset", *table.field_of(offset)),)
    return Record(body, props.write(Properties(headers=headers, **fields)), "", "orders")  # type: ignore[arg-type]


def test_the_offset_is_that_of_the_header() -> None:
    assert offset_of(record(offset=5_000_000_000)) == 5_000_000_000
    assert offset_of(Record(b"body")) is None


def test_a_delivery_has_its_tag_and_its_record() -> None:
    assert delivered(delivery(7, record())) == (7, record())


def test_the_digest_distinguishes_messages_and_leaves_out_headers() -> None:
    """I1."""
    assert digest_of(record(offset=1)) == digest_of(record(offset=2))
    others = [record(b"other"), record(message_id=b"1"), record(timestamp=1), record()._replace(routing_key="other")]
    assert len({digest_of(each) for each in [record(), *others]}) == 5


@pytest.mark.parametrize(
    ("gives_ids", "own", "expected"), [(True, None, "orders/7-"), (True, b"own", "own"), (False, None, None)]
)
def test_a_message_without_id_is_named_by_its_offset(gives_ids: bool, own: bytes | None, expected: str | None) -> None:
    fields = {"message_id": own} if own else {}
    event = StreamReader("orders", gives_ids=gives_ids).read(0, (7, record(**fields)))
    assert event.sequence == 7
    assert (expected or "").encode() in event.message
    assert (b"orders/7" in event.message) == (expected == "orders/7-")


def test_a_message_that_comes_under_the_offset_of_another_has_another_id() -> None:
    """I2. A stream was created again, or has lost its end: a target that detects duplicates by MessageId would drop the new message."""
    reader = StreamReader("orders", gives_ids=True)

    def message_id(body: bytes) -> str:
        message = reader.read(0, (7, record(body))).message
        return str(section.decode_property(message, section.locate(message).properties, "message_id"))

    assert message_id(b"lost") == message_id(b"lost")
    assert message_id(b"lost") != message_id(b"new")


def test_a_record_that_cannot_be_read_is_reported_with_its_offset() -> None:
    with pytest.raises(CodecError, match="offset 7"):
        StreamReader("orders").read(0, (7, Record(b"body", b"\xff")))


def test_a_queue_whose_node_starts_is_waited_for() -> None:
    text = "NOT_FOUND - home node 'a@b' of durable queue 'orders' in vhost '/' is down or inaccessible"
    starting = ClosedByBrokerError("", place="rabbit-1:5672", reply_code=404, reply_text=text)
    missing = ClosedByBrokerError("", place="rabbit-1:5672", reply_code=404, reply_text="NOT_FOUND - no queue 'orders'")
    assert is_not_ready(starting)
    assert may_pass(starting)
    assert "make it" not in str(starting)
    assert not may_pass(missing)


@pytest.mark.parametrize("stream", ["s" * 255, "ü" * 127, "𝔰" * 63])
def test_messages_of_a_stream_with_a_long_name_have_ids_of_their_own(stream: str) -> None:
    """A target that knows duplicates by MessageId would drop all but one."""
    reader = StreamReader(stream, gives_ids=True)
    found = set()
    for offset in (1_234_567, 1_234_568, 12_345_670):
        message = reader.read(0, (offset, record(offset=offset))).message
        properties = section.decode_properties(message, section.locate(message).properties)
        assert len(properties["message_id"]) <= 128
        found.add(properties["message_id"])
    assert len(found) == 3
