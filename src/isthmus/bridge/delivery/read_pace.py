"""When a sink reads its targets' answers.

What it is: while rows come often, an acknowledgement that nothing waits for is read with the next rows, or `READ_SECONDS` after the last
read. Otherwise a loop that wakes for each acknowledgement uses more processor time than sending. What it is not: the
reading.

Invariants:
    I1. Answers are read at once while no rows come, and never later than `READ_SECONDS` after the last read.
"""

from __future__ import annotations

import math

__all__ = ["READ_SECONDS", "ReadPace"]

READ_SECONDS = 0.020


class ReadPace:
    """The pace of one loop."""

    def __init__(self) -> None:
        self._came_at = -math.inf
        self._read_at = -math.inf

    def rows_came(self, now: float) -> None:
        """Rows came."""
        self._came_at = now

    def has_read(self, now: float) -> None:
        """The answers were read."""
        self._read_at = now

    def waits_until(self, now: float) -> float:
        """Until when reading can wait; not later than now where it must not."""
        return self._read_at + READ_SECONDS if now - self._came_at <= READ_SECONDS else -math.inf
