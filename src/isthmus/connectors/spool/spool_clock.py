"""The time of a spool's messages, as a query with windows sees it.

What it is: how far time has come after a batch, decided from the messages and, once they have ceased, from the wall clock. It is part of
a batch's offset, so that a batch that is repeated has the same times. What it is not: the windows, which are Spark's.

A message's time is its enqueued time. Spark drops what comes later than its watermark without a word; so a message that is later than the
slack counts at the earliest time that Spark still takes: it is counted late, and not lost.

Invariants:
    I1. Time never goes back.
    I2. No row has a time that is not later than the watermark that Spark can have reached (`floor_ms`).
    I3. Where messages have ceased, time goes on once, far enough that every window closes.
    I4. I2 holds too where the slack is another one since the last start: Spark keeps the watermark that it has reached.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AHEAD_MS", "END_ROW", "MESSAGE_ROW", "SpoolClock", "time_of"]

MESSAGE_ROW, END_ROW = 0, 1
"""The kinds of timed rows: a message, and the end of a batch."""

AHEAD_MS = 300_000
"""How far a namespace's clock may be ahead of this machine's; a message from later than that does not close windows."""


class SpoolClock(NamedTuple):
    """How far time has come.

    Attributes:
        now_ms: the latest time of all messages, or the wall time at which messages had ceased.
        newest_ms: the latest time of all messages, or that at which a later one counted.
        written_ms: wall time at which the last of them was written.
        earliest_ms: earlier than this no row may be, whatever the slack is now.
    """

    now_ms: int = 0
    newest_ms: int = 0
    written_ms: int = 0
    earliest_ms: int = 0

    def seen(self, newest_ms: int, written_ms: int, floor_ms: int = 0) -> SpoolClock:
        """After messages.

        Args:
            newest_ms: the latest of their times.
            written_ms: wall time at which they were written.
            floor_ms: the earliest time at which they count: a window that is opened for late ones has to close, too.
        """
        newest_ms = max(newest_ms, floor_ms)
        return self._replace(
            now_ms=max(self.now_ms, newest_ms),
            newest_ms=max(self.newest_ms, newest_ms),
            written_ms=max(self.written_ms, written_ms),
        )

    def idle(self, wall_ms: int, idle_since_ms: int, window_ms: int, slack_ms: int) -> SpoolClock:
        """After a look at which there was no message.

        Args:
            wall_ms: now.
            idle_since_ms: since when somebody has looked.
            window_ms: a window, or how long a message is remembered.
            slack_ms: how much later than others messages may come.
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
        """With the earliest time by the present slack, for those who read on with another (I4)."""
        return self._replace(earliest_ms=self.floor_ms(slack_ms))


def time_of(enqueued_ms: int, written_ms: int) -> int:
    """The time of a message."""
    return min(enqueued_ms, written_ms + AHEAD_MS) if enqueued_ms > 0 else written_ms
