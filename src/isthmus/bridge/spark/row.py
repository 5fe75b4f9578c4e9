"""Rows of the data source `isthmus`, as Arrow batches.

What it is: the schema, and the making of batches from messages of many routes. A batch is built from joined bytes and
offsets, without a Python object per row. What it is not: the time of batches (`outflow`), or splitting them (`inflow`).

Columns, for a step of the query:
    message     binary: the message, encoded as AMQP 1.0
    route       int: the handle of its route, positive; a step passes it on as it is
    position    bigint: the message's position at its source, unique within the route; a step passes it on as it is
A step may add these, null where a row goes on to its target:
    disposition string: `complete`, `dead-letter`, `defer` or `abandon`: the disposition of the message at its source instead; or `divert:`
                and the name of an entity of its route (`RouteSpec.diverts`) that it is sent to
    reason, description string: why

A flush row carries no message: its `route` is -1, its `position` the number of the flush, and its `message` zeros, enough to
close the batch that Spark is filling. A second row with route 0 follows it: Spark checks the size of the first row only when it
reads another one. Steps pass both on. Where there are no steps, a row with route -2 contains all messages of a batch and the
number of a flush (`block`).

Invariants:
    I1. A flush row is never taken for a message, nor a message for a flush row: handles are positive.
    I2. Messages of one route keep their order.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = [
    "BLOCK_ROUTE",
    "FEW_ROWS",
    "FILLER_ROUTE",
    "FLUSH_ROUTE",
    "SCHEMA",
    "Run",
    "batch_of",
    "block_batch",
    "flush_batch",
]

SCHEMA = pa.schema([("message", pa.binary()), ("route", pa.int32()), ("position", pa.int64())])
FLUSH_ROUTE = -1
FILLER_ROUTE = 0
BLOCK_ROUTE = -2
NO_FLUSH = -1

Run = tuple[int, Sequence[int], Sequence[bytes]]
"""Messages of one handle, in their order: handle, positions, payloads."""

# Up to so many, plain Python is faster than numpy.
FEW_ROWS = 32


def batch_of(runs: Sequence[Run], flush: int | None = None, padding: bytes = b"") -> pa.RecordBatch:
    """Messages as rows, with flush rows after them if there is a flush to number.

    Args:
        runs: the messages.
        flush: number of the flush.
        padding: message of the flush row.
    """
    behind = () if flush is None else ((FLUSH_ROUTE, (flush,), (padding,)), (FILLER_ROUTE, (0,), (b"",)))
    runs = (*runs, *behind)
    payloads: list[bytes] = []
    for _, _, some in runs:
        payloads += some
    count = len(payloads)
    make = _few if count <= FEW_ROWS else _many
    offsets, routes, positions = make(runs, payloads)
    return _batch(count, offsets, b"".join(payloads), routes, positions)


def flush_batch(number: int, padding: bytes) -> pa.RecordBatch:
    """Flush rows alone."""
    return batch_of((), number, padding)


def block_batch(cell: bytes, flush: int | None) -> pa.RecordBatch:
    """A block row (`block`), with a filler after it.

    Args:
        cell: its message.
        flush: number of the flush; None where none follows it.
    """
    offsets, routes = array("i", (0, len(cell), len(cell))), array("i", (BLOCK_ROUTE, FILLER_ROUTE))
    return _batch(2, offsets, cell, routes, array("q", (NO_FLUSH if flush is None else flush, 0)))


def _batch(count: int, offsets: Any, messages: bytes, routes: Any, positions: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(messages)]),
            pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(routes)]),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(positions)]),
        ],
        schema=SCHEMA,
    )


def _few(runs: Sequence[Run], payloads: Sequence[bytes]) -> tuple[Any, Any, Any]:
    routes, positions = array("i"), array("q")
    for handle, some, _ in runs:
        routes.extend([handle] * len(some))
        positions.extend(some)
    return array("i", accumulate(map(len, payloads), initial=0)), routes, positions


def _many(runs: Sequence[Run], payloads: Sequence[bytes]) -> tuple[Any, Any, Any]:
    count = len(payloads)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.fromiter(map(len, payloads), np.int32, count), out=offsets[1:])
    lengths = [len(some) for _, some, _ in runs]
    routes = np.repeat(np.array([handle for handle, _, _ in runs], np.int32), lengths)
    positions = np.concatenate([_numbers(some) for _, some, _ in runs])
    return offsets, routes, positions


def _numbers(values: Sequence[int]) -> np.ndarray[Any, Any]:
    if isinstance(values, range):
        return np.arange(values.start, values.stop, values.step, dtype=np.int64)
    return np.asarray(values, np.int64)
