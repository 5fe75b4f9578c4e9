"""One Spark query that carries many routes, from its start to its end.

What it is: the query and its readers' control connection as one object: routes are added and removed while it runs, and it says
whether it runs, why it does not, and what its readers report. It starts with its first route and is started once; after its end
another object takes its place. What it is not: the choice of the query for a route (`isthmus.replication.query.shared_run`), nor the
moving, which happens in the workers (`isthmus.bridge`).

Invariants:
    I1. A route that was removed is no part of any later lease.
    I2. The query is stopped only after its lease has ended, or has not for LEASE_END_SECONDS: stopping it earlier leaves its
        locks to expire, and whoever comes next waits for them.
    I3. A query that has ended stays ended, and its failure text stays the same.
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

# How long a lease may take to end before its query is stopped all the same.
LEASE_END_SECONDS = 10.0
# What was looked up is good for so long: a round of the supervisor looks once for each route.
LOOK_SECONDS = 0.1
# A query whose worker died ends within so long; what ends it later is something else. A reader whose connection alone was cut is
# taken for dead, and its query goes on.
DEATH_SECONDS = 60.0
_STEP_SECONDS = 0.05
# What a query's status says from the begin of a micro-batch to the commit of the sink (MicroBatchExecution).
_PROCESSING = "Processing new data"


class QueryControl(Protocol):
    """The driver's end of the connections to a query's readers (`isthmus.bridge.host.control.server`)."""

    def assign(self, routes: Sequence[RouteSpec]) -> None:
        """What the next lease carries."""
        ...

    def add(self, spec: RouteSpec) -> None:
        """Carry this route, too, from now on."""
        ...

    def remove(self, name: str, why: str) -> None:
        """Carry the route no more."""
        ...

    def plan(self, name: str) -> None:
        """Tell the reader of the route its current plan."""
        ...

    def stop(self, why: str) -> None:
        """End every lease; start no other."""
        ...

    def reports(self) -> Mapping[str, RouteReport]:
        """What was reported of each route."""
        ...

    def busy(self) -> bool:
        """Whether a lease is under way."""
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
        name: unique in the run.
        control: the readers' control connection under that name.
        start: starts the Spark query.
        on_reports: called with the query whenever its reports were looked up again.
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
        self._failure: str | None = None  # not None: it has ended
        self._active_until = float("-inf")
        self._reports: tuple[float, Mapping[str, RouteReport]] = (float("-inf"), {})
        self._stop_lock = threading.Lock()

    @property
    def routes(self) -> frozenset[str]:
        """The routes that it carries now."""
        return frozenset(self._routes)

    def worker_died(self) -> None:
        """One of its workers died."""
        self._died_at = self._clock()

    def carry(self, spec: RouteSpec) -> None:
        """Carry a route; with the first one the query starts.

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
        """Ask the query to finish what the route has under way and carry it no more; does not wait."""
        if name in self._routes and self._failure is None:  # what it carried when it ended has to be known afterwards
            self._routes.discard(name)
            self.control.remove(name, why)

    def has_left(self, name: str) -> bool:
        """Whether nothing of a removed route is under way. Then the next look at the reports tells all that was settled."""
        if self._failure is None and self.control.busy():
            report = self.control.reports().get(name)
            if report is None or report.state is not RouteState.ENDED:
                return False
        self._reports = (float("-inf"), self._reports[1])
        return True

    def is_active(self) -> bool:
        """Whether it runs.

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
                    told = cause_of(str(error)) if error is not None else ended[-1] if ended else ""
                    self._failure = WORKER_GONE if self._clock() < self._died_at + DEATH_SECONDS else told
                    self._reports = (float("-inf"), self._reports[1])  # the next look tells all that was settled
                    return False
            self._active_until = now + LOOK_SECONDS
        return True

    def has_ended(self) -> bool:
        """Whether it was started and runs no more.

        Raises:
            SparkGoneError: Spark has ended.
        """
        return (self._query is not None or self._failure is not None) and not self.is_active()

    @property
    def failure(self) -> str:
        """Why it ended; empty where it runs, or was asked to end."""
        return self._failure or ""

    def reports(self) -> Mapping[str, RouteReport]:
        """What was reported of each route."""
        now = self._clock()
        if now >= self._reports[0] + LOOK_SECONDS:
            self._reports = (now, self.control.reports())
            self._on_reports(self, self._reports[1])
        return self._reports[1]

    def stop(self, why: str) -> None:
        """End it: first its lease, then the query; blocks for LEASE_END_SECONDS at most, beside what Spark takes."""
        with self._stop_lock:
            self.control.stop(why)
            if self._query is None:
                self._failure = self._failure or ""
                return
            # What has ended with Java need not be stopped.
            with suppress(SparkGoneError), calling_spark():
                limit = self._clock() + LEASE_END_SECONDS
                while self._is_under_way() and self._clock() < limit:
                    time.sleep(_STEP_SECONDS)
                if self._failure is None:
                    self._failure = ""
                self._query.stop()

    def abandon(self, why: str) -> None:
        """It does not answer: it counts as failed at once, and is stopped in the background."""
        if self._failure is None:
            self._failure = why
            threading.Thread(target=self.stop, args=(why,), name=f"stop-{self.name}", daemon=True).start()

    def _is_under_way(self) -> bool:
        if self._query is None or not self._query.isActive:
            return False
        status = self._query.status
        return self.control.busy() or status["isDataAvailable"] or status["message"] == _PROCESSING
