"""One Spark query that carries many routes, from its start to its end.

What it is: the query and its readers' control connection as one object: routes are added and removed while it runs, and it reports whether it
runs, why it ended, and what its readers report. It starts with its first route and is started once; after its end another object replaces
it. What it is not: the choice of the query for a route (`isthmus.replication.query.shared_run`), nor moving messages, which the workers do
(`isthmus.bridge`).

Invariants:
    I1. A route that was removed is no part of any later lease.
    I2. The query is stopped only after its lease has ended, or has not for LEASE_END_SECONDS: stopping it earlier leaves its
        locks to expire, and the next reader waits for them.
    I3. A query that has ended stays ended, and its failure text does not change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from isthmus.bridge.report import RouteReport, RouteState
from isthmus.bridge.route_spec import RouteSpec
from isthmus.replication.query.query_failure import WORKER_GONE, cause_of
from isthmus.replication.spark.gone import SparkGoneError, calling_spark

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["QueryControl", "SharedQuery"]

# The time for a lease to end before its query is stopped regardless.
LEASE_END_SECONDS = 10.0
# Reports are cached for this long: the supervisor asks once for each route in each cycle.
POLL_SECONDS = 0.1
# A query whose worker died ends within this time; a later end has another cause. A reader whose connection alone was cut is
# regarded as dead, and its query continues.
DEATH_SECONDS = 60.0
_STEP_SECONDS = 0.05
# The status text of a query from the start of a micro-batch to the commit of the sink (MicroBatchExecution).
_PROCESSING = "Processing new data"


class QueryControl(Protocol):
    """The driver's end of the connections to a query's readers (`isthmus.bridge.host.control.server`)."""

    def assign(self, routes: Sequence[RouteSpec]) -> None:
        """Carry these routes in the next lease."""
        ...

    def add(self, spec: RouteSpec) -> None:
        """Also carry this route from now on."""
        ...

    def remove(self, name: str, why: str) -> None:
        """Stop carrying the route."""
        ...

    def plan(self, name: str) -> None:
        """Send the current plan to the reader of the route."""
        ...

    def stop(self, why: str) -> None:
        """End every lease, and start no other."""
        ...

    def reports(self) -> Mapping[str, RouteReport]:
        """The last report on each route."""
        ...

    def busy(self) -> bool:
        """Whether a lease is running."""
        ...

    def processes(self) -> set[int]:
        """The processes that work for the query."""
        ...

    def ended_errors(self) -> Sequence[str]:
        """The errors with which leases ended."""
        ...


class SharedQuery:
    """A query and the routes that it carries.

    Args:
        name: name, unique in the run.
        control: the readers' control connection with that name.
        start: starts the Spark query.
        on_reports: called with the query whenever its reports were read again.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        control: QueryControl,
        start: Callable[[], StreamingQuery],
        on_reports: Callable[[SharedQuery, Mapping[str, RouteReport]], None] = lambda query, reports: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.control = control
        self._died_at = float("-inf")
        self._start = start
        self._on_reports = on_reports
        self._clock = clock
        self._query: StreamingQuery | None = None
        self._routes: set[str] = set()
        self._failure: str | None = None  # not None: the query has ended
        self._active_until = float("-inf")
        self._reports: tuple[float, Mapping[str, RouteReport]] = (float("-inf"), {})
        self._stop_lock = threading.Lock()

    @property
    def routes(self) -> frozenset[str]:
        """The routes that the query carries now."""
        return frozenset(self._routes)

    def worker_died(self) -> None:
        """One of its workers died."""
        self._died_at = self._clock()

    def carry(self, spec: RouteSpec) -> None:
        """Carry a route; the first route starts the query.

        Raises:
            SparkGoneError: Spark has ended.
        """
        if self._query is None:
            self.control.assign((spec,))
            with calling_spark():
                self._query = self._start()
        else:
            self.control.add(spec)
        self._routes.add(spec.name)

    def remove(self, name: str, why: str) -> None:
        """Request that the query finishes the in-flight messages of the route and then stops carrying it; does not wait."""
        if name in self._routes and self._failure is None:  # its routes at the end have to be known afterwards
            self._routes.discard(name)
            self.control.remove(name, why)

    def has_left(self, name: str) -> bool:
        """Whether no message of a removed route is in flight. Then the next reading of the reports includes all settled messages."""
        if self._failure is None and self.control.busy():
            report = self.control.reports().get(name)
            if report is None or report.state is not RouteState.ENDED:
                return False
        self._reports = (float("-inf"), self._reports[1])
        return True

    def is_active(self) -> bool:
        """Whether the query runs.

        Raises:
            SparkGoneError: Spark has ended.
        """
        now = self._clock()
        if self._failure is not None or self._query is None:
            return False
        if now >= self._active_until:
            with calling_spark():
                if not self._query.isActive:
                    error = self._query.exception()
                    ended = [text for text in self.control.ended_errors() if text]
                    cause = cause_of(str(error)) if error is not None else ended[-1] if ended else ""
                    self._failure = WORKER_GONE if self._clock() < self._died_at + DEATH_SECONDS else cause
                    self._reports = (float("-inf"), self._reports[1])  # the next reading includes all settled messages
                    return False
            self._active_until = now + POLL_SECONDS
        return True

    def has_ended(self) -> bool:
        """Whether the query was started and runs no more.

        Raises:
            SparkGoneError: Spark has ended.
        """
        return (self._query is not None or self._failure is not None) and not self.is_active()

    @property
    def failure(self) -> str:
        """Why the query ended; empty if it runs, or was stopped."""
        return self._failure or ""

    def reports(self) -> Mapping[str, RouteReport]:
        """The last report on each route."""
        now = self._clock()
        if now >= self._reports[0] + POLL_SECONDS:
            self._reports = (now, self.control.reports())
            self._on_reports(self, self._reports[1])
        return self._reports[1]

    def stop(self, why: str) -> None:
        """Stop it: first its lease, then the query; blocks for LEASE_END_SECONDS at most, plus Spark's own time."""
        with self._stop_lock:
            self.control.stop(why)
            if self._query is None:
                self._failure = self._failure or ""
                return
            # A query that ended with Java need not be stopped.
            with suppress(SparkGoneError), calling_spark():
                limit = self._clock() + LEASE_END_SECONDS
                while self._is_running() and self._clock() < limit:
                    time.sleep(_STEP_SECONDS)
                if self._failure is None:
                    self._failure = ""
                self._query.stop()

    def abandon(self, why: str) -> None:
        """It does not answer: it counts as failed immediately, and is stopped in the background."""
        if self._failure is None:
            self._failure = why
            threading.Thread(target=self.stop, args=(why,), name=f"stop-{self.name}", daemon=True).start()

    def _is_running(self) -> bool:
        if self._query is None or not self._query.isActive:
            return False
        status = self._query.status
        return self.control.busy() or status["isDataAvailable"] or status["message"] == _PROCESSING
