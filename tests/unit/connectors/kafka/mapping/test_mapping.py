"""isthmus.connectors.kafka.mapping.mapping: records and messages are equivalent, in both directions."""

from __future__ import annotations

from base64 import b64encode
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.amqp import codec, section, types
from isthmus.connectors.kafka.mapping import mapping
from isthmus.connectors.kafka.mapping.mapping import AMQP_HEADER, Record, to_message, to_record
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter
from isthmus.message.name import BROKER_ANNOTATIONS

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
NAMES = st.one_of(TEXTS, st.sampled_from(["isthmus-kafka-key", "isthmus-kafka-headers", "amqp-subject", "repl-origin"]))
KEYS = st.one_of(st.none(), st.binary(max_size=200), TEXTS.map(str.encode), st.just(b"k" * 129))
VALUES = st.one_of(st.none(), st.binary(max_size=300), st.just(b"x" * 300))
RECORDS = st.builds(
    Record,
    VALUES,
    KEYS,
    st.lists(st.tuples(NAMES, st.one_of(st.none(), st.binary(max_size=30), TEXTS.map(str.encode))), max_size=5),
    st.one_of(st.none(), st.integers(0, 1 << 45)),
    st.one_of(st.none(), st.integers(0, 1000)),
)


@given(RECORDS)
@settings(max_examples=200)
def test_record_survives_conversion_to_a_message(record: Record) -> None:
    """I1, I3."""
    position = (record.partition or 0) << 48 | 77
    message = to_message(record, position)
    section.locate(message)
    assert to_record(message) == record._replace(headers=to_record(message).headers)
    assert list(to_record(message).headers) == list(record.headers) + (
        [(AMQP_HEADER, b'{"creation-time":null}')] if record.timestamp_ms is None else []
    )


def numbers(kind: Any, low: int, high: int) -> st.SearchStrategy[Any]:
    return st.integers(low, high).map(kind)


SIMPLE = st.one_of(
    TEXTS,
    st.none(),
    st.booleans(),
    st.binary(max_size=20),
    TEXTS.map(str.encode),
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
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "message_id": st.one_of(TEXTS, st.uuids(), numbers(types.ULong, 0, 1 << 63), st.binary(max_size=9)),
        "user_id": st.binary(max_size=9),
        "to": TEXTS,
        "subject": TEXTS,
        "reply_to": TEXTS,
        "correlation_id": st.one_of(TEXTS, st.uuids()),
        "content_type": st.just("application/json"),
        "content_encoding": st.just("gzip"),
        "absolute_expiry_time": st.integers(0, 1 << 45),
        "creation_time": st.integers(-5, 1 << 45),
        "group_id": st.one_of(TEXTS, st.just("g" * 128)),
        "group_sequence": st.integers(0, 1 << 31),
        "reply_to_group_id": TEXTS,
    },
)
BODIES = st.one_of(
    st.binary(max_size=300).map(lambda body: b"\0Su" + codec.encode(body)),
    st.lists(st.binary(max_size=9), min_size=2, max_size=3).map(
        lambda parts: b"".join(b"\0Su" + codec.encode(p) for p in parts)
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
    properties = draw(PROPERTIES)
    own = draw(st.dictionaries(NAMES, SIMPLE, max_size=4))
    header = draw(
        st.one_of(
            st.none(),
            st.builds(
                section.Header,
                delivery_count=st.just(0),
                priority=st.integers(0, 9),
                ttl_ms=st.one_of(st.none(), st.integers(0, 1 << 31)),
            ),
        )
    )
    parts = [section.encode_header(header)] if header is not None else []
    if annotations:
        parts.append(section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations))
    if properties:
        parts.append(section.encode_properties(properties))
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
    properties = section.decode_properties(message, found.properties)
    own = section.decode_map(message, found.application_properties)
    return {
        "annotations": {
            k: v for k, v in annotations.items() if k not in BROKER_ANNOTATIONS and k != mapping.KAFKA_PARTITION
        },
        "header": (header.priority, header.ttl_ms),
        "properties": {name: (type(value), value) for name, value in properties.items()},
        "own": {name: (type(value), value) for name, value in own.items()},
        "body": _body(message[slice(*found.body)]),
        "footer": message[slice(*found.footer)],
    }


def _body(raw: bytes) -> Any:
    """Sizes may be written in another width."""
    parts = []
    at = 0
    while at < len(raw):
        value, after = codec.decode(raw, at + 3)
        parts.append((raw[at + 2], type(value), value))
        at = after
    return parts


@given(messages())
@settings(max_examples=300)
def test_message_survives_conversion_to_a_record(message: bytes) -> None:
    """I2."""
    record = to_record(message)._replace(partition=2)
    if record.timestamp_ms is None:
        record = record._replace(timestamp_ms=1234)  # the producer's time
    assert said(to_message(record, 2 << 48 | 5)) == said(message)


FREQUENT = st.builds(
    Record,
    st.binary(max_size=300),
    st.none() | st.text("key0", min_size=1, max_size=130).map(str.encode),
    st.lists(st.tuples(TEXTS, TEXTS.map(str.encode)), max_size=3, unique_by=lambda header: header[0]),
    st.integers(0, 1 << 45),
    st.integers(0, 1000),
)


@given(st.lists(FREQUENT, min_size=1, max_size=4))
@settings(max_examples=100)
def test_the_copy_of_a_record_survives_conversion_to_a_record(records: list[Record]) -> None:
    """I2, of the form that routes between clusters write."""
    rewriter = MessageRewriter("ewr/flights", "jfk", origin_namespace="one", target_namespace="two")
    for number, record in enumerate(records * 2, 1):
        copy = rewriter.copy(to_message(record, number), 0)
        assert isinstance(copy, bytes)
        made = to_record(copy)
        again = made if made.timestamp_ms is not None else made._replace(timestamp_ms=1234)
        assert said(to_message(again, 2 << 48 | 5)) == said(copy)
        assert made.value == record.value
        assert (made.key, made.partition) == (record.key, record.partition)


@given(st.lists(st.tuples(NAMES, st.one_of(st.none(), st.binary(max_size=30))), max_size=4), st.binary(max_size=60))
def test_notes_of_other_programs_are_no_error(headers: list[tuple[str, bytes | None]], note: bytes) -> None:
    """I4."""
    section.locate(to_message(Record(b"v", b"k", [*headers, (AMQP_HEADER, note)], 5, 0), 9))


@pytest.mark.parametrize(
    "note",
    [
        b'{"types":{"n":"int"},"properties":{"subject":"","group-sequence":"uint"},"ttl":-1,"priority":999}',
        b'{"body":"sections"}',
        b'{"annotations":"####","application-properties":7,"footer":"AA"}',
        b'{"types":7,"properties":[],"creation-time":"x"}',
        b"[]",
        b"\xff",
    ],
)
def test_changed_headers_are_read_as_what_they_are(note: bytes) -> None:
    """I4."""
    headers = [("n", b"no number"), ("amqp-subject", b"s"), ("amqp-group-sequence", b"x"), (AMQP_HEADER, note)]
    message = to_message(Record(b"v", b"k", headers, 5, 0), 9)
    own = section.decode_map(message, section.locate(message).application_properties)
    assert own["n"] == "no number"


@pytest.mark.parametrize(
    "note",
    [
        b'{"creation-time":1180591620717411303424}',
        b'{"key":null,"group-id":"\\ud800"}',
        b'{"key":null,"partition-key":"\\ud800"}',
        b'{"types":{"n":"char"}}',
        b'{"properties":{"creation-time":"x"}}',
        b'{"properties":{"subject":"","group-id":"uint"}}',
        b'{"annotations":"%s"}' % b64encode(codec.encode({"x": [1]})[:-1]),
        b"[" * 100_000,
        b'{"creation-time":' + b"9" * 5_000 + b"}",
    ],
)
def test_no_note_of_another_program_keeps_a_record_from_being_read(note: bytes) -> None:
    """I4: it would keep the source from every record behind it, for ever."""
    headers = [("n", b"no char"), ("amqp-creation-time", b"1e999"), ("amqp-group-id", b"\xff"), (AMQP_HEADER, note)]
    message = to_message(Record(b"v", None, headers, 5, 0), 9)
    own = section.decode_map(message, section.locate(message).application_properties)
    assert own["n"] == "no char"
    to_record(message)


def test_text_of_a_record_is_readable_at_the_other_side() -> None:
    message = to_message(Record(b"v", b"key", [("colour", b"red"), ("raw", b"\xff")], 1000, 3), 3 << 48)
    found = section.locate(message)
    assert section.decode_map(message, found.application_properties) == {"colour": "red", "raw": b"\xff"}
    assert section.decode_properties(message, found.properties) == {"creation_time": 1000, "group_id": "key"}
    annotations = section.decode_map(message, found.message_annotations)
    assert annotations["x-opt-partition-key"] == "key"
    assert annotations["x-opt-sequence-number"] == 3 << 48


def test_properties_of_a_message_are_headers() -> None:
    message = section.encode_message(
        b"v",
        properties={"subject": "s", "message_id": "m", "group_id": "session"},
        application_properties={"n": types.Int(7), "id": UUID(int=5)},
    )
    record = to_record(message)
    headers = dict(record.headers)
    assert record.key == b"session"
    assert headers["amqp-subject"] == b"s"
    assert headers["amqp-message-id"] == b"m"
    assert headers["n"] == b"7"
    assert headers["id"] == str(UUID(int=5)).encode()


def test_a_session_that_is_no_text_is_none() -> None:
    record = to_record(section.encode_message(b"v", properties={"group_id": b"\xff", "subject": "s"}))
    assert (record.key, record.value) == (None, b"v")


def test_a_message_that_cannot_be_read_is_a_codec_error() -> None:
    for bad in (b"x", b"\0Su", b"\0Sr\xc1\xff\xff", b"\0Ss\x45\0St\x45"):
        with pytest.raises(codec.CodecError):
            to_record(bad)
