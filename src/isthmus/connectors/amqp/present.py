"""Whether a source that delivers only existing messages has delivered them all."""

from __future__ import annotations

import math

__all__ = ["Present"]

# After so long without messages a source with `only_present` drains its link to see whether there are any.
IDLE_SECONDS = 0.25


class Present:
    """The state of that decision.

    Attributes:
        due: when to drain.
        is_asking: whether the link is being drained for it.
        received: deliveries before the drain.
        is_reported: whether `Exhausted` was reported.
    """

    def __init__(self) -> None:
        self.due = math.inf
        self.is_asking = self.is_reported = False
        self.received = 0

    def moved(self, now: float) -> None:
        """A message arrived, or a drain found none: the next drain is a little later."""
        self.due = now + IDLE_SECONDS
