"""One route in a world without threads, sockets or clocks: both machines, both channels, a source and a target, all by one seed.

The machines and their shells are the real ones (`isthmus.bridge.lease.lease`, `isthmus.bridge.host.sender.handle`,
`isthmus.bridge.delivery.settle_account`); time passes only as the world says. Whatever the schedule, it checks:
    - nothing is completed at the source before the target has accepted it, and only what cannot be sent is dead-lettered;
    - the source never has more out than its credit, nor is given credit while it may not be read;
    - without a refusal the target has the messages in the order of the source;
    - without a fault no message is sent twice;
    - once faults stop, everything is settled: nothing waits for ever, and no credit is lost;
    - at its end everything is settled or given back, in bounded time;
    - a source that is set back to an earlier state while it is away gives positions to other messages: none of these is completed before
      the target has accepted it;
    - a strict route has the order of the source at its target whatever is refused;
    - no step is said to remove rows, as none does;
    - no time-out passes while the target says that it accepts nothing, or while bytes arrive there, and the route is paused in the first case;
    - a route that is to move what is present ends by itself, with everything settled.

Faults: links lost, refused and opened late, messages refused for themselves and for the target, a target that answers out of order and takes
its credit back, locks that expire while they are held, reader and sink that stand still, claims that are not confirmed, sources set back; a target
that is silent for minutes, to which bytes still arrive meanwhile or not, that says that it accepts nothing, that is slow, and that takes what
was sent over a connection long after that was lost.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from isthmus.amqp import section
from isthmus.amqp.types import Symbol, Timestamp
from isthmus.bridge.delivery.settle_account import SettleAccount
from isthmus.bridge.delivery_event import Disposition, Granted, Lost, Opened, Outcome, Progressed, Send, Stopped
from isthmus.bridge.flow.byte_budget import ByteBudget
from isthmus.bridge.frame import Kind, unpack_flushed, unpack_json, unpack_runs
from isthmus.bridge.host.sender import handle as sender_handle
from isthmus.bridge.host.sender.error import ClaimUnconfirmedError
from isthmus.bridge.host.sender.handle import TargetHandle
from isthmus.bridge.host.sender.rows import Part
from isthmus.bridge.lease import event as e
from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.lease.fence import Fence
from isthmus.bridge.lease.lease import RouteLease
from isthmus.bridge.port import Arrived, Copies, Drained, Exhausted, SourceLost, SourceOpened
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.bridge.refusal_memory import RefusalMemories
from isthmus.bridge.route_spec import End, RouteSpec

__all__ = ["Source", "World"]

LOCK_SECONDS = 5.0
CLAIM_SECONDS = 15.0
# Just before rates change: what comes then is in transit when credit is taken back.
BEFORE_CHANGE = 3_599.998
# A message is known by its position, and by how often the source has been set back before it was sent.
_VERSION = 1_000_000
# The handle of a flush row: no route's.
_FLUSH = 0
_BLOCKED = Refusal(RefusalKind.BLOCKED, "busy", "the target is busy")
_UNCLEAR = Refusal(RefusalKind.UNCLEAR, "odd", "no reason is given")
_BAD = Refusal(RefusalKind.MESSAGE, "bad", "the message is malformed")
_AWAY = Refusal(RefusalKind.UNKNOWN, "", "the connection is lost")
_NOT_FOUND = Refusal(RefusalKind.FATAL, "gone", "no such entity")


class Source:
    """A queue with locks, and the one link that reads it."""

    def __init__(self, world: World, count: int) -> None:
        self.world = world
        self.ready = list(range(1, count + 1))
        self.locked: dict[int, bool] = {}  # by position, whether by the present source; else until its lock expires
        self.expires: dict[int, float] = {}
        self.settled: dict[int, str] = {}
        self.credit = 0
        self.state = "closed"
        self.draining = False
        self.unreported: list[tuple[int, str]] = []  # settled while the link was lost
        self.is_exhausted = False

    def open(self) -> None:
        self.state, self.is_exhausted = "opening", False
        self.answer_at = self.world.soon()

    def close(self) -> None:
        unsettled = [position for position in self.locked if position not in self.expires]
        assert not unsettled or self.state != "open", f"closed with {unsettled}, neither settled nor given back"
        for position in self.locked:
            self.expires.setdefault(position, self.world.now + LOCK_SECONDS)
        self.state, self.credit, self.draining = "closed", 0, False
        self.unreported.clear()

    def lose(self) -> None:
        self.state, self.credit, self.draining = "lost", 0, False

    def settle(self, first: int, last: int, kind: str) -> None:
        for position in range(first, last + 1):
            if position not in self.locked or position in self.expires:
                continue
            if self.state != "open":
                self.unreported.append((position, kind))
            else:
                self._settle(position, kind)

    def _settle(self, position: int, kind: str) -> None:
        if self.locked.pop(position, None) is None:
            return
        if kind == "release":
            self.ready = sorted([*self.ready, position])
            return
        if kind == "complete":
            assert self.world.message_of(position) in self.world.accepted, f"{position} is completed unsent"
        self.settled[position] = kind

    def lose_locks(self) -> None:
        """Some locks of the present link expire: their messages are given again."""
        unsettled = [position for position in self.locked if position not in self.expires]
        for position in self.world.choose.sample(unsettled, self.world.choose.randint(0, len(unsettled))):
            del self.locked[position]
            self.ready = sorted([*self.ready, position])
            self.world.faults += 1

    def set_back(self) -> None:
        """It begins again with an earlier state: what came since is lost, and its positions are given to others."""
        world, given = self.world, max([0, *self.locked, *self.settled])
        cut = world.choose.randint(max(0, given - 10), given)
        for position in range(world.choose.randint(0, cut), world.count + 1):
            self.locked.pop(position, None)
            self.expires.pop(position, None)
            self.settled.pop(position, None)
            self.ready = sorted({*self.ready, position} - {0})
            if position > cut:
                world.sent[position] = world.sent[position][0] + 1, int(world.now * 1000) + 1
        world.was_set_back = world.refused = True

    def grant(self, credit: int) -> None:
        assert self.state == "open", "credit without a link"
        assert not self.draining, "credit before the answer to a drain"
        self.credit = credit

    def step(self) -> list[Any]:
        """What it reports now."""
        world, choose = self.world, self.world.choose
        for position in [each for each, at in self.expires.items() if at <= world.now]:
            del self.expires[position], self.locked[position]
            self.ready = sorted([*self.ready, position])
        if self.state == "opening" and world.now >= self.answer_at:
            if world.chance(0.3):
                self.lose()
                return [SourceLost("refused", world.chance(0.3))]
            self.state = "open"
            unreported, self.unreported = self.unreported, []
            for position, kind in unreported:
                self._settle(position, kind)
            return [SourceOpened("ns")]
        if self.state != "open":
            return []
        if world.chance(0.01):
            self.lose()
            world.faults += 1
            if world.chance(0.3):
                self.set_back()
                return [SourceLost("broke")]
            return [SourceLost("broke", world.chance(0.2))]
        if world.chance(0.02):
            self.lose_locks()
        reported: list[Any] = []
        limit = min(self.expires, default=math.inf)  # an ordered reader waits for what another receiver has locked
        free = list(itertools.takewhile(lambda each: each < limit, self.ready))
        count = min(self.credit, len(free), choose.choice([1, 3, 1000]))
        if count and choose.random() < world.eager:
            taken = free[:count]
            self.ready = self.ready[count:]
            self.locked.update(dict.fromkeys(taken, True))
            self.credit -= count
            reported.append(Arrived(taken, [world.payload(each) for each in taken]))
        if self.draining and choose.random() < 0.5:
            self.draining, self.credit = False, 0
            reported.append(Drained())
        is_over = world.spec.only_present and not (self.ready or self.locked or self.draining or self.is_exhausted)
        if is_over and not reported:
            self.is_exhausted = True
            reported.append(Exhausted())
        return reported

    def deadline(self) -> float:
        due = min(self.expires.values(), default=math.inf)
        if self.state == "opening":
            due = min(due, self.answer_at)
        if self.state == "open" and (self.draining or (self.credit and self.ready)):
            due = min(due, self.world.now + 0.01)
        return due


class _Target:
    """What one handle sends to."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state = "closed"
        self.sent: deque[list[int]] = deque()
        self.events: list[Any] = []
        self.unreported: list[tuple[int, Refusal | None]] = []  # outcomes by ordinal
        self.ordinal = 0
        self.credit = 0
        self.answer_at = math.inf
        self.is_stopped = False
        self.looks_at = self.moved_at = -math.inf  # whether bytes arrive while it is silent
        self.worked_at = world.now

    def open(self) -> None:
        self.state, self.answer_at = "opening", self.world.soon()

    def close(self) -> None:
        self._drop()
        self.state = "closed"

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        return Copies([data[low:high] for low, high in itertools.pairwise(offsets)])

    def send(self, send: Send) -> None:
        groups = [send.payloads] if send.is_envelope else [[each] for each in send.payloads]
        if self.state != "open":
            return
        self.credit -= len(groups)
        if self.credit < 0:  # an error of a target is its route's alone: the handle would take it for that
            self.world.broken = "more was sent than the target takes"
        for group in groups:
            self.sent.append([int.from_bytes(each[-8:], "big") for each in group])

    def _drop(self) -> None:
        """The connection ends; the target may have taken some of what was in transit."""
        world = self.world
        for _ in range(world.choose.randint(0, len(self.sent))):
            group = self.sent.popleft()
            if self._verdict(group) is None:
                world.accepted += group
        if world.chance(0.3):
            late_at = world.now + world.choose.choice([1.0, 30.0, 100.0])
            world.late += [(late_at, group) for group in self.sent]
        self.sent.clear()
        self.unreported.clear()
        self.ordinal = self.credit = 0
        self.is_stopped = False

    def _lose(self, refusal: Refusal) -> None:
        self._drop()
        self.state = "closed"
        self.events.append(Lost(refusal))

    def _verdict(self, group: list[int]) -> Refusal | None:
        world = self.world
        bad = [world.poison[each] for each in (message % _VERSION for message in group) if each in world.poison]
        if bad:
            world.refused = True
            return bad[0]
        if world.now < world.busy_until:
            world.refused = True
            return world.busy
        return None

    def work(self) -> None:
        """What happens without a call."""
        world, choose = self.world, self.world.choose
        if self.state == "opening" and world.now >= self.answer_at:
            if world.chance(0.3):
                self._lose(_NOT_FOUND if world.chance(0.3) else _AWAY)
                return
            self.state = "open"
            self.events.append(Opened(world.limit_bytes, choose.choice([0, 200])))
            self._grant(choose.choice([1, 7, 1000]))
            return
        if self.state != "open":
            return
        if world.chance(0.01):
            world.faults += 1
            self._lose(_NOT_FOUND if world.chance(0.2) else _AWAY)
            return
        if self._is_silent():
            return
        for _ in range(self._share(choose.choice([0, 1, 5, 1000]))):
            group = self.sent.popleft()
            refusal = self._verdict(group)
            if refusal is None:
                world.accepted += group
            self.unreported.append((self.ordinal, refusal))
            self.ordinal += 1
        self._report()
        if world.chance(0.03):
            self._grant(choose.choice([0, 0, 1]))
        elif self.credit < 5 and choose.random() < 0.7:
            self._grant(choose.choice([5, 1000]))

    def _is_silent(self) -> bool:
        """Whether it reads nothing now, and answers nothing."""
        world = self.world
        is_stopped = world.now < world.stopped_until
        if is_stopped != self.is_stopped:
            self.is_stopped = is_stopped
            self._grant(0 if is_stopped else 1000)
            self.events.append(Stopped("it has no memory" if is_stopped else ""))
        if world.now < world.silent_until and world.is_arriving and self.sent and world.now >= self.looks_at:
            self.looks_at, self.moved_at = world.now + 5.0, world.now
            self.events.append(Progressed())
        return is_stopped or world.now < world.silent_until

    def _share(self, most: int) -> int:
        """How many deliveries it takes now."""
        world, most = self.world, min(most, len(self.sent))
        if not world.pace:
            return most
        if not self.sent:
            self.worked_at = world.now
        count = min(most, int((world.now - self.worked_at) * world.pace))
        self.worked_at += count / world.pace
        return count

    def _grant(self, credit: int) -> None:
        """Only the last credit counts; it is reported before outcomes, after which more is sent."""
        self.credit = credit
        rest = [event for event in self.events if not isinstance(event, Granted)]
        at = next((at for at, event in enumerate(rest, 1) if isinstance(event, Opened)), 0)
        self.events = [*rest[:at], Granted(credit), *rest[at:]]

    def _report(self) -> None:
        """Reports outcomes: at once, or some of them, in any order."""
        choose, reported = self.world.choose, self.unreported
        if self.world.is_disordered:
            reported = (
                choose.sample(reported, choose.randint(0, len(reported)))
                if choose.random() < 0.5
                else reported[: len(reported) // 2]
            )
            self.unreported = [each for each in self.unreported if each not in reported]
            reported = sorted(reported, key=lambda each: each[0]) if choose.random() < 0.5 else reported
        else:
            self.unreported = []
        for ordinal, refusal in reported:
            last = self.events[-1] if self.events else None
            if (
                isinstance(last, Outcome)
                and last.last + 1 == ordinal
                and last.refusal is refusal
                and choose.random() < 0.5
            ):
                self.events[-1] = Outcome(last.first, ordinal, refusal)
            else:
                self.events.append(Outcome(ordinal, ordinal, refusal))

    def poll(self, now: float) -> list[Any]:
        events, self.events = self.events, []
        return events

    def deadline(self, now: float) -> float:
        if self.state == "opening":
            return self.answer_at
        silent_until = max(self.world.silent_until, self.world.stopped_until)
        if self.state == "open" and now < silent_until and not self.events:
            is_looking = self.sent and self.world.is_arriving and now < self.world.silent_until
            return min(silent_until, max(now, self.looks_at) + 0.01) if is_looking else silent_until
        if self.world.pace and self.sent and not self.events:
            return now + 1 / self.world.pace
        return (
            now + 0.01
            if self.events or self.sent or self.unreported or (self.state == "open" and self.credit < 5)
            else math.inf
        )


class World:
    """A route and its environment.

    Args:
        seed: of everything.
        count: messages that are at the source at first; as many come later.
    """

    def __init__(self, seed: int, count: int = 30) -> None:
        choose = self.choose = random.Random(seed)
        self.now = choose.choice([10.0, 3_590.0])
        self.chaos = choose.choice([0.0, 0.3, 1.0])
        self.count = count
        self.limit_bytes = choose.choice([0, 400])
        self.later = count
        self.eager = choose.choice([0.8, 0.8, 0.1])  # how soon the source sends what it may
        self.is_disordered = choose.random() < 0.5
        is_strict, blocks = choose.random() < 0.2, choose.random() < 0.15
        # A strict route waits for what is refused without a reason, and one that blocks for all that is refused for itself.
        kinds = [_BAD] if is_strict else [_BAD, _UNCLEAR]
        few = 0 if blocks else choose.choice([0, 0, 1, 4])
        self.poison = {choose.randint(1, 2 * count): choose.choice(kinds) for _ in range(few)}
        few = choose.choice([0, 0, 2]) if self.limit_bytes and not blocks else 0
        self.large = set(choose.sample(range(1, 2 * count + 1), few))
        self.busy_until, self.busy = 0.0, _BLOCKED
        self.silent_until = self.stopped_until = 0.0
        self.is_arriving = False
        self.pace = choose.choice([0.0, 0.0, 0.0, 5.0])
        self.late: list[
            tuple[float, list[int]]
        ] = []  # when the target takes what was sent over a connection that is lost
        self.was_odd = False
        self.faults = 0
        self.refused = bool(self.large)
        self.accepted: list[int] = []
        self.was_set_back = False
        # By position, how often the source was set back before, and when it was sent.
        self.sent = {position: (0, int(self.now * 1000)) for position in range(1, count + 1)}
        self.source = self.make_source(count)
        claim = choose.choice(["", "task"])
        rate = choose.choice(["", "500/s", "20/s", "0/s 01:00-01:02, 400/s", "3/s 01:00-01:02, 1000/s"])
        self.spec = RouteSpec(
            name="r",
            source=End("world", "a"),
            target=End("world", "b"),
            claim=claim,
            rate=rate,
            window=choose.choice([8, 40, 16_000]),
            window_bytes=choose.choice([500, 2_000, 1 << 20]),
            in_flight=choose.choice([1, 5, 12_000]),
            envelope_messages=choose.choice([0, 0, 1, 10]),
            target_seconds=choose.choice([15.0, 30.0]),
            is_strict=is_strict,
            block_refused=blocks,
            only_present=choose.random() < 0.2,
            steps=choose.choice([(), ('{"custom": {}}',)]),
        )
        self.fence = Fence(bool(claim), self.now)
        self.sink_fence = -math.inf
        self.claim_lost_until = 0.0
        handles = itertools.count(1)
        self.lease = RouteLease(self.spec, self.fence, ByteBudget(4_000, 200), lambda: next(handles))
        self.lease.messages.is_numbered_again = True
        self.to_sink: deque[tuple[str, Any]] = deque()
        self.to_reader: deque[tuple[int, bytes]] = deque()
        self.rows: deque[tuple[int, Sequence[int], Sequence[bytes]]] = deque()
        self.handed_on: Counter[int] = Counter()  # rows by handle
        self.flushes: deque[tuple[int, Counter[int]]] = deque()  # flush rows in transit, and what went before
        self.flush_number = 0
        self.reader_frozen_until = self.sink_frozen_until = 0.0
        self.account = SettleAccount()
        self.memories = RefusalMemories()
        self.handles: dict[int, TargetHandle] = {}
        self.targets: dict[int, _Target] = {}
        self.stats_at = 0.0
        self.reported: dict[int, tuple[e.Statistics, int]] = {}
        self.has_ended = False
        self.broken = ""

    def make_source(self, count: int) -> Source:
        """What the route reads."""
        return Source(self, count)

    # ---- chance

    def chance(self, part: float) -> bool:
        """Whether something goes wrong now."""
        return self.choose.random() < part * self.chaos

    def soon(self) -> float:
        """When something that takes a moment is done."""
        return self.now + self.choose.choice([0.0, 0.01, 0.5])

    def message_of(self, position: int) -> int:
        """The message that has a position now."""
        return position + self.sent[position][0] * _VERSION

    def payload(self, position: int) -> bytes:
        """The message that has a position now, encoded: its last bytes are its number."""
        annotations = {Symbol("x-opt-enqueued-time"): Timestamp(self.sent[position][1])}
        head = section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations)
        body = bytes(500 if position in self.large else 40) + self.message_of(position).to_bytes(8, "big")
        return head + section.encode_message(body)

    # ---- the reader

    def apply(self, event: e.Event) -> None:
        """Gives the lease an event, and carries out what follows."""
        for effect in self.lease.on(event, self.now):
            self._carry_out(effect)

    def _carry_out(self, effect: Any) -> None:
        source = self.source
        match effect:
            case e.OpenSource():
                source.open()
            case e.CloseSource():
                source.close()
            case e.Grant(credit):
                assert self.lease.report(self.now).state in ("running", "retrying"), self.lease.report(self.now)
                source.grant(credit)
            case e.Drain():
                source.draining = True
            case e.Settle(first, last, disposition):
                for position in range(first, last + 1):
                    if disposition is None:
                        is_sent = self.was_set_back or position in self.accepted
                        assert is_sent, f"{position} is completed, and the target has not got it"
                    else:
                        # A target that refuses without a reason again and again, and takes others between, says it of a message.
                        at_fault = position in self.poison or position in self.large or self.was_odd
                        assert at_fault, f"{position} is set aside: {disposition}"
                source.settle(first, last, "complete" if disposition is None else disposition.kind)
            case e.Release(first, last):
                source.settle(first, last, "release")
            case e.HandOn(handle, positions, payloads):
                self.handed_on[handle] += len(positions)
                self.rows.append((handle, positions, payloads))
            case e.OpenTarget() | e.CloseTarget() | e.Window():
                self.to_sink.append((type(effect).__name__, effect))
            case e.Ended():
                self.has_ended = True

    def _read_frames(self) -> None:
        while self.to_reader and self.choose.random() < 0.9:
            kind, payload = self.to_reader.popleft()
            handle = self.lease.handle
            if kind == Kind.SETTLE:
                runs = [(first, last) for of, first, last in unpack_runs(payload) if of == handle]
                if runs:
                    self.apply(e.Completed(runs))
            elif kind == Kind.DISPOSE:
                for item in unpack_json(payload):
                    if item["handle"] == handle:
                        disposition = Disposition(item["disposition"], item["reason"], item["description"])
                        self.apply(e.Disposed(item["first"], item["last"], disposition))
            elif kind == Kind.FLUSHED:
                self._flushed(*unpack_flushed(payload))
            else:
                of, event = payload  # type: ignore[misc]
                if of == handle:
                    self.apply(event)  # type: ignore[arg-type]

    def _push(self) -> None:
        """A flush row goes behind what was handed on."""
        self.flush_number += 1
        self.flushes.append((self.flush_number, self.handed_on.copy()))
        self.rows.append((_FLUSH, (self.flush_number,), ()))

    def _flushed(self, number: int, came: dict[int, int]) -> None:
        while self.flushes[0][0] < number:
            self.flushes.popleft()
        _, yielded = self.flushes.popleft()
        handle = self.lease.handle
        if handle in yielded:
            self.apply(e.Flushed(yielded[handle], came.get(handle, 0)))

    # ---- the sink, as `isthmus.bridge.host.sender.sender` goes about it; `Reports` of its handles

    def ready(self, handle: int) -> None:
        self._report_event(handle, e.TargetReady())

    def settle(self, handle: int, positions: Any) -> None:
        self.account.settle(handle, positions)

    def dispose(self, handle: int, position: Any, disposition: Disposition, route: str) -> None:
        self.account.dispose(handle, position, disposition)

    def pause(self, handle: int, text: str) -> None:
        self._report_event(handle, e.TargetPaused(text))

    def resume(self, handle: int) -> None:
        self._report_event(handle, e.TargetResumed())

    def failed(self, handle: int, error: Any, is_fatal: bool) -> None:
        if target := self.targets.get(handle):
            seconds = self.spec.target_seconds
            is_excused = self.handles[handle].machine.is_stopped or self.now < target.moved_at + seconds
            is_late = any(text in str(error) for text in ("gave no outcome", "took nothing"))
            if is_late and is_excused:
                self.broken = f"{error}: a time-out, though it was silent for a reason"
        self.to_reader.extend(self.account.take(self.now))
        self._report_event(handle, e.TargetFailed(str(error), is_fatal))

    def may_send(self, claim: str) -> bool:
        return self.now < self.sink_fence

    def _report_event(self, handle: int, event: e.Event) -> None:
        self.to_reader.append((0, (handle, event)))  # type: ignore[arg-type]

    def _sink(self) -> None:
        if self.now < self.sink_frozen_until:
            return
        rows = list(self.rows) if self.choose.random() < 0.8 else []
        for _ in rows:
            self.rows.popleft()
        while self.to_sink:
            name, effect = self.to_sink.popleft()
            if name == "OpenTarget":
                self.account.open(effect.handle)
                target = self.targets[effect.handle] = _Target(self)
                memory = self.memories.of(self.spec)
                handle = TargetHandle(effect.handle, self.spec, target, self, self.now, "", memory)  # type: ignore[arg-type]
                self.handles[effect.handle] = handle
                handle.open()
            elif name == "CloseTarget":
                handle = self.handles.pop(effect.handle, None)  # type: ignore[assignment]
                if handle is not None:
                    handle.close()
                self.account.close(effect.handle)
            elif name == "Window":
                self.account.set_window(effect.handle, effect.messages)
            else:
                self.sink_fence = effect
        for number, positions, payloads in rows:
            if number == _FLUSH:
                self.account.flush(positions[0])
                continue
            self.account.came(number, len(positions))
            if number in self.handles:
                offsets = [0, *itertools.accumulate(map(len, payloads))]
                self.handles[number].add(Part(list(positions), b"".join(payloads), offsets))
        for number, each in list(self.handles.items()):
            self.targets[number].work()
            each.step(self.now, True)
            if self.spec.claim and not each.has_failed and self.sink_fence <= self.now and self.sink_fence > -math.inf:
                each.fail(ClaimUnconfirmedError("r", self.spec.claim))
            if each.has_failed:
                del self.handles[number]
        if self.account.deadline() <= self.now:
            self.to_reader.extend(self.account.take(self.now))
        if self.now >= self.stats_at:
            self.stats_at = self.now + 2.0
            for number, each in self.handles.items():
                reported = e.Statistics(each.machine.counts.resent, each.machine.blocked_by)
                if self.reported.get(number) != (reported, each.machine.counts.completed):
                    self.reported[number] = reported, each.machine.counts.completed
                    self._report_event(number, reported)

    # ---- time

    def step(self) -> None:
        """One round of everything."""
        choose = self.choose
        if self.chance(0.01):
            self.busy_until, self.busy = self.now + choose.choice([0.1, 3.0, 40.0]), choose.choice([_BLOCKED, _UNCLEAR])
            self.was_odd |= self.busy is _UNCLEAR
            self.faults += 1
        if self.chance(0.004):
            self.silent_until, self.is_arriving = (
                self.now + choose.choice([5.0, 20.0, 45.0, 130.0]),
                choose.random() < 0.5,
            )
            self.faults += 1
        if self.chance(0.003):
            self.stopped_until = self.now + choose.choice([1.0, 20.0, 100.0])
            self.faults += 1
        late, self.late = self.late, []
        for at, group in late:
            if at > self.now:
                self.late.append((at, group))
            elif not any(message % _VERSION in self.poison for message in group):
                self.accepted += group
        if self.later and (choose.random() < 0.05 or 0.0 <= self.now - BEFORE_CHANGE < 0.002):
            count = min(self.later, 20 if self.now >= BEFORE_CHANGE else choose.choice([1, 1, 5, 20]))
            self.later -= count
            self.publish(count)
        if self.chance(0.005):
            self.claim_lost_until = self.now + choose.choice([1.0, 20.0, 60.0])
            self.faults += bool(self.spec.claim)
        if self.chance(0.004):
            self.sink_frozen_until = self.now + choose.choice([1.0, 8.0, 40.0])
            self.faults += 1
        if self.chance(0.004):
            self.reader_frozen_until = self.now + choose.choice([1.0, 8.0, 40.0])
            self.faults += 1
        if self.now >= self.reader_frozen_until:
            self._read()
        self._sink()
        if self.now >= self.reader_frozen_until:
            self._read_frames()
        self._check()

    def _read(self) -> None:
        """A round of the reader's."""
        choose = self.choose
        if self.chance(0.005):
            self.apply(e.Planned(Plan(choose.choice([1, 8, 64]), choose.choice([1, 8, 300]))))
        number = self.fence.ask(self.now)
        if number and self.now >= self.claim_lost_until and self.fence.answer(number, CLAIM_SECONDS):
            self.to_sink.append(("fence", self.fence.until))
            self.apply(e.Tick())
        for event in self.source.step():
            if self.source.state == "closed":
                break
            self.apply(event)
        if self.lease.deadline(self.now) <= self.now:
            self.apply(e.Tick())
        if self.spec.steps and self.lease.handle and choose.random() < 0.3:
            self._push()

    def _check(self) -> None:
        assert not self.broken, self.broken
        for number, handle in self.handles.items():
            assert handle.machine.unfinished <= self.count, number
        if self.has_ended:
            assert not self.lease.outstanding
            assert all(position in self.source.expires for position in self.source.locked), (
                "neither settled nor given back"
            )
        assert "removes rows" not in self.lease.report(self.now).error
        stopped = any(each.machine.is_stopped and number == self.lease.handle for number, each in self.handles.items())
        if stopped and not (self.to_reader or self.to_sink or self.has_ended):
            assert self.lease.report(self.now).paused, "it is not paused, though its target accepts nothing"
        self.check_order()

    def check_order(self) -> None:
        """What the target has, against the order of the source."""
        if not self.was_set_back and (self.spec.is_strict or not (self.refused or self.poison)):
            firsts = list(dict.fromkeys(self.accepted))
            assert firsts == sorted(firsts), f"out of order: {firsts}"

    def advance(self) -> None:
        """Time passes to what is due next."""
        due = [self.lease.deadline(self.now), self.source.deadline(), self.fence.deadline(self.now)]
        due += [min(each.due, self.targets[number].deadline(self.now)) for number, each in self.handles.items()]
        if self.account.has_unsent:
            due.append(self.account.deadline())
        if self.rows or self.to_sink or self.to_reader:
            due.append(self.now)
        if self.handles:
            due.append(self.stats_at)
        if self.later:
            due.append(self.now + self.choose.choice([0.1, 5.0]))
            due.append(BEFORE_CHANGE if self.now < BEFORE_CHANGE else math.inf)
        after = min(due)
        self.now = min(max(after, self.now + 0.001), self.now + 30.0)

    def run(self, seconds: float, steps: int) -> None:
        """Rounds until the time is over or all is settled."""
        until = self.now + seconds
        for _ in range(steps):
            is_done = self.is_done and not (self.later or self.spec.only_present)  # that ends by itself
            if self.now >= until or is_done or self.has_ended:
                return
            self.step()
            self.advance()

    def publish(self, count: int) -> None:
        """More messages."""
        more = range(self.count + 1, self.count + count + 1)
        self.source.ready += more
        self.sent |= dict.fromkeys(more, (0, int(self.now * 1000) + 2))
        self.count += count

    def calm(self) -> None:
        """No fault happens from now on. A message that alone is refused without a reason waits for others, which come."""
        self.chaos, self.busy_until, self.claim_lost_until = 0.0, 0.0, 0.0
        self.silent_until = self.stopped_until = self.pace = 0.0
        self.reader_frozen_until = self.sink_frozen_until = 0.0
        self.publish(self.later + 3)
        self.later = 0

    def end(self) -> None:
        """The route ends in good order, within the time that its machine has for that."""
        self.apply(e.End())
        until = self.now + 60.0
        while not self.has_ended:
            self.step()
            self.advance()
            assert self.now < until, f"it does not end: {self.lease.report(self.now)}"
        self._check()

    def check_copies(self) -> None:
        """What the target has got, of what is settled."""
        completed = [self.message_of(each) for each, kind in self.source.settled.items() if kind == "complete"]
        assert not set(completed) - set(self.accepted), "completed, and the target has not got it"
        if not self.faults and not self.refused:
            assert len(self.accepted) == len(set(self.accepted)), "sent twice without a fault"

    @property
    def is_done(self) -> bool:
        """Whether everything is settled."""
        return len(self.source.settled) == self.count


def short_delay(attempt: int) -> float:
    """Delays of attempts without chance."""
    return min(sender_handle.LONGEST_DELAY_SECONDS, sender_handle.FIRST_DELAY_SECONDS * 2.0 ** min(attempt, 16))
