"""The spool as Spark reads it for windows: messages with their times, and the advance of time.

What it is: the streaming read for `rows: timed`. A batch ends with one row of kind 1, which contains the time after it, the number of
the next record and, as its message, the number of rows; so Spark's watermark follows the clock of the spool, also without messages. What
it is not: the clock (`spool_clock`).

A batch is one partition: a shuffle keeps the order of the rows of one task.

Invariants:
    I1. A batch that Spark repeats has the same rows, with the same times.
    I2. Before a segment is deleted, what Spark has written of the batches that read it is on disk, on this machine.
    I3. What was taken is read by no other query: its messages are in the state of the one that took them, or in what that has written. Nor
        is what a route has taken that had no query meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.option import ReadOptions
from isthmus.connectors.spool.reader import Range, SpoolPosition
from isthmus.connectors.spool.source import SpoolStreamReader, position_of
from isthmus.connectors.spool.spool_clock import END_ROW, MESSAGE_ROW, SpoolClock, time_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TIMED_DDL", "TimedStreamReader"]

TIMED_DDL = "kind int, spool_number long, source string, time timestamp, message binary"
_ALL = 1 << 62


class TimedPartition(InputPartition):
    """A batch: parts of segments; records before `number` are skipped."""

    def __init__(self, parts: Sequence[Range], number: int, floor_ms: int, end: SpoolPosition, now_ms: int) -> None:
        super().__init__(0)
        self.parts = tuple(parts)
        self.number = number
        self.floor_ms = floor_ms
        self.end = end
        self.now_ms = now_ms


class TimedStreamReader(SpoolStreamReader):
    """A streaming read; runs at the driver, except `read`."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._began_ms = _wall_ms()
        self._past: SpoolPosition | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._timed(self._begin(), SpoolClock())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        position, clock = self._known_position(start), _clock_of(start)
        end = self._spool.end(position, self.options.batch_bytes)
        if end.number == position.number and end.segment == position.segment:
            options = self.options
            idle = clock.idle(_wall_ms(), self._began_ms, options.window_ms, options.slack_ms)
            return self._timed(position, clock if idle == clock else idle.kept(options.slack_ms))
        floor_ms = clock.floor_ms(self.options.slack_ms)
        for part in self._spool.ranges(position, end, _ALL):
            for block, records in self._spool.blocks(part):
                if records:
                    newest = max(time_of(each.enqueued_ms, block.written_ms) for each in records)
                    clock = clock.seen(newest, block.written_ms, floor_ms)
        return self._timed(end, clock.kept(self.options.slack_ms))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._is_of_another(end):
            return []
        position, last = self._position(start), position_of(end)
        parts = self._spool.ranges(position, last, _ALL) if position != last else []
        floor_ms = _clock_of(start).floor_ms(self.options.slack_ms)
        return [TimedPartition(parts, position.number, floor_ms, last, _clock_of(end).now_ms)]

    def commit(self, end: dict[str, Any]) -> None:
        if not self.options.releases or end["spool"] != self._spool.identity:
            return
        position = position_of(end)
        self._spool.take(self._position(end).number)  # never below what was sent without the query
        if self._spool.would_release(position):
            os.sync()  # Spark does not sync its checkpoint, which contains the state made of these messages
            self._spool.release(position)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TimedPartition)
        count = 0
        for part in partition.parts:
            for block, records in self._spool.blocks(part):
                first = max(block.first, partition.number)
                fresh = records[first - block.first :]
                if fresh:
                    count += len(fresh)
                    yield _batch(first, block.written_ms, fresh, partition.floor_ms)
        yield _rows([END_ROW], [partition.end.number], [""], [partition.now_ms], [b"%d" % count])

    def _position(self, offset: dict[str, Any]) -> SpoolPosition:
        position = super()._position(offset)
        spool, _, number = self.options.past.partition(" ")
        if not number or spool != self._spool.identity or position.number >= int(number):
            return position
        if self._past is None:
            self._past = self._spool.at(int(number))
        return self._past

    def _begin(self) -> SpoolPosition:
        taken = self._spool.taken()
        return self._spool.first() if taken is None else self._spool.at(taken)

    def _timed(self, position: SpoolPosition, clock: SpoolClock) -> dict[str, Any]:
        return {**self._offset(position), **clock._asdict()}


def _clock_of(offset: dict[str, Any]) -> SpoolClock:
    return SpoolClock(*(int(offset.get(name, 0)) for name in SpoolClock._fields))


def _batch(first: int, written_ms: int, records: Sequence[Record], floor_ms: int) -> pa.RecordBatch:
    return _rows(
        [MESSAGE_ROW] * len(records),
        list(range(first, first + len(records))),
        [each.key for each in records],
        [max(floor_ms, time_of(each.enqueued_ms, written_ms)) for each in records],
        [each.message for each in records],
    )


def _rows(
    kinds: list[int], numbers: list[int], sources: list[str], times_ms: list[int], messages: list[bytes]
) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(
        [
            pa.array(kinds, pa.int32()),
            pa.array(numbers, pa.int64()),
            pa.array(sources, pa.string()),
            pa.array([each * 1000 for each in times_ms], pa.timestamp("us", tz="UTC")),
            pa.array(messages, pa.binary()),
        ],
        names=["kind", "spool_number", "source", "time", "message"],
    )


def _wall_ms() -> int:
    return round(time.time() * 1000)
