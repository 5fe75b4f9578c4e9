"""The routes of one reader.

What it is: the lease machine and the source of each route, the pools that the sources share, and the deadlines. Events of pools, of
the sink and of the driver go to the machines of the routes that they concern; effects are carried out here. What it is not: the loop,
or the connections to sink and driver (`reader`).

Invariants:
    I1. The cost of an iteration grows with the routes that have work, not with the number of routes.
    I2. An exception of a source ends the opening of its own route, and nothing else; one of the connections of a kind, the openings
        of the routes with a source of that kind.
    I3. Rows wait in `rows` until the frames that must precede them have been written.
    I4. A route is reported as ended, and is opened again here, only after its source has left its system: the next reader of the
        source then reads nothing that was settled.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from isthmus.bridge.deadlines import Deadlines
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.flow.byte_budget import ByteBudget
from isthmus.bridge.frame import Kind, pack_json, pack_numbers, unpack_flushed, unpack_json, unpack_numbers, unpack_runs
from isthmus.bridge.host.guarded_pools import GuardedPools
from isthmus.bridge.host.reader.claim_book import ClaimBook
from isthmus.bridge.host.reader.item import Rows
from isthmus.bridge.host.reader.route import CarriedRoute
from isthmus.bridge.host.reader.sink_line import SinkLine
from isthmus.bridge.lease import event as e
from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.lease.lease import RouteLease
from isthmus.bridge.port import Arrived, Connector, SourcePool
from isthmus.bridge.report import RouteReport
from isthmus.bridge.route_spec import RouteSpec
from isthmus.errors import IsthmusError

__all__ = ["ReaderRoutes"]

_LOG = logging.getLogger(__name__)
# A change of a source's clock by so much is sent to the sink.
CLOCK_STEP_MS = 2
# How often a source that is due again at once is polled.
SHORTEST_WAIT_SECONDS = 0.001


@dataclass(slots=True)
class _Pending:
    """The frames and reports that an iteration has to send."""

    rows: list[Rows] = field(default_factory=list)
    changed: dict[CarriedRoute, None] = field(default_factory=dict)
    urgent: bool = False


class ReaderRoutes:
    """The routes of one lease.

    Args:
        connectors: returns the connector of a kind.
        sink: the connection to the sink.
        claims: the fences of the routes.

    Attributes:
        has_steps: whether a route has custom steps, so that flush rows have to be noted.
    """

    def __init__(self, connectors: Callable[[str], Connector], sink: SinkLine, claims: ClaimBook) -> None:
        self.has_steps = False
        self._connectors = connectors
        self._sink = sink
        self._claims = claims
        self._budget = ByteBudget()
        self._pools: GuardedPools[SourcePool] = GuardedPools(lambda kind: connectors(kind).sources())
        self._by_name: dict[str, CarriedRoute] = {}
        self._by_handle: dict[int, CarriedRoute] = {}
        self._handles = itertools.count(1)
        self._timers: Deadlines[CarriedRoute] = Deadlines()
        self._pending = _Pending()
        self._flushes: deque[tuple[int, dict[int, int]]] = deque()

    # ---- adding and removing routes

    def add(self, spec: RouteSpec, plan: Plan, now: float) -> None:
        """Adds a route; one of the same name with other settings ends first."""
        before = self._by_name.get(spec.name)
        if before is not None and not before.has_ended:
            if before.is_ending or before.spec != spec:
                before.next_spec = spec, plan
                self._end(before, now)
            else:
                self._feed(before, e.Planned(plan), now)
            return
        counts = None
        if before is not None:
            counts = before.lease.messages.counts
            self._timers.forget(before)
            self._pending.changed.pop(before, None)
        fence = self._claims.fence(spec.claim, now)
        offset = time.time() - time.monotonic()
        lease = RouteLease(spec, fence, self._budget, lambda: next(self._handles), counts, offset)
        route = self._by_name[spec.name] = CarriedRoute(spec, lease)
        self.has_steps = self.has_steps or bool(spec.steps)
        if plan.window or plan.set_aside:
            self._feed(route, e.Planned(plan), now)
        self._feed(route, e.Begin(), now)

    def remove(self, name: str, now: float) -> None:
        """Ends a route in order."""
        route = self._by_name.get(name)
        if route is not None:
            route.next_spec = None
            self._end(route, now)
            self._pending.changed[route] = None

    def plan(self, name: str, plan: Plan, now: float) -> None:
        """Takes the driver's plan for a route."""
        route = self._by_name.get(name)
        if route is not None:
            self._feed(route, e.Planned(plan), now)

    def end_all(self, now: float) -> None:
        """Ends all routes in order."""
        for route in list(self._by_name.values()):
            route.next_spec = None
            self._end(route, now)

    def abort_all(self, text: str, now: float) -> None:
        """Releases everything."""
        for route in list(self._by_name.values()):
            route.next_spec = None
            self._feed(route, e.Abort(text), now)
        self._pending.rows.clear()

    def has_ended(self) -> bool:
        """Whether all routes have ended."""
        return all(route.has_ended for route in self._by_name.values())

    @property
    def is_empty(self) -> bool:
        """Whether there never was a route."""
        return not self._by_name

    def outstanding(self) -> list[str]:
        """The names of the routes that have something outstanding."""
        return [name for name, route in self._by_name.items() if route.lease.outstanding]

    def _end(self, route: CarriedRoute, now: float) -> None:
        route.is_ending = True
        self._feed(route, e.End(), now)

    # ---- the loop

    def descriptors(self) -> list[tuple[int, int]]:
        """What to poll."""
        return self._pools.descriptors()

    def deadline(self, now: float) -> float:
        """When something is due even if no descriptor is ready."""
        return min(self._timers.next(), self._pools.deadline(now))

    def service(self, ready: Mapping[int, int], now: float) -> None:
        """Serves the pools, and the routes that have events or are due."""
        for key in self._pools.service(ready, now):
            route = self._by_handle.get(key)
            if route is not None:
                self._poll(route, now)
        for kind, error in self._pools.take_faults().items():
            for route in list(self._by_handle.values()):
                if route.spec.source.kind == kind:
                    self._feed(route, _fault(error), now)
            self._pools.close_faulty()
        for route in self._timers.due(now):
            self._poll(route, now)
            self._feed(route, e.Tick(), now)

    def flush(self) -> None:
        """Writes the bytes queued for sources."""
        self._pools.flush()

    def take_rows(self) -> list[Rows]:
        """The rows to hand on now."""
        rows, self._pending.rows = self._pending.rows, []
        return rows

    @property
    def is_urgent(self) -> bool:
        """Whether a report has to reach the driver before anything is handed on."""
        return self._pending.urgent

    @property
    def has_changed(self) -> bool:
        """Whether there is something new to report."""
        return bool(self._pending.changed)

    def take_reports(self, now: float) -> dict[str, RouteReport]:
        """The reports of the routes that have changed."""
        changed, self._pending.changed = self._pending.changed, {}
        self._pending.urgent = False
        return {route.spec.name: route.report(now) for route in changed}

    def close(self) -> None:
        """Closes all pools."""
        self._pools.close(in_good_order=False)

    # ---- from the sink and the driver

    def note_flush(self, number: int, rows: Mapping[int, int]) -> None:
        """A flush row was sent after so many rows of each handle; called by Spark's thread."""
        if self.has_steps:
            self._flushes.append((number, dict(rows)))

    def claims_opened(self, claims: AbstractSet[str], now: float) -> None:
        """The driver has confirmed claims that were not confirmed before."""
        if claims:
            for route in [route for route in self._by_name.values() if route.spec.claim in claims]:
                self._feed(route, e.Tick(), now)

    def on_frame(self, kind: int, payload: bytes, now: float) -> None:
        """Takes a frame of the sink that concerns routes."""
        if kind == Kind.SETTLE:
            runs: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
            for handle, first, last in unpack_runs(payload):
                runs[handle].append((first, last))
            for handle, of_handle in runs.items():
                self._feed_handle(handle, e.Completed(of_handle), now)
        elif kind == Kind.DISPOSE:
            for item in unpack_json(payload):
                disposition = Disposition(item["disposition"], item.get("reason") or "", item.get("description") or "")
                self._feed_handle(item["handle"], e.Disposed(item["first"], item["last"], disposition), now)
        elif kind == Kind.READY:
            self._feed_handle(unpack_numbers(payload)[0], e.TargetReady(), now)
        elif kind == Kind.PAUSE:
            fields = unpack_json(payload)
            self._feed_handle(fields["handle"], e.TargetPaused(str(fields.get("text") or "")), now)
        elif kind == Kind.RESUME:
            self._feed_handle(unpack_numbers(payload)[0], e.TargetResumed(), now)
        elif kind == Kind.FAILED:
            fields = unpack_json(payload)
            failed = e.TargetFailed(str(fields.get("error") or "the target failed"), bool(fields.get("is_fatal")))
            self._feed_handle(fields["handle"], failed, now)
        elif kind == Kind.FLUSHED:
            self._flushed(payload, now)
        elif kind == Kind.STATS:
            for handle, counts in unpack_json(payload).get("routes", {}).items():
                resent, blocked_by = int(counts.get("resent", 0)), str(counts.get("blocked_by") or "")
                statistics = e.Statistics(resent, blocked_by, bool(counts.get("is_awaited")))
                self._feed_handle(int(handle), statistics, now)

    def _flushed(self, payload: bytes, now: float) -> None:
        number, came = unpack_flushed(payload)
        yielded: dict[int, int] = {}
        while self._flushes and self._flushes[0][0] <= number:
            at, rows = self._flushes.popleft()
            if at == number:
                yielded = rows
        for handle, rows_of in yielded.items():
            route = self._by_handle.get(handle)
            if route is not None and route.spec.steps:
                self._feed(route, e.Flushed(rows_of, came.get(handle, 0)), now)

    def _feed_handle(self, handle: int, event: e.Event, now: float) -> None:
        route = self._by_handle.get(handle)
        if route is not None:
            self._feed(route, event, now)

    # ---- machines

    def _poll(self, route: CarriedRoute, now: float) -> None:
        source = route.source
        if source is None:
            return
        try:
            events = route.poll(now)
        except Exception as error:  # noqa: BLE001 - I2
            events = ()
            self._feed(route, _fault(error), now)
        for event in events:
            if route.source is not source:
                break  # closed meanwhile
            if type(event) is Arrived:
                self._send_clock(route)
            self._feed(route, event, now)
        if not events:
            self._schedule(route, now)

    def _feed(self, route: CarriedRoute, event: e.Event, now: float) -> None:
        faults: list[Exception] = []
        for effect in route.lease.on(event, now):
            try:
                self._carry_out(route, effect)
            except Exception as error:  # noqa: BLE001 - I2
                faults.append(error)
        if self._by_name.get(route.spec.name) is route:  # not one that another has replaced
            self._pending.changed[route] = None
        if faults:
            if route.lease.handle:
                self._feed(route, _fault(faults[0]), now)
            else:
                _LOG.warning("route '%s': %s: %s", route.spec.name, type(faults[0]).__name__, faults[0])
        self._pending.urgent = route.check_left(now) or self._pending.urgent
        if route.opens and not route.is_leaving:
            self._open_late(route, now)
        self._schedule(route, now)
        if route.next_spec is not None and route.has_ended:
            spec, plan = route.next_spec
            route.next_spec = None
            self.add(spec, plan, now)

    def _schedule(self, route: CarriedRoute, now: float) -> None:
        due = route.lease.deadline(now)
        if route.source is not None:
            due = min(due, route.source.deadline(now))
        due = min(due, route.leaving_deadline(now))
        self._timers.set(route, max(due, now + SHORTEST_WAIT_SECONDS))

    def _carry_out(self, route: CarriedRoute, effect: Any) -> None:
        kind, source = type(effect), route.source
        if kind is e.HandOn:
            self._pending.rows.append(Rows(*effect))
        elif kind is e.Settle and source is not None:
            source.settle(effect.first, effect.last, effect.disposition)
        elif kind is e.Grant and source is not None:
            source.grant(effect.credit)
        elif kind is e.Drain and source is not None:
            source.drain()
        elif kind is e.Release and source is not None:
            source.release(effect.first, effect.last)
        elif kind is e.Report:
            self._pending.urgent = True
        elif kind is e.Window:
            self._sink.send(Kind.WINDOW, pack_numbers(effect.handle, effect.messages))
        elif kind is e.OpenSource:
            self._open_source(route, effect.handle)
        elif kind is e.CloseSource:
            self._close_source(route)
        elif kind is e.OpenTarget:
            fields = {"handle": effect.handle, "spec": route.spec.to_json(), "origin_identity": effect.origin_identity}
            self._sink.send(Kind.OPEN, pack_json(fields))
            self._send_clock(route)
        elif kind is e.CloseTarget:
            self._pending.rows = [rows for rows in self._pending.rows if rows.handle != effect.handle]
            self._sink.send(Kind.CLOSE, pack_numbers(effect.handle))

    def _open_source(self, route: CarriedRoute, handle: int) -> None:
        if route.is_leaving:
            route.opens = handle
            return
        if route.source is None:
            end = route.spec.source
            pool = self._pools.get(end.kind)
            capabilities = self._connectors(end.kind).capabilities
            route.lease.messages.is_numbered_again = not capabilities.is_log
            route.lease.messages.is_known_by_content = not capabilities.keeps_positions
            route.key, route.clock_sent_ms = handle, None
            self._by_handle[handle] = route
            route.source = pool.source(
                handle, end.options, ordered=route.spec.ordered, only_present=route.spec.only_present
            )
        route.source.open()

    def _open_late(self, route: CarriedRoute, now: float) -> None:
        """Opens the next source, after the closed one has left."""
        handle, route.opens = route.opens, 0
        try:
            self._open_source(route, handle)
        except Exception as error:  # noqa: BLE001 - I2
            self._feed(route, _fault(error), now)

    def _close_source(self, route: CarriedRoute) -> None:
        route.opens = 0
        self._by_handle.pop(route.key, None)
        route.close_source()

    def _send_clock(self, route: CarriedRoute) -> None:
        offset_ms, sent_ms = route.clock_ms, route.clock_sent_ms
        if offset_ms is not None and (sent_ms is None or abs(offset_ms - sent_ms) >= CLOCK_STEP_MS):
            route.clock_sent_ms = offset_ms
            self._sink.send(Kind.CLOCK, pack_numbers(route.key, offset_ms))


def _fault(error: Exception) -> e.Fault:
    if isinstance(error, IsthmusError):
        return e.Fault(str(error), not error.retryable)
    return e.Fault(f"{type(error).__name__}: {error}")
