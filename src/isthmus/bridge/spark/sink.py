"""The Spark data sink `isthmus`: what Spark calls to write.

What it is: the streaming writer, which takes batches apart (`inflow`) and hands messages to the host of their targets. It has no
options: the reader of the same task says over their channel what routes there are. What it is not: the sending
(`isthmus.bridge.host.sender`).

Invariants:
    I1. `write` returns only after everything is acknowledged and settled and the reader said that the lease ended in good
        order: end of input alone is not success.
    I2. Rows of a route are handed over in their order.
    I3. What cannot be written is refused when the query is planned: overwriting, rows that have lost a column, and columns that
        nothing is written from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from isthmus.bridge.host.sender import SenderHost
from isthmus.bridge.spark.inflow import Inflow
from isthmus.bridge.spark.option import WRITE, parse
from isthmus.bridge.spark.worker import share_interpreter, task_channel
from isthmus.errors import ConfigError, Fault, InvalidArgumentError

__all__ = ["SinkMixin", "StreamWriter"]

_REQUIRED = {"message": BinaryType(), "route": IntegerType(), "position": LongType()}
_OPTIONAL = {"disposition": StringType(), "reason": StringType(), "description": StringType()}


class SinkMixin:
    """The writing half of the data source."""

    options: Any

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        raise InvalidArgumentError("isthmus writes only what it reads itself in the same query: write rows.writeStream")

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        if overwrite:
            raise InvalidArgumentError("isthmus write: messages cannot be overwritten; write outputMode('append')")
        faults = parse(WRITE, self.options)[1] + _faults_of(schema)
        if faults:
            raise ConfigError(faults)
        return StreamWriter()


def _faults_of(schema: StructType) -> list[Fault]:
    given = {field.name: field.dataType for field in schema.fields}
    hint = "a step has to pass it on as it is"
    faults = [
        Fault(f"isthmus write: the rows have lost their column '{name}'", hint)
        for name in _REQUIRED
        if name not in given
    ]
    for name, kind in given.items():
        wanted = (_REQUIRED | _OPTIONAL).get(name)
        if wanted is None:
            hint = "drop it; the column 'message' holds the whole message"
            faults.append(Fault(f"isthmus write: nothing is written from column '{name}'", hint))
        elif kind != wanted:
            found, expected = kind.simpleString(), wanted.simpleString()
            faults.append(Fault(f"isthmus write: column '{name}' is {found}", f"cast it to {expected}"))
    return faults


class StreamWriter(DataSourceStreamArrowWriter):
    """A streaming write: one call of `write` is the sink's end of a lease."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        share_interpreter()
        host = SenderHost(channel=task_channel(), static=None)
        host.start()
        try:
            inflow = Inflow(host)
            for batch in iterator:
                inflow.take(batch)
            host.finish()
        except BaseException as error:
            host.abort(error)
            raise
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing is left to do: what Spark commits was acknowledged before."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing can be taken back: what was acknowledged stays, the rest went back to its source."""
