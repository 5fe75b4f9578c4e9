"""A route from a queue of an AMQP 1.0 broker, in the world of `route_world`: the real source over a fake link, by seed.

The broker numbers deliveries by link, gives what a lost link had unsettled again, and may lose a link long before its client notices, while
what that settles comes to nothing. Beside what `route_world` checks:
    - nothing is accepted at the broker that neither the target nor the address of dead letters has;
    - a source that was closed leaves nothing locked at the broker.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from harness.world.route_world import World
from harness.world.still_carrier import STILL
from isthmus.amqp import section
from isthmus.amqp.performative import Modified, Rejected, Released
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.lease import event as e
from isthmus.bridge.port import SourceEvent, SourceLost, SourceOpened
from isthmus.connectors.amqp.option import read_source
from isthmus.connectors.amqp.source import AmqpSource
from isthmus.connectors.servicebus.port.end import Step
from isthmus.connectors.servicebus.port.outcome_wait import OutcomeWait
from isthmus.errors import ConnectionLostError
from isthmus.transport.receiver import Deliveries

__all__ = ["AmqpWorld"]

_MASK32 = 0xFFFFFFFF


class _Queue:
    """The queue at the broker, and the links that it has not given up."""

    def __init__(self, world: AmqpWorld, numbers: Sequence[int]) -> None:
        self.world = world
        self.ready = list(numbers)
        self.settled: dict[int, str] = {}
        self.set_aside: list[int] = []  # copies at the address of dead letters
        self.links: list[_Link] = []

    def requeue(self, number: int) -> None:
        self.ready = sorted([*self.ready, number])

    def settle(self, number: int, state: Any) -> None:
        if isinstance(state, Released | Modified):
            self.requeue(number)
        elif isinstance(state, Rejected):
            self.settled[number] = "dead-letter"
            assert self.world.is_at_fault(number), f"{number} is rejected"
        else:
            self.settled[number] = "complete"
            is_kept = number in self.world.accepted or number in self.set_aside
            assert is_kept, f"{number} is accepted, and the target has not got it"


class _Link:
    """The broker's end of a link, with what is in transit in both directions."""

    def __init__(self, queue: _Queue, first_id: int) -> None:
        self.queue = queue
        self.up: deque[tuple[Any, ...]] = deque()
        self.down: deque[tuple[Any, ...]] = deque()
        self.unsettled: dict[int, int] = {}
        self.is_alive = True
        self._next_id = first_id
        self._count = self._credit = 0
        self._drains = False
        queue.links.append(self)

    @property
    def is_busy(self) -> bool:
        """Whether anything is in transit, or will be."""
        return bool(self.up or self.down or self._drains or (self._credit and self.queue.ready))

    def work(self) -> None:
        """Processes some of what has come, and sends what it may."""
        world, queue, choose = self.queue.world, self.queue, self.queue.world.choose
        while self.is_alive and self.up and choose.random() < 0.8:
            kind, *rest = self.up.popleft()
            if kind == "flow":
                count, credit, self._drains = rest
                self._credit = max(0, credit - (self._count - count))
            elif kind == "copy":
                queue.set_aside.append(rest[1])
                self.down.append(("stored", rest[0]))
            elif kind == "detach":
                self.end()
            else:
                first, last, state = rest
                for delivery_id in range(first, first + ((last - first) & _MASK32) + 1):
                    number = self.unsettled.pop(delivery_id & _MASK32, None)
                    if number is not None:
                        queue.settle(number, state)
        if not self.is_alive:
            return
        count = min(len(queue.ready), self._credit, choose.choice([1, 3, 1000]))
        if count and choose.random() < world.eager:
            numbers, queue.ready = queue.ready[:count], queue.ready[count:]
            self.down.append(("run", self._next_id, numbers))
            for number in numbers:
                self.unsettled[self._next_id] = number
                self._next_id = (self._next_id + 1) & _MASK32
            self._credit -= count
            self._count += count
        if self._drains and not (queue.ready and self._credit):
            self._count, self._credit, self._drains = self._count + self._credit, 0, False
            self.down.append(("flow", self._count))

    def end(self) -> None:
        """It is lost for the broker."""
        if self.is_alive:
            self.is_alive = False
            self.queue.links.remove(self)
            for number in self.unsettled.values():
                self.queue.requeue(number)
            self.unsettled.clear()


class _Receiver:
    """The client's end, as `isthmus.transport.receiver.Receiver`, and the sender of dead letters beside it."""

    def __init__(self, world: AmqpWorld, link: _Link) -> None:
        self.world, self.far = world, link
        self.client = SimpleNamespace(error=None, held_seconds=0.0)
        self.link = SimpleNamespace(peer=SimpleNamespace(snd_settle_mode=0))
        self.error: ConnectionLostError | None = None
        self.attached = True
        self.drained = False
        self.arrived: deque[Deliveries] = deque()
        self.received = self.credit = self._count = 0
        self.outcomes: deque[Any] = deque()
        self.sendable = 5
        self._sent = self.sent = 0
        self.wait = OutcomeWait(STILL)  # the world answers in time

    def take(self) -> list[Deliveries]:
        runs = list(self.arrived)
        self.arrived.clear()
        return runs

    def grant(self, credit: int) -> None:
        self.credit = credit
        self.far.up.append(("flow", self._count, credit, False))

    def drain(self) -> None:
        self.drained = self.credit == 0
        if not self.drained and self.error is None:
            self.far.up.append(("flow", self._count, self.credit, True))

    def dispose(self, first: int, last: int, state: Any = None) -> None:
        if self.error is None:
            self.far.up.append(("disposition", first & _MASK32, last & _MASK32, state))

    def send(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self.far.up.append(("copy", self._sent, int.from_bytes(payload[-8:], "big")))
            self._sent += 1

    def close(self) -> None:
        self.far.up.append(("detach",))

    def pull(self) -> None:
        """Processes some of what has come."""
        while self.far.down and self.world.choose.random() < 0.8:
            kind, *rest = self.far.down.popleft()
            if kind == "run":
                first, numbers = rest
                self.credit -= len(numbers)
                self._count += len(numbers)
                self.received += len(numbers)
                assert self.credit >= 0, "more came than there was credit for"
                self.arrived.append(Deliveries(first, [b""] * len(numbers), [self.world.payload(n) for n in numbers]))
            elif kind == "stored":
                self.outcomes.append(SimpleNamespace(first=rest[0], last=rest[0], error=None))
            else:
                self.credit, self._count = max(0, self.credit - (rest[0] - self._count)), rest[0]
            self.drained = self.drained or not self.credit


class _Pool:
    """The owner of the source."""

    def __init__(self) -> None:
        self.is_marked = False

    def join(self, end: Any, peer: Any) -> Any:
        return SimpleNamespace(leave=lambda end, now: None)

    def mark(self, key: int) -> None:
        self.is_marked = True

    def unmark(self, key: int) -> None:
        self.is_marked = False

    def note_kept(self, connection_key: Any, until: float) -> None:
        raise AssertionError("the broker has noticed every loss")

    def kept_until(self, connection_key: Any) -> float:
        return -math.inf

    def mark_leaving(self, end: Any) -> None:
        self.is_marked = True

    def add_leaving(self, end: Any) -> None:
        self.is_marked = True


class _Source:
    """The route's source: the real one, opened again and again."""

    def __init__(self, world: AmqpWorld, count: int) -> None:
        self.world = world
        self.queue = _Queue(world, range(1, count + 1))
        self.state = "closed"
        self.draining = False
        self._pool = _Pool()
        self._end: AmqpSource | None = None
        self._leaving: AmqpSource | None = None
        self._receiver: _Receiver | None = None
        self._answer_at = math.inf
        self._notices_at = math.inf  # when the client notices that the broker has given its link up

    @property
    def ready(self) -> list[int]:
        return self.queue.ready

    @ready.setter
    def ready(self, numbers: list[int]) -> None:
        self.queue.ready = numbers

    @property
    def settled(self) -> dict[int, str]:
        return self.queue.settled

    @property
    def locked(self) -> list[int]:
        """What links have that the broker has not given up."""
        return [number for link in self.queue.links for number in link.unsettled.values()]

    @property
    def has_left(self) -> bool:
        """Whether nothing is left of what was closed."""
        return self._leaving is None and not any(link.is_busy for link in self.queue.links)

    # ---- what the lease asks for

    def open(self) -> None:
        self.state = "opening"
        if self._leaving is not None:
            return  # `step` opens it then
        if self._end is None:
            world = self.world
            options = {"url": "amqp://127.0.0.1", "entity": "q", "rejects": "true"}
            options |= {"dead_letters": "dead"} if world.keeps_dead_letters else {}
            pool: Any = self._pool
            self._end = AmqpSource(pool, 1, read_source(options), only_present=world.spec.only_present)
        self._end.open()
        self._answer_at = self.world.soon()

    def close(self) -> None:
        end, self._end = self._end, None
        self.state, self._answer_at = "closed", math.inf
        if end is not None:
            end.close()
            self._leaving = end

    def grant(self, credit: int) -> None:
        if self._end is not None:
            self._end.grant(credit)

    def drain(self) -> None:
        if self._end is not None:
            self._end.drain()

    def settle(self, first: int, last: int, disposition: Disposition | None) -> None:
        if self._end is not None:
            self._end.settle(first, last, disposition)

    def release(self, first: int, last: int) -> None:
        if self._end is not None:
            self._end.release(first, last)

    # ---- what it does

    def step(self) -> Sequence[SourceEvent]:
        for link in list(self.queue.links):
            link.work()
        if self._receiver is not None:
            self._receiver.pull()
        if self._leaving is not None and (self._leaving.has_left or self._leaving.leave(self.world.now)):
            self._leaving = None
            if self.state == "opening":
                self.open()
        end = self._end
        if end is None:
            return ()
        self._work(end)
        self._pool.is_marked = False
        events = end.poll(self.world.now)
        for event in events:
            if isinstance(event, SourceOpened | SourceLost):
                self.state = "open" if isinstance(event, SourceOpened) else "lost"
        return events

    def _work(self, end: AmqpSource) -> None:
        world = self.world
        if end.step is Step.CONNECTING and world.now >= self._answer_at:
            self._answer_at = math.inf
            if world.chance(0.3):
                end.fail(ConnectionLostError("refused"))
            else:
                self._attach(end)
        receiver = self._receiver
        if end.step is not Step.ATTACHED or receiver is None or receiver.error is not None:
            return
        if world.now >= self._notices_at or (self._notices_at == math.inf and world.chance(0.01)):
            world.faults += 1
            if self._notices_at == math.inf and world.choose.random() < 0.4:
                receiver.far.end()
                self._notices_at = world.now + world.choose.choice([0.5, 20.0, 60.0])
            else:
                self._break(receiver)

    def _attach(self, end: AmqpSource) -> None:
        link = _Link(self.queue, self.world.choose.choice([0, _MASK32 - 5]))
        receiver: Any = _Receiver(self.world, link)
        self._receiver, self._notices_at = receiver, math.inf
        end._begin(Step.ATTACHING)
        end._ids = type(end._ids)()
        end._receiver = receiver
        if end._dead_letters is not None:
            end._dead_letters._sender = receiver

    def _break(self, receiver: _Receiver) -> None:
        """The link is lost, with some of what was in transit."""
        link, choose = receiver.far, self.world.choose
        for _ in range(choose.randint(0, len(link.up))):
            link.up.pop()
        link.work()
        if choose.random() < 0.5:
            receiver.pull()
        link.end()
        receiver.error = ConnectionLostError("broke")
        if choose.random() < 0.7:
            receiver.client.error = receiver.error

    def deadline(self) -> float:
        now = self.world.now
        due = min(self._answer_at, self._notices_at, self._end.deadline(now) if self._end is not None else math.inf)
        is_busy = self._leaving is not None or any(link.is_busy for link in self.queue.links) or self._pool.is_marked
        is_busy = is_busy or (self._receiver is not None and bool(self._receiver.far.down or self._receiver.arrived))
        return min(due, now + 0.01) if is_busy else due


class AmqpWorld(World):
    """A route from a broker's queue, and its environment."""

    source: Any

    def __init__(self, seed: int, count: int = 30) -> None:
        choose = random.Random(seed)
        self.keeps_dead_letters = choose.random() < 0.4
        self.is_nameless = choose.random() < 0.2  # some messages have no message-id
        self.payloads: dict[int, bytes] = {}
        super().__init__(seed, count)

    def make_source(self, count: int) -> Any:
        return _Source(self, count)

    def message_of(self, position: int) -> int:
        return position

    def payload(self, number: int) -> bytes:
        if number not in self.payloads:
            properties = None if self.is_nameless and number % 5 == 0 else {"message_id": f"m{number}"}
            body = bytes(500 if number in self.large else 40) + number.to_bytes(8, "big")
            self.payloads[number] = section.encode_message(body, properties=properties)
        return self.payloads[number]

    def is_at_fault(self, number: int) -> bool:
        """Whether a message may be set aside."""
        return number in self.poison or number in self.large or self.was_odd

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case e.Settle(first, last, disposition):
                self.source.settle(first, last, disposition)
            case e.Release(first, last):
                self.source.release(first, last)
            case e.Drain():
                self.source.drain()
            case _:
                super()._carry_out(effect)

    def _check(self) -> None:
        # A broker keeps no order where a link is lost with what others behind it have settled: it is checked without faults alone.
        assert not self.broken, self.broken
        assert "removes rows" not in self.lease.report(self.now).error
        assert not (self.has_ended and self.lease.outstanding)
        if not (self.refused or self.poison or self.faults):
            firsts = list(dict.fromkeys(self.accepted))
            assert firsts == sorted(firsts), f"out of order: {firsts}"

    def check_copies(self) -> None:
        """What the target has got, of what is settled; `_Queue` has checked that it is somewhere."""
        if not (self.faults or self.refused):
            assert len(self.accepted) == len(set(self.accepted)), "sent twice without a fault"

    def leave(self) -> None:
        """After the end: until the source has left."""
        for _ in range(2_000):
            if self.source.has_left:
                break
            self.step()
            self.advance()
        assert not self.source.locked, f"closed, and the broker still waits for {self.source.locked}"
