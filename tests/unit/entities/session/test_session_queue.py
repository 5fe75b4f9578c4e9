"""Single behaviours of an entity that requires sessions; their combinations are in test_session_model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.amqp import section
from isthmus.amqp.types import Timestamp
from isthmus.entities import (
    EntityStatus,
    Hold,
    InvalidMessageError,
    QueueDescription,
    SessionQueue,
    SessionRequiredError,
    SubscriptionDescription,
)
from isthmus.entities.session.row import session_id_of
from isthmus.entities.storage.key import DEFERRED, MESSAGE, SESSION, STATE, state_key
from isthmus.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    MessageNotFoundError,
    MessageTooLargeError,
    NotAllowedError,
    QuotaExceededError,
    SessionLockedError,
    SessionLockLostError,
    StoreError,
)

Make = Callable[..., bytes]
LOCK_MS = 30_000


@pytest.fixture
def queue(namespace: Any) -> SessionQueue:
    return make_queue(namespace)


def make_queue(namespace: Any, **settings: Any) -> SessionQueue:
    description = QueueDescription(
        requires_session=True, lock_duration_ms=LOCK_MS, **{"max_delivery_count": 3, **settings}
    )
    namespace.engine.create_queue("q", description)
    namespace.commit()
    return found(namespace)


def found(namespace: Any) -> SessionQueue:
    queue = namespace.queue("q")
    assert isinstance(queue, SessionQueue)
    return queue


@pytest.fixture
def send(namespace: Any, message: Make) -> Callable[..., None]:
    """Send messages named like ``a1``: the first letter is the session."""

    def send(*names: str, **fields: Any) -> None:
        namespace.send("q", *[message(name, group_id=name[0], **fields) for name in names])

    return send


def names(read: Any, acquired: Any) -> list[str]:
    return [] if acquired is None else [read(payload).properties["message_id"] for payload in acquired.payloads]


def counts(read: Any, acquired: Any) -> list[int]:
    return [read(payload).header.delivery_count for payload in acquired.payloads]


def rows(namespace: Any, table: int) -> int:
    return len(list(namespace.journal.scan(bytes((table,)), bytes((table + 1,)))))


def test_a_message_needs_a_session(namespace: Any, queue: SessionQueue, message: Make) -> None:
    with pytest.raises(SessionRequiredError, match="SessionId was not set"):
        queue.accept([message("a", group_id="s"), message("b")])
    with pytest.raises(SessionRequiredError):
        queue.schedule([(message("a"), namespace.clock.wall_ms() + 1000)])
    with pytest.raises(InvalidMessageError, match="129 characters"):
        queue.accept([message("a", group_id="s" * 129)])
    with pytest.raises(InvalidMessageError, match="not a string"):
        queue.accept([message("a", group_id=b"bytes")])
    namespace.commit()
    assert queue.active_count == 0
    assert queue.peek(0, 10) == []


@pytest.mark.parametrize("session_id", ["s", "", "ü" * 128, "x" * 128])
def test_the_session_of_a_message(message: Make, session_id: str) -> None:
    for fields in ({}, {"correlation_id": 7, "to": "t" * 300, "absolute_expiry_time": Timestamp(5)}):
        payload = message("id", group_id=session_id, **fields)
        assert session_id_of(payload[section.locate(payload).properties[0] :]) == session_id
    payload = message("id", reply_to_group_id="other")
    assert session_id_of(payload[section.locate(payload).properties[0] :]) is None


@given(st.binary(max_size=40), st.integers(0, 255), st.integers(0, 60))
@example(b"\xa1\x05", 11, 2)
@example(b"\x40" * 10 + b"\xa1\x02\xff\xff", 11, 14)
def test_properties_that_cannot_be_read_name_no_session(content: bytes, count: int, size: int) -> None:
    try:
        session_id = session_id_of(b"\0Ss\xc0%c%c" % (size, count) + content)
    except InvalidMessageError:
        return
    assert session_id is None or isinstance(session_id, str)


def test_a_topic_brings_a_session_id_that_is_none(namespace: Any, message: Make) -> None:
    namespace.engine.create_topic("t")
    namespace.engine.create_subscription("t", "s", SubscriptionDescription(requires_session=True))
    namespace.commit()
    namespace.send("t", message("x", group_id=b"bytes"))
    assert namespace.queue("t/subscriptions/s/$DeadLetterQueue").active_count == 1


def test_messages_are_acquired_from_a_session_only(queue: SessionQueue, send: Any) -> None:
    send("a1")
    with pytest.raises(NotAllowedError, match="requires sessions"):
        queue.acquire(1)


def test_a_session_gives_its_own_messages_in_order(namespace: Any, queue: SessionQueue, send: Any, read: Any) -> None:
    """I1; SessionBacklog I1."""
    send("a1", "b1", "b2", "a2")
    send("a3")
    hold = queue.sessions.open_session("a")
    taken = hold.messages.acquire(2)
    assert names(read, taken) == ["a1", "a2"]
    assert list(taken.sequences) == [1, 4]
    assert names(read, hold.messages.acquire(9)) == ["a3"]
    assert hold.messages.acquire(9) is None
    send("b3", "a4")
    assert names(read, hold.messages.acquire(9)) == ["a4"]
    assert hold.messages.complete(taken.tags) == [True, True]
    namespace.commit()
    assert (queue.active_count, queue.locked_count) == (5, 2)
    assert names(read, queue.sessions.open_session("b").messages.acquire(9)) == ["b1", "b2", "b3"]


def test_a_message_says_it_is_locked_as_long_as_its_session(
    namespace: Any, queue: SessionQueue, send: Any, read: Any
) -> None:
    send("a1", "a2")
    hold = queue.sessions.open_session("a")
    namespace.advance(1000)
    taken = hold.messages.acquire(1)
    assert taken.locked_until_ms == hold.locked_until_ms == namespace.clock.wall_ms() - 1000 + LOCK_MS
    assert read(taken.payloads[0]).annotations["x-opt-locked-until"] == hold.locked_until_ms
    assert hold.renew() == hold.locked_until_ms == namespace.clock.wall_ms() + LOCK_MS
    assert hold.messages.acquire(1).locked_until_ms == hold.locked_until_ms
    namespace.advance(LOCK_MS - 1)
    assert hold.messages.complete(taken.tags) == [True]


def test_a_session_has_one_holder(namespace: Any, queue: SessionQueue, send: Any) -> None:
    """SessionLocks I1."""
    send("a1")
    hold = queue.sessions.open_session("a", "me", "link")
    with pytest.raises(SessionLockedError, match="'a'"):
        queue.sessions.open_session("a", "you")
    assert queue.sessions.next_session("you") is None
    assert queue.sessions.held_session("a", "me") is hold
    assert queue.sessions.held_session("a", "me", "link") is hold
    for holder, link in (("you", ""), ("me", "other")):
        with pytest.raises(SessionLockLostError):
            queue.sessions.held_session("a", holder, link)
    hold.release()
    hold.release()
    with pytest.raises(SessionLockLostError):
        hold.renew()
    with pytest.raises(SessionLockLostError):
        hold.set_state(b"")
    with pytest.raises(SessionLockLostError):
        queue.sessions.held_session("a", "me")
    assert queue.sessions.next_session("you").session_id == "a"


def test_released_messages_are_back_in_their_places_uncounted(
    namespace: Any, queue: SessionQueue, send: Any, read: Any
) -> None:
    """SessionLocks I3."""
    send("a1", "a2", "a3")
    hold = queue.sessions.open_session("a")
    taken = hold.messages.acquire(3)
    assert hold.messages.complete(taken.tags[1:2]) == [True]
    hold.release()
    assert hold.messages.complete(taken.tags[:1]) == [False]
    again = queue.sessions.open_session("a").messages.acquire(9)
    assert names(read, again) == ["a1", "a3"]
    assert counts(read, again) == [0, 0]


def test_a_lock_that_expires_is_reported_and_counts(namespace: Any, queue: SessionQueue, send: Any, read: Any) -> None:
    """SessionLocks I1, I3."""
    send("a1", "a2", "a3")
    lost: list[str] = []
    hold = queue.sessions.open_session("a")
    hold.on_lost = lambda: lost.append("a")
    taken = hold.messages.acquire(2)
    namespace.advance(LOCK_MS - 1)
    assert not lost
    namespace.advance(1)
    assert lost == ["a"]
    assert hold.is_over
    assert hold.messages.complete(taken.tags) == [False, False]
    with pytest.raises(SessionLockLostError):
        hold.renew()
    hold.release()
    second = queue.sessions.next_session()
    assert second.session_id == "a"
    again = second.messages.acquire(9)
    assert names(read, again) == ["a1", "a2", "a3"]
    assert counts(read, again) == [1, 1, 0]


def test_a_lock_that_expires_is_reported_though_the_disk_refuses(
    namespace: Any, queue: SessionQueue, send: Any, message: Make, read: Any
) -> None:
    send("a1", "b1")
    lost: list[str] = []
    for session_id in ("a", "b"):
        hold = queue.sessions.open_session(session_id)
        hold.on_lost = lambda session_id=session_id: lost.append(session_id)
        hold.messages.acquire(1)
    queue.accept([message("c1", group_id="c")])
    namespace.clock.advance(LOCK_MS)
    namespace.journal.fail_writes = OSError("full")
    with pytest.raises(StoreError):
        namespace.engine.tick()
    namespace.journal.fail_writes = None
    assert sorted(lost) == ["a", "b"]
    assert names(read, found(namespace).sessions.open_session("a").messages.acquire(1)) == ["a1"]
    assert queue.sessions.list_sessions(None, 0, 9) == ["a", "b"]


def test_nothing_is_delivered_past_a_message_that_is_being_returned(
    namespace: Any, queue: SessionQueue, send: Any, read: Any
) -> None:
    """SessionBacklog I1."""
    send("a1", "a2", "a3")
    hold = queue.sessions.open_session("a")
    first = hold.messages.acquire(1)
    calls: list[int] = []
    hold.messages.add_listener(lambda: calls.append(1))
    hold.messages.abandon(first.tags)
    assert not hold.messages.has_available
    assert hold.messages.acquire(1) is None
    commit = namespace.engine.begin_commit()
    assert hold.messages.acquire(1) is None
    hold.release()
    assert queue.sessions.next_session() is None
    second = queue.sessions.open_session("a")
    assert second.messages.acquire(1) is None
    namespace.journal.sync()
    namespace.engine.end_commit(commit)
    assert calls
    again = second.messages.acquire(9)
    assert names(read, again) == ["a1", "a2", "a3"]
    assert counts(read, again) == [1, 0, 0]


def test_free_sessions_are_given_in_turn(namespace: Any, queue: SessionQueue, send: Any) -> None:
    """SessionLocks I2."""
    send("a1", "b1", "c1", "a2")
    first = queue.sessions.next_session()
    assert first.session_id == "a"
    first.messages.complete(first.messages.acquire(1).tags)
    first.release()
    order = [queue.sessions.next_session() for _ in range(3)]
    assert [hold.session_id for hold in order] == ["b", "c", "a"]
    assert queue.sessions.next_session() is None


def test_receivers_that_wait_are_served_in_turn(namespace: Any, queue: SessionQueue, send: Any) -> None:
    """SessionLocks I2."""
    got: list[tuple[int, str]] = []

    def waiter(number: int) -> Callable[[], None]:
        def look() -> None:
            hold = queue.sessions.next_session(number)
            if hold is not None:
                got.append((number, hold.session_id))

        return look

    waiters = [waiter(number) for number in range(4)]
    for one in waiters:
        queue.sessions.wait_for_session(one)
    queue.sessions.cancel_wait(waiters[1])
    queue.sessions.cancel_wait(waiters[1])
    send("a1", "a2", "b1")
    assert got == [(0, "a"), (2, "b")]
    queue.sessions.held_session("a", 0).release()
    assert got[2:] == [(3, "a")]


def test_a_session_without_messages_can_be_opened_by_name_only(
    namespace: Any, queue: SessionQueue, send: Any, read: Any
) -> None:
    assert queue.sessions.next_session() is None
    hold = queue.sessions.open_session("a")
    assert hold.messages.acquire(1) is None
    send("a1")
    assert names(read, hold.messages.acquire(1)) == ["a1"]


def test_settlements_inside_a_session(namespace: Any, queue: SessionQueue, send: Any, read: Any) -> None:
    send("a1", "a2", "a3", "a4", "b1")
    hold = queue.sessions.open_session("a")
    tags = hold.messages.acquire(4).tags
    hold.messages.defer(tags[:1], {"why": "later"})
    hold.messages.dead_letter(tags[1:2], "reason", "text")
    hold.messages.release(tags[2:3])
    hold.messages.abandon(tags[3:], {"tried": 1})
    namespace.commit()
    assert queue.deferred_count == 1
    again = hold.messages.acquire(9)
    assert names(read, again) == ["a3", "a4"]
    assert read(again.payloads[1]).user["tried"] == 1
    with pytest.raises(MessageNotFoundError):
        queue.sessions.open_session("b").messages.receive_deferred([1])
    deferred = hold.messages.receive_deferred([1])
    assert read(deferred.payloads[0]).user["why"] == "later"
    hold.release()
    namespace.commit()
    hold = queue.sessions.open_session("a")
    deferred = hold.messages.receive_deferred([1])
    assert hold.messages.complete(deferred.tags) == [True]
    namespace.commit()
    assert (queue.active_count, queue.deferred_count) == (3, 0)
    dead = namespace.queue("q/$DeadLetterQueue")
    assert not dead.requires_session
    buried = dead.acquire(9)
    message = read(buried.payloads[0])
    assert (message.properties["group_id"], message.user["DeadLetterReason"]) == ("a", "reason")
    assert message.annotations["x-opt-deadletter-source"] == "q"


def test_max_delivery_count_inside_a_session(namespace: Any, queue: SessionQueue, send: Any, read: Any) -> None:
    send("a1", "a2")
    for _ in range(3):
        hold = queue.sessions.open_session("a")
        assert names(read, hold.messages.acquire(1)) == ["a1"]
        namespace.advance(LOCK_MS)
    dead = namespace.queue("q/$DeadLetterQueue").acquire(9)
    assert read(dead.payloads[0]).user["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert names(read, queue.sessions.next_session().messages.acquire(9)) == ["a2"]


def test_expiry_inside_sessions(namespace: Any, message: Make, read: Any) -> None:
    queue = make_queue(namespace, dead_lettering_on_message_expiration=True)
    namespace.send(
        "q",
        message("a1", group_id="a", ttl_ms=1000),
        message("b1", group_id="b", ttl_ms=1000),
        message("a2", group_id="a"),
        message("a3", group_id="a", ttl_ms=1000),
    )
    hold = queue.sessions.open_session("a")
    assert names(read, hold.messages.acquire(1)) == ["a1"]
    namespace.advance(3000)
    assert names(read, hold.messages.acquire(9)) == ["a2"]
    dead = namespace.queue("q/$DeadLetterQueue")
    assert sorted(names(read, dead.acquire(9))) == ["a3", "b1"]
    hold.release()
    assert names(read, queue.sessions.next_session().messages.acquire(9)) == ["a2"]
    assert queue.sessions.next_session() is None
    namespace.advance(3000)
    assert names(read, dead.acquire(9)) == ["a1"]
    assert queue.sessions.list_sessions(None, 0, 10) == ["a"]


def test_a_session_whose_messages_have_all_expired_is_not_given(
    namespace: Any, queue: SessionQueue, send: Any, message: Make
) -> None:
    namespace.send("q", *[message(name, group_id=name[0], ttl_ms=1500) for name in ("a1", "b1", "a2")])
    namespace.clock.advance(3000)
    namespace.engine.tick()
    assert queue.sessions.next_session() is None
    namespace.commit()
    assert queue.sessions.next_session() is None


def test_scheduled_messages_and_duplicates_inside_sessions(namespace: Any, message: Make, read: Any) -> None:
    queue = make_queue(namespace, requires_duplicate_detection=True)
    now = namespace.clock.wall_ms()
    namespace.send("q", message("a1", group_id="a"), message("a1", group_id="b"))
    (number,) = queue.schedule([(message("a2", group_id="a"), now + 5000)])
    queue.schedule([(message("b2", group_id="b"), now + 5000)])
    queue.schedule([(message("a2", group_id="a"), now + 5000)])
    namespace.commit()
    assert [read(one).properties["message_id"] for one in queue.peek(0, 10, "a")] == ["a1", "a2"]
    assert [read(one).sequence for one in queue.peek(number, 10, "a")] == [number]
    namespace.advance(5000)
    assert names(read, queue.sessions.open_session("a").messages.acquire(9)) == ["a1", "a2"]
    assert names(read, queue.sessions.open_session("b").messages.acquire(9)) == ["b2"]


def test_receive_and_delete_in_a_session(namespace: Any, queue: SessionQueue, send: Any, read: Any) -> None:
    send("a1", "a2")
    hold = queue.sessions.open_session("a")
    done: list[int] = []
    assert names(read, hold.messages.acquire(1, lock=False, on_durable=lambda: done.append(1))) == ["a1"]
    assert not done
    namespace.commit()
    assert done
    hold.release()
    assert names(read, queue.sessions.next_session().messages.acquire(9)) == ["a2"]


def test_peek_of_one_session_and_of_all(namespace: Any, queue: SessionQueue, send: Any, read: Any) -> None:
    send("a1", "b1", "c1", "a2", "b2")
    hold = queue.sessions.open_session("a")
    hold.messages.defer(hold.messages.acquire(1).tags)
    namespace.commit()

    def peeked(*arguments: Any) -> list[str]:
        return [read(one).properties["message_id"] for one in queue.peek(*arguments)]

    assert peeked(0, 10) == ["a1", "b1", "c1", "a2", "b2"]
    assert peeked(0, 2) == ["a1", "b1"]
    assert peeked(3, 2) == ["c1", "a2"]
    assert peeked(0, 10, "b") == ["b1", "b2"]
    assert peeked(2, 10, "a") == ["a2"]
    assert peeked(0, 10, "nobody") == []
    assert [read(one).properties["message_id"] for one in hold.messages.peek(0, 10)] == ["a1", "a2"]
    assert read(queue.peek(0, 1)[0]).annotations["x-opt-message-state"] == 1


def test_state_is_durable_and_lasts_until_it_is_cleared(namespace: Any, queue: SessionQueue, send: Any) -> None:
    """Session state I1."""
    send("a1")
    hold = queue.sessions.open_session("a")
    assert hold.get_state() is None
    done: list[str] = []
    hold.set_state(b"one", lambda: done.append("one"))
    assert hold.get_state() == b"one"
    assert not done
    namespace.commit()
    assert done == ["one"]
    hold.set_state(b"two")
    namespace.crash()
    queue = found(namespace)
    hold = queue.sessions.open_session("a")
    assert hold.get_state() == b"one"
    hold.messages.complete(hold.messages.acquire(1).tags)
    namespace.commit()
    hold.release()
    namespace.commit()
    assert queue.sessions.list_sessions(None, 0, 10) == ["a"]
    assert queue.sessions.list_sessions(0, 0, 10) == ["a"]
    namespace.crash()
    queue = found(namespace)
    assert queue.size_bytes == 3
    hold = queue.sessions.open_session("a")
    assert hold.get_state() == b"one"
    hold.set_state(b"")
    assert hold.get_state() == b""
    hold.set_state(None)
    namespace.commit()
    assert hold.get_state() is None
    hold.release()
    namespace.commit()
    namespace.commit()
    assert (queue.size_bytes, rows(namespace, SESSION)) == (0, 0)


def test_states_have_a_largest_size_and_count_to_the_quota(namespace: Any, message: Make) -> None:
    queue = make_queue(namespace, max_size_in_megabytes=1, max_message_size_in_kilobytes=600)
    hold = queue.sessions.open_session("a")
    with pytest.raises(MessageTooLargeError):
        hold.set_state(bytes(600 * 1024 + 1))
    hold.set_state(bytes(600 * 1024))
    with pytest.raises(QuotaExceededError):
        queue.sessions.open_session("b").set_state(bytes(500 * 1024))
    with pytest.raises(QuotaExceededError):
        queue.accept([message("a" * 100, group_id="a", to="x" * 450_000)])
    hold.set_state(bytes(600 * 1024))
    hold.set_state(b"small")
    namespace.commit()
    queue.sessions.open_session("c").set_state(bytes(500 * 1024))


def test_sessions_are_listed(namespace: Any, queue: SessionQueue, send: Any) -> None:
    send("c1", "a1", "b1")
    hold = queue.sessions.open_session("b")
    hold.set_state(b"x")
    at_ms = namespace.clock.wall_ms()
    assert queue.sessions.list_sessions(None, 0, 10) == ["a", "b", "c"]
    assert queue.sessions.list_sessions(None, 1, 1) == ["b"]
    assert queue.sessions.list_sessions(at_ms - 1, 0, 10) == ["b"]
    assert queue.sessions.list_sessions(at_ms, 0, 10) == []
    queue.sessions.open_session("d").set_state(b"alone")
    assert queue.sessions.list_sessions(None, 0, 10) == ["a", "b", "c", "d"]
    hold.messages.complete(hold.messages.acquire(1).tags)
    hold.set_state(None)
    assert queue.sessions.list_sessions(None, 0, 10) == ["a", "c", "d"]


def test_a_restart_frees_sessions_and_keeps_order_and_counts(
    namespace: Any, queue: SessionQueue, send: Any, read: Any
) -> None:
    send("a1", "b1", "a2", "a3", "a4")
    hold = queue.sessions.open_session("a")
    taken = hold.messages.acquire(3)
    hold.messages.abandon(taken.tags[1:2])
    hold.messages.complete(taken.tags[:1])
    namespace.commit()
    hold.messages.complete(taken.tags[2:])
    namespace.crash()
    queue = found(namespace)
    assert (queue.active_count, queue.locked_count) == (4, 0)
    hold = queue.sessions.open_session("a")
    again = hold.messages.acquire(9)
    assert names(read, again) == ["a2", "a3", "a4"]
    assert counts(read, again) == [1, 0, 0]
    send("a5")
    assert names(read, hold.messages.acquire(9)) == ["a5"]


def test_a_failed_commit_loses_the_locks_and_nothing_else(
    namespace: Any, queue: SessionQueue, send: Any, message: Make, read: Any
) -> None:
    send("a1", "a2")
    lost: list[str] = []
    hold = queue.sessions.open_session("a")
    hold.on_lost = lambda: lost.append("a")
    tags = hold.messages.acquire(1).tags
    waiting: list[Hold | None] = []
    queue.sessions.wait_for_session(lambda: waiting.append(queue.sessions.next_session()))
    hold.messages.complete(tags)
    queue.accept([message("b1", group_id="b")])
    namespace.journal.fail_writes = OSError("full")
    with pytest.raises(StoreError):
        namespace.engine.begin_commit()
    namespace.journal.fail_writes = None
    assert lost == ["a"]
    assert found(namespace) is queue
    with pytest.raises(SessionLockLostError):
        hold.messages.complete(tags)
    assert waiting[0] is not None
    assert names(read, waiting[0].messages.acquire(9)) == ["a1", "a2"]
    assert queue.sessions.list_sessions(None, 0, 10) == ["a"]
    assert queue.active_count == 2


@pytest.mark.parametrize("how", ["abandon", "defer", "dead_letter", "expire"])
def test_a_message_in_hand_holds_the_head_back(
    namespace: Any, queue: SessionQueue, send: Any, message: Make, read: Any, how: str
) -> None:
    """SessionBacklog I2: settling reads messages back, and that writes what was staged before, cursors included."""
    send("a1", "a2", "a3", "a4")
    hold = queue.sessions.open_session("a")
    tags = hold.messages.acquire(4).tags
    hold.messages.complete(tags[:1])
    hold.messages.acquire(1)
    if how == "expire":
        namespace.clock.advance(LOCK_MS)
        namespace.engine.tick()
    else:
        getattr(hold.messages, how)([tags[1], tags[3]])
    namespace.commit()
    namespace.crash()
    left = [*found(namespace).peek(0, 9), *namespace.queue("q/$DeadLetterQueue").peek(0, 9)]
    assert sorted(read(one).properties["message_id"] for one in left) == ["a2", "a3", "a4"]
    hold = found(namespace).sessions.open_session("a")
    got = names(read, hold.messages.acquire(9))
    assert got == (["a3"] if how in ("defer", "dead_letter") else ["a2", "a3", "a4"])


def test_nothing_is_left_of_sessions_that_are_done(namespace: Any, queue: SessionQueue, send: Any) -> None:
    """Session I1; SessionBacklog I2."""
    for round_number in range(3):
        send(*[f"{letter}{number}" for number in range(5) for letter in "abc"])
        for _ in range(3):
            hold = queue.sessions.next_session()
            tags = hold.messages.acquire(9).tags
            hold.messages.complete(tags[2:3])
            namespace.commit()
            hold.messages.complete(tags)
            namespace.commit()
            hold.release()
            namespace.commit()
        namespace.commit()
        assert queue.sessions.next_session() is None, round_number
        assert [rows(namespace, table) for table in (MESSAGE, SESSION, DEFERRED)] == [0, 0, 0]
    assert queue.statistics()["session_count"] == 0
    assert (queue.active_count, queue.size_bytes, queue.last) == (0, 0, 45)


def test_what_a_run_left_below_the_head_is_swept_by_the_next(
    namespace: Any, queue: SessionQueue, send: Any, read: Any
) -> None:
    send("a1", "a2", "a3")
    hold = queue.sessions.open_session("a")
    hold.messages.complete(hold.messages.acquire(2).tags)
    namespace.commit()
    namespace.crash()
    queue = found(namespace)
    hold = queue.sessions.open_session("a")
    taken = hold.messages.acquire(9)
    assert names(read, taken) == ["a3"]
    hold.messages.complete(taken.tags)
    hold.release()
    for _ in range(3):
        namespace.commit()
    assert [rows(namespace, table) for table in (MESSAGE, SESSION)] == [0, 0]


def test_many_dead_messages_go_as_a_range(namespace: Any, queue: SessionQueue, message: Make, read: Any) -> None:
    namespace.send("q", *[message(f"m{n}", group_id="a") for n in range(1300)])
    hold = queue.sessions.open_session("a")
    for _ in range(6):
        hold.messages.complete(hold.messages.acquire(200).tags)
        namespace.commit()
    assert rows(namespace, MESSAGE) < 700
    assert names(read, hold.messages.acquire(1)) == ["m1200"]


def test_more_sessions_than_are_kept_at_hand(namespace: Any, queue: SessionQueue, message: Make, read: Any) -> None:
    count = 1500
    for part in range(2):
        namespace.send("q", *[message(f"m{n}-{part}", group_id=f"s{n}") for n in range(count)])
    at_hand = sum(session.messages is not None for session in queue.directory)
    assert at_hand <= 1024
    assert len(queue.peek(0, 5000)) == 2 * count
    namespace.advance(20_000)
    assert not any(session.messages for session in queue.directory)
    got = {}
    for _ in range(count):
        hold = queue.sessions.next_session()
        got[hold.session_id] = names(read, hold.messages.acquire(9))
    assert got == {f"s{n}": [f"m{n}-0", f"m{n}-1"] for n in range(count)}
    assert queue.sessions.next_session() is None


def test_a_deleted_entity_leaves_nothing(namespace: Any, queue: SessionQueue, send: Any) -> None:
    namespace.engine.create_queue("other", QueueDescription(requires_session=True))
    send("a1", "b1")
    hold = queue.sessions.open_session("a")
    hold.set_state(b"x")
    taken = hold.messages.acquire(1)
    hold.messages.abandon(taken.tags)
    woken: list[int] = []
    queue.sessions.wait_for_session(lambda: woken.append(1))
    namespace.engine.delete_queue("q")
    namespace.commit()
    assert woken
    assert [rows(namespace, table) for table in (MESSAGE, SESSION)] == [0, 0]
    assert rows(namespace, STATE) <= 2
    hold.release()
    for call in (
        queue.sessions.next_session,
        lambda: queue.sessions.open_session("a"),
        lambda: hold.messages.complete(taken.tags),
    ):
        with pytest.raises(EntityNotFoundError):
            call()
    namespace.engine.create_queue("q", QueueDescription(requires_session=True))
    namespace.commit()
    assert found(namespace).sessions.open_session("a").get_state() is None


def test_status_is_checked(namespace: Any, queue: SessionQueue, send: Any) -> None:
    send("a1")
    hold = queue.sessions.open_session("a")
    description = namespace.engine.get_queue("q")
    description.status = EntityStatus.RECEIVE_DISABLED
    namespace.engine.update_queue("q", description)
    for call in (
        queue.sessions.next_session,
        lambda: queue.sessions.open_session("b"),
        lambda: hold.messages.acquire(1),
    ):
        with pytest.raises(EntityDisabledError):
            call()


def test_a_subscription_with_sessions(namespace: Any, message: Make, read: Any) -> None:
    """I2."""
    namespace.engine.create_topic("t")
    namespace.engine.create_subscription("t", "s", SubscriptionDescription(requires_session=True))
    namespace.commit()
    namespace.send("t", message("a1", group_id="a"), message("none"), message("a2", group_id="a"))
    queue = namespace.queue("t/subscriptions/s")
    assert names(read, queue.sessions.next_session().messages.acquire(9)) == ["a1", "a2"]
    dead = read(namespace.queue("t/subscriptions/s/$DeadLetterQueue").acquire(9).payloads[0])
    assert dead.properties["message_id"] == "none"
    assert dead.user["DeadLetterReason"] == "Session ID is null"


def test_batches_are_deleted_in_free_sessions_only(namespace: Any, queue: SessionQueue, send: Any, read: Any) -> None:
    send("a1", "b1", "c1", "b2")
    queue.sessions.open_session("a")
    assert queue.delete_batch(2) == 2
    assert queue.delete_batch(9) == 1
    namespace.commit()
    assert [read(one).properties["message_id"] for one in queue.peek(0, 9)] == ["a1"]


@pytest.mark.parametrize("damaged", ["a", "b", "c"])
def test_batches_are_deleted_though_a_session_cannot_be_read(
    namespace: Any, queue: SessionQueue, send: Any, read: Any, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    """Otherwise what had been deleted before it would be reported as not deleted, and what is after it never would be."""
    send("a1", "b1", "c1")
    messages_of = queue.directory.messages_of

    def refuses(session: Any) -> Any:
        if session is queue.directory[damaged]:
            raise StoreError("block checksum mismatch")
        return messages_of(session)

    with monkeypatch.context() as patch:
        patch.setattr(queue.directory, "messages_of", refuses)
        assert queue.delete_batch(9) == 2
        with pytest.raises(StoreError):
            queue.delete_batch(9)
    namespace.commit()
    assert [read(one).properties["message_id"] for one in queue.peek(0, 9)] == [f"{damaged}1"]


def test_whatever_a_power_cut_leaves_is_consistent(namespace: Any, queue: SessionQueue, send: Any, read: Any) -> None:
    """SessionMessages I1: after every prefix of the batches, counts and messages agree, and each session is in order."""
    send("a1", "b1", "a2")
    hold = queue.sessions.open_session("a")
    taken = hold.messages.acquire(2)
    hold.messages.abandon(taken.tags[:1])
    queue.peek(0, 1)
    hold.messages.dead_letter(taken.tags[1:])
    hold.set_state(b"s")
    queue.peek(0, 1)
    queue.sessions.open_session("b").messages.acquire(1, lock=False)
    queue.peek(0, 1)
    for keep in range(namespace.journal.unsynced_count + 1):
        left = type(namespace.journal)()
        left._table.keys = list(namespace.journal._synced.keys)
        left._table.values = dict(namespace.journal._synced.values)
        for batch in namespace.journal._unsynced[:keep]:
            left._table.apply(batch)
        other = type(namespace)()
        other.journal, other.clock = left, namespace.clock
        other.start()
        again = found(other)
        seen = [read(one).sequence for one in again.peek(0, 99)]
        assert len(seen) == again.active_count
        assert seen == sorted(seen)


def test_a_look_at_all_sessions_reads_so_much_and_no_more(namespace: Any, read: Any) -> None:
    """What one look leaves out comes with the next, whichever session it is of."""
    namespace.engine.create_queue("large", QueueDescription(requires_session=True))
    queue = namespace.queue("large")
    for number in range(30):
        one = section.encode_message(
            b"x" * 900_000, properties={"message_id": str(number), "group_id": str(number % 3)}
        )
        namespace.send("large", one)
        if number % 10 == 9:
            queue.schedule([(one, namespace.clock.wall_ms() + 3_600_000)])
            namespace.commit()
    seen: list[int] = []
    while found := [read(payload).sequence for payload in queue.peek(seen[-1] + 1 if seen else 0, 4000)]:
        assert len(found) <= 20
        seen += found
    assert seen == list(range(1, 34))


def test_a_session_that_is_over_is_forgotten_at_once(namespace: Any, message: Make, queue: SessionQueue) -> None:
    """The garbage collector runs seldom, and there may be very many sessions."""
    namespace.send("q", message("a", group_id="s"))
    hold = queue.sessions.open_session("s")
    removed = weakref.ref(hold.messages)
    gc.disable()
    try:
        hold.messages.complete(hold.messages.acquire(1).tags)  # type: ignore[union-attr]
        namespace.commit()
        hold.release()
        namespace.commit()
        namespace.commit()
        del hold
        assert queue.sessions.session_count == 0
        assert removed() is None
    finally:
        gc.enable()


def test_waiters_that_take_nothing_are_passed_over_without_depth(namespace: Any, message: Make) -> None:
    queue = make_queue(namespace)
    seen: list[int] = []

    def refuse(number: int) -> Callable[[], None]:
        def on_free() -> None:
            seen.append(number)
            hold = queue.sessions.next_session()
            assert hold is not None
            hold.release()

        return on_free

    for number in range(2000):
        queue.sessions.wait_for_session(refuse(number))
    namespace.send("q", message("m1", group_id="a"))
    assert seen == list(range(2000))
    assert queue.sessions.next_session() is not None


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_a_step_of_the_wall_clock_moves_no_session_lock(namespace: Any, message: Make, step_ms: int) -> None:
    queue = make_queue(namespace)
    namespace.send("q", message("m1", group_id="a"))
    hold = queue.sessions.next_session()
    assert hold is not None
    namespace.advance(LOCK_MS - 1000)
    namespace.clock.set_wall(namespace.clock.wall_ms() + step_ms)
    namespace.advance(0)
    assert not hold.is_over
    namespace.advance(1000)
    assert hold.is_over


@pytest.mark.parametrize("by_name", [False, True])
def test_a_session_whose_messages_could_not_be_read_stays_free(
    namespace: Any, message: Make, by_name: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No receiver would get it before its next message, or the next start."""
    make_queue(namespace)
    namespace.send("q", message("waits", group_id="s"))
    namespace.crash()
    queue = found(namespace)

    def refuses(key: bytes) -> None:
        raise StoreError("a block cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(namespace.journal, "get", refuses)
        with pytest.raises(StoreError):
            queue.sessions.open_session("s") if by_name else queue.sessions.next_session()
    hold = queue.sessions.next_session()
    assert hold is not None
    assert len(hold.messages.acquire(9).tags) == 1


def test_a_session_that_cannot_be_read_delays_no_other(
    namespace: Any, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(namespace)
    for name in ("damaged", "whole"):
        namespace.send("q", message(name, group_id=name))
    namespace.crash()
    queue = found(namespace)
    damaged = queue.directory["damaged"].number
    get = namespace.journal.get

    def refuses(key: bytes) -> Any:
        if key == state_key(damaged):
            raise StoreError("block checksum mismatch")
        return get(key)

    monkeypatch.setattr(namespace.journal, "get", refuses)
    with pytest.raises(StoreError):
        queue.sessions.next_session()
    hold = queue.sessions.next_session()
    assert hold is not None
    assert hold.session_id == "whole"
    with pytest.raises(StoreError):
        queue.sessions.next_session()
    monkeypatch.undo()
    hold = queue.sessions.next_session()
    assert hold is not None
    assert hold.session_id == "damaged"


@pytest.mark.parametrize("reads", range(10))
def test_a_receiver_gets_an_error_when_its_session_is_lost_though_the_store_cannot_be_read_again(
    namespace: Any, message: Make, monkeypatch: Any, reads: int
) -> None:
    """It would wait for messages that go to others."""
    queue = make_queue(namespace)
    namespace.send("q", message("1", group_id="a"), message("2", group_id="b"))
    lost: list[str] = []

    def odd() -> None:
        lost.append("odd")
        raise ValueError("odd")

    for session_id, on_lost in (("a", odd), ("b", lambda: lost.append("even"))):
        hold = queue.sessions.open_session(session_id)
        hold.on_lost = on_lost
    namespace.commit()
    left = reads
    scan, get = namespace.journal.scan, namespace.journal.get

    def look() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreError("a block cannot be read")

    def scanning(first: bytes, end: bytes, **more: Any) -> Any:
        look()
        return scan(first, end, **more)

    def getting(key: bytes) -> bytes | None:
        look()
        return get(key)  # type: ignore[no-any-return]

    namespace.sender("q").accept([message("3", group_id="a")], None, lambda _: None)
    commit = namespace.engine.begin_commit()
    monkeypatch.setattr(namespace.journal, "scan", scanning)
    monkeypatch.setattr(namespace.journal, "get", getting)
    with suppress(StoreError):
        namespace.engine.fail_commit(commit, StoreError("no space"))
    monkeypatch.undo()
    namespace.engine.probe()
    namespace.commit()
    assert lost == ["odd", "even"]
    assert found(namespace).sessions.next_session() is not None
