"""When a micro-batch grants credit for messages, and when it ends.

What it is: decisions only; arrivals and `now` in, credit and the end out. What it is not: a connection, or a file.

A batch ends when its time is over (counted from its first message), by rows or bytes, after a while without messages, or
with the last requested message. Before the first message it waits longer: the driver saw a message before it started the
batch, and a batch without rows costs Spark as much as one with many. Periodically it requests a peek at the entity,
because another receiver may have taken the message that the driver saw.

Invariants:
    I1. The received messages and the outstanding credit stay within `rows`, and within `nbytes` by the size of the largest
        message so far.
    I2. A batch ends before a third of the time of its first message's lock is over: the rest is left to Spark for writing.
    I3. A message within the granted credit is received in this batch: credit is granted before the first wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["BatchLimits", "Collection"]

# Credit before the first message, whose size is unknown.
FIRST_CREDIT = 16
QUIET_SECONDS = 0.2
FIRST_QUERY_SECONDS = 0.5
QUERY_LIMIT_SECONDS = 5.0
RETRY_SECONDS = 1.0
# Of the lock's time.
LOCK_SHARE = 3.0


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a batch may be.

    Attributes:
        seconds: how long it collects, from its first message on.
        rows: messages at most.
        nbytes: bytes at most, plus or minus one message for each credit.
        window: maximum outstanding credit.
        patience_seconds: how long it waits for its first message.
    """

    seconds: float
    rows: int
    nbytes: int
    window: int
    patience_seconds: float


class Collection:
    """Decides for one reader of one batch.

    Attributes:
        rows: messages that belong to the batch.
        nbytes: their bytes.
        ended_by: why it ended; empty while it continues.
    """

    def __init__(self, limits: BatchLimits, now: float) -> None:
        self.limits = limits
        self.rows = 0
        self.nbytes = 0
        self.ended_by = ""
        self._largest = 0
        self._began = now
        self._first: float | None = None
        self._last = now
        self._ends = now + limits.patience_seconds
        self._quiet = min(QUIET_SECONDS, limits.seconds)
        self._peek_pause = FIRST_QUERY_SECONDS
        self._peek_at = now + FIRST_QUERY_SECONDS
        self._blocked_until = 0.0

    def arrived(self, now: float, count: int, nbytes: int, largest: int, lock_seconds: float) -> None:
        """Messages of the batch arrived."""
        if self._first is None:
            self._first = now
            self._ends = now + min(self.limits.seconds, lock_seconds / LOCK_SHARE)
        self._last = now
        self.rows += count
        self.nbytes += nbytes
        self._largest = max(self._largest, largest)

    def blocked(self, now: float) -> None:
        """An earlier message is locked by another receiver: later ones were released."""
        if self.rows:
            self.end("blocked")
        else:
            self._blocked_until = now + RETRY_SECONDS

    def peeked(self, now: float, waits: bool) -> None:
        """The result of a peek that `wants_peek` requested: whether a message waits."""
        self._peek_pause = min(self._peek_pause * 2, QUERY_LIMIT_SECONDS)
        self._peek_at = now + self._peek_pause
        if not waits and not self.rows:
            self.end("nothing waits")

    def end(self, why: str) -> None:
        """Ends the batch now."""
        self.ended_by = self.ended_by or why

    def decide(self, now: float) -> str:
        """Why the batch ends; empty while it continues."""
        if not self.ended_by:
            if self.rows >= self.limits.rows:
                self.end("rows")
            elif self.nbytes >= self.limits.nbytes:
                self.end("bytes")
            elif now >= self._ends:
                self.end("time")
            elif self._first is not None and now - self._last >= self._quiet:
                self.end("quiet")
        return self.ended_by

    def credit(self, now: float, outstanding: int) -> int:
        """The credit to set; 0: leave the outstanding credit."""
        if self.ended_by or now < self._blocked_until:
            return 0
        if self._first is None:
            wanted = FIRST_CREDIT
        else:
            left = (self.limits.nbytes - self.nbytes) // max(1, self._largest)
            wanted = max(1, min(self.limits.window, left))
        wanted = min(wanted, self.limits.rows - self.rows)
        return wanted if wanted - outstanding >= min(wanted, max(1, self.limits.window // 4)) else 0

    def wants_peek(self, now: float) -> bool:
        """Whether to peek at the entity now."""
        return self._first is None and now >= self._peek_at

    def due(self, now: float) -> float:
        """When to decide next even without events (monotonic seconds)."""
        quiet = self._last + self._quiet if self._first is not None else self._peek_at
        blocked = self._blocked_until if self._blocked_until > now else math.inf
        return min(self._ends, quiet, blocked)
