"""The Spark data source `isthmus_spool`: the classes that Spark calls to read a spool.

What it is: a streaming read in micro-batches. Offsets name the spool, a segment, a position in it and the number of the next record, so
that a batch that Spark repeats has the same rows. With `releases` segments are deleted when Spark has committed a batch beyond them.
Specification: PySpark documentation, "Python Data Source API"; docs/explanation/spool.md. What it is not: the files (`reader`).

Invariants:
    I1. A batch that Spark repeats has the same rows: its offsets name them.
    I2. No segment is deleted before Spark has committed the batch that read it, nor for another query than the one that the spool is for.
    I3. Offsets of another spool, one that was at the path before, are ignored: this one is read as without offsets. A spool that is not there is
        no other one: its batches are not empty, and none begins.
    I4. A query that another one may overtake fails where that one has deleted what it has not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from isthmus.connectors.spool.folder import SpoolError
from isthmus.connectors.spool.option import ReadOptions, read_options
from isthmus.connectors.spool.reader import Range, SpoolPosition, SpoolReader
from isthmus.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SpoolDataSource", "SpoolStreamReader", "position_of"]


class SpoolDataSource(DataSource):
    """`format("isthmus_spool")`."""

    @classmethod
    def name(cls) -> str:
        return "isthmus_spool"

    def schema(self) -> str:
        from isthmus.connectors.spool.row import ARCHIVE_DDL, MESSAGE_DDL
        from isthmus.connectors.spool.timed_reader import TIMED_DDL

        return {"archive": ARCHIVE_DDL, "timed": TIMED_DDL}.get(read_options(self.options).rows, MESSAGE_DDL)

    def reader(self, schema: StructType) -> DataSourceReader:
        raise InvalidArgumentError("isthmus_spool reads streams only: write spark.readStream")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from isthmus.connectors.spool.timed_reader import TimedStreamReader

        options = read_options(self.options)
        return TimedStreamReader(options) if options.rows == "timed" else SpoolStreamReader(options)


class SpoolPartition(InputPartition):
    """The part that one task reads."""

    def __init__(self, number: int, part: Range) -> None:
        super().__init__(number)
        self.part = part

    def __repr__(self) -> str:
        return f"SpoolPartition({self.part})"


class SpoolStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read; runs at the driver, except `read`."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._spool = SpoolReader(options.path, releases=options.releases)
        self._last: SpoolPosition | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._offset(self._begin())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._last = self._spool.last()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        position = self._known_position(start)
        if self._last is not None and position.number >= self._last.number:
            return self._offset(position)
        return self._offset(self._spool.end(position, self.options.batch_bytes))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._is_of_another(end):
            return []  # the segments of `start` are deleted, and their rows were committed or are lost
        parts = self._spool.ranges(self._position(start), position_of(end), self.options.part_bytes)
        return [SpoolPartition(number, part) for number, part in enumerate(parts)]

    def commit(self, end: dict[str, Any]) -> None:
        if self.options.releases and end["spool"] == self._spool.identity:
            self._spool.release(position_of(end))

    def stop(self) -> None:
        """Does nothing: no file is open."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from isthmus.connectors.spool.row import batch_of

        assert isinstance(partition, SpoolPartition)
        identity = self._spool.identity
        if not identity:
            raise self._away()
        for block, records in self._spool.blocks(partition.part):
            yield batch_of(self.options.rows, identity, block.first, block.written_ms, records)

    def _offset(self, position: SpoolPosition) -> dict[str, Any]:
        return {"spool": self._spool.identity, **position._asdict()}

    def _position(self, offset: dict[str, Any]) -> SpoolPosition:
        identity = self._spool.identity
        if offset["spool"] != identity and identity:
            return self._begin()
        return position_of(offset)

    def _known_position(self, start: dict[str, Any]) -> SpoolPosition:
        """The position of an offset after which a batch begins.

        Raises:
            SpoolError: its spool is not there: the next offset would be of no spool, and the one after it of another spool.
        """
        self._is_of_another(start)
        return self._position(start)

    def _is_of_another(self, end: dict[str, Any]) -> bool:
        """Whether an offset is of a spool that was at the path before.

        Raises:
            SpoolError: there is none now.
        """
        identity = self._spool.identity
        if end["spool"] and not identity:
            raise self._away()
        return bool(end["spool"] != identity)

    def _away(self) -> SpoolError:
        return SpoolError(
            f"spool {self.options.path} is not there, and the query has begun to read it: mount its folder, or restore it"
        )

    def _begin(self) -> SpoolPosition:
        """The start of a read without offsets of this spool."""
        return self._spool.first()


def position_of(offset: dict[str, Any]) -> SpoolPosition:
    """The position that an offset names."""
    return SpoolPosition(int(offset["segment"]), int(offset["position"]), int(offset["number"]))
