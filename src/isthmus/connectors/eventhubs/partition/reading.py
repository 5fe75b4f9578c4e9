"""The events that a source has read of a hub's partitions and the owner has not settled.

What it is: the queue of untaken events, the account of taken ones, the positions to read again from, the checkpoints to write, and
the messages that may have to be set aside; pure. What it is not: links (`partition.link`), or a store (`checkpoint.thread`).

Invariants:
    I1. A checkpoint never names an event beyond one that was delivered and is not settled.
    I2. Events that are read again after a release are delivered in the order of their partition.
    I3. With `only_present` no event is delivered that was enqueued after the first opening.
    I4. No event of a partition whose sequence numbers begin again is delivered: they name other events. This includes the first event that is
        read: none precedes the one that the link requested.
    I5. Events before an unreadable one are delivered.
    I6. A partition that was created again is read once the owner's messages of the previous one are settled or released: positions name both.
    I7. With `holds_gaps` no checkpoint is after a gap of which it is unknown whether events were removed: the next reader finds it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from isthmus.bridge.index_set import IndexSet
from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.kafka.consumer.commit import Commits
from isthmus.connectors.kafka.consumer.offset import OffsetAccount
from isthmus.connectors.kafka.consumer.present import Present
from isthmus.connectors.kafka.consumer.read_queue import Batch, ReadQueue

__all__ = ["LARGEST_SHARE", "MOST_GAPS", "PayloadReader", "ReadEvent", "Reading"]

LARGEST_SHARE = 2000
"""Events that one link may have in transit, with any credit of the owner."""
MOST_GAPS = 100
"""Gaps of a partition that are kept between two queries."""


class ReadEvent(Protocol):
    """An event as a message: its sequence number, the text in its checkpoint, and the message."""

    @property
    def sequence(self) -> int: ...
    @property
    def offset(self) -> str: ...
    @property
    def message(self) -> bytes: ...


class PayloadReader(Protocol):
    """Parses a link's payload."""

    def read(self, partition: int, payload: Any) -> ReadEvent:
        """The message of an event.

        Raises:
            CodecError: it is not an event.
        """
        ...


class Reading:
    """The state of one source.

    Args:
        reader: parses events.
        only_present: deliver only events that existed at the first opening.
        keeps: whether taken messages are kept until they are settled, to be set aside.
        seconds: the interval of checkpoints.
        holds_gaps: whether the gaps in `gaps` are unexplained; the owner removes explained ones.

    Attributes:
        account: the unsettled events; offsets are sequence numbers.
        queue: the untaken events.
        present: the events at the first opening; None: everything is delivered.
        rewind: partitions to read again.
        begun_again: partitions whose sequence numbers begin again, with the first of them.
        gaps: by partition, missing sequence numbers, ascending: the first of each range, and the one that arrived instead; at most
            `MOST_GAPS` each, because compaction leaves many gaps: later ones are merged with the last.
        kept: messages by position, where they may have to be set aside.
    """

    def __init__(
        self, reader: PayloadReader, *, only_present: bool, keeps: bool, seconds: float, holds_gaps: bool = False
    ) -> None:
        self.account = OffsetAccount()
        self.queue = ReadQueue()
        self.present = Present() if only_present else None
        self.rewind: set[int] = set()
        self.begun_again: dict[int, int] = {}
        self.gaps: dict[int, list[tuple[int, int]]] = {}
        self.kept: dict[int, bytes] | None = {} if keeps else None
        self._reader = reader
        self._holds_gaps = holds_gaps
        self._commits = Commits(self.account, seconds)
        self._offsets: dict[int, deque[tuple[int, str]]] = {}
        self._done: dict[int, tuple[int, str]] = {}  # the last settled event of each partition
        self._asked: dict[int, int] = {}  # the pending commit
        self._writing: Mapping[int, Checkpoint] | None = None  # its checkpoints
        self._in_flight: dict[
            int, IndexSet
        ] = {}  # by partition that was created again: the owner's messages of the previous one
        self._replaces: set[int] = set()  # partitions whose checkpoint precedes their new creation

    @property
    def outstanding(self) -> int:
        """Messages taken and neither settled nor released."""
        return self.account.outstanding - self.queue.count

    # ---- opening

    def next_of(self, partition: int) -> int:
        """The start of a partition's link for this reader; -1: it has delivered nothing."""
        found = self.account.partitions.get(partition)
        if found is None:
            return -1
        return found.rewind() if found.returned else found.next

    def missing_before(self, partition: int, sequence: int) -> list[tuple[int, int]]:
        """Ranges of sequence numbers below a limit that this reader still has to receive, each with the one after its last."""
        return self.account.partitions[partition].missing_before(sequence)

    def drop_gaps(self, partition: int, gaps: Collection[tuple[int, int]]) -> None:
        """These gaps are explained; others are kept."""
        self.gaps[partition] = [each for each in self.gaps.get(partition, ()) if each not in gaps]

    def noted(self, partition: int, sequence: int) -> str:
        """The text noted for an event; empty: unknown, or no longer known."""
        known = [*self._offsets.get(partition, ()), self._done.get(partition, (-1, ""))]
        return next((text for number, text in known if number == sequence), "")

    def assign(self, partition: int, *, begins_again: bool = False, first: int = -1) -> None:
        """A partition is read from now on; `first`: the lowest sequence number that may arrive, -1 if unknown."""
        if begins_again:
            self.forget([partition])
            self._replaces.add(partition)
        if partition not in self.account.partitions:
            self.account.assign([partition])
            self.account.partitions[partition].next = first
            self._offsets[partition] = deque()

    def made_again(self, partition: int) -> None:
        """A partition was created again."""
        self._remove_queued([partition])
        if self.present is not None:
            self.present.begin_again()
        found = self.account.partitions.get(partition)
        for start, stop in found.unsettled if found is not None else ():
            self._in_flight.setdefault(partition, IndexSet()).add(start, stop)
        self.forget([partition])

    def is_in_flight(self, partition: int) -> bool:
        """Whether the owner has messages of the partition's previous state (I6)."""
        return bool(self._in_flight.get(partition))

    def _came_back(self, first: int, last: int) -> None:
        for partition, sequences in self._in_flight.items():
            base = partition << PARTITION_SHIFT
            start, stop = max(first - base, 0), min(last - base, (1 << PARTITION_SHIFT) - 1) + 1
            if start < stop:
                sequences.remove(start, stop)

    def forget(self, partitions: Iterable[int]) -> None:
        """Partitions belong to another reader, or were created again."""
        numbers = list(partitions)
        self._remove_queued(numbers)
        self.account.revoke(numbers)
        self._commits.forget(numbers)
        for number in numbers:
            for owned in (self._offsets, self._done, self.begun_again, self.gaps):
                owned.pop(number, None)
            if self.kept is not None:
                for position in [each for each in self.kept if each >> PARTITION_SHIFT == number]:
                    del self.kept[position]
        self.rewind.difference_update(numbers)

    # ---- reading

    def share(self, links: int) -> int:
        """How many events one of so many links may have in transit, or in the queue."""
        return min(LARGEST_SHARE, max(1, self.queue.credit // max(1, links))) if self.queue.credit > 0 else 0

    def put(self, partition: int, payloads: Sequence[Any]) -> None:
        """Adds events of a link.

        Raises:
            CodecError: one is not an event.
        """
        batch = Batch([], [])
        try:
            for payload in payloads:
                event = self._reader.read(partition, payload)
                if self._belongs(partition, event.sequence):
                    batch.positions.append(partition << PARTITION_SHIFT | event.sequence)
                    batch.payloads.append(event.message)
                    self._note(partition, event.sequence, event.offset)
        finally:
            if batch.positions:
                self.queue.put(batch)

    def _belongs(self, partition: int, sequence: int) -> bool:
        """Whether an event has to be delivered; it then counts as delivered."""
        found = self.account.partitions.get(partition)
        if found is None or partition in self.rewind or partition in self.begun_again:
            return False
        if found.begins_again(sequence):
            self.begun_again[partition] = sequence
            return False
        if self.present is not None and not self.present.belongs(partition, sequence):
            return False
        for start, stop in found.missing_before(sequence):
            gaps = self.gaps.setdefault(partition, [])
            gaps.append((start if len(gaps) < MOST_GAPS else gaps.pop()[0], stop))
        returned = found.returned.count
        is_new = found.is_new(sequence)
        if found.returned.count < returned:
            self._commits.unblock()
        if not is_new:
            return False
        found.deliver(sequence)
        return True

    def _note(self, partition: int, sequence: int, offset: str) -> None:
        noted = self._offsets[partition]
        if not noted or noted[-1][0] < sequence:
            noted.append((sequence, offset))

    def take(self) -> list[Batch]:
        """The events within the credit."""
        batches = self.queue.take()
        if self.kept is not None:
            for batch in batches:
                self.kept.update(zip(batch.positions, batch.payloads, strict=True))
        return batches

    def is_over(self) -> bool:
        """Whether all events of the first opening were read and taken, for the first time, and none has to be read again."""
        if self.present is None or self.queue.count or not self.present.is_over(self.account.partitions):
            return False
        if self.account.has_returned:
            return False
        self.present.is_reported = True
        return True

    # ---- settling

    def settle(self, first: int, last: int, now: float) -> None:
        """Completes taken events."""
        self._came_back(first, last)
        self._drop_kept(first, last)
        if self.account.settle(first, last):
            self._commits.settled(now)

    def release(self, first: int, last: int) -> None:
        """Reads taken events again, and the untaken ones of their partitions, too."""
        self._came_back(first, last)
        self._drop_kept(first, last)
        partitions = self.account.release(first, last)
        self.rewind.update(partitions)
        self._remove_queued(partitions)

    def _drop_kept(self, first: int, last: int) -> None:
        if not self.kept:
            return
        if last - first < len(self.kept):
            for position in range(first, last + 1):
                self.kept.pop(position, None)
        else:
            for position in [each for each in self.kept if first <= each <= last]:
                del self.kept[position]

    def _remove_queued(self, partitions: Sequence[int]) -> None:
        for position in self.queue.remove(partitions):
            self.account.release(position, position)

    # ---- checkpoints

    @property
    def commit_due(self) -> float:
        """When `begin_commit` has work."""
        return math.inf if self._commits.is_outstanding else self._commits.due

    def begin_commit(self, now: float) -> dict[int, Checkpoint]:
        """The checkpoints to write now; empty: none is due. `written` answers."""
        asked = self._commits.begin(now, self._limits())
        if not asked:
            return {}
        self._asked = asked
        found = self._checkpoints(asked)
        if not found:  # nothing is settled yet
            self._commits.answered(asked, (), now)
        self._writing = found
        return found

    def unconfirmed(self) -> dict[int, Checkpoint]:
        """The checkpoints whose write is not confirmed."""
        return self._checkpoints(self._commits.unconfirmed(limits=self._limits()))

    def _limits(self) -> dict[int, int]:
        """By partition, the start of the first of its gaps (I7)."""
        gaps = self.gaps if self._holds_gaps else {}
        return {number: min(start for start, _ in each) for number, each in gaps.items() if each}

    def written(self, checkpoints: Mapping[int, Checkpoint], *, failed: bool, now: float) -> None:
        """A write was answered: of `begin_commit`, or of an opening."""
        is_commit = checkpoints is self._writing
        if failed:
            if is_commit:
                self._commits.failed(now)
            return
        if is_commit:
            self._commits.answered(self._asked, (), now)
        for number, each in checkpoints.items():
            if each.begins_again:
                self._replaces.discard(number)

    def _checkpoints(self, nexts: Mapping[int, int]) -> dict[int, Checkpoint]:
        found: dict[int, Checkpoint] = {}
        for number, behind in nexts.items():
            noted = self._offsets.get(number, deque())
            while noted and noted[0][0] < behind:
                self._done[number] = noted.popleft()
            if number in self._done:
                # Sequence numbers may have gaps: the settled range reaches up to the next unsettled one.
                found[number] = Checkpoint(behind - 1, self._done[number][1], number in self._replaces)
        return found
