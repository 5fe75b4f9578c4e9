"""The format of an outbox's files: a sequence of records with checksums.

What it is: the encoding of a record, and the search for records in bytes that may be damaged. What it is not: files
(`journal`, `backlog`).

A record contains the messages that one call committed, all or none:
    magic "IoR1" | u32 body bytes | u32 CRC-32 of the rest | u64 written at, ms | u32 count | body
    body: per message u32 bytes | encoded AMQP message
Numbers are big-endian. A record with count 0 has JSON as its body: a note about the file.

Invariants:
    I1. A record is read only if it is complete and unaltered.
    I2. Damage loses only the records that it touches; later records are found by their magic and checksum.
    I3. A record that may still be in writing is distinguished from damage: an incomplete record with no valid record after it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from isthmus.errors import InvalidArgumentError

__all__ = ["HEAD_BYTES", "Damage", "Record", "encode_note", "encode_record", "find_record", "read_record"]

_MAGIC = b"IoR1"
_HEAD = struct.Struct(">4sIIQI")
_CHECKED = struct.Struct(">QI")
_LENGTH = struct.Struct(">I")
HEAD_BYTES = _HEAD.size
_CHECKED_AT = HEAD_BYTES - _CHECKED.size
LARGEST_BODY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Record:
    """The messages that one call committed.

    Attributes:
        start: offset of its first byte.
        end: offset after its last byte.
        written_ms: wall time at which it was written.
        payloads: encoded messages.
        note: a note about the file, in a record without messages.
    """

    start: int
    end: int
    written_ms: int
    payloads: tuple[bytes, ...]
    note: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes without a valid record.

    Attributes:
        start: offset of the first byte.
        end: offset after the last byte; for damage at the end, the end of the given bytes.
        is_torn: whether it looks like an interrupted write of a record: none of it was committed.
    """

    start: int
    end: int
    is_torn: bool = False


def encode_record(payloads: Iterable[bytes], written_ms: int) -> bytes:
    """A record of messages.

    Raises:
        InvalidArgumentError: they exceed the largest readable record.
    """
    parts: list[bytes] = []
    count = 0
    for payload in payloads:
        parts += (_LENGTH.pack(len(payload)), payload)
        count += 1
    size = sum(map(len, parts))
    if size > LARGEST_BODY_BYTES:
        raise InvalidArgumentError(
            f"{count} messages of {size} bytes are more than one call may send, {LARGEST_BODY_BYTES}; send them in several calls"
        )
    return _encoded(b"".join(parts), count, written_ms)


def encode_note(note: dict[str, Any], written_ms: int) -> bytes:
    """A record without messages."""
    return _encoded(json.dumps(note).encode(), 0, written_ms)


def _encoded(body: bytes, count: int, written_ms: int) -> bytes:
    checked = _CHECKED.pack(written_ms, count)
    checksum = zlib.crc32(body, zlib.crc32(checked))
    return b"".join((_MAGIC, _LENGTH.pack(len(body)), _LENGTH.pack(checksum), checked, body))


def read_record(data: bytes, at: int = 0, base: int = 0) -> Record | int | None:
    """The record that begins at an index.

    Args:
        data: bytes of a file.
        at: index of the record's first byte.
        base: offset of the first byte of `data` in the file.

    Returns:
        The record; the number of bytes that it needs from `at` on, if there are fewer; None if there is no valid record.
    """
    left = len(data) - at
    if left < HEAD_BYTES:
        return HEAD_BYTES if _MAGIC.startswith(data[at : at + 4]) or data.startswith(_MAGIC, at) else None
    magic, size, checksum, written_ms, count = _HEAD.unpack_from(data, at)
    if magic != _MAGIC or size > LARGEST_BODY_BYTES:
        return None
    end = at + HEAD_BYTES + size
    if end > len(data):
        return int(HEAD_BYTES + size)
    body = data[at + HEAD_BYTES : end]
    if zlib.crc32(body, zlib.crc32(data[at + _CHECKED_AT : at + HEAD_BYTES])) != checksum:
        return None
    if not count:
        return Record(base + at, base + end, written_ms, (), json.loads(body))
    payloads = []
    index = 0
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(body, index)
        index += 4 + length
        payloads.append(body[index - length : index])
    return Record(base + at, base + end, written_ms, tuple(payloads))


def find_record(data: bytes, at: int) -> int:
    """Index of the first valid record at or after an index; -1 if there is none (I2)."""
    while (at := data.find(_MAGIC, at)) >= 0:
        if isinstance(read_record(data, at), Record):
            return at
        at += 1
    return -1
