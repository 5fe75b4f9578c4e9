"""The sections of an encoded message, located without being decoded (spec part 3, section 3.2).

What it is: `locate` finds where header, annotations, properties, application properties, body and footer lie;
the `decode_*` functions read one of them on demand; `encode_message` builds a message from parts. What it is not: a
message class for applications. A little over 400 lines: one walk over the sections, and what reads or writes each.

Invariants:
    I1. Sections in any order are found (one SDK writes delivery annotations late).
    I2. The body is never decoded, and never copied by `locate`.
    I3. Bytes that are not a message raise CodecError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from isthmus.amqp import codec
from isthmus.amqp.codec import WIDTH, CodecError, value_end
from isthmus.amqp.types import Symbol, Timestamp, UByte, UInt

__all__ = [
    "PROPERTY_NAMES",
    "Header",
    "Sections",
    "contents",
    "decode_header",
    "decode_map",
    "decode_properties",
    "decode_property",
    "encode_header",
    "encode_map_section",
    "encode_message",
    "encode_properties",
    "locate",
    "map_items",
    "map_value",
    "message_id_at",
    "message_id_text",
    "replace_properties",
]

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS = 0x70, 0x71, 0x72
PROPERTIES, APPLICATION_PROPERTIES = 0x73, 0x74
DATA, SEQUENCE, VALUE, FOOTER = 0x75, 0x76, 0x77, 0x78

PROPERTY_NAMES = (
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "absolute_expiry_time",
    "creation_time",
    "group_id",
    "group_sequence",
    "reply_to_group_id",
)

_NONE = (0, 0)
_BINARIES = (0xA0, 0xB0)
# Bytes before the text of a string or symbol, by its constructor.
_TEXT_HEADS = {0xA1: 2, 0xA3: 2, 0xB1: 5, 0xB3: 5}


class Sections(NamedTuple):
    """Byte ranges (start, end) of the sections, descriptor included; (0, 0) where a section is absent.

    `body` spans all body sections, which follow each other.
    """

    header: tuple[int, int] = _NONE
    delivery_annotations: tuple[int, int] = _NONE
    message_annotations: tuple[int, int] = _NONE
    properties: tuple[int, int] = _NONE
    application_properties: tuple[int, int] = _NONE
    body: tuple[int, int] = _NONE
    footer: tuple[int, int] = _NONE


def locate(message: bytes, start: int = 0, end: int | None = None) -> Sections:
    """Where the sections of the encoded message `message[start:end]` lie; offsets are into `message`.

    Raises:
        CodecError: the bytes are no message.
    """
    stop = len(message) if end is None else end
    at = start
    found = [_NONE] * 5
    body = footer = _NONE
    while at < stop:
        if stop - at < 4 or message[at] != 0 or message[at + 1] != 0x53:
            raise CodecError(f"no message section at byte {at - start}")
        code = message[at + 2]
        after = value_end(message, at + 3)
        if after > stop:
            raise CodecError(f"message section at byte {at - start} is cut off")
        if HEADER <= code <= APPLICATION_PROPERTIES:
            found[code - HEADER] = (at, after)
        elif DATA <= code <= VALUE:
            body = (body[0] if body[1] else at, after)
        elif code == FOOTER:
            footer = (at, after)
        else:
            raise CodecError(f"0x{code:02x} is no message section")
        at = after
    return Sections(found[0], found[1], found[2], found[3], found[4], body, footer)


class Header(NamedTuple):
    """Spec 3.2.1; `ttl_ms` is None where the sender set none."""

    durable: bool = False
    priority: int = 4
    ttl_ms: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0


def _value(message: bytes, section: tuple[int, int]) -> Any:
    return codec.decode(message, section[0] + 3)[0] if section[1] else None


# The greatest number that a field of the header takes; 0: it is a boolean.
_HEADER_LIMITS = (0, 0xFF, 0xFFFFFFFF, 0, 0xFFFFFFFF)


def decode_header(message: bytes, section: tuple[int, int]) -> Header:
    """The header's fields, with the specification's defaults.

    Raises:
        CodecError: the section cannot be read, or a field has the wrong type.
    """
    fields = _value(message, section) or []
    if not isinstance(fields, list):
        raise CodecError("the header is no list")
    set_fields = {}
    for name, limit, value in zip(Header._fields, _HEADER_LIMITS, fields, strict=False):
        if value is None:
            continue
        # A number may come in any integer type.
        if isinstance(value, bool) == bool(limit) or (limit and not (isinstance(value, int) and 0 <= value <= limit)):
            raise CodecError(f"the header's {name} is the {type(value).__name__} {value!r:.40}")
        set_fields[name] = value
    return Header(**set_fields)


def decode_properties(message: bytes, section: tuple[int, int]) -> dict[str, Any]:
    """The properties section as a dict of the fields that are set, named as in `PROPERTY_NAMES`."""
    fields = _value(message, section) or []
    if not isinstance(fields, list):
        raise CodecError("the properties are no list")
    return {name: value for name, value in zip(PROPERTY_NAMES, fields, strict=False) if value is not None}


def decode_property(message: bytes, section: tuple[int, int], name: str) -> Any:
    """One field of the properties section, named as in `PROPERTY_NAMES`; None where it is not set. No other field is decoded.

    Raises:
        CodecError: the section cannot be read.
    """
    index = PROPERTY_NAMES.index(name)
    places = _property_places(message, section, index + 1)
    return codec.decode(message, places[index])[0] if len(places) > index + 1 else None


def _property_places(message: bytes, section: tuple[int, int], count: int) -> list[int]:
    """Offsets at which the first fields of a properties section begin, and at which the last of them ends."""
    if not section[1]:
        return []
    at = section[0] + 3
    try:
        code = message[at]
        if code == 0xC0:
            count, at = min(count, message[at + 2]), at + 3
        elif code == 0xD0:
            count, at = min(count, int.from_bytes(message[at + 5 : at + 9], "big")), at + 9
        elif code == 0x45:
            count = 0
        else:
            raise CodecError("the properties are no list")
        places = [at]
        for _ in range(count):
            width = WIDTH[message[at]]
            at = at + 2 + message[at + 1] if width == 0 else at + 1 if width == 1 else value_end(message, at)
            places.append(at)
    except IndexError:
        raise CodecError("the properties are cut off") from None
    if at > section[1]:
        raise CodecError("the properties run over their size")
    return places


def message_id_at(message: bytes, section: tuple[int, int]) -> int:
    """Where the message-id begins in a properties section; 0 where there is none. No field is decoded.

    Raises:
        CodecError: the section is cut off.
    """
    if not section[1]:
        return 0
    at = section[0] + 3
    if message[at] == 0xC0:
        count, first = message[at + 2] if at + 2 < section[1] else 1, at + 3
    elif message[at] == 0xD0:
        count, first = int.from_bytes(message[at + 5 : at + 9], "big"), at + 9
    else:
        return 0
    if not count:
        return 0
    if first >= section[1]:
        raise CodecError("the properties are cut off")
    return first if message[first] != 0x40 else 0


def message_id_text(message: bytes, at: int) -> bytes | None:
    """A MessageId as clients show it, in UTF-8: text unchanged, numbers and UUIDs in their usual form, binary in hex.

    Args:
        message: the message.
        at: where the MessageId begins, from `message_id_at`; 0: there is none, and the result is None.
    """
    if not at:
        return None
    if message[at] == 0xA1:
        return message[at + 2 : at + 2 + message[at + 1]]
    value, _ = codec.decode(message, at)
    if isinstance(value, bytes):
        return value.hex().encode()
    return str(value).encode() if isinstance(value, str | int | UUID) else b""


def contents(message: bytes, start: int, end: int) -> bytes:
    """A message's contents: the bytes of a single data section, without its head; any other body, and a footer, as
    encoded.

    Args:
        message: the message.
        start: where the body begins, or would.
        end: where the message ends.
    """
    if (
        message[start : start + 3] == b"\0Su"
        and message[start + 3] in _BINARIES
        and value_end(message, start + 3) == end
    ):
        return message[start + (5 if message[start + 3] == 0xA0 else 8) : end]
    return message[start:end]


def decode_map(message: bytes, section: tuple[int, int]) -> dict[Any, Any]:
    """An annotations, application-properties or footer section as a dict; empty where absent."""
    pairs = _value(message, section)
    if pairs is None:
        return {}
    if not isinstance(pairs, dict):
        raise CodecError("the section is no map")
    return pairs


def map_items(message: bytes, section: tuple[int, int]) -> list[tuple[int, int, int]]:
    """(key start, value start, value end) of every pair of a map section, nothing decoded.

    Raises:
        CodecError: the section is no map.
    """
    if not section[1]:
        return []
    at, end = section[0] + 3, section[1]
    items = []
    try:
        code = message[at]
        if code == 0xC1:
            count, at = message[at + 2], at + 3
        elif code == 0xD1:
            count, at = int.from_bytes(message[at + 5 : at + 9], "big"), at + 9
        else:
            raise CodecError("the section is no map")
        for _ in range(count // 2):
            width = WIDTH[message[at]]
            value = at + 2 + message[at + 1] if width == 0 else value_end(message, at)
            width = WIDTH[message[value]]
            after = value + width if 0 < width < 254 else value_end(message, value)
            items.append((at, value, after))
            at = after
    except IndexError:
        raise CodecError("map section is cut off") from None
    if at > end:
        raise CodecError("map section runs over its size")
    return items


def map_value(message: bytes, section: tuple[int, int], name: str) -> Any:
    """The value of one key of a map section, without decoding any other: others may be unreadable. None where it is absent.

    Raises:
        CodecError: the section is no map, or this value cannot be read.
    """
    wanted = name.encode()
    for key, value, _ in map_items(message, section):
        head = _TEXT_HEADS.get(message[key], 0)
        if head and message[key + head : value] == wanted:
            return codec.decode(message, value)[0]
    return None


# ---- building


def encode_header(header: Header) -> bytes:
    """A header section."""
    ttl = b"\x40" if header.ttl_ms is None else codec.encode(UInt(min(header.ttl_ms, 0xFFFFFFFF)))
    return b"\0Sp" + codec.encode_list(
        [
            codec.encode(header.durable),
            codec.encode(UByte(header.priority)),
            ttl,
            codec.encode(header.first_acquirer),
            codec.encode(UInt(header.delivery_count)),
        ]
    )


_PROPERTY_TYPES: dict[str, type] = {
    "content_type": Symbol,
    "content_encoding": Symbol,
    "absolute_expiry_time": Timestamp,
    "creation_time": Timestamp,
    "group_sequence": UInt,
}


def encode_properties(values: Mapping[str, Any]) -> bytes:
    """A properties section from fields named as in `PROPERTY_NAMES`; trailing absent fields are left out."""
    fields = []
    for name in PROPERTY_NAMES:
        value = values.get(name)
        kind = _PROPERTY_TYPES.get(name)
        fields.append(b"\x40" if value is None else codec.encode(kind(value) if kind is not None else value))
    while fields and fields[-1] == b"\x40":
        fields.pop()
    return b"\0Ss" + codec.encode_list(fields)


def replace_properties(message: bytes, place: tuple[int, int], changes: Mapping[str, Any]) -> bytes:
    """The properties section with other values of some fields; the other fields as they were encoded.

    Args:
        message: the message.
        place: of the section; (0, 0) where there is none.
        changes: by the names in `PROPERTY_NAMES`; None takes a field out.

    Raises:
        CodecError: the section cannot be read.
    """
    places = _property_places(message, place, len(PROPERTY_NAMES))
    encoded = [message[start:end] for start, end in pairwise(places)]
    for name, value in changes.items():
        index = PROPERTY_NAMES.index(name)
        encoded += [b"\x40"] * (index + 1 - len(encoded))
        kind = _PROPERTY_TYPES.get(name)
        encoded[index] = b"\x40" if value is None else codec.encode(kind(value) if kind is not None else value)
    while encoded and encoded[-1] == b"\x40":
        encoded.pop()
    return b"\0Ss" + codec.encode_list(encoded)


def encode_map_section(code: int, values: Mapping[Any, Any]) -> bytes:
    """A map section; keys of annotations become symbols."""
    keys = Symbol if code in (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS) else None
    return bytes((0, 0x53, code)) + codec.encode(
        {keys(key) if keys is not None and isinstance(key, str) else key: value for key, value in values.items()}
    )


def encode_message(
    body: bytes | Sequence[bytes] | Any = b"",
    *,
    header: Header | None = None,
    annotations: Mapping[Any, Any] | None = None,
    properties: Mapping[str, Any] | None = None,
    application_properties: Mapping[str, Any] | None = None,
    value_body: bool = False,
) -> bytes:
    """An encoded message.

    Args:
        body: bytes for one data section, or with `value_body` any AMQP value for an amqp-value section.
        header: the header section; left out where None.
        annotations: message annotations, keys become symbols.
        properties: fields named as in `PROPERTY_NAMES`.
        application_properties: the sender's own properties.
        value_body: whether the body is an amqp-value section.
    """
    parts = []
    if header is not None:
        parts.append(encode_header(header))
    if annotations:
        parts.append(encode_map_section(MESSAGE_ANNOTATIONS, annotations))
    if properties:
        parts.append(encode_properties(properties))
    if application_properties:
        parts.append(encode_map_section(APPLICATION_PROPERTIES, application_properties))
    parts.append((b"\0Sw" if value_body else b"\0Su") + codec.encode(body))
    return b"".join(parts)
