from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage

from isthmus.client.identity import mended, origin_of, republish, unique_message_id
from isthmus.message.provenance import digest


def received(message: Any) -> ServiceBusReceivedMessage:
    """The message as a receiver of the SDK shows it."""
    raw = message if isinstance(message, AmqpAnnotatedMessage) else message.raw_amqp_message
    encoded = encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(raw))
    return ServiceBusReceivedMessage(message=decode_payload(memoryview(encoded)), receiver=None)


def copied(**more: Any) -> ServiceBusReceivedMessage:
    properties = {
        "repl-origin": "west/orders",
        "repl-namespace": "west-id",
        "repl-sequence": "7",
        "repl-offset": "7",
        "repl-enqueued-time": "2030-01-01T00:00:00.000Z",
        "repl-digest": digest(b"order-1", b"body"),
        "isthmus-orders-1a2b3c": "order-1",
        "replication": 1,
        "colour": "red",
        "count": 5,
        "rate": 0.5,
        "open": True,
        "key": uuid.UUID(int=9),
        **more,
    }
    return received(
        ServiceBusMessage(
            b"body",
            message_id="order-1",
            session_id="s",
            correlation_id="c",
            subject="new",
            to="t",
            reply_to="r",
            content_type="text/plain",
            partition_key="s",
            time_to_live=timedelta(minutes=5),
            application_properties=properties,
        )
    )


def test_a_republished_message_bears_no_mark_and_no_provenance() -> None:
    """I1."""
    made = republish(copied())
    assert made.application_properties == {
        "colour": "red",
        "count": 5,
        "rate": 0.5,
        "open": True,
        "key": uuid.UUID(int=9),
    }
    again = received(made)
    assert origin_of(again) == ""


def test_a_republished_message_keeps_all_else() -> None:
    """I2: as it comes out at the next receiver."""
    before, after = copied(), received(republish(copied()))
    for name in (
        "message_id",
        "session_id",
        "correlation_id",
        "subject",
        "to",
        "reply_to",
        "content_type",
        "partition_key",
        "time_to_live",
    ):
        assert getattr(after, name) == getattr(before, name), name
    assert b"".join(after.body) == b"body"


def test_a_republished_message_gets_the_senders_own_message_id_back_or_a_new_one() -> None:
    message = copied(**{"repl-message-id": "the sender's own"})
    assert republish(message).message_id == "the sender's own"
    assert republish(message, message_id="new").message_id == "new"


def test_a_mark_that_a_task_was_given_is_named() -> None:
    assert "seen" not in republish(copied(seen=1), marks=["seen"]).application_properties


def test_bodies_of_values_and_sequences_are_kept() -> None:
    value = received(AmqpAnnotatedMessage(value_body={"a": [1, "b"]}))
    assert received(republish(value)).raw_amqp_message.body == {b"a": [1, b"b"]}
    sequence = received(AmqpAnnotatedMessage(sequence_body=[[1, 2], [3]]))
    assert list(received(republish(sequence)).raw_amqp_message.body) == [[1, 2], [3]]


def test_a_copy_is_known_by_its_origin_and_another_message_with_its_properties_is_not() -> None:
    assert origin_of(copied()) == "west-id/orders/7/2030-01-01T00:00:00.000Z"
    assert origin_of(received(ServiceBusMessage(b"x", message_id="order-1"))) == ""
    assert origin_of(copied(**{"repl-digest": digest(b"order-2", b"body")})) == ""


def test_message_ids_are_unique_over_regions() -> None:
    made = {unique_message_id("west") for _ in range(1000)}
    assert len(made) == 1000
    assert all(each.startswith("west-") for each in made)


def test_a_mended_message_keeps_where_it_comes_from_and_has_another_message_id() -> None:
    before = copied()
    made = mended(before, "good")
    again = received(made)
    reported = {
        (name.decode() if isinstance(name, bytes) else name): value
        for name, value in (again.application_properties or {}).items()
    }
    assert reported["repl-message-id"] in ("order-1", b"order-1")
    assert (reported["repl-sequence"], reported["isthmus-orders-1a2b3c"], reported["count"]) == (b"7", b"order-1", 5)
    assert again.message_id not in (None, "order-1")
    assert (b"".join(again.body), again.session_id, again.partition_key) == (b"good", "s", "s")
    twice = received(mended(again, b"better"))
    assert (twice.application_properties or {})[b"repl-message-id"] == b"order-1"
    bare = received(AmqpAnnotatedMessage(data_body=[b"x"]))
    assert mended(bare, b"y").message_id is None
