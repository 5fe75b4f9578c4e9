"""The unsettled positions of a route.

What it is: the account of one opening of a source, kept as runs of consecutive positions. What it is not: I/O, or
the messages.

Invariants:
    I1. A position is outstanding from `add` until the first `settle` that covers it, or `clear`.
    I2. A position that is added again while it is outstanding counts once.
    I3. Memory grows with the number of runs. Runs are sorted by position and disjoint, in whatever order they came.
    I4. The bytes of a position count until it is settled or cleared; those of one run count alike.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["Run", "UnsettledMap", "runs_of"]

Run = tuple[int, int]
"""The first and the last of consecutive positions."""


def runs_of(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive ascending runs of `positions` as (index of the first, index behind the last)."""
    count = len(positions)
    if not count:
        return []
    if isinstance(positions, range) and positions.step == 1:
        return [(0, count)]
    cuts = [0, *(i for i, (low, high) in enumerate(pairwise(positions), 1) if high != low + 1), count]
    return list(pairwise(cuts))


class UnsettledMap:
    """The account.

    Attributes:
        outstanding: positions added and not settled.
        outstanding_bytes: their bytes.
        added: positions added in all.
        settled: positions settled in all.
        unknown: positions that were to be settled and were not outstanding.
    """

    def __init__(self) -> None:
        self.outstanding = 0
        self.outstanding_bytes = 0
        self.added = 0
        self.settled = 0
        self.unknown = 0
        self._runs: list[tuple[int, int, int]] = []  # first, last, bytes; sorted by last as by first, since disjoint

    @property
    def first(self) -> int | None:
        """The lowest outstanding position; None where there is none."""
        return self._runs[0][0] if self._runs else None

    def add(self, positions: Sequence[int], sizes: Sequence[int]) -> None:
        """Notes positions that came with so many bytes each."""
        for low, high in runs_of(positions):
            first, last, nbytes = positions[low], positions[high - 1], sum(sizes[low:high])
            if self._runs and first <= self._runs[-1][1]:
                self._cut(first, last)  # I2: the entry of its first delivery is replaced
                insort(self._runs, (first, last, nbytes))
            else:
                self._runs.append((first, last, nbytes))
            self.outstanding += last - first + 1
            self.outstanding_bytes += nbytes
        self.added += len(positions)

    def within(self, first: int, last: int) -> list[Run]:
        """The positions from first to last that are outstanding, in runs."""
        runs, at, found = self._runs, self._at(first), []
        while at < len(runs) and runs[at][0] <= last:
            found.append((max(first, runs[at][0]), min(last, runs[at][1])))
            at += 1
        return found

    def count(self, first: int, last: int) -> int:
        """How many positions from first to last are outstanding."""
        return sum(end - start + 1 for start, end in self.within(first, last))

    def settle(self, first: int, last: int) -> list[Run]:
        """Removes positions first to last; returns those that were outstanding, in runs."""
        found = self._cut(first, last)
        count = sum(end - start + 1 for start, end in found)
        self.settled += count
        self.unknown += last - first + 1 - count
        return found

    def runs(self) -> list[Run]:
        """The outstanding positions."""
        return _joined(self._runs)

    def clear(self) -> list[Run]:
        """Removes everything; returns what was outstanding."""
        left = self.runs()
        self._runs = []
        self.outstanding = self.outstanding_bytes = 0
        return left

    def _at(self, position: int) -> int:
        """The index of the first run that ends at or behind a position."""
        return bisect_left(self._runs, position, key=_last)

    def _cut(self, first: int, last: int) -> list[Run]:
        runs = self._runs
        begin = at = self._at(first)
        found: list[tuple[int, int, int]] = []
        keep: list[tuple[int, int, int]] = []
        while at < len(runs) and runs[at][0] <= last:
            start, end, nbytes = runs[at]
            at += 1
            if start < first:
                part = nbytes * (first - start) // (end - start + 1)
                keep.append((start, first - 1, part))
                start, nbytes = first, nbytes - part
            if end > last:
                part = nbytes * (end - last) // (end - start + 1)
                keep.append((last + 1, end, part))
                end, nbytes = last, nbytes - part
            found.append((start, end, nbytes))
            self.outstanding -= end - start + 1
            self.outstanding_bytes -= nbytes
        runs[begin:at] = keep
        return _joined(found)


def _last(run: tuple[int, int, int]) -> int:
    return run[1]


def _joined(runs: list[tuple[int, int, int]]) -> list[Run]:
    """Without bytes; those that touch are one."""
    joined: list[Run] = []
    for first, last, _ in runs:
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined
