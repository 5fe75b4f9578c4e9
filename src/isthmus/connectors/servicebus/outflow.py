"""A lease's messages on their way into Spark.

What it is: the making of Arrow batches from blocks, and the flush rows that push them through the buffers of Spark and of
its Python worker. What it is not: Spark (`source`), or the rows' columns (`row`).

Invariants:
    I1. Between two messages of a lease nothing waits here or in Python's buffers longer than `flush_ms`, but where rows push
        each other on.
    I2. Few rows go with the flush row that pushes them, in one batch: alone they would wait behind this for one all the same,
        and each batch costs as much as some hundred rows.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from isthmus.connectors.servicebus.block import Block, batch_of
from isthmus.connectors.servicebus.lease import Lease
from isthmus.connectors.servicebus.lease_item import Finish, LeaseEnd
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.row import (
    DECODED_SCHEMA,
    RAW_SCHEMA,
    flush_batch,
    with_flush,
)

__all__ = ["Outflow", "stream"]

# 400 rows since the last flush put off the next by 20 ms: at that rate batches fill by themselves in less, and flush rows
# of their size would double what goes through Spark.
FLUSH_DELAY_SECONDS_PER_ROW = 50e-6
FLUSH_DELAY_LIMIT_SECONDS = 0.020
MAX_BATCH_ROWS = 2000


def stream(options: SourceOptions, lease: Lease, out: Outflow) -> Iterator[pa.RecordBatch]:
    """Rows as they arrive, until the lease is over; raises what the lease ended with."""
    spacing = options.flush_ms / 1000
    held = _Held()
    rows = flushes = unflushed = 0
    flushed_at = due = -math.inf
    while True:
        item = lease.take(due if unflushed else math.inf)
        if isinstance(item, Block):
            held.add(item)
            unflushed += len(item.tokens)
        # Many rows push each other on, so that flushing them may wait longer.
        due = flushed_at + spacing + min(FLUSH_DELAY_LIMIT_SECONDS, unflushed * FLUSH_DELAY_SECONDS_PER_ROW)
        is_due = item is None or (lease.blocks.empty() and time.monotonic() >= due)
        is_full = held.rows >= MAX_BATCH_ROWS or held.nbytes >= len(out.padding)
        if isinstance(item, Block) and not is_due and not is_full:
            continue
        rows += held.rows
        if item is None or (isinstance(item, Block) and is_due):
            flushes += 1
            lease.note_flush(flushes, rows)
            yield from out.flushed(flushes, held.take())
            out.push()
            flushed_at, unflushed = time.monotonic(), 0
            continue
        if held.rows:
            yield batch_of(options.mode, held.take())
            out.push()
        if isinstance(item, Finish):
            flushes += 1
            lease.note_flush(flushes, rows)
            lease.note_finish(flushes)
            if rows:
                for batch in out.last_flush(flushes):
                    yield batch
                    out.push()
            unflushed = 0
        elif isinstance(item, LeaseEnd):
            if item.error is not None:
                raise item.error
            return


class _Held:
    """Messages that go into the next batch."""

    def __init__(self) -> None:
        self.rows = self.nbytes = 0
        self._blocks: list[Block] = []

    def add(self, block: Block) -> None:
        self.rows += len(block.tokens)
        self.nbytes += sum(map(len, block.payloads))
        self._blocks.append(block)

    def take(self) -> Block:
        """All of them in one; none stay."""
        blocks, self._blocks = self._blocks, []
        self.rows = self.nbytes = 0
        if not blocks:
            return Block(range(0), [], [])
        sequences, tokens, payloads = blocks[0]
        for block in blocks[1:]:
            sequences = _joined(sequences, block.sequences)
            tokens = tokens + block.tokens
            payloads = payloads + block.payloads
        return Block(sequences, tokens, payloads)


def _joined(first: Sequence[int], second: Sequence[int]) -> Sequence[int]:
    if isinstance(first, range) and isinstance(second, range) and first.stop == second.start:
        return range(first.start, second.stop)
    return [*first, *second]


class Outflow:
    """Pushes rows out of this worker.

    Spark writes a reader's batches through a Python file of 64 KiB whose tail stays until more is written. The worker's
    own frames hold that file; flushing it makes one batch with flush rows enough. Where it is not found (another release
    of Spark), more flush rows push instead.

    Args:
        options: of the source.
        padding_bytes: how large a flush row is (`arrow_batch.padding_bytes`).
    """

    def __init__(self, options: SourceOptions, padding_bytes: int) -> None:
        self._file = _found_in_worker("dump_stream", "stream", "flush")
        self.padding = bytes(padding_bytes)
        self._mode = options.mode
        self._schema = RAW_SCHEMA if options.mode == "raw" else DECODED_SCHEMA

    def flush(self, number: int) -> pa.RecordBatch:
        """Flush rows alone."""
        return flush_batch(number, self.padding, self._schema)

    def flushed(self, number: int, messages: Block) -> list[pa.RecordBatch]:
        """Messages with flush rows behind them, in one batch where that can be."""
        if not messages.tokens:
            return [self.flush(number)]
        if self._mode == "raw":
            return [with_flush(messages.payloads, messages.tokens, messages.sequences, number, self.padding)]
        return [batch_of(self._mode, messages), self.flush(number)]

    def last_flush(self, number: int) -> list[pa.RecordBatch]:
        """Flush rows that come through whatever holds them back."""
        return [self.flush(number)] * (1 if self._file is not None else 4)

    def push(self) -> None:
        """Empties the file's buffer."""
        if self._file is not None:
            self._file.flush()


def _found_in_worker(function: str, variable: str, attribute: str) -> Any:
    """A local variable of Spark's worker, from the frames that called this one; None where this release has none."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == function:
            found = frame.f_locals.get(variable)
            if hasattr(found, attribute):
                return found
        frame = frame.f_back
    return None
