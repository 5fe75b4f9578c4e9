"""How long events have been there, told without their enqueued times.

What it is: marks of how far a partition had come at a monotonic time. What it is not: retention (`partition`), which judges
by enqueued times as long as the clock is not behind them.

Enqueued times never fall. After the wall clock was set back they are in the future, and those of new events do not change
until the clock has caught up: by them nothing would become old for that time.

Invariants:
    I1. An event that `passed` counts has been there for at least the age that was asked for.
    I2. There are at most `_MARKS` marks.
"""

from __future__ import annotations

from collections import deque

__all__ = ["AgeMarks"]

# A mark lets events that came since the one before look younger than they are, by this part of the age at most.
_MARKS = 16


class AgeMarks:
    """The marks of one partition."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def note(self, now: float, following: int, age_seconds: float) -> None:
        """All events before `following` are there now.

        Args:
            now: monotonic seconds.
            following: sequence number that the next event gets.
            age_seconds: for which `passed` will be asked.
        """
        if self._marks and now - self._marks[-1][0] < age_seconds / (_MARKS - 1):
            return
        self._marks.append((now, following))
        while len(self._marks) > _MARKS:
            del self._marks[1]  # the oldest is the next to count

    def passed(self, now: float, age_seconds: float) -> int:
        """The sequence number before which all events have been there for so long; 0 for none."""
        while len(self._marks) > 1 and now - self._marks[1][0] >= age_seconds:
            self._marks.popleft()
        if self._marks and now - self._marks[0][0] >= age_seconds:
            return self._marks[0][1]
        return 0
