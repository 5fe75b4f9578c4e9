"""Changes that are written to every copy, and the record of their keys.

What it is: a batch that can be written more than once, the rows that each copy has besides the namespace's own (its
position, and for each of the last batches the touched keys), and their encoding. What it is not: a log of values:
a copy that missed batches takes the values from one that has them.

Invariants:
    I1. Rows of this module are at keys that begin with 0xff, above all keys of entities.
    I2. A batch, its position and its row of touched keys are written together or not at all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "DELETE",
    "DELETE_RANGE",
    "POSITION_KEY",
    "PUT",
    "Change",
    "Position",
    "Touched",
    "ZoneBatch",
    "epoch_of",
    "log_key",
    "log_sequence",
    "pack_position",
    "unpack_position",
]

Change = tuple[int, bytes, bytes]
PUT, DELETE, DELETE_RANGE = range(3)

POSITION_KEY = b"\xffp"
_LOG = b"\xffl"
_POSITION = struct.Struct(">QQ")
_EPOCH = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")
_POINT, _RANGE = b"\0", b"\1"


class Position(NamedTuple):
    """The last batch of a copy. Positions of one epoch are of one history: the higher one includes the lower.

    Attributes:
        epoch: of the process, or of its recovery, that wrote the batch.
        sequence: of the batch; never used twice in an epoch.
    """

    epoch: int
    sequence: int


def pack_position(position: Position) -> bytes:
    """The row at `POSITION_KEY`."""
    return _POSITION.pack(*position)


def unpack_position(row: bytes | None) -> Position:
    """The position in a row; the one before the first batch where there is none."""
    return Position(*_POSITION.unpack(row)) if row else Position(0, 0)


def log_key(sequence: int) -> bytes:
    """The key of a batch's row of touched keys."""
    return _LOG + sequence.to_bytes(8, "big")


def log_sequence(key: bytes) -> int:
    """The sequence of a row of touched keys."""
    return int.from_bytes(key[len(_LOG) :], "big")


class ZoneBatch:
    """Changes in the order they were made."""

    __slots__ = ("changes", "size_bytes")

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.size_bytes = 0

    def put(self, key: bytes, value: bytes, /) -> None:
        self.changes.append((PUT, key, value))
        self.size_bytes += len(key) + len(value)

    def delete(self, key: bytes, /) -> None:
        self.changes.append((DELETE, key, b""))
        self.size_bytes += len(key)

    def delete_range(self, first: bytes, end: bytes, /) -> None:
        self.changes.append((DELETE_RANGE, first, end))
        self.size_bytes += len(first) + len(end)

    def seal(self, position: Position) -> int:
        """Add the rows of the position and of the touched keys; returns the bytes of the latter."""
        row = _EPOCH.pack(position.epoch) + _encode(self.changes)
        self.changes += ((PUT, POSITION_KEY, pack_position(position)), (PUT, log_key(position.sequence), row))
        return len(row)


class Touched:
    """Keys and ranges that batches touched.

    Attributes:
        keys: each once.
        ranges: first and end.
    """

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self.ranges: set[tuple[bytes, bytes]] = set()

    def __len__(self) -> int:
        return len(self.keys) + len(self.ranges)

    def add(self, row: bytes) -> int:
        """Add the contents of a row; returns its epoch.

        Raises:
            ValueError: the row cannot be read.
        """
        at, size = _EPOCH.size, len(row)
        try:
            while at < size:
                kind = row[at : at + 1]
                key, at = _field(row, at + 1)
                if kind == _POINT:
                    self.keys.add(key)
                else:
                    end, at = _field(row, at)
                    self.ranges.add((key, end))
        except struct.error:
            raise ValueError("a row of touched keys ends early") from None
        return epoch_of(row)


def epoch_of(row: bytes) -> int:
    """The epoch of a row of touched keys."""
    epoch: int = _EPOCH.unpack_from(row)[0]
    return epoch


def _encode(changes: Iterable[Change]) -> bytes:
    parts: list[bytes] = []
    pack = _LENGTH.pack
    for kind, key, value in changes:
        if kind == DELETE_RANGE:
            parts += (_RANGE, pack(len(key)), key, pack(len(value)), value)
        else:
            parts += (_POINT, pack(len(key)), key)
    return b"".join(parts)


def _field(row: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(row, at)
    at += _LENGTH.size
    if at + length > len(row):
        raise struct.error
    return row[at : at + length], at + length
