"""Which rows of an opening were removed by a step of the query.

What it is: the account of a route with custom steps: the positions handed on, in order, compared with the rows that reached the sink
before a flush row. What it is not: the flush rows themselves (`isthmus.bridge.spark`).

How a removed row is found. Before flush row K, Y rows were handed on and C of them reached the sink; Y - C were removed. They are
identified when exactly as many of the first Y are outstanding: all others are settled by then, and a removed row never is.

Invariants:
    I1. A position is found to be removed only when all others that were handed on before the flush row are settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from isthmus.bridge.lease.unsettled import Run, UnsettledMap, runs_of

__all__ = ["RowAccount"]


class RowAccount:
    """The rows of one opening."""

    def __init__(self) -> None:
        self._handed = 0
        self._parts: deque[tuple[int, list[Run]]] = deque()  # rows handed on in all, and the positions of the last ones
        self._yielded = self._came = 0

    def handed_on(self, positions: Sequence[int]) -> None:
        """Rows were handed on."""
        self._handed += len(positions)
        self._parts.append((self._handed, [(positions[low], positions[high - 1]) for low, high in runs_of(positions)]))

    def flushed(self, yielded: int, came: int) -> None:
        """A flush row reached the sink, after so many of the rows that were handed on."""
        if yielded >= self._yielded:
            self._yielded, self._came = yielded, came

    def removed(self, unsettled: UnsettledMap) -> list[Run]:
        """The removed positions, as far as they are known."""
        missing = self._yielded - self._came
        if missing <= 0:
            return []
        parts, found, done = self._parts, list[Run](), 0
        for behind, runs in parts:
            if behind > self._yielded:
                break  # a flush row comes after whole parts; the rows of a part that it splits are known at the next one
            for run in runs:
                found += unsettled.within(*run)
            if not found:
                done += 1
        for _ in range(done):
            parts.popleft()
        return found if sum(last - first + 1 for first, last in found) == missing else []
