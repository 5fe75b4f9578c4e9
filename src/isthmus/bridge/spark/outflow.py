"""Messages from the reader to Spark.

What it is: the grouping of messages into batches, and the flush rows that push them through the buffers of Spark and of its
Python worker. What it is not: Spark (`source`, `worker`), or the rows' columns (`row`).

Invariants:
    I1. No message waits here or in Python's buffers longer than three times `flush_ms` plus `FLUSH_DELAY_LIMIT_SECONDS`, except where later
        rows push it on.
    I2. A few messages share one batch with their flush row: each batch costs as much as a few hundred rows.
    I3. Messages of one handle keep their order; those of one batch are grouped by handle, so that the sink gets few runs.
    I4. Every message is followed by a flush row, and the reader is notified of each flush before it is sent.
    I5. Nothing is sent once the lease has failed: messages that are still here were released at their source.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from isthmus.bridge.host.reader.item import LeaseEnd, Rows
from isthmus.bridge.spark.block import BLOCK_BYTES, MOST_BYTES, block_of
from isthmus.bridge.spark.row import Run, batch_of, block_batch, flush_batch

__all__ = ["Outflow", "RowSource"]

# 400 rows since the last flush delay the next by 20 ms: at that rate batches fill by themselves in less time, and flush rows
# of their size would double the bytes through Spark.
FLUSH_DELAY_SECONDS_PER_ROW = 50e-6
FLUSH_DELAY_LIMIT_SECONDS = 0.020
MAX_BATCH_ROWS = 2000
# One message that waits is pushed on `flush_ms` after the last flush, five or more after three times as long. A flush costs the processes of
# the path about a millisecond of processor time together: at some hundred messages a second there are no more flushes than messages,
# and at some thousand the flush rows alone would fill the path.
_SPACINGS = 3
_MANY_ROWS = 5
# Number of flush rows where the worker's file cannot be flushed: its 64 KiB buffer then keeps less than one of them.
_UNAIDED_FLUSHES = 2


class RowSource(Protocol):
    """The source of messages: `isthmus.bridge.host.reader.reader.ReaderHost`."""

    def take(self, until: float) -> Rows | LeaseEnd | None:
        """The next item; None if nothing came until then (monotonic seconds)."""
        ...

    def note_flush(self, number: int, rows: Mapping[int, int]) -> None:
        """Flush row `number` is sent now, after so many rows of each handle; the mapping changes later."""
        ...


class Outflow:
    """Makes the batches of one lease.

    Args:
        source: of the messages.
        flush_ms: the least time between two flushes; three times as long where several messages wait.
        padding_bytes: the size of a flush row (`arrow_batch.padding_bytes`).
        file: the worker's output file (`worker.output_file`); None where there is none to flush: then there are more flush rows.
        packs: whether all messages of a batch are sent as one row, because nothing reads rows before the sink.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        source: RowSource,
        *,
        flush_ms: float,
        padding_bytes: int,
        file: Any = None,
        packs: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._spacing = flush_ms / 1000
        self._padding = bytes(padding_bytes)
        self._file = file
        self._packs = packs
        self._full_bytes = max(padding_bytes, BLOCK_BYTES) if packs else padding_bytes
        self._clock = clock
        self._yielded: dict[int, int] = {}
        self._flushes = 0
        self._pending = _Pending()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Batches as messages arrive, until the lease has ended.

        The first is a flush row alone: with the first rows Spark starts the sink's worker, which then connects.

        Raises:
            IsthmusError: the error of the lease.
        """
        yield from self._flush()
        pending, unflushed = self._pending, 0
        flushed_at = due = -math.inf
        while True:
            item = self._source.take(due if unflushed else math.inf)
            if isinstance(item, Rows):
                pending.add(item)
                unflushed += len(item.positions)
                due = flushed_at + self._spacing_of(unflushed)
                if pending.rows >= MAX_BATCH_ROWS or pending.nbytes >= self._full_bytes:
                    yield from self._push(self._batch())
                continue
            if isinstance(item, LeaseEnd) and item.error is not None:
                raise item.error
            if unflushed:
                yield from self._flush()
                flushed_at, unflushed = self._clock(), 0
            if isinstance(item, LeaseEnd):
                return

    def _spacing_of(self, rows: int) -> float:
        """Seconds between two flushes where so many rows wait. Many rows push each other on, so that their flush may wait longer."""
        share = min(rows - 1, _MANY_ROWS - 1) / (_MANY_ROWS - 1)
        delay = min(FLUSH_DELAY_LIMIT_SECONDS, rows * FLUSH_DELAY_SECONDS_PER_ROW)
        return self._spacing * (1 + (_SPACINGS - 1) * share) + delay

    def _batch(self, flush: int | None = None) -> pa.RecordBatch:
        """The waiting messages, with flush rows after them if there is a flush to number."""
        packs = self._packs and self._pending.nbytes <= MOST_BYTES
        runs = self._counted()
        if packs:
            return block_batch(block_of(runs, self._padding), flush)
        return batch_of(runs, flush, self._padding)

    def _counted(self) -> Sequence[Run]:
        """Counts the waiting messages as sent."""
        runs = self._pending.take()
        for handle, positions, _ in runs:
            self._yielded[handle] = self._yielded.get(handle, 0) + len(positions)
        return runs

    def _flush(self) -> Iterator[pa.RecordBatch]:
        number = self._flushes
        self._flushes += 1
        batch = self._batch(number)
        self._source.note_flush(number, self._yielded)
        yield from self._push(batch)
        if self._file is None:
            for _ in range(_UNAIDED_FLUSHES - 1):
                yield flush_batch(number, self._padding)

    def _push(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch
        if self._file is not None:  # Spark has written the batch to it when it asks for the next
            self._file.flush()


class _Pending:
    """Messages for the next batch, by handle."""

    def __init__(self) -> None:
        self.rows = self.nbytes = 0
        self._runs: dict[int, list[Rows]] = {}

    def add(self, rows: Rows) -> None:
        self.rows += len(rows.positions)
        self.nbytes += sum(map(len, rows.payloads))
        self._runs.setdefault(rows.handle, []).append(rows)

    def take(self) -> Sequence[Run]:
        """Removes and returns all of them."""
        taken = [run for runs in self._runs.values() for run in runs]
        self._runs = {}
        self.rows = self.nbytes = 0
        return taken
