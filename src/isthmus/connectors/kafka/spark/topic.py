"""One topic as the data source reads it: the beginnings and ends of its partitions, and the records between two offsets.

What it is: a consumer outside any group. Calls block. What it is not: the offsets of a query (`offset`), or Spark.
Specification: Apache Kafka documentation, "Consumer Position"; records of transactions that are open or aborted are not read.

Invariants:
    I1. `records` gives every record from the first offset up to the last that exists, and ends, whatever gaps there are.
    I2. Records that were removed are an error, unless they may be missing; so is what is behind the end of a topic that was truncated.
    I3. The end of a partition and its leader epoch are of one answer: an epoch from before a later record would let the log seem truncated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from isthmus.connectors.kafka.cluster import QUERY_SECONDS, describe_topic
from isthmus.connectors.kafka.consumer.latest import Ends, ends_of_all, seek_all
from isthmus.connectors.kafka.group import errors_of, reader_settings
from isthmus.connectors.kafka.option import ClusterOptions
from isthmus.errors import ConnectionLostError, IsthmusError

__all__ = ["RecordsMissingError", "Topic"]

# A group name is needed to create a consumer; nothing is committed to it.
_GROUP = "isthmus-spark"
_PAGE = 1000
_POLL_SECONDS = 0.5
# After so long without records, although some exist, the cluster is unreachable.
SILENCE_SECONDS = 120.0


class RecordsMissingError(IsthmusError):
    """The next records of a query no longer exist."""

    code = "records-missing"


class Topic:
    """One topic.

    Args:
        options: the options that reach its cluster.
        name: name of the topic.
        group: to which `commit` commits; empty: none.
        may_miss: whether records that were removed are passed over.

    Attributes:
        identity: which topic of this name it is, as `edges` or `ends` saw it last; None before, empty where the cluster does not tell.
    """

    def __init__(self, options: ClusterOptions, name: str, group: str = "", *, may_miss: bool = False) -> None:
        self._options = options
        self._name = name
        self._group = group or _GROUP
        self._may_miss = may_miss
        self.identity: str | None = None
        settings = {**reader_settings(options, self._group), "enable.partition.eof": True}
        if not may_miss:
            settings["auto.offset.reset"] = "error"  # records removed while they are read are an error, not skipped
        with errors_of(options, name):
            self._consumer = Consumer(settings)

    def edges(self) -> dict[int, tuple[int, int]]:
        """By partition, the first offset and the one after the last record.

        Raises:
            EntityNotFoundError: the topic does not exist.
            IsthmusError: no answer, or a refusal.
        """
        view = describe_topic(self._options, self._name)
        self.identity = view.identity
        found = {}
        with errors_of(self._options, self._name):
            for number in range(view.partitions):
                low, high = self._consumer.get_watermark_offsets(
                    TopicPartition(self._name, number), timeout=QUERY_SECONDS
                )
                found[number] = low, high
        return found

    def ends(self) -> Ends:
        """The ends of the partitions, with their leader epochs.

        Raises:
            EntityNotFoundError: the topic does not exist.
            IsthmusError: no answer, or a refusal.
        """
        view = describe_topic(self._options, self._name)
        self.identity = view.identity
        with errors_of(self._options, self._name):
            return ends_of_all(self._consumer, self._name, range(view.partitions))

    def truncated(self, offsets: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """The partitions whose logs were truncated before an offset, and where: what was behind that is there no more, and other records may be.

        librdkafka compares the leader epoch of an offset with the log after `seek`, and then begins where they differ.

        Args:
            offsets: by partition, an offset and its leader epoch.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        settings = {**reader_settings(self._options, self._group), "enable.partition.eof": True}
        found: dict[int, int] = {}
        with errors_of(self._options, self._name), closing(Consumer(settings)) as consumer:
            places = [
                TopicPartition(self._name, number, offset, leader_epoch=epoch)
                for number, (offset, epoch) in offsets.items()
            ]
            ends = ends_of_all(consumer, self._name, offsets).offsets
            # A fetch behind the end of a log that is shorter now would reset the partition to the first record, also after the `seek`.
            consumer.assign(
                [TopicPartition(self._name, each.partition, min(each.offset, ends[each.partition])) for each in places]
            )
            seek_all(consumer, places)
            deadline = time.monotonic() + QUERY_SECONDS
            while len(found) < len(offsets):
                for record in consumer.consume(_PAGE, _POLL_SECONDS):
                    error = record.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    found.setdefault(int(record.partition() or 0), int(record.offset() or 0))
                if len(found) < len(offsets) and time.monotonic() > deadline:
                    raise ConnectionLostError(f"topic '{self._name}': no record arrived for {QUERY_SECONDS:g} s")
        return {number: begin for number, begin in found.items() if begin < offsets[number][0]}

    def records(self, partition: int, first: int, stop: int) -> Iterator[list[Any]]:
        """The records from `first` up to, but not including, `stop`.

        Raises:
            RecordsMissingError: some were removed.
            IsthmusError: no answer, or a refusal.
        """
        where = TopicPartition(self._name, partition, first)
        with errors_of(self._options, self._name):
            low = int(self._consumer.get_watermark_offsets(where, timeout=QUERY_SECONDS)[0])
            if low > first and not self._may_miss:
                raise self._missing(partition, first, min(low, stop))
            at = max(first, low)
            self._consumer.assign([TopicPartition(self._name, partition, at)])
            received_at = time.monotonic()
            while at < stop:
                page: list[Any] = self._consumer.consume(_PAGE, _POLL_SECONDS)
                # Where the log ends before `first`, it is read from its beginning: those are no records of this batch.
                found = [record for record in page if record.error() is None and first <= record.offset() < stop]
                if found:
                    yield found
                if any(_is_reset(record) for record in page):
                    low = int(self._consumer.get_watermark_offsets(where, timeout=QUERY_SECONDS)[0])
                    raise self._missing(partition, max((at, *(each.offset() + 1 for each in found))), min(low, stop))
                if page:
                    at = max(map(self._after, page))
                if page:
                    received_at = time.monotonic()
                if time.monotonic() > received_at + SILENCE_SECONDS:
                    if int(self._consumer.get_watermark_offsets(where, timeout=QUERY_SECONDS)[1]) <= at:
                        if self._may_miss:
                            return
                        raise self._missing(partition, at, stop)
                    raise ConnectionLostError(
                        f"topic '{self._name}', partition {partition}: no record arrived for {SILENCE_SECONDS:g} s"
                    )

    def _missing(self, partition: int, first: int, stop: int) -> RecordsMissingError:
        return RecordsMissingError(
            f"topic '{self._name}', partition {partition}: the records from offset {first} up to {stop} were removed before they were read; "
            "write missing=skip to continue with those that exist, or a new checkpointLocation"
        )

    @staticmethod
    def _after(record: Any) -> int:
        """The offset up to which a partition was read with this record, or with the end-of-partition event."""
        error = record.error()
        if error is None:
            return int(record.offset()) + 1
        if error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        return int(record.offset())

    def commit(self, offsets: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """Commits offsets to the group, with their leader epochs where these are known.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        topic_partitions = [
            TopicPartition(self._name, number, offset, leader_epoch=epochs.get(number, -1))
            for number, offset in offsets.items()
        ]
        with errors_of(self._options, self._name):
            self._consumer.commit(offsets=topic_partitions, asynchronous=False)

    def close(self) -> None:
        """Closes it."""
        with suppress(KafkaException, RuntimeError):
            self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_reset(record: Any) -> bool:
    """Whether the next offset no longer exists."""
    error = record.error()
    return error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET
