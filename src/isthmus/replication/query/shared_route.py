"""One route of a shared query, as the supervisor watches, drains and stops it.

What it is: a route's view of the query that carries it, and its move from quarantine back to the shared query
(`isthmus.replication.query.quarantine`). What it is not: the query, or the decision to start the route again.

Invariants:
    I1. Counts are since this start of the route, over all queries that carried it since then; no count decreases.
    I2. A route that moves to another query is opened there only after none of its messages is in flight in the previous one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from isthmus.bridge.lease.fence import CONFIRM_SECONDS
from isthmus.bridge.lease.report import UNCONFIRMED
from isthmus.bridge.report import RouteReport, RouteState
from isthmus.bridge.route_spec import RouteSpec
from isthmus.replication.query.route_progress import RouteProgress
from isthmus.replication.query.shared_query import SharedQuery
from isthmus.replication.query.tally import NO_COUNTS, Counts
from isthmus.replication.spark.gone import SparkGoneError

__all__ = ["SharedRoute"]

# The time for a route to leave its query before the query counts as not answering.
LEAVE_SECONDS = 20.0
_STEP_SECONDS = 0.05


class SharedRoute:
    """A started route.

    Args:
        spec: specification of the route.
        query: the query that carries it.
        choose: returns the query that has to carry it now.
        readable: converts its reader's error text for operators.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        spec: RouteSpec,
        query: SharedQuery,
        choose: Callable[[], SharedQuery],
        readable: Callable[[str], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self._choose = choose
        self._readable = readable
        self._clock = clock
        self._leave_by = 0.0  # not 0: it is moving to another query
        self._error = ""
        self._confirm_by = clock() + CONFIRM_SECONDS
        self._before = self._base = NO_COUNTS
        self._query = query
        self._enter(query)

    def is_active(self) -> bool:
        """Whether the route runs.

        Raises:
            SparkGoneError: Spark has ended.
        """
        if self._error or not self._query.is_active():
            return False
        if self._leave_by:
            return self._move()
        return not self._is_done()

    def failure(self) -> str:
        """Why the route ended; empty if it did not fail."""
        return self._error or self._readable(self._query.failure)

    def progress(self) -> RouteProgress:
        """The last report of its reader."""
        report = self._report()
        # A query with a failed lease ends soon, and reports the cause.
        retries = report.state is RouteState.RETRYING and self._query.control.busy()
        error = self._readable(report.error) if retries else ""
        return RouteProgress(
            ready=report.state not in (RouteState.OPENING, RouteState.RETRYING) and report.paused != UNCONFIRMED,
            counts=self._count(report),
            paused_reason=self._paused_reason(report),
            is_awaited=report.is_awaited,
            note=self._readable(report.note) if report.note else "",
            processes=tuple(sorted(self._query.control.processes())),
            error=error,
            retry_in_seconds=report.retry_in_seconds if error else 0.0,
            limit=report.limit,
            limit_per_second=report.limit_per_second if report.limit else math.inf,
        )

    def drain(self) -> None:
        """Request that its reader finishes the messages that it has, and that no other reader takes over."""
        self._query.remove(self.spec.name, "the run ends")

    def drained(self) -> bool:
        """Whether none of its messages is in flight."""
        return self._query.has_left(self.spec.name)

    def stop(self) -> None:
        """Stops the route; blocks for LEAVE_SECONDS at most. A query that does not release it by then is stopped."""
        self._query.remove(self.spec.name, "the route ends")
        limit = self._clock() + LEAVE_SECONDS
        while self._query.is_active() and not self._query.has_left(self.spec.name):
            if self._clock() >= limit:
                self._query.abandon(f"its reader has not ended route {self.spec.name} within {LEAVE_SECONDS:g} s")
                return
            time.sleep(_STEP_SECONDS)

    def relocate(self) -> None:
        """Start moving to the query that has to carry it now."""
        if not self._leave_by:
            self._leave_by = self._clock() + LEAVE_SECONDS
            self._query.remove(self.spec.name, "the route moves to another query")

    def _move(self) -> bool:
        """Continue `relocate`. Returns whether the route runs."""
        if self._query.has_left(self.spec.name):
            self._leave_by = 0.0
            try:
                self._enter(self._choose())
            except SparkGoneError:
                raise
            except Exception as error:  # noqa: BLE001 - the supervisor reports it and starts the route again
                self._error = f"it cannot move to another query: {error}"
        elif self._clock() >= self._leave_by:
            self._query.abandon(f"its reader has not ended route {self.spec.name} within {LEAVE_SECONDS:g} s")
            return False
        return not self._error

    def _enter(self, query: SharedQuery) -> None:
        """Be carried by a query from now on; earlier counts are kept."""
        before = self._count(self._report()) if query is not self._query else self._before
        base = _counts_of(query.control.reports().get(self.spec.name, RouteReport()))
        query.carry(self.spec)
        self._query, self._before, self._base = query, before, base

    def _report(self) -> RouteReport:
        return self._query.reports().get(self.spec.name, RouteReport())

    def _count(self, report: RouteReport) -> Counts:
        since = (now - then for now, then in zip(_counts_of(report), self._base, strict=True))
        return self._before.plus(Counts(*since))

    def _is_done(self) -> bool:
        if not self.spec.only_present:
            return False
        report = self._report()
        return report.state is RouteState.ENDED and report.is_exhausted

    def _paused_reason(self, report: RouteReport) -> str:
        if report.state is RouteState.PAUSED and report.paused == UNCONFIRMED:
            # At first, this also holds for as long as the driver takes to answer.
            return f"{self.spec.source.alias}: {UNCONFIRMED}" if self._clock() >= self._confirm_by else ""
        if report.state is RouteState.PAUSED and report.paused:
            return self._readable(report.paused)
        if report.state is RouteState.RUNNING and report.blocked_by:
            return f"{self.spec.source.alias}: another receiver has locked message {report.blocked_by}, and later messages wait for it"
        return ""


def _counts_of(report: RouteReport) -> Counts:
    return Counts(*(getattr(report, name) for name in Counts._fields))
