"""The progress of a route, running or not."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from isthmus.errors import IsthmusError
from isthmus.replication.query.tally import NO_COUNTS, Counts

__all__ = ["Backlog", "Seldom", "RouteProgress", "SpoolView"]

log = logging.getLogger(__name__)

VIEW_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class SpoolView:
    """The content of a route's spools: settled at the source, and not at the target yet.

    Attributes:
        waiting: waiting messages.
        size_bytes: size of the spools' files.
        oldest_ms: approximate wall time at which the first of them was written; 0 if there are none.
        suppressed: messages that a step `deduplicate` has not passed on since the spool was created.
        refused: messages that were set aside in the spool because the target or a step refused them.
        in_windows: messages in windows of a step `aggregate` that have not closed; they wait in no spool.
    """

    waiting: int = 0
    size_bytes: int = 0
    oldest_ms: int = 0
    suppressed: int = 0
    refused: int = 0
    in_windows: int = 0


@dataclass(frozen=True, slots=True)
class RouteProgress:
    """The report of a running route.

    Attributes:
        ready: whether its source has started receiving.
        counts: counts of messages since the route started in this process.
        paused_reason: why the route receives nothing at present, e.g. an unavailable target; empty if it receives.
        is_awaited: whether its target has messages, and has not given their outcomes; how long it may take is decided where they are sent.
        processes: ids of the processes that work for the route now, as far as known; routes that share a query share them.
        note: information of its source for the operator that does not delay messages; empty for none.
        error: why it failed; empty if it has not. It restarts automatically.
        retry_in_seconds: seconds until the restart, with `error`.
        limit: the operator's rate limit that applies now, e.g. `100/s until 18:00 UTC`; empty for none.
        limit_per_second: the same as messages a second; infinite for none.
        spool: content of its spools; None: it has none.
    """

    ready: bool = True
    counts: Counts = NO_COUNTS
    paused_reason: str = ""
    is_awaited: bool = False
    note: str = ""
    processes: tuple[int, ...] = ()
    error: str = ""
    retry_in_seconds: float = 0.0
    limit: str = ""
    limit_per_second: float = math.inf
    spool: SpoolView | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """The messages before a route, by browsing its source.

    Attributes:
        waiting: messages there, including in-flight ones; an upper bound, since messages that are deferred, or were
            received out of order, are also counted.
        oldest_enqueued_ms: wall time at which the first of them entered; 0 if none waits, or unknown.
        are_ready: whether the route gets all of them now, as far as the system reports.
    """

    waiting: int = 0
    oldest_enqueued_ms: int = 0
    are_ready: bool = True

    def age_seconds(self, wall_ms: int) -> float | None:
        """Age of the first of them; 0 if none waits, None if unknown."""
        if self.waiting and not self.oldest_enqueued_ms:
            return None
        return max(0, wall_ms - self.oldest_enqueued_ms) / 1000 if self.waiting else 0.0


class Seldom:
    """Reads spools at most every VIEW_SECONDS. Where they cannot be read, after they could before, the last view stays, and that is logged once: the
    route need not be started again for what is only displayed.

    Args:
        read: reads the spools.
        clock: monotonic seconds.
    """

    def __init__(self, read: Callable[[], SpoolView], clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._at = -math.inf
        self._found = SpoolView()
        self._fault = ""

    def __call__(self) -> SpoolView:
        now = self._clock()
        if now - self._at < VIEW_SECONDS:
            return self._found
        fault = ""
        try:
            self._found = self._read()
        except (IsthmusError, OSError) as error:
            if self._at == -math.inf:
                raise
            fault = str(error)
            if fault != self._fault:
                log.warning("a spool cannot be looked at: %s", fault)
        self._at, self._fault = now, fault
        return self._found
