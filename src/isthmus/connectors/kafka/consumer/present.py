"""The records that exist in a topic when it is opened, for a run that moves these and ends.

What it is: the ends of the partitions at the first opening, and how far each has been read. What it is not: the reading (`consumer`).

Invariants:
    I1. No record after the ends of the first opening belongs to them.
    I2. It is over when every assigned partition was read to its end, whether or not the last offsets have records.
    I3. A topic whose offsets begin again may end before these ends: those of the next opening count.
    I4. A partition that has to be read again, from an offset that the group or a checkpoint has, was not read to its end.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Present"]


class Present:
    """The records at the first opening.

    Attributes:
        ends: after the last offset of each partition; None before the first opening, and where offsets begin again.
        is_reported: whether their end was reported.
    """

    def __init__(self) -> None:
        self.ends: dict[int, int] | None = None
        self.is_reported = False
        self._reached: dict[int, int] = {}

    def begin_again(self) -> None:
        """Offsets name other records (I3)."""
        self.ends = None
        self._reached.clear()

    def forget(self, partitions: Iterable[int]) -> None:
        """Partitions are revoked, or their consumer is not used again (I4)."""
        for number in partitions:
            if self._reached.pop(number, None) is not None:
                self.is_reported = False

    def belongs(self, partition: int, offset: int) -> bool:
        """Whether a record existed then."""
        end = (self.ends or {}).get(partition, 0)
        self._reached[partition] = max(offset + 1, self._reached.get(partition, 0))
        return offset < end

    def reached(self, partition: int, offset: int) -> None:
        """The partition was read up to here."""
        self._reached[partition] = max(offset, self._reached.get(partition, 0))

    def is_over(self, assigned: Iterable[int]) -> bool:
        """Whether all of them in the assigned partitions were read, for the first time."""
        partitions, ends = list(assigned), self.ends
        if self.is_reported or not partitions or ends is None:
            return False
        return all(self._reached.get(each, -1) >= ends.get(each, 0) for each in partitions)
