"""The condition of a route, judged by the messages that it moved.

What it is: a pure machine that takes observations of a route (it started, it has moved so many messages, so many wait,
it failed) with their times, and returns the phase of the route and one sentence about it. What it is not: the control of the route.

Invariants:
    I1. A route is `moving` only if messages were settled within the last MOVING_SECONDS; a running query is no evidence.
    I2. A route is `stalled` if a message has waited for `stalled_after_seconds` in which none was settled, and if it receives
        nothing because its target is unreachable. Its idle time before that message arrived does not count. Where no age is known,
        messages wait from the first query that found some.
    I3. The text of a failed route says when it is retried.
    I6. A route that the operator limits is not `stalled` for as long as its rate explains that no message moves.
    I7. A route is `stalled` where a canary is late, unless messages move and others wait before the canary, or its rate explains it.
    I5. A route that the operator has paused is `paused`, and well, whatever waits in its source.
    I4. Moved, dead-lettered and discarded messages are counted separately, over restarts.
"""

from __future__ import annotations

import math
from collections import deque
from enum import StrEnum

from isthmus.replication.query.route_progress import RouteProgress, SpoolView
from isthmus.replication.query.tally import Counts

__all__ = ["Condition", "Phase"]

MOVING_SECONDS = 3.0
"""Longer than a change of leases takes at six routes at once (0.8 to 1.5 s, docs/explanation/lease.md)."""

RATE_WINDOW_SECONDS = 5.0

# A route that moves one message a minute moves none for a minute: so many of its intervals are allowed.
LIMIT_PERIODS = 2


class Phase(StrEnum):
    """The phase of a route."""

    PENDING = "pending"
    STARTING = "starting"
    WAITING = "waiting"
    MOVING = "moving"
    STALLED = "stalled"
    FAILED = "failed"
    CLAIMED = "claimed elsewhere"
    PAUSED = "paused"
    DRAINING = "draining"
    DONE = "done"
    STOPPED = "stopped"


class Condition:
    """The condition of one route.

    Args:
        stalled_after_seconds: how long messages may wait without any being settled before the route counts as stalled.

    Attributes:
        counts: outcomes of messages in this process, over restarts.
        restarts: how often the route has been started again.
        last_error: the latest failure's text; empty if there was none.
        last_error_at: monotonic seconds of it; 0 if there was none.
        canary: age and latency of the route's canaries in seconds, None before the first or without any, and how late one is.
        away: alias of the namespace that keeps the route from moving, and why; empty if there is none.
    """

    def __init__(self, stalled_after_seconds: float = 15.0) -> None:
        self.stalled_after_seconds = stalled_after_seconds
        self.counts = Counts()
        self.away = ("", "")
        self.canary: tuple[float | None, float | None, float] = (None, None, 0.0)
        self.restarts = 0
        self.last_error = ""
        self.last_error_at = 0.0
        self.retry_at = 0.0
        self._phase = Phase.PENDING
        self._detail = ""
        self._counts_before = Counts()
        self._last_moved_at = float("-inf")
        self._started_at = 0.0
        self._progress = RouteProgress()
        self._waiting: int | None = None
        self._oldest_age_seconds: float | None = None
        self._waiting_since = 0.0
        self._history: deque[tuple[float, int]] = deque()

    # ---- events

    def starting(self, now: float) -> None:
        """The route is being started."""
        self._phase, self._detail = Phase.STARTING, ""
        self._started_at = now
        self._counts_before = self.counts
        self._progress = RouteProgress()

    def counted(self, now: float, progress: RouteProgress) -> None:
        """The counts of a route that does not run; its phase stays."""
        counts = self._counts_before.plus(progress.counts)
        if counts.settled > self.counts.settled or counts.moved > self.counts.moved:
            self._last_moved_at = now
            self.away = ("", "")
        self.counts = counts

    def seen(self, now: float, progress: RouteProgress) -> None:
        """The progress of a running route."""
        self.counted(now, progress)
        counts, self._progress = self.counts, progress
        history = self._history
        history.append((now, counts.moved))
        while len(history) > 2 and history[1][0] <= now - RATE_WINDOW_SECONDS:
            history.popleft()
        if progress.ready and not (progress.paused_reason or progress.error):
            self.away = ("", "")
        if progress.error and self._phase is Phase.FAILED:
            return  # its text says when it starts again
        if self._phase is not Phase.DRAINING:
            self._phase, self._detail = self._judge(now)

    def backlog_seen(
        self, now: float, waiting: int, oldest_age_seconds: float | None, *, are_ready: bool = True
    ) -> None:
        """The backlog of the route's source, whether the route runs or not.

        Args:
            now: monotonic seconds.
            waiting: how many messages wait.
            oldest_age_seconds: of the first of them; None where it is not known.
            are_ready: whether the route gets all of them now.
        """
        if oldest_age_seconds is not None:
            self._waiting_since = now - oldest_age_seconds
        elif not (are_ready and self._waiting):
            self._waiting_since = now  # else since they were first seen
        self._waiting, self._oldest_age_seconds = waiting, oldest_age_seconds

    def backlog_unknown(self) -> None:
        """The backlog of the route's source is unknown, or not known any more."""
        self._waiting = self._oldest_age_seconds = None

    def failed(self, now: float, error: str, retry_seconds: float, away: str = "") -> None:
        """The route failed and will be retried; `away` is the alias of a namespace that the error is about."""
        self._phase = Phase.FAILED
        self.away = (away, error) if away else ("", "")
        self.last_error, self.last_error_at = error, now
        self.retry_at = now + retry_seconds
        self.restarts += 1
        self._history.clear()

    def claimed(self, holder: str) -> None:
        """Another run moves the task."""
        self._phase, self._detail = Phase.CLAIMED, holder
        self._history.clear()

    def pending(self, why: str, away: str = "") -> None:
        """The route may not start yet; `away` is the alias of the namespace that prevents it."""
        self._phase, self._detail = Phase.PENDING, why
        self.away = (away, why) if away else ("", "")

    def paused(self, since: str) -> None:
        """The operator has paused the route, and it has no messages in flight."""
        self._phase, self._detail = Phase.PAUSED, since
        self.away = ("", "")
        self._history.clear()

    def draining(self) -> None:
        """The route is draining."""
        self._phase, self._detail = Phase.DRAINING, ""

    def done(self) -> None:
        """All messages that it had to move are moved."""
        self._phase, self._detail = Phase.DONE, ""

    def stopped(self) -> None:
        """The route was stopped on request."""
        self._phase, self._detail = Phase.STOPPED, ""
        self._history.clear()

    # ---- report

    @property
    def phase(self) -> Phase:
        """The phase."""
        return self._phase

    def text(self, now: float) -> str:
        """The condition in a few words, e.g. ``failed, retry in 12 s``."""
        if self._phase is Phase.FAILED:
            return f"failed, retry in {math.ceil(max(0.0, self.retry_at - now))} s"
        if self._phase is Phase.CLAIMED:
            return f"claimed by {self._detail}" if self._detail else str(self._phase)
        if self._phase is Phase.PAUSED:
            return f"paused since {self._detail}"
        limit = self.limit
        if limit and self._phase in (Phase.MOVING, Phase.WAITING):
            return f"{self._phase}, at most {limit}"
        return f"{self._phase}: {self._detail}" if self._detail else str(self._phase)

    def is_well(self) -> bool:
        """Whether the route moves waiting messages, as far as is known; one that has failed since is well again only
        after it has moved a message, or when none waits.
        """
        if self._phase is Phase.STARTING:
            return not self.last_error or self.last_error_at <= self._last_moved_at
        return self._phase not in (Phase.PENDING, Phase.STALLED, Phase.FAILED, Phase.CLAIMED)

    @property
    def moved(self) -> int:
        """Messages that the target has acknowledged, over restarts."""
        return self.counts.moved

    @property
    def limit(self) -> str:
        """The rate that the operator has set and that applies now, as last seen; empty for none."""
        return self._progress.limit

    @property
    def note(self) -> str:
        """The note of its source for the operator, as last seen, though no message waits for it; empty for none."""
        return self._progress.note

    @property
    def spool(self) -> SpoolView | None:
        """The contents of its spools, as last seen; None if it has none."""
        return self._progress.spool

    @property
    def processes(self) -> tuple[int, ...]:
        """Ids of the processes that work for the route, as last seen."""
        return self._progress.processes

    @property
    def waiting(self) -> int | None:
        """Messages in the route's source, as last seen; None if unknown."""
        return self._waiting

    @property
    def oldest_age_seconds(self) -> float | None:
        """Age of the oldest waiting message, as last seen; None if unknown."""
        return self._oldest_age_seconds

    def rate_per_second(self, now: float) -> float:
        """Messages moved a second, over the last few seconds."""
        if len(self._history) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self._history[0], self._history[-1]
        if now - last_at >= RATE_WINDOW_SECONDS:
            return 0.0
        elapsed = max(last_at - first_at, now - first_at)
        return (last - first) / elapsed if elapsed > 0 else 0.0

    def has_moved_since_start(self) -> bool:
        """Whether this start of the route has moved anything."""
        return self.counts.settled > self._counts_before.settled

    def stuck_seconds(self, now: float) -> float:
        """How long messages have waited while none moved, for no known reason; 0 if there is one, or the target has messages: its time-outs apply."""
        is_explained = self._progress.paused_reason or self._progress.is_awaited
        if self._phase is not Phase.STALLED or is_explained or not self._waiting:
            return 0.0
        return self._idle_seconds(now)

    def _idle_seconds(self, now: float) -> float:
        """How long nothing has been settled though a message waited and the route ran."""
        return now - max(self._last_moved_at, self._started_at, self._waiting_since)

    def _canary_late_seconds(self, now: float) -> float:
        """How long ago the oldest overdue canary was sent; 0 if none is overdue."""
        has_begun = self._progress.ready and now - self._started_at > self.stalled_after_seconds
        late_seconds = self.canary[2]
        return late_seconds if has_begun and late_seconds > self._limited_seconds() else 0.0

    def _limited_seconds(self) -> float:
        """How long the operator's rate may explain that no message moves; infinite if it allows none."""
        rate = self._progress.limit_per_second
        return LIMIT_PERIODS / rate if rate else math.inf

    def _judge(self, now: float) -> tuple[Phase, str]:
        late_seconds = self._canary_late_seconds(now)
        if now - self._last_moved_at <= MOVING_SECONDS and (not late_seconds or (self._waiting or 0) > 1):
            return Phase.MOVING, ""
        if self._progress.paused_reason:
            return Phase.STALLED, self._progress.paused_reason
        if late_seconds:
            return Phase.STALLED, f"a canary that was sent {late_seconds:.0f} s ago has not arrived"
        waits = bool(self._waiting)
        idle_seconds = self._idle_seconds(now)
        if waits and idle_seconds >= self.stalled_after_seconds + self._limited_seconds():
            waited_seconds = now - self._waiting_since
            oldest = f", and a message waits for {waited_seconds:.0f} s" if waited_seconds > idle_seconds + 1 else ""
            awaited = "; its target has not answered" if self._progress.is_awaited else ""
            return Phase.STALLED, f"nothing moved for {idle_seconds:.0f} s{oldest}{awaited}"
        is_limited = self._limited_seconds() > 0
        if not self._progress.ready or (waits and not self.has_moved_since_start() and not is_limited):
            return Phase.STARTING, ""
        return Phase.WAITING, ""
