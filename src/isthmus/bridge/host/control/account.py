"""The driver's state of one shared query: its routes, their readers, and the readers' reports.

What it is: pure; messages of readers and requests of the driver in, effects out. A reader is one connection that began a lease
with LEASE; its counts begin at 0. A route is carried by the reader of one slot (`isthmus.bridge.placement`); one that competing readers
may share, by the readers of all slots, unless it has a rate limit. What it is not: connections and threads (`control.server`).

Invariants:
    I1. While stopping, every lease that begins gets no routes and is asked to end.
    I2. A lease that begins before the routes are known is answered when they are.
    I3. A slot has one reader: a lease that begins on a slot asks the one before to end.
    I4. A death counts once, and not where the reader was asked to end, had ended, or was disconnected for invalid messages.
    I5. Each reader is sent each change of its routes, in the order of the changes.
    I6. A route that was removed is reported as ended once no reader carries it, however its readers ended.
    I7. An answer to a question has the claims of all routes that were ever assigned to the reader: a removed route still ends
        under its claim.
    I8. A route that moves to another slot begins there only after the previous reader has ended it, or is gone.
    I9. A death ends the leases of the other slots too, because Spark fails the query: their ends soon after it are not deaths.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from isthmus.bridge.frame import Kind, pack_json
from isthmus.bridge.host.channel import ChannelError
from isthmus.bridge.host.control.effect import Add, Assign, Death, Effect, Grant, Plan, SendFrame
from isthmus.bridge.host.control.message import Died, Ended, Lease, Look, Message, Report
from isthmus.bridge.host.control.tally import DIED_TEXT, RouteTally
from isthmus.bridge.placement import Placement
from isthmus.bridge.report import RouteReport, RouteState
from isthmus.bridge.route_spec import RouteSpec
from isthmus.errors import InvalidArgumentError

__all__ = ["Add", "Assign", "Death", "Effect", "Grant", "Plan", "QueryAccount", "SendFrame"]

_ERRORS = 16
# Spark kills the tasks of a query whose other task has failed: at once, or after it waited 2 s for them (spark.python.task.killTimeout).
_FOLLOWS_SECONDS = 15.0


class _Reader:
    """One lease."""

    def __init__(self, lease: Lease, is_local: bool) -> None:
        self.lease = lease
        self.is_local = is_local
        self.processes = {lease.process}
        self.is_assigned = False
        self.carried: set[str] = (
            set()
        )  # every route that was assigned to it, except those that have moved to another slot
        self.moved: set[str] = set()  # those
        self.claims: dict[str, None] = {}  # of every route that was assigned to it
        self.reports: dict[str, RouteReport] = {}
        self.is_leaving = False  # STOP is queued for it
        self.is_asked_to_end = False  # STOP was sent
        self.has_died = False
        self.has_ended = False
        self.error = ""  # that it ended with
        self.excused_until = -math.inf  # if its connection ends by then, the cause is the death of another


class QueryAccount:
    """The account of one query.

    Attributes:
        name: of the query.
        stopping: why its leases are to end; empty where they are not.
        has_been_met: whether its data source ever sent LOOK, or a lease began.
        errors: those that its last leases ended with, oldest first.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopping = ""
        self.has_been_met = False
        self.errors: deque[str] = deque(maxlen=_ERRORS)
        self._routes: dict[str, RouteSpec] | None = None
        self._lease_seconds = 0.0
        self._readers: dict[int, _Reader] = {}
        self._tallies: dict[str, RouteTally] = {}
        self._placement = Placement()
        self._moving: dict[
            str, set[int]
        ] = {}  # by route that moves to another slot: the readers that still have to end it

    # ---- queries of the driver

    def reports(self) -> dict[str, RouteReport]:
        """By route."""
        return {name: tally.total() for name, tally in self._tallies.items()}

    def is_busy(self) -> bool:
        """Whether a lease is running."""
        return any(not reader.has_ended for reader in self._readers.values())

    def processes(self) -> set[int]:
        """Processes of running leases on this machine."""
        readers = (reader for reader in self._readers.values() if reader.is_local and not reader.has_ended)
        return {process for reader in readers for process in reader.processes}

    # ---- requests of the driver

    def assign(self, routes: Sequence[RouteSpec], lease_seconds: float) -> list[Effect]:
        """Assigns exactly these routes; a query that was stopped begins again.

        Raises:
            InvalidArgumentError: two routes have one name, or a route is carried already, with other settings than those given now.
        """
        wanted = {route.name: route for route in routes}
        if len(wanted) < len(routes):
            raise InvalidArgumentError(f"query '{self.name}': two routes have one name")
        before = self._routes or {}
        for name, route in wanted.items():
            self._refuse_change(before.get(name, route), route)
        self.stopping, self._lease_seconds = "", lease_seconds
        if self._routes is None:
            self._routes = wanted
            return self._assign_waiting()
        effects: list[Effect] = []
        for name in [name for name in before if name not in wanted]:
            effects += self.remove(name, "it is no longer part of the query")
        for name, route in wanted.items():
            if name not in before:
                effects += self.add(route)
        return effects

    def add(self, route: RouteSpec) -> list[Effect]:
        """Assigns this route too.

        Raises:
            InvalidArgumentError: it is carried already, with other settings than those given now.
        """
        if self._routes is None:
            self._routes = {}
            return [*self._assign_waiting(), *self.add(route)]
        known = self._routes.get(route.name)
        self._refuse_change(known or route, route)
        if known is not None:
            return []
        self._routes[route.name] = route
        if route.name in self._tallies:
            self._tallies[route.name].wait()
        return [Add(number, route) for number, reader in self._staying() if self._take(number, reader, route)]

    def remove(self, name: str, why: str) -> list[Effect]:
        """Removes a route."""
        if self._routes is None or self._routes.pop(name, None) is None:
            return []
        self._moving.pop(name, None)
        self._placement.left(name)
        payload = pack_json({"name": name, "why": why})
        if not any(name in each.carried and not each.has_ended for each in self._readers.values()):
            self._tallies.setdefault(name, RouteTally()).finish()
        return [SendFrame(number, Kind.REMOVE, payload) for number, reader in self._staying() if name in reader.carried]

    def move(self, name: str, slot: int) -> list[Effect]:
        """Moves a route to another slot."""
        route = (self._routes or {}).get(name)
        if route is None or route.is_spread or name in self._moving or self._placement.slot_of(name) == slot:
            return []
        self._placement.put(name, slot)
        return self._leave(name, slot)

    def plan(self, name: str) -> list[Effect]:
        """Sends the current plan of a route to its readers."""
        if self._routes is None or name not in self._routes:
            return []
        return [Plan(number, name) for number, reader in self._staying() if name in reader.carried]

    def stop(self, why: str) -> list[Effect]:
        """Ends every lease, and begins no other."""
        self.stopping = why or "stop"
        effects = self._assign_waiting()
        for number, reader in self._readers.items():
            effects += self._ask_to_end(number, reader, self.stopping)
        return effects

    # ---- messages of readers

    def on_message(self, number: int, message: Message, *, is_local: bool = False, now: float = 0.0) -> list[Effect]:
        """A message of connection `number`; numbers ascend, and so does the time.

        Raises:
            ChannelError: it is not valid at this point.
        """
        if isinstance(message, Look):
            self.has_been_met = True
            return [SendFrame(number, Kind.LOOKED, pack_json({"stopping": bool(self.stopping)}))]
        reader = self._readers.get(number)
        if isinstance(message, Lease):
            if reader is not None:
                raise ChannelError("a second lease on one connection")
            return self._on_lease(number, _Reader(message, is_local))
        if reader is None:
            raise ChannelError("a report before the lease began")
        match message:
            case Report():
                return self._on_report(number, reader, message, now)
            case Died():
                names = reader.reports if message.routes is None else message.routes
                return self._on_death(reader, names, now)
            case Ended():
                reader.has_ended, reader.error = True, message.error
                if message.error:
                    self.errors.append(message.error)
        return []

    def on_stop_sent(self, number: int) -> None:
        """STOP was sent to a reader: its end from now on is not a death."""
        if number in self._readers:
            self._readers[number].is_asked_to_end = True

    def on_closed(self, number: int, *, is_cut_off: bool = False, now: float = 0.0) -> list[Effect]:
        """A connection is gone."""
        reader = self._readers.pop(number, None)
        if reader is None:
            return []
        unexpected = not (reader.has_ended or is_cut_off)
        effects = self._on_death(reader, reader.reports, now) if unexpected else []
        error = reader.error if reader.has_ended else DIED_TEXT
        for name in reader.carried.union(reader.reports):
            goes_on = not self.stopping and self._routes is not None and name in self._routes
            self._tallies[name].leave(number, reader.lease.slot, error if goes_on else "")
        return effects + self._arrive(number, list(self._moving))

    def _on_lease(self, number: int, reader: _Reader) -> list[Effect]:
        self.has_been_met = True
        self._placement.slots = max(1, reader.lease.slots)
        effects: list[Effect] = []
        for other, each in self._readers.items():
            if each.lease.slot == reader.lease.slot:
                effects += self._ask_to_end(other, each, "another process has begun a lease in its place")
        self._readers[number] = reader
        if self._routes is not None or self.stopping:
            effects += self._assign_waiting()
        if self.stopping:
            effects += self._ask_to_end(number, reader, self.stopping)
        return effects

    def _on_report(self, number: int, reader: _Reader, report: Report, now: float) -> list[Effect]:
        if report.processes:
            reader.processes = {reader.lease.process, *report.processes}
        for name, each in report.routes.items():
            reader.reports[name] = each
            tally = self._tallies.setdefault(name, RouteTally())
            tally.report(number, reader.lease.slot, each, has_moved=name in reader.moved)
        effects: list[Effect] = []
        ended = [name for name, each in report.routes.items() if each.state is RouteState.ENDED]
        if self._moving:
            effects += self._arrive(number, ended)
        # A reader no longer carries a removed route that it has ended: another reader may carry it then, and may be gone when it is removed again.
        reader.carried.difference_update(name for name in ended if name not in (self._routes or {}))
        effects += self._balance(now)
        if report.asked:
            effects.append(Grant(number, report.asked, tuple(reader.claims)))
        return effects

    def _on_death(self, reader: _Reader, names: Iterable[str], now: float) -> list[Effect]:
        if reader.has_died or reader.is_asked_to_end or now < reader.excused_until:
            return []
        reader.has_died = True
        for other in self._readers.values():
            if other is not reader and not other.has_ended:
                other.excused_until = now + _FOLLOWS_SECONDS
        affected = set(names)
        found = ((name, reader.reports.get(name, RouteReport())) for name in sorted(reader.carried | affected))
        left = {name: each for name, each in found if each.state is not RouteState.ENDED}
        return [
            Death(
                {
                    name: replace(each, **self._tallies[name].counts()) if name in affected else RouteReport()
                    for name, each in left.items()
                    if name in self._tallies
                }
            )
        ]

    # ---- from slot to slot

    def _balance(self, now: float) -> list[Effect]:
        """Moves routes, where that is due."""
        if self._routes is None or self.stopping or not self._placement.is_due(now):
            return []
        staying = self._staying()
        settled = {
            name: self._tallies.setdefault(name, RouteTally()).counts()["settled"]
            for name, route in self._routes.items()
            if not (route.is_spread or name in self._moving)
        }
        live = {reader.lease.slot for _, reader in staying}
        return [
            effect
            for move in self._placement.update(settled, live, now)
            for effect in self._leave(move.name, move.slot)
        ]

    def _leave(self, name: str, slot: int) -> list[Effect]:
        """Asks the readers of a route to end it."""
        carriers = {
            number for number, reader in self._readers.items() if name in reader.carried and not reader.has_ended
        }
        self._moving[name] = set(carriers)
        if not carriers:
            return self._begin(name)
        payload = pack_json({"name": name, "why": f"the route moves to slot {slot}"})
        return [SendFrame(number, Kind.REMOVE, payload) for number, _ in self._staying() if number in carriers]

    def _arrive(self, number: int, names: Iterable[str]) -> list[Effect]:
        """A reader has ended routes, or is gone."""
        effects: list[Effect] = []
        for name in names:
            left = self._moving.get(name)
            if left is None or number not in left:
                continue
            left.discard(number)
            if number in self._readers:
                self._readers[number].carried.discard(name)
                self._readers[number].moved.add(name)
            if not left:
                effects += self._begin(name)
        return effects

    def _begin(self, name: str) -> list[Effect]:
        """A route that was being moved begins at its new slot."""
        self._moving.pop(name, None)
        self._tallies.setdefault(name, RouteTally()).move()
        assert self._routes is not None
        route = self._routes[name]
        return [Add(number, route) for number, reader in self._staying() if self._take(number, reader, route)]

    # ---- assignments

    def _staying(self) -> list[tuple[int, _Reader]]:
        readers = self._readers.items()
        return [
            (number, each) for number, each in readers if each.is_assigned and not (each.is_leaving or each.has_ended)
        ]

    def _assign_waiting(self) -> list[Effect]:
        effects: list[Effect] = []
        for number, reader in self._readers.items():
            if not reader.is_assigned:
                routes = () if self.stopping or self._routes is None else tuple(self._routes.values())
                reader.is_assigned = True
                taken = tuple(route for route in routes if self._take(number, reader, route))
                effects.append(Assign(number, taken, self._lease_seconds))
        return effects

    def _take(self, number: int, reader: _Reader, route: RouteSpec) -> bool:
        """Whether a reader has to carry a route; from now on it is assigned to it."""
        if not route.is_spread and (
            self._placement.slot_of(route.name) != reader.lease.slot or route.name in self._moving
        ):
            return False
        reader.carried.add(route.name)
        reader.moved.discard(route.name)
        if route.claim:
            reader.claims[route.claim] = None
        self._tallies.setdefault(route.name, RouteTally()).take(number, reader.lease.slot)
        return True

    def _ask_to_end(self, number: int, reader: _Reader, why: str) -> list[Effect]:
        if reader.is_leaving or reader.has_ended:
            return []
        reader.is_leaving = True
        return [SendFrame(number, Kind.STOP, why.encode())]

    def _refuse_change(self, known: RouteSpec, route: RouteSpec) -> None:
        if known != route:
            raise InvalidArgumentError(
                f"query '{self.name}' carries route '{route.name}' already, with other settings than those given now; remove it first"
            )
