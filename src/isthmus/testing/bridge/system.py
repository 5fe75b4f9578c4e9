"""The memory system: its entities, its clock, and the ends that wait for a change.

What it is: the state that all connectors of a test share; every call is safe from any thread. What it is not: a connector.

Invariants:
    I1. After a change every end that is connected to the entity is woken through its pool's descriptor.
    I2. The system's clock is the machine's monotonic clock plus what `advance` added; its wall clock is that plus an offset.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from isthmus.testing.bridge.entity import Entity
from isthmus.testing.bridge.message import message

__all__ = ["System"]

Wake = Callable[[], None]


class System:
    """A message system.

    Attributes:
        identity: the identity that its sources report.
        wall_skew_ms: how far its wall clock is ahead of the machine's.
        lock: guards all entities.
        closing: what `close` calls, e.g. to close the descriptors of pools whose process was killed.
    """

    def __init__(self, identity: str = "memory") -> None:
        self.identity = identity
        self.wall_skew_ms = 0
        self.lock = threading.RLock()
        self.closing: list[Callable[[], None]] = []
        self._skew_seconds = 0.0
        self._entities: dict[str, Entity] = {}
        self._wakes: dict[str, dict[object, Wake]] = {}

    def close(self) -> None:
        """Ends it, after all hosts have ended."""
        for each in self.closing:
            each()

    # ---- clock

    @property
    def now(self) -> float:
        """The system's time, in seconds."""
        return time.monotonic() + self._skew_seconds

    def local(self, at: float) -> float:
        """A time of the system as monotonic time of this machine."""
        return at - self._skew_seconds

    @property
    def clock_offset_ms(self) -> int:
        """The system's wall time minus monotonic time."""
        return int((time.time() - time.monotonic()) * 1000) + self.wall_skew_ms

    def advance(self, seconds: float) -> None:
        """Lets time pass at the system, e.g. so that locks end."""
        with self.lock:
            self._skew_seconds += seconds
            for entity in self._entities.values():
                entity.expire(self.now)
        self.touch()

    # ---- entities

    def queue(self, name: str, **settings: Any) -> Entity:
        """Makes a queue."""
        return self._add(Entity(name, **settings))

    def log(self, name: str, **settings: Any) -> Entity:
        """Makes a log."""
        return self._add(Entity(name, is_log=True, **settings))

    def _add(self, entity: Entity) -> Entity:
        with self.lock:
            return self._entities.setdefault(entity.name, entity)

    def entity(self, name: str) -> Entity:
        """The entity of that name.

        Raises:
            KeyError: there is none.
        """
        return self._entities[name]

    def find(self, name: str) -> Entity | None:
        """The entity of that name, None where there is none or it is gone."""
        entity = self._entities.get(name)
        return None if entity is None or entity.faults.is_gone else entity

    def publish(
        self, name: str, start: int, stop: int, *, body: bytes = b"", prefix: str = "", ttl_ms: int = 0
    ) -> list[str]:
        """Puts messages start up to stop into an entity; their keys, `prefix/number`, where the prefix is the entity's name."""
        keys = [f"{prefix or name}/{number}" for number in range(start, stop)]
        created_ms = int(time.monotonic() * 1000) + self.clock_offset_ms
        with self.lock:
            for key in keys:
                self._entities[name].put(message(key, body, created_ms, ttl_ms), key)
        self.touch(name)
        return keys

    def put(self, name: str, payload: bytes, key: str) -> None:
        """Puts one message as it is."""
        with self.lock:
            self._entities[name].put(payload, key)
        self.touch(name)

    # ---- waking

    def listen(self, name: str, owner: object, wake: Wake) -> None:
        """Wakes an end whenever the entity changes."""
        with self.lock:
            self._wakes.setdefault(name, {})[owner] = wake

    def forget(self, name: str, owner: object) -> None:
        """Stops waking it."""
        with self.lock:
            self._wakes.get(name, {}).pop(owner, None)

    def touch(self, name: str = "") -> None:
        """Wakes the ends at an entity that changed, or at all."""
        with self.lock:
            names = [name] if name else list(self._wakes)
            wakes = [wake for each in names for wake in self._wakes.get(each, {}).values()]
        for wake in wakes:
            wake()
