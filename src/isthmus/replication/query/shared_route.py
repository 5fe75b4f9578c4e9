"""One route of a shared query, as the supervisor watches, drains and stops it.

What it is: a route's view of the query that carries it, and its move from a query of its own back to the shared one
(`isthmus.replication.query.quarantine`). What it is not: the query, or the decision to start the route again.

Invariants:
    I1. Counts are those since this start of the route, over all queries that carried it since; none falls.
    I2. A route that moves to another query is opened there only after nothing of it is under way in the one before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from isthmus.bridge.lease.fence import CONFIRM_SECONDS
from isthmus.bridge.lease.report import UNCONFIRMED
from isthmus.bridge.report import RouteReport, RouteState
from isthmus.bridge.route_spec import RouteSpec
from isthmus.replication.query.shared_query import SharedQuery
from isthmus.replication.query.sighting import Sighting
from isthmus.replication.query.tally import NO_COUNTS, Counts
from isthmus.replication.spark.gone import SparkGoneError

__all__ = ["SharedRoute"]

# How long a route may take to leave its query, before the query counts as one that does not answer.
LEAVE_SECONDS = 20.0
_STEP_SECONDS = 0.05


class SharedRoute:
    """A started route.

    Args:
        spec: what it moves.
        query: what carries it.
        choose: the query that shall carry it now.
        told: makes what its reader reports fit for an operator.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        spec: RouteSpec,
        query: SharedQuery,
        choose: Callable[[], SharedQuery],
        told: Callable[[str], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self._choose = choose
        self._told = told
        self._clock = clock
        self._leave_by = 0.0  # not 0: it leaves its query for another
        self._error = ""
        self._confirm_by = clock() + CONFIRM_SECONDS
        self._before = self._base = NO_COUNTS
        self._query = query
        self._enter(query)

    def is_active(self) -> bool:
        """Whether it runs.

        Raises:
            SparkGoneError: Spark has ended.
        """
        if self._error or not self._query.is_active():
            return False
        if self._leave_by:
            return self._move()
        return not self._is_done()

    def failure(self) -> str:
        """Why it ended; empty where it did not fail."""
        return self._error or self._told(self._query.failure)

    def sighting(self) -> Sighting:
        """What its reader reported last."""
        report = self._report()
        # A query whose lease has failed ends in a moment, and tells why.
        retries = report.state is RouteState.RETRYING and self._query.control.busy()
        error = self._told(report.error) if retries else ""
        return Sighting(
            ready=report.state not in (RouteState.OPENING, RouteState.RETRYING) and report.paused != UNCONFIRMED,
            counts=self._count(report),
            held=self._held(report),
            note=self._told(report.note) if report.note else "",
            processes=tuple(sorted(self._query.control.processes())),
            error=error,
            retry_in_seconds=report.retry_in_seconds if error else 0.0,
            limit=report.limit,
            limit_per_second=report.limit_per_second if report.limit else math.inf,
        )

    def drain(self) -> None:
        """Asks its reader to finish what it has, and no other to take it up."""
        self._query.remove(self.spec.name, "the run ends")

    def drained(self) -> bool:
        """Whether nothing of it is under way."""
        return self._query.has_left(self.spec.name)

    def stop(self) -> None:
        """Ends it; blocks for LEAVE_SECONDS at most. A query that does not let it go by then is stopped."""
        self._query.remove(self.spec.name, "the route ends")
        limit = self._clock() + LEAVE_SECONDS
        while self._query.is_active() and not self._query.has_left(self.spec.name):
            if self._clock() >= limit:
                self._query.abandon(f"its reader has not ended route {self.spec.name} within {LEAVE_SECONDS:g} s")
                return
            time.sleep(_STEP_SECONDS)

    def relocate(self) -> None:
        """Begins to leave its query for the one that shall carry it now."""
        if not self._leave_by:
            self._leave_by = self._clock() + LEAVE_SECONDS
            self._query.remove(self.spec.name, "the route moves to another query")

    def _move(self) -> bool:
        """Goes on with `relocate`; whether the route runs."""
        if self._query.has_left(self.spec.name):
            self._leave_by = 0.0
            try:
                self._enter(self._choose())
            except SparkGoneError:
                raise
            except Exception as error:  # noqa: BLE001 - the supervisor tells it and starts the route again
                self._error = f"it cannot move to another query: {error}"
        elif self._clock() >= self._leave_by:
            self._query.abandon(f"its reader has not ended route {self.spec.name} within {LEAVE_SECONDS:g} s")
            return False
        return not self._error

    def _enter(self, query: SharedQuery) -> None:
        """Be carried by a query from now on; what became of messages before stays counted."""
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

    def _held(self, report: RouteReport) -> str:
        if report.state is RouteState.PAUSED and report.paused == UNCONFIRMED:
            # At first that is so for as long as the driver takes to answer.
            return f"{self.spec.source.alias}: {UNCONFIRMED}" if self._clock() >= self._confirm_by else ""
        if report.state is RouteState.PAUSED and report.paused:
            return self._told(report.paused)
        if report.state is RouteState.RUNNING and report.blocked_by:
            return f"{self.spec.source.alias}: another receiver holds message {report.blocked_by}, and what follows waits for it"
        return ""


def _counts_of(report: RouteReport) -> Counts:
    return Counts(*(getattr(report, name) for name in Counts._fields))
