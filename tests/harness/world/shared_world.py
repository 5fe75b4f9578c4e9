"""Several routes that share their processes, and divert messages, in a world without threads, sockets or clocks: by one seed.

Two slots, each a reader and a sink, carry all routes. What decides is the real code: `isthmus.bridge.host.reader.routes` and
`isthmus.bridge.host.sender.routes` with all below them, and the frames between them. Each route has a queue, a target of its own, and perhaps
entities that it diverts to, which routes may share. Whatever the schedule, it checks:
    - a message is completed at its source only after the entity that it is for has accepted it, and comes to no other;
    - only what cannot be sent, or what a step wants it for, is dead-lettered;
    - what a queue has taken in as completed is not sent any more;
    - without a refusal the target has the messages of a route in the order of their source; a strict route always;
    - without a fault no message is sent twice, and the reports count each message once and for what it is;
    - once faults stop, everything is settled, and no route is reported as paused;
    - at its end a lease comes to an end in bounded time.

Faults: links lost, refused and opened late; locks that end while they are held; completions that are lost on their way; messages refused for
themselves and by an entity that is busy, away or hangs, or that says that it accepts nothing; kills of reader and sink; readers and sinks that stand still; claims that are not confirmed;
faults of a connector; routes that move between the slots, or are carried otherwise.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.world.shared_entity import BAD, BLOCKED, UNCLEAR, Connector, Entity, Queue
from isthmus.amqp import section
from isthmus.amqp.types import Symbol, Timestamp
from isthmus.bridge.delivery.settle_account import SettleAccount
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.flow.byte_budget import ByteBudget
from isthmus.bridge.frame import Kind, pack_json, pack_numbers, unpack_json, unpack_numbers
from isthmus.bridge.host.reader.claim_book import ClaimBook
from isthmus.bridge.host.reader.routes import ReaderRoutes
from isthmus.bridge.host.sender.handle import TargetHandle
from isthmus.bridge.host.sender.routes import SenderRoutes
from isthmus.bridge.host.sender.rows import Part
from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.lease.lease import RouteLease
from isthmus.bridge.lease.report import UNCONFIRMED
from isthmus.bridge.report import RouteReport, RouteState
from isthmus.bridge.route_spec import End, RouteSpec

__all__ = ["SharedWorld"]

CLAIM_SECONDS = 15.0
SLOTS = 2
# A sink or a reader that is silent for so long is taken for dead.
SILENCE_SECONDS = 10.0
STATISTICS_SECONDS = 2.0


class Task:
    """One slot during one lease: a reader and a sink."""

    def __init__(self, world: SharedWorld, slot: int) -> None:
        self.world, self.slot = world, slot
        self.sources, self.targets = {}, {}  # type: dict[str, Connector], dict[str, Connector]
        self.to_sink: deque[tuple[int, bytes]] = deque()
        self.to_reader: deque[tuple[int, bytes]] = deque()
        self.rows: deque[Any] = deque()
        self.claims = ClaimBook()
        self.reader = ReaderRoutes(self._source_kind, self, self.claims)  # type: ignore[arg-type]
        self.reader._budget = ByteBudget(*world.budget)
        self.sink = SenderRoutes(self._target_kind, self)
        self.account = SettleAccount()
        self.fences: dict[str, float] = {}
        self.ended_fences: set[str] = set()
        self.yielded: dict[int, int] = {}
        self.flushes = 0
        self.statistics_at = 0.0
        self.reports: dict[str, RouteReport] = {}
        self.is_ending = self.has_stopped = self.is_over = False
        self.reader_frozen_until = self.sink_frozen_until = 0.0

    def _source_kind(self, kind: str) -> Any:
        return self.sources.setdefault(kind, Connector(self.world, kind))

    def _target_kind(self, kind: str) -> Any:
        return self.targets.setdefault(kind, Connector(self.world, kind))

    # ---- the reader, as `isthmus.bridge.host.reader.reader` goes about it

    def send(self, kind: int, payload: bytes = b"") -> None:
        """A frame for the sink."""
        self.to_sink.append((kind, payload))

    def step_reader(self) -> None:
        world, now = self.world, self.world.now
        self.reader.service({}, now)
        while self.to_reader and world.choose.random() < 0.9:
            self.reader.on_frame(*self.to_reader.popleft(), now)
        asked = self.claims.ask(now)
        if asked and now >= world.claim_lost_until:
            moved = self.claims.answer(asked, dict.fromkeys(world.claim_names, CLAIM_SECONDS), now)
            until_ns = self.claims.until_ns()
            for claim in moved:
                self.send(Kind.FENCE, pack_json({"claim": claim, "until_ns": until_ns[claim]}))
            self.reader.claims_opened({claim for claim, was_closed in moved.items() if was_closed}, now)
        self.reports |= self.reader.take_reports(now)
        rows = self.reader.take_rows()
        for each in rows:
            self.yielded[each.handle] = self.yielded.get(each.handle, 0) + len(each.positions)
            self.rows.append(each)
        if rows or world.choose.random() < 0.1:
            self.reader.note_flush(self.flushes, self.yielded)
            self.rows.append(self.flushes)
            self.flushes += 1
        if self.is_ending and self.reader.has_ended():
            self.has_stopped = True

    def end(self) -> None:
        """The lease ends in good order."""
        if not self.is_ending:
            self.is_ending = True
            self.reader.end_all(self.world.now)

    # ---- the sink, as `isthmus.bridge.host.sender.sender` goes about it

    def step_sink(self) -> None:
        world, now = self.world, self.world.now
        items = []
        while self.rows and world.choose.random() < 0.97:
            items.append(self.rows.popleft())
        while self.to_sink:
            self._on_frame(*self.to_sink.popleft())
        for item in items:
            if isinstance(item, int):
                self.account.flush(item)
            else:
                part = world.part(item)
                self.account.came(item.handle, part.rows)
                self.sink.add(item.handle, part)
        self.sink.step({}, now)
        for claim, until in self.fences.items():
            if until <= now and claim not in self.ended_fences:
                self.ended_fences.add(claim)
                self.sink.fail_claim(claim)
        if now >= self.statistics_at:
            self.statistics_at = now + STATISTICS_SECONDS
            self.to_reader.append((Kind.STATS, pack_json({"routes": self.sink.changes()})))
        if self.account.deadline() <= now:
            self.to_reader.extend(self.account.take(now))
        if self.has_stopped and not (self.rows or self.sink.is_busy):
            self.sink.close_all(in_good_order=True)
            self.is_over = True

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == Kind.OPEN:
            reported = unpack_json(payload)
            self.account.open(reported["handle"])
            spec = RouteSpec.from_json(reported["spec"])
            self.sink.open(reported["handle"], spec, reported["origin_identity"], self.world.now)
        elif kind == Kind.CLOSE:
            (handle,) = unpack_numbers(payload)
            self.sink.close(handle)
            self.account.close(handle)
        elif kind == Kind.WINDOW:
            self.account.set_window(*unpack_numbers(payload))
        elif kind == Kind.FENCE:
            reported = unpack_json(payload)
            self.fences[reported["claim"]] = reported["until_ns"] / 1e9
            self.ended_fences.discard(reported["claim"])

    def ready(self, handle: int) -> None:
        self.to_reader.append((Kind.READY, pack_numbers(handle)))

    def settle(self, handle: int, positions: Any) -> None:
        self.account.settle(handle, positions)

    def dispose(self, handle: int, position: Any, disposition: Disposition, route: str) -> None:
        self.account.dispose(handle, position, disposition)

    def pause(self, handle: int, text: str) -> None:
        self.to_reader.append((Kind.PAUSE, pack_json({"handle": handle, "text": text})))

    def resume(self, handle: int) -> None:
        self.to_reader.append((Kind.RESUME, pack_numbers(handle)))

    def failed(self, handle: int, error: Any, is_fatal: bool) -> None:
        self.to_reader.extend(self.account.take(self.world.now))
        reported = {"handle": handle, "error": str(error), "is_fatal": is_fatal}
        self.to_reader.append((Kind.FAILED, pack_json(reported)))

    def may_send(self, claim: str) -> bool:
        return self.world.now < self.fences.get(claim, -math.inf)

    # ---- both

    def step_ends(self) -> None:
        """What happens to their links."""
        for connector in [*self.sources.values(), *self.targets.values()]:
            for pool in connector.pools:
                pool.step()

    def due(self) -> float:
        """When any of it has something to do."""
        now = self.world.now
        due = [self.reader.deadline(now), self.claims.ask_at, self.sink.deadline(now), self.account.deadline()]
        due += [pool.due() for each in [*self.sources.values(), *self.targets.values()] for pool in each.pools]
        due += [until for claim, until in self.fences.items() if claim not in self.ended_fences]
        if self.rows or self.to_sink or self.to_reader or self.sink.has_ready or self.has_stopped:
            due.append(now)
        if self.sink.has_changed:
            due.append(self.statistics_at)
        return min(due)

    def kill_sink(self) -> None:
        """The sink has ended; the reader learns of it after what the sink has reported, and gives everything back."""
        self._drop_sink()
        for _ in range(self.world.choose.randint(0, len(self.to_reader))):
            self.reader.on_frame(*self.to_reader.popleft(), self.world.now)
        self.reader.abort_all("the sink ended without notice", self.world.now)
        self.is_over = True

    def kill_reader(self) -> None:
        """The reader has ended, and the sink ends because of it."""
        self._drop_sink()
        self.is_over = True

    def leave(self) -> None:
        """The processes have ended."""
        for connector in self.sources.values():
            for pool in connector.pools:
                for each in pool.ends.values():
                    each.kill()

    def handles_of(self, name: str) -> list[TargetHandle]:
        """The handles of a route that the sink has."""
        lease = self.reader._by_name[name].lease
        handles, route = self.sink._handles, self.sink._diverting.get(lease.handle)
        keys = (lease.handle,) if route is None else route.handles
        return [handles[key] for key in keys if key in handles]

    def check_paused(self) -> None:
        """Once everything is reported, a route is paused where one of its entities accepts nothing, and nowhere else."""
        if self.to_reader or self.to_sink or self.sink.has_ready:
            return
        for name, route in self.reader._by_name.items():
            report = route.report(self.world.now)
            parts = report.moved, report.diverted, report.discarded, report.dead_lettered
            assert report.settled == sum(parts), f"{name}: {report}"
            handles = self.handles_of(name)
            if report.state in (RouteState.RUNNING, RouteState.PAUSED) and handles:
                reasons = [each.machine._held for each in handles if each.machine._held]
                reported = report.paused.replace(UNCONFIRMED, "")
                assert bool(reported) == bool(reasons), f"{name} is paused for {reported!r} instead of {reasons}"
                assert all(each in reported for each in reasons), (
                    f"{name} is paused for {reported!r} instead of {reasons}"
                )

    def _drop_sink(self) -> None:
        for connector in self.targets.values():
            for pool in connector.pools:
                for each in pool.ends.values():
                    each.drop()
                    each.state = "closed"


class SharedWorld:
    """Routes, their entities, and the slots that carry them.

    Args:
        seed: of everything.
    """

    def __init__(self, seed: int) -> None:
        choose = self.choose = random.Random(seed)
        self.now = 10.0
        self.chaos = choose.choice([0.0, 0.3, 1.0])
        self.eager = choose.choice([0.8, 0.8, 0.1])
        self.is_disordered = choose.random() < 0.5
        self.budget = choose.choice([(4_000, 200), (1 << 20, 1_000)])
        self.broken = ""
        self.is_closing = False
        self.faults: set[str] = set()
        self.claim_names = ("task", "other")
        self.claim_lost_until = 0.0
        self.queues: dict[str, Queue] = {}
        self.entities: dict[str, Entity] = {}
        self.specs: dict[str, RouteSpec] = {}
        self.counts: dict[str, int] = {}  # messages published, by route
        self.later: dict[str, int] = {}
        self.destinations: dict[tuple[str, int], str] = {}  # where a message goes, or what its step makes of it
        self.large: set[tuple[str, int]] = set()  # with the reason in it, each is larger than some entities take
        self.unknown: dict[
            tuple[str, int], RouteLease
        ] = {}  # completions that were lost with a connection, and of which lease
        self.leases = 1
        names = [f"r{number}" for number in range(choose.choice([1, 2, 2, 3]))]
        is_shared = choose.random() < 0.5
        for name in names:
            self._make(name, is_shared)
        self.slot_of = {name: choose.randrange(SLOTS) for name in names}
        self.moving: dict[str, int] = {}
        self.tasks: list[Task | None] = [None] * SLOTS
        self.begin_at = [0.0] * SLOTS

    def _make(self, name: str, is_shared: bool) -> None:
        choose = self.choose
        count = choose.choice([5, 15])
        self.queues[name] = Queue(self, name)
        self.counts[name], self.later[name] = 0, count
        limit = choose.choice([0, 0, 600])
        entities = [f"{name}/to"]
        diverts = {}
        for which in choose.choice([["bad"], ["bad"], ["bad", "worse"], []]):
            divert = f"b/{which}" if is_shared else f"b/{name}-{which}"
            diverts[divert] = End(choose.choice(["world", "far"]), "b", {"entity": divert})
            entities.append(divert)
        for each in entities:
            if each not in self.entities:
                self.entities[each] = Entity(self, each, limit)
        is_strict, blocks = choose.random() < 0.3, choose.random() < 0.1
        self.specs[name] = RouteSpec(
            name=name,
            source=End("world", "a", {"entity": name}),
            target=End(choose.choice(["world", "far"]), "b", {"entity": f"{name}/to"}),
            claim=choose.choice(["", "", "task", "other"]),
            rate=choose.choice(["", "", "", "20/s"]),
            window=choose.choice([8, 40, 16_000]),
            window_bytes=choose.choice([500, 2_000, 1 << 20]),
            in_flight=choose.choice([1, 5, 12_000]),
            envelope_messages=choose.choice([0, 1, 10, 10]),
            target_seconds=choose.choice([15.0, 30.0]),
            is_strict=is_strict,
            block_refused=blocks,
            steps=('{"validate": {}}',) if diverts or choose.random() < 0.5 else (),
            diverts=diverts,
            diverted_from=f"a/{name}",
        )
        part = choose.choice([0.1, 0.5, 1.0])
        for position in range(1, 2 * count + 7):
            destination = f"{name}/to"
            if position > 2 * count:  # what its target refuses without a reason waits for others that go there
                pass
            elif diverts and choose.random() < part:
                destination = choose.choice(list(diverts))
            elif self.specs[name].steps and choose.random() < 0.1:
                destination = choose.choice(["complete", "dead-letter"])
            self.destinations[name, position] = destination
            if not blocks and choose.random() < 0.1:
                self.large.add((name, position))
        for _ in range(0 if blocks else choose.choice([0, 0, 1, 3])):
            position = choose.randint(1, 2 * count)
            destination = self.destinations[name, position]
            if destination in self.entities:
                is_sure = is_strict and destination == f"{name}/to"
                self.entities[destination].poison[name, position] = BAD if is_sure else choose.choice([BAD, UNCLEAR])
        self.publish(name, count)

    # ---- messages

    def publish(self, name: str, count: int) -> None:
        """More messages."""
        first = self.counts[name] + 1
        self.counts[name] += count
        self.queues[name].publish(range(first, first + count))

    def payload(self, name: str, position: int) -> bytes:
        """A message; its last bytes say which."""
        annotations = {Symbol("x-opt-enqueued-time"): Timestamp(10_000 + position)}
        head = section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations)
        body = bytes(480 if (name, position) in self.large else 40)
        return head + section.encode_message(body + name.encode() + position.to_bytes(8, "big"))

    @staticmethod
    def name_of(payload: bytes) -> tuple[str, int]:
        """Route and position of a message."""
        return payload[-10:-8].decode(), int.from_bytes(payload[-8:], "big")

    def part(self, rows: Any) -> Part:
        """Rows as they come to the sink, behind the steps of their route."""
        positions: list[int] = []
        pieces: list[bytes] = []
        offsets = [0]
        disposed, diverted = [], []
        for position, payload in zip(rows.positions, rows.payloads, strict=True):
            destination = self.destinations[self.name_of(payload)]
            if destination.startswith("b/"):
                diverted.append((position, Disposition(f"divert:{destination}", "Bad", "not as it should be"), payload))
            elif destination in ("complete", "dead-letter"):
                disposed.append((position, Disposition(destination, "Step", "a step wants it")))
            else:
                positions.append(position)
                pieces.append(payload)
                offsets.append(offsets[-1] + len(payload))
        return Part(positions, b"".join(pieces), offsets, disposed, None, diverted)

    # ---- what is checked at once

    def fault(self, name: str) -> None:
        """A queue or an entity has met a fault."""
        self.faults.add(name)

    def expect(self, is_so: bool, text: str) -> None:
        """What is wrong is reported at the end of the round: a caller of an end takes its errors for the end's."""
        self.broken = self.broken or ("" if is_so else text)

    def check_sent(self, entity: Entity, message: tuple[str, int]) -> None:
        """A message is sent now."""
        route, position = message
        if self.destinations[message] != entity.name:
            self.broken = f"{message} is for {self.destinations[message]} and is sent to {entity.name}"
        if position in self.queues[route].settled:
            self.broken = f"{message} is sent to {entity.name} though it is {self.queues[route].settled[position]}d"

        if message in self.unknown and self.unknown[message] is self.lease_of(route):
            self.broken = f"{message} is sent to {entity.name} again, though its lease knows that it was accepted"

    def lost_completion(self, name: str, position: int) -> None:
        """A message is completed, and its queue does not know."""
        lease = self.lease_of(name)
        if lease is not None:
            self.unknown[name, position] = lease

    def forget_completions(self, name: str) -> None:
        """A queue is reported as deleted for good: what comes next may be of another."""
        self.unknown = {message: lease for message, lease in self.unknown.items() if message[0] != name}

    def lease_of(self, name: str) -> RouteLease | None:
        """What carries a route now."""
        task = self.tasks[self.slot_of[name]]
        route = task.reader._by_name.get(name) if task is not None else None
        return route.lease if route is not None else None

    def check_granted(self, name: str) -> None:
        """The source of a route is granted credit: all of its entities have been opened."""
        task = self.tasks[self.slot_of[name]]
        handles = task.handles_of(name) if task is not None and task.reader._by_name.get(name) else []
        self.expect(all(each._was_opened for each in handles), f"{name} is granted credit before its entities are open")

    def check_settled(self, name: str, position: int, disposition: Disposition | None) -> None:
        """A lease settles a message."""
        destination = self.destinations[name, position]
        if disposition is None:
            is_sent = destination in self.entities and (name, position) in self.entities[destination].taken
            self.expect(is_sent, f"{name} {position} is completed, and {destination} has not got it")
        elif destination in self.entities:
            entity = self.entities[destination]
            is_at_fault = self.is_refused(name, position) or entity.is_odd
            self.expect(disposition.kind == "dead-letter", f"{name} {position} gets {disposition}")
            self.expect(is_at_fault, f"{name} {position} is set aside: {disposition}")
        else:
            self.expect(
                disposition.kind == destination,
                f"{name} {position} gets {disposition}, and its step wants {destination}",
            )

    def is_refused(self, name: str, position: int) -> bool:
        """Whether its entity refuses a message for itself, whenever it is sent."""
        entity = self.entities.get(self.destinations[name, position])
        if entity is None:
            return False
        is_large = bool(entity.limit_bytes) and (name, position) in self.large and not entity.name.endswith("/to")
        return is_large or (name, position) in entity.poison

    # ---- chance

    def chance(self, part: float) -> bool:
        """Whether something goes wrong now."""
        return self.choose.random() < part * self.chaos

    def soon(self) -> float:
        """When something that takes a moment is done."""
        return self.now + self.choose.choice([0.0, 0.01, 0.5])

    # ---- time

    def step(self) -> None:
        """One round of everything."""
        self._meet()
        for slot in range(SLOTS):
            self._step_slot(slot)
        for queue in self.queues.values():
            queue.expire()
        assert not self.broken, self.broken
        self.check_order()

    def _meet(self) -> None:
        choose = self.choose
        for name, entity in self.entities.items():
            if self.chance(0.004):
                entity.busy_until, entity.busy = (
                    self.now + choose.choice([0.1, 3.0, 40.0]),
                    choose.choice([BLOCKED, UNCLEAR]),
                )
                entity.is_odd |= entity.busy is UNCLEAR
                self.fault(name)
            if self.chance(0.002):
                entity.away_until = self.now + choose.choice([0.5, 5.0, 60.0])
                self.fault(name)
            if self.chance(0.002):
                entity.hangs_until = self.now + choose.choice([0.5, 5.0, 60.0])
                self.fault(name)
            if self.chance(0.002):
                entity.stopped_until = self.now + choose.choice([0.5, 20.0, 100.0])
                self.fault(name)
        for name, left in self.later.items():
            if left and choose.random() < 0.05:
                count = min(left, choose.choice([1, 1, 5, 20]))
                self.later[name] -= count
                self.publish(name, count)
        if self.chance(0.003):
            self.claim_lost_until = self.now + choose.choice([1.0, 20.0, 60.0])
            self.faults |= set(self.queues)
        if self.chance(0.004):
            self._move(choose.choice(list(self.specs)))
        if self.chance(0.002):
            self._change(choose.choice(list(self.specs)))
        if self.chance(0.003):
            name, plan = choose.choice(list(self.specs)), Plan(choose.choice([1, 8, 64]), choose.choice([1, 8, 300]))
            task = self.tasks[self.slot_of[name]]
            if task is not None:
                task.reader.plan(name, plan, self.now)

    def _move(self, name: str) -> None:
        """A route goes to the other slot, once the reader that has it has ended it."""
        if name in self.moving:
            return
        slot = self.slot_of[name]
        task = self.tasks[slot]
        self.faults.add(name)
        if task is None:
            self.moving[name] = slot
            self._arrive(name)
        elif not task.is_ending:
            self.moving[name] = slot
            task.reports.pop(name, None)
            task.reader.remove(name, self.now)

    def _arrive(self, name: str) -> None:
        """A route in transit begins at its new slot once it has ended."""
        slot = self.moving[name]
        task = self.tasks[slot]
        report = task.reports.get(name) if task is not None else None
        if task is not None and not (report is not None and report.state is RouteState.ENDED):
            return
        del self.moving[name]
        self.slot_of[name] = 1 - slot
        there = self.tasks[1 - slot]
        if there is not None and not there.is_ending:
            there.reader.add(self.specs[name], Plan(), self.now)

    def _change(self, name: str) -> None:
        """A route is carried otherwise from now on."""
        spec = self.specs[name] = replace(self.specs[name], in_flight=self.choose.choice([1, 5, 12_000]))
        task = self.tasks[self.slot_of[name]]
        self.faults.add(name)
        if task is not None and not task.is_ending and name not in self.moving:
            if self.choose.random() < 0.5:  # not in one go
                task.reader.remove(name, self.now)
            task.reader.add(spec, Plan(), self.now)

    def _step_slot(self, slot: int) -> None:
        choose, task = self.choose, self.tasks[slot]
        if task is None:
            if self.now >= self.begin_at[slot]:
                self._begin(slot)
            return
        task.step_ends()
        if self.chance(0.003):
            task.sink_frozen_until = self.now + choose.choice([1.0, 8.0, 40.0])
            self._shake(slot)
        if self.chance(0.003):
            task.reader_frozen_until = self.now + choose.choice([1.0, 8.0, 40.0])
            self._shake(slot)
        if self.chance(0.001):
            task.end()
            self._shake(slot)
        if self.chance(0.001) or task.sink_frozen_until > self.now + SILENCE_SECONDS:
            task.kill_sink()
            self._shake(slot)
        elif self.chance(0.001) or task.reader_frozen_until > self.now + SILENCE_SECONDS:
            task.kill_reader()
            self._shake(slot)
        else:
            if self.now >= task.reader_frozen_until:
                task.step_reader()
            if self.now >= task.sink_frozen_until:
                task.step_sink()
            task.check_paused()
        if task.is_over:
            task.leave()
            self.tasks[slot] = None
            self.begin_at[slot] = math.inf if self.is_closing else self.now + choose.choice([0.0, 0.5, 20.0])
        for name in [name for name, of in self.moving.items() if of == slot]:
            self._arrive(name)

    def _shake(self, slot: int) -> None:
        self.faults |= {name for name, of in self.slot_of.items() if of == slot or name in self.moving}

    def _begin(self, slot: int) -> None:
        task = self.tasks[slot] = Task(self, slot)
        self.leases += 1
        for name, spec in self.specs.items():
            if self.slot_of[name] == slot and name not in self.moving:
                task.reader.add(spec, Plan(), self.now)

    def advance(self) -> None:
        """Time passes to what is due next."""
        due = [until for queue in self.queues.values() for _, until in queue.locks.values()]
        for slot, task in enumerate(self.tasks):
            frozen = 0.0 if task is None else min(task.reader_frozen_until, task.sink_frozen_until)
            due.append(max(frozen, self.begin_at[slot] if task is None else task.due()))
        if any(self.later.values()):
            due.append(self.now + self.choose.choice([0.05, 2.0]))
        self.now = min(max(min(due, default=math.inf), self.now + 0.001), self.now + 30.0)

    def run(self, seconds: float, steps: int) -> None:
        """Rounds until the time is over or all is settled."""
        until = self.now + seconds
        for _ in range(steps):
            if self.now >= until or (self.is_done and not any(self.later.values())):
                return
            self.step()
            self.advance()

    # ---- the end

    def calm(self, away: Sequence[str] = ()) -> None:
        """No fault happens from now on. A message that alone is refused without a reason waits for others, which come.

        Args:
            away: entities that stay unavailable until they are set otherwise.
        """
        self.chaos, self.claim_lost_until = 0.0, 0.0
        for name, entity in self.entities.items():
            entity.busy_until = entity.hangs_until = entity.stopped_until = 0.0
            entity.away_until = math.inf if name in away else 0.0
        for task in self.tasks:
            if task is not None:
                task.reader_frozen_until = task.sink_frozen_until = 0.0
        for name, left in self.later.items():
            self.publish(name, left + 3)
            self.later[name] = 0

    def open_of(self, name: str) -> list[int]:
        """The messages of a route that are not settled."""
        return sorted(set(range(1, self.counts[name] + 1)) - set(self.queues[name].settled))

    @property
    def is_done(self) -> bool:
        """Whether everything is settled."""
        return all(len(self.queues[name].settled) == count for name, count in self.counts.items())

    def wait_settled(self, names: Sequence[str], seconds: float = 3_000.0) -> None:
        """Continues until everything of some routes is settled."""
        until = self.now + seconds
        while any(self.open_of(name) for name in names):
            self.step()
            self.advance()
            if self.now >= until:
                left = {name: self.open_of(name) for name in names if self.open_of(name)}
                reports = {name: self.report(name) for name in left}
                raise AssertionError(f"it is stuck: {left}, {reports}")

    def report(self, name: str) -> RouteReport | None:
        """How a route is doing."""
        task = self.tasks[self.slot_of[name]]
        route = task.reader._by_name.get(name) if task is not None else None
        return route.report(self.now) if route is not None else None

    def settle_down(self) -> None:
        """A while later, every route runs."""
        until = self.now + 120.0
        while self.now < until:
            self.step()
            self.advance()
        for name in self.specs:
            report = self.report(name)
            assert report is not None, name
            assert report.state is RouteState.RUNNING, f"{name}: {report}"
            assert (report.paused, report.error, report.outstanding) == ("", "", 0), f"{name}: {report}"

    def end(self) -> None:
        """All leases end in good order, in bounded time."""
        until, self.is_closing = self.now + 90.0, True
        for slot, task in enumerate(self.tasks):
            self.begin_at[slot] = math.inf
            if task is not None:
                task.end()
        while any(self.tasks):
            self.step()
            self.advance()
            assert self.now < until, [task.reports for task in self.tasks if task is not None]

    def check_order(self) -> None:
        """What the targets have, against the order of their sources."""
        for name, spec in self.specs.items():
            entity = self.entities[f"{name}/to"]
            if spec.is_strict or not (name in entity.was_refused or entity.poison):
                firsts = list(dict.fromkeys(position for _, position in entity.accepted))
                assert firsts == sorted(firsts), f"{name} is out of order: {firsts}"

    def check_copies(self) -> None:
        """What the entities have, of what is settled."""
        for name, queue in self.queues.items():
            for position, kind in queue.settled.items():
                destination = self.destinations[name, position]
                if kind == "complete" and destination in self.entities:
                    assert (name, position) in self.entities[destination].taken, f"{name} {position} is lost"
            ends = {f"{name}/to", *self.specs[name].diverts}
            if not ({name} | ends) & self.faults:
                for each in ends:
                    entity = self.entities[each]
                    of_route = [position for of, position in entity.accepted if of == name]
                    if name not in entity.was_refused:
                        assert len(of_route) == len(set(of_route)), f"{name}: sent twice without a fault: {of_route}"
                self._check_report(name)

    def _check_report(self, name: str) -> None:
        """Without a fault the report counts each message for what it is."""
        report = self.report(name)
        if report is None or self.open_of(name):
            return
        published = range(1, self.counts[name] + 1)
        refused = [self.is_refused(name, position) for position in published]
        kinds = ["refused" if bad else self.destinations[name, at] for at, bad in zip(published, refused, strict=True)]
        reported = (report.settled, report.moved, report.diverted, report.discarded, report.dead_lettered)
        diverted = sum(kind.startswith("b/") for kind in kinds)
        dead_lettered = kinds.count("dead-letter") + kinds.count("refused")
        wanted = (len(kinds), kinds.count(f"{name}/to"), diverted, kinds.count("complete"), dead_lettered)
        assert reported == wanted, f"{name}: {reported} instead of {wanted}: {report}"
