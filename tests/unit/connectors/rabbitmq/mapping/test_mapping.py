"""isthmus.connectors.rabbitmq.mapping.mapping and outward: both kinds of message are equivalent, in both directions."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.amqp import codec, section, types
from isthmus.amqp.codec import CodecError
from isthmus.connectors.rabbitmq.mapping import mapping, outward
from isthmus.connectors.rabbitmq.mapping.mapping import to_message
from isthmus.connectors.rabbitmq.mapping.name import AMQP_HEADER, NOTE_PROPERTY
from isthmus.connectors.rabbitmq.mapping.outward import to_record
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table
from isthmus.connectors.rabbitmq.protocol.property import Properties, Record
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter
from isthmus.message.name import BROKER_ANNOTATIONS

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
NAMES = st.one_of(TEXTS, st.sampled_from([NOTE_PROPERTY, "amqp-to", "CC", "BCC", "repl-origin", "x-death"]))
SHORT = st.one_of(st.none(), TEXTS.map(str.encode), st.binary(max_size=30))


def long_text(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def values() -> st.SearchStrategy[tuple[bytes, bytes]]:
    """Fields of every type that RabbitMQ has."""
    sizes = {b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"l": 8, b"D": 5, b"T": 8, b"f": 4, b"d": 8}
    fixed = st.sampled_from(sorted(sizes)).flatmap(
        lambda kind: st.binary(min_size=sizes[kind], max_size=sizes[kind]).map(lambda raw: (kind, raw))
    )
    simple = st.one_of(
        fixed,
        st.sampled_from([(b"t", b"\0"), (b"t", b"\1"), (b"V", b"")]),
        st.one_of(TEXTS.map(str.encode), st.binary(max_size=20)).map(lambda raw: (b"S", long_text(raw))),
        st.binary(max_size=20).map(lambda raw: (b"x", long_text(raw))),
    )
    arrays = st.lists(simple, max_size=3).map(lambda parts: (b"A", long_text(b"".join(a + b for a, b in parts))))
    tables = st.lists(st.tuples(TEXTS, simple), max_size=3).map(
        lambda parts: (b"F", table.encode([(name, *value) for name, value in parts]))
    )
    return st.one_of(simple, arrays, tables)


PROPERTIES = st.builds(
    Properties,
    content_type=SHORT,
    content_encoding=SHORT,
    headers=st.lists(st.tuples(NAMES, values()), max_size=5).map(
        lambda each: tuple((name, *value) for name, value in each)
    ),
    delivery_mode=st.sampled_from([None, 1, 2]),
    priority=st.one_of(st.none(), st.integers(0, 255)),
    correlation_id=SHORT,
    reply_to=SHORT,
    expiration=st.one_of(
        st.none(), st.integers(0, (1 << 32) - 1).map(lambda each: str(each).encode()), st.just(b"007")
    ),
    message_id=SHORT,
    timestamp=st.one_of(st.none(), st.integers(0, 1 << 40), st.just((1 << 64) - 1)),
    type=SHORT,
    user_id=st.one_of(st.none(), st.just(b"guest")),
    app_id=SHORT,
    cluster_id=SHORT,
)


@given(PROPERTIES, st.binary(max_size=300), TEXTS, TEXTS)
@settings(max_examples=100)
def test_a_record_survives_conversion_to_a_message(
    found: Properties, body: bytes, exchange: str, routing_key: str
) -> None:
    """I1."""
    record = Record(body, props.write(found), exchange, routing_key)
    message = to_message(record, 7, 1_700_000_000_000)
    section.locate(message)
    back = to_record(message, "guest")
    got = props.read(back.properties)
    assert back._replace(properties=b"") == record._replace(properties=b"")
    assert got._replace(headers=()) == found._replace(headers=())
    shown = [each for each in got.headers if each[0] != AMQP_HEADER]
    own = [each for each in found.headers if each[0] not in ("CC", "BCC")]
    assert shown == own or list(got.headers) == list(found.headers)
    again = props.read(to_record(to_message(back), "guest").properties)
    assert again == got


FREQUENT = st.builds(
    Properties,
    content_type=st.sampled_from([None, b"text/plain", b""]),
    content_encoding=st.sampled_from([None, b"gzip"]),
    headers=st.dictionaries(
        st.sampled_from(["a", "b", "n", "repl-origin", "ü", "CC"]),
        st.one_of(
            TEXTS.map(lambda text: (b"S", long_text(text.encode()))),
            st.just((b"S", long_text(b"x" * 300))),
            st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-200, 200)).map(table.field_of),
            st.one_of(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-200, 200))
            .map(types.Int)
            .map(table.field_of),
            st.booleans().map(table.field_of),
        ),
        max_size=4,
    ).map(lambda each: tuple((name, *value) for name, value in each.items())),
    delivery_mode=st.just(2),
    priority=st.sampled_from([None, 0, 3, 4, 9]),
    correlation_id=st.one_of(st.none(), TEXTS.map(str.encode)),
    reply_to=st.sampled_from([None, b"r", b"r" * 255]),
    message_id=st.sampled_from([None, b"", b"m", b"m" * 255, "ü".encode()]),
    timestamp=st.sampled_from([None, 0, 1_700_000_000, 1 << 50]),
    type=st.sampled_from([None, b"t", "ü".encode()]),
)


@given(FREQUENT, st.sampled_from([b"", b"x" * 10, b"x" * 300]), st.sampled_from(["", "orders", "ü"]))
@settings(max_examples=200)
def test_the_fast_path_and_the_general_path_are_one(found: Properties, body: bytes, place: str) -> None:
    """outward I1, frequent I1."""
    record = Record(body, props.write(found), place, place)
    message = to_message(record, 7, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapping, "sections_of", lambda raw: None)
        assert to_message(record, 7, 5) == message
    rewriter = MessageRewriter("lga/orders", "jfk", origin_namespace="", entity="orders")
    for each in (message, *rewriter.copy_all(message, [0, len(message)], 1)[0]):
        assert to_record(each) == outward._to_record(each, b"")


def test_a_header_that_routes_is_carried_beside() -> None:
    """I4: RabbitMQ would route a copy by `CC` as well."""
    field = (b"A", long_text(b"S" + long_text(b"elsewhere")))
    record = Record(
        b"x", props.write(Properties(headers=(("CC", *field), ("a", b"S", long_text(b"b"))), delivery_mode=2))
    )
    back = to_record(to_message(record))
    assert [name for name, _, _ in props.read(back.properties).headers if name in ("CC", "BCC")] == []
    assert section_of(to_message(back))["CC"] == '["elsewhere"]'


def section_of(message: bytes) -> dict[Any, Any]:
    return section.decode_map(message, section.locate(message).application_properties)


def test_the_user_of_another_connection_is_carried_beside() -> None:
    """I4: RabbitMQ closes the channel of a publisher that names another user than its own."""
    message = to_message(Record(b"x", props.write(Properties(user_id=b"alice", delivery_mode=2))))
    assert props.read(to_record(message, "alice").properties).user_id == b"alice"
    back = to_record(message, "bob")
    assert props.read(back.properties).user_id is None
    again = to_message(back)
    assert section.decode_properties(again, section.locate(again).properties)["user_id"] == b"alice"


def test_what_the_broker_counts_is_not_the_publishers() -> None:
    headers = (("x-delivery-count", b"l", struct.pack(">q", 3)), ("a", b"S", long_text(b"b")))
    message = to_message(Record(b"x", props.write(Properties(headers=headers, delivery_mode=2))))
    assert section_of(message) == {"a": "b"}
    assert section.decode_header(message, section.locate(message).header).delivery_count == 3


@pytest.mark.parametrize("count", [0, 1])
def test_a_first_delivery_of_a_quorum_queue_is_read_on_the_fast_path(count: int) -> None:
    """frequent I1: before RabbitMQ 3.12 it is counted, too; the general path takes several times as long."""
    reported, own = ("x-delivery-count", *table.field_of(count)), ("a", b"S", long_text(b"b"))
    plain = props.write(Properties(headers=(own,), delivery_mode=2))
    for headers in ((reported, own), (own, reported)):
        raw = props.write(Properties(headers=headers, delivery_mode=2))
        assert mapping.sections_of(raw) == (mapping.sections_of(plain) if not count else None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mapping, "sections_of", lambda raw: None)
            general = to_message(Record(b"x", raw))
        assert to_message(Record(b"x", raw)) == general


def numbers(kind: Any, low: int, high: int) -> st.SearchStrategy[Any]:
    return st.integers(low, high).map(kind)


SIMPLE = st.one_of(
    TEXTS,
    st.none(),
    st.booleans(),
    st.binary(max_size=20),
    numbers(types.UByte, 0, 255),
    numbers(types.UShort, 0, 65535),
    numbers(types.UInt, 0, (1 << 32) - 1),
    numbers(types.ULong, 0, (1 << 64) - 1),
    numbers(types.Byte, -128, 127),
    numbers(types.Short, -32768, 32767),
    numbers(types.Int, -(1 << 31), (1 << 31) - 1),
    numbers(int, -(1 << 63), (1 << 63) - 1),
    numbers(types.Timestamp, -(1 << 50), 1 << 50),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(types.Float),
    st.uuids(),
    st.sampled_from(["a", "ü", "\U0001f600"]).map(types.Char),
    st.from_regex(r"[a-z]{0,10}", fullmatch=True).map(types.Symbol),
    st.binary(min_size=8, max_size=8).map(types.Decimal64),
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "message_id": st.one_of(
            TEXTS, st.uuids(), numbers(types.ULong, 0, 1 << 63), st.binary(max_size=9), st.just("m" * 300)
        ),
        "user_id": st.binary(max_size=9),
        "to": TEXTS,
        "subject": TEXTS,
        "reply_to": TEXTS,
        "correlation_id": st.one_of(TEXTS, st.uuids()),
        "content_type": st.just("application/json"),
        "content_encoding": st.just("gzip"),
        "absolute_expiry_time": st.integers(0, 1 << 45),
        "creation_time": st.integers(-5, 1 << 45),
        "group_id": TEXTS,
        "group_sequence": st.integers(0, 1 << 31),
        "reply_to_group_id": TEXTS,
    },
)
BODIES = st.one_of(
    st.binary(max_size=300).map(lambda body: b"\0Su" + codec.encode(body)),
    st.lists(st.binary(max_size=9), min_size=2, max_size=3).map(
        lambda parts: b"".join(b"\0Su" + codec.encode(each) for each in parts)
    ),
    SIMPLE.map(lambda value: b"\0Sw" + codec.encode(value)),
    st.lists(SIMPLE, max_size=2).map(lambda value: b"\0Sv" + codec.encode(value)),
    st.just(b""),
)


@st.composite
def messages(draw: Any) -> bytes:
    annotations = draw(
        st.dictionaries(st.sampled_from(["x-opt-partition-key", "x-opt-via", "x-own"]), TEXTS, max_size=3)
    )
    fields, own = (
        draw(FIELDS),
        draw(st.dictionaries(NAMES.filter(lambda name: name != NOTE_PROPERTY), SIMPLE, max_size=4)),
    )
    ttl_ms = draw(st.one_of(st.none(), st.integers(0, 1 << 31)))
    parts = [section.encode_header(section.Header(priority=draw(st.integers(0, 9)), ttl_ms=ttl_ms))]
    if annotations:
        parts.append(section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations))
    if fields:
        parts.append(section.encode_properties(fields))
    if own:
        parts.append(section.encode_map_section(section.APPLICATION_PROPERTIES, own))
    parts.append(draw(BODIES))
    if draw(st.booleans()):
        parts.append(section.encode_map_section(section.FOOTER, {types.Symbol("x"): "y"}))
    return b"".join(parts)


def said(message: bytes) -> dict[str, Any]:
    """The contents of a message, without what a broker adds, with the types of all values."""
    found = section.locate(message)
    annotations = section.decode_map(message, found.message_annotations)
    header = section.decode_header(message, found.header)
    return {
        "annotations": {
            name: typed(value)
            for name, value in annotations.items()
            if name not in BROKER_ANNOTATIONS and name not in ("x-exchange", "x-routing-key")
        },
        "fields": {name: typed(value) for name, value in section.decode_properties(message, found.properties).items()},
        "own": {
            name: typed(value) for name, value in section.decode_map(message, found.application_properties).items()
        },
        "priority": header.priority,
        "ttl_ms": header.ttl_ms,
        "body": body_of(message, found.body),
        "footer": section.decode_map(message, found.footer),
    }


def typed(value: Any) -> tuple[type, bytes]:
    """A value that equals only one of its own type."""
    return type(value), codec.encode(value)


def body_of(message: bytes, where: tuple[int, int]) -> Any:
    """A single data section by its contents: its size may be written in two ways."""
    start, end = where
    return (b"", section.contents(message, start, end)) if message[start : start + 3] == b"\0Su" else message[start:end]


@given(messages())
@settings(max_examples=100)
def test_a_message_survives_conversion_to_a_record(message: bytes) -> None:
    """I2."""
    record = to_record(message, "isthmus")
    assert said(to_message(record)) == said(message)


@given(st.dictionaries(NAMES, TEXTS, max_size=3), st.binary(max_size=60), st.booleans())
@settings(max_examples=100)
def test_what_another_program_made_of_a_note_is_no_error(own: dict[str, str], noise: bytes, is_rabbit: bool) -> None:
    """I3."""
    headers = [(name, *table.field_of(text)) for name, text in own.items()]
    headers.append((AMQP_HEADER if not is_rabbit else NOTE_PROPERTY, b"S", long_text(noise)))
    message = to_message(Record(b"x", props.write(Properties(headers=tuple(headers)))))
    to_message(to_record(message))
    section.locate(message)


NOTES = [
    b"[]", b'{"types":3}', b'{"fields":"AA=="}', b'{"shown":[1]}', b'{"body":7}', b'{"hidden":"!"}', b'{"annotations":"wQ=="}',
    b'{"headers":{"a":"AA=="}}', b'{"table":"AAAA"}', b'{"delivery_mode":"x","priority":"y","expiration":1,"timestamp":-1}', b'{"raw":"AA=="}',
]  # fmt: skip


@pytest.mark.parametrize("note", NOTES)
def test_notes_that_were_changed_are_no_error(note: bytes) -> None:
    """I3."""
    for name in (AMQP_HEADER, NOTE_PROPERTY):
        headers = ((name, b"S", long_text(note)), ("a", b"S", long_text(b"b")))
        to_record(to_message(Record(b"x", props.write(Properties(headers=headers)))))
    message = section.encode_message(b"x", application_properties={NOTE_PROPERTY: note.decode(), "a": "b"})
    to_message(to_record(message))


@pytest.mark.parametrize("raw", [b"", b"\0", b"\xff\xff", b"\x20\0\0\0\0\x09a", b"\x80\0\x05a"])
def test_properties_that_cannot_be_read_are_kept_whole(raw: bytes) -> None:
    message = to_message(Record(b"body", raw, "e", "k"))
    assert to_record(message) == Record(b"body", raw, "e", "k")


@pytest.mark.parametrize("raw", [b"\xff\xfe no message", b"\0Ss\xc0\x01\x01", b"\0Sr\xc1"])
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(CodecError):
        to_record(raw)


def test_a_copy_with_provenance_keeps_what_it_holds() -> None:
    headers = (("n", b"I", struct.pack(">i", 5)),)
    record = Record(b"body", props.write(Properties(headers=headers, delivery_mode=2, message_id=b"m")), "e", "k")
    rewriter = MessageRewriter("lga/orders", "jfk", origin_namespace="", entity="orders")
    copies, refused = rewriter.copy_all(*joined([to_message(record, 5, 1)]), 1)
    assert not refused
    back = to_record(copies[0])
    found = props.read(back.properties)
    assert (back.body, back.exchange, back.routing_key, found.message_id) == (b"body", "e", "k", b"m")
    names = [name for name, _, _ in found.headers]
    assert names[0] == "n"
    assert "repl-origin" in names


def joined(payloads: list[bytes]) -> tuple[bytes, list[int]]:
    offsets = [0]
    for each in payloads:
        offsets.append(offsets[-1] + len(each))
    return b"".join(payloads), offsets


def test_tables_may_be_nested_as_deep_as_a_frame_holds() -> None:
    """I3: RabbitMQ takes such a message, and its reader carries other routes, too."""
    raw = b""
    for _ in range(3000):
        raw = b"A" + long_text(raw)
    properties = props.write(Properties(headers=(("deep", raw[:1], raw[1:]),), delivery_mode=2))
    record = Record(b"body", properties, "", "queue")
    back = to_record(to_message(record, 1, 2))
    assert (back.body, back.properties) == (record.body, record.properties)
