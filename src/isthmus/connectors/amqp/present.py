"""Whether a source that is to give what exists has given it."""

from __future__ import annotations

import math

__all__ = ["Present"]

# How long nothing comes before a source with `only_present` asks whether there is anything.
IDLE_SECONDS = 0.25


class Present:
    """What is known of that.

    Attributes:
        due: when to ask.
        is_asking: whether the link is being drained for that.
        received: deliveries before it.
        is_told: whether `Exhausted` was told.
    """

    def __init__(self) -> None:
        self.due = math.inf
        self.is_asking = self.is_told = False
        self.received = 0

    def moved(self, now: float) -> None:
        """Something came, or was looked for in vain: ask a little later."""
        self.due = now + IDLE_SECONDS
