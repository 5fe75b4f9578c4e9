"""Forwarding: ForwardTo, ForwardDeadLetteredMessagesTo, hops, and messages that cannot be forwarded."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.amqp.types import Long, Timestamp, ULong
from isthmus.entities import (
    INFINITE_MS,
    Copy,
    EntityStatus,
    Limits,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.fragment.message_key import Keys, keys_of_parts
from isthmus.entities.record.parse import HeadCache, split
from isthmus.entities.storage.key import MESSAGE, message_key
from isthmus.errors import EntityNotFoundError, InvalidArgumentError, NotAllowedError, StoreError


def chain(namespace: Any, count: int) -> None:
    """Queues 1 to `count`, each forwarding to the next."""
    for number in range(count, 0, -1):
        settings = QueueDescription(forward_to=f"q{number + 1}" if number < count else None)
        namespace.engine.create_queue(f"q{number}", settings)
    namespace.commit()


def take(namespace: Any, path: str, read: Any, limit: int = 100) -> list[Any]:
    """Receive and complete."""
    queue = namespace.queue(path)
    acquired = queue.acquire(limit)
    if acquired is None:
        return []
    assert all(queue.complete(acquired.tags))
    namespace.commit()
    return [read(payload) for payload in acquired.payloads]


def names(messages: list[Any]) -> list[str]:
    return [one.properties["message_id"] for one in messages]


def settle(namespace: Any) -> None:
    """Commit until nothing is staged any more."""
    for _ in range(100):
        if not namespace.engine.has_staged:
            return
        namespace.commit()
    raise AssertionError("commits never come to rest")


# ---- settings


def test_a_target_has_to_exist_and_to_be_a_queue_or_topic(namespace: Any) -> None:
    engine = namespace.engine
    engine.create_queue("q")
    engine.create_topic("t")
    engine.create_subscription("t", "s")
    for target in ("x", "t/Subscriptions/s", "q/$DeadLetterQueue"):
        for setting in ("forward_to", "forward_dead_lettered_messages_to"):
            with pytest.raises(InvalidArgumentError, match=r"[Ff]orward"):
                engine.update_queue("q", QueueDescription(**{setting: target}))
    with pytest.raises(InvalidArgumentError, match="does not exist"):
        engine.create_queue("new", QueueDescription(forward_to="x"))
    assert engine.get_queue("new") is None
    assert engine.get_queue("q") == QueueDescription()


def test_a_target_is_kept_in_its_own_spelling_and_ends_auto_delete_on_idle(namespace: Any) -> None:
    engine = namespace.engine
    engine.create_queue("Target")
    made = engine.create_queue("q", QueueDescription(forward_to="sb://h/TARGET", auto_delete_on_idle_ms=300_000))
    assert (made.forward_to, made.auto_delete_on_idle_ms) == ("Target", INFINITE_MS)
    changed = QueueDescription(forward_dead_lettered_messages_to="target", auto_delete_on_idle_ms=300_000)
    assert engine.update_queue("q", changed).forward_dead_lettered_messages_to == "Target"
    assert engine.get_queue("q").auto_delete_on_idle_ms == 300_000
    assert changed.forward_dead_lettered_messages_to == "target"


def test_nothing_is_received_where_messages_are_forwarded(namespace: Any, message: Any) -> None:
    chain(namespace, 2)
    with pytest.raises(NotAllowedError, match="auto-forwarding enabled"):
        namespace.queue("q1").acquire(1)
    namespace.queue("q1/$DeadLetterQueue").acquire(1)
    namespace.engine.update_queue("q2", QueueDescription(forward_dead_lettered_messages_to="q1"))
    with pytest.raises(NotAllowedError, match="auto-forwarding enabled"):
        namespace.queue("q2/$DeadLetterQueue").acquire(1)


# ---- going on


def test_messages_continue_in_order_with_their_first_number(namespace: Any, message: Any, read: Any) -> None:
    chain(namespace, 2)
    namespace.send("q2", message("first"))
    namespace.send("q1", message("a", ttl_ms=9000), message("b"))
    namespace.send("q1", message("c"))
    found = take(namespace, "q2", read)
    assert names(found) == ["first", "a", "b", "c"]
    assert [one.sequence for one in found] == [1, 2, 3, 4]
    assert [one.annotations.get("x-opt-enqueue-sequence-number") for one in found] == [None, 1, 2, 3]
    assert found[1].header.ttl_ms == 9000
    assert all(one.header.delivery_count == 0 for one in found)
    runtime = namespace.engine.runtime("q1")
    assert (runtime.message_count, runtime.transfer_message_count, runtime.size_bytes) == (0, 0, 0)
    namespace.crash()
    assert namespace.queue("q1").last == 3
    namespace.send("q1", message("d"))
    assert [one.annotations["x-opt-enqueue-sequence-number"] for one in take(namespace, "q2", read)] == [4]


def test_four_hops_and_no_fifth(namespace: Any, message: Any, read: Any) -> None:
    chain(namespace, 6)
    namespace.send("q1", message("far"))
    namespace.send("q2", message("near"))
    assert names(take(namespace, "q6", read)) == ["near"]
    (dead,) = take(namespace, "q5/$DeadLetterQueue", read)
    assert dead.properties["message_id"] == "far"
    assert dead.user["DeadLetterReason"] == "MaxTransferHopCountExceeded"
    assert "hop count" in dead.user["DeadLetterErrorDescription"]
    assert dead.annotations["x-opt-deadletter-source"] == "q5"
    assert dead.annotations["x-opt-enqueue-sequence-number"] == 1


def test_a_circle_ends_after_four_hops(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("a")
    engine.create_queue("b", QueueDescription(forward_to="a"))
    engine.update_queue("a", QueueDescription(forward_to="b"))
    namespace.send("a", message("round"))
    settle(namespace)
    assert names(take(namespace, "a/$DeadLetterQueue", read)) == ["round"]


def test_hops_outlive_rest_and_restart(namespace: Any, message: Any, read: Any) -> None:
    """A circle over a time to live: each round is two hops, with a second's rest in between."""
    engine = namespace.engine
    engine.create_queue("a", QueueDescription(dead_lettering_on_message_expiration=True))
    engine.create_queue("b", QueueDescription(forward_to="a"))
    engine.update_queue(
        "a",
        QueueDescription(
            default_message_time_to_live_ms=1000,
            dead_lettering_on_message_expiration=True,
            forward_dead_lettered_messages_to="b",
        ),
    )
    namespace.send("a", message("round"))
    for _ in range(4):
        namespace.advance(3000)
        settle(namespace)
        namespace.crash()
    assert namespace.engine.runtime("a").dead_letter_message_count == 1
    namespace.engine.update_queue("a", QueueDescription())
    (dead,) = take(namespace, "a/$DeadLetterQueue", read)
    assert dead.user["DeadLetterReason"] == "TTLExpiredException"


def test_subscriptions_forward_copies_and_topics_take_them(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("all")
    engine.create_topic("second")
    engine.create_subscription("second", "s")
    engine.create_topic("first", TopicDescription(default_message_time_to_live_ms=60_000))
    engine.create_subscription("first", "plain", SubscriptionDescription(forward_to="second"))
    engine.create_subscription(
        "first",
        "marked",
        SubscriptionDescription(forward_to="all", default_message_time_to_live_ms=5000),
        RuleDescription("r", SqlFilter("n = 1"), SqlAction("SET mark = 'yes'")),
    )
    namespace.send("first", message("one", user={"n": 1}), message("two", user={"n": 2}))
    (marked,) = take(namespace, "all", read)
    assert (marked.user["mark"], marked.user["RuleName"], marked.header.ttl_ms) == ("yes", "r", 5000)
    assert marked.annotations["x-opt-enqueue-sequence-number"] == 1
    copies = take(namespace, "second/Subscriptions/s", read)
    assert names(copies) == ["one", "two"]
    assert [one.annotations["x-opt-enqueue-sequence-number"] for one in copies] == [1, 2]
    assert [one.header.ttl_ms for one in copies] == [60_000, 60_000]


def test_scheduled_messages_continue_when_due(namespace: Any, message: Any, read: Any) -> None:
    chain(namespace, 2)
    namespace.queue("q1").schedule([(message("later"), namespace.clock.wall_ms() + 5000)])
    namespace.commit()
    assert namespace.engine.runtime("q1").scheduled_message_count == 1
    assert take(namespace, "q2", read) == []
    namespace.advance(5000)
    assert names(take(namespace, "q2", read)) == ["later"]


def test_the_target_detects_duplicates(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("target", QueueDescription(requires_duplicate_detection=True))
    engine.create_queue("q")
    namespace.send("target", message("a"))
    namespace.send("q", message("a"), message("waited"))
    engine.update_queue("q", QueueDescription(forward_to="target"))
    settle(namespace)
    namespace.send("q", message("b"), message("waited"), message("b"))
    assert names(take(namespace, "target", read)) == ["a", "waited", "b"]


def test_what_waits_is_moved_when_forwarding_begins(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("target")
    engine.create_queue("q")
    namespace.send("q", *(message(str(number)) for number in range(2500)))
    locked = namespace.queue("q").acquire(2)
    engine.update_queue("q", QueueDescription(forward_to="target"))
    namespace.send("q", message("new"))
    runtime = engine.runtime("q")
    assert runtime.active_message_count == 0
    assert runtime.transfer_message_count > 0
    settle(namespace)
    queue = namespace.queue("q")
    queue.abandon(locked.tags[:1])
    queue.complete(locked.tags[1:])
    settle(namespace)
    assert engine.runtime("q").message_count == 0
    found = names(take(namespace, "target", read, 3000))
    assert found == [*(str(number) for number in range(2, 2500)), "new", "0"]


def test_a_source_closed_to_receivers_keeps_its_messages_until_it_opens(
    namespace: Any, message: Any, read: Any
) -> None:
    chain(namespace, 2)
    closed = QueueDescription(forward_to="q2", status=EntityStatus.RECEIVE_DISABLED)
    namespace.engine.update_queue("q1", closed)
    namespace.send("q1", message("waits"))
    assert namespace.engine.runtime("q1").transfer_message_count == 1
    namespace.crash()
    namespace.advance(0)
    assert take(namespace, "q2", read) == []
    namespace.engine.update_queue("q1", QueueDescription(forward_to="q2"))
    settle(namespace)
    assert names(take(namespace, "q2", read)) == ["waits"]


def test_forwarding_continues_after_a_restart(namespace: Any, message: Any, read: Any) -> None:
    """The kill comes after the setting and before the first group was moved."""
    engine = namespace.engine
    engine.create_queue("target")
    engine.create_queue("q")
    namespace.send("q", message("a"), message("b"))
    engine.update_queue("q", QueueDescription(forward_to="target"))
    namespace.commit()
    namespace.journal.crash()
    namespace.start()
    namespace.advance(0)
    settle(namespace)
    assert names(take(namespace, "target", read)) == ["a", "b"]
    assert namespace.engine.runtime("q").message_count == 0


# ---- what cannot be forwarded


def test_a_disabled_target_dead_letters_at_the_source(namespace: Any, message: Any, read: Any) -> None:
    chain(namespace, 2)
    for status in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED):
        namespace.engine.update_queue("q2", QueueDescription(status=status))
        namespace.send("q1", message(status))
        (dead,) = take(namespace, "q1/$DeadLetterQueue", read)
        assert dead.properties["message_id"] == status
        assert dead.user["DeadLetterReason"] == "MessagingEntityDisabled"


def test_a_full_target_dead_letters_what_does_not_fit(namespace: Any, message: Any, read: Any) -> None:
    namespace.limits = Limits(max_message_size_bytes=1 << 20)
    engine = namespace.engine
    engine.create_queue("target", QueueDescription(max_size_in_megabytes=1))
    engine.create_queue("q", QueueDescription(forward_to="target"))
    large = [message("x" * 300_000, message_id=str(number)) for number in range(4)]
    namespace.send("q", *large, message("small"))
    assert names(take(namespace, "target", read)) == ["0", "1", "2", "small"]
    (dead,) = take(namespace, "q/$DeadLetterQueue", read)
    assert dead.user["DeadLetterReason"] == "QuotaExceeded"


def test_a_message_too_large_for_the_target_is_dead_lettered(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("target", QueueDescription(max_message_size_in_kilobytes=1))
    engine.create_queue("q", QueueDescription(forward_to="target"))
    namespace.send("q", message("a"), message("b" * 2000, message_id="b"), message("c"))
    assert names(take(namespace, "target", read)) == ["a", "c"]
    (dead,) = take(namespace, "q/$DeadLetterQueue", read)
    assert dead.user["DeadLetterReason"] == "MessageSizeExceeded"


def test_a_deleted_target_leads_to_the_transfer_dead_letter_queue(namespace: Any, message: Any, read: Any) -> None:
    chain(namespace, 2)
    engine = namespace.engine
    engine.delete_queue("q2")
    namespace.send("q1", message("lost"), message("too"))
    runtime = engine.runtime("q1")
    assert (runtime.transfer_dead_letter_message_count, runtime.dead_letter_message_count) == (2, 0)
    assert runtime.message_count == 2
    namespace.crash()
    assert namespace.engine.runtime("q1").transfer_dead_letter_message_count == 2
    found = take(namespace, "q1/$Transfer/$DeadLetterQueue", read)
    assert names(found) == ["lost", "too"]
    assert found[0].user["DeadLetterReason"] == "MessagingEntityNotFound"
    with pytest.raises(NotAllowedError, match="takes no sends"):
        namespace.sender("q1/$Transfer/$DeadLetterQueue")
    namespace.engine.create_queue("q2")
    namespace.send("q1", message("found"))
    assert names(take(namespace, "q2", read)) == ["found"]
    namespace.engine.delete_queue("q1")
    namespace.commit()
    with pytest.raises(EntityNotFoundError):
        namespace.queue("q1/$Transfer/$DeadLetterQueue")
    deleted = range(4, 7)  # numbers of q1 and its dead-letter queues
    assert [key for key, _ in namespace.journal.scan(b"\x10", b"\x20") if key[4] in deleted] == []


def test_messages_that_cannot_be_read_delay_no_other_entity_and_no_change(
    namespace: Any, message: Any, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = namespace.engine
    for name in ("damaged", "whole"):
        engine.create_queue(f"to-{name}")
        engine.create_queue(name)
        namespace.send(name, message(name))
    number = engine.receiver("damaged").number
    scan = namespace.journal.scan

    def refuses(first: bytes, end: bytes, *, read_ahead: bool = False) -> Any:
        if first[:5] == message_key(MESSAGE, number, 0)[:5]:
            raise StoreError("block checksum mismatch")
        return scan(first, end)

    monkeypatch.setattr(namespace.journal, "scan", refuses)
    engine.update_queue("damaged", QueueDescription(forward_to="to-damaged"))
    namespace.commit()
    namespace.journal.fail_writes = OSError("no space")
    engine.update_queue("damaged", QueueDescription(forward_to="to-damaged", max_delivery_count=9))
    with pytest.raises(StoreError):
        namespace.commit()
    namespace.journal.fail_writes = None
    engine.update_queue("whole", QueueDescription(forward_to="to-whole"))
    namespace.commit()
    assert names(take(namespace, "to-whole", read)) == ["whole"]
    monkeypatch.undo()
    namespace.advance(10_000)
    assert names(take(namespace, "to-damaged", read)) == ["damaged"]


# ---- dead letters


def dead_letter(namespace: Any, path: str, reason: str = "bad") -> None:
    queue = namespace.queue(path)
    acquired = queue.acquire(100)
    queue.dead_letter(acquired.tags, reason, "as the test says")
    settle(namespace)


def test_dead_letters_continue_with_reason_and_source(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("graveyard", QueueDescription(max_delivery_count=2))
    engine.create_queue("q", QueueDescription(forward_dead_lettered_messages_to="graveyard", max_delivery_count=1))
    namespace.send("q", message("a"), message("b"))
    dead_letter(namespace, "q")
    namespace.send("q", message("c"))
    namespace.queue("q").abandon(namespace.queue("q").acquire(1).tags)
    settle(namespace)
    assert engine.runtime("q").dead_letter_message_count == 0
    found = take(namespace, "graveyard", read)
    assert names(found) == ["a", "b", "c"]
    assert [one.user["DeadLetterReason"] for one in found] == ["bad", "bad", "MaxDeliveryCountExceeded"]
    assert {one.annotations["x-opt-deadletter-source"] for one in found} == {"q"}
    assert [one.annotations["x-opt-enqueue-sequence-number"] for one in found] == [1, 2, 3]
    assert [one.header.delivery_count for one in found] == [0, 0, 0]


def test_a_forwarded_dead_letter_shows_when_it_was_first_enqueued(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("third")
    engine.create_queue("second", QueueDescription(forward_dead_lettered_messages_to="third"))
    engine.create_queue("first", QueueDescription(forward_dead_lettered_messages_to="second"))
    sent_ms = namespace.clock.wall_ms()
    namespace.send("first", message("a"))
    namespace.clock.advance(60_000)
    dead_letter(namespace, "first")
    namespace.clock.advance(60_000)
    dead_letter(namespace, "second")
    (found,) = take(namespace, "third", read)
    assert found.annotations["x-opt-first-enqueued-time"] == sent_ms
    assert found.annotations["x-opt-enqueued-time"] == sent_ms + 120_000


@pytest.mark.parametrize("forged", [ULong((1 << 64) - 1), Timestamp(1), Long(-1), True, "yesterday"])
def test_a_sender_cannot_say_when_a_dead_letter_was_first_enqueued(
    namespace: Any, message: Any, read: Any, forged: Any
) -> None:
    engine = namespace.engine
    engine.create_queue("graveyard")
    engine.create_queue("q", QueueDescription(max_delivery_count=1, forward_dead_lettered_messages_to="graveyard"))
    sent_ms = namespace.clock.wall_ms()
    namespace.send("q", message("a", annotations={"x-opt-first-enqueued-time": forged}), message("b"))
    assert namespace.queue("q").acquire(2) is not None
    namespace.advance(61_000)  # the locks end, by the clockwork
    found = take(namespace, "graveyard", read)
    assert names(found) == ["a", "b"]
    assert [one.annotations["x-opt-first-enqueued-time"] for one in found] == [sent_ms, sent_ms]


def test_a_stored_dead_letter_with_a_first_time_of_another_type_continues(
    namespace: Any, message: Any, read: Any, monkeypatch: Any
) -> None:
    engine = namespace.engine
    engine.create_queue("graveyard")
    engine.create_queue("q", QueueDescription(forward_dead_lettered_messages_to="graveyard"))
    monkeypatch.setattr("isthmus.entities.record.parse._RESERVED", frozenset())  # as an earlier release stored it
    sent_ms = namespace.clock.wall_ms()
    namespace.send("q", message("a", annotations={"x-opt-first-enqueued-time": ULong((1 << 64) - 1)}))
    dead_letter(namespace, "q")
    (found,) = take(namespace, "graveyard", read)
    assert found.annotations["x-opt-first-enqueued-time"] == sent_ms


def test_dead_letters_that_waited_continue_when_it_is_set(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("graveyard")
    engine.create_queue("q")
    namespace.send("q", message("a"))
    dead_letter(namespace, "q")
    assert engine.runtime("q").dead_letter_message_count == 1
    engine.update_queue("q", QueueDescription(forward_dead_lettered_messages_to="graveyard"))
    settle(namespace)
    assert engine.runtime("q").dead_letter_message_count == 0
    (found,) = take(namespace, "graveyard", read)
    assert found.user["DeadLetterReason"] == "bad"


@pytest.mark.parametrize("fault", ["disabled", "deleted", "full"])
def test_dead_letters_wait_for_their_target(namespace: Any, message: Any, read: Any, fault: str) -> None:
    engine = namespace.engine
    engine.create_queue("graveyard", QueueDescription(max_size_in_megabytes=1))
    engine.create_queue("q", QueueDescription(forward_dead_lettered_messages_to="graveyard"))
    if fault == "disabled":
        engine.update_queue("graveyard", QueueDescription(status=EntityStatus.DISABLED))
    elif fault == "deleted":
        engine.delete_queue("graveyard")
    else:
        namespace.send("graveyard", message("x" * 1_000_000, message_id="x"))
    namespace.send("q", *(message("a" * 60_000, message_id=name) for name in "ab"))
    dead_letter(namespace, "q")
    namespace.advance(20_000)
    assert engine.runtime("q").dead_letter_message_count == 2
    assert engine.runtime("q").transfer_dead_letter_message_count == 0
    if fault == "disabled":
        engine.update_queue("graveyard", QueueDescription())
    elif fault == "deleted":
        engine.create_queue("graveyard")
    else:
        take(namespace, "graveyard", read)
    namespace.advance(20_000)
    settle(namespace)
    assert len(take(namespace, "graveyard", read)) == 2


@pytest.mark.parametrize("fault", ["disabled", "deleted", "full"])
def test_dead_letters_that_are_put_back_wait_for_their_target(
    namespace: Any, message: Any, read: Any, fault: str
) -> None:
    """And are no fault that fails what others have staged: as a fail-over brings them."""
    engine = namespace.engine
    engine.create_queue("graveyard", QueueDescription(max_size_in_megabytes=1))
    engine.create_queue("q", QueueDescription(forward_dead_lettered_messages_to="graveyard"))
    if fault == "disabled":
        engine.update_queue("graveyard", QueueDescription(status=EntityStatus.DISABLED))
    elif fault == "deleted":
        engine.delete_queue("graveyard")
    else:
        namespace.send("graveyard", message("x" * 1_000_000, message_id="x"))
    namespace.commit()
    letters = engine.sender("q/$DeadLetterQueue", restores=True)
    for name in "ab":
        letters.accept([Copy(message("a" * 60_000, message_id=name))])
    namespace.commit()
    settle(namespace)
    assert engine.runtime("q").dead_letter_message_count == 2
    if fault == "disabled":
        engine.update_queue("graveyard", QueueDescription())
    elif fault == "deleted":
        engine.create_queue("graveyard")
    else:
        take(namespace, "graveyard", read)
    namespace.advance(20_000)
    settle(namespace)
    assert names(take(namespace, "graveyard", read)) == ["a", "b"]
    assert engine.runtime("q").dead_letter_message_count == 0


def test_a_letter_dead_of_too_many_hops_stays_and_can_be_read_once_forwarding_ends(
    namespace: Any, message: Any, read: Any
) -> None:
    chain(namespace, 6)
    engine = namespace.engine
    engine.create_queue("graveyard")
    engine.update_queue("q5", QueueDescription(forward_to="q6", forward_dead_lettered_messages_to="graveyard"))
    namespace.send("q1", message("far"))
    namespace.advance(20_000)
    settle(namespace)
    assert take(namespace, "graveyard", read) == []
    assert engine.runtime("q5").dead_letter_message_count == 1
    engine.update_queue("q5", QueueDescription(forward_to="q6"))
    assert names(take(namespace, "q5/$DeadLetterQueue", read)) == ["far"]


def test_a_disk_that_refuses_is_not_asked_again_at_once(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("target")
    engine.create_queue("q")
    namespace.send("q", message("a"))
    engine.update_queue("q", QueueDescription(forward_to="target"))
    namespace.journal.fail_writes = OSError("no room")
    with pytest.raises(StoreError):
        engine.begin_commit()
    assert not engine.has_staged
    namespace.journal.fail_writes = None
    engine.update_queue("q", QueueDescription(forward_to="target"))
    settle(namespace)
    assert names(take(namespace, "target", read)) == ["a"]


def test_a_target_that_requires_sessions_takes_only_messages_of_one(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("target", QueueDescription(requires_session=True))
    engine.create_queue("q", QueueDescription(forward_to="target"))
    namespace.send("q", message("a", group_id="s"), message("b"), message("c", group_id="s"))
    hold = namespace.queue("target").sessions.open_session("s")
    assert names([read(payload) for payload in hold.messages.acquire(10).payloads]) == ["a", "c"]
    (dead,) = take(namespace, "q/$DeadLetterQueue", read)
    assert (dead.properties["message_id"], dead.user["DeadLetterReason"]) == ("b", "Session ID is null")


def test_dead_letters_without_a_session_delay_none_behind_them(namespace: Any, message: Any, read: Any) -> None:
    """More of them than are looked at together; they continue where forwarding leads elsewhere."""
    engine = namespace.engine
    engine.create_queue("plain")
    engine.create_queue("target", QueueDescription(requires_session=True))
    engine.create_queue("q", QueueDescription(forward_dead_lettered_messages_to="target"))
    count = 1100
    namespace.send("q", *(message(str(number)) for number in range(count)), message("last", group_id="s"))
    while (acquired := namespace.queue("q").acquire(200)) is not None:
        namespace.queue("q").dead_letter(acquired.tags)
    settle(namespace)
    hold = namespace.queue("target").sessions.open_session("s")
    assert names([read(payload) for payload in hold.messages.acquire(10).payloads]) == ["last"]
    assert engine.runtime("q").dead_letter_message_count == count
    engine.update_queue("q", QueueDescription(forward_dead_lettered_messages_to="plain"))
    settle(namespace)
    assert len(namespace.queue("plain").peek(0, 2000)) == count


def test_a_broken_partition_key_is_none_where_a_message_continues(namespace: Any) -> None:
    """Annotations are looked through when a message comes, their values are not."""
    parts = split(b"\0Sr\xc1\x19\x02\xa3\x13x-opt-partition-key\xa1\x01\xff\0Su\xa0\x01x", HeadCache(0))
    assert keys_of_parts(parts) == Keys(None, None)


def test_what_forwards_to_itself_is_dead_lettered_after_its_hops(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("Self", QueueDescription(forward_to="self", forward_dead_lettered_messages_to=None))
    assert engine.get_queue("self").forward_to == "Self"
    namespace.send("self", message("a"), message("b"))
    settle(namespace)
    dead = [read(one) for one in namespace.queue("self/$DeadLetterQueue").peek(0, 10)]
    assert [(one.properties["message_id"], one.user["DeadLetterReason"]) for one in dead] == [
        ("a", "MaxTransferHopCountExceeded"),
        ("b", "MaxTransferHopCountExceeded"),
    ]
    assert namespace.queue("self").active_count == 0


@pytest.mark.parametrize("units", [3, 100_000])
def test_a_subscription_that_forwards_to_its_own_topic(
    namespace: Any, message: Any, read: Any, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the four hops gives the other subscription a copy more, and none is lost where copies wait."""
    monkeypatch.setattr("isthmus.entities.topic.fan_out.SENT_UNITS", units)
    monkeypatch.setattr("isthmus.entities.topic.fan_out.SLICE_UNITS", units)
    engine = namespace.engine
    engine.create_topic("t")
    engine.create_subscription("t", "plain")
    engine.create_subscription("t", "own", SubscriptionDescription(forward_to="T"))
    settle(namespace)
    namespace.send("t", *(message(f"m{n}") for n in range(7)))
    settle(namespace)
    copies = [read(one).properties["message_id"] for one in namespace.queue("t/Subscriptions/plain").peek(0, 100)]
    assert sorted(copies) == sorted(f"m{n}" for n in range(7) for _ in range(5))
    assert namespace.queue("t/Subscriptions/own/$DeadLetterQueue").active_count == 7
    assert namespace.sender("t").active_count == 0


def test_what_comes_to_a_session_queue_that_forwards_is_dead_lettered(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("target")
    engine.create_queue("q", QueueDescription(requires_session=True, forward_to="target"))
    namespace.send("q", message("a", group_id="s"))
    settle(namespace)
    [dead] = [read(one) for one in namespace.queue("q/$DeadLetterQueue").peek(0, 10)]
    assert dead.user["DeadLetterReason"] == "ForwardingNotSupported"
    assert namespace.queue("target").active_count == 0


def test_a_fault_while_messages_are_moved_doubles_none_and_delays_no_other_entity(
    namespace: Any, message: Any, read: Any, monkeypatch: Any
) -> None:
    """Relay I1, whatever is raised by whom: what was staged before it goes with it."""
    engine = namespace.engine
    for name in ("a", "b"):
        engine.create_queue(f"to-{name}")
        engine.create_queue(name, QueueDescription(lock_duration_ms=5_000))
        namespace.send(name, message(f"{name}0"))
        assert namespace.queue(name).acquire(1) is not None  # what follows has to wait behind it
        engine.update_queue(name, QueueDescription(lock_duration_ms=5_000, forward_to=f"to-{name}"))
        namespace.commit()
    moves = engine.sender("to-a").accept_moved

    def half(messages: Any, origins: Any, now_ms: int, hops: int) -> None:
        moves(messages[:1], origins[:1], now_ms, hops)
        raise ZeroDivisionError

    monkeypatch.setattr(engine.sender("to-a"), "accept_moved", half)
    for name in ("a", "b"):
        namespace.sender(name).accept([message(f"{name}1"), message(f"{name}2")])
    try:
        settle(namespace)
    except* ZeroDivisionError:
        pass
    for _ in range(3):
        namespace.advance(10_000)
    assert names(take(namespace, "to-b", read)) == ["b0", "b1", "b2"]
    assert engine.runtime("to-a").active_message_count == 0
    monkeypatch.undo()
    for _ in range(2):
        namespace.advance(10_000)
    assert names(take(namespace, "to-a", read)) == ["a0", "a1", "a2"]


def test_dead_letters_too_large_for_their_target_delay_none_behind_them(
    namespace: Any, message: Any, read: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("isthmus.entities.queue.relay._GROUP", 2)  # as with large ones: few fit into a group
    engine = namespace.engine
    engine.create_queue("small", QueueDescription(max_message_size_in_kilobytes=1))
    engine.create_queue("q", QueueDescription())
    large = [message("L" * 2000, message_id=name) for name in ("one", "two", "three")]
    namespace.send("q", *large, message("fits"))
    while namespace.queue("q").has_available:
        dead_letter(namespace, "q")
    engine.update_queue("q", QueueDescription(forward_dead_lettered_messages_to="small"))
    settle(namespace)
    for _ in range(3):
        namespace.advance(10_000)
    assert names(take(namespace, "small", read)) == ["fits"]
    assert engine.runtime("q").dead_letter_message_count == 3
    engine.update_queue("small", QueueDescription(max_message_size_in_kilobytes=8))
    settle(namespace)
    for _ in range(3):
        namespace.advance(10_000)
    assert names(take(namespace, "small", read)) == ["one", "two", "three"]


def test_dead_letters_too_large_for_their_target_continue_to_one_that_takes_its_name(
    namespace: Any, message: Any, read: Any
) -> None:
    """The target is deleted, and created again with a larger limit."""
    engine = namespace.engine
    engine.create_queue("to", QueueDescription(max_message_size_in_kilobytes=1))
    engine.create_queue("q", QueueDescription(max_delivery_count=1, forward_dead_lettered_messages_to="to"))
    namespace.send("q", message("L" * 2_000, message_id="one"))
    dead_letter(namespace, "q")
    settle(namespace)
    engine.delete_queue("to")
    namespace.commit()
    engine.create_queue("to")
    namespace.commit()
    namespace.advance(20_000)
    settle(namespace)
    assert len(take(namespace, "to", read)) == 1


def test_a_read_that_is_refused_while_a_topic_copies_leaves_no_copy_of_a_refused_message(
    namespace: Any, message: Any, monkeypatch: Any
) -> None:
    """Intake I1: one subscription has its copy staged when the target of the next one cannot compare ids."""
    engine = namespace.engine
    engine.create_queue("once", QueueDescription(requires_duplicate_detection=True))
    engine.create_topic("t")
    engine.create_subscription("t", "a")
    engine.create_subscription("t", "b", SubscriptionDescription(forward_to="once"))
    namespace.commit()

    def refuses(keys: Any) -> Any:
        raise StoreError("a block cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(namespace.journal, "get_many", refuses)
        with pytest.raises(StoreError):
            engine.sender("t").accept([message("refused")])
    namespace.commit()
    namespace.send("t", message("refused"))
    assert engine.runtime("t/subscriptions/a").active_message_count == 1
    assert engine.runtime("once").active_message_count == 1


def test_a_read_that_is_refused_while_messages_are_moved_leaves_none_unavailable(
    namespace: Any, message: Any, read: Any, monkeypatch: Any
) -> None:
    engine = namespace.engine
    engine.create_queue("once", QueueDescription(requires_duplicate_detection=True))
    engine.create_queue("q", QueueDescription(status=EntityStatus.RECEIVE_DISABLED, forward_to="once"))
    namespace.send("q", message("a"), message("b"))

    def refuses(keys: Any) -> Any:
        raise StoreError("a block cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(namespace.journal, "get_many", refuses)
        with pytest.raises(StoreError):
            engine.update_queue("q", QueueDescription(forward_to="once"))
    namespace.commit()
    engine.update_queue("q", QueueDescription(forward_to="once"))
    settle(namespace)
    assert names(take(namespace, "once", read)) == ["a", "b"]


@pytest.mark.parametrize("stays", [False, True], ids=["at once", "from the store"])
@pytest.mark.parametrize("action", ["SET sys.MessageId = one", "REMOVE sys.MessageId"])
def test_ids_that_an_action_sets_are_those_that_the_target_compares(
    namespace: Any, message: Any, read: Any, action: str, stays: bool
) -> None:
    """Messages that get an id of their own, or none, are no duplicates of each other."""
    engine = namespace.engine
    engine.create_queue("q", QueueDescription(requires_duplicate_detection=True))
    engine.create_topic("t")
    settings = SubscriptionDescription(forward_to=None if stays else "q")
    engine.create_subscription(
        "t", "s", settings, default_rule=RuleDescription("r", SqlFilter("1=1"), SqlAction(action))
    )
    namespace.commit()
    namespace.send("t", *(message("same", user={"one": f"m{number}"}) for number in range(3)))
    namespace.send("t", message("same", user={"one": "m3"}))
    if stays:
        engine.update_subscription("t", "s", SubscriptionDescription(forward_to="q"))
        namespace.commit()
    settle(namespace)
    assert [one.user["one"] for one in take(namespace, "q", read)] == ["m0", "m1", "m2", "m3"]
    namespace.send("t", message("other", user={"one": "m3"}))
    settle(namespace)
    assert len(take(namespace, "q", read)) == (0 if "SET" in action else 1)


def test_ids_that_an_action_makes_equal_are_duplicates(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("q", QueueDescription(requires_duplicate_detection=True))
    engine.create_topic("t")
    rule = RuleDescription("r", SqlFilter("1=1"), SqlAction("SET sys.MessageId = 'one'"))
    engine.create_subscription("t", "s", SubscriptionDescription(forward_to="q"), default_rule=rule)
    namespace.commit()
    namespace.send("t", message("a"), message("b"))
    namespace.send("t", message("c"))
    assert names(take(namespace, "q", read)) == ["one"]


def test_messages_without_an_id_are_no_duplicates_where_they_continue(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("q", QueueDescription(requires_duplicate_detection=True))
    engine.create_queue("source", QueueDescription(forward_to="q"))
    namespace.commit()
    namespace.send("source", message(user={"n": 1}), message(user={"n": 2}))
    namespace.send("source", message(user={"n": 3}))
    assert [one.user["n"] for one in take(namespace, "q", read)] == [1, 2, 3]
