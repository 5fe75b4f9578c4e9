"""How long a link has waited for outcomes.

What it is: the times, pure. What it is not: the consequence (`end`).

Invariants:
    I1. The wait begins with a delivery, with an outcome that comes while others are missing, and when bytes of deliveries have arrived.
"""

from __future__ import annotations

import math

from isthmus.connectors.transit import Carrier, Transit

__all__ = ["OUTCOME_SECONDS", "OutcomeWait"]

# As long as the SDKs of Azure Service Bus and Event Hubs wait for one.
OUTCOME_SECONDS = 60.0


class OutcomeWait:
    """The wait of one link.

    Args:
        carrier: its connection.
        seconds: how long it may last; 0: `OUTCOME_SECONDS`.

    Attributes:
        since: when it began, in monotonic seconds; infinite where no outcome is missing.
        seconds: see above.
    """

    def __init__(self, carrier: Carrier, seconds: float = 0.0) -> None:
        self.since = math.inf
        self.seconds = seconds or OUTCOME_SECONDS
        self._transit = Transit(carrier)

    @property
    def due(self) -> float:
        """When `progresses` and `is_over` have to be called; infinite where no outcome is missing."""
        return min(self._transit.due(self.since), self.since + self.seconds)

    def sent(self, now: float) -> None:
        """Deliveries were sent."""
        self.since = min(self.since, now)

    def answered(self, now: float, *, is_missing: bool) -> None:
        """Outcomes came; `is_missing`: whether others have not."""
        self.since = now if is_missing else math.inf

    def progresses(self, now: float) -> bool:
        """Whether bytes of deliveries have arrived since the last look; looks only when it is due."""
        if not self._transit.progresses(now, self.since):
            return False
        self.since = now
        return True

    def is_over(self, now: float) -> bool:
        """Whether it has lasted too long."""
        return now >= self.since + self.seconds
