"""The Spark data sink `servicebus`: the classes that Spark calls to write.

What it is: writers that split Arrow batches and pass messages on. Raw rows (column `message`) are sent unchanged except for
the rewriting; other rows are encoded from the decoded columns. A row whose column `disposition` is not null is not sent: it gets that
disposition at its source (`complete`, `dead-letter`, `defer`), with the columns `reason` and `description`. What it is not: the
sending (`outward`), the making of copies (`message_rewriter`), the routes of a run (`isthmus.bridge.spark`).

Invariants:
    I1. `write` returns only after the target has acknowledged every row.
    I2. Rows are passed on in their order.
    I3. Every row with a position at a source gets a disposition there; none is dropped silently.
    I4. Unsupported writes are refused when the query is planned: overwriting, and columns that are not part of a message (`column`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.spark.worker import share_interpreter
from isthmus.connectors.servicebus.option import SinkOptions
from isthmus.connectors.servicebus.spark.column import written_columns
from isthmus.connectors.servicebus.spark.outward import Outward
from isthmus.connectors.servicebus.spark.row import encode
from isthmus.errors import InvalidArgumentError

__all__ = ["DISPOSITIONS", "BatchWriter", "ServiceBusSinkMixin", "StreamWriter"]

DISPOSITIONS = ("complete", "dead-letter", "defer")
# Up to this size a loop is faster than numpy.
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
        return BatchWriter(SinkOptions.read(self.options), written_columns(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - as above; Spark's
        if overwrite:
            raise InvalidArgumentError("servicebus write: messages cannot be overwritten; write outputMode('append')")
        return StreamWriter(SinkOptions.read(self.options), written_columns(schema))


class _Writer:
    def __init__(self, options: SinkOptions, columns: list[str]) -> None:
        self.options = options
        self.columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        share_interpreter()
        outward = Outward(self.options)
        try:
            for batch in iterator:
                hand_over(batch, outward)
            outward.finish()
        except BaseException as error:
            outward.abort(error)
            raise
        finally:
            outward.close()
        return WriterCommitMessage()


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A batch write: done when everything is acknowledged."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Does nothing: the committed rows were acknowledged before."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Does nothing: acknowledged messages cannot be withdrawn."""


def hand_over(batch: pa.RecordBatch, outward: Outward) -> None:
    """Splits a batch, and passes its messages on.

    Raises:
        InvalidArgumentError: a cell cannot be written.
        IsthmusError: the target failed, or a message could not be disposed of.
    """
    names = batch.schema.names
    if not batch.num_rows:
        return
    numbers: Sequence[int] | None = None
    if "sequence_number" in names:
        column = batch.column(names.index("sequence_number"))
        numbers = _numbers(np.asarray(column.cast(pa.int64()).fill_null(0) if column.null_count else column))
        if "lock_token" in names:
            outward.know(numbers, batch.column(names.index("lock_token")).to_pylist())
    disposed: list[tuple[int, Disposition]] = []
    if "disposition" in names and batch.column(names.index("disposition")).null_count < batch.num_rows:
        batch, numbers, disposed = _disposed(batch, numbers)
    if not batch.num_rows:
        outward.send(None if numbers is None else (), b"", (), disposed)
        return
    if "message" in names:
        data, offsets = _bytes_of(batch.column(names.index("message")))
    else:
        data, offsets = _encoded(batch)
    outward.send(numbers, data, offsets, disposed)


def _numbers(sequences: np.ndarray[Any, Any]) -> Sequence[int]:
    first, count = int(sequences[0]), len(sequences)
    run = range(first, first + count)
    if count > FEW_ROWS:
        return run if sequences[-1] == run[-1] and bool((np.diff(sequences) == 1).all()) else sequences.tolist()
    numbers: list[int] = sequences.tolist()
    return run if numbers == list(run) else numbers


def _bytes_of(column: pa.Array) -> tuple[bytes, list[int]]:
    """The bytes of a binary column as one value, and the offsets of its cells."""
    if column.null_count:
        raise InvalidArgumentError("column 'message' contains null; give such rows a disposition instead")
    _, offset_buffer, data_buffer = column.buffers()
    width = np.int64 if column.type == pa.large_binary() else np.int32
    offsets = np.frombuffer(offset_buffer, width)[column.offset : column.offset + len(column) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    data = data_buffer[first:last].to_pybytes() if data_buffer is not None else b""
    return data, (offsets - first).tolist() if first else offsets.tolist()


def _encoded(batch: pa.RecordBatch) -> tuple[bytes, list[int]]:
    # Times as milliseconds: Spark's range exceeds Python's.
    times = {name: _milliseconds(batch.column(name)) for name in batch.schema.names if _is_time(batch, name)}
    rows = batch.drop_columns(list(times)).to_pylist()
    for name, values in times.items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    messages = [encode(row, with_position=True) for row in rows]
    offsets = [0]
    for message in messages:
        offsets.append(offsets[-1] + len(message))
    return b"".join(messages), offsets


def _is_time(batch: pa.RecordBatch, name: str) -> bool:
    return bool(pa.types.is_timestamp(batch.schema.field(name).type))


def _milliseconds(column: pa.Array) -> list[int | None]:
    found = column.cast(pa.timestamp("us", tz="UTC"), safe=False).cast(pa.int64()).to_pylist()
    return [None if each is None else (each + 500) // 1000 for each in found]


def _disposed(
    batch: pa.RecordBatch, numbers: Sequence[int] | None
) -> tuple[pa.RecordBatch, Sequence[int] | None, list[tuple[int, Disposition]]]:
    """The rows to send, and those with another disposition."""
    names = batch.schema.names

    def cells(name: str) -> list[Any]:
        return batch.column(names.index(name)).to_pylist() if name in names else [None] * batch.num_rows

    disposed: list[tuple[int, Disposition]] = []
    stay: list[int] = []
    for row, (disposition, reason, description) in enumerate(
        zip(cells("disposition"), cells("reason"), cells("description"), strict=True)
    ):
        if disposition is None:
            stay.append(row)
            continue
        if disposition == "abandon":
            raise InvalidArgumentError(
                "column 'disposition' contains 'abandon', which a write cannot do: each row of a committed batch is completed, and one "
                "that was abandoned would be lost; write 'dead-letter' or 'defer'"
            )
        if disposition not in DISPOSITIONS:
            raise InvalidArgumentError(
                f"column 'disposition' contains '{disposition}'; write {', '.join(DISPOSITIONS)} or null"
            )
        number = numbers[row] if numbers is not None else 0
        disposed.append((number, Disposition(disposition, str(reason or ""), str(description or ""))))
    kept = batch.take(pa.array(stay, pa.int64()))
    return kept, None if numbers is None else [numbers[row] for row in stay], disposed
