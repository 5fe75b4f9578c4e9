"""A clock that a test moves by hand.

What it is: an `isthmus.clock.Clock` whose wall and monotonic time do not move until `advance` is called, so that
locks, lifetimes and schedules are tested without sleeping. It is not an event loop's clock.
"""

from __future__ import annotations

__all__ = ["ManualClock"]


class ManualClock:
    """Wall and monotonic time under a test's control.

    Args:
        wall_ms: wall time at the start, milliseconds since the epoch; by default 2026-01-01T00:00:00Z.
        monotonic_seconds: monotonic time at the start.
    """

    def __init__(self, wall_ms: int = 1_767_225_600_000, monotonic_seconds: float = 1000.0) -> None:
        self._wall_ms = wall_ms
        self._monotonic_seconds = monotonic_seconds

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic(self) -> float:
        return self._monotonic_seconds

    def advance(self, milliseconds: int) -> None:
        """Moves both clocks forward.

        Raises:
            ValueError: if the time is negative; only the wall clock can go back, see `set_wall`.
        """
        if milliseconds < 0:
            raise ValueError(f"time does not go back: {milliseconds} ms")
        self._wall_ms += milliseconds
        self._monotonic_seconds += milliseconds / 1000

    def set_wall(self, wall_ms: int) -> None:
        """Sets the wall clock alone, also back, as an operator or NTP would."""
        self._wall_ms = wall_ms
