"""A topic with subscriptions and rules against a small reference model, with restarts, power cuts and clock jumps
(hypothesis).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.entities.model_time import come_to_rest, ended_by_a_look

from isthmus.amqp import section
from isthmus.entities import (
    CorrelationFilter,
    Engine,
    FalseFilter,
    Queue,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.errors import MessageNotFoundError, StoreError
from isthmus.store import MemoryJournal
from isthmus.testing.clock import ManualClock

LOCK_MS = 5_000
MAX_DELIVERIES = 3
WINDOW_MS = 20_000
SUBSCRIPTIONS = ("a", "b", "c")
DEFAULT = "$Default"
RULES = {
    "none": RuleDescription("none", FalseFilter()),
    "odd": RuleDescription("odd", SqlFilter("n % 2 = 1")),
    "red": RuleDescription("red", CorrelationFilter(label="red")),
    "mark": RuleDescription("mark", SqlFilter("sys.Label = 'red' OR n % 3 = 0"), SqlAction("SET mark = n")),
}
STEPS = 10_000
# A look brings what is staged into the store, which is to stay staged over several steps as well.
LOOK_EVERY = 3


@dataclass(frozen=True)
class Said:
    """What a publisher said; a copy that an action made bears a mark."""

    n: int
    red: bool
    mark: bool = False


@dataclass
class StoredMessage:
    """One message of a subscription."""

    said: Said
    origin: int
    expires_ms: int
    state: str = "staged"  # staged, available, locked, returning, dead, removed
    count: int = 0
    token: bytes = b""
    locked_until_ms: int = 0


@dataclass
class Subscription:
    """The guarantees of one subscription."""

    rules: list[str] = field(default_factory=lambda: [DEFAULT])
    messages: dict[int, StoredMessage] = field(default_factory=dict)
    last: int = 0

    def live(self, *states: str) -> dict[int, StoredMessage]:
        return {number: one for number, one in sorted(self.messages.items()) if one.state in states}

    def take(self, said: Said, origin: int, expires_ms: int) -> None:
        plain = {DEFAULT: True, "none": False, "odd": said.n % 2 == 1, "red": said.red}
        copies = [said] if any(plain.get(name) for name in self.rules) else []
        if "mark" in self.rules and (said.red or said.n % 3 == 0):
            copies.append(Said(said.n, said.red, mark=True))
        for one in copies:
            self.last += 1
            self.messages[self.last] = StoredMessage(one, origin, expires_ms)


@dataclass
class Model:
    """The guarantees of a topic, without its implementation."""

    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    scheduled: dict[int, tuple[int, Said]] = field(default_factory=dict)  # number → due, what was said
    seen_ms: dict[int, int] = field(default_factory=dict)
    last: int = 0

    def take(self, said: Said, expires_ms: int) -> None:
        self.last += 1
        for subscription in self.subscriptions.values():
            subscription.take(said, self.last, expires_ms)


def payload(said: Said, ttl_ms: int | None = None) -> bytes:
    return section.encode_message(
        b"x",
        header=section.Header(ttl_ms=ttl_ms),
        properties={"message_id": f"m{said.n}", **({"subject": "red"} if said.red else {})},
        application_properties={"n": said.n},
    )


def read(message: bytes) -> Said:
    sections = section.locate(message)
    properties = section.decode_properties(message, sections.properties)
    user = section.decode_map(message, sections.application_properties)
    assert properties["message_id"] == f"m{user['n']}"
    assert user.get("mark") in (None, user["n"])
    return Said(int(user["n"]), properties.get("subject") == "red", "mark" in user)


class TopicMachine(RuleBasedStateMachine):
    @initialize(detects=st.booleans(), dead_letters_expired=st.booleans())
    def begin(self, detects: bool, dead_letters_expired: bool) -> None:
        self.clock = ManualClock()
        self.journal = MemoryJournal()
        self.detects = detects
        self.dead_letters_expired = dead_letters_expired
        self.sent = 0
        self.steps = 0
        self.model = Model()
        self.engine = Engine(self.journal, self.clock)
        self.engine.create_topic(
            "t",
            TopicDescription(
                requires_duplicate_detection=detects, duplicate_detection_history_time_window_ms=WINDOW_MS
            ),
        )
        for name in SUBSCRIPTIONS[:2]:
            self.subscribe(name)
        self.commit()

    @property
    def now(self) -> int:
        return self.clock.wall_ms()

    def queue(self, name: str) -> Queue:
        return self.engine.receiver(f"t/Subscriptions/{name}")

    # ---- commits and their loss

    @rule()
    def commit(self) -> None:
        commit = self.engine.begin_commit()
        self.journal.sync()
        if commit is not None:
            self.engine.end_commit(commit)
        for subscription in self.model.subscriptions.values():
            for one in subscription.live("staged", "returning").values():
                one.state = "available"
        self.durable = copy.deepcopy(self.model)

    @rule()
    def power_cut(self) -> None:
        self.journal.crash()
        self.engine = Engine(self.journal, self.clock)
        self.undo()

    @rule()
    def clean_restart(self) -> None:
        self.engine.close()
        self.journal.close()
        self.journal.reopen()
        self.engine = Engine(self.journal, self.clock)
        self.durable = copy.deepcopy(self.model)
        self.undo()

    @rule()
    def failed_sync(self) -> None:
        commit = self.engine.begin_commit()
        if commit is not None:
            self.engine.fail_commit(commit, OSError("disk"))
            self.undo()

    @rule()
    def failed_write(self) -> None:
        self.engine.sender("t").accept([payload(Said(0, red=False))])
        self.journal.fail_writes = OSError("disk full")
        with pytest.raises(StoreError):
            self.engine.begin_commit()
        self.journal.fail_writes = None
        self.undo()

    def undo(self) -> None:
        self.model = copy.deepcopy(self.durable)
        for subscription in self.model.subscriptions.values():
            for one in subscription.live("locked", "returning", "staged").values():
                one.state, one.token = "available", b""

    # ---- publishing

    def fresh(self, said: Said) -> bool:
        """Whether detection lets a message in; it remembers it then."""
        if self.detects:
            if self.model.seen_ms.get(said.n, -WINDOW_MS) > self.now - WINDOW_MS:
                return False
            self.model.seen_ms[said.n] = self.now
        return True

    def some_said(self, data: st.DataObject) -> Said:
        """A new message, or one that was sent before."""
        n = self.sent + 1 if not self.sent or data.draw(st.booleans()) else data.draw(st.integers(1, self.sent))
        self.sent = max(self.sent, n)
        return Said(n, data.draw(st.booleans()))

    @rule(data=st.data(), count=st.integers(1, 6), ttl_ms=st.sampled_from([None, None, 1_500, 7_000]))
    def send(self, data: st.DataObject, count: int, ttl_ms: int | None) -> None:
        messages = [self.some_said(data) for _ in range(count)]
        self.engine.sender("t").accept([payload(said, ttl_ms) for said in messages])
        for said in messages:
            if self.fresh(said):
                self.model.take(said, self.now + ttl_ms if ttl_ms else 0)

    @rule(data=st.data(), delay_ms=st.integers(1, 10_000))
    def schedule(self, data: st.DataObject, delay_ms: int) -> None:
        said = self.some_said(data)
        (number,) = self.engine.sender("t").schedule([(payload(said), self.now + delay_ms)])
        self.model.last += 1
        assert number == self.model.last
        if self.fresh(said):
            self.model.scheduled[number] = (self.now + delay_ms, said)

    @precondition(lambda self: self.model.scheduled)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.scheduled)))
        self.engine.sender("t").cancel_scheduled([number])
        del self.model.scheduled[number]
        with pytest.raises(MessageNotFoundError):
            self.engine.sender("t").cancel_scheduled([number])

    # ---- subscriptions and rules

    def subscribe(self, name: str) -> None:
        self.engine.create_subscription(
            "t",
            name,
            SubscriptionDescription(
                lock_duration_ms=LOCK_MS,
                max_delivery_count=MAX_DELIVERIES,
                dead_lettering_on_message_expiration=self.dead_letters_expired,
            ),
        )
        self.model.subscriptions[name] = Subscription()

    @rule(name=st.sampled_from(SUBSCRIPTIONS))
    def add_or_remove(self, name: str) -> None:
        if name not in self.model.subscriptions:
            self.subscribe(name)
        elif len(self.model.subscriptions) > 1:
            self.engine.delete_subscription("t", name)
            del self.model.subscriptions[name]

    @rule(data=st.data(), name=st.sampled_from(sorted(RULES)))
    def change_rules(self, data: st.DataObject, name: str) -> None:
        where = data.draw(st.sampled_from(sorted(self.model.subscriptions)))
        rules = self.model.subscriptions[where].rules
        if name in rules:
            self.engine.delete_rule("t", where, name)
            rules.remove(name)
        else:
            self.engine.create_rule("t", where, RULES[name])
            rules.append(name)

    @rule(data=st.data())
    def drop_the_default(self, data: st.DataObject) -> None:
        where = data.draw(st.sampled_from(sorted(self.model.subscriptions)))
        rules = self.model.subscriptions[where].rules
        if DEFAULT in rules:
            self.engine.delete_rule("t", where, DEFAULT)
            rules.remove(DEFAULT)

    # ---- receiving

    @rule(data=st.data(), limit=st.integers(1, 15), lock=st.booleans())
    def acquire(self, data: st.DataObject, limit: int, lock: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.subscriptions)))
        available = self.model.subscriptions[name].live("available")
        expected = {n: one for n, one in available.items() if not 0 < one.expires_ms <= self.now}
        acquired = self.queue(name).acquire(limit, lock=lock)
        numbers = list(acquired.sequences) if acquired else []
        assert numbers == list(expected)[: len(numbers)]
        assert bool(numbers) == bool(expected)
        if len(expected) == len(available):
            assert len(numbers) == min(limit, len(expected))
        for at, number in enumerate(numbers):
            one, message = expected[number], acquired.payloads[at]
            sections = section.locate(message)
            annotations = section.decode_map(message, sections.message_annotations)
            assert read(message) == one.said
            assert annotations["x-opt-enqueue-sequence-number"] == one.origin
            assert section.decode_header(message, sections.header).delivery_count == one.count
            one.state, one.token = ("locked", acquired.tags[at]) if lock else ("removed", b"")
            one.locked_until_ms = acquired.locked_until_ms
        for ended in ended_by_a_look(self.queue(name), available, self.now):
            self.end_life(ended)

    @precondition(lambda self: any(one.live("locked") for one in self.model.subscriptions.values()))
    @rule(data=st.data(), how=st.sampled_from(["complete", "abandon", "release", "dead_letter"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        name = data.draw(
            st.sampled_from([name for name, one in self.model.subscriptions.items() if one.live("locked")])
        )
        locked = list(self.model.subscriptions[name].live("locked").values())
        chosen = data.draw(st.lists(st.sampled_from(locked), unique_by=id, min_size=1, max_size=6))
        call: Callable[..., list[bool]] = getattr(self.queue(name), how)
        assert call([*(one.token for one in chosen), b"x" * 16]) == [True] * len(chosen) + [False]
        for one in chosen:
            if how == "abandon":
                self.fail_delivery(one)
            else:
                one.state = {"complete": "removed", "release": "available", "dead_letter": "dead"}[how]

    def fail_delivery(self, one: StoredMessage) -> None:
        one.count += 1
        if one.count >= MAX_DELIVERIES:
            one.state = "dead"
        elif 0 < one.expires_ms <= self.now:
            self.end_life(one)
        else:
            one.state = "returning"

    def end_life(self, one: StoredMessage) -> None:
        one.state = "dead" if self.dead_letters_expired else "removed"

    # ---- time

    @rule(ms=st.sampled_from([1, 400, 1_000, 3_000, LOCK_MS, WINDOW_MS]))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.settle_time()

    @rule(ms=st.integers(-4_000, 4_000))
    def jump(self, ms: int) -> None:
        self.clock.set_wall(self.now + ms)

    @rule()
    def settle_time(self) -> None:
        come_to_rest(self.engine, self.now)
        for subscription in self.model.subscriptions.values():
            for one in subscription.live("locked").values():
                if one.locked_until_ms <= self.now:
                    self.fail_delivery(one)
        for number, (due_ms, said) in sorted(self.model.scheduled.items(), key=lambda entry: (entry[1][0], entry[0])):
            if due_ms <= self.now:
                self.model.take(said, 0)
                del self.model.scheduled[number]
        for subscription in self.model.subscriptions.values():
            for one in subscription.live("available", "staged").values():
                if one.expires_ms and (one.expires_ms // 1000 + 1) * 1000 <= self.now:
                    self.end_life(one)

    # ---- invariants

    @invariant()
    def everything_is_where_the_model_has_it(self) -> None:
        self.steps = getattr(self, "steps", 0) + 1
        if not hasattr(self, "durable") or self.steps % LOOK_EVERY:
            return
        assert [name for name, _ in self.engine.list_subscriptions("t")] == sorted(self.model.subscriptions)
        topic = self.engine.runtime("t")
        assert topic.scheduled_message_count == len(self.model.scheduled)
        for name, subscription in self.model.subscriptions.items():
            assert [one.name for one in self.engine.list_rules("t", name)] == sorted(subscription.rules)
            queue = self.queue(name)
            assert queue.last == subscription.last
            peeked = [read(message) for message in queue.peek(0, 10_000)]
            here = subscription.live("available", "locked", "returning", "staged")
            visible = [one for number, one in here.items() if number <= queue.committed]
            sure = [one.said for one in visible if not 0 < one.expires_ms <= self.now]
            left = iter(peeked)
            assert all(said in left for said in sure), (peeked, sure)
            assert len(sure) <= len(peeked) <= len(visible)
            runtime = self.engine.runtime(f"t/Subscriptions/{name}")
            assert runtime.locked_message_count == len(subscription.live("locked"))
            assert bool(queue.active_count) == bool(queue.size_bytes)

    def teardown(self) -> None:
        if not hasattr(self, "durable"):
            return
        self.commit()
        for name, subscription in self.model.subscriptions.items():
            dead = [
                read(one) for one in self.engine.receiver(f"t/Subscriptions/{name}/$DeadLetterQueue").peek(0, 10_000)
            ]
            must = subscription.live("dead").values()
            may = [one for one in subscription.messages.values() if one.expires_ms and self.dead_letters_expired]
            for said in (one.said for one in must):
                dead.remove(said)
            assert all(said in [one.said for one in may] for said in dead)


def test_a_topic_keeps_what_the_model_promises(run_model: Callable[[type[TopicMachine], int], None]) -> None:
    run_model(TopicMachine, STEPS)
