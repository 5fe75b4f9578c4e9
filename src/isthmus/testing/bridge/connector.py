"""The memory system as a connector: kinds `memory` and `memory-log`.

What it is: `isthmus.bridge.port.Connector` for one process of a test, whose pools wake their host by a real descriptor. A
killed connector does nothing more, and its host's thread ends by `Killed`, without closing anything.

Invariants:
    I1. An end is named by `service` after each change that concerns it.
    I2. After `kill` nothing changes at the system by this connector.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
from collections.abc import Mapping, Sequence
from functools import partial

from isthmus.bridge.port import Capabilities, SourcePool, TargetPool
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.errors import ConfigError, Fault
from isthmus.testing.bridge.fault import Killed
from isthmus.testing.bridge.source import MemorySource
from isthmus.testing.bridge.system import System
from isthmus.testing.bridge.target import MemoryTarget

__all__ = ["KINDS", "MemoryConnector", "MemorySourcePool", "MemoryTargetPool"]

KINDS = ("memory", "memory-log")


class _MemoryPool:
    """Base of both pools: the descriptor, and the keys of ends that changed."""

    def __init__(self, system: System, process: MemoryConnector) -> None:
        self._system, self._process = system, process
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        self._lock = threading.Lock()
        self._woken: dict[int, None] = {}
        self._is_closed = False

    def _is_mute(self) -> bool:
        return self._process.is_mute

    def wake(self, key: int) -> None:
        """Lets `service` name an end; callable from any thread."""
        with self._lock:
            if self._is_closed or key in self._woken:
                return
            self._woken[key] = None
            self._rouse()

    def rouse(self) -> None:
        """Wakes the loop."""
        with self._lock:
            self._rouse()

    def _rouse(self) -> None:
        if not self._is_closed:
            with contextlib.suppress(BlockingIOError):
                self._writing.send(b"\0")

    def descriptors(self) -> Sequence[tuple[int, int]]:
        return [(self._reading.fileno(), select.POLLIN)]

    def deadline(self, now: float) -> float:
        return math.inf

    def service(self, ready: Mapping[int, int], now: float) -> Sequence[int]:
        if self._process.is_dead:
            raise Killed
        if self._reading.fileno() not in ready:
            return ()
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                while self._reading.recv(4096):
                    pass
            woken, self._woken = list(self._woken), {}
        return woken

    def flush(self) -> None:
        if self._process.is_dead:
            raise Killed

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._reading.close()
            self._writing.close()


def _entity_of(options: Mapping[str, str]) -> str:
    unknown = sorted(set(options) - {"entity"})
    if unknown or "entity" not in options:
        text = f"option '{unknown[0]}' is unknown; known is entity" if unknown else "option 'entity' is missing"
        raise ConfigError([Fault("", text)])
    return options["entity"]


class MemorySourcePool(_MemoryPool):
    """A pool of sources."""

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> MemorySource:
        wake = partial(self.wake, key)
        name = _entity_of(options)
        return MemorySource(self._system, name, wake, self._is_mute, ordered=ordered, only_present=only_present)


class MemoryTargetPool(_MemoryPool):
    """A pool of targets."""

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> MemoryTarget:
        return MemoryTarget(self._system, _entity_of(options), partial(self.wake, key), self._is_mute)


class MemoryConnector:
    """A kind of the memory system in one process of a test.

    Args:
        system: the system.
        kind: one of `KINDS`.

    Attributes:
        is_dead: whether the process was killed.
        is_mute: whether it was muted, and does nothing more.
    """

    def __init__(self, system: System, kind: str = "memory") -> None:
        self.kind = kind
        is_log = kind == "memory-log"
        self.capabilities = Capabilities(is_log=is_log)
        self.is_dead = False
        self.is_mute = False
        self._system = system
        self._pools: list[_MemoryPool] = []

    def sources(self) -> SourcePool:
        pool = MemorySourcePool(self._system, self)
        self._pools.append(pool)
        self._system.closing.append(pool.close)
        return pool

    def targets(self) -> TargetPool:
        pool = MemoryTargetPool(self._system, self)
        self._pools.append(pool)
        self._system.closing.append(pool.close)
        return pool

    def refusal_of(self, error: Exception) -> Refusal:
        return Refusal(RefusalKind.UNCLEAR, type(error).__name__, str(error))

    def mute(self) -> None:
        """From now on this connector changes nothing at the system, and reports nothing."""
        self.is_mute = True

    def kill(self) -> None:
        """Ends the process of this connector as kill -9 does, as far as the system can see."""
        self.is_mute = self.is_dead = True
        for pool in self._pools:
            pool.rouse()
