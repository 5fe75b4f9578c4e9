"""The age of events, measured without their enqueued times.

What it is: marks of a partition's position at monotonic times. What it is not: retention (`partition`), which compares
enqueued times as long as the clock is not behind them.

Enqueued times never decrease. After the wall clock was set back they are in the future, and those of new events do not change
until the clock has caught up: by enqueued times, nothing would become old until then.

Invariants:
    I1. Events that `passed` counts have at least the given age.
    I2. There are at most `_MARKS` marks.
"""

from __future__ import annotations

from collections import deque

__all__ = ["AgeMarks"]

# A mark makes events that arrived since the one before seem younger than they are, at most by this part of the age.
_MARKS = 16


class AgeMarks:
    """The marks of one partition."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def note(self, now: float, following: int, age_seconds: float) -> None:
        """Record that all events before `following` exist now.

        Args:
            now: monotonic seconds.
            following: sequence number that the next event gets.
            age_seconds: the age for which `passed` will be called.
        """
        if self._marks and now - self._marks[-1][0] < age_seconds / (_MARKS - 1):
            return
        self._marks.append((now, following))
        while len(self._marks) > _MARKS:
            del self._marks[1]  # the oldest is the next to count

    def passed(self, now: float, age_seconds: float) -> int:
        """The sequence number before which all events have at least that age; 0 for none."""
        while len(self._marks) > 1 and now - self._marks[1][0] >= age_seconds:
            self._marks.popleft()
        if self._marks and now - self._marks[0][0] >= age_seconds:
            return self._marks[0][1]
        return 0
