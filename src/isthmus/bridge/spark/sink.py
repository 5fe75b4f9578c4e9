"""The Spark data sink `isthmus`: Spark's interface for writing.

What it is: the streaming writer, which applies the last steps (`stage`), splits batches (`inflow`) and hands messages to the host of
their targets. The reader of the same task sends the routes over their channel. What it is not: the sending
(`isthmus.bridge.host.sender.sender`).

Invariants:
    I1. `write` returns only after everything is acknowledged and settled and the reader sent STOPPED: end of input alone is
        not success.
    I2. Rows of a route are handed over in their order.
    I3. Invalid writes are refused when the query is planned: overwriting, rows without a required column, and columns from
        which nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from isthmus.bridge.spark.column import OPTIONAL, REQUIRED
from isthmus.bridge.spark.option import WRITE, parse, read_lists
from isthmus.bridge.spark.worker import share_interpreter, task_channel
from isthmus.errors import ConfigError, Fault, InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SinkMixin", "StreamWriter"]


class SinkMixin:
    """The writing part of the data source."""

    options: Any

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        raise InvalidArgumentError("isthmus writes only what it reads itself in the same query: write rows.writeStream")

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        if overwrite:
            raise InvalidArgumentError("isthmus write: messages cannot be overwritten; write outputMode('append')")
        values, faults = parse(WRITE, self.options)
        faults += read_lists(WRITE, values)
        faults += _faults_of(schema, values["columns"])
        if faults:
            raise ConfigError(faults)
        return StreamWriter(values["steps"], values["columns"])


def _faults_of(schema: StructType, columns: tuple[str, ...]) -> list[Fault]:
    given = {field.name: field.dataType for field in schema.fields}
    hint = "a step has to pass it on as it is"
    faults = [
        Fault(f"isthmus write: the rows have lost their column '{name}'", hint)
        for name in REQUIRED
        if name not in given
    ]
    for name, kind in given.items():
        if name in columns:
            continue
        wanted = (REQUIRED | OPTIONAL).get(name)
        if wanted is None:
            hint = "drop it; the column 'message' holds the whole message"
            faults.append(Fault(f"isthmus write: nothing is written from column '{name}'", hint))
        elif kind != wanted:
            found, expected = kind.simpleString(), wanted.simpleString()
            faults.append(Fault(f"isthmus write: column '{name}' is {found}", f"cast it to {expected}"))
    return faults


class StreamWriter(DataSourceStreamArrowWriter):
    """A streaming write: one call of `write` is the sink's end of a lease.

    Args:
        steps: of the messages before they are written.
        columns: columns whose values are written into messages before.
    """

    def __init__(self, steps: tuple[str, ...] = (), columns: tuple[str, ...] = ()) -> None:
        self._steps = steps
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        # Imported here, because the process in which Spark plans the write imports this module and needs none of them.
        from isthmus.bridge.host.sender.sender import SenderHost
        from isthmus.bridge.spark.inflow import Inflow
        from isthmus.bridge.spark.stage import open_stage

        share_interpreter()
        host = SenderHost(channel=task_channel(), static=None)
        host.start()
        try:
            inflow = Inflow(host)
            stage = open_stage(self._steps, written=self._columns)
            batches = iterator if stage is None else filter(None, map(stage.take, iterator))
            for batch in batches:
                inflow.take(batch)
            host.finish()
        except BaseException as error:
            host.abort(error)
            raise
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to do: everything that Spark commits was acknowledged before."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to do: acknowledged messages cannot be undone, the others were released at their source."""
