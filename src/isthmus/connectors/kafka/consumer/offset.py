"""The unsettled records of each partition, and the offset that may be committed.

What it is: the account of one consumer, pure. What it is not: the commit (`commit`). Specification: Apache Kafka documentation, "Consumer
Position": a committed offset is that of the next record to read.

Offsets of a partition may have gaps, from compaction and transaction markers.

Invariants:
    I1. The offset to commit is never beyond a record that was delivered and is not settled, nor beyond a released one.
    I2. A record that was settled, or is still outstanding, is not delivered again by this consumer after another was released.
    I3. A released record that no longer exists does not limit the commit, once a later one arrives.
    I4. No offset of a revoked partition is committed.
    I5. A record before the delivered ones, which was not requested again, shows that the log begins again: its offsets name
        other records. So does one before them of a later leader epoch: epochs never decrease within a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from isthmus.bridge.index_set import IndexSet
from isthmus.bridge.port import PARTITION_SHIFT

__all__ = ["OffsetAccount", "PartitionOffsets"]

_OFFSET_MASK = (1 << PARTITION_SHIFT) - 1


class PartitionOffsets:
    """The account of one partition.

    Attributes:
        returned: offsets released and not delivered again.
        next: after the highest delivered offset; before any, the known start, or -1.
        epoch: the highest leader epoch of the delivered records; -1: unknown. It is valid for each offset up to `next`: where the log is truncated
            below an offset, and grows again, the new records have later epochs, and the log ends before that offset for this epoch.
    """

    def __init__(self) -> None:
        self._unsettled = IndexSet()
        self._run = -1  # the first of the offsets up to `next` that are not in it yet; -1: none
        self.returned = IndexSet()
        self.next = -1
        self.epoch = -1
        self._cursor = -1  # after the last offset, while records are read again

    @property
    def unsettled(self) -> IndexSet:
        """Offsets delivered and not settled."""
        self._take_in_run()
        return self._unsettled

    def _take_in_run(self) -> None:
        if self._run >= 0:
            self._unsettled.add(self._run, self.next)
            self._run = -1

    @property
    def to_commit(self) -> int:
        """The offset up to which everything is settled; -1 while nothing was delivered."""
        firsts = [each.first()[0] for each in (self.unsettled, self.returned) if each]
        return min(firsts) if firsts else self.next

    def begins_again(self, offset: int, epoch: int = -1) -> bool:
        """Whether a record, of a leader epoch, shows that offsets name other records than before (I5)."""
        if offset < self.next and 0 <= self.epoch < epoch:
            return True
        return offset < (self._cursor if self._cursor >= 0 else self.next)

    def missing_before(self, offset: int) -> list[tuple[int, int]]:
        """Ranges of offsets, each with the one after its last, that should precede a record, which is not noted yet. A released
        record should be redelivered; at other offsets there may never have been a record.
        """
        return [*self.lost_before(offset), *self.passed_before(offset)]

    def lost_before(self, offset: int) -> list[tuple[int, int]]:
        """Those of them that were released, and no longer exist."""
        again = [(max(low, self._cursor), min(high, offset)) for low, high in self.returned if self._cursor >= 0]
        return [each for each in again if each[0] < each[1]]

    def passed_before(self, offset: int) -> list[tuple[int, int]]:
        """Those of them that were never read."""
        return [(self.next, offset)] if 0 <= self.next < offset else []

    def reached(self, offset: int) -> None:
        """All records below were read: released records that were not redelivered no longer exist (I3)."""
        if 0 <= self._cursor < offset:
            self.returned.remove(self._cursor, offset)
            self._cursor = offset

    def is_new(self, offset: int) -> bool:
        """Whether a record that was read has to be delivered."""
        if self.next < 0 or offset >= self.next:
            if self.returned:
                self.returned.clear()
            self._cursor = -1
            return True
        if self._cursor >= 0 and self._cursor < offset:
            self.returned.remove(self._cursor, offset)  # I3
        self._cursor = offset + 1
        return offset in self.returned

    def deliver(self, offset: int) -> None:
        """Delivers a new record."""
        if offset == self.next and self._run >= 0:
            self.next = offset + 1
            return
        if offset >= self.next:
            self._take_in_run()
            self._run, self.next = offset, offset + 1
            return
        self.unsettled.add(offset, offset + 1)
        self.returned.remove(offset, offset + 1)

    def settle(self, first: int, last: int) -> bool:
        """Settles outstanding records; returns whether there were any."""
        before = self.unsettled.count
        self.unsettled.remove(first, last + 1)
        return self.unsettled.count < before

    def release(self, first: int, last: int) -> bool:
        """Releases outstanding records; returns whether there were any."""
        found = [(max(a, first), min(b, last + 1)) for a, b in self.unsettled if a <= last and b > first]
        for start, stop in found:
            self.unsettled.remove(start, stop)
            self.returned.add(start, stop)
        return bool(found)

    def rewind(self) -> int:
        """The offset to read again from; later records are read once more."""
        start = self.returned.first()[0]
        self._cursor = start
        return start


class OffsetAccount:
    """The accounts of the assigned partitions; positions are those of the port."""

    def __init__(self) -> None:
        self.partitions: dict[int, PartitionOffsets] = {}

    @property
    def outstanding(self) -> int:
        """Records delivered and neither settled nor released."""
        return sum(each.unsettled.count for each in self.partitions.values())

    @property
    def has_returned(self) -> bool:
        """Whether released records were not delivered again."""
        return any(each.returned for each in self.partitions.values())

    def assign(self, partitions: Iterable[int], begins: Mapping[int, int] | None = None) -> None:
        """Partitions are read from now on; `begins`: the start of those where it is known: everything before is settled."""
        for partition in partitions:
            self.partitions[partition] = PartitionOffsets()
        for partition, offset in (begins or {}).items():
            self.partitions[partition].next = offset

    def revoke(self, partitions: Iterable[int]) -> None:
        """Partitions are revoked."""
        for partition in partitions:
            self.partitions.pop(partition, None)

    def deliver(self, positions: Sequence[int]) -> None:
        """Records of assigned partitions are delivered."""
        for position in positions:
            found = self.partitions.get(position >> PARTITION_SHIFT)
            if found is not None:
                found.deliver(position & _OFFSET_MASK)

    def settle(self, first: int, last: int) -> bool:
        """Settles positions; returns whether an offset may have to be committed."""
        return sum(each.settle(low, high) for each, low, high in self._parts(first, last)) > 0

    def release(self, first: int, last: int) -> list[int]:
        """Releases positions; returns the partitions that have to be read again."""
        partitions = []
        for each, low, high in self._parts(first, last):
            if each.release(low, high):
                partitions += [number for number, found in self.partitions.items() if found is each]
        return partitions

    def to_commit(self, partitions: Iterable[int] | None = None) -> dict[int, int]:
        """By partition, the offset below which every delivered record is settled."""
        found: dict[int, int] = {}
        for number in list(self.partitions) if partitions is None else partitions:
            each = self.partitions.get(number)
            if each is not None and each.to_commit >= 0:
                found[number] = each.to_commit
        return found

    def _parts(self, first: int, last: int) -> list[tuple[PartitionOffsets, int, int]]:
        start, stop = first >> PARTITION_SHIFT, last >> PARTITION_SHIFT
        parts = []
        for partition in range(start, stop + 1):
            each = self.partitions.get(partition)
            if each is not None:
                low = first & _OFFSET_MASK if partition == start else 0
                high = last & _OFFSET_MASK if partition == stop else _OFFSET_MASK
                parts.append((each, low, high))
        return parts
