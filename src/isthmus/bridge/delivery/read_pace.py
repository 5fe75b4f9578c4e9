"""When a sink reads what its targets tell.

What it is: while rows come often, an acknowledgement that nobody waits for is read with the next rows, or `READ_SECONDS` after the last
were read. Otherwise a loop that wakes for each acknowledgement takes more of a processor than sending does. What it is not:
the reading.

Invariants:
    I1. What targets tell is read at once while no rows come, and never later than `READ_SECONDS` after it was read last.
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
        """What the targets told was read."""
        self._read_at = now

    def waits_until(self, now: float) -> float:
        """Until when it need not be read; not later than now where it has to be."""
        return self._read_at + READ_SECONDS if now - self._came_at <= READ_SECONDS else -math.inf
