"""Transactions against what they promise: all of it or nothing, whatever fails when (hypothesis)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from isthmus.amqp import section
from isthmus.entities import Engine, QueueDescription, Transaction, TransactionRolledBackError, TransactionTimeoutError
from isthmus.errors import IsthmusError, StoreError
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock

PLACES = ("q", "q/$DeadLetterQueue", "next", "q/$Transfer/$DeadLetterQueue")
LOCK_MS = 5000


@dataclass
class Done:
    """What a transaction did, and what became of it."""

    sent: list[str] = field(default_factory=list)
    settled: dict[str, str] = field(default_factory=dict)
    fate: str = "open"  # open, staged, done, undone, doubtful


class TransactionMachine(RuleBasedStateMachine):
    @initialize(detects=st.booleans())
    def begin(self, detects: bool) -> None:
        self.clock = ManualClock()
        self.journal = MemoryJournal()
        self.count = 0
        self.engine = Engine(self.journal, self.clock)
        self.engine.create_queue("next", QueueDescription(requires_duplicate_detection=detects))
        self.engine.create_queue("q", QueueDescription(lock_duration_ms=LOCK_MS, max_delivery_count=100))
        self.commit()
        self.open: list[tuple[Transaction, Done]] = []
        self.all: list[Done] = []
        self.tokens: dict[str, bytes] = {}

    def name(self) -> str:
        self.count += 1
        return f"m{self.count}"

    @property
    def queue(self) -> Any:
        return self.engine.receiver("q")

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

    @rule(limit=st.integers(1, 3))
    def receive(self, limit: int) -> None:
        acquired = self.queue.acquire(limit)
        if acquired is not None:
            self.tokens |= dict(zip(map(name_of, acquired.payloads), acquired.tags, strict=True))

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def settle_outside(self, data: Any) -> None:
        """Somebody settles by lock token what a transaction may hold: the transaction is then rolled back."""
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        self.queue.abandon([self.tokens.pop(name)])

    # ---- in transactions

    @rule()
    def declare(self) -> None:
        one = (self.engine.transaction(), Done())
        self.open.append(one)
        self.all.append(one[1])

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(1, 3), via=st.booleans())
    def send(self, data: Any, count: int, via: bool) -> None:
        transaction, done = data.draw(st.sampled_from(self.open))
        names = [self.name() for _ in range(count)]
        destination = self.engine.via("q", "next") if via else self.engine.sender("q")
        try:
            transaction.send(destination, [make(name) for name in names])
        except TransactionTimeoutError:
            return
        done.sent += names

    @precondition(lambda self: self.open and self.tokens)
    @rule(data=st.data(), what=st.sampled_from(["complete", "dead_letter", "defer", "abandon"]))
    def settle(self, data: Any, what: str) -> None:
        transaction, done = data.draw(st.sampled_from(self.open))
        name = data.draw(st.sampled_from(sorted(self.tokens)))
        try:
            transaction.settle(self.queue, [self.tokens[name]], getattr(self.queue, what), lambda _: None)
        except IsthmusError:
            return
        done.settled[name] = what

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def discharge(self, data: Any) -> None:
        one = data.draw(st.sampled_from(self.open))
        self.open.remove(one)
        transaction, done = one

        def durable() -> None:
            done.fate = "done"

        def failed(_: Exception) -> None:
            done.fate = "doubtful"

        before = self.journal.unsynced_count
        staged = self.engine.has_staged
        try:
            transaction.commit(durable, failed)
        except TransactionRolledBackError:
            done.fate = "undone"
            assert self.engine.has_staged == staged
            return
        done.fate = "staged"
        assert self.journal.unsynced_count <= before + 1  # what was staged before, and nothing of the transaction yet
        for name in done.settled:
            self.tokens.pop(name, None)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def roll_back(self, data: Any) -> None:
        one = data.draw(st.sampled_from(self.open))
        self.open.remove(one)
        one[0].rollback()
        one[1].fate = "undone"

    # ---- time and failures

    @rule(ms=st.sampled_from([100, LOCK_MS, 130_000]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)
        self.engine.tick()

    @rule(keep=st.integers(0, 3))
    def power_cut(self, keep: int) -> None:
        self.journal.crash(keep)
        self.engine = Engine(self.journal, self.clock)
        self.failed(("open", "undone"), ("staged", "doubtful"))

    @rule()
    def failed_sync(self) -> None:
        commit = self.engine.begin_commit()
        if commit is not None:
            self.engine.fail_commit(commit, StoreError("the disk is gone"))
        self.tokens.clear()
        self.look()

    def failed(self, *becomes: tuple[str, str]) -> None:
        fates = dict(becomes)
        for done in self.all:
            done.fate = fates.get(done.fate, done.fate)
        self.open.clear()
        self.tokens.clear()
        self.look()

    @rule()
    def look(self) -> None:
        """Of each transaction everything is there, or nothing."""
        if self.engine.has_staged:
            self.commit()
        here: dict[str, str] = {}
        for place in PLACES:
            for payload in self.engine.receiver(place).peek(0, 10_000):
                assert name_of(payload) not in here
                here[name_of(payload)] = place
        for done in self.all:
            arrived = {name in here for name in done.sent}
            gone = {here.get(name) != "q" for name, what in done.settled.items() if what in ("complete", "dead_letter")}
            if done.fate == "done":
                assert arrived <= {True}
                assert gone <= {True}
            elif done.fate in ("open", "undone"):
                assert arrived <= {False}
            else:
                assert done.fate == "doubtful"
                assert len(arrived | gone) <= 1
                done.fate = "done" if True in arrived | gone else "undone"

    def teardown(self) -> None:
        if hasattr(self, "tokens"):
            self.look()


def make(name: str) -> bytes:
    return section.encode_message(b"x", properties={"message_id": name})


def name_of(payload: bytes) -> str:
    return str(section.decode_properties(payload, section.locate(payload).properties)["message_id"])


def test_a_transaction_is_whole_or_nothing(
    run_model: Callable[[type[TransactionMachine], int], None],
) -> None:
    run_model(TransactionMachine, 18_000)
