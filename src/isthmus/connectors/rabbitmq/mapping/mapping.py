"""Messages of AMQP 0-9-1 as encoded AMQP 1.0 messages, and back.

What it is: the mapping in both directions, pure; docs/how-to/use-rabbitmq.md describes it for users. What it is not: a client. This module has
the common parts, and `to_message`; `outward` has `to_record`. Specification: OASIS AMQP 1.0 part 3; AMQP 0-9-1, class `basic`.

| AMQP 0-9-1 | AMQP 1.0 |
| --- | --- |
| body | one data section |
| headers | application properties, by type; an array, a table and a decimal as text |
| delivery-mode, priority, expiration | header: durable, priority, ttl |
| message-id, correlation-id, reply-to, user-id | the properties of these names |
| content-type, content-encoding | the properties of these names |
| timestamp | creation-time |
| type | subject |
| exchange, routing key | the annotations `x-exchange` and `x-routing-key` |
| `x-delivery-count`, `x-acquired-count`, `x-stream-offset` | the broker's own: omitted |

Other fields of a RabbitMQ message are noted in the application property `isthmus-rabbitmq`, a JSON object; other parts of an AMQP 1.0
message in the header `isthmus-amqp`, and its fields without a counterpart become headers `amqp-group-id` and so on.

Invariants:
    I1. `to_record(to_message(record))` is the record, except for the broker's additions, and an empty table of headers.
    I2. `to_message(to_record(message))` is equivalent to the message, except for a broker's annotations, delivery annotations, the header's
        durable flag, a priority of 4 and the delivery count.
    I3. A note changed by another program is never an error.
    I4. No copy is refused for its user-id, or routed by its headers `CC` and `BCC`: these are carried separately.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from isthmus.amqp import codec, section
from isthmus.amqp.codec import CodecError
from isthmus.amqp.types import Symbol, Timestamp, UByte, UInt
from isthmus.connectors.rabbitmq.mapping.frequent import NUMBERS_BYTES, SEQUENCE, TIME, sections_of
from isthmus.connectors.rabbitmq.mapping.name import AMQP_HEADER, BROKER_HEADERS, EXCHANGE, NOTE_PROPERTY, ROUTING_KEY
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table
from isthmus.connectors.rabbitmq.protocol.property import Properties, Record
from isthmus.connectors.rabbitmq.protocol.table import Field, TableError

__all__ = [
    "NUMBERS",
    "SHORT_FIELDS",
    "UNREADABLE",
    "annotation_parts",
    "decoded_map",
    "is_body",
    "json_object",
    "shown_table",
    "to_message",
]

SHORT_FIELDS = {
    "message_id": "message_id",
    "correlation_id": "correlation_id",
    "reply_to": "reply_to",
    "type": "subject",
}
"""Short strings that are text in AMQP 1.0, and the properties made of them."""
PERSISTENT = 2
# The result for properties is cached for later messages with the same ones.
CACHED, CACHED_BYTES = 512, 2048
TTL_MAX_MS = (1 << 32) - 1
AMQP_PRIORITY = 4
"""The priority of a message without one (OASIS AMQP 1.0 part 3, 3.2.1)."""
UNREADABLE = (
    CodecError,
    TableError,
    IndexError,
    KeyError,
    ValueError,
    TypeError,
    struct.error,
    ArithmeticError,
    RecursionError,  # tables within tables
)

NUMBERS = struct.Struct(f">{len(SEQUENCE)}sq{len(TIME)}sq").pack
"""Encodes `SEQUENCE`, a position, `TIME` and milliseconds."""
_U32 = struct.Struct(">I").pack


def _symbol(name: str) -> bytes:
    return b"\xa3%c%b" % (len(name), name.encode())


class _Sections(NamedTuple):
    """The common parts of messages with the same properties.

    Attributes:
        header: the section, or empty.
        annotations: the sender's, as encoded pairs.
        keys: number of keys and values.
        others: properties and application properties.
        form: the form of the body in a message of AMQP 1.0, where it was not a data section.
        footer: the section, or empty.
    """

    header: bytes = b""
    annotations: bytes = b""
    keys: int = 0
    others: bytes = b""
    form: str = ""
    footer: bytes = b""


def to_message(record: Record, position: int = 0, arrived_ms: int = 0) -> bytes:
    """The message of a record at `position`, which arrived at `arrived_ms` of wall time."""
    body, properties, exchange, routing_key = record
    try:
        frequent = sections_of(properties)
    except (IndexError, struct.error):
        frequent = None  # it is cut off
    numbers = NUMBERS(SEQUENCE, position, TIME, arrived_ms)
    if frequent is not None:
        front, tail = annotation_parts(exchange, routing_key, b"", 0)
        return b"%b%b%b%b%b\0Su\xb0%b%b" % (frequent[0], front, numbers, tail, frequent[1], _U32(len(body)), body)
    made = _cached(properties) if len(properties) <= CACHED_BYTES else _sections(properties)
    front, tail = annotation_parts(exchange, routing_key, made.annotations, made.keys)
    stated = b"\0Su\xb0%b%b" % (_U32(len(body)), body) if not made.form else _body(body, made.form)
    return b"".join((made.header, front, numbers, tail, made.others, stated, made.footer))


@lru_cache(256)
def annotation_parts(exchange: str, routing_key: str, others: bytes, count: int) -> tuple[bytes, bytes]:
    """The section of annotations before and after position and time."""
    tail = b"".join(
        (_symbol(EXCHANGE), codec.encode(exchange), _symbol(ROUTING_KEY), codec.encode(routing_key), others)
    )
    size = 4 + NUMBERS_BYTES + len(tail)
    return b"\0Sr\xd1" + struct.pack(">II", size, 8 + count), tail


def _sections(raw: bytes) -> _Sections:
    try:
        return _sections_of(props.read(raw))
    except UNREADABLE:
        note = json.dumps({"raw": _text(raw)})
        return _Sections(others=section.encode_map_section(section.APPLICATION_PROPERTIES, {NOTE_PROPERTY: note}))


_cached = lru_cache(CACHED)(_sections)


def _sections_of(found: Properties) -> _Sections:
    amqp = _amqp_note(found.headers)
    note: dict[str, Any] = {}
    headers = [each for each in found.headers if each[0] not in BROKER_HEADERS]
    properties = _properties_of(headers, amqp, note)
    fields = _fields_of(found, note)
    fields |= {name: value for name, value in decoded_map(amqp.get("fields")).items() if name in section.PROPERTY_NAMES}
    header = _header(found, note)
    if note:
        properties[NOTE_PROPERTY] = json.dumps(note, separators=(",", ":"))
    parts = [_encoded_fields(fields)] if fields else []
    if properties:
        parts.append(section.encode_map_section(section.APPLICATION_PROPERTIES, properties))
    annotations = decoded_map(amqp.get("annotations"))
    pairs = b"".join(
        codec.encode(Symbol(name) if type(name) is str else name) + codec.encode(value)
        for name, value in annotations.items()
    )
    footer = decoded_map(amqp.get("footer"))
    form = amqp.get("body")
    return _Sections(
        header,
        pairs,
        2 * len(annotations),
        b"".join(parts),
        form if isinstance(form, str) else "",
        section.encode_map_section(section.FOOTER, footer) if footer else b"",
    )


def _amqp_note(headers: Sequence[Field]) -> dict[str, Any]:
    """The note of `to_record` about a message of AMQP 1.0."""
    noted = [raw[4:] for name, kind, raw in headers if name == AMQP_HEADER and kind == b"S"]
    return json_object(noted[0]) if len(noted) == 1 else {}


def _properties_of(headers: Sequence[Field], amqp: dict[str, Any], note: dict[str, Any]) -> dict[str, Any]:
    if amqp:
        shown, types = _strings(amqp.get("shown")), _object(amqp.get("types"))
        headers = [each for each in headers if each[0] != AMQP_HEADER and each[0] not in shown]
        properties = shown_table(headers, types) | decoded_map(amqp.get("hidden"))
        _note_inexact([each for each in headers if each[0] not in types], note)
        return properties
    properties = shown_table(headers, {})
    if (
        len(properties) < len(headers)
        or NOTE_PROPERTY in properties
        or any(not _is_text(name) for name, _, _ in headers)
    ):
        properties.pop(NOTE_PROPERTY, None)
        note["table"] = _text(table.encode(headers))
        return properties
    _note_inexact(headers, note)
    return properties


def _note_inexact(headers: Sequence[Field], note: dict[str, Any]) -> None:
    """Notes the fields that their values do not determine."""
    inexact = {name: _text(kind + raw) for name, kind, raw in headers if not table.is_exact(kind, raw)}
    if inexact:
        note["headers"] = inexact


def shown_table(headers: Sequence[Field], types: dict[str, Any]) -> dict[str, Any]:
    """Headers as application properties; of two with the same name the first."""
    found: dict[str, Any] = {}
    for name, kind, raw in headers:
        value = table.noted_value(kind, raw, str(types[name])) if name in types else table.value_of(kind, raw)
        found.setdefault(name if _is_text(name) else name.encode("utf-8", "replace").decode(), value)
    return found


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fields_of(found: Properties, note: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in ("content_type", "content_encoding"):
        text = getattr(found, name)
        if text is not None and text.isascii():
            fields[name] = Symbol(text.decode())
        elif text is not None:
            note[name] = _text(text)
    for name, field in SHORT_FIELDS.items():
        text = getattr(found, name)
        if text is not None:
            try:
                fields[field] = text.decode()
            except UnicodeDecodeError:
                note[name] = _text(text)
    if found.user_id is not None:
        fields["user_id"] = found.user_id
    if found.timestamp is not None:
        if found.timestamp * 1000 < 1 << 63:
            fields["creation_time"] = Timestamp(found.timestamp * 1000)
        else:
            note["timestamp"] = found.timestamp
    for name in ("app_id", "cluster_id"):
        if getattr(found, name) is not None:
            note[name] = _text(getattr(found, name))
    return fields


def _encoded_fields(fields: dict[str, Any]) -> bytes:
    try:
        return section.encode_properties(fields)
    except UNREADABLE:  # another program has changed a note to a value that its field cannot contain
        texts = {name: value for name, value in fields.items() if isinstance(value, str)}
        return section.encode_properties(texts)


def _header(found: Properties, note: dict[str, Any]) -> bytes:
    if found.delivery_mode != PERSISTENT:
        note["delivery_mode"] = found.delivery_mode
    ttl_ms = None
    if found.expiration is not None:
        text = found.expiration
        if text.isdigit() and int(text) <= TTL_MAX_MS:
            ttl_ms = int(text)
        if ttl_ms is None or str(ttl_ms).encode() != text:
            note["expiration"] = _text(text)
    if found.priority == AMQP_PRIORITY:
        note["priority"] = AMQP_PRIORITY
    count = next((table.value_of(kind, raw) for name, kind, raw in found.headers if name == "x-delivery-count"), 0)
    count = min(max(int(count), 0), TTL_MAX_MS) if isinstance(count, int) else 0
    fields = [
        b"\x41" if found.delivery_mode == PERSISTENT else b"\x42",
        b"\x40" if found.priority is None else codec.encode(UByte(found.priority)),
        b"\x40" if ttl_ms is None else codec.encode(UInt(ttl_ms)),
        b"\x42",
        codec.encode(UInt(count)),
    ]
    return b"\0Sp" + codec.encode_list(fields if count else _trimmed(fields[:3]))


def _trimmed(fields: list[bytes]) -> list[bytes]:
    while fields[-1] == b"\x40":
        fields.pop()
    return fields


def _body(body: bytes, form: str) -> bytes:
    if form == "null" and not body:
        return b"\0Sw\x40"
    if form == "none" and not body:
        return b""
    if form == "string":
        try:
            return b"\0Sw" + codec.encode(body.decode())
        except UnicodeDecodeError:
            pass
    if form == "sections" and is_body(body):
        return body
    return b"\0Su" + codec.encode(body)


def is_body(raw: bytes) -> bool:
    """Whether the bytes are the body sections of a message."""
    try:
        return section.locate(raw).body == (0, len(raw)) and len(raw) > 0
    except UNREADABLE:
        return False


# ---- notes


def json_object(text: bytes | str) -> dict[str, Any]:
    """The object in a note; empty where there is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return _object(found)


def decoded_map(text: Any) -> dict[Any, Any]:
    """Decodes a map from a note; empty where it is unreadable."""
    if not isinstance(text, str):
        return {}
    try:
        found, _ = codec.decode(base64.b64decode(text))
    except Exception:  # noqa: BLE001 - I3
        return {}
    return dict(found) if isinstance(found, dict) else {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _strings(value: Any) -> frozenset[str]:
    return frozenset(each for each in value if isinstance(each, str)) if isinstance(value, list) else frozenset()


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
