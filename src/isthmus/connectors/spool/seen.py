"""The messages that a spool has received, so that a redelivered one is stored once.

What it is: for each entity that messages are received from, the received sequence numbers, as ranges, and the epoch in which they
were assigned. A message is redelivered when the acknowledgement of its settlement was lost. What it is not: the files (`writer`).

An epoch ends when an entity is deleted and created again under its name: its numbers restart at 1. Within an epoch a higher number was
enqueued later. So a message whose number is not above all received ones, but which was enqueued after all of them, is the first of a new
epoch. Numbers are compared within a partition, which is in their bits from 48 on. docs/explanation/spool.md, "What comes twice".

The numbers of a system whose messages have names are made of the names (`SeenNames`): they have no order, and so no epoch.

Invariants:
    I1. A redelivered message is recognised, however late, unless `RANGES` gaps, or `NAMES` messages with names, came since: then it
        counts as new, and may be stored twice.
    I2. A message of a new epoch is never taken for one of an earlier epoch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from isthmus.bridge.index_set import IndexSet

__all__ = ["NAMES", "RANGES", "Seen", "SeenNames"]

_PARTITION_SHIFT = 48

RANGES = 1_000_000
"""Ranges kept for one partition; one takes about 80 bytes. Gaps are left by messages that other receivers took or a filter excluded."""

NAMES = 200_000
"""Numbers kept for one entity where they are made of names; one takes about 100 bytes."""


@dataclass(slots=True)
class _Partition:
    epoch: int = 0
    newest_ms: int = 0
    highest: int = -1
    numbers: IndexSet = field(default_factory=IndexSet)


class Seen:
    """The received numbers, by the key of the entity and the partition.

    Args:
        ranges: ranges kept for one partition; the lowest are forgotten.
    """

    def __init__(self, ranges: int = RANGES) -> None:
        self._ranges = ranges
        self._partitions: dict[tuple[str, int], _Partition] = {}

    def add(self, key: str, sequence: int, enqueued_ms: int) -> bool:
        """Adds a message; returns whether it is new. One without a number always is."""
        if sequence < 0:
            return True
        partition = key, sequence >> _PARTITION_SHIFT
        seen = self._partitions.get(partition)
        if seen is None:
            seen = self._partitions[partition] = _Partition()
        if sequence <= seen.highest:
            if enqueued_ms > seen.newest_ms:
                seen.epoch += 1
                seen.numbers.clear()
                seen.highest = -1
            elif sequence in seen.numbers:
                return False
        seen.numbers.add(sequence, sequence + 1)
        seen.highest = max(seen.highest, sequence)
        seen.newest_ms = max(seen.newest_ms, enqueued_ms)
        if seen.numbers.ranges > self._ranges:
            seen.numbers.remove(*seen.numbers.first())
        return True

    def restore(self, key: str, sequence: int, enqueued_ms: int, epoch: int) -> None:
        """Adds a record of a segment, which was new when it was written."""
        if sequence < 0:
            return
        seen = self._partitions.setdefault((key, sequence >> _PARTITION_SHIFT), _Partition())
        if epoch > seen.epoch:
            seen.epoch, seen.highest, seen.newest_ms = epoch, -1, 0
            seen.numbers.clear()
        if epoch == seen.epoch:
            seen.numbers.add(sequence, sequence + 1)
            seen.highest = max(seen.highest, sequence)
            seen.newest_ms = max(seen.newest_ms, enqueued_ms)

    def epoch(self, key: str, sequence: int) -> int:
        """How often the numbering of an entity's partition has restarted."""
        seen = self._partitions.get((key, sequence >> _PARTITION_SHIFT))
        return seen.epoch if seen is not None else 0

    def to_text(self) -> str:
        """The text for `from_text`."""
        return json.dumps(
            [
                [key, partition, each.epoch, each.newest_ms, each.highest, list(each.numbers)]
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
        for key, partition, epoch, newest_ms, highest, numbers in json.loads(text):
            seen = made._partitions[key, partition] = _Partition(int(epoch), int(newest_ms), int(highest))
            for start, stop in numbers:
                seen.numbers.add(int(start), int(stop))
        return made


class SeenNames:
    """The received numbers, by the key of the entity, where they are made of names. It and `Seen` read each other's text.

    Args:
        names: numbers kept for one entity; the oldest are forgotten.
    """

    def __init__(self, names: int = NAMES) -> None:
        self._names = names
        self._numbers: dict[str, dict[int, None]] = {}

    def add(self, key: str, sequence: int, enqueued_ms: int) -> bool:
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

    def restore(self, key: str, sequence: int, enqueued_ms: int, epoch: int) -> None:
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
        for key, _, _, _, _, numbers in json.loads(text):
            for start, stop in numbers:
                if stop == start + 1:  # numbers made of names are never consecutive
                    made.add(key, int(start), 0)
        return made
