"""A kind of source and a kind of target, as the scenarios of the conformance suite use them.

What it is: what a scenario needs of two systems: to make the entities of a route, to publish, and to see what became of the messages.
`MemoryPair` gives it for the memory system, with its scripted faults. What it is not: a scenario (`scenario`).

A pair of real systems implements `Pair` and waives the scenarios that need `Ability.SCRIPT`, or others, each with a reason.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Protocol

from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.testing.bridge.connector import MemoryConnector
from isthmus.testing.bridge.entity import Entity
from isthmus.testing.bridge.join import Side
from isthmus.testing.bridge.system import System

__all__ = ["Ability", "MemoryPair", "Pair"]

_SPEC_FIELDS = {each.name for each in fields(RouteSpec)}


class Ability(enum.Enum):
    """What a pair can do beside moving messages."""

    SCRIPT = "script"
    """Faults of its entities can be scripted (`Faults`)."""
    DEDUPLICATES = "deduplicates"
    """Its target suppresses duplicates by key."""
    DEAD_LETTERS = "dead-letters"
    """Its source sets messages aside, and tells which."""
    LIMITS_SIZE = "limits-size"
    """Its target refuses messages above a size."""


class Pair(Protocol):
    """Two systems."""

    name: str
    abilities: frozenset[Ability]

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

    def __init__(self, source: str = "queue", target: str = "queue") -> None:
        self.name = f"{source}-{target}"
        self.system = System()
        self.abilities = frozenset(Ability)
        self._kinds = source, target
        self._partitions = 2 if source == "log" else 1

    def route(self, name: str, **settings: Any) -> RouteSpec:
        spec = {key: value for key, value in settings.items() if key in _SPEC_FIELDS}
        ends = []
        for side, kind in zip(("source", "target"), self._kinds, strict=True):
            of_entity = [key for key in settings if key.startswith(f"{side}_") and key not in spec]
            own = {key.removeprefix(f"{side}_"): settings[key] for key in of_entity}
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
        return self.system.publish(f"{route.name}.source", start, stop, body=body, prefix=route.name)

    def accepted(self, route: RouteSpec) -> Sequence[str]:
        return self.target(route).accepted

    def left(self, route: RouteSpec) -> int:
        return len(self.source(route).left)

    def dead(self, route: RouteSpec) -> dict[str, str]:
        return {each.key: each.reason for each in self.source(route).dead_letters}

    def lane(self, key: str) -> int:
        number = key.rpartition("/")[2]
        return int(number) % self._partitions if number.isdigit() else 0

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
