"""A source in memory, as small as the port allows."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Capabilities, Drained, Exhausted, SourceEvent, SourceLost, SourceOpened


class FakeSystem:
    """Queues by name, and what was done to them. The test's thread puts messages; the reader's thread takes them."""

    kind = "fake"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: dict[str, deque[tuple[int, bytes]]] = {}
        self.unsettled: dict[str, dict[int, bytes]] = {}
        self.settled: list[tuple[str, int, Disposition | None]] = []
        self.released: list[tuple[str, int]] = []
        self.credits: list[tuple[str, int]] = []
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.staying: set[str] = set()
        """Sources that do not leave when they are closed."""
        self.refusing: dict[str, SourceLost] = {}
        self.raising: set[str] = set()
        self.polls = 0
        self.clock_offset_ms = 1_000
        self.pools: list[FakePool] = []

    def sources(self) -> Any:
        pool = FakePool(self)
        self.pools.append(pool)
        return pool

    def targets(self) -> Any:
        raise NotImplementedError

    def refusal_of(self, error: Exception) -> Any:
        raise NotImplementedError

    def put(self, name: str, *positions: int, payload: bytes = b"x") -> None:
        with self.lock:
            self.waiting.setdefault(name, deque()).extend((position, payload) for position in positions)
        self.wake(name)

    def lose(self, name: str, lost: SourceLost) -> None:
        """Breaks the connection of a source that is open."""
        for pool in self.pools:
            for source in list(pool.by_key.values()):
                if source.name == name:
                    source.events.append(lost)
        self.wake(name)

    def wake(self, name: str) -> None:
        for pool in self.pools:
            pool.wake(name)


class FakePool:
    def __init__(self, system: FakeSystem) -> None:
        self.system = system
        self.by_key: dict[int, FakeSource] = {}
        self.ready: deque[int] = deque()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self.is_closed = False

    def wake(self, name: str) -> None:
        for key, source in list(self.by_key.items()):
            if source.name == name:
                self.ready.append(key)
        if not self.is_closed:
            os.write(self._write, b"x")

    def descriptors(self) -> Sequence[tuple[int, int]]:
        return [(self._read, select.POLLIN)]

    def deadline(self, now: float) -> float:
        return now if self.ready else float("inf")

    def service(self, ready: Mapping[int, int], now: float) -> Sequence[int]:
        if self._read in ready:
            os.read(self._read, 4096)
        keys = []
        while self.ready:
            keys.append(self.ready.popleft())
        return keys

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True
        os.close(self._read)
        os.close(self._write)

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> FakeSource:
        self.by_key[key] = FakeSource(self, key, options["queue"], only_present)
        return self.by_key[key]


class FakeSource:
    def __init__(self, pool: FakePool, key: int, name: str, only_present: bool) -> None:
        self.name = name
        self.events: deque[SourceEvent] = deque()
        self._pool = pool
        self._system = pool.system
        self._key = key
        self._only_present = only_present
        self._credit = 0
        self._is_open = False

    @property
    def clock_offset_ms(self) -> int | None:
        return self._system.clock_offset_ms

    def _ready(self) -> None:
        self._pool.ready.append(self._key)

    def open(self) -> None:
        self._system.opened.append(self.name)
        refused = self._system.refusing.get(self.name)
        self._is_open = refused is None
        self.events.append(refused or SourceOpened("ns"))
        self._ready()

    def poll(self, now: float) -> Sequence[SourceEvent]:
        system = self._system
        system.polls += 1
        if self.name in system.raising:
            raise RuntimeError("the source broke")
        events = list(self.events)
        self.events.clear()
        if any(isinstance(event, SourceLost) for event in events):
            self._is_open, self._credit = False, 0
        with system.lock:
            waiting = system.waiting.setdefault(self.name, deque())
            taken = [waiting.popleft() for _ in range(min(self._credit, len(waiting)))] if self._is_open else []
        if taken:
            self._credit -= len(taken)
            system.unsettled.setdefault(self.name, {}).update(taken)
            events.append(Arrived([position for position, _ in taken], [payload for _, payload in taken]))
        if self._only_present and self._is_open and not waiting:
            events.append(Exhausted())
        return events

    def deadline(self, now: float) -> float:
        return float("inf")

    def grant(self, credit: int) -> None:
        self._system.credits.append((self.name, credit))
        self._credit = credit
        self._ready()

    def drain(self) -> None:
        self._credit = 0
        self.events.append(Drained())
        self._ready()

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        for position in range(first, last + 1):
            if self._system.unsettled.get(self.name, {}).pop(position, None) is not None:
                self._system.settled.append((self.name, position, disposition))

    def release(self, first: int, last: int) -> None:
        unsettled = self._system.unsettled.get(self.name, {})
        with self._system.lock:
            for position in range(last, first - 1, -1):
                payload = unsettled.pop(position, None)
                if payload is not None:
                    self._system.waiting[self.name].appendleft((position, payload))
                    self._system.released.append((self.name, position))

    def close(self) -> None:
        self._is_open = False
        self._system.closed.append(self.name)
        self._pool.by_key.pop(self._key, None)

    @property
    def has_left(self) -> bool:
        return self.name not in self._system.staying
