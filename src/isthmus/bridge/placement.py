"""The placement of routes on the slots of a query.

What it is: pure; counts and the time in, moves out. A new route goes to the slot with the least load. Every few seconds the rates of all
routes are observed, and where one slot has much more load than another, one route moves. What it is not: the execution of a move
(`isthmus.bridge.host.control.account`), or routes that every slot carries.

Invariants:
    I1. A route has one slot at a time.
    I2. A move reduces the difference between the busiest and the least busy slot: a route alone on its slot, or with a load of the whole
        difference, stays.
    I3. A route that has moved stays for REST_SECONDS, and at most one route of a query moves at a time.
    I4. Routes of a slot that has no reader for ADOPT_SECONDS, while others have one, move to those.
    I5. The load of a route that is no longer carried counts for no slot; when it is carried again, it begins on its previous slot.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Move", "Placement"]

UPDATE_SECONDS = 5.0
REST_SECONDS = 60.0
# Spark starts the tasks of a batch together, each within a second or two where it has a core for it.
ADOPT_SECONDS = 10.0
# Messages per second. A reader carries tens of thousands: below this a move is not worth the pause of a route.
LEAST_RATE = 200.0
# Share of the busiest slot's load: a smaller difference causes no move.
LEAST_GAP = 0.25
# Weight of the last observation.
_NEWEST = 0.5


class Move(NamedTuple):
    """A route is to be carried by another slot."""

    name: str
    slot: int


@dataclass(slots=True)
class _Route:
    slot: int
    rate: float = 0.0
    observations: int = 0  # number of observed rates; -1: its settlements count from the next observation on
    total: int = 0
    moved_at: float = -math.inf
    is_carried: bool = True


class Placement:
    """The slots of one query's routes.

    Attributes:
        slots: how many there are.
    """

    def __init__(self) -> None:
        self.slots = 1
        self._routes: dict[str, _Route] = {}
        self._updated_at = -math.inf
        self._away_since: dict[int, float] = {}

    def slot_of(self, name: str) -> int:
        """The slot of a route; one that has none gets one."""
        route = self._routes.get(name)
        if route is None or route.slot >= self.slots:
            loads = self._loads(range(self.slots))
            route = self._routes[name] = _Route(min(loads, key=lambda slot: (*loads[slot], slot)))
        route.is_carried = True
        return route.slot

    def left(self, name: str) -> None:
        """A route is no longer carried. It keeps its slot, whose reader may still be ending it."""
        route = self._routes.get(name)
        if route is not None:
            route.rate, route.observations, route.is_carried = 0.0, -1, False

    def put(self, name: str, slot: int) -> None:
        """Puts a route on a slot, with any rate."""
        self.slot_of(name)
        self._routes[name].slot = slot

    def is_due(self, now: float) -> bool:
        """Whether the next observation is due."""
        return self.slots > 1 and now >= self._updated_at + UPDATE_SECONDS

    def update(self, settled: dict[str, int], live: AbstractSet[int], now: float) -> list[Move]:
        """Observes the rates; returns the moves.

        Args:
            settled: by route that is carried and does not move just now, how many of its messages have been settled in all.
            live: the slots that have a reader.
            now: monotonic seconds.
        """
        seconds, self._updated_at = now - self._updated_at, now
        for name, total in settled.items():
            self.slot_of(name)
            route = self._routes[name]
            if route.observations < 0:
                route.observations = 0
            elif math.isfinite(seconds) and seconds > 0:
                rate = max(0, total - route.total) / seconds
                # The first difference is to a count from before the first observation.
                route.rate = rate if route.observations <= 1 else route.rate + _NEWEST * (rate - route.rate)
                route.observations += 1
            route.total = total
        moves = self._adopt(settled, live, now) or self._balance(settled, live, now)
        for move in moves:
            route = self._routes[move.name]
            route.slot, route.moved_at = move.slot, now
        return moves

    def _loads(self, slots: AbstractSet[int] | range) -> dict[int, tuple[float, int]]:
        """By slot: messages per second and number of routes."""
        loads = dict.fromkeys(slots, (0.0, 0))
        for route in self._routes.values():
            if route.is_carried and route.slot in loads:
                rate, count = loads[route.slot]
                loads[route.slot] = rate + route.rate, count + 1
        return loads

    def _adopt(self, settled: dict[str, int], live: AbstractSet[int], now: float) -> list[Move]:
        self._away_since = {slot: self._away_since.get(slot, now) for slot in range(self.slots) if slot not in live}
        gone = {slot for slot, since in self._away_since.items() if now - since >= ADOPT_SECONDS}
        if not gone or not live:
            return []
        loads = self._loads(live)
        moves = []
        for name in settled:
            route = self._routes[name]
            if route.slot in gone:
                slot = min(loads, key=lambda each: (*loads[each], each))
                rate, count = loads[slot]
                loads[slot] = rate + route.rate, count + 1
                moves.append(Move(name, slot))
        return moves

    def _balance(self, settled: dict[str, int], live: AbstractSet[int], now: float) -> list[Move]:
        if len(live) < 2:
            return []
        loads = {slot: rate for slot, (rate, _) in self._loads(live).items()}
        busiest, idlest = max(loads, key=lambda slot: loads[slot]), min(loads, key=lambda slot: loads[slot])
        gap = loads[busiest] - loads[idlest]
        if loads[busiest] < LEAST_RATE or gap < LEAST_GAP * loads[busiest]:
            return []
        candidates = {
            name: abs(gap - 2 * route.rate)
            for name in settled
            if (route := self._routes[name]).slot == busiest
            and route.observations > 2
            and now >= route.moved_at + REST_SECONDS
        }
        name = min(candidates, key=lambda each: candidates[each], default="")
        if not name or candidates[name] > gap * (1 - LEAST_GAP):
            return []
        return [Move(name, idlest)]
