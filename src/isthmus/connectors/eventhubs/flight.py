"""What one connection was sent and has not answered, over all its links.

What it is: deliveries of the machine, each of one event or of several to different places, as ordinals; and the answers of the links,
put together, pure. What it is not: a link.

Invariants:
    I1. A delivery is answered once, when all of its parts are; it is refused when one of them is.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.bridge.delivery_event import Outcome
from isthmus.bridge.refusal import Refusal

__all__ = ["Flight"]


class Flight:
    """The deliveries of one connection.

    Attributes:
        outstanding: deliveries without an answer.
    """

    def __init__(self) -> None:
        self.outstanding = 0
        self._next = 0
        self._open: dict[int, tuple[int, Refusal | None]] = {}  # of deliveries in several parts: parts, refusal
        self._answers: list[tuple[int, Refusal | None]] = []

    def begin(self, parts: int) -> int:
        """A delivery in so many parts; its ordinal."""
        ordinal = self._next
        self._next += 1
        self.outstanding += 1
        if parts > 1:
            self._open[ordinal] = (parts, None)
        return ordinal

    def answered(self, ordinals: Iterable[int], refusal: Refusal | None = None) -> None:
        """Parts of these deliveries have an answer."""
        for ordinal in ordinals:
            parts, before = self._open.get(ordinal, (1, None))
            if parts > 1:
                self._open[ordinal] = (parts - 1, before or refusal)
                continue
            self._open.pop(ordinal, None)
            self.outstanding -= 1
            self._answers.append((ordinal, before or refusal))

    def take(self) -> list[Outcome]:
        """The outcomes since the last call; accepted deliveries that follow each other are one."""
        outcomes: list[Outcome] = []
        for ordinal, refusal in sorted(self._answers, key=_ordinal):
            last = outcomes[-1] if outcomes else None
            if last is not None and refusal is None and last.refusal is None and last.last + 1 == ordinal:
                outcomes[-1] = Outcome(last.first, ordinal)
            else:
                outcomes.append(Outcome(ordinal, ordinal, refusal))
        self._answers.clear()
        return outcomes


def _ordinal(answer: tuple[int, Refusal | None]) -> int:
    return answer[0]
