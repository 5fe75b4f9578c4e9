"""When each of many things is due.

What it is: a heap of deadlines, one for each key. A deadline that moves away leaves its entry where it is: the key is looked at then,
and told its new deadline. What it is not: a clock.

Invariants:
    I1. The cost of a change does not grow with the number of keys that are not due.
    I2. A key is given out at its deadline, or before.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["TimerQueue"]

Key = TypeVar("Key", bound=Hashable)


class TimerQueue(Generic[Key]):
    """Deadlines by key, monotonic seconds."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Key]] = []
        self._due: dict[Key, float] = {}
        self._number = 0  # keys need not be comparable

    @property
    def first(self) -> float:
        """The earliest deadline; infinite where there is none."""
        heap = self._heap
        while heap and self._due.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def set(self, key: Key, at: float) -> None:
        """A key is due at a time; a later one than before takes effect when the earlier has come."""
        if at < self._due.get(key, math.inf):
            self._due[key] = at
            self._number += 1
            heapq.heappush(self._heap, (at, self._number, key))

    def due(self, now: float) -> list[Key]:
        """The keys that are due; they have no deadline any more."""
        found = []
        while self.first <= now:
            key = heapq.heappop(self._heap)[2]
            del self._due[key]
            found.append(key)
        return found
