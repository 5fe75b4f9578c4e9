"""A circuit breaker: when an operation at a failed endpoint is tried again.

What it is: a circuit breaker for one endpoint, driven by the outcomes of real operations; time is an argument. What it is not:
a probe or a loop; its owner asks before each operation.

Invariants:
    I1. While it is open, no operation passes before the retry time; after it, one operation at a time passes.
    I2. The wait before a retry grows with each failure up to a limit, is drawn at random from the upper half of its
        step, and starts again after a success.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from isthmus.transport.backoff import Backoff

__all__ = ["Circuit", "CircuitState"]


@dataclass(frozen=True, slots=True)
class CircuitState:
    """The part of `statistics()` that describes a circuit.

    Attributes:
        is_open: whether the last operations failed.
        failures: operations that failed since the last success.
        opened: how often the circuit opened.
    """

    is_open: bool
    failures: int
    opened: int


class Circuit:
    """Closed: operations pass. Open: operations fail at once, except one after each wait.

    Args:
        first_seconds: the longest wait before the first retry.
        limit_seconds: the longest wait between two retries.
        threshold: consecutive failures that open the circuit.
        source: the source of the jitter; seeded in tests.
    """

    def __init__(
        self,
        first_seconds: float = 0.5,
        limit_seconds: float = 30.0,
        threshold: int = 1,
        source: random.Random | None = None,
    ) -> None:
        self._backoff = Backoff(first_seconds, limit_seconds, source=source)
        self._threshold = threshold
        self._failures = 0
        self._opened = 0
        self._retry_at: float | None = None
        self._trial_until: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether operations are rejected for now."""
        return self._retry_at is not None

    def allows(self, now: float, trial_seconds: float = 60.0) -> bool:
        """Whether an operation may begin; while open, this claims the trial.

        Args:
            now: monotonic seconds.
            trial_seconds: a trial without an outcome after this time counts as failed, and the next one may begin.
        """
        if self._retry_at is None:
            return True
        if now < self._retry_at or (self._trial_until is not None and now < self._trial_until):
            return False
        self._trial_until = now + trial_seconds
        return True

    def retry_in(self, now: float) -> float:
        """Seconds until an operation may begin; 0 if it may now."""
        if self._retry_at is None:
            return 0.0
        return max(0.0, self._retry_at - now, (self._trial_until or 0.0) - now)

    def succeeded(self) -> None:
        """An operation was answered: the endpoint is reachable, even if it refused the message."""
        self._failures = 0
        self._retry_at = self._trial_until = None
        self._backoff.reset()

    def failed(self, now: float) -> None:
        """An operation failed with an error after which the endpoint may be unavailable."""
        self._failures += 1
        self._trial_until = None
        if self._failures >= self._threshold:
            self._opened += self._retry_at is None
            self._retry_at = now + self._backoff.next_seconds()

    def released(self) -> None:
        """A trial ended without an outcome that describes the endpoint."""
        self._trial_until = None

    def state(self) -> CircuitState:
        """For `statistics()`."""
        return CircuitState(self.is_open, self._failures, self._opened)
