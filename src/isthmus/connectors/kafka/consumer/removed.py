"""Records that were removed before they were read, or read again: each loss is reported once, with its range.

What it is: the group's position when partitions were assigned, the records that did not arrive since, and the query whether they were
removed; a gap alone is no evidence, because compaction and transaction markers leave some. A released record existed: where it is
not redelivered it was removed, by compaction if not by the retention. Records removed up to the end of a partition are
reported with the next record there, or by the next reader. What it is not: the reading (`consumer`), which continues with the first existing
record.
Specification: Apache Kafka documentation, "Log Retention"; librdkafka documentation, `auto.offset.reset`.

Invariants:
    I1. A range is reported once by one reader.
    I2. A query without answer is repeated; it delays reading for `QUERY_SECONDS` twice at most.
    I3. Every range is queried, however many occur between two queries, and also if its partition is revoked meanwhile: the committed
        offset may be after it, and no other reader finds it.
    I4. While the group's position is unknown, nothing may be committed (`is_asking`): the answer would be after the loss. Nor of a
        partition with a range that waits for its query (`unlooked`): a reader that is killed meanwhile has not reported it, and the next one
        finds the range only if the group's position is before it.
    I5. A record that was released to an earlier reader, and was not redelivered, is reported in the same way, if that reader has noted it
        with the offset (`offset_note`).
    I6. A partition that is read from before the group's position is reported: its log ended before that, so that librdkafka began where it
        was truncated, or at its start.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, TopicPartition

from isthmus.bridge.index_set import IndexSet
from isthmus.connectors.kafka.consumer import offset_note

__all__ = ["AGAIN_SECONDS", "MOST_RANGES", "SPACING_SECONDS", "RemovedRecords"]

QUERY_SECONDS = 2.0
LAST_SECONDS = 1.0
# A compacted topic has many gaps: a query is made at most this often, and uses a twentieth of the time where the cluster is distant.
SPACING_SECONDS = 1.0
_SPACING_FACTOR = 20
# An unanswered query is repeated after so long.
AGAIN_SECONDS = 1.0
# After so many ranges of one partition a query is made at once: two megabytes.
MOST_RANGES = 10_000
_MOST_TOLD = 20


class _Range(NamedTuple):
    """Records that did not arrive.

    Attributes:
        first: the expected offset.
        stop: the offset that arrived instead; None: none has.
        is_return: whether the records were read before, and released.
    """

    first: int
    stop: int | None
    is_return: bool = False


class RemovedRecords:
    """The losses of one topic; used by the thread of the consumer alone.

    Args:
        topic: its name.
        clock: measures the duration of a query, in seconds.
    """

    def __init__(self, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._topic = topic
        self._clock = clock
        # Partitions in which the group's position is unknown, with the first offset that arrived.
        self._unknown: dict[int, int | None] = {}
        self._begins: dict[int, int] = {}  # by partition without records so far, the group's position
        self._arrived: dict[
            int, IndexSet
        ] = {}  # by partition with unknown position, the records that arrived meanwhile
        self._awaited: dict[
            int, IndexSet
        ] = {}  # by partition, the records released to an earlier reader, which may still arrive
        self._topics: dict[int, str] = {}  # by partition, the topic of the group's offset
        self._rereads: dict[
            int, tuple[int, int]
        ] = {}  # by partition, the group's position, and the first offset that arrived before it
        self._wanted: dict[int, list[_Range]] = {}
        self._reported: dict[int, IndexSet] = {}
        self._due = 0.0

    def assigned(self, partitions: Iterable[int]) -> None:
        """Partitions are read from the group's position."""
        for number in partitions:
            self._unknown[number] = None
            for each in (self._begins, self._arrived, self._awaited, self._topics):
                each.pop(number, None)
        self._due = 0.0

    @property
    def is_asking(self) -> bool:
        """Whether the group's position is unknown (I4)."""
        return bool(self._unknown)

    def take_others(self, topic: str) -> frozenset[int]:
        """The partitions whose group offset is of an earlier topic of this name; each is reported once."""
        topics, self._topics = self._topics, {}
        return frozenset(number for number, before in topics.items() if offset_note.is_another(before, topic))

    @property
    def unlooked(self) -> Collection[int]:
        """The partitions with missing records that were not queried (I4)."""
        return self._wanted.keys()

    def asks(self, partition: int) -> bool:
        """Whether a partition's group position is unknown, or it has missing records that were not queried (I4)."""
        return partition in self._unknown or partition in self._wanted

    def first(self, partition: int, arrived: int) -> None:
        """The first record of an assigned partition arrived; records removed after it later are not lost."""
        if partition in self._unknown:
            self._unknown[partition] = arrived
        for at, each in enumerate(self._wanted.get(partition, ())):
            if each.stop is None:
                self._wanted[partition][at] = _Range(each.first, arrived)
        begin = self._begins.pop(partition, arrived)
        if begin < arrived:  # records removed while a target accepts nothing are later than the first query
            self.gap(partition, begin, arrived)
        elif begin > arrived:
            self._rereads[partition] = begin, arrived

    def take_rereads(self) -> str:
        """The partitions since the last call that are read from before the group's position (I6); empty: none are."""
        rereads, self._rereads = self._rereads, {}
        texts = [
            f"partition {number}: the group's position was {position}, and the log ended before it: reading begins at {arrived}"
            for number, (position, arrived) in rereads.items()
        ]
        hint = "the topic was created again, or its log was truncated; records that were moved before may come again"
        return f"topic '{self._topic}', {_some(texts)}; {hint}" if texts else ""

    def forget(self, partitions: Collection[int]) -> None:
        """Partitions are revoked; missing records are queried nevertheless (I3)."""
        for number in partitions:
            for each in (self._unknown, self._begins, self._arrived, self._awaited, self._topics):
                each.pop(number, None)

    def begins_again(self, partitions: Collection[int]) -> None:
        """The offsets of partitions name other records."""
        self.forget(partitions)
        for number in partitions:
            self._wanted.pop(number, None)
            self._reported.pop(number, None)
            self._rereads.pop(number, None)

    def passed(self, partition: int, offset: int) -> None:
        """All records of a partition below an offset have arrived."""
        awaited = self._awaited.get(partition)
        if awaited:
            for first, stop in awaited:
                if first < offset:
                    self.gap(partition, first, min(stop, offset), is_return=True)
            awaited.remove(0, offset)

    def arrived(self, partition: int, offset: int) -> None:
        """A record of a partition arrived, after all that precede it."""
        if partition in self._unknown:
            self._arrived.setdefault(partition, IndexSet()).add(offset, offset + 1)
        elif awaited := self._awaited.get(partition):
            awaited.remove(offset, offset + 1)

    def awaited(self, partition: int) -> Iterable[tuple[int, int]]:
        """The records released to an earlier reader, which may still arrive."""
        return self._awaited.get(partition, ())

    def _await(self, partition: int, ranges: Iterable[tuple[int, int]]) -> None:
        """The ranges in the group's note; a part of them may have arrived before the note was read."""
        awaited = self._awaited[partition] = IndexSet()
        for first, stop in ranges:
            awaited.add(first, stop)
        arrived = list(self._arrived.pop(partition, ()))
        for first, stop in arrived:
            awaited.remove(first, stop)
        if arrived:
            self.passed(partition, arrived[-1][1])

    def gap(self, partition: int, first: int, arrived: int, *, is_return: bool = False) -> None:
        """A record arrived, and those from `first` on did not; `is_return`: they had been released."""
        wanted = self._wanted.setdefault(partition, [])
        wanted.append(_Range(first, arrived, is_return))
        if len(wanted) % MOST_RANGES == 0:
            self._due = 0.0

    def query(self, consumer: Any, now: float) -> str:
        """The losses that were not reported; empty where there are none, or no query is due."""
        if now < self._due or not (self._unknown or self._wanted):
            return ""
        began = self._clock()
        with contextlib.suppress(KafkaException):
            self._ask_group(consumer, QUERY_SECONDS)
        found = self._query(consumer, list(self._wanted), QUERY_SECONDS)
        is_done = not (self._unknown or self._wanted)
        took = self._clock() - began
        self._due = now + (max(SPACING_SECONDS, _SPACING_FACTOR * took) if is_done else AGAIN_SECONDS)
        return found

    def last_ask(self, consumer: Any, report: Callable[[str], None]) -> frozenset[int]:
        """The partitions of which nothing is committed at the end (I4): the group and the log are queried once more.

        Args:
            consumer: of the group.
            report: is called with the losses, before an offset after them is committed.
        """
        with contextlib.suppress(KafkaException):
            self._ask_group(consumer, LAST_SECONDS)
        report(self._query(consumer, list(self._wanted), LAST_SECONDS))
        report(self.take_rereads())
        return frozenset(self._unknown) | self._wanted.keys()

    def query_partitions(self, consumer: Any, partitions: Iterable[int]) -> str:
        """The losses of revoked partitions, where there is an answer: of the others nothing is committed (I4)."""
        return self._query(consumer, [each for each in partitions if each in self._wanted], LAST_SECONDS)

    def last_query(self, consumer: Any) -> str:
        """The losses of partitions that were not queried yet."""
        return self._query(consumer, list(self._wanted), LAST_SECONDS)

    def _query(self, consumer: Any, partitions: Iterable[int], seconds: float) -> str:
        removed: list[str] = []
        compacted: list[str] = []
        for number in partitions:
            try:
                low = int(consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=seconds)[0])
            except KafkaException:
                self._wanted[number] = self._wanted.pop(number)  # the others come first in the next query
                break
            wanted = self._wanted.pop(number)
            stops = [(each.first, low if each.stop is None else min(low, each.stop)) for each in wanted]
            removed += self._news(number, stops)
            compacted += self._news(number, [(each.first, each.stop or 0) for each in wanted if each.is_return])
        texts = []
        if removed:
            texts.append(f"{_some(removed)} were removed by the retention before they were read, and are lost")
        if compacted:
            texts.append(f"{_some(compacted)} were released, and compaction removed them before they were read again")
        return f"topic '{self._topic}', {'; '.join(texts)}" if texts else ""

    def _news(self, partition: int, ranges: Iterable[tuple[int, int]]) -> list[str]:
        """The part of these ranges that was not reported yet (I1); it counts as reported."""
        reported, news = self._reported.setdefault(partition, IndexSet()), IndexSet()
        for first, stop in ranges:
            if first < stop:
                news.add(first, stop)
        for first, stop in reported:
            news.remove(first, stop)
        for first, stop in news:
            reported.add(first, stop)
        return [f"partition {partition}: records {first} to {stop - 1}" for first, stop in news]

    def _ask_group(self, consumer: Any, seconds: float) -> None:
        if not self._unknown:
            return
        asked = [TopicPartition(self._topic, number) for number in sorted(self._unknown)]
        for each in consumer.committed(asked, timeout=seconds):
            if each.error is not None:
                continue
            arrived = self._unknown.pop(each.partition)
            note = offset_note.read(getattr(each, "metadata", None))
            self._topics[each.partition] = note.topic
            self._await(each.partition, note.returned)
            if arrived is not None and arrived < each.offset:
                self._rereads[each.partition] = each.offset, arrived
            elif each.offset >= 0:
                self._wanted.setdefault(each.partition, []).append(_Range(each.offset, arrived))
                if arrived is None:
                    self._begins[each.partition] = each.offset


def _some(ranges: list[str]) -> str:
    more = len(ranges) - _MOST_TOLD
    return ", ".join(ranges[:_MOST_TOLD]) + (f" and {more} more ranges" if more > 0 else "")
