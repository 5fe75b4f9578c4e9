"""What condition a route is in, judged by data that moved.

What it is: a pure machine that takes what was seen of a route (it started, so many messages are through, so many wait,
it failed) with the time of each, and says in one word and one sentence what the route does. What it is not: the doing.

Invariants:
    I1. A route is `moving` only if its count of moved messages rose within the last MOVING_SECONDS; that a query runs
        says nothing.
    I2. A route that has moved nothing for `stalled_after_seconds` while messages wait is `stalled`, and so is one that
        takes in nothing because its target is away.
    I3. A failed route tells when it will be tried again.
"""

from __future__ import annotations

import math
from collections import deque
from enum import StrEnum

from isthmus.replication.sighting import Sighting

__all__ = ["Condition", "Phase"]

MOVING_SECONDS = 3.0
"""Longer than a change of leases takes at six routes at once (0.8 to 1.5 s, DESIGN, "The lease")."""

RATE_WINDOW_SECONDS = 5.0


class Phase(StrEnum):
    """What a route does, in one word."""

    PENDING = "pending"
    STARTING = "starting"
    WAITING = "waiting"
    MOVING = "moving"
    STALLED = "stalled"
    FAILED = "failed"
    CLAIMED = "claimed elsewhere"
    DRAINING = "draining"
    DONE = "done"
    STOPPED = "stopped"


class Condition:
    """The condition of one route.

    Args:
        stalled_after_seconds: how long messages may wait, none moving, before the route is called stalled.

    Attributes:
        moved: messages moved by this process, over restarts.
        restarts: how often the route has been started again.
        last_error: the latest failure's text; empty where there was none.
        last_error_at: monotonic seconds of it; 0 where there was none.
    """

    def __init__(self, stalled_after_seconds: float = 15.0) -> None:
        self.stalled_after_seconds = stalled_after_seconds
        self.moved = 0
        self.restarts = 0
        self.last_error = ""
        self.last_error_at = 0.0
        self.retry_at = 0.0
        self._phase = Phase.PENDING
        self._detail = ""
        self._moved_before = 0
        self._last_moved_at = float("-inf")
        self._started_at = 0.0
        self._sighting = Sighting()
        self._waiting: int | None = None
        self._oldest_age_seconds: float | None = None
        self._history: deque[tuple[float, int]] = deque()

    # ---- what happened

    def starting(self, now: float) -> None:
        """The route is being started."""
        self._phase, self._detail = Phase.STARTING, ""
        self._started_at = now
        self._moved_before = self.moved
        self._sighting = Sighting()

    def seen(self, now: float, sighting: Sighting) -> None:
        """A running route was looked at."""
        moved = self._moved_before + sighting.moved
        if moved > self.moved:
            self.moved = moved
            self._last_moved_at = now
        self._sighting = sighting
        history = self._history
        history.append((now, self.moved))
        while len(history) > 2 and history[1][0] <= now - RATE_WINDOW_SECONDS:
            history.popleft()
        if self._phase is not Phase.DRAINING:
            self._phase, self._detail = self._judge(now)

    def stands(self, waiting: int, oldest_age_seconds: float) -> None:
        """The route's source was looked at, whether the route runs or not."""
        self._waiting, self._oldest_age_seconds = waiting, oldest_age_seconds

    def failed(self, now: float, error: str, retry_seconds: float) -> None:
        """The route broke and will be tried again."""
        self._phase = Phase.FAILED
        self.last_error, self.last_error_at = error, now
        self.retry_at = now + retry_seconds
        self.restarts += 1
        self._history.clear()

    def claimed(self, holder: str) -> None:
        """Another run moves the task."""
        self._phase, self._detail = Phase.CLAIMED, holder
        self._history.clear()

    def pending(self, why: str) -> None:
        """The route may not start yet."""
        self._phase, self._detail = Phase.PENDING, why

    def draining(self) -> None:
        """The route finishes what it has begun."""
        self._phase, self._detail = Phase.DRAINING, ""

    def done(self) -> None:
        """All that it was to move is moved."""
        self._phase, self._detail = Phase.DONE, ""

    def stopped(self) -> None:
        """The route was stopped on request."""
        self._phase, self._detail = Phase.STOPPED, ""
        self._history.clear()

    # ---- what to say

    @property
    def phase(self) -> Phase:
        """The condition in one word."""
        return self._phase

    def text(self, now: float) -> str:
        """The condition in a few words, e.g. ``failed, retry in 12 s``."""
        if self._phase is Phase.FAILED:
            return f"failed, retry in {math.ceil(max(0.0, self.retry_at - now))} s"
        if self._phase is Phase.CLAIMED:
            return f"claimed by {self._detail}" if self._detail else str(self._phase)
        return f"{self._phase}: {self._detail}" if self._detail else str(self._phase)

    @property
    def processes(self) -> tuple[int, ...]:
        """Ids of the processes that work for the route, as last seen."""
        return self._sighting.processes

    @property
    def waiting(self) -> int | None:
        """Messages before the route, as last seen; None where nobody could tell."""
        return self._waiting

    @property
    def oldest_age_seconds(self) -> float | None:
        """Age of the oldest waiting message, as last seen; None where nobody could tell."""
        return self._oldest_age_seconds

    def rate_per_second(self, now: float) -> float:
        """Messages moved a second, over the last few seconds."""
        if len(self._history) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self._history[0], self._history[-1]
        elapsed = max(last_at - first_at, now - first_at)
        return (last - first) / elapsed if elapsed > 0 else 0.0

    def has_moved_since_start(self) -> bool:
        """Whether this start of the route has moved anything."""
        return self.moved > self._moved_before

    def stuck_seconds(self, now: float) -> float:
        """How long messages have waited, none moving, for no reason that the route knows of; 0 where it knows one."""
        if self._phase is not Phase.STALLED or self._sighting.held:
            return 0.0
        return now - max(self._last_moved_at, self._started_at)

    def _judge(self, now: float) -> tuple[Phase, str]:
        if now - self._last_moved_at <= MOVING_SECONDS:
            return Phase.MOVING, ""
        if self._sighting.held:
            return Phase.STALLED, self._sighting.held
        waits = bool(self._waiting)
        idle_since = max(self._last_moved_at, self._started_at)
        if waits and now - idle_since >= self.stalled_after_seconds:
            return Phase.STALLED, f"nothing moved for {now - idle_since:.0f} s"
        if not self._sighting.ready or (waits and not self.has_moved_since_start()):
            return Phase.STARTING, ""
        return Phase.WAITING, ""
