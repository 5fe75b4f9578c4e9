"""All routes of a run, carried by as few Spark queries as there are chains of custom steps.

What it is: it chooses the query for each route, starts a query if none runs, and keeps the record of deaths
(`isthmus.replication.query.quarantine`) with the readers' reports. What it is not: when and how often to start a route, which the
supervisor decides.

    one query for each chain of steps   "routes-1", and after its end "routes-2" …, with one checkpoint folder, "routes"
    one for each route in quarantine    "alone-<route>-1" …

Invariants:
    I1. After the query of a route has ended, the first of its routes to start again starts another; the others join it.
    I2. A route is carried by one query at a time.
    I3. Reports from before a death are processed before the death.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.report import RouteReport
from isthmus.bridge.route_spec import RouteSpec
from isthmus.replication.query.quarantine import Quarantine
from isthmus.replication.query.shared_query import QueryControl, SharedQuery
from isthmus.replication.query.shared_route import SharedRoute

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Controls", "Group", "SharedRun", "StartQuery"]

log = logging.getLogger(__name__)


class Group(NamedTuple):
    """The group of a query: the routes of one chain of steps, or one of them alone."""

    steps: tuple[str, ...] = ()
    alone: str = ""

    @property
    def name(self) -> str:
        """The name of the checkpoint folder."""
        chain = "-" + hashlib.sha256("\n".join(self.steps).encode()).hexdigest()[:8] if self.steps else ""
        return f"alone{chain}-{self.alone}" if self.alone else f"routes{chain}"


class Controls(Protocol):
    """The control port of a run (`isthmus.bridge.host.control.server.ControlServer`)."""

    def query(self, name: str) -> QueryControl:
        """The control of one query."""
        ...

    def close(self) -> None:
        """Close it; blocks for a few seconds at most."""
        ...


StartQuery = Callable[[Group, str], "StreamingQuery"]
"""Starts the Spark query of a group under a name."""


class SharedRun:
    """The queries of a run.

    Args:
        controls: opens the control port, given two callbacks: the plan of a route, and the report of a death.
        start_query: starts a group's Spark query.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        controls: Callable[[Callable[[str], Plan], Callable[[str, Mapping[str, RouteReport]], None]], Controls],
        start_query: StartQuery,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controls = controls(self._plan_of, self._on_death)
        self._start_query = start_query
        self._clock = clock
        self._quarantine = Quarantine()
        self._lock = threading.RLock()  # guards the records and the queries: the control port's thread reports deaths
        self._queries: dict[Group, SharedQuery] = {}
        self._starts: Counter[str] = Counter()
        self._carried: dict[str, dict[str, int]] = {}  # by query: its routes, with their processed settled counts
        self._routes: dict[str, SharedRoute] = {}
        self._plans: dict[str, Plan] = {}  # as last sent to readers
        self._stoppers: list[threading.Thread] = []

    def start(self, spec: RouteSpec, readable: Callable[[str], str] = str) -> SharedRoute:
        """Start a route.

        Args:
            spec: the route.
            readable: converts its reader's error text for operators.

        Raises:
            SparkGoneError: Spark has ended.
            IsthmusError: a step is not found, or an option is invalid.
        """
        route = SharedRoute(spec, self._choose(spec), lambda: self._choose(spec), readable, self._clock)
        self._routes[spec.name] = route
        return route

    def close(self) -> None:
        """Stops every running query after its lease has ended, all concurrently; then the control port."""
        for query in self._queries.values():
            self._stop(query, "the run ends")
        for thread in self._stoppers:
            thread.join()
        self._controls.close()

    def _stop(self, query: SharedQuery, why: str) -> None:
        thread = threading.Thread(target=query.stop, args=(why,), name=f"stop-{query.name}", daemon=True)
        thread.start()
        self._stoppers.append(thread)

    def _choose(self, spec: RouteSpec) -> SharedQuery:
        """The query that has to carry a route; a new one if that of its group has ended."""
        with self._lock:
            group = Group(spec.steps, spec.name if self._quarantine.is_alone(spec.name) else "")
            own = None if group.alone else self._queries.pop(Group(spec.steps, spec.name), None)
        if own is not None:
            self._stop(own, "its route is carried with the others again")
        query = self._queries.get(group)
        if query is None or query.has_ended():
            if query is not None:
                query.control.stop("the query has ended")
            self._starts[group.name] += 1
            name = f"{group.name}-{self._starts[group.name]}"
            query = SharedQuery(
                name,
                self._controls.query(name),
                lambda: self._start_query(group, name),
                self._on_reports,
                self._clock,
            )
            with self._lock:
                self._queries[group] = query
        return query

    # ---- deaths

    def _plan_of(self, name: str) -> Plan:
        """The current plan for a reader of the route."""
        with self._lock:
            self._plans[name] = self._quarantine.plan(name)
            return self._plans[name]

    def _on_reports(self, query: SharedQuery, reports: Mapping[str, RouteReport]) -> None:
        """Process settled messages; send readers the resulting plans, and move cleared routes."""
        with self._lock:
            self._account(query.name, reports, query.routes)
            cleared = [
                name
                for group, each in self._queries.items()
                for name in each.routes
                if each is query and group.alone and not self._quarantine.is_alone(name)
            ]
        self._send_plans(query)
        for name in cleared:
            log.warning("route %s: messages moved without a death; it joins the other routes again", name)
            self._routes[name].relocate()

    def _send_plans(self, query: SharedQuery) -> None:
        for name in query.routes:
            with self._lock:
                plan, last_sent = self._quarantine.plan(name), self._plans.get(name, Plan())
                has_changed = plan._replace(span=0) != last_sent._replace(span=0)  # the reader counts the span itself
            if has_changed:
                query.control.plan(name)

    def _account(self, query: str, reports: Mapping[str, RouteReport], routes: frozenset[str]) -> None:
        accounted = self._carried.setdefault(query, {})
        for name, report in reports.items():
            if name not in routes and name not in accounted:
                continue
            set_aside = 0
            for position in report.set_aside:
                deaths = self._quarantine.set_aside(name, position)
                if deaths:
                    set_aside += 1
                    log.warning("route %s: message %d was dead-lettered: it killed %d consecutive workers while it alone was in "
                                "flight", name, position, deaths)  # fmt: skip
            count = report.settled - accounted.get(name, 0)
            accounted[name] = report.settled
            if name in routes:
                self._quarantine.settled(name, count, report.head, report.outstanding, set_aside=set_aside)

    def _on_death(self, name: str, reports: Mapping[str, RouteReport]) -> None:
        """A worker of a query died; called by the control port's thread."""
        with self._lock:
            query = next((each for each in self._queries.values() if each.name == name), None)
            if query is None:
                return
            routes = query.routes
            query.worker_died()
            self._account(name, reports, routes)
            carried = {each: report for each, report in reports.items() if each in routes}
            is_shared = len(routes) > 1
            quarantined = self._quarantine.died(carried, is_shared=is_shared)
            plans = {each: self._quarantine.plan(each) for each in carried}
        at_work = {each: report for each, report in carried.items() if report.outstanding}
        log.warning("a worker of query %s died; routes with messages in flight: %s", name, ", ".join(at_work) or "none")
        for each in quarantined:
            log.warning("route %s: the same message, %d, was the first one in flight at two consecutive deaths; the route gets a "
                        "query of its own until that message has moved", each, at_work[each].head)  # fmt: skip
        for each, plan in plans.items():
            if plan.window and not is_shared:
                log.warning("route %s: no more than %d messages are in flight from now on, until %d have moved",
                            each, plan.window, plan.span)  # fmt: skip
