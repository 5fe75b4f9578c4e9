"""When a source is lost because messages need a disposition that its system does not support.

What it is: the text and the time, for every kind of source: the source is lost once all other messages in flight are settled, because these
would otherwise be delivered again each time. What it is not: the release of messages, or the wording of the text.

Invariants:
    I1. A source is lost `SETTLE_SECONDS` after the first such message at the latest, whatever is in flight.
    I2. The loss is reported once.
"""

from __future__ import annotations

import math

__all__ = ["SETTLE_SECONDS", "Refused"]

SETTLE_SECONDS = 5.0


class Refused:
    """The account of one source.

    Attributes:
        text: the error text of the first such message; empty: there is none.
    """

    def __init__(self) -> None:
        self.text = ""
        self._messages = 0
        self._due = math.inf

    def add(self, text: str, messages: int) -> None:
        """Adds messages that cannot be disposed of."""
        self.text = self.text or text
        self._messages += messages

    def due(self, now: float) -> float:
        """When the source is lost, whatever is in flight; infinite while there are no such messages."""
        if self.text and self._due == math.inf:
            self._due = now + SETTLE_SECONDS
        return self._due

    def take(self, now: float, outstanding: int) -> str:
        """Why the source is lost now, given the number of unsettled messages, these included; empty: it is not lost yet."""
        if not self.text or (now < self.due(now) and outstanding > self._messages):
            return ""
        text, self.text = self.text, ""
        self._messages, self._due = 0, math.inf
        return text
