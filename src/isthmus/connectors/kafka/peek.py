"""A topic, browsed.

What it is: the records of a topic as encoded messages in the order of their positions, read without a group. Verification and browsing
read a Service Bus entity with the same call. What it is not: the reading of a route (`consumer`).

Invariants:
    I1. Nothing is committed.
    I2. An empty page means that no record follows: a cluster without answer is an error.
    I3. Positions and MessageIds are those of the source of a federation's route: partition × 2^48 + offset.
    I4. A record whose headers are unreadable is returned without them, as routes set it aside.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.kafka.cluster import QUERY_SECONDS, describe_topic
from isthmus.connectors.kafka.consumer.record_reader import RecordReader
from isthmus.connectors.kafka.group import errors_of, reader_settings
from isthmus.connectors.kafka.option import read_cluster
from isthmus.errors import ConnectionLostError

__all__ = ["PeekFrom", "TopicPeek"]

# A group name is needed to create a consumer; nothing is committed to it.
_GROUP = "isthmus-peek"
_POLL_SECONDS = 0.5


class TopicPeek:
    """Browses one topic.

    Args:
        options: `isthmus.connectors.kafka.option.ADMINISTRATION`.
        topic: the topic.
        names_partition: whether records without key get one that names their partition.

    Raises:
        IsthmusError: no answer, the topic does not exist, or access is denied.
    """

    def __init__(self, options: Mapping[str, str], topic: str, *, names_partition: bool = False) -> None:
        self._options = read_cluster(options)
        self._topic = topic
        self._reader = RecordReader(topic, gives_ids=True, names_partition=names_partition)
        view = describe_topic(self._options, topic)
        self.cluster_id = view.cluster_id
        self._partitions = view.partitions
        with errors_of(self._options, topic):
            self._consumer = Consumer({**reader_settings(self._options, _GROUP), "enable.partition.eof": True})
        self._at: tuple[int, int] | None = None

    def __call__(self, from_position: int, count: int, starts: Mapping[int, int] | None = None) -> Sequence[bytes]:
        """Messages from a position on, `count` at most, all of one partition; empty where there are none.

        Args:
            from_position: the first position to return.
            count: how many at most.
            starts: by partition, the first offset to return.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        partition, offset = max(0, from_position) >> PARTITION_SHIFT, max(0, from_position) % (1 << PARTITION_SHIFT)
        with errors_of(self._options, self._topic):
            for number in range(partition, self._partitions):
                least = (starts or {}).get(number, 0)
                page = self._page(number, max(least, offset if number == partition else 0), count)
                if page:
                    return page
        return ()

    def last_sequence(self, below: int) -> int:
        """The last position below a limit at which a record may exist, as reported by the brokers; 0 if there is none.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        with errors_of(self._options, self._topic):
            for number in reversed(range(self._partitions)):
                base = number << PARTITION_SHIFT
                low, high = self._edges(number) if base < below else (0, 0)
                last = min(base + high, below) - 1
                if low < high and last >= base + low:
                    return last
        return 0

    def _read(self, record: Any) -> tuple[int, bytes]:
        """Position and message of a record (I4)."""
        try:
            return self._reader.read(record)
        except Exception:  # noqa: BLE001 - an invalid record must not hide later ones
            return self._reader.read(record, with_headers=False)

    def begins(self) -> dict[int, int]:
        """By partition, the offset of the first existing record, or of the next one.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        with errors_of(self._options, self._topic):
            return {number: self._edges(number)[0] for number in range(self._partitions)}

    def _edges(self, partition: int) -> tuple[int, int]:
        where = TopicPartition(self._topic, partition)
        low, high = self._consumer.get_watermark_offsets(where, timeout=QUERY_SECONDS)
        return low, high

    def _page(self, partition: int, offset: int, count: int) -> list[bytes]:
        low, high = self._edges(partition)
        start = max(low, offset)
        found: list[bytes] = []
        if start >= high:
            return found
        if self._at != (partition, start):
            self._consumer.assign([TopicPartition(self._topic, partition, start)])
        self._at = None
        received_at = time.monotonic()
        while len(found) < count and start < high:
            for record in self._consumer.consume(count - len(found), _POLL_SECONDS):
                received_at = time.monotonic()
                error = record.error()
                if error is None:
                    position, message = self._read(record)
                    start = position % (1 << PARTITION_SHIFT) + 1
                    found.append(message)
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                elif int(record.offset() or 0) >= high:
                    return found  # after the last record there are compacted offsets, or transaction markers
            if time.monotonic() > received_at + QUERY_SECONDS:
                raise ConnectionLostError(
                    f"topic '{self._topic}', partition {partition}: no record arrived for {QUERY_SECONDS:g} s"
                )
        self._at = (partition, start)
        return found

    def close(self) -> None:
        """Closes it."""
        with suppress(KafkaException, RuntimeError):
            self._consumer.close()


class PeekFrom:
    """Browses a topic from an offset of each partition on.

    Args:
        peek: browses the topic.
        starts: by partition, the first offset to return.
        removed: the removed records before them (`isthmus.connectors.system.KnowsRemoved`).
    """

    def __init__(
        self, peek: TopicPeek, starts: Mapping[int, int], removed: Mapping[int, tuple[int, int]] | None = None
    ) -> None:
        self._peek = peek
        self._starts = starts
        self.removed: Mapping[int, tuple[int, int]] = removed or {}

    def __call__(self, from_position: int, count: int) -> Sequence[bytes]:
        """As `TopicPeek`."""
        return self._peek(from_position, count, self._starts)

    def last_sequence(self, below: int) -> int:
        """As `TopicPeek.last_sequence`; it may be below the first requested record."""
        return self._peek.last_sequence(below)
