"""Time as an argument.

What it is: the two clocks that isthmus reads, behind one protocol, so that tests set the time by hand. Wall time
(in messages, and as people read it) is an int of milliseconds since the epoch; monotonic time (for time-outs and
intervals) is a float of seconds. They never mix.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock", "monotonic_ms"]


class Clock(Protocol):
    """Reads wall and monotonic time."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01T00:00:00Z."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...


def monotonic_ms(clock: Clock) -> int:
    """Monotonic time in whole milliseconds: locks end by it, so that a step of the wall clock does not change them."""
    return round(clock.monotonic() * 1000)


class SystemClock:
    """The machine's clocks; the wall clock can be shifted to test skew between regions.

    Args:
        offset_ms: added to the wall clock, in milliseconds.
    """

    def __init__(self, offset_ms: int = 0) -> None:
        self.offset_ms = offset_ms

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset_ms

    def monotonic(self) -> float:
        return time.monotonic()
