"""A queue with sessions against a small reference model, with restarts, power cuts and clock jumps (hypothesis).

The default run does a twentieth of the 10,000 steps of `--soak`, as `long_count` has it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.entities.model_time import come_to_rest, ended_by_a_look

from isthmus.amqp import section
from isthmus.entities import Engine, Hold, QueueDescription, SessionQueue
from isthmus.entities.storage.key import DEFERRED, MESSAGE, SESSION, numbered_span
from isthmus.errors import SessionLockedError, SessionLockLostError
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock

LOCK_MS = 5_000
MAX_DELIVERIES = 3
SESSIONS = ("a", "b", "c", "")
STEPS = 10_000
# A look brings what is staged into the store, which is to stay staged over several steps as well.
LOOK_EVERY = 3


@dataclass
class Message:
    """One message as the model knows it."""

    name: str
    session: str
    state: str = "staged"  # staged, available, locked, returning, scheduled, deferred, locked-deferred, dead, removed
    count: int = 0
    expires_ms: int = 0
    token: bytes = b""
    due_ms: int = 0


@dataclass
class Model:
    """The guarantees of a queue with sessions, without its implementation."""

    messages: dict[int, Message] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)
    last: int = 0

    def live(self, *states: str, session: str | None = None) -> dict[int, Message]:
        return {
            number: one
            for number, one in sorted(self.messages.items())
            if one.state in states and session in (None, one.session)
        }


def payload(name: str, session: str, ttl_ms: int | None = None) -> bytes:
    return section.encode_message(
        name.encode(),
        header=section.Header(ttl_ms=ttl_ms),
        properties={"message_id": name, "group_id": session},
    )


def name_of(message: bytes) -> str:
    return str(section.decode_properties(message, section.locate(message).properties)["message_id"])


def count_of(message: bytes) -> int:
    return section.decode_header(message, section.locate(message).header).delivery_count


class SessionQueueMachine(RuleBasedStateMachine):
    @initialize(dead_letters_expired=st.booleans())
    def begin(self, dead_letters_expired: bool) -> None:
        self.clock = ManualClock()
        self.journal = MemoryJournal()
        self.dead_letters_expired = dead_letters_expired
        self.random = 0
        self.sent = 0
        self.model = Model()
        self.holds: dict[str, Hold] = {}
        self.lost: set[str] = set()
        self.start()
        self.engine.create_queue(
            "q",
            QueueDescription(
                requires_session=True,
                lock_duration_ms=LOCK_MS,
                max_delivery_count=MAX_DELIVERIES,
                dead_lettering_on_message_expiration=dead_letters_expired,
            ),
        )
        self.commit()
        self.durable = copy.deepcopy(self.model)
        self.find()

    def random_bytes(self, count: int) -> bytes:
        self.random += 1
        return self.random.to_bytes(count, "big")

    def start(self) -> None:
        self.engine = Engine(self.journal, self.clock, random_bytes=self.random_bytes)

    def find(self) -> None:
        queue = self.engine.receiver("q")
        assert isinstance(queue, SessionQueue)
        self.queue = queue

    @property
    def now(self) -> int:
        return self.clock.wall_ms()

    # ---- commits and their loss

    @rule()
    def commit(self) -> None:
        commit = self.engine.begin_commit()
        self.journal.sync()
        if commit is not None:
            self.engine.end_commit(commit)
        for one in self.model.live("staged", "returning").values():
            one.state = "available"
        self.durable = copy.deepcopy(self.model)

    @rule()
    def power_cut(self) -> None:
        self.journal.crash()
        self.model = copy.deepcopy(self.durable)
        self.restarted()

    @rule()
    def clean_restart(self) -> None:
        self.engine.close()
        self.journal.close()
        self.journal.reopen()
        self.restarted()
        self.durable = copy.deepcopy(self.model)

    @rule()
    def failed_sync(self) -> None:
        commit = self.engine.begin_commit()
        if commit is None:
            return
        locked = set(self.holds)
        self.lost.clear()
        self.engine.fail_commit(commit, OSError("disk"))
        assert self.engine.receiver("q") is self.queue
        assert self.lost == locked
        self.model = copy.deepcopy(self.durable)
        self.unlock_all()

    def restarted(self) -> None:
        self.start()
        self.find()
        self.unlock_all()

    def unlock_all(self) -> None:
        self.holds.clear()
        for one in self.model.messages.values():
            if one.state in ("locked", "returning", "staged"):
                one.state = "available"
            elif one.state == "locked-deferred":
                one.state = "deferred"
            one.token = b""

    # ---- sending

    @rule(
        sessions=st.lists(st.sampled_from(SESSIONS), min_size=1, max_size=8),
        ttl_ms=st.sampled_from([None, None, 1_500, 7_000]),
    )
    def send(self, sessions: list[str], ttl_ms: int | None) -> None:
        batch = []
        for session in sessions:
            self.sent += 1
            self.model.last += 1
            one = Message(f"m{self.sent}", session, expires_ms=self.now + ttl_ms if ttl_ms else 0)
            self.model.messages[self.model.last] = one
            batch.append(payload(one.name, session, ttl_ms))
        self.queue.accept(batch)

    @rule(session=st.sampled_from(SESSIONS), delay_ms=st.integers(1, 10_000))
    def schedule(self, session: str, delay_ms: int) -> None:
        self.sent += 1
        self.model.last += 1
        name = f"m{self.sent}"
        (number,) = self.queue.schedule([(payload(name, session), self.now + delay_ms)])
        assert number == self.model.last
        self.model.messages[number] = Message(name, session, state="scheduled", due_ms=self.now + delay_ms)

    # ---- sessions

    def took(self, hold: Hold) -> None:
        assert hold.session_id not in self.holds
        assert hold.locked_until_ms == self.now + LOCK_MS
        self.holds[hold.session_id] = hold
        hold.on_lost = lambda: self.lost.add(hold.session_id)

    @rule(session=st.sampled_from(SESSIONS))
    def open_session(self, session: str) -> None:
        try:
            hold = self.queue.sessions.open_session(session)
        except SessionLockedError:
            assert session in self.holds
        else:
            self.took(hold)

    @rule()
    def next_session(self) -> None:
        """One with an available message, none of whose messages is being returned; None only if there is none."""
        sure, maybe = set(), set()
        for session in SESSIONS:
            if session in self.holds or self.model.live("returning", session=session):
                continue
            available = self.model.live("available", session=session).values()
            if available or self.model.live("staged", session=session):
                maybe.add(session)
            if any(not 0 < one.expires_ms <= self.now for one in available):
                sure.add(session)
        hold = self.queue.sessions.next_session()
        if hold is None:
            assert not sure
        else:
            assert hold.session_id in maybe
            self.took(hold)

    def some_hold(self, data: st.DataObject) -> Hold:
        return self.holds[data.draw(st.sampled_from(sorted(self.holds)))]

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release_session(self, data: st.DataObject) -> None:
        hold = self.some_hold(data)
        hold.release()
        del self.holds[hold.session_id]
        for one in self.model.live("locked", "locked-deferred", session=hold.session_id).values():
            one.state = "available" if one.state == "locked" else "deferred"

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        assert self.some_hold(data).renew() == self.now + LOCK_MS

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), state=st.sampled_from([None, b"", b"one", b"two"]))
    def change_state(self, data: st.DataObject, state: bytes | None) -> None:
        hold = self.some_hold(data)
        assert hold.get_state() == self.model.states.get(hold.session_id)
        hold.set_state(state)
        assert hold.get_state() == state
        self.model.states.pop(hold.session_id, None)
        if state is not None:
            self.model.states[hold.session_id] = state

    # ---- receiving

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), limit=st.integers(1, 10), lock=st.booleans())
    def acquire(self, data: st.DataObject, limit: int, lock: bool) -> None:
        hold = self.some_hold(data)
        available = self.model.live("available", session=hold.session_id)
        acquired = hold.messages.acquire(limit, lock=lock)
        for ended in ended_by_a_look(self.queue, available, self.now):
            self.end_life(ended)
        numbers = list(acquired.sequences) if acquired else []
        if self.model.live("returning", session=hold.session_id):
            assert not numbers
            return
        expected = {n: one for n, one in available.items() if not 0 < one.expires_ms <= self.now}
        assert numbers == list(expected)[: len(numbers)]
        assert bool(numbers) == bool(expected)
        if len(expected) == len(available):
            assert len(numbers) == min(limit, len(expected))
        for number, token, message in zip(
            numbers, acquired.tags if acquired else (), acquired.payloads if acquired else (), strict=True
        ):
            one = expected[number]
            assert (name_of(message), count_of(message)) == (one.name, one.count)
            one.state, one.token = ("locked", token) if lock else ("removed", b"")

    def settle(self, data: st.DataObject, how: str) -> list[Message]:
        hold = self.some_hold(data)
        locked = list(self.model.live("locked", "locked-deferred", session=hold.session_id).values())
        chosen = data.draw(st.lists(st.sampled_from(locked), unique_by=id, max_size=6)) if locked else []
        tokens = [one.token for one in chosen]
        call: Callable[..., list[bool]] = getattr(hold.messages, how)
        assert call([*tokens, b"x" * 16]) == [True] * len(tokens) + [False]
        return chosen

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        for one in self.settle(data, "complete"):
            one.state = "removed"

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        for one in self.settle(data, "abandon"):
            self.fail_delivery(one)

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def defer(self, data: st.DataObject) -> None:
        for one in self.settle(data, "defer"):
            one.state = "deferred"

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def dead_letter(self, data: st.DataObject) -> None:
        for one in self.settle(data, "dead_letter"):
            one.state = "dead"

    @precondition(lambda self: any(self.model.live("deferred", session=one) for one in self.holds))
    @rule(data=st.data(), lock=st.booleans())
    def receive_deferred(self, data: st.DataObject, lock: bool) -> None:
        session = data.draw(st.sampled_from([one for one in self.holds if self.model.live("deferred", session=one)]))
        deferred = self.model.live("deferred", session=session)
        numbers = sorted(data.draw(st.lists(st.sampled_from(list(deferred)), unique=True, min_size=1)))
        acquired = self.holds[session].messages.receive_deferred(numbers, lock=lock)
        assert list(acquired.sequences) == numbers
        for number, token in zip(numbers, acquired.tags, strict=True):
            deferred[number].state, deferred[number].token = ("locked-deferred", token) if lock else ("removed", b"")

    def fail_delivery(self, one: Message) -> None:
        one.count += 1
        if one.count >= MAX_DELIVERIES:
            one.state = "dead"
        elif one.state == "locked-deferred":
            one.state = "deferred"
        elif 0 < one.expires_ms <= self.now:
            self.end_life(one)
        else:
            one.state = "returning"

    def end_life(self, one: Message) -> None:
        one.state = "dead" if self.dead_letters_expired else "removed"

    # ---- time

    @rule(ms=st.sampled_from([1, 400, 1_000, 3_000, LOCK_MS, 20_000]))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.settle_time()

    @rule(ms=st.integers(-4_000, 4_000))
    def jump(self, ms: int) -> None:
        self.clock.set_wall(self.now + ms)

    @rule()
    def settle_time(self) -> None:
        self.lost.clear()
        come_to_rest(self.engine, self.now)
        over = {session for session, hold in self.holds.items() if hold.locked_until_ms <= self.now}
        assert self.lost == over
        for session in over:
            hold = self.holds.pop(session)
            for one in self.model.live("locked", "locked-deferred", session=session).values():
                self.fail_delivery(one)
            for call in (hold.renew, hold.get_state):
                try:
                    call()
                except SessionLockLostError:
                    continue
                raise AssertionError("a lost session answered")
        for _, one in sorted(self.model.live("scheduled").items(), key=lambda entry: (entry[1].due_ms, entry[0])):
            if one.due_ms <= self.now:
                self.model.last += 1
                self.model.messages[self.model.last] = Message(one.name, one.session)
                one.state = "removed"
        for one in self.model.live("available", "staged").values():
            if one.expires_ms and (one.expires_ms // 1000 + 1) * 1000 <= self.now:
                self.end_life(one)

    # ---- invariants

    @invariant()
    def counts_are_those_of_the_store(self) -> None:
        """SessionMessages I1, Session I1."""
        self.steps = getattr(self, "steps", 0) + 1
        if not hasattr(self, "queue") or self.steps % LOOK_EVERY:
            return
        self.queue.peek(0, 0)  # brings what is staged into the store
        active = deferred = size = 0
        for session in self.queue.directory:
            head = session.messages.head if session.messages is not None else session.head
            for key, record in self.journal.scan(*numbered_span(MESSAGE, session.number)):
                if int.from_bytes(key[5:], "big") >= head:
                    active += 1
                    size += len(record)
            for _, record in self.journal.scan(*numbered_span(DEFERRED, session.number)):
                deferred += 1
                size += len(record)
            size += session.state_bytes or 0
        scheduled = self.model.live("scheduled")
        assert (self.queue.active_count, self.queue.deferred_count) == (active, deferred)
        assert self.queue.scheduled_count == len(scheduled)
        if not scheduled:
            assert self.queue.size_bytes == size
        stored = {key[5:].decode() for key, _ in self.journal.scan(*numbered_span(SESSION, self.queue.number))}
        assert set(self.model.states) <= stored

    @invariant()
    def everything_is_where_the_model_has_it(self) -> None:
        if not hasattr(self, "queue") or self.steps % LOOK_EVERY:
            return
        assert self.queue.last == self.model.last
        here = self.model.live("available", "locked", "returning", "staged", "scheduled", "deferred", "locked-deferred")
        visible = {n: one for n, one in here.items() if n <= self.queue.committed}
        for session in (None, *SESSIONS):
            own = {n: one for n, one in visible.items() if session in (None, one.session)}
            sure = [one.name for one in own.values() if not 0 < one.expires_ms <= self.now]
            peeked = [name_of(message) for message in self.queue.peek(0, 10_000, session)]
            assert [name for name in peeked if name in sure] == sure
            assert set(peeked) <= {one.name for one in own.values()}
        locked = self.model.live("locked", "locked-deferred")
        assert self.engine.runtime("q").locked_message_count == len(locked)
        assert all(one.session in self.holds for one in locked.values())

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.commit()
        dead = [name_of(message) for message in self.engine.receiver("q/$DeadLetterQueue").peek(0, 10_000)]
        must = {one.name for one in self.model.live("dead").values()}
        may = {one.name for one in self.model.messages.values() if one.expires_ms and self.dead_letters_expired}
        assert len(dead) == len(set(dead))
        assert must <= set(dead) <= must | may


def test_a_session_queue_keeps_what_the_model_promises(
    run_model: Callable[[type[SessionQueueMachine], int], None],
) -> None:
    run_model(SessionQueueMachine, STEPS)
