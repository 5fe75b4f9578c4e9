"""How long to wait before the next attempt.

What it is: exponential growth with full jitter, so that many routes that lost the same namespace do not reconnect at
once. What it is not: a loop; the owner waits.

Invariants:
    I1. A delay is never above the limit and never below half of the step it was drawn from.
"""

from __future__ import annotations

import random

__all__ = ["Backoff"]


class Backoff:
    """Delays between attempts.

    Args:
        first_seconds: the first step.
        limit_seconds: no step is longer.
        factor: growth from step to step.
        source: where jitter comes from; a seeded one in tests.
    """

    def __init__(
        self,
        first_seconds: float = 0.2,
        limit_seconds: float = 30.0,
        factor: float = 2.0,
        source: random.Random | None = None,
    ) -> None:
        self.first_seconds = first_seconds
        self.limit_seconds = limit_seconds
        self.factor = factor
        self.attempts = 0
        self._random = source or random.Random()

    def next_seconds(self) -> float:
        """The delay before the next attempt, in seconds; counts one attempt."""
        step = min(self.limit_seconds, self.first_seconds * self.factor ** min(self.attempts, 64))
        self.attempts += 1
        return step / 2 + step / 2 * self._random.random()

    def reset(self) -> None:
        """Start again from the first step: an attempt succeeded."""
        self.attempts = 0
