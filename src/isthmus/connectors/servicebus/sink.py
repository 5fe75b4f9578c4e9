"""The Spark data sink `servicebus`: what Spark calls to write.

What it is: writers that take Arrow batches apart and hand copies to an `Outlet`. Raw rows (column `message`) go on as
they are but for the splice; other rows are encoded from the decoded columns. A row whose column `disposition` is not null
is not sent: it gets that disposition at its source (`complete`, `dead-letter`, `defer`, `abandon`), with the columns
`reason` and `description`. What it is not: the sending (`outlet`), the splice (`splice`).

Invariants:
    I1. `write` returns only after the target has acknowledged every row, and, in a lease, after the reader said that the
        lease ended in good order: end of input alone is not success.
    I2. Rows are handed over in their order.
    I3. Every row that has a place at a source gets a disposition there; none is dropped silently.
    I4. What cannot be written is refused when the query is planned: overwriting, and columns that no message is made of.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from isthmus.bridge.source_clock import bounded_ms
from isthmus.connectors.servicebus.channel import channel_path
from isthmus.connectors.servicebus.connect import endpoint_of, open_client
from isthmus.connectors.servicebus.disposition import outcome_of, start_settling
from isthmus.connectors.servicebus.head import standing
from isthmus.connectors.servicebus.option import SinkOptions, SourceOptions
from isthmus.connectors.servicebus.outlet import Outlet
from isthmus.connectors.servicebus.row import DECODED_SCHEMA, FLUSH_SEQUENCE, encode
from isthmus.connectors.servicebus.sequence import broker_times_of
from isthmus.connectors.servicebus.splice import Mark, Refused, Splicer
from isthmus.errors import ConfigError, ConnectionLostError, Fault, InvalidArgumentError, LockLostError
from isthmus.transport import Client, Management

__all__ = ["DISPOSITIONS", "ServiceBusSinkMixin"]

DISPOSITIONS = ("complete", "dead-letter", "defer", "abandon")
# What is read beside a message: where it comes from, and what becomes of it there.
PLACE_COLUMNS = ("lock_token", "sequence_number", "disposition", "reason", "description")
SWITCH_INTERVAL_SECONDS = 0.001
# The state of a message that waits, or is locked.
ACTIVE = 0
# Up to so many, a loop is faster than numpy.
FEW_ROWS = 32


class ServiceBusSinkMixin:
    """The writing half of the data source."""

    options: Any

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise InvalidArgumentError(
                "servicebus write: messages cannot be overwritten; write mode('append'), and purge the entity first if it "
                "has to be empty"
            )
        return BatchWriter(SinkOptions.read(self.options), _columns(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - as above; Spark's
        if overwrite:
            raise InvalidArgumentError("servicebus write: messages cannot be overwritten; write outputMode('append')")
        return StreamWriter(SinkOptions.read(self.options), _columns(schema))


def _columns(schema: StructType) -> list[str]:
    """The names of the columns to write.

    Raises:
        ConfigError: there is no column to make messages of, or nothing would be written from a column that is there.
    """
    names: list[str] = schema.fieldNames()
    if "message" not in names and "body" not in names:
        raise InvalidArgumentError(
            "servicebus writes rows with a column 'message' (encoded) or 'body' (and the decoded columns)"
        )
    encoded = "message" in names
    known = ("message", *PLACE_COLUMNS) if encoded else (*DECODED_SCHEMA.names, *PLACE_COLUMNS)
    faults = [_fault(name, known, encoded) for name in names if name not in known]
    if faults:
        raise ConfigError(faults)
    return names


def _fault(name: str, known: Sequence[str], encoded: bool) -> Fault:
    if encoded:
        hint = "drop it; the column 'message' holds the whole message"
        return Fault(f"servicebus write: nothing is written from column '{name}'", hint)
    near = {one.replace("_", ""): one for one in known}
    found = get_close_matches(name.lower().replace("_", ""), near, 1)
    hint = f"write {near[found[0]]}" if found else "drop it, or put it into application_properties"
    return Fault(f"servicebus write: there is no column '{name}'", hint)


class _Writer:
    def __init__(self, options: SinkOptions, columns: list[str]) -> None:
        self.options = options
        self.columns = columns

    def _write(self, iterator: Iterator[pa.RecordBatch], channel_file: Path | None) -> WriterCommitMessage:
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        options = self.options
        if channel_file is not None and "sequence_number" not in self.columns and channel_file.exists():
            raise InvalidArgumentError(
                "the rows of this lease have lost their column 'sequence_number', without which nothing can be settled; "
                "keep it, and 'lock_token'"
            )
        dispose = _SourceSettler(options) if options.source_connection else None
        outlet = Outlet(
            endpoint_of(options),
            options.entity.strip("/"),
            window=options.window,
            batch_messages=options.batch_messages,
            target_timeout_seconds=options.target_timeout_seconds,
            block_refused=options.refused == "block",
            channel_file=channel_file,
            dispose=dispose,
            asks_for_keys=_names_origin(options) and options.duplicates in ("auto", "origin"),
        ).open()
        try:
            rows = _Rows(options, outlet, dispose, _splicer(options, outlet))
            for batch in iterator:
                rows.take(batch)
            outlet.wait_source_end()
            outlet.finish()
        except BaseException as error:
            outlet.abort(error)
            raise
        finally:
            if dispose is not None:
                dispose.close()
        return WriterCommitMessage()


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A batch write: done when everything is acknowledged."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, None)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write: settles at the source over the task's control channel where there is one."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        channel_file = None
        if context is not None and not self.options.source_connection:
            channel_file = channel_path(
                context.getLocalProperty("sql.streaming.queryId"),
                context.stageId(),
                context.partitionId(),
                context.taskAttemptId(),
            )
        return self._write(iterator, channel_file)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing is left to do: what Spark commits was acknowledged before."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing can be taken back: what was acknowledged stays, the rest went back to its source."""


class _Rows:
    """Takes batches apart."""

    def __init__(
        self, options: SinkOptions, outlet: Outlet, settler: _SourceSettler | None, splicer: Splicer | None = None
    ) -> None:
        self.outlet = outlet
        self.settler = settler
        self.splicer = splicer or Splicer(options.origin, options.target, options.hop_budget)

    def take(self, batch: pa.RecordBatch) -> None:
        """Hands over the rows of one batch, flush rows in their places."""
        names = batch.schema.names
        count = batch.num_rows
        if not count:
            return
        if "sequence_number" not in names:
            self._hand_over(batch, None)
            return
        numbers = batch.column(names.index("sequence_number"))
        sequences = np.asarray(numbers.fill_null(0) if numbers.null_count else numbers)
        if count <= FEW_ROWS:
            flushes = [at for at, sequence in enumerate(sequences.tolist()) if sequence == FLUSH_SEQUENCE]
        else:
            flushes = np.flatnonzero(sequences == FLUSH_SEQUENCE).tolist()
        start = 0
        for at in flushes:
            if at > start:
                self._hand_over(batch.slice(start, at - start), sequences[start:at])
            start = at + 1
            token = batch.column(names.index("lock_token"))[at].as_py() if "lock_token" in names else None
            if token:
                self.outlet.flush(int.from_bytes(token, "little", signed=True))
        if start < count:
            self._hand_over(batch.slice(start, count - start) if start else batch, sequences[start:])

    def _hand_over(self, batch: pa.RecordBatch, sequences: np.ndarray[Any, Any] | None) -> None:
        names = batch.schema.names
        if self.settler is not None and "lock_token" in names and sequences is not None:
            self.settler.know(sequences.tolist(), batch.column(names.index("lock_token")).to_pylist())
        numbers: Sequence[int] | None = None if sequences is None else _numbers(sequences)
        refused: list[tuple[int, Refused]] = []
        if "disposition" in names and batch.column(names.index("disposition")).null_count < batch.num_rows:
            batch, numbers, refused = _disposed(batch, numbers)
        if not batch.num_rows:
            self.outlet.send([], [] if numbers is not None else None, refused)
            return
        if "message" in names:
            data, offsets = _bytes_of(batch.column(names.index("message")))
        else:
            data, offsets = _encoded(batch)
        copies, held = self.splicer.copy_all(data, offsets, self._source_wall_ms(data[offsets[-2] : offsets[-1]]))
        if held:
            gone = {one.row for one in held}
            if numbers is not None:
                refused += [(numbers[one.row], one) for one in held]
                numbers = [number for row, number in enumerate(numbers) if row not in gone]
            else:
                refused += [(0, one) for one in held]
        self.outlet.send(copies, numbers, refused)

    def _source_wall_ms(self, message: bytes) -> int:
        """The wall time of the broker that stamped these rows, by which their time to live runs."""
        told_ms = self.outlet.source_wall_ms()
        if told_ms is not None:
            return told_ms
        wall_ms = time.time_ns() // 1_000_000
        enqueued_ms, locked_until_ms = broker_times_of(message)
        return bounded_ms(wall_ms, enqueued_ms, locked_until_ms)


def _names_origin(options: SinkOptions) -> bool:
    """Whether it is known which namespace the rows come from, so that their sequence numbers are nobody else's."""
    return bool(options.origin and (options.origin_connection or options.origin_host))


def _splicer(options: SinkOptions, outlet: Outlet) -> Splicer:
    """What makes the copies, for the target as it answered."""
    return Splicer(
        options.origin,
        options.target,
        options.hop_budget,
        origin_namespace=_origin_namespace(options),
        target_namespace=outlet.namespace_id,
        entity=options.entity.strip("/"),
        mark=Mark(options.mark, is_number=options.mark_value == "number") if options.mark else None,
        makes_message_ids=options.duplicates == "origin" and not outlet.keeps_keys,
        trusts=options.trusts_provenance,
    )


def _origin_namespace(options: SinkOptions) -> str:
    """The identity of the namespace that the rows come from; empty where nothing says how to reach it."""
    if not _names_origin(options):
        return ""
    source = SourceOptions(
        connection=options.origin_connection,
        host=options.origin_host,
        identity=options.origin_identity,
        ca_file=options.origin_ca_file,
        transport_type=options.origin_transport_type,
    )
    client = Client(endpoint_of(source), name="isthmus-origin").open(options.target_timeout_seconds or 10.0)
    client.close(1.0)
    return client.namespace_id


def _numbers(sequences: np.ndarray[Any, Any]) -> Sequence[int]:
    first, count = int(sequences[0]), len(sequences)
    run = range(first, first + count)
    if count > FEW_ROWS:
        return run if sequences[-1] == run[-1] and bool((np.diff(sequences) == 1).all()) else sequences.tolist()
    numbers: list[int] = sequences.tolist()
    return run if numbers == list(run) else numbers


def _bytes_of(column: pa.Array) -> tuple[bytes, list[int]]:
    """The bytes of a binary column in one piece, and the offsets of its cells."""
    if column.null_count:
        raise InvalidArgumentError("column 'message' holds null; give such rows a disposition instead")
    _, offset_buffer, data_buffer = column.buffers()
    width = np.int64 if column.type == pa.large_binary() else np.int32
    offsets = np.frombuffer(offset_buffer, width)[column.offset : column.offset + len(column) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    data = data_buffer[first:last].to_pybytes() if data_buffer is not None else b""
    return data, (offsets - first).tolist() if first else offsets.tolist()


def _encoded(batch: pa.RecordBatch) -> tuple[bytes, list[int]]:
    messages = [encode(row, with_place=True) for row in batch.to_pylist()]
    offsets = [0]
    for message in messages:
        offsets.append(offsets[-1] + len(message))
    return b"".join(messages), offsets


def _disposed(
    batch: pa.RecordBatch, numbers: Sequence[int] | None
) -> tuple[pa.RecordBatch, Sequence[int] | None, list[tuple[int, Refused]]]:
    """The rows that go on, and those that get another disposition."""
    names = batch.schema.names

    def cells(name: str) -> list[Any]:
        return batch.column(names.index(name)).to_pylist() if name in names else [None] * batch.num_rows

    refused: list[tuple[int, Refused]] = []
    stay: list[int] = []
    for row, (disposition, reason, description) in enumerate(
        zip(cells("disposition"), cells("reason"), cells("description"), strict=True)
    ):
        if disposition is None:
            stay.append(row)
            continue
        if disposition not in DISPOSITIONS:
            raise InvalidArgumentError(
                f"column 'disposition' holds '{disposition}'; write {', '.join(DISPOSITIONS)} or null"
            )
        number = numbers[row] if numbers is not None else 0
        refused.append((number, Refused(row, disposition, str(reason or ""), str(description or ""))))
    kept = batch.take(pa.array(stay, pa.int64()))
    return kept, None if numbers is None else [numbers[row] for row in stay], refused


class _SourceSettler:
    """Settles rows at their source by lock token, where no control channel joins sink and reader (settle=commit)."""

    def __init__(self, options: SinkOptions) -> None:
        source = SourceOptions(
            connection=options.source_connection,
            entity=options.source_entity,
            ca_file=options.source_ca_file,
            transport_type=options.source_transport_type,
        )
        self._source = source
        self._tokens: dict[int, bytes] = {}
        self._connect()

    def _connect(self) -> None:
        path = self._source.entity.strip("/")
        self._client = open_client(endpoint_of(self._source), path, "isthmus-dispose")
        self._management = Management(self._client, path)

    def know(self, sequences: list[int], tokens: list[bytes]) -> None:
        """Remembers the lock tokens of rows."""
        self._tokens.update(zip(sequences, tokens, strict=True))

    def __call__(self, sequence: int, refused: Refused) -> None:
        if refused.disposition == "abandon":
            raise InvalidArgumentError(
                "disposition 'abandon' works in a lease (settle=sink) only: with settle=commit each row of a committed batch is "
                "completed, and one that was abandoned would be lost; write 'dead-letter' or 'defer'"
            )
        outcome = outcome_of(refused.disposition, refused.reason, refused.description)
        tokens = [self._tokens[sequence]]
        try:
            try:
                self._management.finish(start_settling(self._management, tokens, outcome))
            except ConnectionLostError:  # nothing moved on it while the batch was under way
                self._client.abandon()
                self._connect()
                self._management.finish(start_settling(self._management, tokens, outcome))
        except LockLostError:
            self._check_settled(sequence)

    def _check_settled(self, sequence: int) -> None:
        """A repeated task finds what the first one has settled; a message that still stands has lost its lock."""
        page = self._management.peek(sequence, 1)
        found = standing(page[0]) if page else None
        if found is not None and found.sequence == sequence and found.state == ACTIVE:
            path = self._source.entity.strip("/")
            raise LockLostError(
                f"'{path}': the lock of message {sequence} is lost, and with it its disposition; stop the query, remove the folder "
                "of its batches (option spool), and start it: the messages of the batch come again"
            )

    def close(self) -> None:
        """Ends the connection."""
        self._client.close(1.0)
