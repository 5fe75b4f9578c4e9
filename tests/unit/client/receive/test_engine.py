"""The shell around the merge machine, without namespaces: its use of the list of seen messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.exceptions import MessageAlreadySettled

from isthmus.amqp import section
from isthmus.amqp.types import Long, Timestamp
from isthmus.client.endpoint import Endpoint
from isthmus.client.failure import Failure
from isthmus.client.receive import claims as claims_module
from isthmus.client.receive import engine as engine_module
from isthmus.client.receive.branch import Branch, Source
from isthmus.client.receive.engine import Engine
from isthmus.client.receive.merge import Action
from isthmus.client.receive.next_session import FoundSession
from isthmus.client.seen import Bounds, Keys, MemorySeen, SeenStoreError, Verdict
from isthmus.testing.clock import ManualClock

A, B = "primary", "secondary"
CONNECTION = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=v"


class Time:
    """Replaces the module `time` in the engine."""

    def __init__(self) -> None:
        self.later = self.slept = self.stepped = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.later

    def clock_gettime(self, clock: int) -> float:
        return time.clock_gettime(clock) + self.later + self.slept

    def time_ns(self) -> int:
        return time.time_ns() + round((self.later + self.slept + self.stepped) * 1e9)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Time:
    fake = Time()
    for module in (engine_module, claims_module):
        monkeypatch.setattr(module, "time", fake)
    return fake


@pytest.fixture
def seen(clock: ManualClock) -> MemorySeen:
    return MemorySeen(Bounds(lease=timedelta(seconds=30)), clock)


@pytest.fixture
def engine(seen: MemorySeen, later: Time) -> Engine:
    engine = Engine(dict.fromkeys((A, B), Endpoint.of(CONNECTION)), Source(entity="orders"), seen)
    engine.on_open(A, "NS-A")
    engine.on_open(B, "NS-B")
    return engine


def message(name: str, sequence: int) -> ServiceBusReceivedMessage:
    annotations = {"x-opt-sequence-number": Long(sequence), "x-opt-enqueued-time": Timestamp(1_767_225_600_000)}
    return ServiceBusReceivedMessage.from_bytes(
        section.encode_message(name.encode(), properties={"message_id": name}, annotations=annotations)
    )


def names(messages: list[ServiceBusReceivedMessage]) -> list[str]:
    return [str(each) for each in messages]


def test_what_another_receiver_handled_while_this_process_was_suspended_is_not_handed_over(
    engine: Engine, seen: MemorySeen, clock: ManualClock, later: Time
) -> None:
    """Not even when the lease was renewed meanwhile, by the next message."""
    engine.on_messages(A, [message("m1", 1), message("m2", 2)])
    keys = engine._handed[engine._messages[1]].keys
    clock.advance(60_000)
    later.later = 60.0
    assert seen.claim([keys], "another") == [Verdict.NEW]
    seen.handle([keys], "another")
    engine.on_messages(A, [message("m3", 3)])
    assert names(engine.take(10)) == ["m3"]
    engine.on_poll(A)
    assert names(engine.take(10)) == ["m2"]
    assert engine.state().counts.suppressed == 1


def test_nothing_is_handed_over_after_the_lease_ran_out_until_the_list_is_asked(
    engine: Engine, clock: ManualClock, later: Time
) -> None:
    engine.on_messages(A, [message("m1", 1)])
    clock.advance(60_000)
    later.later = 60.0
    assert engine.take(10) == []
    engine.on_poll(A)
    assert names(engine.take(10)) == ["m1"]


@pytest.mark.parametrize("how", ["slept", "stepped"])
def test_nothing_is_handed_over_after_the_machine_slept_or_its_clock_stepped(
    engine: Engine, seen: MemorySeen, clock: ManualClock, later: Time, how: str
) -> None:
    """The monotonic clock shows neither, and by the list's clock the lease has expired."""
    engine.on_messages(A, [message("m1", 1)])
    keys = engine._handed[engine._messages[1]].keys
    clock.advance(60_000)
    setattr(later, how, 60.0)
    assert seen.claim([keys], "another") == [Verdict.NEW]
    seen.handle([keys], "another")
    assert engine.take(10) == []
    engine.on_poll(A)
    assert engine.take(10) == []
    assert engine.state().counts.suppressed == 1


def test_a_handled_message_is_in_the_list_with_all_keys_of_its_copies(engine: Engine, seen: MemorySeen) -> None:
    engine.on_messages(A, [message("m1", 1)])
    engine.on_messages(B, [message("m1", 7)])
    [one] = engine.take(10)
    engine.complete(one)
    assert seen.count() == 3  # two places, one id
    with pytest.raises(MessageAlreadySettled):
        engine.abandon(one)


def test_a_message_that_was_abandoned_is_claimed_no_more(engine: Engine, seen: MemorySeen) -> None:
    engine.on_messages(A, [message("m1", 1)])
    [one] = engine.take(10)
    keys = engine._handed[one].keys
    engine.abandon(one)
    assert seen.claim([keys], "another") == [Verdict.NEW]


def test_what_cannot_be_dead_lettered_since_its_namespace_is_unavailable_comes_again(
    engine: Engine, seen: MemorySeen
) -> None:
    engine.on_messages(A, [message("m1", 1)])
    [one] = engine.take(10)
    keys = engine._handed[one].keys
    with pytest.raises(
        ConnectionError, match="the namespace primary of the message is unavailable; it is delivered again"
    ):
        engine.settle(one, "dead_letter_message", reason="bad")
    assert seen.claim([keys], "another") == [Verdict.NEW]


def test_messages_that_the_application_forgets_are_not_kept(engine: Engine) -> None:
    for number in range(1, 300):
        engine.on_messages(A, [message(f"m{number}", number)])
        [one] = engine.take(10)
        engine.complete(one)
        engine.on_poll(A)
    assert len(engine._messages) <= 101


def test_an_answer_that_was_in_transit_while_the_message_was_handled_hands_nothing_over(
    engine: Engine, seen: MemorySeen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list answers both namespaces at once; one answer comes late, when the copy has been handled."""
    claim = seen.claim

    def late(messages: Sequence[Keys], owner: str) -> list[Verdict]:
        verdicts = claim(messages, owner)
        monkeypatch.setattr(seen, "claim", claim)
        engine.on_messages(B, [message("m1", 7)])
        engine.on_poll(B)
        [one] = engine.take(10)
        engine.complete(one)
        return verdicts

    monkeypatch.setattr(seen, "claim", late)
    engine.on_messages(A, [message("m1", 1)])
    assert engine.take(10) == []
    engine.on_poll(A)
    assert engine.take(10) == []
    assert engine.state().counts.suppressed == 1


def test_a_claim_that_is_being_taken_back_hands_nothing_over(
    engine: Engine, seen: MemorySeen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another receiver may get the message as soon as the list has recorded it."""
    engine.on_messages(A, [message("m1", 1)])
    [one] = engine.take(10)
    keys = engine._handed[one].keys
    release = seen.release

    def late(messages: Sequence[Keys], owner: str) -> None:
        engine.on_messages(B, [message("m1", 7)])
        engine.on_poll(B)
        assert engine.take(10) == []
        release(messages, owner)

    monkeypatch.setattr(seen, "release", late)
    engine.abandon(one)
    assert seen.claim([keys], "another") == [Verdict.NEW]
    engine.on_poll(B)
    assert engine.take(10) == []


def test_what_was_not_dead_lettered_in_time_is_not_dead_lettered_later(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was reported to the application that the message comes again, and its copy is handed over."""
    monkeypatch.setattr(engine_module, "SETTLE_SECONDS", 0.0)
    branch = Branch(A, Endpoint.of(CONNECTION), Source(entity="orders"), engine)  # its namespace hangs
    engine._branches[A] = branch
    engine.on_messages(A, [message("m1", 1)])
    [one] = engine.take(10)
    branch._delivered.add(one)
    calls: list[str] = []

    class Receiver:
        def dead_letter_message(self, *_: object, **__: object) -> None:
            calls.append("dead-letter")

        def abandon_message(self, *_: object) -> None:
            calls.append("abandon")

    with pytest.raises(TimeoutError):
        engine.settle(one, "dead_letter_message", reason="bad")
    branch._do_commands(Receiver())  # type: ignore[arg-type]
    assert calls == ["abandon"]


def test_what_came_again_while_a_slow_handler_had_it_is_not_handed_over_once_it_is_handled(
    engine: Engine, clock: ManualClock, later: Time
) -> None:
    """The handler takes longer than the lock is renewed, and its message is delivered to the same receiver."""
    engine.on_messages(A, [message("m1", 1)])
    [one] = engine.take(10)
    later.later = 301.0
    engine.on_poll(A)  # its lock is not renewed from here on
    engine.on_messages(A, [message("m1", 1)])
    engine.on_messages(B, [message("m1", 7)])
    engine.complete(one)
    assert engine.take(10) == []
    assert engine.state().counts.suppressed == 2
    assert engine.state().unsettled == 0


def test_an_answer_for_what_came_again_is_not_believed_if_the_message_was_handled_meanwhile(
    engine: Engine, seen: MemorySeen, later: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M6: the slow handler ends between the question and the answer."""
    engine.on_messages(A, [message("m1", 1)])
    [one] = engine.take(10)
    later.later = 301.0
    engine.on_poll(A)
    claim = seen.claim

    def late(messages: Sequence[Keys], owner: str) -> list[Verdict]:
        verdicts = claim(messages, owner)
        engine.complete(one)
        return verdicts

    with monkeypatch.context() as patch:
        patch.setattr(seen, "claim", late)
        engine.on_messages(A, [message("m1", 1)])
    assert engine.take(10) == []


def test_a_message_that_is_abandoned_while_it_is_being_completed_is_not_handed_over_again(
    engine: Engine, seen: MemorySeen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads of the application disagree; the list has it on disk when `complete` returns."""
    engine.on_messages(A, [message("m1", 1)])
    engine.on_messages(B, [message("m1", 7)])
    [one] = engine.take(10)
    handle = seen.handle

    def late(messages: Sequence[Keys], owner: str) -> list[bool]:
        marked = handle(messages, owner)
        engine.abandon(one)
        return marked

    monkeypatch.setattr(seen, "handle", late)
    engine.complete(one)
    assert engine.take(10) == []


class Noted:
    """Replaces a branch: what it was asked to settle."""

    def __init__(self) -> None:
        self.settled: list[tuple[str, Action]] = []
        self.asked: list[tuple[str, int | None]] = []
        self.error: Exception | None = None

    def settle(self, message: ServiceBusReceivedMessage, action: Action) -> None:
        self.settled.append((str(message), action))

    def settle_by(self, message: ServiceBusReceivedMessage, what: str, **_: object) -> Future[Any]:
        self.asked.append((what, message.sequence_number))
        future: Future[Any] = Future()
        if self.error is None:
            future.set_result(None)
        else:
            future.set_exception(self.error)
        return future

    def call(self, what: Callable[[Any], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(what(self))
        return future

    def receive_deferred_messages(self, sequence_number: int) -> list[ServiceBusReceivedMessage]:
        return [message("m1", sequence_number)]


@pytest.mark.parametrize("is_handled", [True, False])
def test_a_message_is_settled_though_the_engine_forgets_old_ones_meanwhile(
    engine: Engine, seen: MemorySeen, monkeypatch: pytest.MonkeyPatch, is_handled: bool
) -> None:
    """Every namespace's thread forgets what is no longer being handled, also while this message is written to the list of seen messages."""
    branch: Any = Noted()
    for number in range(1, 150):
        engine.on_messages(A, [message(f"m{number}", number)])
        [one] = engine.take(10)
        engine.complete(one)
    engine.on_messages(A, [message("last", 150)])
    [one] = engine.take(10)
    engine._branches[A] = branch

    def polled(what: Callable[..., Any]) -> Callable[..., Any]:
        def during(*arguments: Any) -> Any:
            engine.on_poll(B)
            return what(*arguments)

        return during

    monkeypatch.setattr(seen, "release", polled(seen.release))

    def settled(message: ServiceBusReceivedMessage, is_handled: bool) -> None:
        engine.on_poll(B)

    engine._on_settled = settled
    if is_handled:
        engine.complete(one)
        assert branch.settled == [("last", Action.COMPLETE)]
    else:
        engine.abandon(one)
        assert branch.settled == [("last", Action.ABANDON)]


@pytest.fixture
def branches(engine: Engine) -> dict[str, Any]:
    branches: dict[str, Any] = {A: Noted(), B: Noted()}
    engine._branches.update(branches)
    return branches


def test_a_message_is_deferred_where_the_application_will_look_for_it(engine: Engine, branches: dict[str, Any]) -> None:
    """Its copy has another number, at a namespace that the application does not know: it would never be received."""
    engine.on_messages(A, [message("m1", 1)])
    engine.on_messages(B, [message("m1", 7)])
    [one] = engine.take(10)
    engine.on_lost(A, Failure.GONE, ConnectionError())
    with pytest.raises(ConnectionError, match="delivered again"):
        engine.settle(one, "defer_message")
    assert branches[B].asked == []
    [copy] = engine.take(10)
    engine.settle(copy, "defer_message")
    assert branches[B].asked == [("defer_message", 7)]
    assert (engine.side_of(copy), copy.sequence_number) == (B, 7)


def test_a_message_that_was_delivered_again_is_deferred_by_its_new_delivery(
    engine: Engine, branches: dict[str, Any]
) -> None:
    engine.on_messages(A, [message("m1", 1)])
    [one] = engine.take(10)
    engine.on_lost(A, Failure.GONE, ConnectionError())
    engine.on_open(A, "NS-A")
    engine.on_messages(A, [message("m1", 1)])
    engine.settle(one, "defer_message")
    assert branches[A].asked == [("defer_message", 1)]


def test_a_dead_letter_may_be_made_of_the_copy(engine: Engine, branches: dict[str, Any]) -> None:
    engine.on_messages(A, [message("m1", 1)])
    engine.on_messages(B, [message("m1", 7)])
    [one] = engine.take(10)
    engine.on_lost(A, Failure.GONE, ConnectionError())
    engine.settle(one, "dead_letter_message")
    assert branches[B].asked == [("dead_letter_message", 7)]


def test_a_deferred_message_is_completed_only_where_its_namespace_has_said_so(
    engine: Engine, branches: dict[str, Any]
) -> None:
    """It does not come again by itself: what is not settled there stays for ever."""
    [one] = engine.receive_deferred(A, 1)
    branches[A].error = ConnectionError("lost")
    with pytest.raises(ConnectionError, match="lost"):
        engine.complete(one)
    assert engine._merge.counts.handled == 0
    branches[A].error = None
    [again] = engine.receive_deferred(A, 1)
    engine.on_lost(A, Failure.GONE, ConnectionError())  # it is settled by its lock token, on any link
    engine.complete(again)
    assert branches[A].asked == [("complete_message", 1)] * 2
    assert engine._merge.counts.handled == 1
    assert len(engine._merge) == 0


def test_a_receiver_that_is_closed_opens_nothing(engine: Engine) -> None:
    """A fail-over that is under way would continue to receive, and lock, what is not handled."""
    engine.close()
    engine.open_side(A)
    assert engine._branches == {}


def test_a_session_that_is_found_after_the_end_is_given_back(engine: Engine) -> None:
    closed: list[str] = []

    class Opened:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)

    engine.close()
    engine.use_session(FoundSession("one", {A: (Opened("client"), Opened("receiver"))}))
    engine.start()
    assert sorted(closed) == ["client", "receiver"]


def test_what_is_counted_of_a_namespace_continues_when_it_is_read_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter never falls."""
    monkeypatch.setattr(Branch, "start", lambda self: None)
    for received in (1, 2):
        engine.open_side(A)
        engine._branches[A]._received = received
        engine._branches[A]._settle_failures = 1
        engine._branches[A]._receiver = object()  # type: ignore[assignment]
        engine.leave_side(A)
        assert not engine.state().namespaces[A].is_open
    engine.open_side(A)
    state = engine.state().namespaces[A]
    assert (state.received, state.settle_failures, state.failures, state.is_open) == (3, 2, 0, False)


def test_a_completion_that_is_repeated_since_the_list_did_not_answer_is_counted_once(
    engine: Engine, seen: MemorySeen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call was carried out all the same."""
    engine.on_messages(A, [message("m1", 1)])
    [one] = engine.take(10)
    handle = seen.handle

    def lost(messages: Sequence[Keys], owner: str) -> list[bool]:
        handle(messages, owner)
        raise SeenStoreError("list", "no answer")

    with monkeypatch.context() as patch:
        patch.setattr(seen, "handle", lost)
        with pytest.raises(SeenStoreError):
            engine.complete(one)
    engine.complete(one)
    assert (engine.state().counts.handled, engine.state().handled_twice) == (1, 0)


def test_a_completion_that_is_repeated_while_it_is_under_way_is_counted_once(
    engine: Engine, seen: MemorySeen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With asyncio a call that timed out continues in its thread."""
    engine.on_messages(A, [message("m1", 1)])
    [one] = engine.take(10)
    handle = seen.handle

    def slow(messages: Sequence[Keys], owner: str) -> list[bool]:
        monkeypatch.setattr(seen, "handle", handle)
        marked = handle(messages, owner)
        engine.complete(one)
        return marked

    monkeypatch.setattr(seen, "handle", slow)
    engine.complete(one)
    assert (engine.state().counts.handled, engine.state().handled_twice) == (1, 0)


def test_what_another_receiver_handled_too_is_counted(engine: Engine, seen: MemorySeen) -> None:
    engine.on_messages(A, [message("m1", 1)])
    [one] = engine.take(10)
    seen.handle([engine._handed[one].keys], "another")
    engine.complete(one)
    assert engine.state().handled_twice == 1


def test_a_list_that_fails_in_its_own_way_is_asked_again(
    engine: Engine, seen: MemorySeen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of the application's own may raise anything; the connection to the namespace is not at fault."""

    def broken(messages: Sequence[Keys], owner: str) -> list[Verdict]:
        raise LookupError("no such table")

    with monkeypatch.context() as patch:
        patch.setattr(seen, "claim", broken)
        engine.on_messages(A, [message("m1", 1)])
    assert engine._claiming == set()
    assert engine.state().seen_errors == 1
    later_turn = time.monotonic() + 10
    asks = engine._merge.tick(later_turn)
    assert len(asks) == 1


def test_an_answer_from_before_this_process_was_suspended_hands_nothing_over(
    engine: Engine, seen: MemorySeen, clock: ManualClock, later: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1, though the lease was renewed by another thread before the answer was looked at."""
    claims = engine._claims
    claim = claims.claim

    def late(messages: Sequence[Keys]) -> Sequence[Verdict | None]:
        monkeypatch.setattr(claims, "claim", claim)
        verdicts = claim(messages)
        clock.advance(60_000)
        later.later = 60.0
        assert seen.claim(messages, "another") == [Verdict.NEW]
        seen.handle(messages, "another")
        claim([(b"any",)])
        return verdicts

    monkeypatch.setattr(claims, "claim", late)
    engine.on_messages(A, [message("m1", 1)])
    assert engine.take(10) == []
    later.later = 61.0
    engine.on_poll(A)
    assert engine.take(10) == []
    assert engine.state().counts.suppressed == 1


def test_a_branch_that_is_left_is_watched_to_its_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[float] = []
    monkeypatch.setattr(Branch, "start", lambda self: None)
    monkeypatch.setattr(Branch, "check", lambda self, now: checked.append(now))
    engine.open_side(A)
    branch = engine._branches[A]
    engine.leave_side(A)
    engine._on_beat(1.0)
    branch._is_finished = True
    engine._on_beat(2.0)
    engine._on_beat(3.0)
    assert checked == [1.0]


@pytest.mark.parametrize("has_copy", [True, False])
def test_what_was_dead_lettered_though_the_list_did_not_answer_is_released(
    engine: Engine, seen: MemorySeen, branches: dict[str, Any], monkeypatch: pytest.MonkeyPatch, has_copy: bool
) -> None:
    """The call may not be repeated: nothing else would ever end its delivery."""
    engine.on_messages(A, [message("m1", 1)])
    if has_copy:
        engine.on_messages(B, [message("m1", 7)])
    [one] = engine.take(10)

    def fail(messages: Sequence[Keys], owner: str) -> list[bool]:
        raise SeenStoreError("list", "no answer")

    with monkeypatch.context() as patch:
        patch.setattr(seen, "handle", fail)
        with pytest.raises(SeenStoreError):
            engine.settle(one, "dead_letter_message")
    assert [each.sequence_number for each in engine.take(10)] == ([7] if has_copy else [])
    assert len(engine._merge) == has_copy
    assert branches[A].settled == []
