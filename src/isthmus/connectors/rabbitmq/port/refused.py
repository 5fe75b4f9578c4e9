"""Messages of a source that would need a disposition which there is none for.

What it is: when the source is lost for them: once what is under way beside them is settled, or it would come again each time. What it is
not: the giving back.
"""

from __future__ import annotations

import math
import time

__all__ = ["NO_PLACE", "SETTLE_SECONDS", "Refused"]

SETTLE_SECONDS = 5.0
NO_PLACE = (
    "name a queue for dead_letters at the source (dead_letter_queue of a task), say dead_letter_exchange=true where the queue has one, or let "
    "refusals block"
)


class Refused:
    """The account of one source.

    Attributes:
        text: what is told of the first; empty: there is none.
        due: when the source is lost, whatever is under way.
    """

    def __init__(self) -> None:
        self.text = ""
        self.due = math.inf
        self._messages = 0

    def add(self, text: str, messages: int) -> None:
        """So many messages more."""
        self.text = self.text or text
        self.due = min(self.due, time.monotonic() + SETTLE_SECONDS)
        self._messages += messages

    def is_due(self, now: float, outstanding: int) -> bool:
        """Whether the source is to be lost now, while so many messages are outstanding, these among them."""
        return bool(self.text) and (now >= self.due or outstanding <= self._messages)
