"""A kind of source and a kind of target, as the scenarios of the conformance suite use them.

What it is: what a scenario needs of two systems: creating the entities of a route, publishing, and reading where the messages are.
`MemoryPair` gives it for the memory system, with its scripted faults. What it is not: a scenario (`scenario`).

A pair of real systems (`system_pair`) has a waiver, with a reason, for each ability that it lacks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Protocol

from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.testing.bridge.connector import MemoryConnector
from isthmus.testing.bridge.entity import Entity
from isthmus.testing.bridge.fault import Faults
from isthmus.testing.bridge.join import Side
from isthmus.testing.bridge.system import System

__all__ = ["Ability", "MemoryPair", "Pair"]

_DISABLED = Refusal(RefusalKind.BLOCKED, "entity-disabled", "sending is disabled")
_SPEC_FIELDS = {each.name for each in fields(RouteSpec)}


class Ability(enum.Enum):
    """What a pair supports besides moving messages."""

    SCRIPT = "script"
    """Every fault of `Faults` can be scripted, and the state of its entities can be read: the memory system."""
    STEPS = "steps"
    """Connections are lost, and processes are killed, at the steps of `Faults`."""
    RESTARTS = "restarts"
    """Its servers can be killed and started again."""
    REFUSES = "refuses"
    """Its target can be made to refuse everything."""
    LOCKS = "locks"
    """Its source locks what it delivers."""
    SKEWS = "skews"
    """The clock of its source can be wrong, and its messages expire by it."""
    DEDUPLICATES = "deduplicates"
    """Its target suppresses duplicates by key."""
    DEAD_LETTERS = "dead-letters"
    """Its source sets messages aside, and reports which."""
    LIMITS_SIZE = "limits-size"
    """Its target refuses messages above a size."""


class Pair(Protocol):
    """Two systems.

    Attributes:
        name: source and target.
        abilities: what it can do.
        lock_seconds: the shortest time that a lock of its source lasts.
        too_large: bytes of a body that a target made with `target_limits_size` refuses.
        wait_seconds: how long a scenario waits for something at most.
        poll_seconds: how often it polls.
    """

    name: str
    abilities: frozenset[Ability]
    lock_seconds: float
    too_large: int
    wait_seconds: float
    poll_seconds: float

    def route(self, name: str, **settings: Any) -> RouteSpec:
        """A route between two new entities; settings are fields of `RouteSpec`, or of entities with `source_` or `target_`."""
        ...

    def publish(self, route: RouteSpec, start: int, stop: int, body: bytes = b"") -> list[str]:
        """Publishes messages at the source; their keys."""
        ...

    def accepted(self, route: RouteSpec) -> Sequence[str]:
        """Keys of what arrived, in the order in which the target has them."""
        ...

    def left(self, route: RouteSpec) -> int:
        """How many messages the source still has."""
        ...

    def dead(self, route: RouteSpec) -> dict[str, str]:
        """Keys of what was dead-lettered at the source, with the reasons."""
        ...

    def lane(self, key: str) -> int:
        """Order is kept between keys of the same lane."""
        ...

    def faults(self, route: RouteSpec, side: str) -> Faults:
        """Plans of the `source` or the `target` of a route."""
        ...

    def hang(self, route: RouteSpec, side: str, hangs: bool = True) -> None:
        """Makes an end silent, with its connection open, or ends that."""
        ...

    def take_away(self, route: RouteSpec, side: str, is_away: bool = True) -> None:
        """Makes an end unreachable, which also loses its connections, or ends that."""
        ...

    def refuse(self, route: RouteSpec, refuses: bool = True) -> None:
        """Makes the target refuse everything, or ends that."""
        ...

    def restart(self, side: str) -> None:
        """Kills the server of all sources, or of all targets, and starts it again."""
        ...

    def delivered(self, route: RouteSpec) -> int:
        """How many messages the source has delivered."""
        ...

    def attempts(self, route: RouteSpec, side: str) -> int:
        """How many connections were refused since the end became unreachable."""
        ...

    def side(self) -> Side:
        """The connectors of one side of a lease."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class MemoryPair:
    """Two kinds of the memory system.

    Args:
        source: `queue` or `log`.
        target: the same.
    """

    wait_seconds = 5.0
    poll_seconds = 0.002
    lock_seconds = 1.0  # long enough that a thread on a loaded machine renews in time
    too_large = 20_000

    def __init__(self, source: str = "queue", target: str = "queue") -> None:
        self.name = f"{source}-{target}"
        self.system = System()
        self.abilities = frozenset(Ability) - {Ability.RESTARTS}
        self._kinds = source, target
        self._ttl_ms: dict[str, int] = {}
        self._partitions = 2 if source == "log" else 1

    def route(self, name: str, **settings: Any) -> RouteSpec:
        spec = {key: value for key, value in settings.items() if key in _SPEC_FIELDS}
        ends = []
        for side, kind in zip(("source", "target"), self._kinds, strict=True):
            of_entity = [key for key in settings if key.startswith(f"{side}_") and key not in spec]
            own = {key.removeprefix(f"{side}_"): settings[key] for key in of_entity}
            own.pop("takes_large", None)
            if own.pop("limits_size", False):
                own["message_bytes"] = self.too_large // 2
            self._ttl_ms[name] = own.pop("ttl_ms", self._ttl_ms.get(name, 0))
            self.system.wall_skew_ms = int(own.pop("skew_seconds", 0) * 1000) or self.system.wall_skew_ms
            entity = f"{name}.{side}"
            if kind == "log":
                self.system.log(entity, **({"partitions": self._partitions} if side == "source" else {}) | own)
            else:
                self.system.queue(entity, **own)
            ends.append(End("memory-log" if kind == "log" else "memory", "memory", {"entity": entity}))
        return RouteSpec(name=name, source=ends[0], target=ends[1], **spec)

    def source(self, route: RouteSpec) -> Entity:
        """Its source entity."""
        return self.system.entity(f"{route.name}.source")

    def target(self, route: RouteSpec) -> Entity:
        """Its target entity."""
        return self.system.entity(f"{route.name}.target")

    def publish(self, route: RouteSpec, start: int, stop: int, body: bytes = b"") -> list[str]:
        name, ttl_ms = f"{route.name}.source", self._ttl_ms[route.name]
        return self.system.publish(name, start, stop, body=body, prefix=route.name, ttl_ms=ttl_ms)

    def accepted(self, route: RouteSpec) -> Sequence[str]:
        return self.target(route).accepted

    def left(self, route: RouteSpec) -> int:
        return len(self.source(route).left)

    def dead(self, route: RouteSpec) -> dict[str, str]:
        return {each.key: each.reason for each in self.source(route).dead_letters}

    def lane(self, key: str) -> int:
        number = key.rpartition("/")[2]
        return int(number) % self._partitions if number.isdigit() else 0

    def faults(self, route: RouteSpec, side: str) -> Faults:
        return (self.source if side == "source" else self.target)(route).faults

    def hang(self, route: RouteSpec, side: str, hangs: bool = True) -> None:
        self._change(route, side, **{"hangs" if side == "target" else "stops": hangs})

    def take_away(self, route: RouteSpec, side: str, is_away: bool = True) -> None:
        self._change(route, side, is_away=is_away)

    def refuse(self, route: RouteSpec, refuses: bool = True) -> None:
        self._change(route, "target", busy=_DISABLED if refuses else None)

    def _change(self, route: RouteSpec, side: str, **changes: Any) -> None:
        with self.system.lock:
            for name, value in changes.items():
                setattr(self.faults(route, side), name, value)
        self.system.touch()

    def restart(self, side: str) -> None:
        raise NotImplementedError("the memory system has no server")

    def delivered(self, route: RouteSpec) -> int:
        return self.source(route).delivered

    def attempts(self, route: RouteSpec, side: str) -> int:
        return self.faults(route, side).attempts

    def side(self) -> Side:
        made: dict[str, MemoryConnector] = {}
        for kind in ("memory", "memory-log"):
            made[kind] = MemoryConnector(self.system, kind)

        def mute() -> None:
            for each in made.values():
                each.mute()

        def kill() -> None:
            for each in made.values():
                each.kill()

        connector: Callable[[str], MemoryConnector] = made.__getitem__
        return Side(connector, mute, kill)

    def close(self) -> None:
        self.system.close()
