"""When a consumer without credit pauses its partitions.

What it is: which partitions are paused, and since when there has been no credit. What it is not: the credit (`read_queue`).
Specification: Apache Kafka documentation, "Consumption Flow Control".

Invariants:
    I1. Nothing is paused before there has been no credit for `PAUSE_SECONDS`: a pause discards fetched records.
    I2. A revoked partition is resumed: librdkafka may keep the pause until it is assigned again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

__all__ = ["PartitionPause"]

# A consumer without credit stops fetching after so long.
PAUSE_SECONDS = 1.0


class PartitionPause:
    """The partitions of one topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._paused: set[int] = set()
        self._since = 0.0  # 0: there is credit

    @property
    def waits(self) -> bool:
        """Whether there has been no credit for a while, and nothing is paused yet."""
        return bool(self._since) and not self._paused

    def pause(self, consumer: Any, partitions: Collection[int], now: float) -> bool:
        """There is no credit; returns whether it is time to pause."""
        if not self._since:
            self._since = now
            return False
        if now - self._since < PAUSE_SECONDS:
            return False
        fresh = set(partitions) - self._paused
        if fresh:
            consumer.pause(self._topic_partitions(fresh))
            self._paused |= fresh
        return True

    def resume(self, consumer: Any, partitions: Collection[int]) -> None:
        """There is credit."""
        self._since = 0.0
        known, self._paused = self._paused.intersection(partitions), set()
        if known:
            consumer.resume(self._topic_partitions(known))

    def leave(self, consumer: Any, partitions: Collection[int]) -> None:
        """Partitions are revoked (I2)."""
        paused = self._paused.intersection(partitions)
        if paused:
            with contextlib.suppress(KafkaException):
                consumer.resume(self._topic_partitions(paused))

    def forget(self, partitions: Collection[int]) -> None:
        """Partitions are revoked."""
        self._paused.difference_update(partitions)

    def _topic_partitions(self, partitions: Collection[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, number) for number in partitions]
