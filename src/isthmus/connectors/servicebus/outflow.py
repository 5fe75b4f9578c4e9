"""A lease's messages on their way into Spark.

What it is: the making of Arrow batches from blocks, and the flush rows that push them through the buffers of Spark and of
its Python worker. What it is not: Spark (`source`), or the rows' columns (`row`).

Invariants:
    I1. Between two messages of a lease nothing waits in Python's buffers longer than `flush_ms`, but where rows push each
        other on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from queue import Empty
from typing import Any

import pyarrow as pa

from isthmus.connectors.servicebus.lease import Lease
from isthmus.connectors.servicebus.lease_item import Block, Finish, LeaseEnd
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.row import (
    DECODED_SCHEMA,
    RAW_SCHEMA,
    decoded_batch,
    flush_batch,
    raw_batch,
    with_flush,
)

__all__ = ["Outflow", "batch_of", "stream"]

# Above spark.sql.execution.arrow.maxBytesPerBatch the row closes the batch that Spark fills for the sink.
DEFAULT_ARROW_BATCH_BYTES = 262_144
PADDING_LIMIT_BYTES = 4 << 20
# 400 rows since the last flush put off the next by 20 ms: at that rate a batch of 256 KiB fills by itself in less, and
# flush rows of that size would double what goes through Spark.
FLUSH_DELAY_SECONDS_PER_ROW = 50e-6
FLUSH_DELAY_LIMIT_SECONDS = 0.020
MAX_BLOCK_ROWS = 2000


def batch_of(mode: str, payloads: list[bytes], tokens: list[bytes], sequences: Sequence[int]) -> pa.RecordBatch:
    """Messages as the rows of a read."""
    return raw_batch(payloads, tokens, sequences) if mode == "raw" else decoded_batch(payloads, tokens, sequences)


def stream(options: SourceOptions, lease: Lease, out: Outflow) -> Iterator[pa.RecordBatch]:
    """Rows as they arrive, until the lease is over; raises what the lease ended with."""
    spacing = options.flush_ms / 1000
    blocks = lease.blocks
    rows = flushes = unflushed = 0
    flushed_at = 0.0
    while True:
        try:
            # Many rows push each other on, so that flushing them may wait longer.
            due = flushed_at + spacing + min(FLUSH_DELAY_LIMIT_SECONDS, unflushed * FLUSH_DELAY_SECONDS_PER_ROW)
            item = blocks.get(timeout=max(0.0, due - time.monotonic()) if unflushed else None)
        except Empty:
            flushes += 1
            lease.note_flush(flushes, rows)
            yield out.flush(flushes)
            out.push()
            flushed_at, unflushed = time.monotonic(), 0
            continue
        if isinstance(item, Block):
            payloads, tokens, sequences = item.payloads, item.tokens, item.sequences
            while len(payloads) < MAX_BLOCK_ROWS and not blocks.empty():
                item = blocks.get()
                if not isinstance(item, Block):
                    break
                payloads, tokens = payloads + item.payloads, tokens + item.tokens
                sequences = _joined(sequences, item.sequences)
            rows += len(payloads)
            unflushed += len(payloads)
            due = flushed_at + spacing + min(FLUSH_DELAY_LIMIT_SECONDS, unflushed * FLUSH_DELAY_SECONDS_PER_ROW)
            if options.mode == "raw" and blocks.empty() and time.monotonic() >= due:
                flushes += 1
                lease.note_flush(flushes, rows)
                yield with_flush(payloads, tokens, sequences, flushes, out.padding)
                flushed_at, unflushed = time.monotonic(), 0
            else:
                yield batch_of(options.mode, payloads, tokens, sequences)
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


def _joined(first: Sequence[int], second: Sequence[int]) -> Sequence[int]:
    if isinstance(first, range) and isinstance(second, range) and first.stop == second.start:
        return range(first.start, second.stop)
    return [*first, *second]


class Outflow:
    """Pushes rows out of this worker.

    Spark writes a reader's batches through a Python file of 64 KiB whose tail stays until more is written. The worker's
    own frames hold that file; flushing it makes one batch with flush rows enough. Where it is not found (another release
    of Spark), more flush rows push instead.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._file = _found_in_worker("dump_stream", "stream", "flush")
        settings = _found_in_worker("main", "runner_conf", "arrow_max_bytes_per_batch")
        limit = DEFAULT_ARROW_BATCH_BYTES if settings is None else int(settings.arrow_max_bytes_per_batch)
        # A batch that may grow without end is closed by nothing but its row count; then rows wait for rows.
        self.padding = b"\0" * (min(limit, PADDING_LIMIT_BYTES) + 1024)
        self._schema = RAW_SCHEMA if options.mode == "raw" else DECODED_SCHEMA

    def flush(self, number: int) -> pa.RecordBatch:
        """Flush rows alone."""
        return flush_batch(number, self.padding, self._schema)

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
