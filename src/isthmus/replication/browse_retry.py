"""Whether a look at an entity that failed is repeated, and after how long.

What it is: pure; the error and the time in, a delay out. A look changes nothing, so that it may be repeated whatever became of the first
attempt. What it is not: a retry of anything that locks, settles or sends.

Invariants:
    I1. A connection that was idle may have been closed by the namespace without notice: the first look that finds it closed is repeated
        at once over a new connection.
    I2. A namespace that was reached before is tried again for `patience_seconds`, with growing delays. One that was never reached is not:
        an address that is wrong is reported at once.
    I3. An error that does not pass by itself is never repeated.
"""

from __future__ import annotations

import random

from isthmus.errors import ConnectionLostError, IsthmusError
from isthmus.transport.backoff import Backoff

__all__ = ["BrowseRetry"]

FIRST_SECONDS = 0.2
LIMIT_SECONDS = 5.0


class BrowseRetry:
    """The attempts of one look.

    Args:
        patience_seconds: for how long after the first failure it is repeated; 0: only as I1 says.
        source: of the jitter of the delays; a seeded one in tests.
    """

    def __init__(self, patience_seconds: float = 0.0, source: random.Random | None = None) -> None:
        self._patience_seconds = patience_seconds
        self._backoff = Backoff(FIRST_SECONDS, LIMIT_SECONDS, source=source)
        self._give_up_at: float | None = None

    def delay_seconds(self, error: IsthmusError, *, was_open: bool, was_reached: bool, now: float) -> float | None:
        """After how long to look again; None: not at all.

        Args:
            error: why the look failed.
            was_open: whether its connection had been opened by an earlier look.
            was_reached: whether any look has reached the namespace.
            now: monotonic seconds.
        """
        if not error.retryable:
            return None
        is_first = self._give_up_at is None
        if self._give_up_at is None:
            self._give_up_at = now + self._patience_seconds
        if is_first and was_open and isinstance(error, ConnectionLostError):
            return 0.0
        if not was_reached or now >= self._give_up_at:
            return None
        return min(self._backoff.next_seconds(), self._give_up_at - now)
