"""When the locks of each queue are checked.

What it is: the earliest time for each queue, as a heap; pure. What it is not: the end of locks (`settlement`, `session.lock`).
"""

from __future__ import annotations

import heapq

from isthmus.entities.queue.queue import Queue

__all__ = ["Wakes"]


class Wakes:
    """The times of all queues of one store."""

    __slots__ = ("_count", "_earliest", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Queue]] = []
        self._earliest: dict[Queue, int] = {}
        self._count = 0

    def add(self, queue: Queue, at_ms: int) -> None:
        """Check a queue's locks at a monotonic time, in ms."""
        known = self._earliest.get(queue)
        if known is None or at_ms < known:
            self._earliest[queue] = at_ms
            self._count += 1
            heapq.heappush(self._heap, (at_ms, self._count, queue))

    @property
    def next_ms(self) -> int | None:
        """When to check next; None if there is nothing to check."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> list[Queue]:
        """The queues to check now; each is removed."""
        due: list[Queue] = []
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, _, queue = heapq.heappop(self._heap)
            if self._earliest.get(queue) == at_ms:
                del self._earliest[queue]
                due.append(queue)
        return due

    def clear(self) -> None:
        """Remove all: nothing is locked any more."""
        self._heap.clear()
        self._earliest.clear()
