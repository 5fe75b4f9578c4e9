"""Rows of the data source, as Arrow batches.

What it is: the two schemas, messages to batches, batches to messages. In raw mode a batch is built from joined bytes and
offsets, without a Python object per cell. In decoded mode every field of a message has its column, and application
properties keep their AMQP types (`isthmus.connectors.servicebus.message.property_struct`). What it is not: Spark; the schemas are given as Spark's DDL text beside Arrow's.

Invariants:
    I1. `decode` then `encode` gives a message with equal sections, types of application properties included.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from isthmus.amqp import codec, section, types
from isthmus.amqp.codec import CodecError
from isthmus.amqp.section import Header
from isthmus.connectors.servicebus.message.property_struct import describe, is_moment, milliseconds, property_of
from isthmus.connectors.servicebus.message.sequence import UNREADABLE

__all__ = [
    "DECODED_DDL",
    "DECODED_SCHEMA",
    "DECODED_TYPES",
    "RAW_DDL",
    "RAW_SCHEMA",
    "UNREADABLE_BODY",
    "decoded_batch",
    "encode",
    "raw_batch",
]

# The body's type in the row of an unreadable message.
UNREADABLE_BODY = "unreadable"
_BODY_TYPES = ("data", "value", "sequence", "none", UNREADABLE_BODY)

RAW_DDL = "message binary, lock_token binary, sequence_number long"
RAW_SCHEMA = pa.schema([("message", pa.binary()), ("lock_token", pa.binary()), ("sequence_number", pa.int64())])

# Columns of the decoded schema after the first three, by Spark's type. The names of system properties and the fields of
# `application_properties` are those of the rules' columns (`isthmus.replication.rule_cell`).
DECODED_TYPES: dict[str, str] = {
    "message_id": "string",
    "subject": "string",
    "content_type": "string",
    "correlation_id": "string",
    "session_id": "string",
    "reply_to": "string",
    "reply_to_session_id": "string",
    "to": "string",
    "partition_key": "string",
    "via_partition_key": "string",
    "body_type": "string",
    "enqueued_time": "timestamp",
    "enqueued_sequence_number": "long",
    "scheduled_enqueue_time": "timestamp",
    "locked_until": "timestamp",
    "time_to_live_ms": "long",
    "expires_at": "timestamp",
    "delivery_count": "int",
    "state": "int",
    "dead_letter_source": "string",
    "size_bytes": "long",
}
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_ARROW = {"string": pa.string(), "long": pa.int64(), "int": pa.int32(), "timestamp": _TIMESTAMP}
_PROPERTY = pa.struct(
    [
        ("boolean", pa.bool_()),
        ("long", pa.int64()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("datetime", _TIMESTAMP),
        ("timespan_microseconds", pa.int64()),
        ("uuid", pa.string()),
        ("binary", pa.binary()),
        ("type", pa.string()),
    ]
)
DECODED_DDL = (
    "body binary, lock_token binary, sequence_number long, "
    + ", ".join(f"{name} {kind}" for name, kind in DECODED_TYPES.items())
    + ", application_properties map<string, struct<boolean: boolean, long: bigint, double: double, string: string, "
    "datetime: timestamp, timespan_microseconds: bigint, uuid: string, binary: binary, type: string>>"
)
DECODED_SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        ("lock_token", pa.binary()),
        ("sequence_number", pa.int64()),
        *((name, _ARROW[kind]) for name, kind in DECODED_TYPES.items()),
        ("application_properties", pa.map_(pa.string(), _PROPERTY)),
    ]
)
_FIELDS = {
    "message_id": "message_id",
    "subject": "subject",
    "content_type": "content_type",
    "correlation_id": "correlation_id",
    "session_id": "group_id",
    "reply_to": "reply_to",
    "reply_to_session_id": "reply_to_group_id",
    "to": "to",
}


# ---- raw


# Up to this size plain Python is faster than numpy.
_FEW_VALUES = 32


def raw_batch(payloads: Sequence[bytes], tokens: Sequence[bytes], sequences: Sequence[int]) -> pa.RecordBatch:
    """Encoded messages as a batch of `RAW_SCHEMA`."""
    return pa.RecordBatch.from_arrays(
        [_binary(payloads), _binary(tokens), _longs(sequences)],
        schema=RAW_SCHEMA,
    )


def _binary(values: Sequence[bytes]) -> pa.Array:
    count = len(values)
    if count <= _FEW_VALUES:
        offsets_of_few = array("i", accumulate(map(len, values), initial=0))
        return pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets_of_few), pa.py_buffer(b"".join(values))]
        )
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, count), out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))])


def _longs(values: Sequence[int]) -> pa.Array:
    if len(values) <= _FEW_VALUES:
        return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(array("q", values))])
    numbers = (
        np.arange(values[0], values[0] + len(values), dtype=np.int64)
        if isinstance(values, range) and len(values)
        else np.asarray(values, np.int64)
    )
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(numbers)])


# ---- decoded


def decoded_batch(
    payloads: Sequence[bytes], tokens: Sequence[bytes | None], sequences: Sequence[int]
) -> pa.RecordBatch:
    """Encoded messages as a batch of `DECODED_SCHEMA`; an unreadable one is included as its whole body."""
    columns: dict[str, list[Any]] = {name: [] for name in DECODED_SCHEMA.names}
    for payload, token, sequence in zip(payloads, tokens, sequences, strict=True):
        try:
            row = decode(payload)
        except UNREADABLE:
            row = _unreadable(payload, sequence)
        for name, value in row.items():
            columns[name].append(value)
        columns["lock_token"].append(token)
    return pa.RecordBatch.from_arrays(
        [_array(columns[field.name], field.type) for field in DECODED_SCHEMA], schema=DECODED_SCHEMA
    )


def _unreadable(payload: bytes, sequence: int) -> dict[str, Any]:
    """A row from which `encode` makes the same bytes: a query that failed for it would never get past it."""
    values = {"body": payload, "sequence_number": sequence, "body_type": UNREADABLE_BODY, "size_bytes": len(payload)}
    return {name: values.get(name) for name in DECODED_SCHEMA.names if name != "lock_token"}


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if kind == _TIMESTAMP:
        return pa.array([value * 1000 if is_moment(value) else None for value in values], pa.int64()).cast(_TIMESTAMP)
    return pa.array(values, kind)


def decode(message: bytes) -> dict[str, Any]:
    """The columns of one message without its lock token; times are milliseconds since the epoch.

    Raises:
        CodecError: the bytes are not a message.
    """
    sections = section.locate(message)
    header = section.decode_header(message, sections.header)
    numbers: tuple[object, object] = (header.ttl_ms or 0, header.delivery_count)
    if not all(isinstance(each, int) for each in numbers):  # their types are the sender's choice
        raise CodecError("the header's fields have the wrong types")
    properties = section.decode_properties(message, sections.properties)
    annotations = {str(k): v for k, v in section.decode_map(message, sections.message_annotations).items()}
    body, body_type = _decode_body(message, sections.body)
    ttl_ms, enqueued = header.ttl_ms, _integer(annotations.get("x-opt-enqueued-time"))
    row: dict[str, Any] = {
        "body": body,
        "sequence_number": _integer(annotations.get("x-opt-sequence-number")),
        "partition_key": _text(annotations.get("x-opt-partition-key")),
        "via_partition_key": _text(annotations.get("x-opt-via-partition-key")),
        "body_type": body_type,
        "enqueued_time": enqueued,
        "enqueued_sequence_number": _integer(annotations.get("x-opt-enqueue-sequence-number")),
        "scheduled_enqueue_time": _integer(annotations.get("x-opt-scheduled-enqueue-time")),
        "locked_until": _integer(annotations.get("x-opt-locked-until")),
        "time_to_live_ms": ttl_ms,
        "expires_at": enqueued + ttl_ms if enqueued is not None and ttl_ms and ttl_ms < 0xFFFFFFFF else None,
        "delivery_count": min(header.delivery_count, 0x7FFFFFFF),
        "state": _integer(annotations.get("x-opt-message-state")) or 0,
        "dead_letter_source": _text(annotations.get("x-opt-deadletter-source")),
        "size_bytes": len(message),
        "application_properties": [
            (str(key), describe(value))
            for key, value in section.decode_map(message, sections.application_properties).items()
        ],
    }
    for column, field in _FIELDS.items():
        row[column] = _text(properties.get(field))
    return row


def _decode_body(message: bytes, span: tuple[int, int]) -> tuple[bytes | None, str]:
    """The joined bytes of data sections; of other bodies the encoded sections, which `encode` restores unchanged."""
    at, end = span
    if not end:
        return None, "none"
    if message[at + 2] != section.DATA:
        return message[at:end], "value" if message[at + 2] == section.VALUE else "sequence"
    parts: list[bytes] = []
    while at < end:
        value, at = codec.decode(message, at + 3)
        if not isinstance(value, bytes):
            raise CodecError(f"a data section contains {type(value).__name__}, not binary")
        parts.append(value)
    return b"".join(parts), "data"


def _text(value: Any) -> str | None:
    return None if value is None else value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _integer(value: Any) -> int | None:
    """An annotation of the broker, if it has the broker's type."""
    return value if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else None


def encode(row: dict[str, Any], *, with_position: bool = False) -> bytes:
    """An encoded message from columns of the decoded schema; columns that are absent or null are left out.

    Args:
        row: the columns.
        with_position: also write the broker's annotations of position and enqueued time, for the rewriter.

    Raises:
        ValueError: a property's type or text is invalid.
    """
    if row.get("body_type") == UNREADABLE_BODY:
        return bytes(row.get("body") or b"")
    ttl_ms = row.get("time_to_live_ms")
    header = Header(durable=True, ttl_ms=int(ttl_ms)) if ttl_ms is not None else None
    annotations: dict[Any, Any] = {}
    if row.get("partition_key") is not None:
        annotations["x-opt-partition-key"] = row["partition_key"]
    if row.get("scheduled_enqueue_time") is not None:
        annotations["x-opt-scheduled-enqueue-time"] = types.Timestamp(milliseconds(row["scheduled_enqueue_time"]))
    if with_position:
        annotations |= _position_annotations(row)
    fields = {field: row[column] for column, field in _FIELDS.items() if row.get(column) is not None}
    own = row.get("application_properties") or ()
    application = {key: property_of(value) for key, value in (own.items() if isinstance(own, dict) else own)}
    body, body_type = row.get("body"), row.get("body_type") or "data"
    if body_type not in _BODY_TYPES:
        raise ValueError(f"column 'body_type' contains {body_type!r}; write {', '.join(_BODY_TYPES)} or null")
    if isinstance(body, str):
        body = body.encode()
    if body_type in ("value", "sequence") and body:
        head = section.encode_message(
            b"", header=header, annotations=annotations, properties=fields, application_properties=application
        )
        return head[: section.locate(head).body[0]] + bytes(body)
    return section.encode_message(
        bytes(body or b""),
        header=header,
        annotations=annotations,
        properties=fields,
        application_properties=application,
    )


def _position_annotations(row: dict[str, Any]) -> dict[Any, Any]:
    numbers = {
        "x-opt-sequence-number": row.get("sequence_number"),
        "x-opt-enqueue-sequence-number": row.get("enqueued_sequence_number"),
    }
    found: dict[Any, Any] = {types.Symbol(name): types.Long(number) for name, number in numbers.items() if number}
    if row.get("enqueued_time") is not None:
        found[types.Symbol("x-opt-enqueued-time")] = types.Timestamp(milliseconds(row["enqueued_time"]))
    return found
