"""The calls that commit a consumer's offsets, and their answers.

What it is: the calls of the consumer's thread. What it is not: the decision when to commit what (`commit`).
Specification: librdkafka documentation ("At-least-once processing").

Invariants:
    I1. The last commit is repeated until the cluster has confirmed it, or the time-out.
    I2. The start of a partition that begins again is committed before the next consumer reads it: the group's offset is of other records.
    I3. An offset is committed with its leader epoch, where the cluster reports epochs (KIP-320): the next reader can recognise that the log was
        truncated before it, and has other records there (`assignment`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from isthmus.connectors.kafka.consumer.commit import Commits

__all__ = ["Committer"]

_AGAIN_SECONDS = 0.1


class Committer:
    """Commits offsets of one topic.

    Args:
        topic: its name.
        commits: the decisions what to commit.
        lock: guards them.
    """

    def __init__(self, topic: str, commits: Commits, lock: threading.Condition) -> None:
        self._topic = topic
        self._commits = commits
        self._lock = lock
        self._begins: dict[int, int] = {}  # of partitions that begin again, until the cluster has confirmed them

    def commit(self, consumer: Any, without: Collection[int] = ()) -> None:
        """Commits the offsets that are due, without waiting for the answer.

        Args:
            consumer: the consumer of the offsets.
            without: partitions of which nothing may be committed yet.

        Raises:
            KafkaException: the commit cannot be made.
        """
        with self._lock:
            commits = self._commits.begin(time.monotonic(), dict.fromkeys(without, -1))
        if not commits:
            return
        try:
            consumer.commit(offsets=self._offsets(commits), asynchronous=True)
        except KafkaException:
            with self._lock:
                self._commits.failed(time.monotonic())
            raise

    def commit_now(self, consumer: Any, commits: Mapping[int, int], epochs: Mapping[int, int] | None = None) -> None:
        """Commits, and waits for the answer.

        Args:
            consumer: of the group.
            commits: the offsets by partition.
            epochs: their leader epochs; None: those of the delivered records.

        Raises:
            KafkaException: no answer, or a refusal.
        """
        answers = consumer.commit(offsets=self._offsets(commits, epochs), asynchronous=False)
        self.answered(None, answers)
        refused = next((each.error for each in answers if each.error is not None), None)
        if refused is not None:
            raise KafkaException(refused)

    def begins_again(self, consumer: Any, starts: Mapping[int, int]) -> None:
        """Partitions begin again at these offsets; offsets that the cluster refuses are committed once more before they are read (I2).

        Nothing else is committed with it: if the topic was created again, its other partitions were, too.
        """
        self._begins |= starts
        with contextlib.suppress(KafkaException):
            self.commit_now(consumer, starts)
            self._take_off(starts)

    def assigned(self, consumer: Any, partitions: Collection[int]) -> None:
        """Partitions will be read.

        Raises:
            KafkaException: the start of one of them cannot be committed.
        """
        starts = {number: offset for number, offset in self._begins.items() if number in partitions}
        if starts:
            self.commit_now(consumer, starts)
            self._take_off(starts)

    def _take_off(self, starts: Mapping[int, int]) -> None:
        self._begins = {number: offset for number, offset in self._begins.items() if number not in starts}

    def commit_settled(self, consumer: Any, partitions: Collection[int], without: Callable[[int], bool]) -> None:
        """Commits the settled records of revoked partitions; uncommitted ones are redelivered to their next reader.

        Args:
            consumer: the consumer of the offsets.
            partitions: the revoked partitions.
            without: partitions of which nothing is committed.
        """
        with self._lock:
            commits = self._commits.unconfirmed(each for each in partitions if not without(each))
        if commits:
            with contextlib.suppress(KafkaException):
                self.commit_now(consumer, commits)

    def commit_last(
        self, consumer: Any, deadline: float, is_spent: Callable[[], bool], without: Collection[int] = ()
    ) -> None:
        """Commits the settled records, after a pending commit (I1).

        Args:
            consumer: the consumer, which is closed afterwards.
            deadline: in monotonic seconds.
            is_spent: whether the consumer has stopped working.
            without: partitions of which nothing is committed.

        Raises:
            KafkaException: the time-out has passed.
        """
        while self._commits.is_outstanding and time.monotonic() < deadline:
            consumer.poll(_AGAIN_SECONDS)  # records that arrive are not delivered any more
        while not is_spent():
            with self._lock:
                found = self._commits.unconfirmed()
            commits = {number: offset for number, offset in found.items() if number not in without}
            if not commits:
                return
            try:
                self.commit_now(consumer, commits)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                consumer.poll(_AGAIN_SECONDS)

    def answered(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        """The answer to a commit, asynchronous or not."""
        offsets = {each.partition: each.offset for each in partitions}
        failed = [each.partition for each in partitions if error is not None or each.error is not None]
        with self._lock:
            self._commits.answered(offsets, failed, time.monotonic())

    def _offsets(self, commits: Mapping[int, int], epochs: Mapping[int, int] | None = None) -> list[TopicPartition]:
        with self._lock:
            notes = self._commits.notes(commits)
            epochs = self._commits.epochs(commits) if epochs is None else epochs
        return [
            TopicPartition(self._topic, number, offset, notes[number], epochs.get(number, -1))
            for number, offset in commits.items()
        ]
