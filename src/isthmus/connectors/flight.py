"""What one connection of a target was sent and has not answered.

What it is: the ordinals of deliveries, and the joining of the answers to an envelope's messages into one. What it is not: a connection.

Invariants:
    I1. Ordinals count the deliveries of one connection from 0, in the order of sending.
    I2. An envelope is answered once all of its messages are; it is refused when one of them is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from isthmus.bridge.delivery_event import Outcome
from isthmus.bridge.refusal import Refusal

__all__ = ["Flight"]


class Flight:
    """The deliveries of one connection.

    Args:
        credit: deliveries that may be sent at once.

    Attributes:
        credit: deliveries that may be sent now.
        since: since when nothing has been answered though something is outstanding; infinite where nothing is.
    """

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.since = math.inf
        self._most = credit
        self._next = 0
        self._parts: dict[int, list[Refusal | None]] = {}  # answers that came to the messages of an envelope
        self._sizes: dict[int, int] = {}

    def sent(self, messages: int, now: float) -> int:
        """A delivery of so many messages is sent; its ordinal."""
        ordinal = self._next
        self._next += 1
        self.credit -= 1
        if messages > 1:
            self._sizes[ordinal], self._parts[ordinal] = messages, []
        if self.since == math.inf:
            self.since = now
        return ordinal

    def answered(self, answers: Sequence[tuple[int, Refusal | None]], now: float) -> list[Outcome]:
        """Answers to messages, by the ordinal of their delivery, as outcomes of deliveries."""
        if not answers:
            return []
        taken: list[int] = []
        refused: list[tuple[int, Refusal]] = []
        for ordinal, refusal in answers:
            size = self._sizes.get(ordinal)
            if size is not None:
                parts = self._parts[ordinal]
                parts.append(refusal)
                if len(parts) < size:
                    continue
                del self._sizes[ordinal], self._parts[ordinal]
                refusal = next((each for each in parts if each is not None), None)  # noqa: PLW2901
            if refusal is None:
                taken.append(ordinal)
            else:
                refused.append((ordinal, refusal))
        self.credit += len(taken) + len(refused)
        self.since = now if self.credit < self._most else math.inf
        outcomes = [Outcome(first, last) for first, last in _runs(sorted(taken))]
        return outcomes + [Outcome(ordinal, ordinal, refusal) for ordinal, refusal in refused]


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = last = -2
    for number in numbers:
        if number == last + 1:
            last = number
            continue
        if last >= 0:
            yield first, last
        first = last = number
    if last >= 0:
        yield first, last
