"""isthmus.connectors.eventhubs.mapping."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.amqp.types import Timestamp
from isthmus.connectors.eventhubs.mapping import EventReader, to_event
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter
from isthmus.entities.hub.event import EventReader as Broker
from isthmus.entities.hub.event import write_events

PARTITION, SEQUENCE = 3, 17
POSITION = PARTITION << 48 | SEQUENCE


def stored(event: bytes) -> bytes:
    """The event as consumers get it."""
    return write_events(Broker().read([event]), SEQUENCE, 4096, 1_700_000_000_000)[0]


def parts(message: bytes) -> tuple[dict[Any, Any], dict[str, Any], dict[Any, Any]]:
    found = section.locate(message)
    return (
        section.decode_map(message, found.message_annotations),
        section.decode_properties(message, found.properties),
        section.decode_map(message, found.application_properties),
    )


def test_an_event_is_a_message_with_a_position() -> None:
    event = section.encode_message(b"21.5", annotations={"x-opt-partition-key": "d7", "mine": 1})
    read = EventReader("hub").read(PARTITION, stored(event))
    annotations, properties, own = parts(read.message)
    assert (read.sequence, read.offset) == (SEQUENCE, "4096")
    assert annotations["x-opt-sequence-number"] == POSITION
    assert annotations["x-opt-enqueued-time"] == Timestamp(1_700_000_000_000)
    assert annotations["x-opt-kafka-partition"] == PARTITION
    assert (annotations["x-opt-partition-key"], annotations["mine"]) == ("d7", 1)
    assert properties == {"group_id": "d7"}
    assert own == {}
    assert section.contents(read.message, *section.locate(read.message).body) == b"21.5"


@pytest.mark.parametrize(
    "event",
    [
        section.encode_message(b"x"),
        section.encode_message(b"x", annotations={"x-opt-partition-key": "k"}),
        section.encode_message(b"x", annotations={"x-opt-partition-key": "k"}, properties={"group_id": "k"}),
        section.encode_message(b"x", annotations={"x-opt-partition-key": "k"}, properties={"group_id": "other"}),
        section.encode_message(b"", properties={"message_id": "m"}, application_properties={"a": 1, "b": b"\0"}),
        section.encode_message(["a", 1], value_body=True, application_properties={"a": None}),
    ],
)
def test_an_event_comes_back_as_it_was(event: bytes) -> None:
    """I1."""
    came = EventReader("hub").read(PARTITION, stored(event))
    back = to_event(came.message)
    annotations, properties, own = parts(back.payload)
    given = parts(event)
    assert (properties, own) == given[1:]
    assert annotations == given[0]
    assert back.partition == PARTITION
    assert back.key == given[0].get("x-opt-partition-key", "")
    body, before = section.locate(back.payload).body, section.locate(event).body
    assert back.payload[slice(*body)] == event[slice(*before)]


def test_a_binary_key_becomes_text() -> None:
    event = stored(section.encode_message(b"x", annotations={"x-opt-partition-key": b"k"}))
    annotations, properties, _ = parts(EventReader("hub").read(0, event).message)
    assert (annotations["x-opt-partition-key"], properties["group_id"]) == ("k", "k")


def test_a_session_is_the_key_of_a_message_without_one() -> None:
    found = to_event(section.encode_message(b"x", properties={"group_id": "s1"}))
    assert (found.key, found.partition) == ("s1", None)
    assert parts(found.payload)[:2] == ({"x-opt-partition-key": "s1"}, {"group_id": "s1"})


def test_what_a_broker_says_of_a_message_is_not_sent() -> None:
    message = section.encode_message(b"x", annotations={"x-opt-sequence-number": 5, "x-opt-locked-until": Timestamp(1)})
    assert parts(to_event(message).payload)[0] == {}


def test_identity_is_made_of_the_position_of_an_event() -> None:
    reader = EventReader("hub", gives_ids=True)
    (named, own) = (
        parts(reader.read(PARTITION, stored(event)).message)[1]["message_id"]
        for event in (section.encode_message(b"x"), section.encode_message(b"x", properties={"message_id": "m"}))
    )
    assert (named, own) == ("hub/3/17", "m")


def test_an_event_without_key_can_be_given_its_partition() -> None:
    annotations, properties, _ = parts(
        EventReader("hub", names_partition=True).read(PARTITION, stored(section.encode_message(b"x"))).message
    )
    assert (annotations["x-opt-partition-key"], properties["group_id"]) == ("partition-3", "partition-3")


def test_what_the_service_allows_in_properties() -> None:
    event = section.encode_message(b"x", application_properties={"eventhubs-offset": "mine"})
    _, _, own = parts(EventReader("hub", tells_system=True).read(PARTITION, stored(event)).message)
    assert own == {
        "eventhubs-offset": "mine",  # the producer's is kept
        "eventhubs-partition": 3,
        "eventhubs-sequence-number": SEQUENCE,
        "eventhubs-enqueued-time": Timestamp(1_700_000_000_000),
    }


def test_annotations_of_an_iot_hub_become_properties() -> None:
    event = section.encode_message(b"x", annotations={"iothub-connection-device-id": "d1", "iothub-tags": {"a": 1}})
    _, _, own = parts(EventReader("hub", shown=("iothub-",)).read(0, stored(event)).message)
    assert own == {"iothub-connection-device-id": "d1", "iothub-tags": "{'a': 1}"}


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"\0Sr\xd1\0\0\0\4\0\0\0\2\xa3"])
def test_what_is_no_event_is_refused(raw: bytes) -> None:
    with pytest.raises(CodecError):
        EventReader("hub").read(0, raw)
    if raw:
        with pytest.raises(CodecError):
            to_event(raw)


ANNOTATED = section.encode_map_section(section.MESSAGE_ANNOTATIONS, {"x-opt-partition-key": "k"})
BODY = b"\0Su\xa0\x01x"


@pytest.mark.parametrize(
    "malformed",
    [
        b"\0Ss\xc0\x0e\x0b" + b"@" * 10 + b"\xa1\x01\xd1",  # group-id is no UTF-8
        b"\0Ss\xc0\x02\x01\xff",  # message-id has no type
        b"\0St\xc1\x03\x02\xa1\x05",
        b"\0St\xc1\x04\x02\xff\xa1\x00",
    ],
)
@pytest.mark.parametrize("changes", [False, True])
def test_an_event_whose_properties_cannot_be_read_is_given_as_it_is(malformed: bytes, changes: bool) -> None:
    """A producer can send one that the service takes. The reader would stop there for ever; what makes copies sets it aside."""
    reader = EventReader("hub", gives_ids=changes, names_partition=changes, tells_system=changes)
    read = reader.read(PARTITION, stored(ANNOTATED + malformed + BODY))
    assert read.sequence == SEQUENCE
    assert malformed in read.message
    rewriter = MessageRewriter("a", "b", 8, origin_namespace="x", target_namespace="y", entity="t")
    _, [refused] = rewriter.copy_all(read.message, [0, len(read.message)], 0)
    assert (refused.disposition, refused.reason) == ("dead-letter", "Malformed")


def test_an_annotation_that_cannot_be_read_is_not_shown() -> None:
    raw = section.encode_map_section(section.MESSAGE_ANNOTATIONS, {"iothub-a": "zz", "iothub-b": "b"})
    event = raw.replace(b"\xa1\x02zz", b"\xa1\x02\xff\xff") + BODY
    message = EventReader("hub", shown=("iothub-",)).read(0, stored(event)).message
    found = section.locate(message)
    assert section.decode_map(message, found.application_properties) == {"iothub-b": "b"}
