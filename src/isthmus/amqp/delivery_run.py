"""Which link the unsettled deliveries of a session were sent on, by delivery id.

What it is: ids as runs of one link each, so that memory grows with the number of runs, not of deliveries, and finding an
id takes few steps, even with many runs. Ids are serial numbers of 32 bits (spec 2.8.10), counted here without
wrapping. What it is not: states of deliveries; links' owners keep those.

Invariants:
    I1. An id is known from `add` until it is settled, once or more often, or its link is forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from isthmus.amqp.frame import MASK32

if TYPE_CHECKING:
    from isthmus.amqp.link import Link

__all__ = ["DeliveryRuns"]

_HALF = 0x80000000


class DeliveryRuns:
    """Ids of unsettled deliveries as runs of one link each, oldest first."""

    __slots__ = ("_end", "_firsts", "_lasts", "_links")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._links: list[Link] = []
        self._end = 0  # behind the last id added

    def _span(self, first: int, last: int) -> tuple[int, int]:
        """A range of ids on the wire as a range of unwrapped ids; in an empty one the last is before the first."""
        low = self._end + ((first - self._end + _HALF) & MASK32) - _HALF
        count = (last - first) & MASK32
        return low, low + count if count < _HALF else low - 1

    def add(self, first: int, count: int, link: Link) -> None:
        """Notes that `link` sent `count` deliveries with ids from `first` on."""
        low = self._end + ((first - self._end) & MASK32)  # ids only increase; those in between were sent settled
        self._end = low + count
        if self._links and self._links[-1] is link and self._lasts[-1] == low - 1:
            self._lasts[-1] = self._end - 1
            return
        self._firsts.append(low)
        self._lasts.append(self._end - 1)
        self._links.append(link)

    def covered(self, first: int, last: int) -> list[tuple[int, int, Link]]:
        """The part of first to last that is known, as (first, last, link), oldest first."""
        low, high = self._span(first, last)
        firsts, lasts = self._firsts, self._lasts
        found = []
        at = bisect_left(lasts, low)
        while low <= high and at < len(firsts) and firsts[at] <= high:
            found.append((max(low, firsts[at]) & MASK32, min(high, lasts[at]) & MASK32, self._links[at]))
            at += 1
        return found

    def settle(self, first: int, last: int) -> None:
        """Forgets first to last, as far as they are known."""
        low, high = self._span(first, last)
        firsts, lasts, links = self._firsts, self._lasts, self._links
        at = end = bisect_left(lasts, low)
        while low <= high and end < len(firsts) and firsts[end] <= high:
            end += 1
        if at == end:
            return
        left = [
            (start, stop, link)
            for start, stop, link in ((firsts[at], low - 1, links[at]), (high + 1, lasts[end - 1], links[end - 1]))
            if start <= stop
        ]
        firsts[at:end] = [start for start, _, _ in left]
        lasts[at:end] = [stop for _, stop, _ in left]
        links[at:end] = [link for _, _, link in left]

    def forget(self, link: Link) -> None:
        """Forgets all deliveries of a link: it is detached, and nobody settles them here any more."""
        kept = [place for place, each in enumerate(self._links) if each is not link]
        if len(kept) < len(self._links):
            self._firsts = [self._firsts[place] for place in kept]
            self._lasts = [self._lasts[place] for place in kept]
            self._links = [self._links[place] for place in kept]
