"""Events of a source that would need a disposition that a log has not: when the source is lost for them.

What it is: the text and the time. What it is not: the settling of what is in flight meanwhile (`source`).
"""

from __future__ import annotations

import math

__all__ = ["SETTLE_SECONDS", "RefusedEvents"]

SETTLE_SECONDS = 5.0


class RefusedEvents:
    """Events that would need a disposition that there is none for.

    Attributes:
        text: what is told of the first; empty: there is none.
        events: how many.
    """

    def __init__(self) -> None:
        self.text = ""
        self.events = 0
        self._due = math.inf

    def due(self, now: float) -> float:
        """When the source is lost, whatever is under way."""
        if self.text and self._due == math.inf:
            self._due = now + SETTLE_SECONDS
        return self._due
