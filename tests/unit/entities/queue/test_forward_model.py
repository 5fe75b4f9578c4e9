"""Entities that forward: each message is in exactly one entity (hypothesis)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from isthmus.amqp import section
from isthmus.entities import Engine, EntityStatus, QueueDescription, SubscriptionDescription
from isthmus.errors import StoreError
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock

# first → second → last; dead letters of first and second → graves; topic/copy → first.
PLACES = [
    f"{name}{suffix}"
    for name in ("first", "second", "last", "graves", "topic/Subscriptions/copy")
    for suffix in ("", "/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue")
]
OPEN = EntityStatus.ACTIVE


class ForwardMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.clock = ManualClock()
        self.journal = MemoryJournal()
        self.sent = 0
        self.staged: set[str] = set()  # sent, and neither acknowledged nor refused
        self.acked: set[str] = set()
        self.doubtful: set[str] = set()  # unanswered at a crash: there once or not at all
        self.taken: Counter[str] = Counter()
        self.engine = Engine(self.journal, self.clock)
        self.engine.create_topic("topic")
        for name in ("last", "graves", "second", "first"):
            self.engine.create_queue(name)
        self.engine.create_subscription("topic", "copy", SubscriptionDescription(forward_to="first"))
        self.route = {"first": "second", "second": "last"}
        for name in self.route:
            self.update(name)
        self.commit()

    def update(self, name: str, status: EntityStatus = OPEN) -> None:
        graves = "graves" if name != "graves" and name != "last" and self.engine.get_queue("graves") else None
        target = self.route.get(name)
        if target is not None and self.engine.get_queue(target) is None:
            target = None
        self.engine.update_queue(
            name,
            QueueDescription(
                status=status,
                forward_to=target,
                forward_dead_lettered_messages_to=graves,
                max_delivery_count=1,
                lock_duration_ms=5000,
            ),
        )

    @rule()
    def commit(self) -> None:
        before = set(self.staged)
        commit = self.engine.begin_commit()
        self.journal.sync()
        if commit is not None:
            self.engine.end_commit(commit)
        assert not before & self.staged

    @rule(where=st.sampled_from(["first", "second", "last", "topic"]), count=st.integers(1, 4))
    def send(self, where: str, count: int) -> None:
        names = [f"m{self.sent + number}" for number in range(count)]
        self.sent += count
        payloads = [section.encode_message(b"x", properties={"message_id": name}) for name in names]

        def done() -> None:
            self.staged.difference_update(names)
            self.acked.update(names)

        def failed(_: Exception) -> None:
            self.staged.difference_update(names)
            self.doubtful.update(names)

        if self.engine.sender(where).takes_sends:
            self.staged.update(names)
            self.engine.sender(where).accept(payloads, done, failed)

    @rule(name=st.sampled_from(["first", "second", "last", "graves"]), status=st.sampled_from(list(EntityStatus)))
    def set_status(self, name: str, status: EntityStatus) -> None:
        if self.engine.get_queue(name) is not None:
            self.update(name, status)

    @rule(name=st.sampled_from(["first", "second"]), on=st.booleans())
    def set_route(self, name: str, on: bool) -> None:
        self.route.pop(name, None)
        if on:
            self.route[name] = {"first": "second", "second": "last"}[name]
        self.update(name)

    @rule(path=st.sampled_from(PLACES), what=st.sampled_from(["complete", "abandon", "dead_letter", "leave"]))
    def receive(self, path: str, what: str) -> None:
        queue: Any = self.engine.receiver(path)
        if queue.relay is not None or not queue.gives_messages:
            return
        acquired = queue.acquire(3)
        if acquired is None or what == "leave":
            return
        if what == "complete":
            names = [name_of(payload) for payload in acquired.payloads]

            def done() -> None:
                self.taken.update(names)
                self.acked.difference_update(names)

            queue.complete(acquired.tags, done, lambda _: self.doubt(names))
            self.commit()
        elif what == "abandon":
            queue.abandon(acquired.tags)
        elif queue.dead_letters is not None:
            queue.dead_letter(acquired.tags, "bad")

    def doubt(self, names: list[str]) -> None:
        self.acked.difference_update(names)
        self.doubtful.update(names)

    @rule(ms=st.sampled_from([100, 6000, 20_000]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)
        self.engine.tick()

    @rule(keep=st.integers(0, 3))
    def power_cut(self, keep: int) -> None:
        self.doubtful |= self.staged
        self.staged.clear()
        self.journal.crash(keep)
        self.engine = Engine(self.journal, self.clock)
        self.look()

    @rule()
    def failed_sync(self) -> None:
        commit = self.engine.begin_commit()
        if commit is not None:
            self.engine.fail_commit(commit, StoreError("the disk is gone"))
        self.look()

    @rule()
    def rest(self) -> None:
        for _ in range(50):
            self.engine.tick()
            if not self.engine.has_staged:
                break
            self.commit()
        else:
            raise AssertionError("forwarding never comes to rest")
        self.look()

    def look(self) -> None:
        """Every message is in one place, and what was acknowledged is in one."""
        found = Counter(name_of(payload) for path in PLACES for payload in self.engine.receiver(path).peek(0, 10_000))
        assert not [name for name, count in found.items() if count > 1]
        assert not self.acked - set(found)
        assert set(found) <= self.acked | self.doubtful | self.staged
        assert not set(found) & set(self.taken)
        for path in PLACES:
            queue: Any = self.engine.receiver(path)
            stored = queue.peek(0, 10_000)
            if not self.engine.has_staged:
                assert len(stored) == queue.active_count
                assert bool(stored) == bool(queue.size_bytes)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.rest()


def name_of(payload: bytes) -> str:
    return str(section.decode_properties(payload, section.locate(payload).properties)["message_id"])


def test_forwarding_keeps_every_message_in_one_place(
    run_model: Callable[[type[ForwardMachine], int], None],
) -> None:
    run_model(ForwardMachine, 18_000)
