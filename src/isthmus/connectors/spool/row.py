"""The rows of a spool: encoded messages, and the columns of an archive.

What it is: the two schemas, as Spark's DDL and Arrow's, records to batches, and a row of an archive back to its message. An archive
has every field that Service Bus gives a message in a column, the application properties with their types, the body, and the rest of the
message, encoded, in `envelope`: no part of a message is lost. docs/reference/archive-table.md. What it is not: a table (`isthmus.replication`).

Invariants:
    I1. `restore` of a row gives a message whose sections equal the received ones; data sections of one body may be joined.
    I2. An unreadable message has a row: its bytes are the body, and its `body_type` is `unreadable`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import pyarrow as pa

from isthmus.amqp import codec, section
from isthmus.connectors.servicebus.spark.row import DECODED_DDL, DECODED_SCHEMA, UNREADABLE_BODY, decoded_batch
from isthmus.connectors.spool.block import Record

__all__ = ["ARCHIVE_DDL", "ARCHIVE_SCHEMA", "MESSAGE_DDL", "MESSAGE_SCHEMA", "PARTITIONS", "batch_of", "restore"]

PARTITIONS = ("date", "hour")
"""The partition column of an archive's files: from the enqueued time, UTC."""

MESSAGE_DDL = "spool_number long, source string, sequence_number long, sequence_epoch int, message binary"
MESSAGE_SCHEMA = pa.schema(
    [
        ("spool_number", pa.int64()),
        ("source", pa.string()),
        ("sequence_number", pa.int64()),
        ("sequence_epoch", pa.int32()),
        ("message", pa.binary()),
    ]
)

# Fields of a delivery, which a message lacks.
_LEFT_OUT = ("lock_token", "locked_until", "state", "sequence_number")
_DECODED = [each for each in DECODED_SCHEMA if each.name not in _LEFT_OUT]
_ADDED: dict[str, tuple[str, pa.DataType]] = {
    "spool": ("string", pa.string()),
    "spool_number": ("long", pa.int64()),
    "source": ("string", pa.string()),
    "source_namespace": ("string", pa.string()),
    "sequence_number": ("long", pa.int64()),
    "sequence_epoch": ("int", pa.int32()),
    "received_time": ("timestamp", pa.timestamp("us", tz="UTC")),
    "digest": ("string", pa.string()),
    "envelope": ("binary", pa.binary()),
}
_LAID_OUT: dict[str, tuple[str, pa.DataType]] = {"date": ("string", pa.string()), "hour": ("int", pa.int32())}


def _ddl_of(name: str) -> str:
    at = DECODED_DDL.index(f"{name} ")
    if name == "application_properties":
        return DECODED_DDL[at:]
    return DECODED_DDL[at : DECODED_DDL.index(",", at)]


ARCHIVE_DDL = ", ".join(
    [
        *(f"{name} {kind}" for name, (kind, _) in _ADDED.items()),
        *(_ddl_of(each.name) for each in _DECODED),
        *(f"{name} {kind}" for name, (kind, _) in _LAID_OUT.items()),
    ]
)
ARCHIVE_SCHEMA = pa.schema(
    [
        *((name, kind) for name, (_, kind) in _ADDED.items()),
        *_DECODED,
        *((name, kind) for name, (_, kind) in _LAID_OUT.items()),
    ]
)


def batch_of(rows: str, spool: str, first: int, written_ms: int, records: Sequence[Record]) -> pa.RecordBatch:
    """The records of a block as a batch.

    Args:
        rows: `message` or `archive`.
        spool: identity of the spool.
        first: number of the first record.
        written_ms: wall time when they were written.
        records: at least one.
    """
    numbers = pa.array(range(first, first + len(records)), pa.int64())
    if rows == "message":
        columns = {
            "spool_number": numbers,
            "source": pa.array([each.key.rpartition(" ")[0] for each in records], pa.string()),
            "sequence_number": pa.array([each.sequence for each in records], pa.int64()),
            "sequence_epoch": pa.array([each.epoch for each in records], pa.int32()),
            "message": pa.array([each.message for each in records], pa.binary()),
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=MESSAGE_SCHEMA)
    decoded = _decoded(records)
    kinds = decoded.column("body_type").to_pylist()
    envelopes = [
        None if kind == UNREADABLE_BODY else _envelope(each.message) for each, kind in zip(records, kinds, strict=True)
    ]
    bodies = decoded.column("body").to_pylist()
    sources = [each.key.rpartition(" ") for each in records]
    dates = [_laid_out(each.enqueued_ms or written_ms) for each in records]
    made: dict[str, list[Any]] = {
        "spool": [spool] * len(records),
        "source": [each[0] for each in sources],
        "source_namespace": [each[2] for each in sources],
        "sequence_number": [each.sequence if each.sequence >= 0 else None for each in records],
        "sequence_epoch": [each.epoch for each in records],
        "received_time": [written_ms * 1000] * len(records),
        "digest": [_digest(envelope, body) for envelope, body in zip(envelopes, bodies, strict=True)],
        "envelope": envelopes,
        "date": [each[0] for each in dates],
        "hour": [each[1] for each in dates],
    }
    arrays = []
    for field in ARCHIVE_SCHEMA:
        if field.name == "spool_number":
            arrays.append(numbers)
        elif field.name in made:
            arrays.append(pa.array(made[field.name], field.type))
        else:
            arrays.append(decoded.column(field.name))
    return pa.RecordBatch.from_arrays(arrays, schema=ARCHIVE_SCHEMA)


def _decoded(records: Sequence[Record]) -> pa.RecordBatch:
    """The columns of messages. A message that does not fit a row is stored as unreadable: it must not block the others."""
    try:
        return decoded_batch(
            [each.message for each in records], [None] * len(records), [each.sequence for each in records]
        )
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        if len(records) > 1:
            parts = [_decoded([each]) for each in records]
            return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    values = {"body": records[0].message, "body_type": UNREADABLE_BODY, "size_bytes": len(records[0].message)}
    arrays = [pa.array([values.get(field.name)], field.type) for field in DECODED_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=DECODED_SCHEMA)


def restore(row: Mapping[str, Any]) -> bytes:
    """The message from which a row of an archive was made.

    Raises:
        ValueError: the row's digest does not match its body and envelope, or it is not a row of an archive.
    """
    envelope, body = row["envelope"], row["body"]
    if row["digest"] != _digest(envelope, body):
        raise ValueError(f"row {row.get('spool_number')}: its digest does not match its body and envelope")
    if envelope is None:
        return bytes(body or b"")
    if row["body_type"] == "none":
        return bytes(envelope)
    sections = b"\0Su" + codec.encode(bytes(body)) if row["body_type"] == "data" else bytes(body)
    start, stop = section.locate(envelope).footer
    if not stop:
        return bytes(envelope) + sections
    return bytes(envelope[:start]) + sections + bytes(envelope[start:])


def _envelope(message: bytes) -> bytes:
    """The message without its body."""
    start, stop = section.locate(message).body
    return message[:start] + message[stop:] if stop else message


def _digest(envelope: bytes | None, body: bytes | None) -> str:
    return sha256((envelope or b"") + (body or b"")).hexdigest()


_HOUR_MS = 3_600_000
# The end of the year 9999.
_LAST_MS = 253_402_300_799_999
_hours: dict[int, tuple[str, int]] = {}


def _laid_out(ms: int) -> tuple[str, int]:
    hour = ms // _HOUR_MS if 0 <= ms <= _LAST_MS else -1
    found = _hours.get(hour)
    if found is None:
        moment = time.gmtime(hour * 3600)
        found = (time.strftime("%Y-%m-%d", moment), moment.tm_hour) if hour >= 0 else ("0001-01-01", 0)
        if len(_hours) > 10_000:
            _hours.clear()
        _hours[hour] = found
    return found
