"""Growing delays between attempts.

What it is: each delay is twice the one before, up to a limit, until an attempt succeeds. What it is not: a clock.

Invariants:
    I1. The first delay after `reset` is the initial delay.
"""

from __future__ import annotations

__all__ = ["Backoff"]


class Backoff:
    """The delays of one cause, in seconds."""

    def __init__(self, first: float, limit: float) -> None:
        self._first = first
        self._limit = limit
        self._next = first

    def next(self) -> float:
        """The delay before the next attempt."""
        delay = self._next
        self._next = min(self._limit, delay * 2)
        return delay

    def reset(self) -> None:
        """An attempt succeeded."""
        self._next = self._first
