"""Which link the unsettled deliveries of a session were sent on, by delivery id.

What it is: ids as runs of one link each, so that memory grows with the number of runs, not of deliveries. Ids are serial
numbers of 32 bits (spec 2.8.10). What it is not: states of deliveries; links' owners keep those.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from isthmus.amqp.frame import MASK32

if TYPE_CHECKING:
    from isthmus.amqp.link import Link

__all__ = ["DeliveryRuns"]


class DeliveryRuns:
    """Ids of unsettled deliveries as runs of one link each, oldest first."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: deque[list[Any]] = deque()  # [first, count, settled, link]

    def add(self, first: int, count: int, link: Link) -> None:
        """Notes that `link` sent `count` deliveries with ids from `first` on."""
        if self._runs:
            run = self._runs[-1]
            if run[3] is link and (run[0] + run[1]) & MASK32 == first:
                run[1] += count
                return
        self._runs.append([first, count, 0, link])

    def covered(self, first: int, last: int) -> list[tuple[int, int, Link]]:
        """The part of first to last that is known, as (first, last, link), oldest first."""
        found = []
        for start, count, _, link in self._runs:
            low = (first - start) & MASK32
            high = (last - start) & MASK32
            if low >= 0x80000000:  # the range starts before this run
                low = 0
            if high >= 0x80000000 or low >= count:
                continue
            high = min(high, count - 1)
            found.append(((start + low) & MASK32, (start + high) & MASK32, link))
        return found

    def settle(self, first: int, last: int) -> None:
        """Forgets first to last; a run goes once all of it is settled."""
        done = False
        for run in self._runs:
            low, high = (first - run[0]) & MASK32, (last - run[0]) & MASK32
            low = 0 if low >= 0x80000000 else low
            if high >= 0x80000000 or low >= run[1]:
                continue
            run[2] += min(high, run[1] - 1) - low + 1
            if low == 0 and run[2] == min(high, run[1] - 1) + 1 and run[2] < run[1]:
                # settled from the front: the run starts later, so that it does not grow without end
                run[0], run[1], run[2] = (run[0] + run[2]) & MASK32, run[1] - run[2], 0
            done = done or run[2] >= run[1]
        if done:
            self._runs = deque(run for run in self._runs if run[2] < run[1])
