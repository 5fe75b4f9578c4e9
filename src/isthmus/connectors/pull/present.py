"""When a source that is read once has given all that was in it.

What it is: the decision, of what came and how much is left by the system's own count. What it is not: a request.

Invariants:
    I1. Nothing that came into the system after the first opening is given.
    I2. It ends: what others hold is waited for as long as their locks last, and no longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from isthmus.connectors.pull.puller import Lease, Pulled

__all__ = ["LOCK_SECONDS", "Present"]

# How long the lock of a reader that died is waited for.
LOCK_SECONDS = 300.0


class Present:
    """The account of one source.

    Attributes:
        is_over: whether all has been given.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._opened_ms = 0
        self._later: dict[str, Lease] = {}
        self._since = math.inf

    def opened(self, now_ms: int) -> None:
        """The source is connected, at this wall time of its system."""
        self._opened_ms = self._opened_ms or now_ms

    def split(self, pulled: Sequence[Pulled]) -> list[Pulled]:
        """What was there. Systems tell seconds only: what came in the same one was there. What came later stays locked until the
        end: given back at once, it would be given again at once.
        """
        limit = (self._opened_ms // 1000 + 1) * 1000
        self._later.update((each.lease.name, each.lease) for each in pulled if each.enqueued_ms >= limit)
        return [each for each in pulled if each.enqueued_ms < limit]

    def leave(self) -> list[Lease]:
        """What came later and is to be given back."""
        later = list(self._later.values())
        self._later.clear()
        return later

    def looked(self, waiting: int | None, held: int, now: float) -> bool:
        """Nothing came that was there, while so many were held; whether that was all.

        Args:
            waiting: what is in the system, as far as it tells.
            held: how many of them this source holds.
            now: monotonic seconds.
        """
        self._since = min(self._since, now)
        left = 0 if waiting is None else waiting - held - len(self._later)
        self.is_over = left <= 0 or now >= self._since + LOCK_SECONDS
        return self.is_over
