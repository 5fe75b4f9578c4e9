"""One route's source in the memory system.

What it is: `isthmus.bridge.port.Source` over an `Entity`, with its faults. Requests made while it is not connected wait for
the next opening, as the port says (I2). What it is not: safe from several threads; its pool's loop calls it.

Invariants:
    I1. It never has more messages in transit than it was granted.
    I2. After `close`, and once its process is killed, it reports and changes nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Blocked, Drained, Exhausted, SourceEvent, SourceLost, SourceOpened
from isthmus.testing.bridge.entity import Entity, Stored
from isthmus.testing.bridge.fault import Step
from isthmus.testing.bridge.system import System

__all__ = ["MemorySource"]

# As many messages at once as one read of a socket may bring.
_BATCH = 100
_RENEW_PART = 0.5


class MemorySource:
    """A receiver.

    Args:
        system: where its entity is.
        name: of the entity.
        wake: lets the pool name this end.
        ordered: see `SourcePool.source`.
        only_present: see `SourcePool.source`.
        is_dead: whether its process was killed.
    """

    def __init__(
        self,
        system: System,
        name: str,
        wake: Callable[[], None],
        is_dead: Callable[[], bool],
        *,
        ordered: bool,
        only_present: bool,
    ) -> None:
        self._system, self._name, self._wake, self._is_dead = system, name, wake, is_dead
        self._ordered, self._only_present = ordered, only_present
        self._state = "closed"
        self._credit = 0
        self._draining = False
        self._blocked = 0
        self._below: list[int] | None = None
        self._exhausted = False
        self._tokens: dict[int, int] = {}  # of unsettled deliveries
        self._queued: deque[tuple[float, Callable[[Entity], bool]]] = deque()
        self._events: list[SourceEvent] = []
        self._renew_at = math.inf

    @property
    def clock_offset_ms(self) -> int | None:
        return self._system.clock_offset_ms

    # ---- requests of the host

    def open(self) -> None:
        if self._state == "ended" or self._is_dead():
            return
        assert self._state == "closed", "open of a source that is open"
        self._state = "opening"
        self._system.listen(self._name, self, self._wake)
        self._wake()

    def grant(self, credit: int) -> None:
        self._credit = credit
        self._draining = False
        self._wake()

    def drain(self) -> None:
        self._credit = 0
        self._draining = True
        self._wake()

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        self._end(first, last, lambda entity, position, token: self._settle_one(entity, position, token, disposition))

    def release(self, first: int, last: int) -> None:
        self._end(first, last, self._release_one)

    def close(self) -> None:
        if self._state == "ended" or self._is_dead():
            return
        if self._state == "open":  # earlier requests are sent before the end of the connection
            with self._system.lock:
                self._run_queued(math.inf)
        self._state = "ended"
        self._events.clear()
        self._system.forget(self._name, self)

    @property
    def has_left(self) -> bool:
        return True

    def poll(self, now: float) -> Sequence[SourceEvent]:
        if self._state in ("ended", "closed") or self._is_dead():
            return ()
        with self._system.lock:
            self._step(now)
        if self._is_dead():
            return ()
        events, self._events = self._events, []
        return events

    def deadline(self, now: float) -> float:
        if self._state != "open":
            return math.inf
        due = self._queued[0][0] if self._queued else math.inf
        with self._system.lock:
            entity = self._system.find(self._name)
            if entity is None:
                return now
            if self._credit:
                due = min(due, self._system.local(entity.next_expiry()))
        return max(now, min(due, self._renew_at)) if due < math.inf or self._renew_at < math.inf else math.inf

    # ---- the connection

    def _step(self, now: float) -> None:
        entity = self._system.find(self._name)
        if entity is None:
            self._lose(f"there is no entity '{self._name}'", is_fatal=True)
            return
        if entity.faults.is_away:
            entity.faults.attempts += 1
            self._lose("the connection was refused")
            return
        if self._state == "opening" and not self._connect(entity):
            return
        self._run_queued(now)
        if self._state == "open":
            self._renew(entity, now)
            self._deliver(entity)
        if self._state == "open" and self._draining:
            self._draining = False
            self._events.append(Drained())

    def _connect(self, entity: Entity) -> bool:
        if entity.faults.refuse_opens:
            entity.faults.refuse_opens -= 1
            self._lose("the connection was refused")
            return False
        self._state, self._credit, self._draining, self._blocked = "open", 0, False, 0
        entity.opened(self)
        if entity.is_log:  # it was fenced off by another reader, or continues
            self._tokens = {
                at: token for at, token in self._tokens.items() if entity.renew(at, token, self._system.now)
            }
        elif self._tokens:
            self._renew_at = 0.0
        if self._only_present and self._below is None:
            self._below = entity.ends()
        self._events.append(SourceOpened(self._system.identity))
        return True

    def _lose(self, text: str, *, is_fatal: bool = False) -> None:
        self._state = "closed"
        self._system.forget(self._name, self)
        self._events.append(SourceLost(text, is_fatal))

    def _renew(self, entity: Entity, now: float) -> None:
        if now < self._renew_at:
            return
        for position, token in self._tokens.items():
            entity.renew(position, token, self._system.now)
        self._plan_renewal(entity, now)

    def _plan_renewal(self, entity: Entity, now: float) -> None:
        self._renew_at = math.inf if entity.is_log or not self._tokens else now + entity.lock_seconds * _RENEW_PART

    # ---- delivery

    def _deliver(self, entity: Entity) -> None:
        if self._credit and not entity.faults.stops:
            count = min(self._credit, _BATCH)
            taken = entity.take(self, count, ordered=self._ordered, now=self._system.now, below=self._below)
            self._credit -= len(taken)
            self._report(entity, taken)
            if self._state != "open":
                return
            if len(taken) == count and self._credit:
                self._wake()
        blocked = entity.blocker(self) if self._ordered and self._credit else 0
        if blocked != self._blocked:
            self._blocked = blocked
            self._events.append(Blocked(blocked))
        if self._below is not None and not self._exhausted and not entity.has_waiting(self._below):
            self._exhausted = True
            self._events.append(Exhausted())

    def _report(self, entity: Entity, taken: Sequence[Stored]) -> None:
        positions: list[int] = []
        payloads: list[bytes] = []
        lost_at = -1
        for index, stored in enumerate(taken):
            if not entity.faults.passes(Step.BEFORE_DELIVERY):
                lost_at = index
                break
            positions.append(stored.position)
            payloads.append(stored.payload)
            self._tokens[stored.position] = stored.token
            if not entity.faults.passes(Step.AFTER_DELIVERY):
                lost_at = index + 1
                break
        if positions:
            if self._renew_at == math.inf:
                self._plan_renewal(entity, self._system.local(self._system.now))
            self._events.append(Arrived(positions, payloads))
            self._repeat(entity, positions, payloads)
        if lost_at >= 0:
            for stored in taken[lost_at:]:  # they were not received: the system gives them to the next receiver
                entity.release(stored.position, stored.token)
            self._lose("the connection was lost")

    def _repeat(self, entity: Entity, positions: list[int], payloads: list[bytes]) -> None:
        """Delivers the last deliveries again, as a system does whose lock was lost."""
        count = min(entity.faults.duplicate_deliveries, len(positions))
        if count:
            entity.faults.duplicate_deliveries -= count
            self._events.append(Arrived(positions[:count], payloads[:count]))

    # ---- settlement

    def _end(self, first: int, last: int, end_one: Callable[[Entity, int, int], bool]) -> None:
        if self._state == "ended" or self._is_dead():
            return
        positions = [first] if first == last else sorted(at for at in self._tokens if first <= at <= last)

        def act(entity: Entity) -> bool:
            while positions:
                token = self._tokens.get(positions[0])
                if token is not None and not end_one(entity, positions[0], token):
                    return False
                positions.pop(0)
            return True

        with self._system.lock:
            entity = self._system.find(self._name)
            delay = entity.faults.settle_seconds if entity is not None else 0.0
            now = self._system.local(self._system.now)
        self._queued.append((now + delay, act))
        self._wake()

    def _run_queued(self, now: float) -> None:
        entity = self._system.find(self._name)
        while entity is not None and self._queued and self._queued[0][0] <= now:
            if not self._queued[0][1](entity):
                self._lose("the connection was lost")
                return
            self._queued.popleft()
            self._system.touch(self._name)

    def _settle_one(self, entity: Entity, position: int, token: int, disposition: Disposition | None) -> bool:
        if not entity.faults.passes(Step.BEFORE_SETTLE):
            return False
        if self._is_dead():
            return True
        entity.settle(position, token, disposition, self._system.now)
        del self._tokens[position]
        return entity.faults.passes(Step.AFTER_SETTLE)

    def _release_one(self, entity: Entity, position: int, token: int) -> bool:
        if not entity.faults.passes(Step.BEFORE_RELEASE):
            return False
        if self._is_dead():
            return True
        entity.release(position, token)
        del self._tokens[position]
        return True
