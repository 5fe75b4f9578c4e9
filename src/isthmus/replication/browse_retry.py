"""Whether a failed browse of an entity is repeated, and after which delay.

What it is: pure; the error and the time in, a delay out. Browsing changes nothing, so it may be repeated after any outcome of the first
attempt. What it is not: a retry of an operation that locks, settles or sends.

Invariants:
    I1. A connection that was idle may have been closed by the namespace without notice: the first browse that finds it closed is repeated
        immediately over a new connection.
    I2. A namespace that was reached before is tried again for `patience_seconds`, with growing delays. One that was never reached is not:
        a wrong address is reported immediately.
    I3. A permanent error is never repeated.
"""

from __future__ import annotations

import random

from isthmus.errors import ConnectionLostError, IsthmusError
from isthmus.transport.backoff import Backoff

__all__ = ["BrowseRetry"]

FIRST_SECONDS = 0.2
LIMIT_SECONDS = 5.0


class BrowseRetry:
    """The attempts of one browse.

    Args:
        patience_seconds: for how long after the first failure it is repeated; 0: only according to I1.
        source: source of the jitter; seeded in tests.
    """

    def __init__(self, patience_seconds: float = 0.0, source: random.Random | None = None) -> None:
        self._patience_seconds = patience_seconds
        self._backoff = Backoff(FIRST_SECONDS, LIMIT_SECONDS, source=source)
        self._give_up_at: float | None = None

    def delay_seconds(self, error: IsthmusError, *, was_open: bool, was_reached: bool, now: float) -> float | None:
        """The delay before the next attempt; None: no further attempt.

        Args:
            error: why the browse failed.
            was_open: whether an earlier browse had opened its connection.
            was_reached: whether any browse has reached the namespace.
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
