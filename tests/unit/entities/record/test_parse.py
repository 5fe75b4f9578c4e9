"""Senders' messages: unchanged, normalised and refused parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.amqp import codec, section
from isthmus.amqp.types import Decimal128, Int, Symbol, Timestamp, UByte, UInt, ULong
from isthmus.entities import Copy, InvalidMessageError
from isthmus.entities.error import BatchTooLongError
from isthmus.entities.record import envelope
from isthmus.entities.record.parse import HeadCache, split, split_many, split_packed
from isthmus.entities.record.record import Parts, build, build_many, expires_at_ms, locked_payloads, plain_payload
from isthmus.entities.storage.key import MESSAGE, message_key

NOW = 1_767_225_600_000


def stored(message: bytes, default_ttl_ms: int = 0) -> bytes:
    return build(split(message, HeadCache(default_ttl_ms)), 7, NOW, 0)


FULL = b"".join(
    (
        section.encode_header(section.Header(durable=False, priority=9, ttl_ms=60_000)),
        section.encode_map_section(0x71, {"x-trace": "abc"}),
        section.encode_map_section(0x72, {"x-opt-partition-key": "p", "x-other": Decimal128(bytes(16))}),
        section.encode_properties({"message_id": "m", "group_id": "g", "user_id": b"u", "creation_time": 5}),
        section.encode_map_section(0x74, {"n": 1, "t": Timestamp(3), "f": 2.5, "b": True, "none": None}),
        b"\0Su" + codec.encode(b"one"),
        b"\0Su" + codec.encode(b"two" * 1000),
        section.encode_map_section(0x78, {"foot": "note"}),
    )
)


def test_everything_of_the_sender_is_kept(read: type[Any]) -> None:
    """I1."""
    tag = bytes(range(8)) + (7).to_bytes(8, "big")
    pairs = [(message_key(MESSAGE, 1, 7), stored(FULL))]
    seen = read(locked_payloads(pairs, (NOW + 5).to_bytes(8, "big"), tag[:8])[0])
    assert seen.header == section.Header(durable=False, priority=9, ttl_ms=60_000)
    assert seen.delivery_annotations == {"x-trace": "abc", "x-opt-lock-token": UUID(bytes_le=tag)}
    assert seen.annotations == {
        "x-opt-locked-until": NOW + 5,
        "x-opt-sequence-number": 7,
        "x-opt-enqueued-time": NOW,
        "x-opt-partition-key": "p",
        "x-other": Decimal128(bytes(16)),
    }
    found = section.locate(FULL)
    assert stored(FULL).endswith(FULL[found.properties[0] :])


@pytest.mark.parametrize(
    "message",
    [
        b"\0Su" + codec.encode(b"x"),
        b"\0Sw" + codec.encode({"a": [1, 2, {"b": None}]}),
        b"\0Sv" + codec.encode([1]) + b"\0Sv" + codec.encode([2]),
        b"\0Sw" + codec.encode("x" * 70_000),
        b"\0Sp\x45\0Su" + codec.encode(b"x"),
        b"\0Ss\x45\0Su" + codec.encode(b"x"),
        b"\0St\xc1\x01\x00\0Su" + codec.encode(b"x"),
        section.encode_properties({"subject": "no id"}) + b"\0Su" + codec.encode(b""),
        section.encode_properties({"message_id": "i" * 300}) + b"\0Su" + codec.encode(b""),
        section.encode_properties({"message_id": UInt(5)}),
    ],
)
def test_all_shapes_of_messages_come_through(message: bytes) -> None:
    record = stored(message)
    start = section.locate(message).header[1]
    assert record.endswith(message[start:])
    section.locate(plain_payload(record))


def test_sections_leave_in_order(read: type[Any]) -> None:
    """I2: one SDK writes delivery annotations late; another client's parser loses sections out of order."""
    body = b"\0Su" + codec.encode(b"x")
    parts = [
        section.encode_properties({"message_id": "m"}),
        section.encode_map_section(0x72, {"x-a": 1}),
        body,
        section.encode_map_section(0x71, {"x-d": 2}),
        section.encode_header(section.Header(ttl_ms=9)),
        section.encode_map_section(0x74, {"u": 3}),
    ]
    payload = plain_payload(stored(b"".join(parts)))
    found = section.locate(payload)
    starts = [start for start, end in found if end]
    assert starts == sorted(starts)
    seen = read(payload)
    assert (seen.header.ttl_ms, seen.delivery_annotations, seen.user) == (9, {"x-d": 2}, {"u": 3})
    assert seen.annotations["x-a"] == 1


def test_annotations_that_only_the_broker_may_set_are_dropped(read: type[Any]) -> None:
    sent = {
        "x-opt-sequence-number": 99,
        "x-opt-enqueued-time": Timestamp(1),
        "x-opt-locked-until": Timestamp(1),
        "x-opt-enqueue-sequence-number": 98,
        "x-opt-message-state": 1,
        "x-kept": "k",
    }
    seen = read(plain_payload(stored(section.encode_message(b"", annotations=sent))))
    assert seen.annotations == {"x-opt-sequence-number": 7, "x-opt-enqueued-time": NOW, "x-kept": "k"}


@pytest.mark.parametrize("wide", [False, True])
def test_wide_and_string_keys_of_annotations(wide: bool, read: type[Any]) -> None:
    key = b"\xb3\0\0\0\x03x-a" if wide else codec.encode("x-a")
    pairs = key + codec.encode(1) + codec.encode(Symbol("x-b")) + codec.encode("v" * (300 if wide else 3))
    annotations = b"\0Sr\xd1" + (len(pairs) + 4).to_bytes(4, "big") + (4).to_bytes(4, "big") + pairs
    seen = read(plain_payload(stored(annotations + b"\0Su" + codec.encode(b"x"))))
    assert seen.annotations["x-a"] == 1
    assert seen.annotations["x-b"].startswith("vvv")


@pytest.mark.parametrize(
    ("sent", "default", "named", "effective"),
    [
        (None, 0, None, 0),
        (5_000, 0, 5_000, 5_000),
        (5_000, 9_000, 5_000, 5_000),
        (9_000, 5_000, 5_000, 5_000),
        (None, 5_000, 5_000, 5_000),
        (0, 0, 0, 1),
        (None, 1 << 33, None, 1 << 33),
    ],
)
def test_time_to_live_is_the_lesser(
    sent: int | None, default: int, named: int | None, effective: int, read: type[Any]
) -> None:
    header = section.Header(ttl_ms=sent) if sent is not None else None
    parts = split(section.encode_message(b"", header=header), HeadCache(default))
    assert parts.head.ttl_ms == effective
    assert read(plain_payload(build(parts, 1, 1, 0))).header.ttl_ms == named


def test_a_schedule_is_read(message: Callable[..., bytes]) -> None:
    scheduled = message("m", annotations={"x-opt-scheduled-enqueue-time": Timestamp(NOW)})
    heads = HeadCache(0)
    assert split(scheduled, heads).head.due_ms == NOW
    assert not heads.known, "a head with a time in it does not come again"
    with pytest.raises(InvalidMessageError):
        split(message("m", annotations={"x-opt-scheduled-enqueue-time": "soon"}), heads)
    assert split(message("m", annotations={"x-opt-scheduled-enqueue-time": None}), heads).head.due_ms == 0


def test_the_cache_of_heads_is_bounded() -> None:
    heads = HeadCache(0)
    for number in range(2500):
        split(section.encode_message(b"", annotations={"x-opt-partition-key": f"p{number}"}), heads)
    assert len(heads.known) <= 1000


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00",
        b"garbage",
        b"",
        b"\0Su\xa0\x05abc",
        b"\0Sp\xc0\xff\x05",
        b"\0Sr\xc1\xff\x02\0Su\xa0\x00",
        b"\0Sy\x40",
        b"\x00\x80\0\0\0\0\0\0\0\x75\xa0\x00",
        b"\0Sp\xc0\x05\x02\x41\xa1\x01x\0Su\xa0\x00",
        b"\0Su\xa0\x00tail",
        b"\0Sr\xc1\x05\x02\x54\x01\x54\x02\0Su\xa0\x00",
    ],
)
def test_garbage_is_refused(garbage: bytes) -> None:
    """I3."""
    with pytest.raises(InvalidMessageError):
        split(garbage, HeadCache(0))


@given(st.lists(st.tuples(st.integers(0, len(FULL) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(FULL)))
def test_mutated_messages_are_taken_whole_or_refused(changes: list[tuple[int, int]], cut: int) -> None:
    """I3: nothing but InvalidMessageError, and what is taken can be stored and located again."""
    mutated = bytearray(FULL)
    for place, value in changes:
        mutated[place] = value
    for message in (bytes(mutated), bytes(mutated[:cut])):
        try:
            parts = split(message, HeadCache(0))
        except InvalidMessageError:
            continue
        record = build(parts, 1, NOW, 0)
        section.locate(plain_payload(record))
        section.locate(locked_payloads([(bytes(13), record)], bytes(8), bytes(8))[0])


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([None, 5, 900]), st.booleans()), min_size=1, max_size=8))
def test_many_are_built_as_one_by_one(shapes: list[tuple[bool, int | None, bool]]) -> None:
    messages = [
        section.encode_message(
            b"body",
            header=section.Header(ttl_ms=ttl) if header else None,
            annotations={"x-a": "b"} if annotated else None,
        )
        for header, ttl, annotated in shapes
    ]
    heads = HeadCache(0)
    parts = [split(message, heads) for message in messages]
    for origins in (None, range(100, 100 + len(parts))):
        pairs, size, _ = build_many(parts, 10, NOW, b"queue", origins)
        assert size == sum(len(record) for _, record in pairs)
        for place, (key, record) in enumerate(pairs):
            head = parts[place].head
            expires = NOW + head.ttl_ms if head.ttl_ms else 0
            assert key == b"queue" + (10 + place).to_bytes(8, "big")
            assert record == build(parts[place], 10 + place, NOW, expires, origins[place] if origins else None)
            assert expires_at_ms(record) == expires


def test_an_envelope_is_unpacked(message: Callable[..., bytes]) -> None:
    messages = [message(f"m{number}") for number in range(3)] + [message("big" * 200)]
    packed = section.encode_properties({"message_id": "m0"}) + b"".join(b"\0Su" + codec.encode(one) for one in messages)
    unpacked = envelope.unpack(packed)
    assert list(unpacked) == messages
    assert (len(unpacked), unpacked[2], list(unpacked[1:3])) == (4, messages[2], messages[1:3])
    assert unpacked.sizes == list(map(len, messages))
    copies = envelope.unpack(packed, are_copies=True)
    assert {type(one) for one in (*copies, copies[0])} == {Copy}
    with pytest.raises(BatchTooLongError):
        envelope.unpack(packed, 3)


_BODIES = st.sampled_from([codec.encode(bytes(size)) for size in (0, 3, 200, 300)]).map(lambda one: b"\0Su" + one)
_SECTIONS = st.tuples(
    st.sampled_from(
        [b"", section.encode_header(section.Header(durable=True)), section.encode_header(section.Header(ttl_ms=9))]
    ),
    st.sampled_from([b"", section.encode_map_section(0x72, {"x-a": 1})]),
    st.sampled_from(
        [
            b"",
            b"\0Ss\x45",
            section.encode_properties({"message_id": "m", "to": "x" * 300}),
            section.encode_properties({"message_id": 7}),
            section.encode_properties({"subject": "s"}),
        ]
    )
    | st.text(max_size=4).map(lambda text: section.encode_properties({"message_id": text})),
    st.sampled_from(
        [b"", section.encode_map_section(0x74, {"a": 1}), section.encode_map_section(0x74, {"a": "x" * 300})]
    ),
    _BODIES | st.sampled_from([b"", b"\0Sw\x40"]),
    st.sampled_from([b"", section.encode_map_section(0x78, {"f": 1})]),
)
_MESSAGES = (
    _SECTIONS.map(b"".join)
    | st.tuples(_SECTIONS, st.randoms(use_true_random=False)).map(lambda pair: b"".join(pair[1].sample(pair[0], 6)))
    | st.tuples(_SECTIONS, st.integers(0, 60), st.integers(0, 255)).map(
        lambda three: (raw := b"".join(three[0]))[: three[1]] + bytes([three[2]]) + raw[three[1] + 1 :]
    )
)


@given(messages=st.lists(_MESSAGES, min_size=1, max_size=8).map(lambda some: some + some[:3]))
@settings(max_examples=400, deadline=None)
def test_messages_are_read_in_their_envelope_as_alone(messages: list[bytes]) -> None:
    def read(split: Callable[[], list[Parts]]) -> list[tuple[bytes, bytes]] | None:
        try:
            return [(build(parts, 1, NOW, 0), parts.message_id) for parts in split()]
        except InvalidMessageError:
            return None

    packed = envelope.unpack(b"".join(b"\0Su\xb0" + len(one).to_bytes(4, "big") + one for one in messages))
    alone, together = HeadCache(0), HeadCache(0)
    assert read(lambda: split_packed(packed.data, packed.bounds, together)) == read(lambda: split_many(messages, alone))


@pytest.mark.parametrize("garbage", [b"", b"\0S", b"xxxx", b"\0Su\xa0\x09abc", b"\0Ss\x45", b"\0Su\xb0\0\0"])
def test_a_broken_envelope_is_refused(garbage: bytes) -> None:
    with pytest.raises(InvalidMessageError):
        envelope.unpack(garbage)


def _headed(*fields: object) -> bytes:
    return b"\0Sp" + codec.encode([True, *fields]) + b"\0Su\xa0\x01x"


@pytest.mark.parametrize(
    "message",
    [
        _headed(Int(300)),
        _headed(Int(-1)),
        _headed(UByte(4), Int(-5)),
        _headed(UByte(4), ULong(2**64 - 1)),
        b"\0Ss\xa1\x01m\0Su\xa0\x01x",
        b"\0Ss\xc0\x03\x01\xa1\x01\0Su\xa0\x01x",
        b"\0Ss\xc0\x03\x01\xa1\x40",
        b"\0St\xa1\x01p\0Su\xa0\x01x",
        b"\0St\x45\0Su\xa0\x01x",
    ],
    ids=[
        "priority over a byte",
        "priority below 0",
        "time to live below 0",
        "time to live over 49 days",
        "properties that are no list",
        "a message id that runs into the body",
        "a message id that runs over the end",
        "application properties that are no map",
        "application properties that are a list",
    ],
)
def test_sections_that_nothing_can_be_done_with_later_are_refused_i3(message: bytes) -> None:
    """Whatever is taken can be dead-lettered, forwarded and looked at by rules."""
    with pytest.raises(InvalidMessageError):
        split(message, HeadCache(0))
