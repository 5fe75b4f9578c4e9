"""RocksDB's write-ahead log, read record by record: records that a start may replay, and damage.

What it is: the log's format, enough of it to find each record, its sequence numbers, and the end of the log. What it is
not: a parser of messages, or a check of every checksum; RocksDB makes that when it replays.
Spec: RocksDB's wiki, "Write Ahead Log File Format" and "WAL Recovery Modes"; `WriteBatch` begins with its first sequence
number (u64) and the count of numbers that it uses (u32), little-endian.

Invariants:
    I1. A log's end is torn if no intact record begins behind the fault; otherwise the fault is damage. Also where the
        damage is in a length, so that the walk has skipped the beginning of the record.
    I2. Sequence numbers continue from record to record, within a log and from one to the next.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

__all__ = ["Fragment", "LogWalk", "checksum", "missed_record", "records", "walk"]

_BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_BATCH = struct.Struct("<QI")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# Crc-32c, as RocksDB stores it: rotated, and with a constant added, since data may contain checksums of its own.
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_MOST_SEQUENCE = (1 << 56) - 1


class Fragment(NamedTuple):
    """A physical record: a part of a logical one, within a block."""

    at: int
    checksum: int
    length: int
    kind: int

    @property
    def end(self) -> int:
        """Offset after it."""
        return self.at + _HEADER.size + self.length

    def is_intact(self, data: bytes) -> bool:
        """Whether its bytes match its checksum."""
        start = self.at + _HEADER.size
        return checksum(data[start - 1 : start + self.length]) == self.checksum


class LogWalk(NamedTuple):
    """The result of a walk over a log.

    Attributes:
        first: sequence number of the first record; None if there is none.
        next: the sequence number that must follow.
        last_sequence: of the last whole record; None if there is none.
        last: the fragments of the last whole record.
        end: offset after the last whole record.
        size: of the log; the bytes behind `end` are torn.
        damage: the fault and its offset; empty if there is none.
    """

    first: int | None
    next: int
    last_sequence: int | None
    last: tuple[Fragment, ...]
    end: int
    size: int
    damage: str

    @property
    def is_torn(self) -> bool:
        """Whether there are bytes behind the last whole record."""
        return self.end < self.size


def walk(data: bytes) -> LogWalk:
    """Walk a log from its beginning to its end, or to the first record that cannot be parsed."""
    first: int | None = None
    last_sequence: int | None = None
    following = end = 0
    last: tuple[Fragment, ...] = ()
    open_: list[Fragment] = []
    fault_at = searched = 0
    reason = ""
    for fragment in _fragments(data):
        if fragment.kind > _LAST:  # describes the format of the log, and has no changes
            continue
        starts = fragment.kind in (_FULL, _FIRST)
        if starts == bool(open_):
            fault_at = searched = fragment.at
            open_.append(fragment)
            reason = "a record without its begin or its end"
            break
        open_.append(fragment)
        if fragment.kind in (_FIRST, _MIDDLE):
            continue
        fault_at = searched = open_[0].at
        head = _head(data, open_)
        if len(head) < _BATCH.size:
            reason = "a record too short to be one"
            break
        sequence, count = _BATCH.unpack(head)
        if first is None:
            first = sequence
        elif sequence != following:
            reason = f"a record of sequence number {sequence}, where {following} has to follow"
            break
        following, last_sequence = sequence + count, sequence
        last, open_, end = tuple(open_), [], fragment.end
    else:
        fault_at, reason = (open_[0].at if open_ else end), "an unreadable record"
        searched = fault_at + 1
    walked = LogWalk(first, following, last_sequence, last, end, len(data), "")
    if end < len(data):
        at = _record_from(data, fault_at, searched)
        if at is None:
            at = missed_record(data, walked, open_)
        if at is not None:
            return walked._replace(damage=f"{reason} at byte {fault_at}, and a record at byte {at}")
    # Fillers at the end of a block, and descriptions of the log, belong to no record.
    return walked._replace(end=len(data)) if not open_ and _is_filler(data, end) else walked


def missed_record(data: bytes, walked: LogWalk, behind: Sequence[Fragment] = ()) -> int | None:
    """Offset of an intact record that the walk has skipped, because a length is corrupted; None if there is none.

    A length stays within its block, and the later blocks are searched from their beginnings: so it is enough to check
    each byte of one block, namely that of the last fragments, one of which has the corrupted length.

    Args:
        data: the log.
        walked: the result of the walk.
        behind: the fragments behind the last whole record.
    """
    known = (*walked.last, *behind)
    start, least = (known[-1].end if known else 0), walked.next
    for number, fragment in enumerate(known):
        if fragment.end > start - 2 * _BLOCK_BYTES and not fragment.is_intact(data):
            start = fragment.at
            if number < len(walked.last):
                least = walked.last_sequence or 0  # a damaged record uses an unknown count of numbers
            break
    if _BLOCK_BYTES - start % _BLOCK_BYTES < _HEADER.size:
        start += _BLOCK_BYTES - start % _BLOCK_BYTES
    # A change takes at least a byte. Without a whole record before it the number is unknown.
    most = _MOST_SEQUENCE if walked.first is None else least + len(data)
    end = min(start - start % _BLOCK_BYTES + _BLOCK_BYTES, len(data))
    for at in range(start, end - _HEADER.size + 1):
        if data[at + _HEADER.size - 1] not in (_FULL, _FIRST):
            continue
        fragments = list(islice(_fragments(data, at), 2))
        head = _head(data, fragments)
        if len(head) == _BATCH.size and least <= _BATCH.unpack(head)[0] <= most and fragments[0].is_intact(data):
            return at
    return None


def records(data: bytes) -> Iterator[bytes]:
    """The logical records of a file in this format, up to the first that cannot be parsed."""
    parts: list[bytes] = []
    for fragment in _fragments(data):
        if fragment.kind > _LAST or (fragment.kind in (_FULL, _FIRST)) == bool(parts):
            return
        start = fragment.at + _HEADER.size
        parts.append(data[start : start + fragment.length])
        if fragment.kind in (_FULL, _LAST):
            yield b"".join(parts)
            parts = []


def _head(data: bytes, fragments: Iterable[Fragment]) -> bytes:
    """The beginning of a logical record; at the end of a block, its first fragment may have a few bytes of it, or none."""
    head = b""
    for fragment in fragments:
        start = fragment.at + _HEADER.size
        head += data[start : start + min(fragment.length, _BATCH.size - len(head))]
        if len(head) == _BATCH.size:
            break
    return head


def _fragments(data: bytes, at: int = 0) -> Iterator[Fragment]:
    """The physical records from an offset on, up to one that is impossible."""
    size = len(data)
    unpack = _HEADER.unpack_from
    while True:
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER.size:
            at += left
            left = _BLOCK_BYTES
        if at + _HEADER.size > size:
            return
        stored, length, kind = unpack(data, at)
        if not kind or length > left - _HEADER.size or at + _HEADER.size + length > size:
            return
        yield Fragment(at, stored, length, kind)
        at += _HEADER.size + length


def _record_from(data: bytes, at: int, lowest: int) -> int | None:
    """Offset of an intact record that begins at or after `lowest`; None if there is none.

    Args:
        data: the log.
        at: an offset at which a physical record may begin; after it, one begins at each block.
        lowest: not below `at`.
    """
    for block in range(at - at % _BLOCK_BYTES, len(data), _BLOCK_BYTES):
        for fragment in _fragments(data, max(block, at)):
            if fragment.at >= block + _BLOCK_BYTES:
                break
            if fragment.at >= lowest and fragment.kind in (_FULL, _FIRST) and fragment.is_intact(data):
                return fragment.at
    return None


def _is_filler(data: bytes, end: int) -> bool:
    at = end
    for fragment in _fragments(data, end):
        if fragment.kind <= _LAST:
            return False
        at = fragment.end
    return len(data) - at < _HEADER.size and not any(data[at:])


def _table() -> tuple[int, ...]:
    entries = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901 - the register of the checksum
        entries.append(value)
    return tuple(entries)


_TABLE = _table()


def checksum(data: bytes) -> int:
    """The masked crc-32c of a physical record's type and data."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
