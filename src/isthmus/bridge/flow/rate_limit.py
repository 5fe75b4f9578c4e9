"""The rate limit of one route: how many messages its source may send now.

What it is: a token bucket whose rate changes with the hour of the day. A token is a message; tokens are added at the rate, and each message
takes one. Credit never exceeds the tokens, so that nothing has to be refused or delayed. A bucket holds the tokens of one second, at
least one: a route that was idle moves so many at once. What it is not: the window of messages in flight (`credit_window`), a clock
(time is an argument; monotonic seconds), or a sleep.

Invariants:
    I1. In any span of t seconds no more messages arrive than the tokens of t seconds and of the bucket's one second, except on
        credit that was granted before the rate fell, until it is taken back.
    I2. Without a rate nothing is limited, and nothing is ever due.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from isthmus.topology.rate import Rate, RatePart

__all__ = ["RateLimit"]

BURST_SECONDS = 1.0
# Credit is granted for so long at once: each grant costs the peer a search for messages, and the reader a wake-up.
STEP_SECONDS = 0.05
# Tolerance for rounding: a token exists at the time at which it is due, although it is the sum of many small parts.
_ROUNDING = 1e-6


class RateLimit:
    """The limit of one route.

    Args:
        text: the rate, as `isthmus.topology.rate` writes it; empty: none.
        wall_offset_seconds: wall time minus monotonic time.

    Raises:
        ValueError: the text is no rate.
    """

    def __init__(self, text: str = "", wall_offset_seconds: float = 0.0) -> None:
        self._rate = Rate.parse(text)
        self._offset = wall_offset_seconds
        self._part: RatePart | None = None
        self._changes_at = -math.inf if text else math.inf
        self._tokens = math.inf
        self._at = 0.0

    @property
    def per_second(self) -> float:
        """The present rate, as of the last `credit`; infinite for no limit."""
        return math.inf if self._part is None else self._part.per_second

    @property
    def text(self) -> str:
        """The present rate and its end, e.g. ``100/s until 18:00 UTC``; empty for no limit."""
        if self._part is None:
            return ""
        if self._changes_at == math.inf:
            return self._part.limit
        # A part of the day ends at a full minute; after a clock adjustment the computed end deviates a little.
        until = datetime.fromtimestamp(round((self._changes_at + self._offset) / 60) * 60, UTC)
        return f"{self._part.limit} until {until:%H:%M} UTC"

    def credit(self, now: float) -> float:
        """How many messages may come now; infinite for no limit."""
        if now >= self._changes_at:
            self._fill(now, self._changes_at)
            self._change(now)
        else:
            self._fill(now, now)
        return math.floor(self._tokens + _ROUNDING) if self._tokens < math.inf else math.inf

    def took(self, count: int) -> None:
        """Messages arrived."""
        self._tokens -= count

    @property
    def step(self) -> int:
        """How many tokens are worth granting."""
        return max(1, int(min(self.per_second * STEP_SECONDS, self._holds))) if self.per_second < math.inf else 1

    @property
    def changes_at(self) -> float:
        """When another rate begins; infinite where none does."""
        return self._changes_at

    def due(self, tokens: int) -> float:
        """When there are so many tokens, or the rate changes; infinite where neither happens, e.g. where the bucket is smaller."""
        rate = self.per_second
        if rate == math.inf or not rate or tokens > self._holds:
            return self._changes_at
        missing = tokens - self._tokens
        return min(self._changes_at, self._at + max(0.0, missing) / rate)

    @property
    def _holds(self) -> float:
        return max(1.0, self.per_second * BURST_SECONDS)

    def _fill(self, now: float, until: float) -> None:
        """Adds the tokens until a time, at the present rate."""
        if self._part is not None and until > self._at:
            self._tokens = min(self._holds, self._tokens + (until - self._at) * self.per_second)
        self._at = max(self._at, now)

    def _change(self, now: float) -> None:
        """The rate of this time of day."""
        self._part, seconds = self._rate.at(now + self._offset)
        self._changes_at = now + seconds
        self._tokens = (
            math.inf if self._part is None else min(self._holds, max(0.0, self._tokens)) if self.per_second else 0.0
        )
