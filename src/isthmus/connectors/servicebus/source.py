"""The Spark data source `servicebus`: what Spark calls.

What it is: `ServiceBusDataSource` and its readers. A streaming read is a sequence of leases (see `lease`); a batch read
browses. What it is not: the options (`option`), the rows (`row`), the sink (`sink`).

Which process runs what: `latestOffset`, `partitions` and `commit` run in one Python process at the driver that lives as
long as the query; `read` runs in a worker, anew for every lease. What passes between them is pickled, and holds no
secret.

Offsets are {"lease": n}: a queue has no position to go back to. A started lease is repeated after a crash under the
same offset, and moves what waits then.
Over 400 lines: what Spark calls at the driver and what it calls in the worker stand side by side, as Spark has them.

Invariants:
    I1. `latestOffset` starts a lease only when a message waits, and never blocks much longer than `look_seconds`. One is
        excepted: the first of a query is a rehearsal that ends at once, without a message. Spark then has its workers for
        both ends and for the commit, whose start would hold up the first messages, and the first lease change, by seconds.
    I2. With settle=commit nothing is settled before Spark committed the batch; a batch that is read again after a crash
        holds what was not settled, for the locks have expired.
    I3. Between two messages of a lease nothing waits in Python's buffers longer than `flush_ms`.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Client as DialCollector
from multiprocessing.connection import Connection as CollectorConnection
from multiprocessing.connection import Listener
from pathlib import Path
from queue import Empty
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from isthmus.clock import SystemClock
from isthmus.connectors.servicebus import channel as frames
from isthmus.connectors.servicebus.channel import Channel, Claim, channel_path, dial, private_directory, sweep
from isthmus.connectors.servicebus.connect import endpoint_of, open_client
from isthmus.connectors.servicebus.head import Standing, first_waiting, last_sequence
from isthmus.connectors.servicebus.lease import Block, Finish, HeldElsewhereError, Lease, LeaseEnd, LeaseLimits
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.row import (
    DECODED_DDL,
    DECODED_SCHEMA,
    RAW_DDL,
    RAW_SCHEMA,
    decoded_batch,
    flush_batch,
    raw_batch,
    with_flush,
)
from isthmus.connectors.servicebus.sequence import sequences_of
from isthmus.connectors.servicebus.sink import ServiceBusSinkMixin
from isthmus.errors import IsthmusError, LockLostError
from isthmus.transport import Client, Management

__all__ = ["ServiceBusDataSource"]

# Above spark.sql.execution.arrow.maxBytesPerBatch the row closes the batch that Spark fills for the sink.
DEFAULT_ARROW_BATCH_BYTES = 262_144
PADDING_LIMIT_BYTES = 4 << 20
# 400 rows since the last flush put off the next by 20 ms: at that rate a batch of 256 KiB fills by itself in less, and
# flush rows of that size would double what goes through Spark.
FLUSH_DELAY_SECONDS_PER_ROW = 50e-6
FLUSH_DELAY_LIMIT_SECONDS = 0.020
SWITCH_INTERVAL_SECONDS = 0.001
FIRST_LOOK_SECONDS = 0.05
# A look that found only what others hold, or a lease that moved nothing: the next comes after so long, then later.
FRUITLESS_SECONDS = 0.5
FRUITLESS_LIMIT_SECONDS = 30.0
FRUITLESS_NOW_SECONDS = 3.0
# The longest LockDuration is 5 minutes: what is held for longer is held by somebody who is alive.
HELD_SECONDS = 310.0
MAX_BLOCK_ROWS = 2000
PEEK_PAGE = 250
TOKEN_CHUNK = 400


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
            yield _batch(options.mode, [], [], [])
            while left > 0 and (page := management.peek(start, min(PEEK_PAGE, left))):
                sequences = list(sequences_of(page))
                yield _batch(options.mode, page, [b""] * len(page), sequences)
                left -= len(page)
                start = sequences[-1] + 1


def _batch(mode: str, payloads: list[bytes], tokens: list[bytes], sequences: Sequence[int]) -> pa.RecordBatch:
    return raw_batch(payloads, tokens, sequences) if mode == "raw" else decoded_batch(payloads, tokens)


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
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_driver": None}

    # ---- at the driver

    @property
    def _here(self) -> _Driver:
        if self._driver is None:
            self._driver = _Driver(self.options)
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
        return self._here.partitions(int(start["lease"]), int(end["lease"]))

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
        label=f"{partition.lease}/{partition.number}",
        steps=options.steps,
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


def _stream(options: SourceOptions, partition: LeasePartition) -> Iterator[pa.RecordBatch]:
    """Rows as they arrive; returns when the lease's accounts are closed."""
    out = _Out(options)
    lease = _lease(options, partition, task_channel())
    lease.start()
    try:
        # Spark starts the sink's worker with the first row: a flush row starts it now, to connect while this side does.
        yield out.flush(0)
        out.push()
        yield from _rows(options, lease, out)
    finally:
        lease.stop("the reader was closed")
        lease.join(10.0)


def _rows(options: SourceOptions, lease: Lease, out: _Out) -> Iterator[pa.RecordBatch]:
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
                yield _batch(options.mode, payloads, tokens, sequences)
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


class _Out:
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
                yield _batch(options.mode, item.payloads, item.tokens, item.sequences)
        if item.error is not None:
            raise item.error
    finally:
        lease.stop("the reader was closed")
        lease.join(10.0)
    address, key = partition.collector
    with DialCollector(address, "AF_UNIX", key) as collector:
        collector.send_bytes(partition.lease.to_bytes(8, "big") + b"".join(tokens))
        collector.recv_bytes()


# ---- the driver's side


class _Collector:
    """Takes lock tokens from the workers, for settling at commit; one thread."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self.address = str(private_directory() / f"{secrets.token_hex(16)}.tokens")
        self._tokens: dict[int, list[bytes]] = {}
        self._claim = Claim(Path(self.address))
        self._listener = Listener(self.address, "AF_UNIX", backlog=16, authkey=self.key)
        threading.Thread(target=self._serve, name="tokens", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError):
                return
            except Exception:  # noqa: BLE001, S112 - a caller without the key is turned away; the next may have it
                continue
            with contextlib.suppress(OSError, EOFError), connection:
                self._take(connection)

    def _take(self, connection: CollectorConnection[Any, Any]) -> None:
        data = connection.recv_bytes()
        self._tokens.setdefault(int.from_bytes(data[:8], "big"), []).append(data[8:])
        connection.send_bytes(b"taken")

    def through(self, lease: int) -> list[bytes]:
        """The tokens of leases up to `lease`; they are forgotten here."""
        found = [self._tokens.pop(number) for number in sorted(self._tokens) if number <= lease]
        joined = b"".join(part for parts in found for part in parts)
        return [joined[at : at + 16] for at in range(0, len(joined), 16)]

    def close(self) -> None:
        self._listener.close()
        self._claim.discard()


class _Driver:
    """The part of a streaming read that lives as long as the query."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.path = options.entity.strip("/")
        self._clock = SystemClock()
        sweep()
        self._client: Client | None = None
        self._management: Management | None = None
        self._collector: _Collector | None = None
        self._control: Channel | None = None
        self._stopping = False
        self._through = 0
        self._available_now = False
        self._lease = 0
        self._last_found: Standing | None = None
        self._fruitless = 0
        self._not_before = 0.0
        self._next_look = 0.0
        self._pause = FIRST_LOOK_SECONDS
        self._found_at = 0.0
        self._tail = 0
        self._rehearsal: int | None = None

    # ---- looking

    def latest(self, lease: int) -> dict[str, Any]:
        """The offset of the next lease if something waits, else the same offset."""
        self._lease = lease
        # Spark asks for the next offset only after it has committed the batch before; it tells so itself only when there
        # is a next batch, which may be too late for the locks.
        self.commit(lease)
        if self._available_now and self._through == 0:
            return {"lease": lease}
        if self._rehearsal is None and not self._available_now and self.options.settle == "sink":
            self._rehearsal = lease + 1
            return {"lease": lease + 1}
        limit = time.monotonic() + self.options.look_seconds
        while True:
            self._serve_control()
            if self._stopping:
                time.sleep(0.05)
                return {"lease": lease}
            now = time.monotonic()
            if now >= max(self._not_before, self._next_look):
                if self._look():
                    self._pause = FIRST_LOOK_SECONDS
                    return {"lease": lease + 1}
                self._next_look = now + min(self._pause, self.options.look_pause_seconds)
                self._pause = min(self._pause * 2, self.options.look_pause_seconds)
            if self._available_now:
                if self._last_found is None:
                    return {"lease": lease}
                limit = self._not_before + 1.0  # what others hold comes free, or a lease names it
            if now >= limit:
                return {"lease": lease}
            wait = min(max(self._not_before, self._next_look), limit) - time.monotonic()
            time.sleep(max(0.01, wait))

    def _look(self) -> bool:
        through = self._through or (1 << 62)
        found = first_waiting(self._peek, self._clock.wall_ms(), through)
        if found is None:
            self._last_found, self._fruitless = None, 0
            return False
        now = time.monotonic()
        if self._last_found is not None and found.sequence == self._last_found.sequence:
            # The lease before moved nothing past this message: somebody else holds it.
            self._fruitless += 1
            longest = FRUITLESS_NOW_SECONDS if self._available_now else FRUITLESS_LIMIT_SECONDS
            delay = min(longest, FRUITLESS_SECONDS * 2 ** min(self._fruitless, 10))
            if self._available_now and now - self._found_at > HELD_SECONDS:
                raise HeldElsewhereError(self.path, found.sequence, HELD_SECONDS)
            self._not_before = now + delay
        else:
            self._fruitless = 0
            self._found_at = now
        self._last_found = found
        return True

    def _peek(self, start: int, count: int) -> list[bytes]:
        for attempt in (0, 1):
            management = self._management
            if management is None or self._client is None or self._client.error is not None:
                management = self._connect()
            try:
                return management.peek(start, count)
            except IsthmusError as error:
                self._disconnect()
                if attempt or not error.retryable:
                    raise
        return []

    def _connect(self) -> Management:
        self._disconnect()
        self._client = open_client(endpoint_of(self.options), self.path, f"isthmus-look-{os.getpid()}")
        self._management = Management(self._client, self.path)
        return self._management

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.abandon()
        self._client = self._management = None

    def prepare_available_now(self) -> None:
        """Notes the last sequence number that stands now: nothing later is moved in this run."""
        self._available_now = True
        self._through = last_sequence(self._peek, 0)

    def standing(self) -> dict[str, Any]:
        """For Spark's progress: the lease under way and what waits at its end."""
        told: dict[str, Any] = {"lease": self._lease}
        with contextlib.suppress(IsthmusError):
            head = first_waiting(self._peek, self._clock.wall_ms())
            self._tail = last_sequence(self._peek, self._tail)
            told["waiting_at_most"] = max(0, self._tail - head.sequence + 1) if head is not None else 0
            told["lag_ms"] = max(0, self._clock.wall_ms() - head.enqueued_ms) if head is not None else 0
        return told

    # ---- leases

    def partitions(self, start: int, end: int) -> Sequence[InputPartition]:
        """The readers of the lease `end`."""
        if start == end:
            return []
        collector: tuple[str, bytes] | None = None
        if self.options.settle == "commit":
            if self._collector is None:
                self._collector = _Collector()
            collector = (self._collector.address, self._collector.key)
        self._rehearsal = self._rehearsal or 0  # Spark repeats a lease that a crash broke off: that is rehearsal enough
        rehearsal = end == self._rehearsal
        seconds = 0.0 if rehearsal else self.options.lease_seconds * random.uniform(0.9, 1.1)
        return [
            LeasePartition(end, number, self._through, seconds, collector) for number in range(self.options.partitions)
        ]

    def commit(self, lease: int) -> None:
        """Spark has committed the batch: with settle=commit, what it held is completed now."""
        if self._collector is None:
            return
        tokens = self._collector.through(lease)
        for start in range(0, len(tokens), TOKEN_CHUNK):
            self._complete(tokens[start : start + TOKEN_CHUNK])

    def _complete(self, tokens: list[bytes]) -> None:
        management = self._management
        if management is None or self._client is None or self._client.error is not None:
            management = self._connect()
        try:
            management.finish(management.start_disposition("completed", tokens))
        except LockLostError:
            for token in tokens if len(tokens) > 1 else ():
                self._complete([token])

    # ---- the driver's wishes

    def _serve_control(self) -> None:
        if not self.options.control:
            return
        if self._control is None or self._control.closed:
            self._control = dial(Path(self.options.control))
        control = self._control
        if control is None:
            return
        for kind, _ in control.receive():
            if kind == frames.STOP:
                self._stopping = True

    def close(self) -> None:
        """The query is over."""
        if self._client is not None:
            self._client.close(1.0)
        if self._collector is not None:
            self._collector.close()
        if self._control is not None:
            self._control.close()
