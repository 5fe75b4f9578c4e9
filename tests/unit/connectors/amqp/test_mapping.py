"""isthmus.connectors.amqp.mapping"""

from __future__ import annotations

import pytest

from isthmus.amqp import codec, section
from isthmus.amqp.section import Header
from isthmus.amqp.types import Int, Symbol, UByte
from isthmus.connectors.amqp.mapping import DUPLICATE_ID, Copier, with_header, with_properties
from isthmus.connectors.amqp.option import read_target

OPTIONS = {"url": "amqp://127.0.0.1:5672", "entity": "orders"}
JMS = {"x-opt-jms-dest": 0, "x-opt-jms-msg-type": 5}
BODY = section.encode_message(b"hello", properties={"message_id": "m1"}, application_properties={"a": 1})


def copier(*, detects: bool = False, **options: str) -> Copier:
    return Copier(read_target(OPTIONS | options), "", detects=detects)


def only_copy(made: Copier, *messages: bytes) -> bytes:
    data, offsets = b"".join(messages), [0]
    for each in messages:
        offsets.append(offsets[-1] + len(each))
    found = made.copies(data, offsets, 0)
    assert found.rows is None
    assert len(found.payloads) == len(messages)
    return found.payloads[0]


def header_of(message: bytes) -> Header:
    return section.decode_header(message, section.locate(message).header)


def properties_of(message: bytes) -> dict[str, object]:
    return section.decode_map(message, section.locate(message).application_properties)


@pytest.mark.parametrize(
    "header", [None, Header(), Header(True, 7, 60_000, True, 9), Header(ttl_ms=0, delivery_count=1)]
)
@pytest.mark.parametrize("options", [{}, {"origin": "mq/orders", "target": "jfk"}])
def test_the_header_is_made_again(header: Header | None, options: dict[str, str]) -> None:
    """I2"""
    message = BODY if header is None else section.encode_header(header) + BODY
    wanted = header or Header()
    copy = only_copy(copier(**options), message)
    found = header_of(copy)
    assert found.durable
    assert (found.priority, found.first_acquirer, found.delivery_count) == (wanted.priority, False, 0)
    if wanted.ttl_ms:
        assert found.ttl_ms == wanted.ttl_ms


def test_a_message_stays_not_durable_where_that_is_wanted() -> None:
    assert only_copy(copier(durable="false"), BODY) == BODY
    durable = section.encode_header(Header(durable=True)) + BODY
    assert header_of(only_copy(copier(durable="false"), durable)).durable


@pytest.mark.parametrize("options", [{}, {"origin": "mq/orders", "target": "jfk"}])
def test_annotations_of_clients_continue_and_those_of_service_bus_do_not(options: dict[str, str]) -> None:
    """I1"""
    own = {"x-opt-sequence-number": 5, "x-opt-enqueued-time": 7, "x-opt-lock-token": "t"}
    for reported in (JMS, JMS | own):
        message = section.encode_message(b"x", annotations=reported, properties={"message_id": "m"})
        copy = only_copy(copier(**options), message)
        kept = section.decode_map(copy, section.locate(copy).message_annotations)
        assert {str(key): value for key, value in kept.items()} == JMS


def test_delivery_annotations_end_here() -> None:
    """I2"""
    delivery = section.encode_map_section(section.DELIVERY_ANNOTATIONS, {Symbol("x-opt-lock-token"): b"t"})
    copy = only_copy(copier(), delivery + BODY)
    assert copy == with_header(BODY, durable=True)
    assert only_copy(copier(durable="false"), delivery + BODY) == BODY


def test_properties_are_added_and_replaced() -> None:
    made = with_properties(BODY, {"b": "2", "a": "new"})
    assert properties_of(made) == {"a": "new", "b": "2"}
    assert made.endswith(b"hello")
    bare = section.encode_message(b"x")
    assert properties_of(with_properties(bare, {"a": "1"})) == {"a": "1"}
    assert with_properties(BODY, {}) is BODY


def test_a_body_of_any_kind_passes() -> None:
    for body in ("text", {"k": 1}, [1, 2]):
        message = section.encode_message(body, properties={"message_id": "m"}, value_body=True)
        assert only_copy(copier(), message) == with_header(message, durable=True)


@pytest.mark.parametrize("options", [{}, {"origin": "mq/orders", "target": "jfk"}])
def test_what_is_no_message_is_set_aside(options: dict[str, str]) -> None:
    """I3"""
    data = BODY + b"\xff no message" + BODY
    found = copier(**options).copies(data, [0, len(BODY), len(data) - len(BODY), len(data)], 0)
    assert len(found.payloads) == 2
    assert found.rows == [0, 2]
    assert [(row, each.kind, each.reason) for row, each in found.disposed] == [(1, "dead-letter", "Malformed")]


@pytest.mark.parametrize(
    ("how", "is_known"), [("auto", False), ("origin", False), ("message-id", True), ("allow", False)]
)
def test_a_copy_of_a_message_without_number_is_known_by_its_message_id_alone(how: str, is_known: bool) -> None:
    copy = only_copy(copier(detects=True, duplicates=how, origin="mq/orders"), BODY)
    assert properties_of(copy).get(DUPLICATE_ID) == ("m1" if is_known else None)


def test_a_copy_of_a_numbered_message_is_known_by_its_origin() -> None:
    """I4"""
    message = section.encode_message(
        b"x", annotations={"x-opt-sequence-number": 5, "x-opt-enqueued-time": 7}, properties={"message_id": "m"}
    )
    one = properties_of(only_copy(copier(detects=True, origin="ewr/orders"), message))[DUPLICATE_ID]
    assert one == properties_of(only_copy(copier(detects=True, origin="ewr/orders"), message))[DUPLICATE_ID]
    assert str(one).startswith("isthmus-")


def test_a_broker_that_detects_nothing_gets_no_number() -> None:
    assert DUPLICATE_ID not in properties_of(only_copy(copier(duplicates="message-id"), BODY))


UNREADABLE = {
    "priority is a text": b"\0Sp" + codec.encode([True, "high"]) + BODY,
    "time to live below 0": b"\0Sp" + codec.encode([True, UByte(4), Int(-5)]) + BODY,
    "properties cut off": b"\0Ss\xc0\x01\x05",
    "application properties that are no map": b"\0St\x45\0Su\xa0\x01x",
}


@pytest.mark.parametrize("message", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("duplicates", ["allow", "message-id", "origin"])
def test_a_message_that_cannot_be_read_does_not_stop_the_others(message: bytes, duplicates: str) -> None:
    made = copier(detects=True, duplicates=duplicates)
    data, offsets = BODY + message + BODY, [0, len(BODY), len(BODY + message), 2 * len(BODY) + len(message)]
    found = made.copies(data, offsets, 0)
    assert len(found.payloads) + len(found.disposed) == 3
    assert [row for row, _ in found.disposed] in ([], [1])


@pytest.mark.parametrize("message", [b"\0Su\xa0\x01x", b"\0Sw\xa1\x01x\0Sx\xc1\x01\x00", b"\0Sx\xc1\x01\x00", b""])
def test_application_properties_come_before_the_body(message: bytes) -> None:
    """Standard 3.2: clients in Java drop what is in another order."""
    made = with_properties(message, {"why": "it is"})
    assert made.startswith(b"\0St")
    assert made.endswith(message)
    assert properties_of(made) == {"why": "it is"}
