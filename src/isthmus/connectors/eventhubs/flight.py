"""The unanswered deliveries of one connection, across all its links.

What it is: deliveries of the machine, each of one event or of several to different partitions, as ordinals; and the combination of the
links' answers, pure. What it is not: a link.

Invariants:
    I1. A delivery is answered once, when all of its parts are; it is refused when one of them is.
    I2. Stored events of a delivery that is refused, or whose connection was lost, are reported: they are not sent again.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.bridge.delivery_event import Outcome
from isthmus.bridge.refusal import Refusal

__all__ = ["Flight"]


class _Open:
    """A delivery in several parts."""

    __slots__ = ("missing", "refusal", "stored")

    def __init__(self, parts: int) -> None:
        self.missing = parts
        self.refusal: Refusal | None = None
        self.stored: list[int] = []


class Flight:
    """The deliveries of one connection.

    Attributes:
        outstanding: deliveries without an answer.
    """

    def __init__(self) -> None:
        self.outstanding = 0
        self._next = 0
        self._open: dict[int, _Open] = {}
        self._answers: list[Outcome] = []

    def begin(self, parts: int) -> int:
        """Counts a delivery in so many parts; returns its ordinal."""
        ordinal = self._next
        self._next += 1
        self.outstanding += 1
        if parts > 1:
            self._open[ordinal] = _Open(parts)
        return ordinal

    def answered(self, ordinal: int, refusal: Refusal | None = None, events: Sequence[int] = ()) -> None:
        """A part of a delivery was answered; `events` are its numbers within the delivery."""
        found = self._open.get(ordinal)
        if found is None:
            self.outstanding -= 1
            self._answers.append(Outcome(ordinal, ordinal, refusal))
            return
        found.missing -= 1
        if refusal is None:
            found.stored += events
        found.refusal = found.refusal or refusal
        if not found.missing:
            self._end(ordinal, found.refusal)

    def lost(self, refusal: Refusal) -> None:
        """The connection is lost: there are no more answers. Deliveries that were stored in part are answered now."""
        for ordinal in [each for each, found in self._open.items() if found.stored]:
            self._end(ordinal, self._open[ordinal].refusal or refusal)

    def _end(self, ordinal: int, refusal: Refusal | None) -> None:
        stored = self._open.pop(ordinal).stored
        self.outstanding -= 1
        self._answers.append(Outcome(ordinal, ordinal, refusal, () if refusal is None else tuple(sorted(stored))))

    def take(self) -> list[Outcome]:
        """The outcomes since the last call; consecutive accepted deliveries are one."""
        outcomes: list[Outcome] = []
        for each in sorted(self._answers, key=_ordinal):
            last = outcomes[-1] if outcomes else None
            if last is not None and each.refusal is None and last.refusal is None and last.last + 1 == each.first:
                outcomes[-1] = Outcome(last.first, each.first)
            else:
                outcomes.append(each)
        self._answers.clear()
        return outcomes


def _ordinal(answer: Outcome) -> int:
    return answer.first
