"""Encoded AMQP 1.0 messages as messages of AMQP 0-9-1: the reverse of `mapping`, whose docstring describes both.

What it is: `to_record`. What it is not: the choice of a message's destination (`target`).

Invariants:
    I1. The fast path and the general path make the same record.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from isthmus.amqp import codec, section
from isthmus.amqp.codec import CodecError
from isthmus.connectors.rabbitmq.mapping.frequent import to_frequent
from isthmus.connectors.rabbitmq.mapping.mapping import (
    AMQP_PRIORITY,
    PERSISTENT,
    SHORT_FIELDS,
    TTL_MAX_MS,
    UNREADABLE,
    json_object,
    shown_table,
)
from isthmus.connectors.rabbitmq.mapping.name import (
    AMQP_HEADER,
    EXCHANGE,
    NOTE_PROPERTY,
    ROUTING_HEADERS,
    ROUTING_KEY,
    SHOWN,
)
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table
from isthmus.connectors.rabbitmq.protocol.property import Properties, Record
from isthmus.connectors.rabbitmq.protocol.table import Field, TableError
from isthmus.message.name import BROKER_ANNOTATIONS

__all__ = ["to_record"]

_SHORT_BYTES = 255
_FIELD_OF = {field: name for name, field in SHORT_FIELDS.items()}


def to_record(message: bytes, user: str = "") -> Record:
    """The record of a message; `user`: the only user-id with which the connection may publish.

    Raises:
        CodecError: it is not a message, or cannot be one of AMQP 0-9-1.
    """
    try:
        return to_frequent(message) or _to_record(message, user.encode())
    except TableError as error:
        raise CodecError(str(error)) from None
    except CodecError:
        raise
    except Exception as error:  # noqa: BLE001 - any other fault of the bytes
        raise CodecError(f"the message cannot be read: {error}") from None


def _to_record(message: bytes, user: bytes) -> Record:
    found = section.locate(message)
    note: dict[str, Any] = {}
    properties = section.decode_map(message, found.application_properties)
    rabbit = json_object(properties.pop(NOTE_PROPERTY)) if type(properties.get(NOTE_PROPERTY)) is str else {}
    raw = _raw(rabbit.get("raw"))
    fields = section.decode_properties(message, found.properties)
    exchange, routing_key = _annotations(message, found.message_annotations, fields.get("subject"), note)
    body = _body(message, found.body, note)
    if raw is not None and not properties:
        return Record(body, raw, exchange, routing_key)
    values: dict[str, Any] = {}
    shown = _fields(fields, user, values, note)
    headers = _headers(properties, rabbit, shown, note)
    _header(message, found.header, rabbit, values)
    _noted(rabbit, values)
    if found.footer[1]:
        note["footer"] = _text(message[found.footer[0] + 3 : found.footer[1]])
    if note:
        headers.append((AMQP_HEADER, *table.field_of(json.dumps(note, separators=(",", ":")))))
    return Record(body, props.write(Properties(**values, headers=tuple(headers))), exchange, routing_key)


def _annotations(message: bytes, where: tuple[int, int], subject: Any, note: dict[str, Any]) -> tuple[str, str]:
    """Exchange and routing key of a message that was at RabbitMQ, else its subject; the sender's other annotations are noted."""
    kept = {name: value for name, value in section.decode_map(message, where).items() if name not in BROKER_ANNOTATIONS}
    exchange, routing_key = kept.pop(EXCHANGE, None), kept.pop(ROUTING_KEY, subject)
    if kept:
        note["annotations"] = _text(codec.encode(kept))
    return _short(exchange), _short(routing_key)


def _short(value: Any) -> str:
    return value if isinstance(value, str) and len(value.encode()) <= _SHORT_BYTES else ""


def _fields(fields: dict[str, Any], user: bytes, values: dict[str, Any], note: dict[str, Any]) -> list[Field]:
    """Puts the fields of AMQP 0-9-1 into `values`; returns headers for the others, which are noted exactly."""
    noted: dict[str, Any] = {}
    shown: list[Field] = []
    for name, value in fields.items():
        if name in ("content_type", "content_encoding") and len(value) <= _SHORT_BYTES and value.isascii():
            values[name] = value.encode()
        elif name == "user_id" and value == user:
            values[name] = value
        elif name == "creation_time" and value >= 0:
            values["timestamp"] = value // 1000
            if value % 1000:
                noted[name] = value
        elif name in _FIELD_OF:
            text = value if isinstance(value, str) else value.hex() if isinstance(value, bytes) else str(value)
            if len(text.encode()) <= _SHORT_BYTES:
                values[_FIELD_OF[name]] = text.encode()
            if type(value) is not str or _FIELD_OF[name] not in values:
                noted[name] = value
        else:
            noted[name] = value
            shown.append((SHOWN + name.replace("_", "-"), *table.field_of(_visible(value))))
    if noted:
        note["fields"] = _text(codec.encode(noted))
    return shown


def _visible(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return str(value) if isinstance(value, str) else value


def _headers(
    properties: dict[Any, Any], rabbit: dict[str, Any], shown: list[Field], note: dict[str, Any]
) -> list[Field]:
    whole = _raw(rabbit.get("table"))
    if whole is not None:
        try:
            headers, end = table.decode(whole)
            expected = shown_table(headers, {})
            expected.pop(NOTE_PROPERTY, None)
            if end == len(whole) and expected == properties and not shown:
                return headers
        except UNREADABLE:
            pass
    inexact = rabbit.get("headers")
    taken = {AMQP_HEADER, *ROUTING_HEADERS, *(name for name, _, _ in shown)}
    hidden: dict[Any, Any] = {}
    types: dict[str, str] = {}
    found: list[Field] = []
    for name, value in properties.items():
        kept = _kept(inexact.get(name), value) if isinstance(inexact, dict) and isinstance(name, str) else None
        if kept is not None and name not in taken:
            found.append((name, *kept))
        elif not isinstance(name, str) or name in taken or len(name.encode()) > _SHORT_BYTES:
            hidden[name] = value
        else:
            kind, raw, noted = table.typed_field(value)
            found.append((str(name), kind, raw))
            if noted:
                types[str(name)] = noted
    if hidden:
        note["hidden"] = _text(codec.encode(hidden))
    if types:
        note["types"] = types
    if shown:
        note["shown"] = [name for name, _, _ in shown]
    return found + shown


def _kept(text: Any, value: Any) -> tuple[bytes, bytes] | None:
    """The original field at RabbitMQ, where its property has not been changed since."""
    raw = _raw(text)
    if not raw:
        return None
    try:
        kind, rest = raw[:1], raw[1:]
        fields, _ = table.decode(table.encode([("a", kind, rest)]))
        is_same = len(fields) == 1 and codec.encode(table.value_of(kind, rest)) == codec.encode(value)
    except UNREADABLE:
        return None
    return (kind, rest) if is_same else None


def _header(message: bytes, where: tuple[int, int], rabbit: dict[str, Any], values: dict[str, Any]) -> None:
    mode = rabbit.get("delivery_mode", PERSISTENT)
    values["delivery_mode"] = mode if mode is None or (type(mode) is int and 0 <= mode < 256) else PERSISTENT
    header = section.decode_header(message, where)
    if header.priority != AMQP_PRIORITY:
        values["priority"] = min(max(int(header.priority), 0), 255)
    elif rabbit.get("priority") == AMQP_PRIORITY:
        values["priority"] = AMQP_PRIORITY
    text = _raw(rabbit.get("expiration"))
    if header.ttl_ms is not None:
        ttl_ms = min(int(header.ttl_ms), TTL_MAX_MS)
        values["expiration"] = text if text and text.isdigit() and int(text) == ttl_ms else str(ttl_ms).encode()


def _noted(rabbit: dict[str, Any], values: dict[str, Any]) -> None:
    """Restores the fields that AMQP 1.0 cannot contain."""
    for name in ("content_type", "content_encoding", *SHORT_FIELDS, "app_id", "cluster_id"):
        text = _raw(rabbit.get(name))
        if text is not None and len(text) <= _SHORT_BYTES:
            values.setdefault(name, text)
    timestamp = rabbit.get("timestamp")
    if type(timestamp) is int and 0 <= timestamp < 1 << 64:
        values.setdefault("timestamp", timestamp)


def _body(message: bytes, where: tuple[int, int], note: dict[str, Any]) -> bytes:
    start, end = where
    if start == end:
        note["body"] = "none"
        return b""
    kind = message[start + 2]
    if kind == section.DATA:
        value, after = codec.decode(message, start + 3)
        if after == end and isinstance(value, bytes):
            return value
    elif kind == section.VALUE:
        value, after = codec.decode(message, start + 3)
        if after == end and value is None:
            note["body"] = "null"
            return b""
        if after == end and type(value) is str:
            note["body"] = "string"
            return value.encode()
    note["body"] = "sections"
    return message[start:end]


def _raw(text: Any) -> bytes | None:
    if not isinstance(text, str):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
