"""The time of a spool's messages, as a query with windows sees it.

What it is: the time after a batch, from the messages and, when there are no more of them, from the wall clock. It is part of
a batch's offset, so that a batch that is repeated has the same times. What it is not: the windows, which are Spark's.

A message's time is its enqueued time. Spark silently drops rows that are later than its watermark; so a message that is later than the
slack counts at the earliest time that Spark still accepts: it is counted late, and not lost.

Invariants:
    I1. Time never goes back.
    I2. No row has a time that is not later than the watermark that Spark can have reached (`floor_ms`).
    I3. When messages have ceased, time advances once, far enough that every window closes.
    I4. I2 also applies where the slack has changed since the last start: Spark keeps its watermark.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AHEAD_MS", "END_ROW", "MESSAGE_ROW", "SpoolClock", "time_of"]

MESSAGE_ROW, END_ROW = 0, 1
"""The kinds of timed rows: a message, and the end of a batch."""

AHEAD_MS = 300_000
"""How far a namespace's clock may be ahead of this machine's; a later message does not close windows."""


class SpoolClock(NamedTuple):
    """The time of a spool.

    Attributes:
        now_ms: the latest time of all messages, or the wall time at which messages had ceased.
        newest_ms: the latest time of all messages, limited as described for I2.
        written_ms: wall time at which the last of them was written.
        earliest_ms: no row may be earlier than this, with any slack.
    """

    now_ms: int = 0
    newest_ms: int = 0
    written_ms: int = 0
    earliest_ms: int = 0

    def seen(self, newest_ms: int, written_ms: int, floor_ms: int = 0) -> SpoolClock:
        """The clock after messages.

        Args:
            newest_ms: the latest of their times.
            written_ms: wall time at which they were written.
            floor_ms: the earliest time at which they count: a window that opens for late ones has to close, too.
        """
        newest_ms = max(newest_ms, floor_ms)
        return self._replace(
            now_ms=max(self.now_ms, newest_ms),
            newest_ms=max(self.newest_ms, newest_ms),
            written_ms=max(self.written_ms, written_ms),
        )

    def idle(self, wall_ms: int, idle_since_ms: int, window_ms: int, slack_ms: int) -> SpoolClock:
        """The clock after a poll without messages.

        Args:
            wall_ms: now.
            idle_since_ms: the time of the first poll.
            window_ms: a window, or how long a message is remembered.
            slack_ms: how much later than others messages may arrive.
        """
        due = self.newest_ms + window_ms + slack_ms
        is_idle = wall_ms - max(self.written_ms, idle_since_ms) >= slack_ms
        if self.newest_ms and self.now_ms < due <= wall_ms and is_idle:
            return self._replace(now_ms=wall_ms)
        return self

    def floor_ms(self, slack_ms: int) -> int:
        """The earliest time that a row of the next batch may have."""
        return max(0, self.earliest_ms, self.now_ms - slack_ms + 1)

    def kept(self, slack_ms: int) -> SpoolClock:
        """With the earliest time by the present slack, for a later read with another (I4)."""
        return self._replace(earliest_ms=self.floor_ms(slack_ms))


def time_of(enqueued_ms: int, written_ms: int) -> int:
    """The time of a message."""
    return min(enqueued_ms, written_ms + AHEAD_MS) if enqueued_ms > 0 else written_ms
