"""One route's target in the memory system.

What it is: `isthmus.bridge.port.Target` over an `Entity`, with its faults. A delivery is processed when its latency has passed: it
is refused, or stored, and then its outcome is reported, many as one range. What it is not: safe from several threads.

Invariants:
    I1. A delivery is stored before its outcome is reported, and at most once in a connection.
    I2. No more deliveries than the reported credit are in flight; one more is an error of the caller.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from isthmus.bridge.delivery_event import Disposition, Granted, Lost, Opened, Outcome, Send
from isthmus.bridge.port import Copies, TargetEvent
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.testing.bridge.entity import Entity
from isthmus.testing.bridge.fault import Step
from isthmus.testing.bridge.message import UNREADABLE, key_of
from isthmus.testing.bridge.system import System

__all__ = ["MemoryTarget"]

_LOST = Refusal(RefusalKind.UNKNOWN, "connection:lost", "the connection was lost")
_REFUSED = Refusal(RefusalKind.BLOCKED, "connection:refused", "the connection was refused")


class MemoryTarget:
    """A sender.

    Args:
        system: where its entity is.
        name: of the entity.
        wake: lets the pool name this end.
        is_dead: whether its process was killed.
    """

    def __init__(self, system: System, name: str, wake: Callable[[], None], is_dead: Callable[[], bool]) -> None:
        self._system, self._name, self._wake, self._is_dead = system, name, wake, is_dead
        self._state = "closed"
        self._credit = 0
        self._reported_credit = -1
        self._next = 0
        self._under_way: deque[tuple[float, int, Sequence[bytes]]] = deque()  # due, ordinal, payloads of one delivery
        self._events: list[TargetEvent] = []

    def open(self) -> None:
        if self._state == "ended" or self._is_dead():
            return
        assert self._state == "closed", "open of a target that is open"
        self._state = "opening"
        self._system.listen(self._name, self, self._wake)
        self._wake()

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        payloads: list[bytes] = []
        rows: list[int] = []
        disposed: list[tuple[int, Disposition]] = []
        for row in range(len(offsets) - 1):
            payload = data[offsets[row] : offsets[row + 1]]
            if payload.startswith(UNREADABLE[:2]):
                disposed.append((row, Disposition("dead-letter", "Unreadable", "the message is no AMQP message")))
            else:
                payloads.append(payload)
                rows.append(row)
        entity = self._system.find(self._name)
        if entity is not None:
            entity.copied_at_ms.append(now_ms)
        return Copies(payloads, disposed, rows if disposed else None)

    def send(self, send: Send) -> None:
        if self._state != "open" or self._is_dead():
            return
        entity = self._system.find(self._name)
        due = self._system.local(self._system.now) + (entity.faults.latency_seconds if entity is not None else 0.0)
        for group in [list(send.payloads)] if send.is_envelope else [[payload] for payload in send.payloads]:
            self._under_way.append((due, self._next, group))
            self._next += 1
            self._credit -= 1
        assert self._credit >= 0, "more was sent than the target granted"
        self._wake()

    def close(self) -> None:
        self._state = "ended"
        self._events.clear()
        self._system.forget(self._name, self)

    def poll(self, now: float) -> Sequence[TargetEvent]:
        if self._state in ("ended", "closed") or self._is_dead():
            return ()
        with self._system.lock:
            self._step(now)
        if self._is_dead():
            return ()
        events, self._events = self._events, []
        return events

    def deadline(self, now: float) -> float:
        if self._state != "open" or not self._under_way:
            return math.inf
        entity = self._system.find(self._name)
        return math.inf if entity is not None and entity.faults.hangs else max(now, self._under_way[0][0])

    def _step(self, now: float) -> None:
        entity = self._system.find(self._name)
        if entity is None:
            self._lose(Refusal(RefusalKind.FATAL, "not-found", f"there is no entity '{self._name}'"))
            return
        if entity.faults.is_away:
            entity.faults.attempts += 1
            self._lose(_REFUSED)
            return
        if self._state == "opening":
            if entity.faults.refuse_opens:
                entity.faults.refuse_opens -= 1
                self._lose(_REFUSED)
                return
            self._state, self._next, self._credit, self._reported_credit = "open", 0, 0, -1
            self._under_way.clear()
            self._events.append(Opened(entity.message_bytes))
        if entity.faults.hangs:
            return
        self._take(entity, now)
        if self._state == "open":
            credit = entity.credit - len(self._under_way)
            if credit != self._credit or credit != self._reported_credit:
                self._credit = self._reported_credit = credit
                self._events.append(Granted(credit))

    def _take(self, entity: Entity, now: float) -> None:
        """Processes the deliveries that are due."""
        outcomes: dict[int, Refusal | None] = {}
        while self._under_way and self._under_way[0][0] <= now:
            if not entity.faults.passes(Step.BEFORE_STORE):
                self._finish(entity, outcomes, _LOST)
                return
            _, ordinal, group = self._under_way.popleft()
            refusal = self._verdict(entity, group)
            outcomes[ordinal] = refusal
            if refusal is not None:
                continue
            if self._is_dead():
                return
            for payload in group:
                entity.put(payload, key_of(payload))
            if not entity.faults.passes(Step.AFTER_STORE):
                del outcomes[ordinal]
                self._finish(entity, outcomes, _LOST)
                return
        self._finish(entity, outcomes)

    def _verdict(self, entity: Entity, group: Sequence[bytes]) -> Refusal | None:
        faults = entity.faults
        if faults.busy is not None:
            return faults.busy
        for payload in group:
            if entity.message_bytes and len(payload) > entity.message_bytes:
                return Refusal(RefusalKind.MESSAGE, "link:message-size-exceeded", "too large", "MessageTooLarge")
            refusal = faults.verdict(key_of(payload)) if faults.verdict is not None else None
            if refusal is not None:
                return refusal
        return None

    def _finish(self, entity: Entity, outcomes: dict[int, Refusal | None], lost: Refusal | None = None) -> None:
        order = list(outcomes)
        if entity.faults.shuffle is not None:
            entity.faults.shuffle(order)
        ranges: list[Outcome] = []
        for ordinal in order:
            refusal = outcomes[ordinal]
            if ranges and ranges[-1].last + 1 == ordinal and ranges[-1].refusal == refusal:
                ranges[-1] = Outcome(ranges[-1].first, ordinal, refusal)
            else:
                ranges.append(Outcome(ordinal, ordinal, refusal))
        self._events += ranges
        for ordinal in order:
            if outcomes[ordinal] is None and lost is None and not entity.faults.passes(Step.AFTER_OUTCOME):
                lost = _LOST
        if order:
            self._system.touch(self._name)
        if lost is not None:
            self._lose(lost)

    def _lose(self, refusal: Refusal) -> None:
        self._state = "closed"
        self._under_way.clear()
        self._system.forget(self._name, self)
        self._events.append(Lost(refusal))
