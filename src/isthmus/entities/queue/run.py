"""Sets of sequence numbers stored as runs, since messages arrive and are removed in runs.

What it is: an ordered set of integers as disjoint inclusive ranges; a million settled in a row take one entry.

Invariants:
    I1. Runs are disjoint, ascending, and never touch: [1,2] and [3,4] are [1,4].
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

__all__ = ["RunSet", "runs_of"]


def runs_of(sequences: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as inclusive (first, last) runs."""
    if not sequences:
        return []
    if sequences[-1] - sequences[0] == len(sequences) - 1:
        return [(sequences[0], sequences[-1])]
    runs = []
    first = last = sequences[0]
    for sequence in sequences[1:]:
        if sequence != last + 1:
            runs.append((first, last))
            first = sequence
        last = sequence
    runs.append((first, last))
    return runs


class RunSet:
    """An ordered set of integers."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The runs, ascending."""
        return iter(list(zip(self._firsts, self._lasts, strict=True)))

    def count(self) -> int:
        """How many integers are in the set."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    @property
    def first(self) -> int | None:
        """The least integer; None if empty."""
        return self._firsts[0] if self._firsts else None

    def clear(self) -> None:
        """Remove everything."""
        self._firsts.clear()
        self._lasts.clear()

    def add(self, first: int, last: int) -> None:
        """Add first..last."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first - 1)  # the first run that touches or is behind
        high = bisect_right(firsts, last + 1)  # one past the last run that touches
        if low < high:
            first = min(first, firsts[low])
            last = max(last, lasts[high - 1])
        firsts[low:high] = [first]
        lasts[low:high] = [last]

    def discard(self, first: int, last: int) -> None:
        """Remove those of first..last that are in the set."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last)
        if low >= high:
            return
        kept = []
        if firsts[low] < first:
            kept.append((firsts[low], first - 1))
        if lasts[high - 1] > last:
            kept.append((last + 1, lasts[high - 1]))
        firsts[low:high] = [run[0] for run in kept]
        lasts[low:high] = [run[1] for run in kept]

    def take(self, limit: int) -> tuple[int, int]:
        """Remove and return the first run, cut to at most `limit` integers.

        Raises:
            IndexError: the set is empty.
        """
        first, last = self._firsts[0], self._lasts[0]
        if last - first >= limit:
            last = first + limit - 1
            self._firsts[0] = last + 1
        else:
            del self._firsts[0], self._lasts[0]
        return first, last
