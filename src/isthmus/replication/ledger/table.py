"""The table of a ledger: the records of targets, as Parquet files.

What it is: each closed file of a writer becomes a file of the table under the same name. What it is not: the recording
(`isthmus.connectors.ledger`). docs/how-to/keep-a-ledger.md.

Invariants:
    I1. A file is converted only after its writer has closed it, or has ended: its lock is free.
    I2. A kill at any time leaves a file or its part of the table or both; the next run writes the same part again.
    I3. An incomplete end of a file is skipped: the route was not informed of its records.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from isthmus.amqp import section
from isthmus.connectors.ledger.file import OPEN
from isthmus.connectors.servicebus.message.sequence import UNREADABLE, annotations_of
from isthmus.connectors.spool.block import Block, Record, decode, walk
from isthmus.message.name import ENQUEUED_TIME, MESSAGE_ID, SEQUENCE_NUMBER
from isthmus.replication.verification.identity import provenance_of
from isthmus.whole_file import sync_folder

__all__ = ["LEDGER_SCHEMA", "collect", "rows_of"]

_TIME = pa.timestamp("ms", tz="UTC")
LEDGER_SCHEMA = pa.schema(
    [
        ("route", pa.string()),
        ("outcome", pa.string()),
        ("moved_time", _TIME),
        ("source", pa.string()),
        ("sequence_number", pa.int64()),
        ("enqueued_time", pa.string()),
        ("origin", pa.string()),
        ("origin_namespace", pa.string()),
        ("origin_sequence_number", pa.int64()),
        ("message_id", pa.string()),
        ("session_id", pa.string()),
        ("size_bytes", pa.int64()),
        ("message", pa.binary()),
    ]
)


def collect(folder: Path, *, bodies: bool) -> int:
    """Convert closed files to files of the table. Returns their number.

    Args:
        folder: folder of the ledger.
        bodies: whether messages are stored.

    Raises:
        OSError: the folder cannot be read or written.
    """
    done = 0
    for path in sorted((folder / OPEN).glob("*.log")):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another run has taken it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                _take(folder, path, bodies=bodies)
                done += 1
        except BlockingIOError:
            continue  # its writer is still writing
        finally:
            os.close(descriptor)
    return done


def _take(folder: Path, path: Path, *, bodies: bool) -> None:
    data = path.read_bytes()
    rows = list(rows_of(data, bodies=bodies))
    if rows:
        target = folder / f"date={rows[0]['moved_time']:%Y-%m-%d}" / f"{path.stem}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".parquet")
        pq.write_table(pa.Table.from_pylist(rows, LEDGER_SCHEMA), temporary, compression="zstd")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
        for each in (target.parent, folder):  # the day's folder may be new
            sync_folder(each)
    path.unlink()


def rows_of(data: bytes, *, bodies: bool) -> Iterator[dict[str, Any]]:
    """The rows of an appended file."""
    for block in walk(data):
        if isinstance(block, Block):
            moved = datetime.fromtimestamp(block.written_ms / 1000, UTC)
            for record in decode(data, block):
                yield _row(record, moved) | ({"message": record.message} if bodies else {})


def _row(record: Record, moved: datetime) -> dict[str, Any]:
    route, _, outcome = record.key.partition("\n")
    row: dict[str, Any] = {
        "route": route,
        "outcome": outcome,
        "moved_time": moved,
        "size_bytes": len(record.message),
    }
    try:
        return row | _identifying(record.message)
    except UNREADABLE:
        return row


def _identifying(message: bytes) -> dict[str, Any]:
    """The identifying values of a message: of a copy from its provenance, of another from its broker's annotations."""
    sections = section.locate(message)
    properties = section.decode_properties(message, sections.properties)
    provenance = provenance_of(message)
    found: dict[str, Any] = {
        "message_id": _text(properties.get("message_id")),
        "session_id": _text(properties.get("group_id")),
    }
    if provenance is not None:
        first, last = provenance.hops[0], provenance.hops[-1]
        found |= {
            "source": f"{last.alias}/{last.entity}",
            "sequence_number": last.sequence,
            "enqueued_time": last.enqueued,
            "origin": f"{first.alias}/{first.entity}",
            "origin_namespace": first.namespace,
            "origin_sequence_number": first.sequence,
        }
        if own := provenance.values.get(MESSAGE_ID):
            found["message_id"] = own
    annotations = annotations_of(message, SEQUENCE_NUMBER, ENQUEUED_TIME)
    sequence, enqueued_ms = annotations.get(SEQUENCE_NUMBER), annotations.get(ENQUEUED_TIME)
    if isinstance(sequence, int) and not isinstance(sequence, bool) and abs(sequence) < 1 << 63:
        found["sequence_number"] = sequence
    if isinstance(enqueued_ms, int) and 0 <= enqueued_ms < 1 << 47:
        found["enqueued_time"] = datetime.fromtimestamp(enqueued_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return found


def _text(value: Any) -> str | None:
    return None if value is None else value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
