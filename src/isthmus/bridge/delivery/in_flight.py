"""The deliveries that were sent on the present connection and have no outcome.

What it is: the map from the connection's ordinals, which begin at 0 with each connection, to the messages that a delivery
carries: one, or several consecutive ones in an envelope. What it is not: the messages (`outbox`).

Invariants:
    I1. `outstanding` counts the deliveries that were sent and have no outcome, `messages` the messages in them.
    I2. Every ordinal maps to the messages with which it was sent, in whatever order outcomes come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from isthmus.bridge.index_set import IndexSet

__all__ = ["Answered", "InFlight"]


class Answered(NamedTuple):
    """Deliveries with an outcome: `deliveries` of `size` consecutive messages each, the first of them `first`."""

    first: int
    deliveries: int
    size: int

    def divided(self, taken: Iterable[int]) -> tuple[IndexSet, IndexSet]:
        """The accepted messages of an envelope, by their numbers within it, and the rest."""
        stored, rest = IndexSet(), IndexSet()
        rest.add(self.first, self.first + self.size)
        for index in (self.first + number for number in taken):
            stored.add(index, index + 1)
            rest.remove(index, index + 1)
        return stored, rest


class _Flight:
    """Deliveries sent one after the other, with consecutive messages; `open` of them have no outcome."""

    __slots__ = ("count", "first", "open", "ordinal", "size")

    def __init__(self, ordinal: int, first: int, count: int, size: int) -> None:
        self.ordinal = ordinal
        self.first = first
        self.count = self.open = count
        self.size = size


def _ordinal_of(flight: _Flight) -> int:
    return flight.ordinal


class InFlight:
    """The deliveries of one connection."""

    def __init__(self) -> None:
        self.outstanding = self.messages = 0
        self._next = 0
        self._flights: deque[_Flight] = deque()

    def sent(self, first: int, count: int, size: int = 1) -> None:
        """Notes deliveries of `size` consecutive messages each, the first message being `first`."""
        last = self._flights[-1] if self._flights else None
        if last is not None and last.size == size == 1 and last.first + last.count == first:
            last.count += count
            last.open += count
        else:
            self._flights.append(_Flight(self._next, first, count, size))
        self._next += count
        self.outstanding += count
        self.messages += count * size

    def answered(self, first: int, last: int) -> list[Answered]:
        """The messages of ordinals first to last, which have an outcome now and had none before."""
        flights = self._flights
        found = []
        while first <= last:
            flight = flights[0]
            if first >= flight.ordinal + flight.count:
                flight = flights[bisect_right(flights, first, key=_ordinal_of) - 1]
            offset = first - flight.ordinal
            count = min(last + 1 - first, flight.count - offset)
            flight.open -= count
            self.outstanding -= count
            self.messages -= count * flight.size
            first += count
            while flights and not flights[0].open:
                flights.popleft()
            found.append(Answered(flight.first + offset * flight.size, count, flight.size))
        return found

    def clear(self) -> None:
        """The connection is lost: no outcome comes any more, and ordinals begin again."""
        self._flights.clear()
        self.outstanding = self.messages = self._next = 0
