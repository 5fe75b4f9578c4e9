from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from hypothesis import given
from hypothesis import strategies as st

from isthmus.amqp import section
from isthmus.client import sdk
from isthmus.client.send.parcel import Parcel, encode
from isthmus.client.send.schedule import scheduled

TEXT = st.text(max_size=20)
VALUES = st.one_of(TEXT, st.integers(-(1 << 31), (1 << 31) - 1), st.booleans(), st.floats(allow_nan=False))


def decoded(message: bytes) -> tuple[Any, ...]:
    found = section.locate(message)
    return (
        section.decode_header(message, found.header),
        section.decode_properties(message, found.properties),
        section.decode_map(message, found.message_annotations),
        [(key, type(value), value) for key, value in section.decode_map(message, found.application_properties).items()],
        message[found.body[0] : found.body[1]],
    )


@given(st.binary(max_size=400), st.dictionaries(st.text(min_size=1, max_size=9), VALUES, max_size=4), TEXT, TEXT)
def test_the_quick_encoding_says_the_same_as_the_sdks(
    body: bytes, properties: dict[Any, Any], subject: str, session: str
) -> None:
    """I1."""
    message = ServiceBusMessage(
        body,
        message_id="m",
        subject=subject,
        session_id=session or None,
        partition_key=session or None,
        content_type="a/b",
        application_properties=properties,
    ).raw_amqp_message
    own, message_id = encode(message)
    assert decoded(own) == decoded(sdk.encode(message, "m"))
    assert message_id == "m"


@pytest.mark.parametrize(
    "message",
    [
        ServiceBusMessage(b"x", message_id="m", time_to_live=timedelta(minutes=1)),
        ServiceBusMessage(b"x", message_id="m", scheduled_enqueue_time_utc=datetime(2040, 1, 1, tzinfo=UTC)),
        ServiceBusMessage(b"x", message_id="m", application_properties={"k": uuid.UUID(int=7), "n": 1 << 40 >> 10}),
        ServiceBusMessage("text", message_id="m"),
        ServiceBusMessage(None, message_id="m"),
    ],
)
def test_other_messages_are_encoded_by_the_sdk(message: ServiceBusMessage) -> None:
    own, _ = encode(message.raw_amqp_message)
    theirs = sdk.encode(message.raw_amqp_message, "m")
    assert decoded(own)[2:] == decoded(theirs)[2:]
    assert decoded(own)[0] == decoded(theirs)[0]


def test_a_missing_message_id_is_made_and_the_applications_object_stays_as_it_was() -> None:
    message = AmqpAnnotatedMessage(data_body=b"x", properties={"subject": "s"})
    first, second = Parcel.of(message), Parcel.of(message)
    assert message.properties.message_id is None
    assert first.message_ids != second.message_ids
    assert decoded(first.payloads[0])[1]["message_id"] == first.message_ids[0]


def test_a_message_id_is_made_for_a_message_that_the_sdk_encodes_too() -> None:
    parcel = Parcel.of(AmqpAnnotatedMessage(value_body={"a": 1}))
    assert decoded(parcel.payloads[0])[1]["message_id"] == parcel.message_ids[0]


def test_what_the_sdk_takes_is_taken() -> None:
    one = ServiceBusMessage(b"1")
    assert len(Parcel.of(one)) == 1
    assert len(Parcel.of([one, AmqpAnnotatedMessage(data_body=b"2"), {"body": b"3"}])) == 3
    assert len(Parcel.of(each for each in (one, one))) == 2
    assert not Parcel.of([])
    for wrong in (42, "text", [one, 42]):
        with pytest.raises(TypeError):
            Parcel.of(wrong)


def test_the_envelope_is_that_of_the_first_message_also_after_the_disk() -> None:
    parcel = Parcel.of([ServiceBusMessage(b"1", session_id="s", partition_key="s"), ServiceBusMessage(b"2")])
    again = Parcel.of_payloads(parcel.payloads)
    assert (parcel.session_id, parcel.partition_key) == ("s", "s") == (again.session_id, again.partition_key)


@pytest.mark.parametrize(
    "message",
    [
        AmqpAnnotatedMessage(data_body=b"1", properties=AmqpMessageProperties(subject=b"\xff", group_id="s")),
        AmqpAnnotatedMessage(data_body=b"1", properties=AmqpMessageProperties(user_id="x")),
        AmqpAnnotatedMessage(data_body=b"1", annotations={1.5: 1}),
    ],
)
def test_what_the_sdk_encodes_and_that_cannot_be_read_is_sent_all_the_same(message: AmqpAnnotatedMessage) -> None:
    """The namespace judges it; an outbox would otherwise deliver nothing more."""
    parcel = Parcel.of(message)
    assert Parcel.of_payloads(parcel.payloads).payloads == parcel.payloads


def test_a_scheduled_message_is_another_object() -> None:
    message = ServiceBusMessage(b"1", message_id="m", partition_key="p")
    [later] = scheduled(message, datetime(2040, 1, 1, tzinfo=UTC))
    assert message.scheduled_enqueue_time_utc is None
    annotations = decoded(encode(later)[0])[2]
    assert set(annotations) == {"x-opt-partition-key", "x-opt-scheduled-enqueue-time"}
