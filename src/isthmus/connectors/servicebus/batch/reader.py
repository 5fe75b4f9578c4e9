"""The worker's side of a micro-batch: receive it once, yield it as often as Spark evaluates it.

What it is: the first evaluation of a batch receives its messages and writes them to the query's folder (`store`); this one
and all later ones yield the messages written there. What it is not: the decisions when to grant credit and when to end
(`collection`), or settling (`settlement`).

Invariants:
    I1. Each evaluation of a batch yields the same messages in the same order, by whichever attempt of its task.
    I2. A batch counts as taken only after Spark has read its last row (`consumption`).
    I3. In an ordered read no message becomes a row while an earlier message is locked by another receiver.
    I4. A message of a committed batch is completed, and becomes no row again.
    I5. A batch whose received messages are lost stays empty: a sink that has the batch already would skip other messages under its number.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from isthmus.amqp.performative import Released
from isthmus.clock import SystemClock
from isthmus.connectors.servicebus.batch.collection import BatchLimits, Collection
from isthmus.connectors.servicebus.batch.consumption import Consumption
from isthmus.connectors.servicebus.batch.error import BatchFolderError, BatchOverError
from isthmus.connectors.servicebus.batch.store import BatchStore, Index, Writer
from isthmus.connectors.servicebus.connect import endpoint_of, open_client
from isthmus.connectors.servicebus.head import first_hole, first_waiting
from isthmus.connectors.servicebus.message.lock_duration import lock_duration_of
from isthmus.connectors.servicebus.message.sequence import enqueued_ms_of, sequences_of
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.spark.block import Block, batch_of
from isthmus.connectors.servicebus.spark.row import RAW_SCHEMA
from isthmus.errors import IsthmusError
from isthmus.transport import Client, Management, Receiver

__all__ = ["read_batch"]

CHUNK_ROWS = 5_000
CHUNK_BYTES = 4 << 20
DRAIN_SECONDS = 5.0
# How long another receiver's lock may outlast the batch: its duration, and this.
GUARD_SECONDS = 5.0
_LOCK_SECONDS_UNKNOWN = 30.0


def read_batch(
    options: SourceOptions, store: BatchStore, batch: int, reader: int, through: int
) -> Generator[pa.RecordBatch]:
    """The rows of one reader of a batch, as Arrow batches.

    Args:
        options: the read's options.
        store: the query's folder.
        batch: the batch's number.
        reader: the partition's number.
        through: the last sequence number wanted; 0: no limit.

    Raises:
        BatchFolderError: this machine has no access to the query's folder.
        BatchOverError: Spark has committed the batch.
        IsthmusError: the namespace is unreachable, or refuses.
    """
    path = options.entity.strip("/")
    try:
        if not store.exists():
            raise BatchFolderError(path, str(store.folder), "it does not exist")
        index = store.index(batch, reader, checked=True)
        if index is None:
            with store.receiving(batch, reader):
                index = store.index(batch, reader, checked=True)  # another attempt may have received it meanwhile
                if index is None and store.settled() >= batch:
                    raise BatchOverError(path, batch)
                if index is None and store.is_torn(batch, reader):
                    # Spark may have written its messages: others under the same number could be lost.
                    index = store.writer(batch, reader).complete(0)
                elif index is None:
                    index = _Receiving(options, store, batch, reader, through).run()
    except OSError as error:
        raise BatchFolderError(path, str(store.folder), error.strerror or str(error)) from None
    yield from _replay(options.mode, store, index)


def _replay(mode: str, store: BatchStore, index: Index) -> Iterator[pa.RecordBatch]:
    if not index.count:
        store.mark_taken(index.batch, index.reader)
        return
    consumption = Consumption.of_this_worker()
    try:
        with store.payloads(index.batch, index.reader) as data:
            yield from _chunks(mode, index, data)
        filler = batch_of(mode, Block(range(0), [], []))
        for _ in range(consumption.filler_bytes // _ipc_bytes(filler) + 1):
            yield filler
        if consumption.wait():
            store.mark_taken(index.batch, index.reader)
    finally:
        consumption.close()


def _ipc_bytes(batch: pa.RecordBatch) -> int:
    return max(1, int(pa.ipc.get_record_batch_size(batch)))


def _chunks(mode: str, index: Index, data: Any) -> Iterator[pa.RecordBatch]:
    offsets = np.zeros(index.count + 1, np.int64)
    np.cumsum(index.sizes, dtype=np.int64, out=offsets[1:])
    first = 0
    while first < index.count:
        by_bytes = int(np.searchsorted(offsets, offsets[first] + CHUNK_BYTES, "right")) - 1
        last = min(index.count, first + CHUNK_ROWS, max(first + 1, by_bytes))
        low, high = int(offsets[first]), int(offsets[last])
        cells = offsets[first : last + 1] - low
        tokens = index.tokens[first * 16 : last * 16]
        if mode == "raw":
            yield _raw(data[low:high], cells, tokens, index.sequences[first:last])
        else:
            piece = bytes(data[low:high])
            payloads = [piece[start:stop] for start, stop in zip(cells[:-1].tolist(), cells[1:].tolist(), strict=True)]
            split = [tokens[at : at + 16] for at in range(0, len(tokens), 16)]
            yield batch_of(mode, Block(index.sequences[first:last].tolist(), split, payloads))
        first = last


def _raw(data: bytes, offsets: Any, tokens: bytes, sequences: Any) -> pa.RecordBatch:
    count = len(sequences)
    token_offsets = np.arange(0, 16 * count + 1, 16, dtype=np.int32)
    buffers = [(offsets.astype(np.int32), data), (token_offsets, tokens)]
    cells = [
        pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(each), pa.py_buffer(content)])
        for each, content in buffers
    ]
    numbers = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(np.ascontiguousarray(sequences))])
    return pa.RecordBatch.from_arrays([*cells, numbers], schema=RAW_SCHEMA)


class _Receiving:
    """Receives one batch."""

    def __init__(self, options: SourceOptions, store: BatchStore, batch: int, reader: int, through: int) -> None:
        # Each reader of the batch takes its share.
        rows, nbytes = (max(1, each // options.partitions) for each in (options.batch_rows, options.batch_bytes))
        limits = BatchLimits(options.batch_seconds, rows, nbytes, options.window, options.idle_seconds)
        self._options = options
        self._store = store
        self._batch_and_reader = (batch, reader)
        self._through = through
        self._path = options.entity.strip("/")
        self._clock = SystemClock()
        self._collection = Collection(limits, time.monotonic())
        self._lock_seconds = options.lock_seconds or _LOCK_SECONDS_UNKNOWN
        # Taken before any credit: a message that is read later was sent after this time.
        self._guarded_seconds = store.guarded_seconds()
        self._guarded = False
        self._handed_on = 0
        self._kept: list[Sequence[int]] = []  # delivery ids of the written messages
        self._late = store.all_late()

    def run(self) -> Index:
        """Receives until the batch ends; returns its contents."""
        writer = self._store.writer(*self._batch_and_reader)
        try:
            with open_client(endpoint_of(self._options), self._path, f"isthmus-batch-{os.getpid()}") as client:
                receiver = Receiver(client, self._path).wait_attached()
                try:
                    self._receive(client, receiver, writer)
                    return writer.complete(int(self._renewal_seconds * 1000))
                except (OSError, IsthmusError):
                    with contextlib.suppress(IsthmusError):
                        self._release_all(client, receiver)
                    raise
        finally:
            writer.close()

    @property
    def _renewal_seconds(self) -> float:
        """The lock duration for renewals; no long one of unknown origin, which a slow clock would make too short."""
        return self._lock_seconds if self._options.lock_seconds else min(self._lock_seconds, _LOCK_SECONDS_UNKNOWN)

    def _release_all(self, client: Client, receiver: Receiver) -> None:
        """With a full disk, messages whose locks expire again and again would end as dead letters."""
        self._drain(client, receiver)
        for run in receiver.take():
            self._kept.append(range(run.first_id, run.first_id + len(run.payloads)))
        for ids in self._kept:
            _release(receiver, ids)
        client.flush()

    def _drain(self, client: Client, receiver: Receiver) -> None:
        receiver.drain()
        limit = time.monotonic() + DRAIN_SECONDS
        while client.error is None and receiver.error is None and not receiver.drained and time.monotonic() < limit:
            client.wait(limit - time.monotonic())

    def _receive(self, client: Client, receiver: Receiver, writer: Writer) -> None:
        collection, management = self._collection, Management(client, self._path)
        now = time.monotonic()
        while client.error is None and receiver.error is None and not collection.decide(now):
            credit = collection.credit(now, receiver.credit)
            if credit:
                receiver.grant(credit)
            if collection.wants_peek(now):
                waits = first_waiting(management.peek, self._clock.wall_ms(), self._through or 1 << 62) is not None
                collection.peeked(now, waits)
            client.flush()
            if not receiver.arrived:
                client.wait(max(0.0, collection.due(now) - time.monotonic()))
            now = time.monotonic()
            self._take(receiver, management, writer, now)
        self._drain(client, receiver)
        self._take(receiver, management, writer, time.monotonic())
        # Messages received before the connection was lost are locked, and their tokens settle them over another one.
        error = client.error or receiver.error
        if error is not None or not receiver.drained:
            self._store.guard()  # deliveries in transit on this link are locked, and were never received
        if error is not None and not writer.count:
            raise error

    def _take(self, receiver: Receiver, management: Management, writer: Writer, now: float) -> None:
        while receiver.arrived:  # one at a time: the rest can be released when one fails
            run = receiver.arrived.popleft()
            first_id, tokens, payloads = run.first_id, list(run.tags), list(run.payloads)
            self._learn(payloads[0])
            sequences = sequences_of(payloads)
            keep = [
                at
                for at, sequence in enumerate(sequences)
                if (not self._through or sequence <= self._through) and not self._is_late(sequence, payloads[at])
            ]
            if len(keep) < len(payloads):
                self._release_late(receiver, first_id, sequences, payloads, set(keep))
                sequences = [sequences[at] for at in keep]
                tokens, payloads = [tokens[at] for at in keep], [payloads[at] for at in keep]
                ids = [first_id + at for at in keep]
            else:
                ids = list(range(first_id, first_id + len(payloads)))
            self._add(receiver, management, writer, (sequences, tokens, payloads, ids), now)
            if self._through and sequences and max(sequences[0], sequences[-1]) >= self._through:
                self._collection.end("through")

    def _add(self, receiver: Receiver, management: Management, writer: Writer, found: Any, now: float) -> None:
        sequences, tokens, payloads, ids = found
        hole = None
        if self._collection.ended_by == "blocked":
            _release(receiver, ids)
            return
        if sequences and self._guarded:
            hole = first_hole(management.peek, self._clock.wall_ms(), self._handed_on, sequences)
        if hole is not None:
            keep = next((at for at, sequence in enumerate(sequences) if sequence > hole.sequence), len(sequences))
            _release(receiver, ids[keep:])
            sequences, tokens, payloads, ids = sequences[:keep], tokens[:keep], payloads[:keep], ids[:keep]
        if payloads:
            self._kept.append(range(ids[0], ids[-1] + 1) if ids[-1] - ids[0] == len(ids) - 1 else ids)
            self._handed_on = max(self._handed_on, sequences[-1])
            writer.add(sequences, tokens, payloads)
            nbytes = sum(map(len, payloads))
            self._collection.arrived(now, len(payloads), nbytes, max(map(len, payloads)), self._lock_seconds)
        if hole is not None:
            receiver.drain()
            self._collection.blocked(now)

    def _release_late(
        self, receiver: Receiver, first_id: int, sequences: Sequence[int], payloads: Sequence[bytes], keep: set[int]
    ) -> None:
        for at, sequence in enumerate(sequences):
            if at not in keep:
                late = self._is_late(sequence, payloads[at])
                receiver.dispose(first_id + at, first_id + at, None if late else Released())
                if late:
                    self._handed_on = max(self._handed_on, sequence)

    def _is_late(self, sequence: int, payload: bytes) -> bool:
        # An entity that was deleted and created again numbers from 1: the time must match, too.
        enqueued_ms = self._late.get(sequence) if self._late else None
        return enqueued_ms is not None and enqueued_ms == enqueued_ms_of(payload)

    def _learn(self, message: bytes) -> None:
        """Reads the lock duration from the first message."""
        if self._collection.rows:
            return
        longest = self._lock_seconds
        if (found := lock_duration_of(message, self._options.lock_seconds)) is not None:
            self._lock_seconds, longest = found
        guarded_seconds = min(self._guarded_seconds, self._store.guarded_seconds())
        self._guarded = self._options.ordered and guarded_seconds < longest + GUARD_SECONDS


def _release(receiver: Receiver, ids: Sequence[int]) -> None:
    if ids and ids[-1] - ids[0] == len(ids) - 1:
        receiver.dispose(ids[0], ids[-1], Released())
    else:
        for each in ids:
            receiver.dispose(each, each, Released())
