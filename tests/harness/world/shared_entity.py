"""The entities of `shared_world`, and the connectors that lead there: queues with locks, and targets that refuse, hang and become unavailable.

A queue outlives the processes that read it: a link that is closed, or whose process is killed, leaves its locks behind. What a link settles
is taken in later, in order, and is lost with its connection. A target processes what it was sent on its own, whichever sink sent it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isthmus.bridge.delivery_event import Disposition, Granted, Lost, Opened, Outcome, Send, Stopped
from isthmus.bridge.port import Arrived, Capabilities, Copies, Drained, SourceLost, SourceOpened
from isthmus.bridge.refusal import Refusal, RefusalKind

if TYPE_CHECKING:
    from harness.world.shared_world import SharedWorld

__all__ = ["BAD", "Entity", "Queue", "Connector"]

LOCK_SECONDS = 5.0
BLOCKED = Refusal(RefusalKind.BLOCKED, "busy", "the target is busy")
UNCLEAR = Refusal(RefusalKind.UNCLEAR, "odd", "no reason is given")
BAD = Refusal(RefusalKind.MESSAGE, "bad", "the message is malformed")
_AWAY = Refusal(RefusalKind.UNKNOWN, "", "the connection is lost")
_NOT_FOUND = Refusal(RefusalKind.FATAL, "gone", "no such entity")


class Queue:
    """What one route reads.

    Attributes:
        ready: positions that no link has.
        locks: by position, the link that has it, and until when if that link is closed.
        settled: by position, what it was settled with.
        given: by position, how often it was given: each lock is another.
    """

    def __init__(self, world: SharedWorld, name: str) -> None:
        self.world, self.name = world, name
        self.ready: list[int] = []
        self.locks: dict[int, tuple[Link, float]] = {}
        self.settled: dict[int, str] = {}
        self.given: Counter[int] = Counter()

    def publish(self, positions: Sequence[int]) -> None:
        """Messages come."""
        self.ready = sorted([*self.ready, *positions])

    def expire(self) -> None:
        """Locks end."""
        self.give_back([position for position, (_, until) in self.locks.items() if until <= self.world.now])

    def give_back(self, positions: Sequence[int]) -> None:
        """They may be read again."""
        for position in positions:
            del self.locks[position]
        self.ready = sorted([*self.ready, *positions])

    def leave(self, link: Link, seconds: float) -> None:
        """What a link has is locked for a while."""
        until = self.world.now + seconds
        for position, (of, ends) in self.locks.items():
            if of is link:
                self.locks[position] = link, min(ends, until)

    def take(self, link: Link, most: int) -> list[int]:
        """The next messages, in order: behind what is locked otherwise, or is being returned, nothing is given."""
        others = [at for at, (of, until) in self.locks.items() if of is not link or until < math.inf]
        others += [at for _, at, kind, _ in link.written if kind == "release"]
        limit = min(others, default=math.inf)
        taken = list(itertools.takewhile(lambda each: each < limit, self.ready))[:most]
        self.ready = self.ready[len(taken) :]
        self.locks.update(dict.fromkeys(taken, (link, math.inf)))
        self.given.update(taken)
        return taken


class Link:
    """One opening of a queue, as a source of the bridge."""

    clock_offset_ms = None

    def __init__(self, world: SharedWorld, key: int, queue: Queue) -> None:
        self.world, self.key, self.queue = world, key, queue
        self.state = "closed"
        self.credit = 0
        self.draining = False
        self.answer_at = math.inf
        self.events: list[Any] = []
        self.written: deque[tuple[float, int, str, int]] = deque()  # when the queue takes it in: position, what, lock
        self.is_closed = False

    # ---- the port

    def open(self) -> None:
        self.state, self.answer_at = "opening", self.world.soon()

    def poll(self, now: float) -> Sequence[Any]:
        events, self.events = self.events, []
        return events

    def deadline(self, now: float) -> float:
        return math.inf

    def grant(self, credit: int) -> None:
        if self.state != "open":
            return  # the loss was not reported to its reader yet
        self.world.expect(not self.draining, f"{self.queue.name}: credit before the answer to a drain")
        self.world.check_granted(self.queue.name)
        self.credit = credit

    def drain(self) -> None:
        self.draining = self.state == "open"

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        for position in range(first, last + 1):
            kind = "complete" if disposition is None else disposition.kind
            self.world.check_settled(self.queue.name, position, disposition)
            self._write(position, kind)

    def release(self, first: int, last: int) -> None:
        for position in range(first, last + 1):
            self._write(position, "release")

    def _write(self, position: int, kind: str) -> None:
        of, until = self.queue.locks.get(position, (None, 0.0))
        if of is self and until == math.inf:  # else it has lost the lock
            self.written.append((self.world.soon(), position, kind, self.queue.given[position]))

    def close(self) -> None:
        self.is_closed = True
        unreported = {at for event in self.events if isinstance(event, Arrived) for at in event.positions}
        self.events.clear()
        self.credit, self.draining = 0, False
        if self.state == "open":
            out = {each for each, (of, until) in self.queue.locks.items() if of is self and until == math.inf}
            out -= {position for _, position, _, _ in self.written} | unreported
            self.world.expect(not out, f"{self.queue.name} is closed with {out}, neither settled nor given back")
        else:
            self.written.clear()
        if not self.written:
            self._left()

    @property
    def has_left(self) -> bool:
        return self.state == "left"

    def _left(self) -> None:
        self.state = "left"
        self.events.clear()
        self.queue.leave(self, LOCK_SECONDS)

    # ---- the world

    def kill(self) -> None:
        """Its process has ended, and some of what was written is lost."""
        for _ in range(self.world.choose.randint(0, len(self.written))):
            self._take_in()
        self.written.clear()
        self.is_closed, self.state = True, "left"
        self.queue.leave(self, self.world.choose.choice([0.0, LOCK_SECONDS]))

    def _lose(self, reported: SourceLost) -> None:
        """The connection ends: what was written and not taken in comes again, sooner or later."""
        world, choose = self.world, self.world.choose
        for _ in range(choose.randint(0, len(self.written))):
            self._take_in()
        for _, position, kind, lock in self.written:
            if self.queue.locks.get(position, (None, 0.0))[0] is self and self.queue.given[position] == lock:
                if kind == "complete" and not (reported.is_fatal or self.is_closed):
                    self.world.lost_completion(self.queue.name, position)
                self.queue.locks[position] = self, world.now + choose.choice([0.0, 1.0, LOCK_SECONDS])
        self.written.clear()
        if reported.is_fatal:
            self.world.forget_completions(self.queue.name)
        self.state, self.credit, self.draining = "lost", 0, False
        if self.is_closed:
            self._left()
        else:
            self.events.append(reported)

    def _take_in(self) -> None:
        _, position, kind, lock = self.written.popleft()
        of, _ = self.queue.locks.get(position, (None, 0.0))
        if of is not self or self.queue.given[position] != lock:
            return  # it has lost the lock
        if kind == "release":
            self.queue.give_back([position])
        else:
            del self.queue.locks[position]
            self.queue.settled[position] = kind

    def step(self) -> None:
        """What happens without a call."""
        world, choose = self.world, self.world.choose
        if self.state == "opening" and world.now >= self.answer_at:
            if world.chance(0.2):
                self._lose(SourceLost("refused", world.chance(0.3)))
                return
            self.state = "open"
            self.events.append(SourceOpened("ns"))
        if self.state != "open":
            return
        if world.chance(0.006):
            world.fault(self.queue.name)
            self._lose(SourceLost("broke", world.chance(0.2)))
            return
        while self.written and self.written[0][0] <= world.now:
            self._take_in()
        if self.is_closed:
            if not self.written:
                self._left()
            return
        if world.chance(0.01):
            unsettled = [at for at, (of, until) in self.queue.locks.items() if of is self and until == math.inf]
            lost = choose.sample(unsettled, choose.randint(0, len(unsettled)))
            world.fault(self.queue.name)
            self.queue.give_back(lost)
        count = min(self.credit, choose.choice([1, 3, 1000]))
        taken = self.queue.take(self, count) if count and choose.random() < world.eager else []
        if taken:
            self.credit -= len(taken)
            self.events.append(Arrived(taken, [world.payload(self.queue.name, each) for each in taken]))
        if self.draining and choose.random() < 0.5:
            self.draining, self.credit = False, 0
            self.events.append(Drained())

    def due(self) -> float:
        """When `step` has something to do."""
        if self.state == "opening":
            return self.answer_at
        if self.state != "open":
            return math.inf
        if self.draining or (self.credit and self.queue.ready):
            return self.world.now
        return self.written[0][0] if self.written else math.inf


class Entity:
    """What routes send to.

    Attributes:
        accepted: (route, position) of what it has taken, in order.
        poison: what it refuses for itself.
        is_odd: whether it has refused messages without a reason that were not at fault.
        was_refused: the routes of which it has refused any.
        divides: whether it takes the messages of an envelope one by one.
    """

    def __init__(self, world: SharedWorld, name: str, limit_bytes: int) -> None:
        self.world, self.name, self.limit_bytes = world, name, limit_bytes
        self.accepted: list[tuple[str, int]] = []
        self.taken: set[tuple[str, int]] = set()
        self.poison: dict[tuple[str, int], Refusal] = {}
        self.busy_until = self.away_until = self.hangs_until = self.stopped_until = 0.0
        self.busy = BLOCKED
        self.is_odd = False
        self.was_refused: set[str] = set()
        self.divides = world.choose.random() < 0.5

    def verdict(self, group: list[tuple[str, int]]) -> Refusal | None:
        """Takes messages, or refuses them."""
        bad = [self.poison[each] for each in group if each in self.poison]
        refusal = bad[0] if bad else self.busy if self.world.now < self.busy_until else None
        if refusal is None:
            self.accepted += group
            self.taken.update(group)
        else:
            self.was_refused.update(route for route, _ in group)
        return refusal

    def outcome(self, ordinal: int, group: list[tuple[str, int]]) -> Outcome:
        """Takes a delivery, or refuses it, or a part of it."""
        if not self.divides or len(group) == 1:
            return Outcome(ordinal, ordinal, self.verdict(group))
        busy_until, taken, refusals = self.busy_until, [], []
        for number, message in enumerate(group):
            self.busy_until = busy_until if self.world.choose.random() < 0.7 else 0.0
            refusal = self.verdict([message])
            taken += [number] if refusal is None else []
            refusals += [] if refusal is None else [refusal]
        self.busy_until = busy_until
        return Outcome(ordinal, ordinal, refusals[0], tuple(taken)) if refusals else Outcome(ordinal, ordinal)


class TargetEnd:
    """One handle's connection to an entity, as a target of the bridge."""

    def __init__(self, world: SharedWorld, key: int, entity: Entity) -> None:
        self.world, self.key, self.entity = world, key, entity
        self.state = "closed"
        self.sent: deque[list[tuple[str, int]]] = deque()
        self.events: list[Any] = []
        self.unreported: list[Outcome] = []
        self.ordinal = self.credit = 0
        self.answer_at = math.inf
        self.is_stopped = False
        self.parted: int | None = None  # what is known to be taken of the delivery that its connection was lost with

    # ---- the port

    def open(self) -> None:
        self.state, self.answer_at = "opening", self.world.soon()

    def poll(self, now: float) -> Sequence[Any]:
        events, self.events = self.events, []
        return events

    def deadline(self, now: float) -> float:
        return math.inf

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        return Copies([data[low:high] for low, high in itertools.pairwise(offsets)])

    def send(self, send: Send) -> None:
        groups = [send.payloads] if send.is_envelope else [[each] for each in send.payloads]
        if self.state != "open":
            return
        self.credit -= len(groups)
        is_known = not any(isinstance(event, Granted) for event in self.events)
        self.world.expect(self.credit >= 0 or not is_known, f"{self.entity.name}: more was sent than it takes")
        for group in groups:
            names = [self.world.name_of(each) for each in group]
            self.sent.append(names)
            for name in names:
                self.world.check_sent(self.entity, name)

    def close(self) -> None:
        self.drop()
        self.state = "left"
        self.events.clear()

    # ---- the world

    def drop(self) -> None:
        """The connection ends; the target may have taken some of what was in transit."""
        for _ in range(self.world.choose.randint(0, len(self.sent))):
            self.entity.outcome(0, self.sent.popleft())
        self.parted, self.is_stopped = None, False
        if self.sent and self.entity.divides and self.world.choose.random() < 0.5:
            self._part(self.sent[0])
        self.sent.clear()
        self.unreported.clear()
        self.ordinal = self.credit = 0

    def _part(self, group: list[tuple[str, int]]) -> None:
        """Some of an envelope is taken, and perhaps known to be."""
        part = group[: self.world.choose.randint(0, len(group) - 1)]
        if part and self.entity.verdict(part) is None and self.world.choose.random() < 0.5:
            self.parted = len(part)

    def _lose(self, refusal: Refusal) -> None:
        self.world.fault(self.entity.name)
        ordinal = self.ordinal
        is_exact = len(self.sent) == 1 and not self.unreported
        self.drop()
        self.state = "closed"
        self.events = [] if self.world.choose.random() < 0.5 and not is_exact else self.events
        if is_exact and self.parted:
            self.events.append(Outcome(ordinal, ordinal, refusal, tuple(range(self.parted))))
        self.events.append(Lost(refusal))

    def step(self) -> None:
        """What happens without a call."""
        world, choose, entity = self.world, self.world.choose, self.entity
        if self.state == "opening" and world.now >= self.answer_at and world.now >= entity.hangs_until:
            if world.now < entity.away_until or world.chance(0.2):
                self._lose(_NOT_FOUND if world.chance(0.1) else _AWAY)
                return
            self.state = "open"
            self.events.append(Opened(entity.limit_bytes, 0 if entity.divides else choose.choice([0, 200])))
            self._grant(choose.choice([1, 7, 1000]))
            return
        if self.state != "open":
            return
        if world.now < entity.away_until or world.chance(0.006):
            self._lose(_NOT_FOUND if world.chance(0.1) else _AWAY)
            return
        if (world.now < entity.stopped_until) != self.is_stopped:
            self.is_stopped = not self.is_stopped
            self._grant(0 if self.is_stopped else 1000)
            self.events.append(Stopped(f"{entity.name} has no memory" if self.is_stopped else ""))
        if world.now < max(entity.hangs_until, entity.stopped_until):
            return
        for _ in range(min(len(self.sent), choose.choice([0, 1, 5, 1000]))):
            self.unreported.append(entity.outcome(self.ordinal, self.sent.popleft()))
            self.ordinal += 1
        self._report()
        if world.chance(0.03):
            self._grant(choose.choice([0, 0, 1]))
        elif self.credit < 5 and choose.random() < 0.7:
            self._grant(choose.choice([5, 1000]))

    def _grant(self, credit: int) -> None:
        """Only the last credit counts; it is reported before outcomes, after which more is sent."""
        self.credit = credit
        rest = [event for event in self.events if not isinstance(event, Granted)]
        at = next((at for at, event in enumerate(rest, 1) if isinstance(event, Opened)), 0)
        self.events = [*rest[:at], Granted(credit), *rest[at:]]

    def _report(self) -> None:
        choose, reported = self.world.choose, self.unreported
        if self.world.is_disordered and choose.random() < 0.5:
            reported = choose.sample(reported, choose.randint(0, len(reported)))
        self.unreported = [each for each in self.unreported if each not in reported]
        self.events += reported

    def due(self) -> float:
        """When `step` has something to do."""
        world = self.world
        if self.state == "opening":
            return max(self.answer_at, self.entity.hangs_until)
        if self.state != "open":
            return math.inf
        if self.sent or self.unreported or self.credit < 5:
            return max(world.now, self.entity.hangs_until, self.entity.stopped_until if self.is_stopped else 0.0)
        return world.now if self.is_stopped or world.now < self.entity.stopped_until else math.inf


class PoolFaultError(Exception):
    """A fault of a connector."""


class _Pool:
    """The ends of one process and kind."""

    def __init__(self, world: SharedWorld, kind: str) -> None:
        self.world, self.kind = world, kind
        self.ends: dict[int, Any] = {}

    def source(self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False) -> Link:
        self.ends[key] = Link(self.world, key, self.world.queues[options["entity"]])
        return self.ends[key]  # type: ignore[no-any-return]

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> TargetEnd:
        self.ends[key] = TargetEnd(self.world, key, self.world.entities[options["entity"]])
        return self.ends[key]  # type: ignore[no-any-return]

    def descriptors(self) -> Sequence[tuple[int, int]]:
        return ()

    def deadline(self, now: float) -> float:
        return now if any(each.events for each in self.ends.values()) else math.inf

    def service(self, ready: Mapping[int, int], now: float) -> Sequence[int]:
        if self.world.chance(0.0003):
            for each in self.ends.values():
                self.world.fault((getattr(each, "queue", None) and each.queue.name) or each.entity.name)
            raise PoolFaultError("a fault of the connector")
        return [key for key, each in self.ends.items() if each.events]

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def step(self) -> None:
        """What happens to its ends without a call."""
        for key, each in list(self.ends.items()):
            each.step()
            if each.state == "left":
                del self.ends[key]

    def due(self) -> float:
        """When `step` has something to do."""
        return min((each.due() for each in self.ends.values()), default=math.inf)


class Connector:
    """The connector of a kind, for one process.

    Attributes:
        pools: all that it has made; one that has met a fault is closed by its ends.
    """

    capabilities = Capabilities()

    def __init__(self, world: SharedWorld, kind: str) -> None:
        self.world, self.kind = world, kind
        self.pools: list[_Pool] = []

    def sources(self) -> _Pool:
        return self._pool()

    def targets(self) -> _Pool:
        return self._pool()

    def _pool(self) -> _Pool:
        pool = _Pool(self.world, self.kind)
        self.pools.append(pool)
        return pool
