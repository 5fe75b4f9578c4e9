"""Two real systems as a pair of the conformance suite, through proxies.

What it is: `Pair` over two `SystemEnd`s: creating an entity of a system, publishing, reading what exists, and stopping the
server. Routes go through gates (`scripted`), so that connections are cut, delayed and refused without the system's help. What it is
not: a system.

Invariants:
    I1. Entities are named by the pair's prefix, so that pairs that run side by side share nothing but the servers.
    I2. A side that was killed no longer reaches its systems.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from isthmus.bridge import registry
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.testing.bridge.fault import Faults
from isthmus.testing.bridge.join import Side
from isthmus.testing.bridge.message import number_of
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.bridge.scripted import Gate, ScriptedSide
from isthmus.testing.proxy import Proxy, Weather

__all__ = ["SystemEnd", "SystemPair"]

_SPEC_FIELDS = {each.name for each in fields(RouteSpec)}


class SystemEnd(Protocol):
    """A system as an end of routes.

    Attributes:
        kind: of its connector.
        source_abilities: what it can do as a source.
        target_abilities: what it can do as a target.
        too_large: how many bytes of a body its targets refuse that were made with `limits_size`.
        lanes: order is kept within each of so many lanes, as a source.
        lock_seconds: the shortest time that a lock lasts.
        wait_seconds: how long a scenario waits for something at most.
    """

    kind: str
    source_abilities: frozenset[Ability]
    target_abilities: frozenset[Ability]
    too_large: int
    lanes: int
    lock_seconds: float
    wait_seconds: float

    def make(self, entity: str, side: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Makes an entity; the options of a `source` or a `target` there, without the server's address, and unlike those of any other
        entity. `lanes` of the settings are those of the source.
        """
        ...

    def proxy(self, entity: str) -> tuple[Proxy, dict[str, str]]:
        """A new proxy before the server of an entity, and the options of an end that goes through it."""
        ...

    def publish(self, entity: str, keys: Sequence[str], body: bytes, ttl_ms: int) -> None:
        """Puts messages into an entity."""
        ...

    def arrived(self, entity: str) -> Sequence[str]:
        """Keys of all messages that are in an entity, in its order."""
        ...

    def left(self, entity: str) -> int:
        """How many messages a source still has."""
        ...

    def dead(self, entity: str) -> dict[str, str]:
        """Keys of its dead letters, with the reasons."""
        ...

    def refuse(self, entity: str, refuses: bool) -> None:
        """Makes an entity refuse everything, or ends that."""
        ...

    def restart(self) -> None:
        """Kills the server, and starts it again."""
        ...

    def release(self, entity: str) -> None:
        """Closes the connections that were opened to read an entity's state."""
        ...


@dataclass(slots=True)
class _EntityState:
    """The state that applies to all gates of an entity, also future ones."""

    faults: Faults = field(default_factory=Faults)
    gates: list[Gate] = field(default_factory=list)
    hangs: bool = False
    is_away: bool = False

    def apply(self, gate: Gate) -> None:
        gate.proxy.set_weather(Weather(is_stalled=self.hangs))
        gate.proxy.refuse(self.is_away)
        if self.is_away:
            gate.proxy.cut()


class SystemPair:
    """Two real systems.

    Args:
        source: where routes read.
        target: where they write.
        prefix: of the names of its entities.
    """

    poll_seconds = 0.03

    def __init__(self, source: SystemEnd, target: SystemEnd, prefix: str) -> None:
        self.name = f"{source.kind}-{target.kind}"
        self.abilities = source.source_abilities | target.target_abilities | {Ability.STEPS}
        self.too_large = target.too_large
        self.lock_seconds = source.lock_seconds
        self.wait_seconds = max(source.wait_seconds, target.wait_seconds)
        self._ends = {"source": source, "target": target}
        self._prefix = prefix
        self._states: dict[str, _EntityState] = {}
        self._options: dict[str, Mapping[str, str]] = {}
        self._sides: list[ScriptedSide] = []
        self._ttl_ms: dict[str, int] = {}
        self._lock = threading.Lock()

    # ---- routes and messages

    def route(self, name: str, **settings: Any) -> RouteSpec:
        spec = {key: value for key, value in settings.items() if key in _SPEC_FIELDS}
        self._ttl_ms[name] = settings.get("source_ttl_ms", 0)
        ends = []
        for side, end in self._ends.items():
            own = {
                key.removeprefix(f"{side}_"): value
                for key, value in settings.items()
                if key.startswith(f"{side}_") and key not in spec
            }
            entity = self._entity(name, side)
            self._states[entity] = _EntityState()
            made = end.make(entity, side, own | {"lanes": self._ends["source"].lanes})
            self._options[entity] = made
            ends.append(End(end.kind, side, made))
        return RouteSpec(name=name, source=ends[0], target=ends[1], **spec)

    def _entity(self, name: str, side: str) -> str:
        return f"{self._prefix}.{name}.{side}"

    def publish(self, route: RouteSpec, start: int, stop: int, body: bytes = b"") -> list[str]:
        keys = [f"{route.name}/{number}" for number in range(start, stop)]
        self._ends["source"].publish(self._entity(route.name, "source"), keys, body, self._ttl_ms[route.name])
        return keys

    def accepted(self, route: RouteSpec) -> Sequence[str]:
        return self._ends["target"].arrived(self._entity(route.name, "target"))

    def left(self, route: RouteSpec) -> int:
        return self._ends["source"].left(self._entity(route.name, "source"))

    def dead(self, route: RouteSpec) -> dict[str, str]:
        return self._ends["source"].dead(self._entity(route.name, "source"))

    def lane(self, key: str) -> int:
        return max(number_of(key), 0) % self._ends["source"].lanes

    # ---- faults

    def faults(self, route: RouteSpec, side: str) -> Faults:
        return self._states[self._entity(route.name, side)].faults

    def hang(self, route: RouteSpec, side: str, hangs: bool = True) -> None:
        self._change(route, side, hangs=hangs)

    def take_away(self, route: RouteSpec, side: str, is_away: bool = True) -> None:
        self._change(route, side, is_away=is_away)

    def _change(self, route: RouteSpec, side: str, **changes: bool) -> None:
        state = self._states[self._entity(route.name, side)]
        with self._lock:
            for name, value in changes.items():
                setattr(state, name, value)
            for gate in state.gates:
                state.apply(gate)

    def refuse(self, route: RouteSpec, refuses: bool = True) -> None:
        self._ends["target"].refuse(self._entity(route.name, "target"), refuses)

    def restart(self, side: str) -> None:
        self._ends[side].restart()

    def delivered(self, route: RouteSpec) -> int:
        return sum(gate.delivered for gate in self._states[self._entity(route.name, "source")].gates)

    def attempts(self, route: RouteSpec, side: str) -> int:
        gates = self._states[self._entity(route.name, side)].gates
        return sum(gate.proxy.refused for gate in gates)

    # ---- processes

    def gate(self, kind: str, side: str, options: Mapping[str, str]) -> tuple[Gate, Mapping[str, str]]:
        """For `ScriptedSide`."""
        entity = next(entity for entity, made in self._options.items() if made.items() <= options.items())
        proxy, address = self._ends[side].proxy(entity)
        state = self._states[entity]
        gate = Gate(entity, proxy, state.faults)
        with self._lock:
            state.gates.append(gate)
            state.apply(gate)
        return gate, {**options, **address}

    def side(self) -> Side:
        made = ScriptedSide(self, registry.connector)
        self._sides.append(made)
        return Side(made.connector, made.mute, lambda: self._kill(made))

    def _kill(self, side: ScriptedSide) -> None:
        with self._lock:  # its gates do not open again
            for state in self._states.values():
                state.gates = [each for each in state.gates if all(each is not gate for _, gate in side.gates)]
        side.kill()

    def close(self) -> None:
        for side in self._sides:
            with contextlib.suppress(Exception):
                side.dispose()
        for entity in self._states:
            for end in self._ends.values():
                with contextlib.suppress(Exception):
                    end.release(entity)
