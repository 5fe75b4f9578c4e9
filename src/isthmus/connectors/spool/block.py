"""Blocks of a segment file: the unit of one append.

What it is: the bytes of a block, records in and out, and the walk over the blocks of a segment, which finds where bytes are damaged
and where the next good block begins. What it is not: a file, or a folder of segments (`folder`). docs/explanation/spool.md.

A block is a header of 36 bytes and its records:

    magic "iSPB", CRC-32 of all that follows, length of the records (uint32), their number (uint32), number of the first record
    in the spool (int64), wall time of the append in ms (int64), 4 bytes 0

A record is the length of its key (uint32), the length of the message (uint32), the source's sequence number (int64), its epoch (int32),
the enqueued time in ms (int64), the key in UTF-8, the message as it was received. All integers are big-endian.

Invariants:
    I1. `walk` yields every good block of the bytes once, in order; bytes between good blocks are reported as `Damage`.
    I2. A block whose bytes differ from the written ones is reported as damage, never as a block.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["HEADER_BYTES", "Block", "Damage", "Record", "decode", "encode", "walk", "written_ms_of"]

_MAGIC = b"iSPB"
_HEADER = struct.Struct(">4sIIIqqI")
_RECORD = struct.Struct(">IIqiq")
HEADER_BYTES = _HEADER.size
_CRC_FROM = 8


class Record(NamedTuple):
    """One message as it was received.

    Attributes:
        key: the entity that it was received from, with the namespace's identity.
        sequence: its sequence number there; -1 where it has none.
        enqueued_ms: when it was enqueued there, wall time; 0 where unknown.
        message: the encoded message (OASIS AMQP 1.0 part 3).
        epoch: how often the entity's numbering has restarted (`seen`).
    """

    key: str
    sequence: int
    enqueued_ms: int
    message: bytes
    epoch: int = 0


class Block(NamedTuple):
    """A good block of a segment.

    Attributes:
        start: offset of its first byte in the segment.
        stop: offset after its last byte.
        first: number of its first record in the spool.
        records: number of its records.
        written_ms: wall time of the append.
    """

    start: int
    stop: int
    first: int
    records: int
    written_ms: int

    @property
    def end(self) -> int:
        """Number of the record after its last one."""
        return self.first + self.records


class Damage(NamedTuple):
    """Bytes of a segment that are not a block: from `start` to `stop`."""

    start: int
    stop: int


def encode(records: Sequence[Record], first: int, written_ms: int) -> bytes:
    """The bytes of a block; `first` is the number of its first record."""
    parts: list[bytes] = []
    for record in records:
        key = record.key.encode()
        head = _RECORD.pack(len(key), len(record.message), record.sequence, record.epoch, record.enqueued_ms)
        parts += (head, key, record.message)
    payload = b"".join(parts)
    covered = _HEADER.pack(_MAGIC, 0, len(payload), len(records), first, written_ms, 0)[_CRC_FROM:]
    checksum = zlib.crc32(payload, zlib.crc32(covered))
    return b"".join((_MAGIC, checksum.to_bytes(4, "big"), covered, payload))


def decode(data: bytes | memoryview, block: Block) -> Iterator[Record]:
    """The records of a block that `walk` found in `data`."""
    at = block.start + HEADER_BYTES
    keys: dict[bytes, str] = {}
    for _ in range(block.records):
        key_bytes, message_bytes, sequence, epoch, enqueued_ms = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        raw = bytes(data[at : at + key_bytes])
        at += key_bytes
        key = keys.get(raw)
        if key is None:
            key = keys[raw] = raw.decode()
        yield Record(key, sequence, enqueued_ms, bytes(data[at : at + message_bytes]), epoch)
        at += message_bytes


def walk(data: bytes, start: int = 0, stop: int | None = None) -> Iterator[Block | Damage]:
    """The blocks of a segment, and the bytes between them that are not blocks.

    Args:
        data: the segment's bytes; any type with `find` and slices, e.g. a memory map.
        start: where a block begins.
        stop: where to end; None: at the end of `data`.
    """
    end = len(data) if stop is None else min(stop, len(data))
    damaged = -1
    while start < end:
        block = _block_at(data, start, end)
        if block is not None:
            if damaged >= 0:
                yield Damage(damaged, start)
                damaged = -1
            yield block
            start = block.stop
            continue
        if damaged < 0:
            damaged = start
        found = data.find(_MAGIC, start + 1, end)
        start = found if found >= 0 else end
    if damaged >= 0:
        yield Damage(damaged, end)


def written_ms_of(head: bytes) -> int:
    """Wall time of the append of a block, from its header alone; 0 where it is not a block."""
    if len(head) < HEADER_BYTES or head[: len(_MAGIC)] != _MAGIC:
        return 0
    return int(_HEADER.unpack_from(head)[5])


def _block_at(data: bytes, start: int, end: int) -> Block | None:
    if start + HEADER_BYTES > end:
        return None
    magic, checksum, length, count, first, written_ms, _ = _HEADER.unpack_from(data, start)
    stop = start + HEADER_BYTES + length
    if magic != _MAGIC or stop > end:
        return None
    with memoryview(data) as view, view[start + _CRC_FROM : stop] as covered:
        if zlib.crc32(covered) != checksum:
            return None
    return Block(start, stop, first, count, written_ms)
