"""The Spark data source `isthmus_kafka`: the classes that Spark calls to read a Kafka topic.

What it is: a batch read of all records that exist, and a streaming read in micro-batches whose offsets Spark stores in its checkpoint. What
it is not: a route (`isthmus.connectors.kafka.source`), whose offsets a consumer group stores; the sink (`sink`).
Specification: PySpark documentation, "Python Data Source API".

Invariants:
    I1. A batch that Spark repeats has the same records: its offsets name them.
    I2. Nothing is committed to a group before Spark has committed the batch, and the query does not go by what is committed there.
    I3. A topic that was created again, or ends before the offset that was read, fails the query, or is read from its first record. Its id
        shows that it was created again, if the cluster has ids: it may have as many records by then as were read of the former topic.
    I4. A schema that is not the data source's own is refused when the query is planned.
    I5. The first batch begins where the query began, also where Spark requests that again.
    I6. A log that was truncated below the offset that was read, and has grown past it, fails the query, or is read from where it was truncated:
        the leader epoch of the offset shows it, where the cluster reports epochs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from isthmus.connectors.kafka.spark.offset import (
    epochs_of,
    first_offset,
    from_spark,
    is_another,
    next_offsets,
    offset_after,
    passed,
    start_of,
    to_spark,
    topic_of,
)
from isthmus.connectors.kafka.spark.option import ReadOptions, read_options
from isthmus.connectors.kafka.spark.row import DDL, SCHEMA, rows_of
from isthmus.connectors.kafka.spark.sink import KafkaSinkMixin
from isthmus.errors import InvalidArgumentError, IsthmusError
from isthmus.extra import require

if TYPE_CHECKING:
    import pyarrow as pa

    from isthmus.connectors.kafka.consumer.latest import Ends
    from isthmus.connectors.kafka.spark.topic import Topic

__all__ = ["KafkaDataSource"]

# A partition whose leader has just changed may report an outdated end: it is queried again.
_QUERIES = 3
QUERY_AGAIN_SECONDS = 1.0
_ALL = 1 << 62


class KafkaDataSource(KafkaSinkMixin, DataSource):
    """`format("isthmus_kafka")`."""

    @classmethod
    def name(cls) -> str:
        return "isthmus_kafka"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(self._read_options(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return TopicStreamReader(self._read_options(schema))

    def _read_options(self, schema: StructType) -> ReadOptions:
        options = read_options(self.options)
        if not to_arrow_schema(schema, timezone="UTC").equals(SCHEMA):
            raise InvalidArgumentError(
                f"isthmus_kafka read: the schema {schema.simpleString()} is not {DDL}; remove .schema(...) and select or cast columns "
                "after load()"
            )
        require("kafka", "a Kafka source")
        return options


class TopicRange(InputPartition):
    """The records of one partition from `first` up to `stop`."""

    def __init__(self, number: int, first: int, stop: int) -> None:
        super().__init__(number)
        self.number = number
        self.first = first
        self.stop = stop

    def __repr__(self) -> str:
        return f"TopicRange({self.number}, {self.first}, {self.stop})"


def _open(options: ReadOptions, group: str = "", *, may_miss: bool = False) -> Topic:
    # Imported here because the processes in which Spark plans import this module and need not have a Kafka client.
    from isthmus.connectors.kafka.spark.topic import Topic

    return Topic(options, options.topic, group, may_miss=may_miss)


def _begun_again(topic: str, read: dict[int, int], ends: dict[int, int]) -> IsthmusError:
    from isthmus.connectors.kafka.spark.topic import RecordsMissingError

    number, end = next(iter(ends.items()))
    why = (
        f"ends at {end}: it was made again, or truncated"
        if end < read[number]
        else "is of a topic that was made again, or of another topic"
    )
    return RecordsMissingError(
        f"topic '{topic}', partition {number}: the query has read up to offset {read[number]}, and the partition {why}; write missing=skip "
        "to go on with its first record, or a new checkpointLocation"
    )


def _truncated(topic: str, read: dict[int, int], truncated: dict[int, int]) -> IsthmusError:
    from isthmus.connectors.kafka.spark.topic import RecordsMissingError

    number, begin = next(iter(truncated.items()))
    return RecordsMissingError(
        f"topic '{topic}', partition {number}: the query has read up to offset {read[number]}, and the log was truncated at {begin} since: from there "
        "on it has other records; write missing=skip to read these, or a new checkpointLocation"
    )


def _read(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, TopicRange):  # Spark's own, where a batch read has no partitions
        return
    with _open(options, may_miss=options.missing == "skip") as topic:
        for records in topic.records(partition.number, partition.first, partition.stop):
            yield rows_of(records)


class TopicReader(DataSourceReader):
    """A batch read: all records that exist when it is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        with _open(self.options) as topic:
            edges = topic.edges()
        return [TopicRange(number, low, high) for number, (low, high) in edges.items() if low < high]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read; runs at the driver, except `read`."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._opened: Topic | None = None
        self._last: Ends | None = None
        self._checked: dict[int, tuple[int, int]] = {}  # by partition, an offset, and the epoch of the log that has it

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_opened": None, "_last": None, "_checked": {}}

    @property
    def _topic(self) -> Topic:
        if self._opened is None:
            self._opened = _open(self.options, self.options.group)
        return self._opened

    def _identity(self) -> str:
        if self._topic.identity is None:
            self._topic.edges()
        return self._topic.identity or ""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        if self.options.start == "latest":
            offsets, epochs = self._topic.ends() if self._last is None else self._last
        else:
            offsets, epochs = {number: low for number, (low, _) in self._topic.edges().items()}, {}
        return first_offset(offsets, self._identity(), epochs)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._last = self._topic.ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self.options.max_records)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        # Of the trigger `once`, whose only batch has everything.
        has_all = isinstance(limit, ReadAllAvailable)
        most = _ALL if has_all else limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.max_records
        read = from_spark(start)
        ends, epochs = self._topic.ends() if self._last is None else self._last
        gone = self._gone(start, ends)
        for _ in range(_QUERIES):
            if not gone or self._last is not None:
                break
            time.sleep(QUERY_AGAIN_SECONDS)
            ends, epochs = self._topic.ends()
            gone = self._gone(start, ends)
        truncated = self._truncated(start, epochs)
        if truncated and self.options.missing != "skip":
            raise _truncated(self.options.topic, read, truncated)
        if gone and self.options.missing != "skip":
            raise _begun_again(self.options.topic, read, gone)
        after = next_offsets({**read, **dict.fromkeys(gone, 0), **truncated}, ends, most)
        return offset_after(start, after, self._identity(), epochs, truncated)

    def _truncated(self, start: dict[str, Any], epochs: dict[int, int]) -> dict[int, int]:
        """The partitions whose logs were truncated before the offset that was read, and where (I6)."""
        if is_another(topic_of(start), self._identity()):
            return {}
        read, before = from_spark(start), epochs_of(start)
        asked = {
            number: (read[number], epoch)
            for number, epoch in before.items()
            if number in read
            and epochs.get(number, -1) not in (-1, epoch)
            and self._checked.get(number) != (read[number], epochs[number])
        }
        if not asked:
            return {}
        truncated = self._topic.truncated(asked)
        self._checked |= {number: (offset, epochs[number]) for number, (offset, _) in asked.items()}
        for number in truncated:
            del self._checked[number]
        return truncated

    def _gone(self, start: dict[str, Any], ends: dict[int, int]) -> dict[int, int]:
        """The partitions that begin again, with their ends."""
        read = from_spark(start)
        if is_another(topic_of(start), self._identity()):
            return {number: ends.get(number, 0) for number in read}
        return passed(read, ends)

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - Spark's name
        return to_spark(self._topic.ends().offsets)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        stops = from_spark(end)
        if is_another(topic_of(end), self._identity()):  # Spark repeats a batch whose records are gone
            if self.options.missing != "skip":
                raise _begun_again(self.options.topic, stops, self._gone(end, self._topic.ends().offsets))
            return []
        first = start_of(start, end)
        return [
            TopicRange(number, first.get(number, 0), stop)
            for number, stop in stops.items()
            if stop > first.get(number, 0)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        if self.options.group:
            self._topic.commit(from_spark(end), epochs_of(end))

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.options, partition)
