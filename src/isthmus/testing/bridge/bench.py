"""The fixture of a scenario: a pair, a join over it, waiting, and the checks at the end.

What it is: the account of what was published against what arrived. What it is not: a scenario (`scenario`).

Invariants:
    I1. `check` fails when a message was lost, duplicated where that is not allowed, out of order within its lane, or is left at the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from isthmus.bridge.host.control.server import ControlServer
from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.bridge.report import RouteReport
from isthmus.bridge.route_spec import RouteSpec
from isthmus.testing.bridge.entity import Entity
from isthmus.testing.bridge.fault import Faults
from isthmus.testing.bridge.join import Join, Step
from isthmus.testing.bridge.message import number_of
from isthmus.testing.bridge.pair import Ability, MemoryPair, Pair

__all__ = ["Bench"]

_BAD = Refusal(RefusalKind.MESSAGE, "argument-error", "malformed")
_PATIENCE = 5
_END_SECONDS = 60.0
QUERY, TOKEN = "query", "a key of the tests"


class Driver:
    """The driver of a query: its control port, its claims, and its plans.

    Attributes:
        claims: seconds for which claims are held.
        plans: by route.
        deaths: the failures that were reported, by query.
    """

    join: Join

    def __init__(self, routes: Sequence[RouteSpec]) -> None:
        self.claims: dict[str, float] = {}
        self.plans: dict[str, Plan] = {}
        self.deaths: list[dict[str, RouteReport]] = []
        self.server = ControlServer(
            TOKEN,
            claim_seconds=lambda claim: self.claims.get(claim, 0.0),
            plan_of=lambda name: self.plans.get(name, Plan()),
            on_death=lambda query, reports: self.deaths.append(dict(reports)),
        ).start()
        self.query = self.server.query(QUERY)
        self.query.assign(routes)

    def report(self, route: RouteSpec) -> RouteReport:
        """The report of a route."""
        return self.query.reports().get(route.name) or RouteReport()


class Bench:
    """One run of a scenario.

    Args:
        pair: the two systems.

    Attributes:
        published: keys by route.
        refusals: how often `refuses` has refused.
    """

    BUSY = Refusal(RefusalKind.BLOCKED, "server-busy", "come back later")

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.refusals = 0
        self.published: dict[str, list[str]] = {}
        self._doubles: set[str] = set()  # routes whose target was to suppress duplicates, and cannot

    # ---- making

    def route(self, name: str = "r", **settings: Any) -> RouteSpec:
        """A route between two new entities."""
        spec = self.pair.route(name, **settings)
        self.published[name] = []
        if settings.get("target_detects_duplicates") and Ability.DEDUPLICATES not in self.pair.abilities:
            self._doubles.add(name)
        return spec

    def publish(self, route: RouteSpec, count: int, body: bytes = b"") -> None:
        """Publishes so many messages more."""
        start = len(self.published[route.name])
        self.published[route.name] += self.pair.publish(route, start, start + count, body)

    def join(self, *routes: RouteSpec, step: Step | None = None, **settings: Any) -> Join:
        """A query over the routes."""
        return Join(routes, self.pair.side, step=step, **settings)

    @contextmanager
    def driver(self, *routes: RouteSpec, slots: int = 1) -> Iterator[Driver]:
        """A query over the routes, which a driver's control port assigns."""
        driver = Driver(routes)
        settings: dict[str, Any] = {"control": (driver.server.address, TOKEN), "name": QUERY, "slots": slots}
        try:
            with ExitStack() as stack:
                joins = [stack.enter_context(Join((), self.pair.side, slot=slot, **settings)) for slot in range(slots)]
                driver.join = joins[0]
                yield driver
        finally:
            driver.server.close()

    # ---- the memory system

    @property
    def memory(self) -> MemoryPair:
        """The pair, where it is of the memory system."""
        assert isinstance(self.pair, MemoryPair)
        return self.pair

    def source(self, route: RouteSpec) -> Entity:
        """The entity that a route reads."""
        return self.memory.source(route)

    def target(self, route: RouteSpec) -> Entity:
        """The entity that a route writes."""
        return self.memory.target(route)

    def mend(self, faults: Faults, **changes: Any) -> None:
        """Changes faults, and wakes all ends."""
        with self.memory.system.lock:
            for name, value in changes.items():
                setattr(faults, name, value)
        self.memory.system.touch()

    def refuses(self, route: RouteSpec, *numbers: int, refusal: Refusal = _BAD) -> Callable[[str], Refusal | None]:
        """The verdict of a target that refuses messages of these numbers; each refusal is counted."""
        keys = {f"{route.name}/{number}" for number in numbers}

        def verdict(key: str) -> Refusal | None:
            if key not in keys:
                return None
            self.refusals += 1
            return refusal

        return verdict

    # ---- waiting and checking

    @property
    def end_seconds(self) -> float:
        """How long to wait for the end of a lease: a slow target finishes what is in flight, and a source may answer late that it is empty."""
        return max(_END_SECONDS, self.pair.wait_seconds)

    def wait(
        self, condition: Callable[[], object], what: str = "", seconds: float = 0.0, *, pause_seconds: float = 0.0
    ) -> None:
        """Waits for a condition; polls at the pair's interval, and for at most the pair's time where none is given.

        Raises:
            AssertionError: it did not hold in time.
        """
        seconds = seconds or self.pair.wait_seconds
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what or 'a condition'}"
            time.sleep(pause_seconds or self.pair.poll_seconds)

    def pause(self, seconds: float) -> None:
        """Lets time pass."""
        time.sleep(seconds)

    def wait_moved(self, *routes: RouteSpec) -> None:
        """Waits until everything published is settled at the source. Nothing depends on the exact moment, so it polls less often."""
        pause = _PATIENCE * self.pair.poll_seconds
        for route in routes:
            self.wait(partial(self._is_empty, route), f"{route.name}: the source to be empty", pause_seconds=pause)

    def _is_empty(self, route: RouteSpec) -> bool:
        return not self.pair.left(route)

    def wait_settled(self, route: RouteSpec) -> int:
        """Waits until the source is empty; returns the greatest number of delivered and unsettled messages that was seen."""
        peak = 0

        def is_empty() -> bool:
            nonlocal peak
            peak = max(peak, self.source(route).locked)
            return self.source(route).is_empty

        self.wait(is_empty, f"{route.name}: the source to be empty")
        return peak

    def wait_accepted(self, route: RouteSpec, count: int) -> None:
        """Waits until so many messages have arrived."""
        self.wait(lambda: len(self.pair.accepted(route)) >= count, f"{route.name}: {count} messages")

    def check(
        self, route: RouteSpec, *, may_double: bool = False, dead: Sequence[int] = (), ordered: bool = True
    ) -> None:
        """Nothing lost, nothing doubled, in order, nothing left.

        Args:
            route: which.
            may_double: whether a message may have arrived more than once; always so where the target was to suppress duplicates
                and its kind cannot.
            dead: numbers of the messages that have to be dead letters, and did not arrive.
            ordered: whether first arrivals have to be in order.
        """
        accepted = list(self.pair.accepted(route))
        published = self.published[route.name]
        dead_keys = {f"{route.name}/{number}" for number in dead}
        assert set(self.pair.dead(route)) == dead_keys, f"dead letters: {self.pair.dead(route)}"
        first = list(dict.fromkeys(accepted))
        lost = sorted(set(published) - set(first) - dead_keys, key=number_of)
        assert not lost, f"lost: {lost}"
        assert set(first) <= set(published), f"unknown: {set(first) - set(published)}"
        if not may_double and route.name not in self._doubles:
            doubled = sorted({key for key in first if accepted.count(key) > 1}, key=number_of)
            assert not doubled, f"doubled: {doubled}"
            assert not dead_keys & set(first), "set aside and yet delivered"
        if ordered:
            for lane in {self.pair.lane(key) for key in first}:
                numbers = [number_of(key) for key in first if self.pair.lane(key) == lane]
                assert numbers == sorted(numbers), f"out of order: {numbers}"
        assert not self.pair.left(route), f"left at the source: {self.pair.left(route)}"
