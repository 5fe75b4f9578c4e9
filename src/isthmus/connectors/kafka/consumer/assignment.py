"""The assignment and revocation of partitions by the group.

What it is: the callbacks of the consumer: where reading begins, what is committed and reported before partitions are revoked, and that no state
of them is kept afterwards. What it is not: the reading (`consumer`), or the accounts that it changes (`delivered`, `commit`, `removed`).
Specification: librdkafka documentation ("Consumer groups"); Apache Kafka, KIP-320. The thread of the consumer calls them, from `consume`, `poll` and
`close`.

Truncated logs. A log that was truncated below the group's offset, and has grown past it since, has other records there, and those before it were
never read. The offset is valid, so that only its leader epoch shows this. librdkafka compares them (OffsetForLeaderEpoch) after a `seek`, and not
where a partition is assigned (2.16; its pull request 5207 took that out), so that the group's offsets are assigned and sought.

Invariants:
    I1. No record of revoked partitions is delivered or committed any more.
    I2. With `start=latest` the start is committed before anything is read: the next reader does not skip later records.
    I3. No record is delivered of partitions whose start cannot be committed: they are not in the account, and the consumer is not used again.
    I4. Reading begins where the log was truncated, if that is before the group's offset; `removed` reports it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from isthmus.connectors.kafka.cluster import error_of
from isthmus.connectors.kafka.consumer import offset_note
from isthmus.connectors.kafka.consumer.commit import Commits
from isthmus.connectors.kafka.consumer.committer import Committer
from isthmus.connectors.kafka.consumer.delivered import Delivered
from isthmus.connectors.kafka.consumer.fault import ConsumerFault
from isthmus.connectors.kafka.consumer.latest import begin_group, ends_of_all, positions_of, seek_all
from isthmus.connectors.kafka.consumer.partition_pause import PartitionPause
from isthmus.connectors.kafka.consumer.removed import RemovedRecords
from isthmus.connectors.kafka.option import SourceOptions
from isthmus.errors import ConnectionLostError

__all__ = ["Assignment"]


class Assignment:
    """The partitions of one reader.

    Args:
        options: of the source.
        delivered: the unsettled records.
        commits: the decisions what to commit.
        committer: commits.
        removed: the records that were removed unread.
        pause: the paused partitions.
        fault: the reason for which the source is lost.
        lock: guards `delivered`, `commits` and `pause`.
        stops: whether the reader ends.

    Attributes:
        partitions: how many the topic had at the first opening; 0: unknown.
    """

    def __init__(
        self,
        options: SourceOptions,
        delivered: Delivered,
        commits: Commits,
        committer: Committer,
        removed: RemovedRecords,
        pause: PartitionPause,
        fault: ConsumerFault,
        lock: threading.Condition,
        stops: Callable[[], bool],
    ) -> None:
        self.partitions = 0
        self._options = options
        self._delivered, self._commits, self._committer = delivered, commits, committer
        self._removed, self._pause, self._fault = removed, pause, fault
        self._lock = lock
        self._stops = stops

    def assigned(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        """The group assigns partitions."""
        numbers = [each.partition for each in partitions]
        topic = self._options.topic
        ends: dict[int, int] = {}
        is_latest = self._options.start == "latest" and bool(numbers)
        try:
            self._committer.assigned(consumer, numbers)
            if is_latest:
                commit = self._committer.commit_now
                ends = begin_group(consumer, topic, numbers, self.partitions, commit, self._stops)
            checked = self._to_check(consumer, [each for each in numbers if each not in ends])
            if is_latest or checked:
                for each in partitions:
                    begin = checked[each.partition][0] if each.partition in checked else each.offset
                    each.offset = ends.get(each.partition, begin)
                consumer.incremental_assign(partitions)
            seek_all(consumer, [place for _, place in checked.values()], self._stops)
        except KafkaException as error:
            self._fault.spend(error_of(error.args[0], topic))
            return
        self._removed.assigned(numbers)
        with self._lock:
            self._delivered.account.assign(numbers, ends)

    def _to_check(self, consumer: Any, numbers: Sequence[int]) -> dict[int, tuple[int, TopicPartition]]:
        """By partition whose leader has changed since the group's offset was committed, that offset with its epoch, and where to begin
        until it is compared (I4). Epochs of another topic tell nothing of this one.

        Raises:
            KafkaException: no answer, or a refusal.
        """
        topic = self._options.topic
        if not numbers:
            return {}
        known: dict[int, Any] = {}
        for each in positions_of(consumer, topic, numbers, self._stops):
            before, now = offset_note.read(each.metadata).topic, self._delivered.topic
            is_other = bool(before and now) and before != now
            if each.offset >= 0 and each.leader_epoch is not None and not is_other:
                known[each.partition] = each
        if not known:
            return {}
        ends, epochs = ends_of_all(consumer, topic, known)
        # A fetch behind the end of a log that is shorter now would reset the partition to the first record, also after the `seek`.
        return {
            number: (
                min(each.offset, ends[number]),
                TopicPartition(topic, number, each.offset, leader_epoch=each.leader_epoch),
            )
            for number, each in known.items()
            if epochs[number] != each.leader_epoch
        }

    def revoked(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        """The group revokes partitions; their settled records are committed before."""
        numbers = [each.partition for each in partitions]
        self._fault.lose_removed(self._removed.query_partitions(consumer, numbers))
        if not self._fault.is_absent:
            self._committer.commit_settled(consumer, numbers, self._removed.asks)
        self._pause.leave(consumer, numbers)
        self._forget(numbers)

    def revoke_all(self, consumer: Any) -> None:
        """The consumer is not used again; it may still be a member."""
        topic = self._options.topic
        self.revoked(consumer, [TopicPartition(topic, each) for each in self._delivered.account.partitions])

    def lost(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        """The group considers this reader dead. A consumer that joins again may never deliver a record: it is not used again."""
        self._forget([each.partition for each in partitions])
        self._fault.spend(ConnectionLostError(f"topic '{self._options.topic}': the group considered the reader dead"))

    def _forget(self, numbers: Sequence[int]) -> None:
        with self._lock:
            self._delivered.forget(numbers)
            self._commits.forget(numbers)
            self._pause.forget(numbers)
        self._removed.forget(numbers)
