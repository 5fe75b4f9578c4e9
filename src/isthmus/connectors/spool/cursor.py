"""How far a route has read a spool: the delivered records, the settled ones, and the next one to read.

What it is: an account of record numbers, pure. What it is not: the files (`port.thread`).

Invariants:
    I1. `low` is the lowest number that is not settled; everything below it is.
    I2. A record is delivered once, unless it was released in between.
    I3. Only delivered records can be settled or released.
"""

from __future__ import annotations

from isthmus.bridge.index_set import IndexSet

__all__ = ["Cursor"]


class Cursor:
    """The account of one spool.

    Args:
        low: the lowest number that is not settled.
    """

    def __init__(self, low: int = 0) -> None:
        self.low = self.following = low
        self._out = IndexSet()
        self._settled = IndexSet()

    @property
    def outstanding(self) -> int:
        """How many records are delivered and not settled."""
        return self._out.count

    def deliver(self, number: int) -> bool:
        """Whether a record that was read has to be delivered now; numbers between it and the one before are missing, and count as settled."""
        if number > self.following:
            self._settle(self.following, number)
        self.following = max(self.following, number + 1)
        if number < self.low or number in self._out or number in self._settled:
            return False
        self._out.add(number, number + 1)
        return True

    def skip(self, number: int) -> None:
        """Settles a record that was read and is not a message."""
        if self.deliver(number):
            self.settle(number, number)

    def settle(self, first: int, last: int) -> int:
        """Settles the delivered records from first to last; returns how many there were."""
        found = self._take(first, last)
        for start, stop in found:
            self._settle(start, stop)
        return sum(stop - start for start, stop in found)

    def release(self, first: int, last: int) -> bool:
        """Releases the delivered records from first to last; returns whether reading has to go back for them."""
        found = self._take(first, last)
        if found:
            self.following = min(self.following, found[0][0])
        return bool(found)

    def _take(self, first: int, last: int) -> list[tuple[int, int]]:
        found = []
        for start, stop in self._out:
            if start > last:
                break
            if stop > first:
                found.append((max(start, first), min(stop, last + 1)))
        for start, stop in found:
            self._out.remove(start, stop)
        return found

    def _settle(self, start: int, stop: int) -> None:
        if stop <= self.low:
            return
        self._settled.add(max(start, self.low), stop)
        first, end = self._settled.first()
        if first <= self.low:
            self.low = end
            self._settled.remove(first, end)
