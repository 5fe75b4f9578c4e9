"""Kafka records as encoded AMQP messages, and back.

What it is: the mapping in both directions, pure; docs/how-to/use-kafka.md describes it for users. What it is not: a client.
Specification: OASIS AMQP 1.0 part 3; Apache Kafka documentation, "Record".

| record | message |
| --- | --- |
| value | one data section |
| no value (tombstone) | amqp-value null |
| header | application property: string if it is UTF-8 text, else binary; null if it is null |
| key | `x-opt-partition-key` and group-id (SessionId); a key other than text of 1 to 128 characters is in the property
|     | `isthmus-kafka-key`, and its digest replaces it there |
| timestamp | creation-time |
| partition, offset | the annotations of a broker, and `x-opt-kafka-partition` |

The rest of a message is noted in the header `isthmus-amqp`, a JSON object; the fields of its properties section become
headers `amqp-subject` and so on. Headers that do not fit a map are listed in the property `isthmus-kafka-headers`.

Invariants:
    I1. `to_record(to_message(record))` is the record, except its offset.
    I2. `to_message(to_record(message))` is equivalent to the message, except for a broker's annotations, delivery annotations and the header's
        durable flag and delivery count.
    I3. A record without value is distinguished from one with an empty value.
    I4. A header changed by another program is never an error.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha1
from typing import Any

from isthmus.amqp import codec, section
from isthmus.amqp.codec import CodecError
from isthmus.amqp.types import Int, Timestamp, UByte, UInt
from isthmus.connectors.kafka.mapping import typed
from isthmus.connectors.kafka.mapping.frequent import from_frequent, to_frequent
from isthmus.connectors.kafka.mapping.record import (
    AMQP_HEADER,
    HEADERS_PROPERTY,
    KAFKA_PARTITION,
    KEY_CHARACTERS,
    KEY_PROPERTY,
    PARTITION_KEY,
    Header,
    Record,
)
from isthmus.message.name import BROKER_ANNOTATIONS

__all__ = ["AMQP_HEADER", "KAFKA_PARTITION", "Header", "Record", "to_message", "to_record"]

_PROPERTY = "amqp-"
_SHOWN = frozenset(section.PROPERTY_NAMES) - {"creation_time", "group_id"}
"""The fields of a message that have a header."""


def to_message(record: Record, position: int = 0) -> bytes:
    """The message of a record that is at `position`."""
    try:
        return to_frequent(record, position) or _to_message(record, position, *_split(record.headers))
    except Exception:  # noqa: BLE001 - I4: a note changed by another program fits no field; then its headers are plain
        return _to_message(record, position, {}, list(record.headers))


def to_record(message: bytes) -> Record:
    """The record of a message; `partition` is that of the Kafka source from which it was read.

    Raises:
        CodecError: it is not a message.
    """
    try:
        return from_frequent(message) or _to_record(message)
    except CodecError:
        raise
    except Exception as error:  # noqa: BLE001 - any other fault of the bytes
        raise CodecError(f"the message cannot be read: {error}") from None


# ---- record to message


def _to_message(record: Record, position: int, note: dict[str, Any], headers: list[Header]) -> bytes:
    partition_key, group_id, properties = _addressing(record.key)
    names = [name for name, _ in headers]
    if _needs_list(names):
        properties[HEADERS_PROPERTY] = codec.encode([part for each in headers for part in each])
    types = _object(note.get("types"))
    fields: dict[str, Any] = {}
    noted = _object(note.get("properties"))
    for name, raw in headers:
        field = name.removeprefix(_PROPERTY).replace("-", "_")
        if name.startswith(_PROPERTY) and name.removeprefix(_PROPERTY) in noted and field in _SHOWN:
            fields[field] = typed.read(raw, str(noted[name.removeprefix(_PROPERTY)]))
        elif name not in (KEY_PROPERTY, HEADERS_PROPERTY):
            properties.setdefault(name, typed.read(raw, str(types.get(name, ""))))
    if record.timestamp_ms is not None and note.get("creation-time", 0) is not None:
        fields["creation_time"] = Timestamp(record.timestamp_ms)
    if isinstance(note.get("creation-time"), int) and not isinstance(note["creation-time"], bool):
        fields["creation_time"] = Timestamp(note["creation-time"])
    if "key" in note and note["key"] == _key_text(record.key):  # the key is unchanged
        partition_key, group_id = note.get("partition-key"), note.get("group-id")
        properties.pop(KEY_PROPERTY, None)
    if "application-properties" in note:
        properties = _decoded(note["application-properties"], properties)
    if isinstance(group_id, str):
        fields["group_id"] = group_id
    annotations: dict[Any, Any] = _decoded(note.get("annotations"), {})
    annotations |= {"x-opt-sequence-number": position, "x-opt-enqueued-time": Timestamp(record.timestamp_ms or 0)}
    if record.partition is not None:
        annotations[KAFKA_PARTITION] = Int(record.partition)
    if isinstance(partition_key, str):
        annotations[PARTITION_KEY] = partition_key
    parts = [_header(note), section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations)]
    if fields:
        parts.append(_properties(fields))
    if properties:
        parts.append(section.encode_map_section(section.APPLICATION_PROPERTIES, properties))
    parts.append(_body(record.value, note.get("body")))
    parts.append(_footer(note.get("footer")))
    return b"".join(parts)


def _split(headers: Sequence[Header]) -> tuple[dict[str, Any], list[Header]]:
    """The note of a message, and the other headers."""
    noted = [raw for name, raw in headers if name == AMQP_HEADER]
    if len(noted) != 1:
        return {}, list(headers)
    try:
        note = json.loads(noted[0] or b"")
    except ValueError:
        return {}, list(headers)
    if not isinstance(note, dict):
        return {}, list(headers)
    return note, [each for each in headers if each[0] != AMQP_HEADER]


def _needs_list(names: Sequence[str]) -> bool:
    """Whether headers of these names do not fit a map."""
    return len(set(names)) < len(names) or KEY_PROPERTY in names or HEADERS_PROPERTY in names


def _addressing(key: bytes | None) -> tuple[str | None, str | None, dict[str, Any]]:
    """Partition key, SessionId, and the application property where these cannot contain the key."""
    if key is None:
        return None, None, {}
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if 0 < len(text) <= KEY_CHARACTERS:
        return text, text, {}
    text = f"kafka:{sha1(key, usedforsecurity=False).hexdigest()}"
    return text, text, {KEY_PROPERTY: key}


def _key_text(key: bytes | None) -> str | None:
    return None if key is None else base64.b64encode(key).decode()


def _header(note: dict[str, Any]) -> bytes:
    priority, ttl_ms = note.get("priority", 4), note.get("ttl")
    is_priority = isinstance(priority, int) and 0 <= priority < 256
    ttl = codec.encode(UInt(ttl_ms)) if isinstance(ttl_ms, int) and 0 <= ttl_ms < 1 << 32 else b""
    if (not is_priority or priority == 4) and not ttl:
        return b""
    fields = [b"\x41", codec.encode(UByte(priority if is_priority else 4))]
    return b"\0Sp" + codec.encode_list([*fields, *([ttl] if ttl else [])])


def _properties(fields: dict[str, Any]) -> bytes:
    try:
        return section.encode_properties(fields)
    except Exception:  # noqa: BLE001 - another program has changed a header to a value that its field cannot contain: then as text
        kept = {name: value for name, value in fields.items() if name in ("creation_time", "group_id")}
        texts = {name: value if isinstance(value, str) else str(value) for name, value in fields.items()}
        return section.encode_properties(
            {**{name: texts[name] for name in texts if name not in ("absolute_expiry_time", "group_sequence")}, **kept}
        )


def _body(value: bytes | None, form: Any) -> bytes:
    if value is None:
        return b"\0Sw\x40"
    if form == "none":
        return b"" if not value else b"\0Su" + codec.encode(value)
    if form == "string":
        try:
            return b"\0Sw" + codec.encode(value.decode())
        except UnicodeDecodeError:
            pass
    if form == "sections" and _is_body(value):
        return value
    return b"\0Su" + codec.encode(value)


def _is_body(raw: bytes) -> bool:
    try:
        found = section.locate(raw)
    except (CodecError, IndexError, struct.error):
        return False
    return found.body == (0, len(raw)) and len(raw) > 0


def _footer(text: Any) -> bytes:
    footer = _decoded(text, {})
    return section.encode_map_section(section.FOOTER, footer) if footer else b""


def _decoded(text: Any, default: dict[Any, Any]) -> dict[Any, Any]:
    """Decodes a map from the note."""
    if not isinstance(text, str):
        return default
    try:
        value = codec.decode(_bytes(text))[0]
    except Exception:  # noqa: BLE001 - I4
        return default
    return dict(value) if isinstance(value, dict) else default


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


# ---- message to record


def _to_record(message: bytes) -> Record:
    found = section.locate(message)
    annotations = {
        name: value
        for name, value in section.decode_map(message, found.message_annotations).items()
        if name not in BROKER_ANNOTATIONS
    }
    fields = section.decode_properties(message, found.properties)
    properties = section.decode_map(message, found.application_properties)
    partition = annotations.pop(KAFKA_PARTITION, None)
    note: dict[str, Any] = {}
    whole = base64.b64encode(message[found.application_properties[0] + 3 : found.application_properties[1]]).decode()
    key = _take_key(annotations, fields, properties, note, whole)
    has_list = HEADERS_PROPERTY in properties
    listed, shown = _listed(properties), _take_fields(fields, note)
    if has_list and not _needs_list([name for name, _ in listed]):
        note["application-properties"] = whole
    for name, _ in listed:
        properties.pop(name, None)
    timestamp_ms = _take_time(fields, note)
    headers = [*listed, *shown, *_headers(properties, note, {name for name, _ in shown}, whole)]
    header = section.decode_header(message, found.header)
    if header.priority != 4:
        note["priority"] = int(header.priority)
    if header.ttl_ms is not None:
        note["ttl"] = int(header.ttl_ms)
    if annotations:
        note["annotations"] = base64.b64encode(codec.encode(annotations)).decode()
    if found.footer[1]:
        note["footer"] = base64.b64encode(message[found.footer[0] + 3 : found.footer[1]]).decode()
    value = _value(message, found.body, note)
    if note:
        headers.append((AMQP_HEADER, _json(note)))
    return Record(value, key, headers, timestamp_ms, int(partition) if isinstance(partition, int) else None)


def _take_key(
    annotations: dict[Any, Any], fields: dict[str, Any], properties: dict[Any, Any], note: dict[str, Any], whole: str
) -> bytes | None:
    partition_key, group_id = annotations.get(PARTITION_KEY), fields.pop("group_id", None)
    group_id = group_id if isinstance(group_id, str) else None
    stated = properties.get(KEY_PROPERTY)
    if isinstance(partition_key, str):
        del annotations[PARTITION_KEY]
    else:
        partition_key = None
    if isinstance(stated, bytes):
        key: bytes | None = stated
    else:
        text = group_id if group_id is not None else partition_key
        key = text.encode() if text is not None else None
    expected = _addressing(key)
    if (partition_key, group_id) != expected[:2] or (KEY_PROPERTY in properties) != bool(expected[2]):
        note |= {"key": _key_text(key), "partition-key": partition_key, "group-id": group_id}
        if KEY_PROPERTY in properties:
            note["application-properties"] = whole
    properties.pop(KEY_PROPERTY, None)
    return key


def _listed(properties: dict[Any, Any]) -> list[Header]:
    """The headers that did not fit a map, as far as their properties still exist."""
    raw = properties.pop(HEADERS_PROPERTY, None)
    try:
        parts = codec.decode(raw)[0] if isinstance(raw, bytes) else []
        listed = list(zip(parts[::2], parts[1::2], strict=True))
    except (CodecError, IndexError, struct.error, TypeError, ValueError):
        return []
    if not all(isinstance(name, str) and isinstance(value, bytes | None) for name, value in listed):
        return []
    return [each for each in listed if each[0] in properties or each[0] in (KEY_PROPERTY, HEADERS_PROPERTY)]


def _take_fields(fields: dict[str, Any], note: dict[str, Any]) -> list[Header]:
    headers: list[Header] = []
    types: dict[str, str] = {}
    for name, value in fields.items():
        if name == "creation_time":
            continue
        shown = name.replace("_", "-")
        raw, kind = typed.write(value)
        headers.append((_PROPERTY + shown, raw))
        types[shown] = kind
    if types:
        note["properties"] = types
    return headers


def _take_time(fields: dict[str, Any], note: dict[str, Any]) -> int | None:
    created_ms = fields.get("creation_time")
    if isinstance(created_ms, int) and created_ms >= 0:
        return int(created_ms)
    note["creation-time"] = None if created_ms is None else int(created_ms)
    return None


def _headers(properties: dict[Any, Any], note: dict[str, Any], taken: set[str], whole: str) -> list[Header]:
    headers: list[Header] = []
    types: dict[str, str] = {}
    for name, value in properties.items():
        if name in taken or name == AMQP_HEADER:
            note["application-properties"] = whole
            continue
        raw, kind = typed.write(value)
        headers.append((str(name), raw))
        if kind:
            types[str(name)] = kind
    if types:
        note["types"] = types
    return headers


def _value(message: bytes, where: tuple[int, int], note: dict[str, Any]) -> bytes | None:
    start, end = where
    body = message[start:end]
    if not body:
        note["body"] = "none"
        return b""
    if body[2] == section.DATA:
        value, after = codec.decode(message, start + 3)
        if after == end and isinstance(value, bytes):
            return value
    elif body[2] == section.VALUE:
        value, after = codec.decode(message, start + 3)
        if after == end and value is None:
            return None
        if after == end and type(value) is str:
            note["body"] = "string"
            return value.encode()
    note["body"] = "sections"
    return body


def _json(note: dict[str, Any]) -> bytes:
    if note.keys() <= {"types", "creation-time"} and note.get("creation-time", "") in (None, ""):
        return _note_of_types(tuple(note.get("types", {}).items()), "creation-time" in note)
    return json.dumps(note, separators=(",", ":")).encode()


@lru_cache(1024)
def _note_of_types(types: tuple[tuple[str, str], ...], untimed: bool) -> bytes:
    note: dict[str, Any] = {"types": dict(types)} if types else {}
    if untimed:
        note["creation-time"] = None
    return json.dumps(note, separators=(",", ":")).encode()
