"""A copy that returns from any system is recognised as a copy, and its task stops it there, for any message.

A member of an all-active task without rules receives its own copies like messages. They are recognised by the mark and by a
provenance that matches MessageId and body (`isthmus.connectors.servicebus.message.message_copy`): a copy that a system changes would count as a
new message, and be sent to every other member.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from uuid import UUID

import pytest

from isthmus.amqp import codec, section
from isthmus.amqp.types import Symbol, Timestamp, ULong
from isthmus.connectors.amqp.mapping import with_header
from isthmus.connectors.eventhubs.mapping import EventReader, to_event
from isthmus.connectors.kafka.mapping import mapping as kafka
from isthmus.connectors.kafka.mapping.message_id import MessageIds
from isthmus.connectors.rabbitmq.mapping import mapping as rabbitmq
from isthmus.connectors.rabbitmq.mapping.outward import to_record
from isthmus.connectors.servicebus.message.message_rewriter import COPIED, VISITED, Mark, MessageRewriter, Refused

NOW_MS = 1_700_000_000_000
MARK = Mark("isthmus-flights-a1b2c3")
POSITION = 4711

BODIES = {
    "data": b"\0Su" + codec.encode(b"EWR"),
    "empty data": b"\0Su" + codec.encode(b""),
    "long data": b"\0Su" + codec.encode(b"x" * 70_000),
    "two data sections": (b"\0Su" + codec.encode(b"EWR")) * 2,
    "text": b"\0Sw" + codec.encode("Newark"),
    "null": b"\0Sw\x40",
    "a number": b"\0Sw" + codec.encode(7),
    "a map": b"\0Sw" + codec.encode({"a": 1, "b": [1, "x"]}),
    "a sequence": b"\0Sv" + codec.encode([1, "x"]),
    "none": b"",
}
MESSAGE_IDS = {
    "text": "EWR-1",
    "long text": "EWR-" + "é" * 124,
    "no ASCII": "Zürich",
    "a number": ULong(1 << 63),
    "a UUID": UUID(int=7),
    "binary": b"\xff\0",
    "none": None,
}


def original(message_id: object, body: bytes, position: int = POSITION) -> bytes:
    """As a source gives it."""
    properties = {"creation_time": Timestamp(NOW_MS)} | ({"message_id": message_id} if message_id is not None else {})
    return b"".join(
        (
            section.encode_map_section(
                section.MESSAGE_ANNOTATIONS,
                {"x-opt-sequence-number": position, "x-opt-enqueued-time": Timestamp(NOW_MS)},
            ),
            section.encode_properties(properties),
            section.encode_map_section(section.APPLICATION_PROPERTIES, {"carrier": "UA", "delay": -4, "big": 1 << 40}),
            body,
        )
    )


def through_service_bus(copy: bytes) -> bytes:
    return _annotated(copy)


def through_amqp(copy: bytes) -> bytes:
    return with_header(copy, durable=True)


def through_kafka(copy: bytes) -> bytes:
    record = kafka.to_record(copy)
    read = kafka.to_message(kafka.Record(record.value, record.key, record.headers, record.timestamp_ms, 0), POSITION)
    return MessageIds("flights").add(read, POSITION)


def through_rabbitmq(copy: bytes) -> bytes:
    return rabbitmq.to_message(to_record(copy, "isthmus"), POSITION, NOW_MS)


def through_event_hubs(copy: bytes) -> bytes:
    return EventReader("flights", gives_ids=True).read(0, _annotated(to_event(copy).payload)).message


def _annotated(message: bytes) -> bytes:
    """With what a broker notes of a message."""
    found = section.locate(message)
    kept = section.decode_map(message, found.message_annotations)
    own = {
        **kept,
        Symbol("x-opt-sequence-number"): POSITION,
        Symbol("x-opt-offset"): "7",
        Symbol("x-opt-enqueued-time"): Timestamp(NOW_MS),
    }
    header = message[slice(*found.header)]
    return (
        header
        + section.encode_map_section(section.MESSAGE_ANNOTATIONS, own)
        + message[max(found.header[1], found.message_annotations[1]) :]
    )


SYSTEMS: dict[str, Callable[[bytes], bytes]] = {
    "servicebus": through_service_bus,
    "amqp": through_amqp,
    "kafka": through_kafka,
    "rabbitmq": through_rabbitmq,
    "eventhubs": through_event_hubs,
}


def rewriter(source: str, target: str) -> MessageRewriter:
    return MessageRewriter(f"{source}/flights", target, mark=MARK)


@pytest.mark.parametrize("message_id", MESSAGE_IDS)
@pytest.mark.parametrize("member", SYSTEMS)
def test_a_copy_that_comes_back_is_stopped(member: str, message_id: str) -> None:
    found = {}
    for name, body in BODIES.items():
        made = rewriter("ewr", "jfk").copy(original(MESSAGE_IDS[message_id], body), NOW_MS)
        assert isinstance(made, bytes)
        read = SYSTEMS[member](made)
        verdicts = [rewriter("jfk", target).copy(read, NOW_MS) for target in ("lga", "ewr")]
        found[name] = [each.reason if isinstance(each, Refused) else "copied" for each in verdicts]
    assert found == {key: [COPIED, VISITED] for key in BODIES}


@pytest.mark.parametrize("member", SYSTEMS)
def test_copies_are_stopped_among_messages_that_are_not(member: str) -> None:
    """The fast path of the rewriter, which is learned from the messages before."""
    plain = [original(f"JFK-{number}", BODIES["data"], number) for number in range(1, 4)]
    made = [
        rewriter("ewr", "jfk").copy(original(f"EWR-{number}", BODIES["data"], number), NOW_MS) for number in range(1, 4)
    ]
    mixed = [
        SYSTEMS[member](each) for pair in zip(plain, made, strict=True) for each in pair if isinstance(each, bytes)
    ]
    offsets = [0, *itertools.accumulate(map(len, mixed))]
    copies, refused = rewriter("jfk", "lga").copy_all(b"".join(mixed), offsets, NOW_MS)
    assert [each.row for each in refused] == [1, 3, 5]
    assert len(copies) == 3


@pytest.mark.parametrize("member", [each for each in SYSTEMS if each != "servicebus"])
def test_another_message_with_the_properties_of_a_copy_continues(member: str) -> None:
    """An application that takes a copy, and sends an answer with all its properties, has made a new message."""
    made = rewriter("ewr", "jfk").copy(original("EWR-1", BODIES["data"]), NOW_MS)
    assert isinstance(made, bytes)
    answer = made.replace(b"\xa1\x05EWR-1", b"\xa1\x05ABC-1", 1)
    assert answer != made
    assert isinstance(rewriter("jfk", "lga").copy(SYSTEMS[member](answer), NOW_MS), bytes)
