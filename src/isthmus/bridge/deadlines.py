"""The earliest deadlines of many things.

What it is: a heap of times by key. Setting a later time than is set changes nothing: whoever is found due early sets its time again,
so that a time that moves on with every message costs nothing. What it is not: a clock.

Invariants:
    I1. A key comes out of `due` no later than at the earliest time that was set for it since it last did.
    I2. No key has more than one valid entry; memory grows with the keys and with the times that were set earlier than before.
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
        """Has the key come out at `at`, unless it does so earlier."""
        if at < self._at.get(key, math.inf):
            self._at[key] = at
            self._number += 1
            heapq.heappush(self._heap, (at, self._number, key))

    def forget(self, key: K) -> None:
        """The key does not come out."""
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
