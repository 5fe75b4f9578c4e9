"""A source of Service Bus, or of another AMQP 1.0 broker, in a world without threads, sockets or clocks: the lease machine, the real source, its pool, client and protocol
engine, and a broker with locks, all by one seed.

Bytes travel in pieces and may be lost with their connection; links and sessions end; the node for management refuses, or does not answer; the
network hangs, or the process does. Whatever the schedule, it checks:
    - nothing is completed at the broker before the target has accepted it;
    - an ordered source gives the messages in their order, whatever locks a reader before it has left behind;
    - without a fault no message is sent twice;
    - once faults stop, everything is settled: nothing waits for ever, and no credit is lost;
    - a route that moves only what is there ends only when that is settled.
"""

from __future__ import annotations

import math
import random
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from isthmus.amqp import (
    Connection,
    CreditChanged,
    Disposed,
    Error,
    Event,
    Link,
    LinkAttaching,
    Role,
    SaslInit,
    Transfers,
    codec,
    section,
)
from isthmus.amqp.performative import Accepted, Modified, Rejected, Released, Source
from isthmus.amqp.types import Array, Described, Int, Long, Symbol, Timestamp
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.flow.byte_budget import ByteBudget
from isthmus.bridge.lease import event as e
from isthmus.bridge.lease.fence import Fence
from isthmus.bridge.lease.lease import RouteLease
from isthmus.bridge.port import Arrived
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.connectors.amqp.connector import AmqpSources
from isthmus.connectors.servicebus.port.connector import ServiceBusSources
from isthmus.connectors.servicebus.port.dialer import Dialed
from isthmus.errors import ConnectionLostError
from isthmus.transport import Client, Endpoint

__all__ = ["SourceWorld", "clocks"]

_EPOCH = 1_700_000_000.0
_CONNECTION = "env:A_NAMESPACE"
_SESSION_FILTER = Symbol("com.microsoft:session-filter")


class _Everything(Mapping[int, int]):
    """Every descriptor is ready."""

    def __getitem__(self, key: int) -> int:
        return 1

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __contains__(self, key: object) -> bool:
        return True


class _Socket:
    """The client's end of a connection."""

    def __init__(self, world: SourceWorld) -> None:
        self.world = world
        self.inward, self.outward = bytearray(), bytearray()
        self.is_broken = self.is_closed = False

    def fileno(self) -> int:
        return 7

    def recv(self, count: int) -> bytes:
        if not self.inward:
            if self.is_broken:
                return b""
            raise BlockingIOError
        count = min(count, len(self.inward), self.world.choose.choice([1, 100, 1 << 20, 1 << 20]))
        data = bytes(self.inward[:count])
        del self.inward[:count]
        return data

    def send(self, data: memoryview) -> int:
        if self.is_broken:
            raise BrokenPipeError(32, "broken pipe")
        count = min(len(data), self.world.choose.choice([50, 1 << 20, 1 << 20]))
        self.outward += data[:count]
        return count

    def close(self) -> None:
        self.is_closed = True


class _Served:
    """The broker's end of a connection."""

    def __init__(self, world: SourceWorld) -> None:
        self.world = world
        self.socket = _Socket(world)
        window = world.choose.choice([3, 50, 5000])
        reported = {Symbol("product"): world.product, Symbol("version"): "3.13"}
        self.connection = Connection(
            server=True, container_id="b", sasl=("ANONYMOUS",), incoming_window=window, properties=reported
        )
        self.on_way: list[tuple[float, bytes]] = []  # to the client
        self.deliveries: dict[tuple[Link, int], tuple[int, bytes]] = {}
        self.receivers: list[Link] = []
        self.sessions: dict[Link, str] = {}
        self.waiting: list[tuple[Link, str | None, float]] = []  # attaches that wait for a session
        self.replies: list[tuple[Link, str]] = []
        self.answers: list[tuple[float, Link, bytes]] = []
        self.drains: dict[Link, float] = {}

    # ---- bytes

    def step(self) -> None:
        world, sock = self.world, self.socket
        if world.now < world.still_until:
            return
        if sock.outward:
            count = min(len(sock.outward), world.choose.choice([1, 40, 1 << 20, 1 << 20, 1 << 20]))
            data = bytes(sock.outward[:count])
            del sock.outward[:count]
            self.events(self.connection.receive(data, world.now))
        self.work()
        data = self.connection.take()
        if data:
            self.on_way.append((world.now + world.choose.choice([0.0, 0.0, 0.01]), data))
        while self.on_way and self.on_way[0][0] <= world.now:
            sock.inward += self.on_way.pop(0)[1]
        if (self.connection.closed or sock.is_closed) and not self.on_way and not sock.outward:
            self.lose()

    def lose(self) -> None:
        """The connection is lost, and some of what was in transit."""
        world, sock = self.world, self.socket
        if sock.outward and world.choose.random() < 0.5:
            count = world.choose.randint(0, len(sock.outward))
            self.events(self.connection.receive(bytes(sock.outward[:count]), world.now))
        for _, data in self.on_way[: world.choose.randint(0, len(self.on_way))]:
            sock.inward += data
        if sock.inward and world.choose.random() < 0.3:
            del sock.inward[world.choose.randint(0, len(sock.inward)) :]
        sock.outward.clear()
        sock.is_broken = True
        for link in [*self.sessions, *self.receivers]:
            self.end_session(link)
        if self in world.served:
            world.served.remove(self)

    # ---- events

    def events(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, SaslInit):
                self.events(self.connection.sasl_outcome(True))
            elif isinstance(event, LinkAttaching):
                self.attach(event.link)
            elif isinstance(event, Transfers):
                self.requests(event)
            elif isinstance(event, Disposed):
                for number in range(event.first, event.last + 1):
                    lock = self.deliveries.pop((event.link, number), None)
                    if lock is not None:
                        self.world.dispose(*lock, event.state)
            elif isinstance(event, CreditChanged) and event.link.drain:
                self.drains[event.link] = self.world.now + self.world.choose.choice([0.0, 0.02, 0.5])

    def attach(self, link: Link) -> None:
        world = self.world
        if link.attached or link.amqp_session.ended:
            return  # given up by now
        terminus = link.source if link.role is Role.SENDER else link.target
        address = str(terminus.address)
        if address.endswith("/$management"):
            link.context = address
            if link.role is Role.SENDER:
                link.accept()
                self.replies.append((link, str(link.target.address)))
            else:
                link.accept()
                link.grant(100)
            return
        if link.role is Role.RECEIVER:
            link.accept()
            link.grant(5)
            return
        if world.chance(0.05):
            link.refuse(Error(Symbol("com.microsoft:server-busy"), "busy"))
            world.faults += 1
            return
        if world.sessions:
            self.waiting.append((link, None, world.now + 60.0))
            return
        link.accept()
        self.receivers.append(link)

    def take_sessions(self) -> None:
        world = self.world
        for each in list(self.waiting):
            link, _, until = each
            if link.detached or link.attached or link.amqp_session.ended:
                self.waiting.remove(each)
                continue
            free = [name for name in world.names_waiting() if name not in world.session_locks]
            if free and world.choose.random() < 0.7:
                name = free[0]
                self.waiting.remove(each)
                world.session_locks[name] = [self, link, world.now + world.lock_seconds]
                self.sessions[link] = name
                link.accept(
                    source=Source(
                        link.source.address,
                        filter={_SESSION_FILTER: Described(Symbol("com.microsoft:session-filter"), name)},
                    )
                )
                self.receivers.append(link)
            elif world.now >= until:
                self.waiting.remove(each)
                link.refuse(Error(Symbol("com.microsoft:timeout"), "no session"))

    def end_session(self, link: Link) -> None:
        for (of, _), (sequence, token) in list(self.deliveries.items()) if self.world.is_plain else ():
            if of is link and self.world.locked.get(sequence, [b""])[0] == token:
                self.world.give_back(sequence)
        name = self.sessions.pop(link, None)
        if name is not None and self.world.session_locks.get(name, [None, None])[1] is link:
            del self.world.session_locks[name]
            self.world.free_session(name)

    # ---- deliveries

    def work(self) -> None:
        world = self.world
        self.take_sessions()
        for link in list(self.receivers):
            if link.detached or link.amqp_session.ended:
                self.receivers.remove(link)
                self.end_session(link)
                continue
            name = self.sessions.get(link)
            if name is not None and (name not in world.session_locks or world.session_locks[name][1] is not link):
                self.sessions.pop(link)
                link.detach(Error(Symbol("com.microsoft:session-lock-lost"), "lost"))
                self.receivers.remove(link)
                continue
            if world.choose.random() < world.eager:
                self.deliver(link, name)
            if link in self.drains and self.drains[link] <= world.now and link.drain:
                self.deliver(link, name)
                del self.drains[link]
                link.drained()
            if world.chance(0.002):
                world.faults += 1
                if world.choose.random() < 0.3:
                    link.amqp_session.end(Error(Symbol("amqp:internal-error"), "x"))
                else:
                    link.detach(
                        Error(
                            Symbol(world.choose.choice(["amqp:link:detach-forced", "com.microsoft:server-busy"])),
                            "moved",
                        )
                    )
        for each in list(self.answers):
            at, link, reply = each
            if at <= world.now:
                self.answers.remove(each)
                if not link.detached and not link.amqp_session.ended and link.credit:
                    link.send(reply, uuid.uuid4().bytes[:4], settled=True)
                    if world.chance(0.01):
                        world.faults += 1
                        link.detach(Error(Symbol("amqp:link:detach-forced"), "idle"))

    def deliver(self, link: Link, name: str | None) -> None:
        world = self.world
        ready = world.ready_of(name)
        count = min(link.sendable, len(ready), world.choose.choice([1, 3, 1000]))
        if count <= 0:
            return
        for sequence in ready[:count]:
            token = uuid.UUID(int=world.choose.getrandbits(128)).bytes_le
            world.ready.remove(sequence)
            until = world.now + world.lock_seconds if name is None and not world.is_plain else math.inf
            world.locked[sequence] = [token, until, name]
            world.count[sequence] = world.count.get(sequence, 0) + 1
            number = link.send(world.payload(sequence, until if name is None else world.session_locks[name][2]), token)
            self.deliveries[link, number] = sequence, token

    # ---- the node

    def requests(self, event: Transfers) -> None:
        world = self.world
        if world.is_plain:
            world.dead |= {int.from_bytes(payload[-8:], "big") for payload in event.payloads}
            event.link.dispose(event.first_delivery_id, event.first_delivery_id + len(event.payloads) - 1)
            event.link.grant(5)
            return
        for payload in event.payloads:
            sections = section.locate(payload)
            reported = section.decode_properties(payload, sections.properties)
            operation = str(section.decode_map(payload, sections.application_properties)["operation"])
            body = codec.decode(payload, sections.body[0] + 3)[0]
            status, answer, condition = self.manage(operation.removeprefix("com.microsoft:"), body)
            if world.chance(0.05):
                world.faults += 1
                status, answer, condition = 503, None, "com.microsoft:server-busy"
            if world.chance(0.01):
                world.faults += 1
                continue  # no answer
            reply = section.encode_message(
                answer,
                properties={"correlation_id": reported["message_id"]},
                application_properties={"statusCode": Int(status), "errorCondition": Symbol(condition)},
                value_body=True,
            )
            for link, address in self.replies:
                if address == reported["reply_to"]:
                    self.answers.append((world.now + world.choose.choice([0.0, 0.0, 0.05, 1.0]), link, reply))
        event.link.dispose(event.first_delivery_id, event.first_delivery_id + len(event.payloads) - 1)
        if not event.link.detached:
            event.link.grant(100)

    def manage(self, operation: str, body: Any) -> tuple[int, Any, str]:
        world = self.world
        if operation == "peek-message":
            start, count = body["from-sequence-number"], body["message-count"]
            there = sorted((*world.ready, *world.locked), key=world.sequence_of)
            found = [each for each in there if world.sequence_of(each) >= start][:count]
            pages = [{"message": world.payload(each, 0)} for each in found]
            return (200, {"messages": pages}, "") if found else (204, None, "")
        if operation == "renew-session-lock":
            lock = world.session_locks.get(body["session-id"])
            if lock is None or lock[0] is not self:
                return 410, None, "com.microsoft:session-lock-lost"
            lock[2] = world.now + world.lock_seconds
            return 200, {"expiration": Timestamp(int(world.broker_wall() * 1000))}, ""
        tokens = [each.bytes_le for each in body["lock-tokens"]]
        of = {lock[0]: sequence for sequence, lock in world.locked.items() if lock[1] > world.now}
        if any(token not in of for token in tokens):
            return 410, None, "com.microsoft:message-lock-lost"
        if operation == "renew-lock":
            for token in tokens:
                world.locked[of[token]][1] = world.now + world.lock_seconds
            until = int((world.broker_wall() + world.lock_seconds) * 1000)
            return 200, {"expirations": Array(0x83, [until] * len(tokens))}, ""
        states: dict[str, Any] = {
            "completed": Accepted(), "abandoned": Modified(True, False), "defered": Modified(True, True), "suspended": Rejected(None),
        }  # fmt: skip
        for token in tokens:
            world.dispose(of[token], token, states[body["disposition-status"]])
        return 200, {}, ""


class _Dialer:
    """Connects in the world's time."""

    def __init__(self, world: SourceWorld) -> None:
        self.world = world
        self.wanted: list[tuple[float, Any]] = []
        self.opening: list[tuple[Any, Client, float]] = []

    def fileno(self) -> int:
        return 9

    def dial(self, owner: Any, dial: Any, place: Any = None) -> None:
        self.wanted.append((self.world.now + self.world.choose.choice([0.0, 0.1, 2.0]), owner))

    def take(self) -> list[Any]:
        world, found = self.world, list[Any]()
        for each in list(self.wanted):
            at, owner = each
            if at > world.now:
                continue
            self.wanted.remove(each)
            if world.chance(0.2):
                found.append(Dialed(owner, None, ConnectionLostError("refused")))
                continue
            served = _Served(world)
            world.served.append(served)
            client = Client(Endpoint("h", 1, tls=False), name="c", shared=True)
            client._socket = served.socket  # type: ignore[assignment]
            client.connection.start("ANONYMOUS", None)
            self.opening.append((owner, client, world.now + 10.0))
        for opening in list(self.opening):
            owner, client, until = opening
            client.service()
            if client._opened or client.error is not None or world.now >= until:
                self.opening.remove(opening)
                error = client.error or (None if client._opened else ConnectionLostError("no answer"))
                if error is not None:
                    client.abandon()
                found.append(Dialed(owner, None if error else client, error))
        return found

    def close(self) -> None:
        return


class SourceWorld:
    """A route and its source.

    Args:
        seed: of everything.
        count: messages that are there; as many come later.
        is_plain: whether the broker is none of Service Bus: it locks nothing, and gives what a link had to the next one.
    """

    def __init__(self, seed: int, count: int = 30, *, is_plain: bool = False) -> None:
        choose = self.choose = random.Random(seed)
        self.is_plain = is_plain
        self.product = choose.choice(["x", "RabbitMQ"]) if is_plain else "x"
        self.dead: set[int] = set()
        self.now = 1000.0
        self.wall_step = 0.0
        self.skew = choose.choice([0.0, 0.0, 0.0, -3.0, 3.0, 400.0, -400.0])
        self.chaos = choose.choice([0.0, 0.3, 1.0])
        self.eager = choose.choice([0.9, 0.9, 0.2])
        self.lock_seconds = choose.choice([5.0, 10.0, 60.0])
        self.sessions = 0 if is_plain else choose.choice([0, 0, 1, 3])
        self.only_present = choose.random() < 0.25
        self.ordered = is_plain or (not self.sessions and choose.random() < 0.8)
        self.fragments = 1 if self.sessions or is_plain else choose.choice([1, 1, 3])
        self.faults = 0
        self.still_until = 0.0
        self.count: dict[int, int] = {}
        self.next = 1
        self.ready: list[int] = []
        self.enqueued: dict[int, float] = {}
        self.locked: dict[int, list[Any]] = {}
        self.session_locks: dict[str, list[Any]] = {}
        self.settled: dict[int, str] = {}
        self.accepted: list[int] = []
        self.publish(count)
        self.first = set(range(1, self.next))
        self.later = 0 if self.only_present else count
        if self.ordered and not self.only_present and not is_plain and choose.random() < 0.4:
            # What a reader before this one has left behind.
            for sequence in choose.sample(self.ready, choose.choice([1, 5])):
                self.locked[sequence] = [uuid.uuid4().bytes, self.now + choose.uniform(0, self.lock_seconds), None]
                self.ready.remove(sequence)
        self.poison = set(choose.sample(range(1, 2 * count), choose.choice([0, 0, 3])))
        self.served: list[_Served] = []
        self.pool: Any = AmqpSources() if is_plain else ServiceBusSources()
        self.pool._dialer.close()
        self.dialer = self.pool._dialer = _Dialer(self)  # type: ignore[assignment]
        options = {"connection": _CONNECTION, "entity": "q", "sessions": str(self.sessions)}
        if choose.random() < 0.5:
            options["lock_seconds"] = str(int(self.lock_seconds))
        if is_plain:
            options = {
                "url": "amqp://h",
                "entity": "q",
                **choose.choice([{"rejects": "true"}, {"dead_letters": "dead"}]),
            }
        self.spec = RouteSpec(
            name="r",
            source=End("servicebus", "a", options),
            target=End("world", "b"),
            ordered=self.ordered,
            only_present=self.only_present,
            window=choose.choice([3, 20, 16_000]),
            window_bytes=choose.choice([600, 1 << 20]),
        )
        handles = iter(range(1, 1 << 30))
        self.lease = RouteLease(self.spec, Fence(False, self.now), ByteBudget(1 << 20, 1 << 20), lambda: next(handles))
        self.lease.messages.is_numbered_again = True
        self.source: Any = None
        self.leaving: list[Any] = []
        self.opens = 0
        self.rows: deque[tuple[int, int, int]] = deque()
        self.reported: deque[tuple[int, e.Event]] = deque()
        self.failed = 0
        self.has_ended = False

    # ---- the broker

    def publish(self, count: int) -> None:
        """More messages."""
        for sequence in range(self.next, self.next + count):
            self.ready.append(sequence)
            self.enqueued[sequence] = self.broker_wall()
        self.next += count

    def broker_wall(self) -> float:
        """The broker's clock."""
        return _EPOCH + self.now + self.skew

    def sequence_of(self, number: int) -> int:
        """The sequence number of a message; those of a partitioned entity have the fragment in the upper bits."""
        return (number % self.fragments) << 48 | number

    def session_of(self, sequence: int) -> str:
        """The session of a message."""
        return f"s{sequence % 7}"

    def names_waiting(self) -> list[str]:
        """Sessions that have messages."""
        return list(dict.fromkeys(map(self.session_of, self.ready)))

    def ready_of(self, name: str | None) -> list[int]:
        """What waits."""
        return self.ready if name is None else [each for each in self.ready if self.session_of(each) == name]

    def free_session(self, name: str) -> None:
        """What is locked in a session is available again."""
        for sequence in [each for each, lock in self.locked.items() if lock[2] == name]:
            self.give_back(sequence)

    def give_back(self, sequence: int) -> None:
        """A message is available again."""
        del self.locked[sequence]
        self.ready = sorted([*self.ready, sequence])

    def expire(self) -> None:
        """Locks end."""
        for sequence in [each for each, lock in self.locked.items() if lock[1] <= self.now]:
            self.give_back(sequence)
        for name in [each for each, lock in self.session_locks.items() if lock[2] <= self.now]:
            del self.session_locks[name]
            self.free_session(name)

    def dispose(self, sequence: int, token: bytes, state: Any) -> None:
        """A message gets an outcome."""
        lock = self.locked.get(sequence)
        if lock is None or lock[0] != token or lock[1] <= self.now:
            return
        if isinstance(state, Accepted):
            assert sequence in self.accepted or sequence in self.dead, f"{sequence} is completed unsent"
            del self.locked[sequence]
            self.settled[sequence] = "complete"
        elif isinstance(state, Rejected):
            assert sequence in self.poison, f"{sequence} is set aside"
            del self.locked[sequence]
            self.settled[sequence] = "dead-letter"
        elif isinstance(state, Released) or (isinstance(state, Modified) and not state.undeliverable_here):
            self.give_back(sequence)
        else:
            raise AssertionError(state)

    def payload(self, sequence: int, until: float) -> bytes:
        """A message as it is delivered."""
        annotations: dict[Any, Any] = {
            Symbol("x-opt-sequence-number"): Long(self.sequence_of(sequence)),
            Symbol("x-opt-enqueued-time"): Timestamp(int(self.enqueued[sequence] * 1000)),
        }
        if 0 < until < math.inf:
            annotations[Symbol("x-opt-locked-until")] = Timestamp(int((_EPOCH + until + self.skew) * 1000))
        head = section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations)
        if self.is_plain:
            body = bytes(40) + sequence.to_bytes(8, "big")
            return section.encode_message(body, properties={"message_id": f"m{sequence}"})
        return head + section.encode_message(bytes(40) + sequence.to_bytes(8, "big"))

    # ---- chance

    def chance(self, part: float) -> bool:
        """Whether something goes wrong now."""
        return self.choose.random() < part * self.chaos

    # ---- the reader

    def apply(self, event: e.Event) -> None:
        """Gives the lease an event, and carries out what follows."""
        for effect in self.lease.on(event, self.now):
            self._carry_out(effect)

    def _carry_out(self, effect: Any) -> None:
        source = self.source
        match effect:
            case e.OpenSource(handle):
                if self.leaving:
                    self.opens = handle
                else:
                    self._open(handle)
            case e.CloseSource():
                self.opens = 0
                if source is not None:
                    source.close()
                    self.leaving.append(source)
                    self.source = None
            case e.Grant(credit):
                source.grant(credit)
            case e.Drain():
                source.drain()
            case e.Settle(first, last, disposition):
                if source is not None:
                    source.settle(first, last, disposition)
            case e.Release(first, last):
                if source is not None:
                    source.release(first, last)
            case e.HandOn(handle, positions, payloads):
                numbers = [int.from_bytes(each[-8:], "big") for each in payloads]
                self.rows.extend((handle, *each) for each in zip(positions, numbers, strict=True))
            case e.OpenTarget(handle):
                self.reported.append((handle, e.TargetReady()))
            case e.Ended():
                self.has_ended = True

    def _open(self, handle: int) -> None:
        if self.source is None:
            self.source = self.pool.source(
                handle, self.spec.source.options, ordered=self.ordered, only_present=self.only_present
            )
            self.key = handle
        self.source.open()

    def _serve(self) -> None:
        keys = self.pool.service(_Everything(), self.now)
        source = self.source
        if source is not None and (self.key in keys or source.deadline(self.now) <= self.now):
            for event in source.poll(self.now):
                if self.source is not source:
                    break
                if isinstance(event, Arrived):
                    assert len(event.positions) == len(event.payloads)
                self.apply(event)
        self.leaving = [each for each in self.leaving if not each.has_left]
        if self.opens and not self.leaving:
            handle, self.opens = self.opens, 0
            self._open(handle)
        if self.lease.deadline(self.now) <= self.now:
            self.apply(e.Tick())
        self.pool.flush()

    def _sink(self) -> None:
        choose = self.choose
        handle = self.lease.handle
        for _ in range(min(len(self.rows), choose.choice([0, 1, 5, 1000]))):
            of, position, number = self.rows.popleft()
            if of != handle or of == self.failed:
                continue
            if number in self.poison:
                self.reported.append((of, e.Disposed(position, position, Disposition("dead-letter", "bad", ""))))
                continue
            self.accepted.append(number)
            self.reported.append((of, e.Completed([(position, position)])))
        if handle and self.chance(0.01):
            is_paused = choose.random() < 0.5
            self.reported.append((handle, e.TargetPaused("busy") if is_paused else e.TargetResumed()))
        if handle and self.chance(0.003):
            self.faults += 1
            self.failed = handle
            self.reported.append((handle, e.TargetFailed("away")))
        while self.reported and choose.random() < 0.8:
            of, event = self.reported.popleft()
            if of == self.lease.handle:
                self.apply(event)

    # ---- time

    def step(self) -> None:
        """One round of everything."""
        choose = self.choose
        self.expire()
        if self.later and choose.random() < 0.03:
            count = min(self.later, choose.choice([1, 5, 20]))
            self.later -= count
            self.publish(count)
        for served in list(self.served):
            served.step()
            if served in self.served and self.chance(0.003):
                self.faults += 1
                served.lose()
        if self.chance(0.001):
            self.faults += 1
            self.still_until = self.now + choose.choice([1.0, 20.0, 80.0])
        if self.chance(0.001):
            self.wall_step = choose.choice([-3600.0, -2.0, 0.0, 2.0, 3600.0])
        if self.chance(0.001):  # the process is suspended
            self.faults += 1
            self.now += choose.choice([2.0, 20.0, 100.0])
            self.expire()
            for served in list(self.served):
                served.step()
        self._serve()
        self._sink()
        self._check()

    def _check(self) -> None:
        if self.ordered or self.sessions:
            parts = 7 if self.sessions else self.fragments
            for number in range(parts):
                firsts = [each for each in dict.fromkeys(self.accepted) if each % parts == number]
                assert firsts == sorted(firsts), f"out of order: {firsts}"
        # A broker that cannot drain does not report whether it has looked for messages.
        if self.has_ended and self.lease.report(self.now).is_exhausted and self.product != "RabbitMQ":
            left = self.first - set(self.settled)
            late = left - set(self.accepted) - self.poison  # the completion may be lost with the connection
            assert not late, f"ended, and not moved: {late}"

    def advance(self) -> None:
        """Time passes."""
        self.now += self.choose.choice([0.001, 0.01, 0.01, 0.1])
        if not self.rows and not self.reported and not any(s.socket.outward or s.on_way for s in self.served):
            due = min(self.lease.deadline(self.now), self.pool.deadline(self.now))
            if self.source is not None:
                due = min(due, self.source.deadline(self.now))
            due = min(
                [due, *(lock[1] for lock in self.locked.values()), *(lock[2] for lock in self.session_locks.values())]
            )
            due = min([due, *(at for served in self.served for at, _, _ in served.answers)])
            due = min([due, *(at for at, _ in self.dialer.wanted)])
            self.now = max(self.now, min(due, self.now + self.choose.choice([0.05, 0.3])))

    def run(self, seconds: float, steps: int) -> None:
        """Rounds until the time is over or all is settled."""
        until = self.now + seconds
        for _ in range(steps):
            if self.now >= until or self.has_ended or (self.is_done and not self.later):
                return
            self.step()
            self.advance()

    def calm(self) -> None:
        """No fault happens from now on."""
        self.chaos, self.still_until = 0.0, 0.0
        self.apply(e.TargetResumed())
        self.reported.append((self.lease.handle, e.TargetResumed()))
        self.publish(self.later)
        self.later = 0

    def end(self) -> None:
        """The route ends in good order, within the time that its machine has for that."""
        self.apply(e.End())
        until = self.now + 60.0
        while not self.has_ended:
            self.step()
            self.advance()
            assert self.now < until, f"it does not end: {self.lease.report(self.now)}"

    @property
    def is_done(self) -> bool:
        """Whether everything is settled."""
        return len(self.settled) == self.next - 1


@contextmanager
def clocks(world: SourceWorld) -> Iterator[None]:
    """Lets the code under test read the world's clocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: world.now)
        patch.setattr(time, "monotonic_ns", lambda: int(world.now * 1e9))
        patch.setattr(time, "time", lambda: _EPOCH + world.now + world.wall_step)
        patch.setattr(time, "time_ns", lambda: int((_EPOCH + world.now + world.wall_step) * 1e9))
        yield
