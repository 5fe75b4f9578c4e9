"""Transactions against what they promise: all of it or nothing, whatever fails when (hypothesis).

Every discharge is followed by a power cut after each batch that the disk may have taken, tried on copies of the store.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from isthmus.amqp import section
from isthmus.broker.link.coordinator import Transactions
from isthmus.entities import Engine, Limits, QueueDescription, TransactionRolledBackError, TransactionTimeoutError
from isthmus.entities.error import UnknownTransactionError
from isthmus.entities.transaction.transaction import Ending
from isthmus.errors import IsthmusError, LockLostError, MessageNotFoundError, QuotaExceededError, StoreError
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock

PLACES = ("q", "q/$DeadLetterQueue", "next", "q/$Transfer/$DeadLetterQueue")
LOCK_MS = 5000
TIMEOUT_MS = 120_000
MESSAGES = 6
TRANSACTIONS = 3
LINKS = ("link 1", "link 2")
SETTLEMENTS = ("complete", "dead_letter", "defer", "abandon")
ACTIVE, DEFERRED, SCHEDULED = range(3)
# Place, state, deliveries, sequence number: what a peek shows of a message.
Shown = dict[str, tuple[str, int, int, int]]


@dataclass
class Done:
    """What a transaction did, and what became of it."""

    txn_id: bytes
    link: str
    since_ms: int
    doomed: bool = False
    sent: list[str] = field(default_factory=list)
    settled: dict[str, str] = field(default_factory=dict)
    settlements: int = 0
    cancelled: list[str] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    outcome: str = "open"  # open, staged, done, undone, lost (with its connection)

    @property
    def count(self) -> int:
        return len(self.sent) + self.settlements + len(self.cancelled)


class TransactionMachine(RuleBasedStateMachine):
    @initialize(detects=st.booleans())
    def begin(self, detects: bool) -> None:
        self.clock = ManualClock()
        self.journal = MemoryJournal()
        self.count = 0
        self.all: list[Done] = []
        # Numbers that clients got, with the message that each belongs to.
        self.reported: dict[int, str] = {}
        self.start()
        self.engine.create_queue("next", QueueDescription(requires_duplicate_detection=detects))
        self.engine.create_queue("q", QueueDescription(lock_duration_ms=LOCK_MS, max_delivery_count=100))
        self.commit()

    def start(self) -> None:
        limits = Limits(max_transaction_messages=MESSAGES, max_transactions_per_connection=TRANSACTIONS)
        self.engine = Engine(self.journal, self.clock, limits=limits)
        self.transactions = Transactions(self.engine, self.clock, lambda path, right: None)
        self.open: list[Done] = []
        self.tokens: dict[str, bytes] = {}

    def name(self) -> str:
        self.count += 1
        return f"m{self.count}"

    @property
    def now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)

    @property
    def queue(self) -> Any:
        return self.engine.receiver("q")

    def is_late(self, done: Done) -> bool:
        return self.now_ms - done.since_ms >= TIMEOUT_MS

    # ---- without transactions

    @rule()
    def commit(self) -> None:
        commit = self.engine.begin_commit()
        self.journal.sync()
        if commit is not None:
            self.engine.end_commit(commit)

    @rule(count=st.integers(1, 4))
    def fill(self, count: int) -> None:
        self.engine.sender("q").accept([make(self.name()) for _ in range(count)])
        self.commit()

    @rule(limit=st.integers(1, 3))
    def receive(self, limit: int) -> None:
        acquired = self.queue.acquire(limit)
        if acquired is not None:
            self.tokens |= dict(zip(map(name_of, acquired.payloads), acquired.tags, strict=True))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def settle_outside(self, data: Any) -> None:
        """A client settles by lock token what a transaction may have locked: the transaction is then rolled back."""
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        self.queue.abandon([self.tokens.pop(name)])

    @rule(delay_ms=st.sampled_from([1, LOCK_MS, TIMEOUT_MS]), count=st.integers(1, 3))
    def schedule_outside(self, delay_ms: int, count: int) -> None:
        due_ms = self.clock.wall_ms() + delay_ms
        self.engine.sender("q").schedule([(make(self.name()), due_ms) for _ in range(count)])
        self.commit()

    # ---- in transactions

    @rule(link=st.sampled_from(LINKS))
    def declare(self, link: str) -> None:
        self.transactions.tick()
        if self.transactions.statistics()["open_transactions"] >= TRANSACTIONS:
            with pytest.raises(QuotaExceededError):
                self.transactions.declare(link)  # type: ignore[arg-type] - only its identity counts
            return
        txn_id = self.transactions.declare(link)  # type: ignore[arg-type]
        done = Done(txn_id, link, self.now_ms)
        self.open.append(done)
        self.all.append(done)

    def add(self, done: Done, count: int, operation: Any) -> bool:
        """Adds to a transaction; whether it was taken, which is right only if nothing forbids it."""
        first = done.count == 0
        try:
            operation(self.transactions.find(done.txn_id))
        except TransactionTimeoutError:
            assert self.is_late(done)
            return False
        except QuotaExceededError:
            assert done.count + count > MESSAGES
            return False
        except (LockLostError, MessageNotFoundError):
            return False
        assert not self.is_late(done)
        assert done.count + count <= MESSAGES
        if first:
            done.since_ms = self.now_ms
        return True

    def some(self, data: Any) -> Done:
        """An open transaction; one more if there is none."""
        if not self.open:
            self.declare(LINKS[0])
        return data.draw(st.sampled_from(self.open))

    @rule(data=st.data(), count=st.integers(1, 3), via=st.booleans())
    def send(self, data: Any, count: int, via: bool) -> None:
        self.send_in(self.some(data), count, via)

    def send_in(self, done: Done, count: int, via: bool) -> None:
        names = [self.name() for _ in range(count)]
        destination = self.engine.via("q", "next") if via else self.engine.sender("q")
        if self.add(done, count, lambda found: found.send(destination, [make(name) for name in names])):
            done.sent += names

    @rule(data=st.data(), count=st.integers(1, 3), delay_ms=st.sampled_from([-1, 1, LOCK_MS, TIMEOUT_MS]))
    def schedule(self, data: Any, count: int, delay_ms: int) -> None:
        """The numbers are returned once they are durable, and are not used again then, whatever becomes of the transaction."""
        done, due_ms = self.some(data), self.clock.wall_ms() + delay_ms
        names = [self.name() for _ in range(count)]
        numbers: list[int] = []

        def reported() -> None:
            assert self.reported.keys().isdisjoint(numbers)
            self.reported |= dict(zip(numbers, names, strict=True))

        def refused(_: Exception) -> None:
            done.doomed = True

        def add(found: Any) -> None:
            messages = [(make(name), due_ms) for name in names]
            numbers.extend(found.schedule(self.engine.sender("q"), messages, reported, refused))

        if self.add(done, count, add):
            done.sent += names

    @rule(data=st.data(), count=st.integers(1, 3))
    def cancel(self, data: Any, count: int) -> None:
        self.cancel_in(self.some(data), data, count)

    def cancel_in(self, done: Done, data: Any, count: int) -> None:
        """Cancels what is or was scheduled."""
        here = self.shown(self.engine)
        known = sorted({number for _, state, _, number in here.values() if state == SCHEDULED} | self.reported.keys())
        if not known:
            return
        numbers = data.draw(st.lists(st.sampled_from(known), unique=True, min_size=1, max_size=count))
        names = [name for name, (_, state, _, number) in here.items() if state == SCHEDULED and number in numbers]
        if self.add(done, len(numbers), lambda found: found.cancel_scheduled(self.engine.sender("q"), numbers)):
            assert len(names) == len(numbers)
            assert not set(names) & set(done.cancelled)
            done.cancelled += names

    @rule(data=st.data(), what=st.sampled_from(SETTLEMENTS))
    def settle(self, data: Any, what: str) -> None:
        self.settle_in(self.some(data), data, what)

    def settle_in(self, done: Done, data: Any, what: str) -> None:
        if not self.tokens:
            self.fill(2)
            self.receive(2)
        if not self.tokens:
            return  # all is locked, by receivers of before
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        queue, token = self.queue, self.tokens[name]
        if self.add(done, 1, lambda found: found.settle(queue, [token], getattr(queue, what), done.endings.append)):
            # Its first lock was lost, if it was settled here before.
            done.doomed = done.doomed or name in done.settled
            done.settled[name] = what
            done.settlements += 1

    @rule(data=st.data())
    def doom(self, data: Any) -> None:
        """A settled transfer of it was refused."""
        done = self.some(data)
        if not self.is_late(done):
            self.transactions.find(done.txn_id).doom(IsthmusError("refused"))
            done.doomed = True

    @rule(
        data=st.data(),
        sends=st.lists(st.booleans(), max_size=2),
        settles=st.lists(st.sampled_from(SETTLEMENTS), max_size=2),
        cancels=st.integers(0, 2),
        wait_ms=st.sampled_from([0, 0, 0, LOCK_MS, TIMEOUT_MS]),
        then=st.sampled_from(["sync", "sync", "fail", "cut"]),
    )
    def discharge(
        self, data: Any, sends: list[bool], settles: list[str], cancels: int, wait_ms: int, then: str
    ) -> None:
        """Adds something more, lets time pass, and commits."""
        done = self.some(data)
        for via in sends:
            self.send_in(done, 1, via)
        for what in settles:
            self.settle_in(done, data, what)
        if cancels:
            self.cancel_in(done, data, cancels)
        if wait_ms:
            self.wait(wait_ms)
        self.open.remove(done)
        self.commit()
        before = self.shown(self.engine)
        written = self.journal.unsynced_count

        def durable() -> None:
            assert done.endings == [Ending.COMMITTED] * done.settlements
            done.outcome = "done"

        try:
            self.transactions.take(done.txn_id).commit(durable, lambda _: None)
        except TransactionTimeoutError:
            assert self.is_late(done)
            assert not self.engine.has_staged
            self.ended(done, "undone")
            return
        except TransactionRolledBackError:
            assert not self.is_late(done), "what comes too late gets the time-out"
            overtaken = any(name not in before or before[name][1] != SCHEDULED for name in done.cancelled)
            assert done.doomed or done.settled or overtaken
            assert not self.engine.has_staged
            self.ended(done, "undone")
            return
        assert not self.is_late(done)
        assert not done.doomed
        assert all(before[name][1] == SCHEDULED for name in done.cancelled)
        assert self.journal.unsynced_count == written
        done.outcome = "staged"
        for name in done.settled:
            self.tokens.pop(name, None)
        commit = self.engine.begin_commit()
        self.cut_everywhere(done, before)
        if then == "cut":
            self.power_cut(data.draw(st.integers(0, 2)))
        elif then == "fail" and commit is not None:
            self.engine.fail_commit(commit, StoreError("the disk is gone"))
            self.fail(done)
        elif commit is not None:
            self.journal.sync()
            self.engine.end_commit(commit)

    def cut_everywhere(self, done: Done, before: Shown) -> None:
        """The power fails after any of the batches written: all of the transaction is there, or nothing."""
        for keep in range(self.journal.unsynced_count + 1):
            journal = copy.deepcopy(self.journal)
            journal.crash(keep)
            now = self.shown(Engine(journal, self.clock))
            effects = {name in now for name in done.sent}
            for name, what in done.settled.items():
                effects.add(now.get(name) != before[name])
                if now.get(name) != before[name]:
                    self.check_settled(what, now.get(name), before[name])
            effects |= {name not in now for name in done.cancelled}
            assert len(effects) <= 1, (keep, done)

    @staticmethod
    def check_settled(what: str, now: tuple[str, int, int, int] | None, before: tuple[str, int, int, int]) -> None:
        place, _, deliveries, _ = before
        expected = {
            "complete": None,
            "dead_letter": ("q/$DeadLetterQueue", ACTIVE, deliveries),
            "defer": (place, DEFERRED, deliveries),
            "abandon": (place, ACTIVE, deliveries + 1),
        }
        assert (now and now[:3]) == expected[what], (what, now, before)

    @rule(data=st.data())
    def roll_back(self, data: Any) -> None:
        done = self.some(data)
        self.open.remove(done)
        locked = {name: self.queue.holds([token]) for name, token in self.tokens.items()}
        try:
            self.transactions.take(done.txn_id).rollback()
        except TransactionTimeoutError:
            assert self.is_late(done)
        assert locked == {name: self.queue.holds([token]) for name, token in self.tokens.items()}
        self.ended(done, "undone")

    @rule(link=st.sampled_from(LINKS))
    def close_link(self, link: str) -> None:
        self.transactions.tick()
        late = [done for done in self.open if self.is_late(done)]
        self.transactions.drop(link)  # type: ignore[arg-type] - only its identity counts
        for done in [each for each in self.open if each.link == link]:
            self.open.remove(done)
            with pytest.raises(TransactionTimeoutError if done in late else UnknownTransactionError):
                self.transactions.find(done.txn_id)
            self.ended(done, "undone")

    def ended(self, done: Done, outcome: str) -> None:
        assert done.endings == [Ending.ROLLED_BACK] * done.settlements, done
        done.outcome = outcome

    # ---- time and failures

    @rule(ms=st.sampled_from([100, LOCK_MS, TIMEOUT_MS - 100, TIMEOUT_MS]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)
        self.engine.tick()

    @rule()
    def tick(self) -> None:
        """Nothing asks for a transaction whose time is over: it is removed on its own."""
        self.transactions.tick()
        for done in [each for each in self.open if self.is_late(each)]:
            self.open.remove(done)
            self.ended(done, "undone")
        assert self.transactions.statistics()["open_transactions"] == len(self.open)

    @rule(data=st.data(), asks=st.booleans())
    def outlast(self, data: Any, asks: bool) -> None:
        """Waits until the time of all of them is over: they cannot be used any more, and are removed."""
        done = self.some(data)
        self.wait(TIMEOUT_MS)
        if asks:
            with pytest.raises(TransactionTimeoutError):
                self.transactions.find(done.txn_id)
        self.tick()
        assert done.outcome == "undone"

    @rule(keep=st.integers(0, 3))
    def power_cut(self, keep: int) -> None:
        self.journal.crash(keep)
        for done in self.open:
            done.outcome = "lost"
        self.start()
        self.look()

    @rule()
    def failed_sync(self) -> None:
        commit = self.engine.begin_commit()
        if commit is not None:
            self.engine.fail_commit(commit, StoreError("the disk is gone"))
            self.tokens.clear()
        self.look()

    def fail(self, done: Done) -> None:
        assert done.endings == [Ending.FAILED] * done.settlements
        self.tokens.clear()
        self.look()

    @staticmethod
    def shown(engine: Engine) -> Shown:
        """What peeks show."""
        here: Shown = {}
        for place in PLACES:
            for payload in engine.receiver(place).peek(0, 10_000):
                name = name_of(payload)
                assert name not in here
                sections = section.locate(payload)
                annotations = section.decode_map(payload, sections.message_annotations)
                count = section.decode_header(payload, sections.header).delivery_count
                reported = {str(key): value for key, value in annotations.items()}
                state, number = int(reported.get("x-opt-message-state", ACTIVE)), int(reported["x-opt-sequence-number"])
                here[name] = (place, state, int(count), number)
        return here

    @rule()
    def look(self) -> None:
        """Of each transaction everything is there, or nothing."""
        if self.engine.has_staged:
            self.commit()
        here = self.shown(self.engine)
        for name, (place, _, _, number) in here.items():
            assert place != "q" or self.reported.get(number, name) == name
        # What one transaction sent another may have completed or cancelled since.
        consumed = {
            name
            for done in self.all
            if done.outcome in ("done", "staged")
            for name, what in done.settled.items()
            if what == "complete"
        } | {name for done in self.all if done.outcome in ("done", "staged") for name in done.cancelled}
        for done in self.all:
            arrived = {name in here for name in done.sent if name not in consumed}
            removed = {
                name not in here or here[name][0] != "q"
                for name, what in done.settled.items()
                if what in ("complete", "dead_letter")
            } | {name not in here for name in done.cancelled}
            if done.outcome == "done":
                assert arrived <= {True}
                assert removed <= {True}
            elif done.outcome == "staged":  # a power cut or a failed sync has decided, and nothing was reported
                assert len(arrived | removed) <= 1
                done.outcome = "done" if True in arrived | removed else "undone"
            else:
                assert arrived <= {False}

    def teardown(self) -> None:
        if hasattr(self, "tokens"):
            self.look()


def make(name: str) -> bytes:
    return section.encode_message(b"x", properties={"message_id": name})


def name_of(payload: bytes) -> str:
    return str(section.decode_properties(payload, section.locate(payload).properties)["message_id"])


def test_a_transaction_is_whole_or_nothing(run_model: Callable[[type[TransactionMachine], int], None]) -> None:
    run_model(TransactionMachine, 18_000)
