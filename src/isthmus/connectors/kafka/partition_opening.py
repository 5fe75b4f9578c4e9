"""The partitions that have acknowledged a record of a producer: before that, one record at a time is sent to a partition.

What it is: the first record of each partition, and the records that wait for it, pure. What it is not: the producer (`producer`), or
thread-safe.
Specification: Apache Kafka documentation, `enable.idempotence`; librdkafka documentation ("Idempotent Producer").

Why. A broker without state of a producer accepts its records from any sequence number on. If it refuses the first
batch, because the partition has no leader for a moment, and accepts the second, which was sent after it, librdkafka treats the first as
acknowledged, because a later one was. The record is lost, and reported as stored (librdkafka 2.16, Kafka 4; reported as issue 921 of
confluent-kafka-go). Once a record of this producer is stored the broker refuses records out of sequence.

Invariants:
    I1. No record is sent to a partition after an unanswered one, before the first was stored there.
    I2. Waiting records are sent in their order.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Generic, TypeVar

from isthmus.connectors.kafka.mapping.murmur2 import partition_of

__all__ = ["PartitionOpenings"]

_Item = TypeVar("_Item")


class PartitionOpenings(Generic[_Item]):
    """The partitions of one topic, for one producer.

    Args:
        partitions: how many there are.
    """

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._unproved = set(range(partitions))
        self._waiting: dict[int, deque[_Item]] = {}  # by partition whose first record has no answer

    @property
    def is_over(self) -> bool:
        """Whether each partition has stored a record."""
        return not self._unproved

    def partition_for(self, key: bytes | None) -> int:
        """The partition that the producer would choose for a record, by its key or at random."""
        return random.randrange(self._partitions) if key is None else partition_of(key, self._partitions)

    def admits(self, partition: int, item: _Item) -> bool:
        """Whether a record may be sent now; otherwise it waits, and `answered` returns it."""
        if partition not in self._unproved:
            return True
        waiting = self._waiting.get(partition)
        if waiting is None:
            self._waiting[partition] = deque()
            return True
        waiting.append(item)
        return False

    def answered(self, partition: int, *, is_stored: bool) -> list[_Item]:
        """A record of the partition was answered; returns the records to send now, in this order."""
        waiting = self._waiting.get(partition)
        if waiting is None:
            return []
        if is_stored:
            self._unproved.discard(partition)
            del self._waiting[partition]
            return list(waiting)
        if waiting:
            return [waiting.popleft()]
        del self._waiting[partition]
        return []
