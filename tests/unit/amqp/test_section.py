"""Message sections are found in any order and read only where asked."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.amqp import codec, section
from isthmus.amqp.codec import CodecError
from isthmus.amqp.section import Header, encode_message, locate
from isthmus.amqp.types import Int, Symbol, Timestamp, UByte

FULL = encode_message(
    b"body",
    header=Header(durable=True, priority=9, ttl_ms=1000, delivery_count=2),
    annotations={"x-opt-partition-key": "k"},
    properties={"message_id": "m", "content_type": "text/plain", "creation_time": 5, "group_id": "g"},
    application_properties={"n": Int(3), "s": "x"},
)


def test_every_section_is_read_back() -> None:
    found = locate(FULL)
    assert section.decode_header(FULL, found.header) == Header(True, 9, 1000, False, 2)
    assert section.decode_map(FULL, found.message_annotations) == {Symbol("x-opt-partition-key"): "k"}
    properties = section.decode_properties(FULL, found.properties)
    assert properties == {"message_id": "m", "content_type": "text/plain", "creation_time": 5, "group_id": "g"}
    assert isinstance(properties["creation_time"], Timestamp)
    assert section.decode_map(FULL, found.application_properties) == {"n": 3, "s": "x"}
    assert FULL[slice(*found.body)] == b"\0Su\xa0\x04body"
    assert found.footer == (0, 0)


def test_i1_sections_in_any_order_are_found() -> None:
    delivery = section.encode_map_section(section.DELIVERY_ANNOTATIONS, {"x": 1})
    late = FULL + delivery
    found = locate(late)
    assert late[slice(*found.delivery_annotations)] == delivery
    assert late[slice(*found.body)] == b"\0Su\xa0\x04body"


def test_i2_repeated_body_sections_are_one_range() -> None:
    data = b"\0Su\xa0\x01a\0Su\xa0\x01b"
    assert locate(data).body == (0, len(data))


def test_map_items_span_keys_and_values() -> None:
    found = locate(FULL).application_properties
    pairs = [(FULL[k:v], FULL[v:e]) for k, v, e in section.map_items(FULL, found)]
    assert pairs == [(b"\xa1\x01n", b"\x54\x03"), (b"\xa1\x01s", b"\xa1\x01x")]


@given(st.binary(max_size=100))
def test_i3_any_bytes_are_located_or_refused(raw: bytes) -> None:
    try:
        found = locate(raw)
    except CodecError:
        return
    assert all(end <= len(raw) for _, end in found)


@pytest.mark.parametrize("raw", [b"\0Sx", b"\0S\x79\x40", b"\x40", b"\0Ss\xc0\x05", b"\0Su\xa0\x05ab"])
def test_i3_broken_messages_are_refused(raw: bytes) -> None:
    with pytest.raises(CodecError):
        locate(raw)


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        ({"message_id": "m"}, b"\xa1\x01m"),
        ({"message_id": "m", "subject": "x" * 300}, b"\xa1\x01m"),
        ({"subject": "s"}, b""),
        ({}, b""),
    ],
)
def test_the_message_id_is_found_without_decoding(properties: dict[str, str], found: bytes) -> None:
    message = encode_message(b"body", properties=properties)
    at = section.message_id_at(message, locate(message).properties)
    assert bool(at) == bool(found)
    assert message[at:].startswith(found)


def test_an_empty_list_of_properties_has_no_message_id() -> None:
    message = b"\0SsE\0Su\xa0\x04body"
    assert section.message_id_at(message, locate(message).properties) == 0


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "message_id": st.text(max_size=300),
        "content_type": st.text("ab/", min_size=1, max_size=9).map(Symbol),
        "creation_time": st.integers(0, 2**40).map(Timestamp),
        "group_id": st.text(max_size=9),
    },
)


@given(FIELDS, FIELDS, st.sets(st.sampled_from(section.PROPERTY_NAMES)))
def test_some_properties_are_replaced_and_the_others_stay_as_they_were_encoded(
    before: dict[str, object], changes: dict[str, object], removed: set[str]
) -> None:
    message = section.encode_message(b"body", properties=before)
    wanted = {**changes, **dict.fromkeys(removed)}
    made = section.replace_properties(message, section.locate(message).properties, wanted)
    found = section.decode_properties(made, (0, len(made)))
    assert found == {name: value for name, value in {**before, **wanted}.items() if value is not None}
    assert made == section.encode_properties(found)
    assert {name: section.decode_property(made, (0, len(made)), name) for name in section.PROPERTY_NAMES} == {
        name: found.get(name) for name in section.PROPERTY_NAMES
    }


def test_properties_that_are_no_list_are_not_replaced() -> None:
    with pytest.raises(CodecError, match="no list"):
        section.replace_properties(b"\0Ss\x40", (0, 4), {"subject": "x"})


@pytest.mark.parametrize("properties", [b"\xc0\3\2\xa1\0", b"\xd0\0\0\0\6\0\0\0\2\xa1\0", b"\xc0\2\1\xa1"])
@pytest.mark.parametrize("body", [b"", b"\0Su\xa0\1b"])
def test_properties_with_fewer_fields_than_they_say_are_not_read_beyond_their_end_i3(
    properties: bytes, body: bytes
) -> None:
    message = b"\0Ss" + properties + body
    found = section.locate(message).properties
    for read in (
        lambda: section.decode_property(message, found, "user_id"),
        lambda: section.replace_properties(message, found, {"subject": "x"}),
    ):
        with pytest.raises(CodecError):
            read()


def test_one_value_of_a_map_is_read_beside_others_that_cannot_be() -> None:
    unreadable = b"\xa1\2\xff\xff"
    pairs = [b"\xa3\1a", unreadable, b"\xa1\1b", codec.encode(Int(7)), b"\xb3\0\0\0\1c", b"\x43", b"\x53\1", b"\x40"]
    made = b"\0Sr" + codec.encode_map(pairs)
    place = section.locate(made).message_annotations
    assert [section.map_value(made, place, name) for name in "bcd"] == [7, 0, None]
    assert section.map_value(b"", (0, 0), "b") is None
    with pytest.raises(CodecError):
        section.map_value(made, place, "a")
    with pytest.raises(CodecError):
        section.decode_map(made, place)


CUT_OFF = [b"\xc0\x00", b"\xc0\x01\x05", b"\xd0\0\0\0\4\0\0\0\5"]
READS = {
    "message_id_at": section.message_id_at,
    "decode_property": lambda message, place: section.decode_property(message, place, "to"),
    "decode_properties": section.decode_properties,
    "replace_properties": lambda message, place: section.replace_properties(message, place, {"to": "x"}),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("behind", [b"", b"\0St\xc1\x01\x00"])
@pytest.mark.parametrize("fields", CUT_OFF)
def test_i3_properties_that_count_more_than_they_hold_are_refused(
    fields: bytes, behind: bytes, read: Callable[[bytes, tuple[int, int]], object]
) -> None:
    message = b"\0Ss" + fields + behind
    with pytest.raises(CodecError):
        read(message, locate(message).properties)


@pytest.mark.parametrize("pairs", [b"\xc1\x00", b"\xc1\x01\x04", b"\xd1\0\0\0\0", b"\xd1\0\0\0\4\0\0\0\4"])
def test_i3_a_map_that_counts_more_than_it_holds_is_refused(pairs: bytes) -> None:
    message = b"\0St" + pairs
    place = locate(message).application_properties
    for read in (section.map_items, section.decode_map):
        with pytest.raises(CodecError):
            read(message, place)


@pytest.mark.parametrize(
    "fields",
    [
        [True, "high"],
        [True, Int(-4)],
        [True, Int(256)],
        [True, True],
        [True, UByte(4), "soon"],
        [True, UByte(4), Int(-5)],
        [True, UByte(4), 1 << 32],
        [1],
        [None, None, None, "yes"],
        [None, None, None, None, [1]],
    ],
)
def test_i3_a_header_whose_fields_have_the_wrong_types_is_refused(fields: list[object]) -> None:
    message = b"\0Sp" + codec.encode(fields)
    with pytest.raises(CodecError, match="header"):
        section.decode_header(message, locate(message).header)


def test_numbers_of_a_header_may_have_any_integer_type() -> None:
    message = b"\0Sp" + codec.encode([None, Int(3), 1000, None, Int(2)])
    assert section.decode_header(message, locate(message).header) == Header(False, 3, 1000, False, 2)
