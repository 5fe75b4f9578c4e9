"""What is in a topic when it is opened, for a run that moves that and ends.

What it is: the ends of the partitions at the first opening, and how far each has been read. What it is not: the reading (`consumer`).

Invariants:
    I1. Nothing behind the ends of the first opening belongs to it.
    I2. It is over when every partition that is assigned has been read to its end, whether the last offsets have records or not.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Present"]


class Present:
    """What was at the first opening.

    Attributes:
        ends: behind the last offset of each partition; None before the first opening.
        is_told: whether its end was told.
    """

    def __init__(self) -> None:
        self.ends: dict[int, int] | None = None
        self.is_told = False
        self._reached: dict[int, int] = {}

    def belongs(self, partition: int, offset: int) -> bool:
        """Whether a record existed then."""
        end = (self.ends or {}).get(partition, 0)
        self._reached[partition] = max(offset + 1, self._reached.get(partition, 0))
        return offset < end

    def reached(self, partition: int, offset: int) -> None:
        """The partition has been read up to here."""
        self._reached[partition] = max(offset, self._reached.get(partition, 0))

    def is_over(self, assigned: Iterable[int]) -> bool:
        """Whether everything of the partitions that are assigned has been read, for the first time."""
        partitions, ends = list(assigned), self.ends
        if self.is_told or not partitions or ends is None:
            return False
        return all(self._reached.get(each, -1) >= ends.get(each, 0) for each in partitions)
