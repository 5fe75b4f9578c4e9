"""Records as rows of the data source, and rows as records.

What it is: the columns of a read, and the columns that a write uses, pure. What it is not: Spark's classes (`source`, `sink`).

Invariants:
    I1. A record that was read can be written again: value, key, headers and timestamp are the same, except those that a column cannot
        represent, which are null.
    I2. A record without value (tombstone) is a row whose value is null, and vice versa.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from isthmus.errors import ConfigError, Fault, InvalidArgumentError

__all__ = ["DDL", "SCHEMA", "check_columns", "records_of", "rows_of"]

DDL = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_TIMESTAMP = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("headers", pa.list_(_HEADER)),
    ]
)
_WRITTEN = ("key", "value", "partition", "timestamp", "headers")
# Columns of a read that a write ignores.
_PLACE = ("topic", "offset")
_NO_TIMESTAMP = 0
# The range of a column of microseconds. Kafka accepts any time of a producer, e.g. nanoseconds by mistake.
_MOST_MS = ((1 << 63) - 1) // 1000


def rows_of(records: Sequence[Any]) -> pa.RecordBatch:
    """Records of confluent-kafka as a batch of `SCHEMA`."""
    times = [each.timestamp() for each in records]
    columns = [
        pa.array([each.key() for each in records], pa.binary()),
        pa.array([each.value() for each in records], pa.binary()),
        pa.array([each.topic() for each in records], pa.string()),
        pa.array([each.partition() for each in records], pa.int32()),
        pa.array([each.offset() for each in records], pa.int64()),
        pa.array([_microseconds(*each) for each in times], pa.int64()).cast(_TIMESTAMP),
        pa.array([_headers(each) for each in records], pa.list_(_HEADER)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _headers(record: Any) -> list[dict[str, Any]] | None:
    """A record's headers; null where the client cannot read them: a query that failed for them would never get past the record."""
    try:
        found = record.headers()
    except Exception:  # noqa: BLE001 - the client has no error of its own for a name that is not UTF-8 text
        return None
    return [{"key": name, "value": value} for name, value in found or ()]


def _microseconds(kind: int, ms: int) -> int | None:
    """A record's time; null where it has none, or one beyond the range: a query that failed for it would never get past it."""
    return ms * 1000 if kind != _NO_TIMESTAMP and -_MOST_MS <= ms <= _MOST_MS else None


def check_columns(names: Sequence[str]) -> None:
    """Checks that rows with these columns can be written as records.

    Raises:
        ConfigError: there is no value, or a column would be ignored.
    """
    if "value" not in names:
        raise InvalidArgumentError(
            "isthmus_kafka writes rows with a column 'value' (binary or string; null: a tombstone)"
        )
    faults = [
        Fault(f"isthmus_kafka write: there are two columns '{name}'", "drop one of them")
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
    for name in names:
        if name in _WRITTEN or name in _PLACE:
            continue
        near = get_close_matches(name.lower(), _WRITTEN, 1)
        hint = f"write {near[0]}" if near else "drop it, or put it into value or headers"
        faults.append(Fault(f"isthmus_kafka write: there is no column '{name}'", hint))
    if faults:
        raise ConfigError(faults)


def records_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The producer's arguments of each row: value, key, headers, timestamp and partition.

    Raises:
        InvalidArgumentError: a cell cannot be written.
    """
    names = [name for name in _WRITTEN if name in batch.schema.names]
    times = _milliseconds(batch.column("timestamp")) if "timestamp" in names else [None] * batch.num_rows
    if "partition" in names and not _is_integer(batch.column("partition").type):
        raise InvalidArgumentError(f"column 'partition' contains {batch.column('partition').type}; cast it to int")
    for row, time in zip(batch.select([each for each in names if each != "timestamp"]).to_pylist(), times, strict=True):
        found: dict[str, Any] = {"value": _bytes(row["value"], "value"), "key": _bytes(row.get("key"), "key")}
        if row.get("headers"):
            found["headers"] = [_header(each) for each in row["headers"]]
        if time is not None:
            found["timestamp"] = time
        if row.get("partition") is not None:
            found["partition"] = int(row["partition"])
        yield found


def _bytes(value: Any, name: str) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise InvalidArgumentError(f"column '{name}' contains {type(value).__name__}; cast it to binary or string")


def _header(each: Any) -> tuple[str, bytes | None]:
    if not isinstance(each, Mapping) or not isinstance(each.get("key"), str):
        raise InvalidArgumentError("column 'headers' is not an array<struct<key: string, value: binary>>")
    return each["key"], _bytes(each.get("value"), "headers")


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_null(kind))


def _milliseconds(column: pa.Array) -> list[int | None]:
    """Times of a column; without Python's datetime, which ends with the year 9999."""
    kind = column.type
    if not pa.types.is_null(kind) and not (pa.types.is_timestamp(kind) and kind.tz):
        hint = ", which has a time zone" if pa.types.is_timestamp(kind) else ""
        raise InvalidArgumentError(f"column 'timestamp' contains {kind}; cast it to timestamp{hint}")
    found = column.cast(_TIMESTAMP, safe=False).cast(pa.int64()).to_pylist()
    return [None if each is None else (each + 500) // 1000 for each in found]
