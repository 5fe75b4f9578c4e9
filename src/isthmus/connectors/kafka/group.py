"""The offsets of consumer groups, and the records after them.

What it is: a group's position in a topic, its start, and the number of waiting records, queried without joining the group. Calls block. What it is
not: the reading of a route (`consumer`).
Specification: Apache Kafka documentation, "Distribution: Consumer Offset Tracking".

Invariants:
    I1. A group is not joined, and no offset is committed, except by `begin`.
    I2. A partition without an offset of the group counts from its first record, as routes read it.
    I3. Offsets after the group's position that have no record to read do not wait: transaction markers, aborted or compacted records, and those
        of an open transaction.
    I4. `begin` returns only if the group begins at the requested offset, in every partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from isthmus.connectors.kafka.cluster import (
    QUERY_SECONDS,
    ClusterClient,
    CoordinatorAwayError,
    KafkaFailureError,
    describe_topic,
    error_of,
    settings,
)
from isthmus.connectors.kafka.consumer.latest import ends_of_all
from isthmus.connectors.kafka.option import ClusterOptions, read_cluster
from isthmus.errors import IsthmusError

__all__ = ["GroupOffsets", "Waiting", "errors_of", "reader_settings"]

_TIMESTAMP_SECONDS = 2.0
# How long electing a coordinator, and loading its offsets, may take.
COORDINATOR_SECONDS = 30.0
_AGAIN_SECONDS = 0.2
# The answers to a client that is not a member of a group with members.
_HAS_MEMBERS = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.GROUP_SUBSCRIBED_TO_TOPIC,
}

_Answer = TypeVar("_Answer")


class Waiting(NamedTuple):
    """The records that wait for a group.

    Attributes:
        records: how many, at most: between the first of them and the end there may be offsets without a record.
        oldest_ms: timestamp of the oldest of them; 0 where none waits, or it is unknown.
    """

    records: int = 0
    oldest_ms: int = 0


@contextmanager
def errors_of(options: ClusterOptions, topic: str) -> Iterator[None]:
    """Converts errors of the client into errors of isthmus."""
    try:
        yield
    except KafkaException as error:
        raise error_of(error.args[0], topic, options.bootstrap_servers) from None


def reader_settings(options: ClusterOptions, group: str) -> dict[str, Any]:
    """The settings of a consumer that only queries and browses.

    Raises:
        SecretError: a reference cannot be resolved.
    """
    return {
        **settings(options),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 50,  # how soon the end of a partition is reported
    }


class GroupOffsets:
    """The groups of one cluster.

    Args:
        options: `isthmus.connectors.kafka.option.ADMINISTRATION`.

    Raises:
        ConfigError: an option is invalid.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = read_cluster(options)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The offsets of a group by partition; empty where it has none.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        partitions = describe_topic(self._options, topic).partitions
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        with errors_of(self._options, topic):
            consumer = Consumer(reader_settings(self._options, group))

        def ask() -> list[TopicPartition]:
            with errors_of(self._options, topic):
                found = list(consumer.committed(asked, timeout=QUERY_SECONDS))
                for each in found:
                    if each.error is not None:
                        raise KafkaException(each.error)
                return found

        with closing(consumer):
            found = _with_coordinator(ask)
        return {each.partition: each.offset for each in found if each.offset >= 0}

    def begin(self, group: str, topic: str, *, from_end: bool) -> None:
        """Commits an offset of a group for every partition: its end, or its first record.

        Raises:
            EntityNotFoundError: the topic does not exist.
            IsthmusError: no answer, or a refusal.
        """
        partitions = describe_topic(self._options, topic).partitions
        with errors_of(self._options, topic), closing(Consumer(reader_settings(self._options, group))) as consumer:
            if from_end:
                ends, epochs = ends_of_all(consumer, topic, range(partitions))
            else:
                ends, epochs = {number: _edges(consumer, topic, number)[0] for number in range(partitions)}, {}
        offsets = [
            TopicPartition(topic, number, offset, leader_epoch=epochs.get(number, -1))
            for number, offset in ends.items()
        ]
        asked = ClusterClient(self._options, topic)
        wanted = ConsumerGroupTopicPartitions(group, offsets)

        def alter() -> None:
            answer = asked.admin.alter_consumer_group_offsets([wanted], request_timeout=QUERY_SECONDS)[group]
            # The answer for the group is not an error where those of its partitions are.
            for each in asked.result(answer).topic_partitions:
                # By I2 a group whose readers prevent it begins with the first records anyway.
                if each.error is not None and (from_end or each.error.code() not in _HAS_MEMBERS):
                    raise _not_begun(each.error, group, topic)

        _with_coordinator(alter)

    def waiting(self, group: str, topic: str) -> Waiting:
        """The records that wait for a group.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        offsets = self.committed(group, topic)
        partitions = describe_topic(self._options, topic).partitions
        made = {**reader_settings(self._options, group), "enable.partition.eof": True}
        with errors_of(self._options, topic), closing(Consumer(made)) as consumer:
            found: list[Waiting] = []
            for number in range(partitions):
                low, high = _edges(consumer, topic, number)
                start = max(low, offsets.get(number, 0))
                if start < high:
                    found.append(_waiting(consumer, TopicPartition(topic, number, start), high))
            oldest = [each.oldest_ms for each in found if each.oldest_ms]
            return Waiting(sum(each.records for each in found), min(oldest, default=0))


def _not_begun(error: KafkaError, group: str, topic: str) -> IsthmusError:
    if error.code() in _HAS_MEMBERS:
        return KafkaFailureError(
            f"topic '{topic}': group '{group}' has a reader, and its offsets cannot be set; end it, or write another group"
        )
    return error_of(error, topic)


def _with_coordinator(ask: Callable[[], _Answer]) -> _Answer:
    """The answer of a group's coordinator, once there is one: a new cluster takes seconds to elect its first.

    Raises:
        IsthmusError: no answer, or a refusal.
    """
    deadline = time.monotonic() + COORDINATOR_SECONDS
    while True:
        try:
            return ask()
        except CoordinatorAwayError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_AGAIN_SECONDS)


def _edges(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """The first offset of a partition, and the one after its last."""
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=QUERY_SECONDS)
    return int(low), int(high)


def _waiting(consumer: Consumer, behind: TopicPartition, high: int) -> Waiting:
    """The waiting records of a partition from an offset on; where the first record is unknown, all offsets count."""
    consumer.assign([behind])
    for record in consumer.consume(1, _TIMESTAMP_SECONDS):
        error = record.error()
        if error is None:
            kind, timestamp_ms = record.timestamp()
            return Waiting(high - int(record.offset() or 0), timestamp_ms if kind else 0)
        if error.code() == KafkaError._PARTITION_EOF:
            return Waiting()
    return Waiting(high - behind.offset)
