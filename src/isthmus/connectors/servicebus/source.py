"""The Spark data source `servicebus`: what Spark calls.

What it is: `ServiceBusDataSource` and its readers. A streaming read is a sequence of leases (see `lease`); a batch read
browses. What it is not: the options (`option`), the rows (`row`, `outflow`), the looks (`lookout`), the sink (`sink`).

Which process runs what: `latestOffset`, `partitions` and `commit` run in one Python process at the driver that lives as
long as the query; `read` runs in a worker, anew for every lease. What passes between them is pickled, and holds no
secret.

Offsets are {"lease": n}: a queue has no position to go back to. A started lease is repeated after a crash under the
same offset, and moves what waits then.

Invariants:
    I1. `latestOffset` starts a lease only when a message waits, and never blocks much longer than `look_seconds`. One is
        excepted: the first of a query is a rehearsal that ends at once, without a message. Spark then has its workers for
        both ends and for the commit, whose start would hold up the first messages, and the first lease change, by seconds.
    I2. With settle=commit nothing is settled before Spark committed the batch; a batch that is read again after a crash
        holds what was not settled, for the locks have expired.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from isthmus.connectors.servicebus.arrow_batch import padding_bytes
from isthmus.connectors.servicebus.channel import channel_path
from isthmus.connectors.servicebus.connect import endpoint_of, open_client
from isthmus.connectors.servicebus.lease import Lease
from isthmus.connectors.servicebus.lease_item import Block, LeaseEnd, LeaseLimits
from isthmus.connectors.servicebus.lookout import Lookout
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.outflow import Outflow, batch_of, stream
from isthmus.connectors.servicebus.row import DECODED_DDL, RAW_DDL
from isthmus.connectors.servicebus.sequence import sequences_of
from isthmus.connectors.servicebus.sink import ServiceBusSinkMixin
from isthmus.connectors.servicebus.token_collector import hand_over_tokens
from isthmus.connectors.servicebus.turn import Turn
from isthmus.transport import Management

__all__ = ["ServiceBusDataSource"]

SWITCH_INTERVAL_SECONDS = 0.001
PEEK_PAGE = 250


class ServiceBusDataSource(ServiceBusSinkMixin, DataSource):
    """`format("servicebus")`."""

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> str:
        return RAW_DDL if SourceOptions.read(self.options).mode == "raw" else DECODED_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return BrowseReader(SourceOptions.read(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - as above; Spark's name
        return LeaseReader(SourceOptions.read(self.options))


class BrowseReader(DataSourceReader):
    """A batch read: peeks, locks nothing, removes nothing."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        options = self.options
        path = options.entity.strip("/")
        left = options.max_rows or sys.maxsize
        start = options.from_sequence
        with open_client(endpoint_of(options), path, "isthmus-browse") as client:
            management = Management(client, path)
            yield batch_of(options.mode, Block(range(0), [], []))
            while left > 0 and (page := management.peek(start, min(PEEK_PAGE, left))):
                sequences = list(sequences_of(page))
                yield batch_of(options.mode, Block(sequences, [b""] * len(page), page))
                left -= len(page)
                start = sequences[-1] + 1


class LeasePartition(InputPartition):
    """What one reader of a lease is told."""

    def __init__(
        self, lease: int, number: int, through: int, seconds: float, collector: tuple[str, bytes] | None
    ) -> None:
        super().__init__(number)
        self.lease = lease
        self.number = number
        self.through = through
        self.seconds = seconds
        self.collector = collector

    def __repr__(self) -> str:
        return f"LeasePartition({self.lease}, {self.number})"


class LeaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._driver: Lookout | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_driver": None}

    # ---- at the driver

    @property
    def _here(self) -> Lookout:
        if self._driver is None:
            self._driver = Lookout(self.options)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"lease": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self.options.lease_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._here.latest(int(start["lease"]))  # the reader keeps the limits

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return self._here.standing()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._here.prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        options = self.options
        collector = self._here.collector() if options.settle == "commit" else None
        seconds = self._here.lease_seconds(int(end["lease"]))
        return [
            LeasePartition(int(end["lease"]), number, self._here.lease_through, seconds, collector)
            for number in range(options.partitions)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        self._here.commit(int(end["lease"]))

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()

    # ---- in the worker

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LeasePartition)
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        if self.options.settle == "commit":
            return _collect(self.options, partition)
        return _stream(self.options, partition)


# ---- the worker's side


def _lease(options: SourceOptions, partition: LeasePartition, channel_file: Path | None, **changes: Any) -> Lease:
    limits = LeaseLimits(
        seconds=changes.get("seconds", partition.seconds),
        rows=options.lease_rows,
        nbytes=options.lease_bytes,
        idle_seconds=changes.get("idle_seconds", options.idle_seconds),
        through=partition.through,
    )
    return Lease(
        endpoint_of(options),
        options.entity.strip("/"),
        limits,
        window=options.window,
        window_bytes=options.window_bytes,
        ordered=options.ordered,
        channel_file=channel_file,
        control_file=Path(options.control) if options.control else None,
        turn=Turn(Path(options.turns), options.turn) if options.turns and partition.seconds else None,
        label="/".join((*((options.turn,) if options.turns else ()), str(partition.lease), str(partition.number))),
        lock_seconds=options.lock_seconds,
        steps=options.steps,
        claimed=options.claimed,
    )


def task_channel() -> Path | None:
    """Where reader and sink of the running task meet; None outside a task."""
    context = TaskContext.get()
    if context is None:
        return None
    return channel_path(
        context.getLocalProperty("sql.streaming.queryId"),
        context.stageId(),
        context.partitionId(),
        context.taskAttemptId(),
    )


def _setting(name: str) -> str | None:
    """A setting of the session that this task runs in: Spark hands them all on with its jobs."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def _stream(options: SourceOptions, partition: LeasePartition) -> Iterator[pa.RecordBatch]:
    """Rows as they arrive; returns when the lease's accounts are closed."""
    out = Outflow(options, padding_bytes(_setting, os.environ.get("SPARK_BUFFER_SIZE")))
    lease = _lease(options, partition, task_channel())
    lease.start()
    try:
        # Spark starts the sink's worker with the first row: a flush row starts it now, to connect while this side does.
        yield out.flush(0)
        out.push()
        yield from stream(options, lease, out)
    finally:
        lease.stop("the reader was closed")
        lease.join(10.0)


def _collect(options: SourceOptions, partition: LeasePartition) -> Iterator[pa.RecordBatch]:
    """A classic micro-batch: what waits now, at most `batch_seconds` of it; its lock tokens go to the driver."""
    assert partition.collector is not None
    lease = _lease(
        options, partition, None, seconds=options.batch_seconds, idle_seconds=min(0.2, options.batch_seconds)
    )
    lease.start()
    tokens: list[bytes] = []
    try:
        while not isinstance(item := lease.blocks.get(), LeaseEnd):
            if isinstance(item, Block):
                tokens += item.tokens
                yield batch_of(options.mode, item)
        if item.error is not None:
            raise item.error
    finally:
        lease.stop("the reader was closed")
        lease.join(10.0)
    hand_over_tokens(partition.collector, partition.lease, partition.number, tokens)
