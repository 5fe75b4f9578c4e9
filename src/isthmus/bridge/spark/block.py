"""Many messages in one row of the data source `isthmus`.

What it is: the encoding of a batch's messages as one cell, for queries in which nothing reads rows between source and sink: Spark's
cost of a row is then shared by about a hundred messages. What it is not: a row for steps (`row`), or the time of batches (`outflow`).

A block row (`row.BLOCK_ROUTE`) has as position the number of the flush that follows it, or -1, and as message, in the machine's
byte order::

    count of runs i64
    for each run: handle i64, messages i64, first position i64 (or -1)
    for each run: where each message starts, and the last ends, i32 from the run's first byte; positions i64 where the
        first is -1, since they are no range
    for each run: the messages
    zeros, so that the cell is large enough to close the batch that Spark is filling

Invariants:
    I1. `runs_of` returns the input of `block_of`: handles, positions, messages, and their order.
    I2. The messages of a run are copied once when they are read from Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from isthmus.bridge.spark.row import Run

__all__ = ["BLOCK_BYTES", "MOST_BYTES", "block_of", "runs_of"]

# So many bytes go at once.
BLOCK_BYTES = 256 << 10
# Above this size messages are sent as rows: a cell is in memory several times, and Java keeps a buffer of the largest.
MOST_BYTES = 1 << 20
_HEAD = struct.Struct("=qqq")
_COUNT = struct.Struct("=q")
_OFFSET, _POSITION = np.dtype(np.int32), np.dtype(np.int64)


def block_of(runs: Sequence[Run], padding: bytes = b"") -> bytes:
    """The cell of a block row.

    Args:
        runs: messages of one handle each, in their order; none is possible.
        padding: zeros; the cell has at least as many bytes.
    """
    heads, tables = [_COUNT.pack(len(runs))], []
    messages: list[bytes | memoryview] = []
    for handle, positions, payloads in runs:
        count = len(payloads)
        offsets = np.fromiter(accumulate(map(len, payloads), initial=0), _OFFSET, count + 1)
        is_range = isinstance(positions, range) and positions.step == 1 and positions[0] >= 0
        heads.append(_HEAD.pack(handle, count, positions[0] if is_range else -1))
        tables.append(offsets.tobytes())
        if not is_range:
            tables.append(np.asarray(positions, _POSITION).tobytes())
        messages += payloads
    pieces = [*heads, *tables, *messages]
    if padding and (missing := len(padding) - sum(map(len, pieces))) > 0:
        pieces.append(memoryview(padding)[:missing])
    return b"".join(pieces)


def runs_of(cell: Any) -> Iterator[tuple[int, Sequence[int], bytes, list[int]]]:
    """The runs of a block: handle, positions, bytes of the messages, and their offsets in these.

    Args:
        cell: a buffer of Arrow's.
    """
    (runs,) = _COUNT.unpack_from(cell, 0)
    at = _COUNT.size
    heads = [_HEAD.unpack_from(cell, at + number * _HEAD.size) for number in range(runs)]
    at += runs * _HEAD.size
    tables: list[tuple[int, Sequence[int], list[int]]] = []
    for handle, count, first in heads:
        offsets: list[int] = np.frombuffer(cell, _OFFSET, count + 1, at).tolist()
        at += (count + 1) * _OFFSET.itemsize
        positions: Sequence[int] = range(first, first + count)
        if first < 0:
            positions = np.frombuffer(cell, _POSITION, count, at).tolist()
            at += count * _POSITION.itemsize
        tables.append((handle, positions, offsets))
    for handle, positions, offsets in tables:
        start, at = at, at + offsets[-1]
        yield handle, positions, cell[start:at].to_pybytes(), offsets
