"""The messages that a spool has received, so that a redelivered one is stored once.

What it is: for each entity that messages are received from, the received sequence numbers, as ranges, and the epoch in which they
were assigned. A message is redelivered when the acknowledgement of its settlement was lost. What it is not: the files (`writer`).

An epoch ends when an entity is deleted and created again under its name: its numbers restart at 1. Within an epoch a higher number was
enqueued later. So a message whose number is not above all received ones, but which was enqueued after all of them, is the first of a new
epoch. Producers of Kafka choose the times of records, though, and streams of RabbitMQ have none: so a message whose mark differs from that of
the received message with its number also starts an epoch. A mark is the enqueued time; for these two systems, a digest of the message. Numbers
are compared within a partition, which is in their bits from 48 on. docs/explanation/spool.md, "What comes twice".

The numbers of a system whose messages have names are made of the names (`SeenNames`): they have no order, and so no epoch.

Invariants:
    I1. A redelivered message is recognised, however late, unless `RANGES` gaps, or `NAMES` messages with names, came since: then it
        counts as new, and may be stored twice.
    I2. A message of a new epoch is never taken for one of an earlier epoch, if its time, or the mark of one of the first or the last
        `MARKS` numbers, shows the difference.
    I3. Messages that were left out without such a comparison are reported (`take_uncompared`) when a later one begins an epoch.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from isthmus.bridge.index_set import IndexSet

__all__ = ["MARKS", "NAMES", "RANGES", "Seen", "SeenNames", "Uncompared", "mark_of"]

_PARTITION_SHIFT = 48
_NUMBERS = (1 << _PARTITION_SHIFT) - 1

RANGES = 1_000_000
"""Ranges kept for one partition; one takes about 80 bytes. Gaps are left by messages that other receivers took or a filter excluded."""

NAMES = 200_000
"""Numbers kept for one entity where they are made of names; one takes about 100 bytes."""

MARKS = 1000
"""Marks kept for the first messages of a partition in an epoch, and for the last: a log that was created again is read from its start, and
one that lost its end continues there."""


def mark_of(message: bytes, enqueued_ms: int) -> int:
    """The value that distinguishes a message from another one with its number: its enqueued time, or if that is unknown (0) its digest."""
    return enqueued_ms or int.from_bytes(blake2b(message, digest_size=6).digest())


class Uncompared(NamedTuple):
    """Messages of one entity that were left out by their numbers alone, because no marks of these numbers are kept.

    Attributes:
        key: the key of the entity.
        first: the lowest number in its partition.
        last: the highest number in its partition.
        messages: how many.
    """

    key: str
    first: int
    last: int
    messages: int


@dataclass(slots=True)
class _Partition:
    epoch: int = 0
    newest_ms: int = 0
    highest: int = -1
    numbers: IndexSet = field(default_factory=IndexSet)
    first_marks: dict[int, int] = field(default_factory=dict)
    last_marks: OrderedDict[int, int] = field(default_factory=OrderedDict)
    uncompared: Uncompared | None = None

    def begin(self, epoch: int) -> None:
        """Starts an epoch: the numbers restart."""
        self.epoch, self.highest = epoch, -1
        self.numbers.clear()
        self.first_marks.clear()
        self.last_marks.clear()
        self.uncompared = None

    def left_out(self, key: str, sequence: int) -> None:
        """A message is left out. A log only loses its end: one that was compared confirms all with lower numbers."""
        noted = self.uncompared
        if sequence in self.first_marks or sequence in self.last_marks:
            if noted is not None and sequence > noted.last:
                self.uncompared = None
        elif noted is None:
            self.uncompared = Uncompared(key, sequence, sequence, 1)
        else:
            self.uncompared = Uncompared(key, min(noted.first, sequence), max(noted.last, sequence), noted.messages + 1)

    def is_another(self, sequence: int, mark: int) -> bool:
        """Whether another message came under a number."""
        return mark != self.first_marks.get(sequence, self.last_marks.get(sequence, mark))

    def add(self, sequence: int, enqueued_ms: int, mark: int) -> None:
        """A message came."""
        self.numbers.add(sequence, sequence + 1)
        self.highest = max(self.highest, sequence)
        self.newest_ms = max(self.newest_ms, enqueued_ms)
        if len(self.first_marks) < MARKS:
            self.first_marks[sequence] = mark
            return
        self.last_marks[sequence] = mark
        if len(self.last_marks) > MARKS:
            self.last_marks.popitem(last=False)


class Seen:
    """The received numbers, by the key of the entity and the partition.

    Args:
        ranges: ranges kept for one partition; the lowest are forgotten.
    """

    def __init__(self, ranges: int = RANGES) -> None:
        self._ranges = ranges
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._uncompared: list[Uncompared] = []

    def add(self, key: str, sequence: int, enqueued_ms: int, mark: int = 0) -> bool:
        """Adds a message; returns whether it is new. One without a number always is. `mark`: 0 for the enqueued time."""
        if sequence < 0:
            return True
        mark = mark or enqueued_ms
        partition = key, sequence >> _PARTITION_SHIFT
        seen = self._partitions.get(partition)
        if seen is None:
            seen = self._partitions[partition] = _Partition()
        if sequence <= seen.highest:
            if enqueued_ms > seen.newest_ms or seen.is_another(sequence, mark):
                if (noted := seen.uncompared) is not None:
                    self._uncompared.append(noted._replace(first=noted.first & _NUMBERS, last=noted.last & _NUMBERS))
                seen.begin(seen.epoch + 1)
            elif sequence in seen.numbers:
                if mark != enqueued_ms:  # a system's own times only rise: the comparison above is enough
                    seen.left_out(key, sequence)
                return False
        seen.add(sequence, enqueued_ms, mark)
        if seen.numbers.ranges > self._ranges:
            seen.numbers.remove(*seen.numbers.first())
        return True

    def take_uncompared(self) -> list[Uncompared]:
        """The messages since the last call that were left out as redelivered, and may have been other ones (I3)."""
        uncompared, self._uncompared = self._uncompared, []
        return uncompared

    def restore(self, key: str, sequence: int, enqueued_ms: int, epoch: int, mark: int = 0) -> None:
        """Adds a record of a segment, which was new when it was written."""
        if sequence < 0:
            return
        seen = self._partitions.setdefault((key, sequence >> _PARTITION_SHIFT), _Partition())
        if epoch > seen.epoch:
            seen.begin(epoch)
            seen.newest_ms = 0
        if epoch == seen.epoch:
            seen.add(sequence, enqueued_ms, mark or enqueued_ms)

    def epoch(self, key: str, sequence: int) -> int:
        """How often the numbering of an entity's partition has restarted."""
        seen = self._partitions.get((key, sequence >> _PARTITION_SHIFT))
        return seen.epoch if seen is not None else 0

    def to_text(self) -> str:
        """The text for `from_text`."""
        return json.dumps(
            [
                [key, partition, each.epoch, each.newest_ms, each.highest, list(each.numbers), *_marks(each)]
                for (key, partition), each in self._partitions.items()
            ],
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str, ranges: int = RANGES) -> Seen:
        """Parses the result of `to_text`.

        Raises:
            ValueError: the text is malformed.
        """
        made = cls(ranges)
        for key, partition, epoch, newest_ms, highest, numbers, *marks in json.loads(text):
            seen = made._partitions[key, partition] = _Partition(int(epoch), int(newest_ms), int(highest))
            for start, stop in numbers:
                seen.numbers.add(int(start), int(stop))
            for kept, stored in zip(
                (seen.first_marks, seen.last_marks), marks, strict=False
            ):  # an earlier release has none
                kept.update((int(number), int(mark)) for number, mark in stored)
        return made


def _marks(seen: _Partition) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    return list(seen.first_marks.items()), list(seen.last_marks.items())


class SeenNames:
    """The received numbers, by the key of the entity, where they are made of names. It and `Seen` read each other's text.

    Args:
        names: numbers kept for one entity; the oldest are forgotten.
    """

    def __init__(self, names: int = NAMES) -> None:
        self._names = names
        self._numbers: dict[str, dict[int, None]] = {}

    def add(self, key: str, sequence: int, enqueued_ms: int, mark: int = 0) -> bool:
        """Adds a message; returns whether it is new. One without a number always is."""
        if sequence < 0:
            return True
        numbers = self._numbers.setdefault(key, {})
        if sequence in numbers:
            return False
        numbers[sequence] = None
        if len(numbers) > self._names:
            del numbers[next(iter(numbers))]
        return True

    def take_uncompared(self) -> list[Uncompared]:
        """Always empty: names are not used again."""
        return []

    def restore(self, key: str, sequence: int, enqueued_ms: int, epoch: int, mark: int = 0) -> None:
        """Adds a record of a segment."""
        self.add(key, sequence, enqueued_ms)

    def epoch(self, key: str, sequence: int) -> int:
        """Always 0: there is one epoch."""
        return 0

    def to_text(self) -> str:
        """The text for `from_text`."""
        entries = [[key, 0, 0, 0, -1, [[each, each + 1] for each in numbers]] for key, numbers in self._numbers.items()]
        return json.dumps(entries, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str, names: int = NAMES) -> SeenNames:
        """Parses the result of `to_text`.

        Raises:
            ValueError: the text is malformed.
        """
        made = cls(names)
        for key, _, _, _, _, numbers, *_ in json.loads(text):
            for start, stop in numbers:
                if stop == start + 1:  # numbers made of names are never consecutive
                    made.add(key, int(start), 0)
        return made
