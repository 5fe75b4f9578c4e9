"""The earliest of many deadlines.

What it is: a heap of times by key. Setting a later time than the present one changes nothing: a key that is due early is set again by its
owner, so that a deadline that moves with every message costs nothing. What it is not: a clock.

Invariants:
    I1. `due` returns a key no later than at the earliest time that was set for it since it was returned last.
    I2. No key has more than one valid entry; memory grows with the number of keys, and of times set earlier than before.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Deadlines"]

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """Times by key."""

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._number = 0  # keys need not be comparable

    def set(self, key: K, at: float) -> None:
        """Sets the key's time to `at`, unless it is earlier already."""
        if at < self._at.get(key, math.inf):
            self._at[key] = at
            self._number += 1
            heapq.heappush(self._heap, (at, self._number, key))

    def forget(self, key: K) -> None:
        """Removes the key."""
        self._at.pop(key, None)

    def next(self) -> float:
        """The earliest time; infinite where there is none."""
        heap = self._heap
        while heap and self._at.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def due(self, now: float) -> list[K]:
        """The keys that are due; they are no longer set."""
        found = []
        while self.next() <= now:
            key = heapq.heappop(self._heap)[2]
            del self._at[key]
            found.append(key)
        return found
