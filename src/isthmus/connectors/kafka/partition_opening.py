"""Which partitions a producer has been acknowledged on: before that, one record at a time is sent to a partition.

What it is: the first record of each partition, and what waits behind it, pure. What it is not: the producer (`producer`), or safe from
several threads.
Specification: Apache Kafka documentation, `enable.idempotence`; librdkafka documentation ("Idempotent Producer").

Why. A broker that knows nothing of a producer takes its records from whatever sequence number they begin with. Where it refuses the first
batch, since the partition has no leader for a moment, and takes the second, which was sent behind it, librdkafka counts the first as
acknowledged: a later one was. The record is lost, and reported as stored (librdkafka 2.16, Kafka 4; in the open as issue 921 of
confluent-kafka-go). Once a record of this producer is stored the broker refuses what is out of sequence.

Invariants:
    I1. Nothing is sent to a partition behind a record that has no answer, before the first has been stored there.
    I2. What waits is sent in its order.
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
        """The partition that the producer would choose for a record, by its key or by chance."""
        return random.randrange(self._partitions) if key is None else partition_of(key, self._partitions)

    def admits(self, partition: int, item: _Item) -> bool:
        """Whether a record may be sent now; else it waits, and `answered` gives it back."""
        if partition not in self._unproved:
            return True
        waiting = self._waiting.get(partition)
        if waiting is None:
            self._waiting[partition] = deque()
            return True
        waiting.append(item)
        return False

    def answered(self, partition: int, *, is_stored: bool) -> list[_Item]:
        """A record of the partition has its answer: what is to be sent now, in this order."""
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
