"""Records that were removed before they were read, or read again: each loss is told once, with its range.

What it is: where a group was when partitions were assigned, what did not come since, and the look that tells whether it was removed; a gap
alone says nothing, since compaction and the marks of transactions leave some. A record that was given back has been there: where it does
not come again it is gone, by compaction where not by the retention. What was removed up to the end of a partition is
told with the next record there, or by the next reader. What it is not: the reading (`consumer`), which continues with the first record that
there is.
Specification: Apache Kafka documentation, "Log Retention"; librdkafka documentation, `auto.offset.reset`.

Invariants:
    I1. A range is told once by one reader.
    I2. A look that gets no answer is taken again; it holds up the reading for `LOOK_SECONDS` twice at most.
    I3. Every range is looked at, however many come between two looks, and also where its partition is handed over meanwhile: the offset
        that was committed may be behind it, and no other reader finds it.
    I4. While it is not known where the group was, nothing may be committed (`is_asking`): the answer would be behind the loss. Nor of a
        partition of which a range waits for its look (`unlooked`): a reader that is killed meanwhile has told nobody, and the next one
        finds the range only where the group is before it.
    I5. A record that was given back to a reader before this one, and has not come again, is told likewise, where that one has noted it
        beside the offset (`offset_note`).
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

LOOK_SECONDS = 2.0
LAST_SECONDS = 1.0
# A compacted topic has gaps all the time: a look is taken at most so often, and takes a twentieth of the time where the cluster is far.
SPACING_SECONDS = 1.0
_SPACING_FACTOR = 20
# After so long a look is taken again that got no answer.
AGAIN_SECONDS = 1.0
# After so many of one partition a look is taken at once: two megabytes.
MOST_RANGES = 10_000
_MOST_TOLD = 20


class _Range(NamedTuple):
    """Records that did not come.

    Attributes:
        first: the offset that was to come.
        stop: the one that came instead; None: none has come.
        is_return: whether they were read before, and given back.
    """

    first: int
    stop: int | None
    is_return: bool = False


class RemovedRecords:
    """The losses of one topic; used by the thread of the consumer alone.

    Args:
        topic: its name.
        clock: what tells how long a look takes, in seconds.
    """

    def __init__(self, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._topic = topic
        self._clock = clock
        # Partitions of which it is not known where the group was, with the offset that came first.
        self._unknown: dict[int, int | None] = {}
        self._begins: dict[int, int] = {}  # by partition of which nothing has come yet, where the group was
        self._came: dict[int, IndexSet] = {}  # by partition that is not known, what came meanwhile
        self._awaited: dict[
            int, IndexSet
        ] = {}  # by partition, what was given back to a reader before, and may come still
        self._topics: dict[int, str] = {}  # by partition, the topic that the group's offset is of
        self._wanted: dict[int, list[_Range]] = {}
        self._told: dict[int, IndexSet] = {}
        self._due = 0.0

    def assigned(self, partitions: Iterable[int]) -> None:
        """Partitions are read from where the group is."""
        for number in partitions:
            self._unknown[number] = None
            for each in (self._begins, self._came, self._awaited, self._topics):
                each.pop(number, None)
        self._due = 0.0

    @property
    def is_asking(self) -> bool:
        """Whether it is not known yet where the group was (I4)."""
        return bool(self._unknown)

    def take_others(self, topic: str) -> frozenset[int]:
        """The partitions of which the group's offset is of another topic of this name, which is gone; each is told once."""
        told, self._topics = self._topics, {}
        return frozenset(number for number, before in told.items() if offset_note.is_another(before, topic))

    @property
    def unlooked(self) -> Collection[int]:
        """The partitions of which something did not come that has not been looked for (I4)."""
        return self._wanted.keys()

    def asks(self, partition: int) -> bool:
        """Whether it is not known yet where the group was in a partition, or what did not come (I4)."""
        return partition in self._unknown or partition in self._wanted

    def first(self, partition: int, came: int) -> None:
        """The first record of a partition that was assigned came; what is removed behind it later is not lost."""
        if partition in self._unknown:
            self._unknown[partition] = came
        for at, each in enumerate(self._wanted.get(partition, ())):
            if each.stop is None:
                self._wanted[partition][at] = _Range(each.first, came)
        begin = self._begins.pop(partition, came)
        if begin < came:  # what is removed while a target takes nothing is removed behind the first look
            self.gap(partition, begin, came)

    def forget(self, partitions: Collection[int]) -> None:
        """Partitions are somebody else's; what did not come is looked at all the same (I3)."""
        for number in partitions:
            for each in (self._unknown, self._begins, self._came, self._awaited, self._topics):
                each.pop(number, None)

    def begins_again(self, partitions: Collection[int]) -> None:
        """The offsets of partitions name other records."""
        self.forget(partitions)
        for number in partitions:
            self._wanted.pop(number, None)
            self._told.pop(number, None)

    def passed(self, partition: int, offset: int) -> None:
        """All records of a partition below an offset have come that will."""
        awaited = self._awaited.get(partition)
        if awaited:
            for first, stop in awaited:
                if first < offset:
                    self.gap(partition, first, min(stop, offset), is_return=True)
            awaited.remove(0, offset)

    def came(self, partition: int, offset: int) -> None:
        """A record of a partition came, behind all of those that are before it."""
        if partition in self._unknown:
            self._came.setdefault(partition, IndexSet()).add(offset, offset + 1)
        elif awaited := self._awaited.get(partition):
            awaited.remove(offset, offset + 1)

    def awaited(self, partition: int) -> Iterable[tuple[int, int]]:
        """What was given back to a reader before this one, and may come still."""
        return self._awaited.get(partition, ())

    def _await(self, partition: int, ranges: Iterable[tuple[int, int]]) -> None:
        """What the group notes was given back; a part of it may have come before that was known."""
        awaited = self._awaited[partition] = IndexSet()
        for first, stop in ranges:
            awaited.add(first, stop)
        came = list(self._came.pop(partition, ()))
        for first, stop in came:
            awaited.remove(first, stop)
        if came:
            self.passed(partition, came[-1][1])

    def gap(self, partition: int, first: int, came: int, *, is_return: bool = False) -> None:
        """A record came, and those from `first` on did not; `is_return`: they had been given back."""
        wanted = self._wanted.setdefault(partition, [])
        wanted.append(_Range(first, came, is_return))
        if len(wanted) % MOST_RANGES == 0:
            self._due = 0.0

    def look(self, consumer: Any, now: float) -> str:
        """What is lost, as far as it has not been told; empty where nothing is, or it is not time to look."""
        if now < self._due or not (self._unknown or self._wanted):
            return ""
        began = self._clock()
        with contextlib.suppress(KafkaException):
            self._ask_group(consumer, LOOK_SECONDS)
        found = self._look(consumer, list(self._wanted), LOOK_SECONDS)
        is_done = not (self._unknown or self._wanted)
        took = self._clock() - began
        self._due = now + (max(SPACING_SECONDS, _SPACING_FACTOR * took) if is_done else AGAIN_SECONDS)
        return found

    def last_ask(self, consumer: Any, tell: Callable[[str], None]) -> frozenset[int]:
        """The partitions of which nothing is committed at the end (I4): the group and the log are asked once more.

        Args:
            consumer: of the group.
            tell: is told what is lost, before anything is committed behind it.
        """
        with contextlib.suppress(KafkaException):
            self._ask_group(consumer, LAST_SECONDS)
        tell(self._look(consumer, list(self._wanted), LAST_SECONDS))
        return frozenset(self._unknown) | self._wanted.keys()

    def look_at(self, consumer: Any, partitions: Iterable[int]) -> str:
        """What is lost of partitions that are handed over, as far as there is an answer: of the others nothing is committed (I4)."""
        return self._look(consumer, [each for each in partitions if each in self._wanted], LAST_SECONDS)

    def last_look(self, consumer: Any) -> str:
        """What is lost of what has not been looked at yet."""
        return self._look(consumer, list(self._wanted), LAST_SECONDS)

    def _look(self, consumer: Any, partitions: Iterable[int], seconds: float) -> str:
        removed: list[str] = []
        compacted: list[str] = []
        for number in partitions:
            try:
                low = int(consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=seconds)[0])
            except KafkaException:
                self._wanted[number] = self._wanted.pop(number)  # the others have their turn first, the next time
                break
            wanted = self._wanted.pop(number)
            stops = [(each.first, low if each.stop is None else min(low, each.stop)) for each in wanted]
            removed += self._news(number, stops)
            compacted += self._news(number, [(each.first, each.stop or 0) for each in wanted if each.is_return])
        texts = []
        if removed:
            texts.append(f"{_some(removed)} were removed by the retention before they were read, and are lost")
        if compacted:
            texts.append(f"{_some(compacted)} were given back, and compaction removed them before they were read again")
        return f"topic '{self._topic}', {'; '.join(texts)}" if texts else ""

    def _news(self, partition: int, ranges: Iterable[tuple[int, int]]) -> list[str]:
        """What of these ranges has not been told yet (I1); it is told now."""
        told, news = self._told.setdefault(partition, IndexSet()), IndexSet()
        for first, stop in ranges:
            if first < stop:
                news.add(first, stop)
        for first, stop in told:
            news.remove(first, stop)
        for first, stop in news:
            told.add(first, stop)
        return [f"partition {partition}: records {first} to {stop - 1}" for first, stop in news]

    def _ask_group(self, consumer: Any, seconds: float) -> None:
        if not self._unknown:
            return
        asked = [TopicPartition(self._topic, number) for number in sorted(self._unknown)]
        for each in consumer.committed(asked, timeout=seconds):
            if each.error is not None:
                continue
            came = self._unknown.pop(each.partition)
            note = offset_note.read(getattr(each, "metadata", None))
            self._topics[each.partition] = note.topic
            self._await(each.partition, note.returned)
            if each.offset >= 0:
                self._wanted.setdefault(each.partition, []).append(_Range(each.offset, came))
                if came is None:
                    self._begins[each.partition] = each.offset


def _some(ranges: list[str]) -> str:
    more = len(ranges) - _MOST_TOLD
    return ", ".join(ranges[:_MOST_TOLD]) + (f" and {more} more ranges" if more > 0 else "")
