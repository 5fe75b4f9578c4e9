"""Records that a topic's retention removed before they were read: each loss is told once, with its range.

What it is: where a group was when partitions were assigned, what did not come since, and the look that tells whether it was removed; a gap
alone says nothing, since compaction and the marks of transactions leave some. What it is not: the reading (`consumer`), which continues
with the first record that there is.
Specification: Apache Kafka documentation, "Log Retention"; librdkafka documentation, `auto.offset.reset`.

Invariants:
    I1. A range is told once by one reader.
    I2. A look that gets no answer is taken again later; it holds up the reading for `LOOK_SECONDS` twice at most.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

__all__ = ["SPACING_SECONDS", "RemovedRecords"]

LOOK_SECONDS = 2.0
# A compacted topic has gaps all the time.
SPACING_SECONDS = 10.0


class RemovedRecords:
    """The losses of one topic; used by the thread of the consumer alone.

    Args:
        topic: its name.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._unknown: set[int] = set()  # partitions of which it is not known where the group was
        self._wanted: dict[
            int, tuple[int, int | None]
        ] = {}  # by partition: the first that was to come, and the one that came instead
        self._told: set[tuple[int, int]] = set()
        self._due = 0.0

    def assigned(self, partitions: Iterable[int]) -> None:
        """Partitions are read from where the group is."""
        self._unknown.update(partitions)
        self._due = 0.0

    def forget(self, partitions: Collection[int]) -> None:
        """Partitions are somebody else's."""
        self._unknown.difference_update(partitions)
        for number in partitions:
            self._wanted.pop(number, None)

    def gap(self, partition: int, first: int, came: int) -> None:
        """A record came, and those from `first` on did not."""
        self._wanted.setdefault(partition, (first, came))

    def look(self, consumer: Any, now: float) -> str:
        """What is lost, as far as it has not been told; empty where nothing is, or it is not time to look."""
        if now < self._due or not (self._unknown or self._wanted):
            return ""
        self._due = now + SPACING_SECONDS
        with contextlib.suppress(KafkaException):
            self._ask_group(consumer)
        texts = []
        for number, (first, came) in list(self._wanted.items()):
            try:
                low = int(consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=LOOK_SECONDS)[0])
            except KafkaException:
                break
            del self._wanted[number]
            stop = low if came is None else min(low, came)
            if first < stop and (number, stop) not in self._told:
                self._told.add((number, stop))
                texts.append(f"partition {number}: records {first} to {stop - 1}")
        if not texts:
            return ""
        return f"topic '{self._topic}', {', '.join(texts)} were removed by the retention before they were read, and are lost"

    def _ask_group(self, consumer: Any) -> None:
        if not self._unknown:
            return
        asked = [TopicPartition(self._topic, number) for number in sorted(self._unknown)]
        for each in consumer.committed(asked, timeout=LOOK_SECONDS):
            self._unknown.discard(each.partition)
            if each.offset >= 0:
                self._wanted[each.partition] = each.offset, None
