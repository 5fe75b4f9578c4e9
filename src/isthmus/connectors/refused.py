"""Messages of a source that would need a disposition which its system has not: when the source is lost for them.

What it is: the text and the time, for every kind of source: it is lost once what is under way beside them is settled, or that would come again
each time. What it is not: the giving back, or the text's words.

Invariants:
    I1. A source is lost `SETTLE_SECONDS` after that was noticed at the latest, whatever is under way.
    I2. It is told once.
"""

from __future__ import annotations

import math

__all__ = ["SETTLE_SECONDS", "Refused"]

SETTLE_SECONDS = 5.0


class Refused:
    """The account of one source.

    Attributes:
        text: what is told of the first; empty: there is none.
    """

    def __init__(self) -> None:
        self.text = ""
        self._messages = 0
        self._due = math.inf

    def add(self, text: str, messages: int) -> None:
        """So many messages more."""
        self.text = self.text or text
        self._messages += messages

    def due(self, now: float) -> float:
        """When the source is lost, whatever is under way; infinite while nothing is refused."""
        if self.text and self._due == math.inf:
            self._due = now + SETTLE_SECONDS
        return self._due

    def take(self, now: float, outstanding: int) -> str:
        """Why the source is lost now, while so many messages are outstanding, these among them; empty: it is not, or not yet."""
        if not self.text or (now < self.due(now) and outstanding > self._messages):
            return ""
        text, self.text = self.text, ""
        self._messages, self._due = 0, math.inf
        return text
