"""A queue against a small reference model, with restarts, power cuts and clock jumps (hypothesis)."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.entities.model_time import come_to_rest, ended_by_a_look

from isthmus.amqp import section
from isthmus.entities import Acquired, Engine, Queue, QueueDescription
from isthmus.entities.storage.key import DEFERRED, MESSAGE, SCHEDULED, message_key, numbered_span
from isthmus.errors import MessageNotFoundError, StoreError
from isthmus.store import MemoryJournal, RocksJournal
from isthmus.testing.clock import ManualClock

LOCK_MS = 5_000
MAX_DELIVERIES = 3


@dataclass
class Message:
    """One message as the model knows it."""

    name: str
    state: str = "staged"  # staged, available, locked, returning, scheduled, deferred, locked-deferred, dead, removed
    count: int = 0
    expires_ms: int = 0
    token: bytes = b""
    locked_until_ms: int = 0  # monotonic
    locked_until_wall_ms: int = (
        0  # wall; a lock that ended early would have lasted so long: expiry need not be checked before
    )
    due_ms: int = 0
    reason: str = ""


@dataclass
class Model:
    """The guarantees of a queue, without its implementation."""

    messages: dict[int, Message] = field(default_factory=dict)
    last: int = 0

    def live(self, *states: str) -> dict[int, Message]:
        return {number: one for number, one in sorted(self.messages.items()) if one.state in states}


def payload(name: str, ttl_ms: int | None = None) -> bytes:
    return section.encode_message(
        name.encode(),
        header=section.Header(ttl_ms=ttl_ms),
        properties={"message_id": name},
        application_properties={"n": name},
    )


def name_of(message: bytes) -> str:
    return str(section.decode_properties(message, section.locate(message).properties)["message_id"])


def count_of(message: bytes) -> int:
    return section.decode_header(message, section.locate(message).header).delivery_count


def swept_at(time_ms: int) -> int:
    """When what is due at a time is looked for at the latest: once a second."""
    return (time_ms // 1000 + 1) * 1000 if time_ms else 0


class QueueMachine(RuleBasedStateMachine):
    listening = True

    @initialize(dead_letters_expired=st.booleans())
    def begin(self, dead_letters_expired: bool) -> None:
        self.clock = ManualClock()
        self.journal = self.make_journal()
        self.dead_letters_expired = dead_letters_expired
        self.random = 0
        self.sent = 0
        self.model = Model()
        self.start()
        self.engine.create_queue(
            "q",
            QueueDescription(
                lock_duration_ms=LOCK_MS,
                max_delivery_count=MAX_DELIVERIES,
                dead_lettering_on_message_expiration=dead_letters_expired,
            ),
        )
        self.commit()
        self.durable = copy.deepcopy(self.model)
        self.attach()

    def random_bytes(self, count: int) -> bytes:
        self.random += 1
        return self.random.to_bytes(count, "big")

    def start(self) -> None:
        self.engine = Engine(self.journal, self.clock, random_bytes=self.random_bytes)

    def attach(self) -> None:
        self.queue: Queue = self.engine.receiver("q")
        if self.listening:
            self.queue.add_listener(lambda: None)
        assert self.queue.dead_letters is not None
        self.dead: Queue = self.queue.dead_letters

    def make_journal(self) -> Any:
        return MemoryJournal()

    @property
    def now(self) -> int:
        return self.clock.wall_ms()

    @property
    def monotonic_ms(self) -> int:
        return round(self.clock.monotonic() * 1000)

    # ---- commits and their loss

    @rule()
    def commit(self) -> None:
        before = self.model
        commit = self.engine.begin_commit()
        self.journal.sync()
        if commit is not None:
            self.engine.end_commit(commit)
        for one in before.live("staged", "returning").values():
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
        queue = self.queue
        self.engine.fail_commit(commit, OSError("disk"))
        assert self.engine.receiver("q") is queue
        self.model = copy.deepcopy(self.durable)
        self.unlock_all()

    @rule()
    def failed_write(self) -> None:
        self.journal.fail_writes = OSError("disk full")
        failed: list[Exception] = []
        self.queue.accept([payload("refused")], None, failed.append)
        with pytest.raises(StoreError):
            self.engine.begin_commit()
        self.journal.fail_writes = None
        assert len(failed) == 1
        self.model = copy.deepcopy(self.durable)
        self.unlock_all()

    def unlock_all(self) -> None:
        for one in self.model.messages.values():
            self.note_early_end(one)
            if one.state in ("locked", "returning", "staged"):
                one.state = "available"
            elif one.state == "locked-deferred":
                one.state = "deferred"
            one.token = b""

    def note_early_end(self, one: Message) -> None:
        if one.state == "locked":
            one.locked_until_wall_ms = self.now + max(0, one.locked_until_ms - self.monotonic_ms)

    def restarted(self) -> None:
        self.start()
        self.attach()
        self.unlock_all()

    # ---- sending

    def new_name(self) -> str:
        self.sent += 1
        return f"m{self.sent}"

    @rule(count=st.integers(1, 12), ttl_ms=st.sampled_from([None, None, 1_500, 7_000]))
    def send(self, count: int, ttl_ms: int | None) -> None:
        names = [self.new_name() for _ in range(count)]
        self.queue.accept([payload(name, ttl_ms) for name in names])
        for name in names:
            self.model.last += 1
            self.model.messages[self.model.last] = Message(name, expires_ms=self.now + ttl_ms if ttl_ms else 0)

    @rule(delay_ms=st.integers(1, 10_000))
    def schedule(self, delay_ms: int) -> None:
        name = self.new_name()
        (number,) = self.queue.schedule([(payload(name), self.now + delay_ms)])
        self.model.last += 1
        assert number == self.model.last
        self.model.messages[number] = Message(name, state="scheduled", due_ms=self.now + delay_ms)

    @precondition(lambda self: self.model.live("scheduled"))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(list(self.model.live("scheduled"))))
        self.queue.cancel_scheduled([number])
        self.model.messages[number].state = "removed"
        with pytest.raises(MessageNotFoundError):
            self.queue.cancel_scheduled([number])

    # ---- receiving

    def check(self, acquired: Acquired, expected: dict[int, Message], state: str) -> None:
        for number, token, message in zip(acquired.sequences, acquired.tags, acquired.payloads, strict=True):
            one = expected[number]
            assert name_of(message) == one.name
            assert count_of(message) == one.count
            one.state = state
            one.token = token
            one.locked_until_ms = self.monotonic_ms + acquired.locked_until_ms - self.now

    @rule(limit=st.integers(1, 15), lock=st.booleans())
    def acquire(self, limit: int, lock: bool) -> None:
        available = self.model.live("available")
        expected = {n: one for n, one in available.items() if not 0 < one.expires_ms <= self.now}
        acquired = self.queue.acquire(limit, lock=lock)
        numbers = list(acquired.sequences) if acquired else []
        assert numbers == list(expected)[: len(numbers)]
        assert len(numbers) <= limit
        if expected:
            assert numbers
            if len(expected) == len(available):
                assert len(numbers) == min(limit, len(expected))
        if acquired:
            self.check(acquired, expected, "locked" if lock else "removed")
        for one in ended_by_a_look(self.queue, available, self.now):
            self.end_life(one)

    def some_tokens(self, data: st.DataObject) -> list[bytes]:
        locked = [one.token for one in self.model.live("locked", "locked-deferred").values()]
        if locked and data.draw(st.booleans()):
            start = data.draw(st.integers(0, len(locked) - 1))
            return locked[start : start + data.draw(st.integers(1, len(locked)))]
        chosen = data.draw(st.lists(st.sampled_from(locked), unique=True, max_size=6)) if locked else []
        return chosen + data.draw(st.sampled_from([[], [b"x" * 16], [bytes(16)]]))

    def locked_by(self, tokens: list[bytes]) -> list[Message | None]:
        by_token = {one.token: one for one in self.model.live("locked", "locked-deferred").values()}
        return [by_token.get(token) for token in tokens]

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        tokens = self.some_tokens(data)
        locked = self.locked_by(tokens)
        assert self.queue.complete(tokens) == [one is not None for one in locked]
        for one in locked:
            if one is not None:
                one.state = "removed"
        assert self.queue.complete(tokens) == [False] * len(tokens)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        tokens = self.some_tokens(data)
        locked = self.locked_by(tokens)
        assert self.queue.release(tokens) == [one is not None for one in locked]
        for one in locked:
            if one is not None:
                self.note_early_end(one)
                one.state = "available" if one.state == "locked" else "deferred"

    def fail_delivery(self, one: Message) -> None:
        one.count += 1
        if one.count >= MAX_DELIVERIES:
            one.state, one.reason = "dead", "MaxDeliveryCountExceeded"
        elif one.state == "locked-deferred":
            one.state = "deferred"
        elif 0 < one.expires_ms <= self.now:
            self.end_life(one)
        else:
            one.state = "returning"

    def end_life(self, one: Message) -> None:
        one.state = "dead" if self.dead_letters_expired else "removed"
        one.reason = "TTLExpiredException"

    @rule(data=st.data(), properties=st.sampled_from([None, {"n": "changed", "new": 1}]))
    def abandon(self, data: st.DataObject, properties: dict[str, object] | None) -> None:
        tokens = self.some_tokens(data)
        locked = self.locked_by(tokens)
        assert self.queue.abandon(tokens, properties) == [one is not None for one in locked]
        for one in locked:
            if one is not None:
                self.fail_delivery(one)

    @rule(data=st.data())
    def defer(self, data: st.DataObject) -> None:
        tokens = self.some_tokens(data)
        locked = self.locked_by(tokens)
        assert self.queue.defer(tokens) == [one is not None for one in locked]
        for one in locked:
            if one is not None:
                one.state = "deferred"

    @rule(data=st.data())
    def dead_letter(self, data: st.DataObject) -> None:
        tokens = self.some_tokens(data)
        locked = self.locked_by(tokens)
        assert self.queue.dead_letter(tokens, "reason", "text") == [one is not None for one in locked]
        for one in locked:
            if one is not None:
                one.state, one.reason = "dead", "reason"

    @precondition(lambda self: self.model.live("deferred"))
    @rule(data=st.data(), lock=st.booleans())
    def receive_deferred(self, data: st.DataObject, lock: bool) -> None:
        deferred = self.model.live("deferred")
        numbers = data.draw(st.lists(st.sampled_from(list(deferred)), unique=True, min_size=1))
        acquired = self.queue.receive_deferred(numbers, lock=lock)
        assert list(acquired.sequences) == sorted(numbers)
        self.check(acquired, deferred, "locked-deferred" if lock else "removed")
        with pytest.raises(MessageNotFoundError):
            self.queue.receive_deferred(numbers)

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        tokens = self.some_tokens(data)
        locked = self.locked_by(tokens)
        until_ms = self.now + LOCK_MS
        assert self.queue.renew(tokens) == [until_ms if one else None for one in locked]
        for one in locked:
            if one is not None:
                one.locked_until_ms = self.monotonic_ms + LOCK_MS

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
        come_to_rest(self.engine, self.now)
        for one in self.model.live("locked", "locked-deferred").values():
            if one.locked_until_ms <= self.monotonic_ms:
                self.fail_delivery(one)
        for number, one in sorted(self.model.live("scheduled").items(), key=lambda entry: (entry[1].due_ms, entry[0])):
            if one.due_ms <= self.now:
                self.model.last += 1
                self.model.messages[self.model.last] = Message(one.name)
                self.model.messages[number].state = "removed"
        mortal = {number: one for number, one in self.model.live("available", "staged").items() if one.expires_ms}
        locked = {number: one for number, one in mortal.items() if swept_at(one.locked_until_wall_ms) > self.now}
        for number, one in mortal.items():
            if number not in locked and swept_at(one.expires_ms) <= self.now:
                self.end_life(one)
        for one in ended_by_a_look(self.queue, locked, self.now):
            self.end_life(one)

    # ---- invariants

    @invariant()
    def counts_are_those_of_the_store(self) -> None:
        """I1; Backlog I2, I3."""
        if not hasattr(self, "queue"):
            return
        self.queue.peek(0, 0)  # brings what is staged into the store
        for queue in (self.queue, self.dead):
            rows = {}
            for table in (MESSAGE, DEFERRED, SCHEDULED):
                first, end = numbered_span(table, queue.number)
                first = message_key(MESSAGE, queue.number, queue.head) if table == MESSAGE else first
                rows[table] = [record for _, record in self.journal.scan(first, end)]
            assert queue.active_count == len(rows[MESSAGE])
            assert queue.deferred_count == len(rows[DEFERRED])
            assert queue.scheduled_count == len(rows[SCHEDULED])
            assert queue.size_bytes == sum(len(record) for table in rows.values() for record in table)

    @invariant()
    def everything_is_where_the_model_has_it(self) -> None:
        if not hasattr(self, "queue"):
            return
        assert self.queue.last == self.model.last
        here = self.model.live("available", "locked", "returning", "staged", "scheduled", "deferred", "locked-deferred")
        peeked = [name_of(message) for message in self.queue.peek(0, 10_000)]
        visible = {n: one for n, one in here.items() if n <= self.queue.committed}
        sure = [one.name for one in visible.values() if not 0 < one.expires_ms <= self.now]
        assert [name for name in peeked if name in sure] == sure
        assert set(peeked) <= {one.name for one in visible.values()}
        locked = self.model.live("locked", "locked-deferred")
        assert self.engine.runtime("q").locked_message_count == len(locked)

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.commit()
        dead = [name_of(message) for message in self.dead.peek(0, 10_000)]
        must = {one.name for one in self.model.live("dead").values()}
        may = (
            {one.name for one in self.model.messages.values() if one.expires_ms} if self.dead_letters_expired else set()
        )
        assert len(dead) == len(set(dead))
        assert must <= set(dead) <= must | may


class UnattendedQueueMachine(QueueMachine):
    """No listener is attached, so that nothing is kept in memory and all is read from the store."""

    listening = False


class StoredQueueMachine(QueueMachine):
    """On RocksDB, which cannot be made to fail here: power cuts and failures become clean restarts."""

    def make_journal(self) -> RocksJournal:
        self.folder = Path(tempfile.mkdtemp())
        return RocksJournal(self.folder)

    @rule()
    def clean_restart(self) -> None:
        self.engine.close()
        self.journal.close()
        for one in self.model.live("staged", "returning").values():
            one.state = "available"
        self.journal = RocksJournal(self.folder)
        self.restarted()
        self.durable = copy.deepcopy(self.model)

    @rule()
    def power_cut(self) -> None:
        self.clean_restart()

    @rule()
    def failed_sync(self) -> None:
        self.clean_restart()

    @rule()
    def failed_write(self) -> None:
        self.clean_restart()

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.engine.close()
            self.journal.close()
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("machine", "steps"),
    [(QueueMachine, 12_000), (UnattendedQueueMachine, 12_000), (StoredQueueMachine, 10_000)],
    ids=["attended", "unattended", "stored"],
)
def test_a_queue_keeps_what_the_model_promises(
    machine: type[QueueMachine], steps: int, run_model: Callable[[type[QueueMachine], int], None]
) -> None:
    run_model(machine, steps)
