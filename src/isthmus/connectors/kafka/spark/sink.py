"""The Spark data sink `isthmus_kafka`: the classes that Spark calls to write to a Kafka topic.

What it is: writers that make a record of each row and wait until the cluster has acknowledged all. What it is not: the rows (`row`), or the
target of a route (`isthmus.connectors.kafka.target`).
Specification: PySpark documentation, "Python Data Source API".

Invariants:
    I1. `write` returns only after the cluster has acknowledged every row; a batch that Spark repeats is written again.
    I2. Unsupported writes are refused when the query is planned: overwriting, and columns that are not part of a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from isthmus.connectors.kafka.spark.option import WriteOptions, write_options
from isthmus.connectors.kafka.spark.row import check_columns, records_of
from isthmus.errors import InvalidArgumentError
from isthmus.extra import require

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KafkaSinkMixin"]


class KafkaSinkMixin:
    """The writing half of the data source."""

    options: Any

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(self._write_options(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        return StreamWriter(self._write_options(schema, overwrite=overwrite))

    def _write_options(self, schema: StructType, *, overwrite: bool) -> WriteOptions:
        options = write_options(self.options)
        if overwrite:
            raise InvalidArgumentError("isthmus_kafka write: records cannot be overwritten; write mode 'append'")
        check_columns(schema.fieldNames())
        require("kafka", "a Kafka target")
        return options


class _Writer:
    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        # Imported here because the processes in which Spark plans import this module and need not have a Kafka client.
        from isthmus.connectors.kafka.spark.writing import Writing

        writing = Writing(self.options)
        for batch in iterator:
            for record in records_of(batch):
                writing.send(record)
        writing.finish()
        return WriterCommitMessage()


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A batch write: done when everything is acknowledged."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Does nothing: the committed rows were acknowledged before."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Does nothing: acknowledged records cannot be withdrawn."""
