"""A real connector behind proxies, whose connections are lost, and whose process is killed, at steps that a test names.

What it is: `Connector` around another one, for one side of a lease. Each end gets a proxy of its own, by which the other side
sees the same as in a real fault: a connection that is reset, or bytes that do not arrive. What it is not: a forged answer; the
system's bytes are passed on unchanged.

    | step | what happens when it is due |
    | --- | --- |
    | before delivery | the connection is lost when credit was given, before what arrived is read |
    | after delivery | what was read is reported, and the connection is lost |
    | before settlement, before store | the connection is lost, then the request is made |
    | after settlement, after store | the request is made, its answer is delayed, then the connection is lost |
    | after outcome | the answer is reported, and the connection is lost |

Invariants:
    I1. After `mute` nothing of this side reaches the system, and nothing of the system is reported.
    I2. A host whose side was killed ends by `Killed` at its next call, and closes nothing; `dispose` closes what is left.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from isthmus.bridge.delivery_event import Disposition, Outcome, Send
from isthmus.bridge.port import Arrived, Capabilities, Connector, Copies, SourceEvent, TargetEvent
from isthmus.bridge.refusal import Refusal
from isthmus.testing.bridge.fault import Faults, Killed, Step
from isthmus.testing.proxy import Proxy, Weather

__all__ = ["Gate", "Gates", "ScriptedConnector", "ScriptedSide"]

# How long an answer is delayed, so that the system has carried out the request.
HELD_SECONDS = 0.2
JOIN_SECONDS = 10.0
_STALLED = Weather(is_stalled=True)


class Gate:
    """The proxy of one end of one process, with its plans.

    Args:
        name: of the entity.
        proxy: before the system.
        faults: plans of the end; its other faults are ignored.

    Attributes:
        delivered: messages that were reported.
    """

    def __init__(self, name: str, proxy: Proxy, faults: Faults) -> None:
        self.name, self.proxy, self.faults = name, proxy, faults
        self.delivered = 0
        self._timers: list[threading.Timer] = []

    def pass_on(self, step: Step, count: int) -> None:
        """So many messages reach a step: a due plan loses the connection now.

        Raises:
            Killed: by the plan's action.
        """
        action = self.faults.due(step, count) if count else None
        if action is not None:
            self.proxy.cut()
            action()

    def hold_answer(self, step: Step, count: int) -> None:
        """The same, a little later; until then nothing comes from the system."""
        action = self.faults.due(step, count) if count else None
        if action is None:
            return
        self.proxy.set_weather(Weather(), _STALLED)

        def act() -> None:
            self.proxy.cut()
            self.proxy.set_weather(Weather())
            with contextlib.suppress(Killed):  # the host's thread ends by itself
                action()

        timer = threading.Timer(HELD_SECONDS, act)
        self._timers.append(timer)
        timer.start()

    def close(self) -> None:
        """Ends it."""
        for timer in self._timers:
            timer.cancel()
        for timer in self._timers:
            if timer is not threading.current_thread():
                timer.join(JOIN_SECONDS)  # one that has begun uses the proxy
        self.proxy.close()


class Gates(Protocol):
    """Makes gates, and gives the options with which an end connects through one."""

    def gate(self, kind: str, side: str, options: Mapping[str, str]) -> tuple[Gate, Mapping[str, str]]: ...


class ScriptedSide:
    """One side of a lease: for its systems, a process.

    Args:
        gates: makes gates.
        connectors: the real connector of a kind.

    Attributes:
        gates: of its ends, with `source` or `target`.
    """

    def __init__(self, gates: Gates, connectors: Callable[[str], Connector]) -> None:
        self.is_mute = self.is_dead = False
        self.gates: list[tuple[str, Gate]] = []
        self._makes, self._connectors = gates, connectors
        self._made: dict[str, ScriptedConnector] = {}
        self._pools: list[_Pool] = []

    def connector(self, kind: str) -> Connector:
        """The connector of a kind."""
        return self._made.setdefault(kind, ScriptedConnector(self, self._connectors(kind)))

    def gate(self, kind: str, side: str, options: Mapping[str, str]) -> tuple[Gate, Mapping[str, str]]:
        """The gate of a new end, and its options."""
        gate, changed = self._makes.gate(kind, side, options)
        self.gates.append((side, gate))
        if self.is_mute:
            gate.proxy.refuse()
        return gate, changed

    def add_pool(self, pool: _Pool) -> _Pool:
        """It is woken when the process is killed, and closed by `dispose`."""
        self._pools.append(pool)
        return pool

    def mute(self) -> None:
        """Cuts it off from its systems."""
        self.is_mute = True
        for _, gate in self.gates:
            gate.proxy.refuse()
            gate.proxy.cut()

    def kill(self) -> None:
        """Ends its hosts without closing anything."""
        self.is_dead = True
        self.mute()
        for pool in self._pools:
            pool.rouse()

    def dispose(self) -> None:
        """Closes what is left, after its hosts have ended."""
        self.mute()
        for pool in self._pools:
            pool.dispose()
        for _, gate in self.gates:
            gate.close()


class ScriptedConnector:
    """A kind behind gates."""

    def __init__(self, side: ScriptedSide, inner: Connector) -> None:
        self.kind = inner.kind
        self.capabilities: Capabilities = inner.capabilities
        self._side, self._inner = side, inner

    def sources(self) -> Any:
        """A new pool."""
        return self._side.add_pool(_Pool(self._side, self.kind, self._inner.sources()))

    def targets(self) -> Any:
        """A new pool."""
        return self._side.add_pool(_Pool(self._side, self.kind, self._inner.targets()))

    def refusal_of(self, error: Exception) -> Refusal:
        """What an error means."""
        return self._inner.refusal_of(error)


class _Pool:
    """A pool of sources or of targets."""

    def __init__(self, side: ScriptedSide, kind: str, inner: Any) -> None:
        self._side, self._kind, self._inner = side, kind, inner
        self._ends: list[_Source | _Target] = []
        self._reading, self._writing = socket.socketpair()
        self._is_closed = False

    def source(self, key: int, options: Mapping[str, str], **settings: Any) -> _Source:
        gate, changed = self._side.gate(self._kind, "source", options)
        made = _Source(self._side, gate, self._inner.source(key, changed, **settings))
        self._ends.append(made)
        return made

    def target(self, key: int, options: Mapping[str, str], **settings: Any) -> _Target:
        gate, changed = self._side.gate(self._kind, "target", options)
        made = _Target(self._side, gate, self._inner.target(key, changed, **settings))
        self._ends.append(made)
        return made

    def rouse(self) -> None:
        with contextlib.suppress(OSError):
            self._writing.send(b"\0")

    def descriptors(self) -> Sequence[tuple[int, int]]:
        return [*self._inner.descriptors(), (self._reading.fileno(), select.POLLIN)]

    def deadline(self, now: float) -> float:
        return float(self._inner.deadline(now))

    def service(self, ready: Mapping[int, int], now: float) -> Sequence[int]:
        if self._side.is_dead:
            raise Killed
        own = self._reading.fileno()
        for end in self._ends:
            if isinstance(end, _Source):
                end.before_delivery()
        keys: Sequence[int] = self._inner.service({each: ready[each] for each in ready if each != own}, now)
        return keys

    def flush(self) -> None:
        if self._side.is_dead:
            raise Killed
        self._inner.flush()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._inner.close()
            self._reading.close()
            self._writing.close()

    def dispose(self) -> None:
        for end in self._ends:
            with contextlib.suppress(Exception):
                end.inner.close()
        self.close()


class _Source:
    """A source behind its gate."""

    def __init__(self, side: ScriptedSide, gate: Gate, inner: Any) -> None:
        self.inner = inner
        self._side, self._gate = side, gate
        self._has_credit = False

    @property
    def clock_offset_ms(self) -> int | None:
        offset: int | None = self.inner.clock_offset_ms
        return offset

    def before_delivery(self) -> None:
        """Data may have arrived that is not read yet."""
        if self._has_credit and self._gate.faults.is_next(Step.BEFORE_DELIVERY):
            self._has_credit = False
            self._gate.pass_on(Step.BEFORE_DELIVERY, 1)

    def open(self) -> None:
        if not self._side.is_mute:
            self.inner.open()

    def poll(self, now: float) -> Sequence[SourceEvent]:
        if self._side.is_mute:
            return ()
        events: Sequence[SourceEvent] = self.inner.poll(now)
        count = sum(len(each.positions) for each in events if isinstance(each, Arrived))
        if count:
            self._gate.delivered += count
            self._gate.faults.skip(Step.BEFORE_DELIVERY, count)
            self._gate.pass_on(Step.AFTER_DELIVERY, count)
        return events

    def deadline(self, now: float) -> float:
        return float(self.inner.deadline(now))

    def grant(self, credit: int) -> None:
        if not self._side.is_mute:
            self._has_credit = credit > 0
            self.inner.grant(credit)

    def drain(self) -> None:
        if not self._side.is_mute:
            self.inner.drain()

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        if self._side.is_mute:
            return
        self._gate.pass_on(Step.BEFORE_SETTLE, last - first + 1)
        self._gate.hold_answer(Step.AFTER_SETTLE, last - first + 1)
        self.inner.settle(first, last, disposition)

    def release(self, first: int, last: int) -> None:
        if not self._side.is_mute:
            self.inner.release(first, last)

    def close(self) -> None:
        if not self._side.is_mute:
            self.inner.close()

    @property
    def has_left(self) -> bool:
        return self._side.is_mute or bool(self.inner.has_left)


class _Target:
    """A target behind its gate."""

    def __init__(self, side: ScriptedSide, gate: Gate, inner: Any) -> None:
        self.inner = inner
        self._side, self._gate = side, gate

    def open(self) -> None:
        if not self._side.is_mute:
            self.inner.open()

    def poll(self, now: float) -> Sequence[TargetEvent]:
        if self._side.is_mute:
            return ()
        events: Sequence[TargetEvent] = self.inner.poll(now)
        count = sum(each.last - each.first + 1 for each in events if isinstance(each, Outcome))
        self._gate.pass_on(Step.AFTER_OUTCOME, count)
        return events

    def deadline(self, now: float) -> float:
        return float(self.inner.deadline(now))

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        copies: Copies = self.inner.copies(data, offsets, now_ms)
        return copies

    def send(self, send: Send) -> None:
        if self._side.is_mute:
            return
        self._gate.pass_on(Step.BEFORE_STORE, len(send.payloads))
        self._gate.hold_answer(Step.AFTER_STORE, len(send.payloads))
        self.inner.send(send)

    def close(self) -> None:
        if not self._side.is_mute:
            self.inner.close()
