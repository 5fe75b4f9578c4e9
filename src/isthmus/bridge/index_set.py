"""A set of integers kept as ranges.

What it is: sorted, disjoint half-open ranges, for accounts of messages that are mostly consecutive. What it is not: specific
to messages; it contains integers.

Invariants:
    I1. Ranges are ascending, not empty, and no two of them touch.
    I2. Memory grows with the number of ranges, not with the number of integers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

__all__ = ["IndexSet"]


class IndexSet:
    """Integers as ranges from start up to, but not including, stop."""

    __slots__ = ("_starts", "_stops", "count")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.count = 0
        """How many integers are in the set."""

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, index: int) -> bool:
        at = bisect_right(self._starts, index) - 1
        return at >= 0 and index < self._stops[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges, ascending."""
        return iter(list(zip(self._starts, self._stops, strict=True)))

    @property
    def ranges(self) -> int:
        """The number of ranges."""
        return len(self._starts)

    def first(self) -> tuple[int, int]:
        """The lowest range; the set must not be empty."""
        return self._starts[0], self._stops[0]

    def above(self, index: int) -> int | None:
        """The lowest integer of the set above `index`; None where there is none."""
        at = bisect_right(self._stops, index + 1)
        return max(self._starts[at], index + 1) if at < len(self._starts) else None

    def add(self, start: int, stop: int) -> None:
        """Adds start up to stop, at least one integer."""
        low = bisect_left(self._stops, start)
        high = bisect_right(self._starts, stop)
        if low < high:
            start, stop = min(start, self._starts[low]), max(stop, self._stops[high - 1])
        self._replace(low, high, [(start, stop)])

    def remove(self, start: int, stop: int) -> None:
        """Removes start up to stop."""
        low = bisect_right(self._stops, start)
        high = bisect_left(self._starts, stop)
        if low >= high:
            return
        outer = [(self._starts[low], start), (stop, self._stops[high - 1])]
        self._replace(low, high, [(a, b) for a, b in outer if a < b])

    def _replace(self, low: int, high: int, ranges: list[tuple[int, int]]) -> None:
        self.count += sum(b - a for a, b in ranges) - sum(self._stops[low:high]) + sum(self._starts[low:high])
        self._starts[low:high] = [a for a, _ in ranges]
        self._stops[low:high] = [b for _, b in ranges]

    def clear(self) -> None:
        """Removes everything."""
        self._starts.clear()
        self._stops.clear()
        self.count = 0
