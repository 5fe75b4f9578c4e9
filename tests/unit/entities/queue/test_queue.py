"""Single behaviours of a queue; their combinations are in test_queue_model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from isthmus.amqp import CodecError, section
from isthmus.amqp.types import Timestamp, ULong
from isthmus.entities import EntityStatus, InvalidMessageError, Limits, QueueDescription
from isthmus.entities.queue import window
from isthmus.entities.storage.key import DETECTION, EXPIRY, MESSAGE, numbered_span
from isthmus.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    InvalidArgumentError,
    MessageNotFoundError,
    MessageTooLargeError,
    NotAllowedError,
    QuotaExceededError,
    StoreError,
)

Make = Callable[..., bytes]


@pytest.fixture
def queue(namespace: Any) -> Any:
    namespace.engine.create_queue("q", QueueDescription(lock_duration_ms=30_000, max_delivery_count=3))
    namespace.commit()
    return namespace.queue("q")


def test_nothing_is_visible_or_acknowledged_before_the_sync(namespace: Any, queue: Any, message: Make) -> None:
    """Delivery I1, Settlement I1; Staging I2."""
    done: list[str] = []
    queue.accept([message("a"), message("b")], lambda: done.append("accepted"))
    commit = namespace.engine.begin_commit()
    queue.accept([message("c")], lambda: done.append("later"))
    assert queue.acquire(10) is None
    assert queue.peek(0, 10) == []
    assert done == []
    namespace.journal.sync()
    namespace.engine.end_commit(commit)
    assert done == ["accepted"]
    acquired = queue.acquire(10)
    assert list(acquired.sequences) == [1, 2]
    assert queue.complete(acquired.tags, lambda: done.append("completed")) == [True, True]
    assert queue.peek(0, 10) == []
    assert done == ["accepted"]
    namespace.commit()
    assert done == ["accepted", "later", "completed"]
    assert list(queue.acquire(10).sequences) == [3]


def test_listeners_are_notified_of_what_is_available(namespace: Any, queue: Any, message: Make) -> None:
    """I2."""
    calls: list[int] = []

    def listen() -> None:
        calls.append(1)

    queue.add_listener(listen)
    namespace.send("q", message("a"))
    assert len(calls) == 1
    assert queue.has_available
    tags = queue.acquire(1).tags
    assert not queue.has_available
    queue.release(tags)
    assert len(calls) == 2
    tags = queue.acquire(1).tags
    queue.abandon(tags)
    assert len(calls) == 2
    namespace.commit()
    assert len(calls) == 3
    queue.remove_listener(listen)
    queue.remove_listener(listen)
    queue.release(queue.acquire(1).tags)
    assert len(calls) == 3


def test_abandoned_messages_come_again_first_with_their_count(
    namespace: Any, queue: Any, message: Make, read: Any
) -> None:
    """Settlement I3, Delivery I1."""
    namespace.send("q", *(message(f"m{number}") for number in range(5)))
    tags = queue.acquire(3).tags
    assert queue.abandon([tags[1]], {"why": "later"}) == [True]
    namespace.commit()
    acquired = queue.acquire(10)
    assert list(acquired.sequences) == [2, 4, 5]
    seen = read(acquired.payloads[0])
    assert (seen.header.delivery_count, seen.user) == (1, {"why": "later"})
    queue.complete(tags)
    queue.release(acquired.tags)
    assert read(queue.acquire(1).payloads[0]).header.delivery_count == 1  # release does not count


def test_too_many_deliveries_dead_letter(namespace: Any, queue: Any, message: Make, read: Any) -> None:
    namespace.send("q", message("a", user={"x": 1}))
    for _ in range(2):
        queue.abandon(queue.acquire(1).tags)
        namespace.commit()
    queue.acquire(1)
    namespace.advance(30_000)  # the third delivery ends by its lock
    assert queue.acquire(1) is None
    runtime = namespace.engine.runtime("q")
    assert (runtime.active_message_count, runtime.dead_letter_message_count, runtime.message_count) == (0, 1, 1)
    dead = namespace.queue("q/$DeadLetterQueue").acquire(1)
    seen = read(dead.payloads[0])
    assert seen.user["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert seen.user["x"] == 1
    assert seen.header.delivery_count == 3
    assert seen.annotations["x-opt-deadletter-source"] == "q"
    assert seen.annotations["x-opt-enqueue-sequence-number"] == 1
    assert seen.annotations["x-opt-enqueued-time"] == namespace.clock.wall_ms() - 30_000


def test_dead_lettering_by_the_receiver(namespace: Any, queue: Any, message: Make, read: Any) -> None:
    """Dead letter I1."""
    namespace.send("q", message("a"), message("b"))
    tags = queue.acquire(2).tags
    assert queue.dead_letter([tags[0], b"?" * 16], "bad", "very bad", {"extra": 5}) == [True, False]
    namespace.commit()
    dead = namespace.queue("q/$deadletterqueue")
    acquired = dead.acquire(5)
    assert read(acquired.payloads[0]).user == {
        "DeadLetterReason": "bad",
        "DeadLetterErrorDescription": "very bad",
        "extra": 5,
    }
    with pytest.raises(NotAllowedError):
        dead.dead_letter(acquired.tags)
    with pytest.raises(NotAllowedError):
        dead.accept([message("c")])
    with pytest.raises(NotAllowedError):
        namespace.sender("q/$DeadLetterQueue")
    for _ in range(5):  # a dead-letter queue has no maximum delivery count
        dead.abandon(acquired.tags)
        namespace.commit()
        acquired = dead.acquire(5)
    assert len(acquired.tags) == 1
    dead.complete(acquired.tags)
    namespace.commit()
    assert namespace.engine.runtime("q").dead_letter_message_count == 0


def test_locks_end_and_can_be_renewed(namespace: Any, queue: Any, message: Make) -> None:
    namespace.send("q", message("a"), message("b"))
    acquired = queue.acquire(2)
    assert acquired.locked_until_ms == namespace.clock.wall_ms() + 30_000
    namespace.advance(20_000)
    assert queue.renew([acquired.tags[1], b"x" * 16]) == [namespace.clock.wall_ms() + 30_000, None]
    namespace.advance(10_000)
    assert queue.complete(acquired.tags) == [False, True]
    assert list(queue.acquire(5).sequences) == [1]


def test_defer_and_receive_deferred(namespace: Any, queue: Any, message: Make, read: Any) -> None:
    namespace.send("q", *(message(f"m{number}") for number in range(4)))
    acquired = queue.acquire(3)
    assert queue.defer(acquired.tags[:2], {"later": True}) == [True, True]
    namespace.commit()
    assert list(queue.acquire(5).sequences) == [4]
    assert [read(one).annotations.get("x-opt-message-state", 0) for one in queue.peek(0, 9)] == [1, 1, 0, 0]
    namespace.crash()
    queue = namespace.queue("q")
    assert namespace.engine.runtime("q").deferred_message_count == 2
    with pytest.raises(MessageNotFoundError, match="3"):
        queue.receive_deferred([1, 3])
    taken = queue.receive_deferred([2, 1])
    seen = read(taken.payloads[0])
    assert seen.annotations["x-opt-message-state"] == 1
    assert seen.annotations["x-opt-locked-until"] == taken.locked_until_ms
    assert seen.user == {"later": True}
    with pytest.raises(MessageNotFoundError):
        queue.receive_deferred([1])
    assert queue.complete(taken.tags[:1]) == [True]
    assert queue.abandon(taken.tags[1:]) == [True]
    namespace.commit()
    (again,) = queue.receive_deferred([2], lock=False).payloads
    assert read(again).header.delivery_count == 1
    assert "x-opt-locked-until" not in read(again).annotations
    namespace.commit()
    assert namespace.engine.runtime("q").deferred_message_count == 0


def test_deferred_messages_of_too_many_deliveries_are_dead_lettered(namespace: Any, queue: Any, message: Make) -> None:
    namespace.send("q", message("a"))
    queue.defer(queue.acquire(1).tags)
    namespace.commit()
    for _ in range(3):
        queue.abandon(queue.receive_deferred([1]).tags)
        namespace.commit()
    with pytest.raises(MessageNotFoundError):
        queue.receive_deferred([1])
    assert namespace.engine.runtime("q").dead_letter_message_count == 1


def test_receive_and_delete(namespace: Any, queue: Any, message: Make, read: Any) -> None:
    """Delivery I2."""
    namespace.send("q", message("a"), message("b"))
    done: list[int] = []
    acquired = queue.acquire(1, lock=False, on_durable=lambda: done.append(1))
    assert acquired.locked_until_ms == 0
    assert "x-opt-locked-until" not in read(acquired.payloads[0]).annotations
    assert len(acquired.tags[0]) == 16
    assert not done
    namespace.commit()
    assert done
    namespace.crash()
    assert list(namespace.queue("q").acquire(5).sequences) == [2]


def test_a_locked_message_is_deleted_as_one_that_was_never_locked(
    namespace: Any, queue: Any, message: Make, read: Any
) -> None:
    """Delivery I2."""
    namespace.send("q", message("a"), message("b"))
    first, second = queue.acquire(2).tags
    done: list[int] = []
    deleted = queue.delete_locked(second, lambda: done.append(1))
    assert list(deleted.sequences) == [2]
    assert deleted.locked_until_ms == 0
    assert "x-opt-locked-until" not in read(deleted.payloads[0]).annotations
    assert deleted.tags[0] != second
    assert not done
    assert queue.complete([second]) == [False]
    assert queue.delete_locked(second) is None
    namespace.commit()
    assert done
    assert (queue.delivered_total, queue.settled_total, queue.locked_count) == (2, 1, 1)
    namespace.advance(30_000)
    assert queue.delete_locked(first) is None
    assert list(queue.acquire(2).sequences) == [1]
    namespace.crash()
    assert list(namespace.queue("q").acquire(5).sequences) == [1]


def test_a_lock_stays_where_its_message_cannot_be_read_to_be_deleted(
    namespace: Any, queue: Any, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace.send("q", message("a"))
    [token] = queue.acquire(1).tags

    def refuse(key: bytes) -> bytes:
        raise StoreError("the disk is gone")

    with monkeypatch.context() as refused:
        refused.setattr(namespace.journal, "get", refuse)
        with pytest.raises(StoreError):
            queue.delete_locked(token)
    assert not namespace.engine.has_staged
    assert queue.delete_locked(token) is not None


def test_the_callbacks_of_a_deletion_are_removed_when_the_commit_ends(
    namespace: Any, queue: Any, message: Make
) -> None:
    """They keep the body of a large message, and its file; only the collection of garbage would end a cycle of references."""
    namespace.send("q", message("a"))

    class Callback:
        def __call__(self, *_: Any) -> None:
            pass

    callback = Callback()
    kept = weakref.ref(callback)
    gc.collect()
    gc.disable()
    try:
        queue.acquire(1, lock=False, on_durable=callback, on_failed=callback)
        del callback
        namespace.commit()
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["active", "behind another", "deferred", "in a session"])
@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize("is_kept", [True, False])
def test_what_is_deleted_as_it_goes_goes_also_where_the_store_failed_and_kept_the_deletion(
    namespace: Any, message: Make, monkeypatch: pytest.MonkeyPatch, kind: str, is_kept: bool, is_away: bool
) -> None:
    """Delivery I4: a disk without room is read on as it is; one that has lost what it did not sync has the message again."""
    reopened = type(namespace.journal).reopen
    is_open = not is_away

    def reopen() -> None:
        if not is_open:
            raise StoreError("it cannot be opened")
        if not is_kept:
            reopened(namespace.journal)

    monkeypatch.setattr(namespace.journal, "reopen", reopen)
    namespace.engine.create_queue("r", QueueDescription(requires_session=kind == "in a session"))
    namespace.send("r", message("a", group_id="s"), message("b", group_id="s"))
    queue: Any = namespace.queue("r")
    reported: list[str] = []
    asked: dict[str, Any] = {
        "lock": False,
        "on_durable": lambda: reported.append("durable"),
        "on_failed": lambda error: reported.append("failed"),
    }
    if kind == "in a session":
        queue.sessions.open_session("s").messages.acquire(1, **asked)
    elif kind == "deferred":
        queue.defer(queue.acquire(1).tags)
        namespace.commit()
        queue.receive_deferred([1], **asked)
    else:
        if kind == "behind another":
            queue.acquire(1)
        queue.acquire(1, **asked)
    for _ in range(2):  # it may fail more than once
        commit = namespace.engine.begin_commit()
        with suppress(StoreError):
            namespace.engine.fail_commit(commit, StoreError("no space left on device"))
        if not is_open:
            assert reported == []
            is_open = True
            namespace.engine.probe()
        assert reported == ([] if is_kept else ["failed"])
        namespace.engine.probe()
    namespace.commit()
    assert reported == (["durable"] if is_kept else ["failed"])
    assert namespace.engine.runtime("r").message_count == (1 if is_kept else 2)


def test_what_was_not_set_aside_after_all_is_not_removed(namespace: Any, queue: Any, message: Make) -> None:
    """The store has lost that the message was deferred, together with its deletion."""
    namespace.send("q", message("a"))
    reported: list[str] = []
    queue.defer(queue.acquire(1).tags)
    asked = {"on_durable": lambda: reported.append("durable"), "on_failed": lambda error: reported.append("failed")}
    queue.receive_deferred([1], lock=False, **asked)
    namespace.engine.fail_commit(namespace.engine.begin_commit(), StoreError("no space left on device"))
    namespace.engine.probe()
    namespace.commit()
    assert (reported, list(queue.acquire(5).sequences)) == (["failed"], [1])


def test_scheduled_messages(namespace: Any, queue: Any, message: Make, read: Any) -> None:
    """Schedule I1; Intake I3."""
    now = namespace.clock.wall_ms()
    numbers = queue.schedule([(message("a"), now + 5_000), (message("b"), now + 9_000)])
    namespace.send("q", message("c", annotations={"x-opt-scheduled-enqueue-time": Timestamp(now + 7_000)}))
    namespace.send("q", message("d", annotations={"x-opt-scheduled-enqueue-time": Timestamp(now)}))
    assert numbers == [1, 2]
    assert namespace.engine.runtime("q").scheduled_message_count == 3
    assert [read(one).annotations.get("x-opt-message-state") for one in queue.peek(0, 9)] == [2, 2, 2, None]
    queue.cancel_scheduled([2])
    with pytest.raises(MessageNotFoundError):
        queue.cancel_scheduled([2])
    namespace.commit()
    namespace.crash()
    queue = namespace.queue("q")
    assert list(queue.acquire(9).sequences) == [4]
    namespace.advance(5_000)
    acquired = queue.acquire(9)
    seen = read(acquired.payloads[0])
    assert (seen.properties["message_id"], seen.sequence) == ("a", 5)
    assert seen.annotations["x-opt-enqueued-time"] == now + 5_000
    assert seen.annotations["x-opt-scheduled-enqueue-time"] == now + 5_000
    namespace.advance(20_000)
    assert read(queue.acquire(9).payloads[0]).properties["message_id"] == "c"
    assert namespace.engine.runtime("q").scheduled_message_count == 0


def test_life_begins_when_a_scheduled_message_is_due(namespace: Any, queue: Any, message: Make) -> None:
    queue.schedule([(message("a", ttl_ms=2_000), namespace.clock.wall_ms() + 5_000)])
    namespace.commit()
    namespace.advance(5_000)
    namespace.advance(1_500)
    assert queue.has_available
    namespace.advance(1_500)
    assert not namespace.engine.runtime("q").message_count


def test_expired_messages_are_dropped_or_dead_lettered(namespace: Any, message: Make, read: Any) -> None:
    """Expiry I1, I2."""
    for name, kept in (("drop", False), ("keep", True)):
        namespace.engine.create_queue(
            name,
            QueueDescription(
                default_message_time_to_live_ms=10_000,
                dead_lettering_on_message_expiration=kept,
                lock_duration_ms=5_000,
            ),
        )
        namespace.send(name, message("short", ttl_ms=2_000), message("long"), message("longer", ttl_ms=90_000))
        namespace.clock.advance(2_001)  # before any tick: the look at acquire is exact
        acquired = namespace.queue(name).acquire(1)
        assert list(acquired.sequences) == [2]
        namespace.advance(9_000)  # over while locked or waiting
        assert namespace.queue(name).acquire(9) is None
        runtime = namespace.engine.runtime(name)
        assert (runtime.active_message_count, runtime.dead_letter_message_count) == (0, 3 if kept else 0)
    dead = namespace.queue("keep/$DeadLetterQueue").acquire(9)
    assert {read(one).user["DeadLetterReason"] for one in dead.payloads} == {"TTLExpiredException"}
    namespace.advance(3_600_000)
    assert namespace.engine.runtime("keep").dead_letter_message_count == 3  # dead letters keep


def test_a_locked_message_outlives_its_end(namespace: Any, queue: Any, message: Make) -> None:
    namespace.send("q", message("a", ttl_ms=1_000))
    tags = queue.acquire(1).tags
    namespace.advance(10_000)
    assert queue.complete(tags) == [True]


def test_ends_of_life_take_one_entry_per_second(namespace: Any, message: Make) -> None:
    """Calendar I1."""
    namespace.engine.create_queue("q", QueueDescription(default_message_time_to_live_ms=60_000))
    for number in range(30):
        namespace.send("q", *(message(f"{number}.{place}") for place in range(20)))
        namespace.clock.advance(100)
    first, end = bytes((EXPIRY,)), bytes((EXPIRY + 1,))
    assert len(list(namespace.journal.scan(first, end))) <= 4
    namespace.advance(59_000)
    assert 0 < namespace.engine.runtime("q").active_message_count < 600
    namespace.advance(10_000)
    assert namespace.engine.runtime("q").active_message_count == 0
    assert list(namespace.journal.scan(first, end)) == []


def test_duplicates_are_accepted_and_dropped(namespace: Any, message: Make) -> None:
    namespace.engine.create_queue(
        "q",
        QueueDescription(requires_duplicate_detection=True, duplicate_detection_history_time_window_ms=20_000),
    )
    done: list[int] = []
    namespace.sender("q").accept([message("a"), message("b"), message("a")], lambda: done.append(1))
    namespace.sender("q").accept([message("b")], lambda: done.append(2))
    namespace.commit()
    assert done == [1, 2]
    assert namespace.engine.runtime("q").active_message_count == 2
    namespace.crash()
    namespace.clock.advance(19_999)
    namespace.send("q", message("a"), message("c"))
    assert namespace.engine.runtime("q").active_message_count == 3
    namespace.clock.advance(1)
    namespace.send("q", message("a"))
    assert namespace.engine.runtime("q").active_message_count == 4
    (number,) = namespace.sender("q").schedule([(message("a"), namespace.clock.wall_ms() + 5)])
    namespace.commit()
    with pytest.raises(MessageNotFoundError):
        namespace.sender("q").cancel_scheduled([number])
    for step in range(20):
        namespace.clock.advance(20_000)
        namespace.send("q", message(f"n{step}"))
    assert len(list(namespace.journal.scan(bytes((DETECTION,)), bytes((DETECTION + 1,))))) <= 3


def test_a_refused_duplicate_waits_for_the_same_sync(namespace: Any, message: Make) -> None:
    """Detection I2: what was never stored was never seen."""
    namespace.engine.create_queue("q", QueueDescription(requires_duplicate_detection=True))
    namespace.commit()
    failed: list[Exception] = []
    namespace.sender("q").accept([message("a")], None, failed.append)
    namespace.journal.fail_writes = OSError("disk full")
    with pytest.raises(Exception, match="disk full"):
        namespace.engine.begin_commit()
    namespace.journal.fail_writes = None
    assert len(failed) == 1
    namespace.send("q", message("a"))
    assert namespace.engine.runtime("q").active_message_count == 1


def test_a_message_id_is_made_where_none_is(namespace: Any, queue: Any, message: Make, read: Any) -> None:
    namespace.send("q", message("", subject="s"), message(""))
    first, second = (read(one).properties for one in queue.acquire(2).payloads)
    assert first["subject"] == "s"
    assert len(first["message_id"]) == len(second["message_id"]) == 32
    assert first["message_id"] != second["message_id"]


def test_refusals_stage_nothing(namespace: Any, message: Make) -> None:
    """Intake I1."""
    namespace.limits = Limits(max_message_size_bytes=10_000)
    namespace.start()
    namespace.engine.create_queue("q", QueueDescription(max_size_in_megabytes=1))
    namespace.engine.create_queue("small", QueueDescription(max_message_size_in_kilobytes=1))
    namespace.commit()
    queue = namespace.queue("q")
    with pytest.raises(MessageTooLargeError):
        queue.accept([message("a"), message("b" * 10_001)])
    with pytest.raises(MessageTooLargeError):
        namespace.sender("small").accept([message("", subject="x" * 1_025)])
    with pytest.raises(InvalidMessageError):
        queue.accept([message("a"), b"junk"])
    with pytest.raises(InvalidMessageError, match="129"):
        queue.accept([message("i" * 129)])
    assert not namespace.engine.has_staged
    filler = message("", subject="x" * 9_000)
    for _ in range((1 << 20) // 9_300):
        namespace.send("q", filler)
    with pytest.raises(QuotaExceededError, match="MaxSizeInMegabytes"):
        queue.accept([filler] * 5)
    assert namespace.engine.runtime("q").size_bytes <= 1 << 20
    taken = queue.acquire(50)
    queue.complete(taken.tags)
    namespace.send("q", filler)


def test_a_quota_counts_what_senders_wrote(namespace: Any, message: Make) -> None:
    namespace.engine.create_queue("q", QueueDescription(max_size_in_megabytes=1))
    namespace.commit()
    payload = message("", subject="x" * 1000)
    namespace.send("q", *[payload] * 100)
    written = 100 * (len(payload) + 41)  # each gets a message id: an empty one, then 32 characters
    assert abs(namespace.engine.runtime("q").size_bytes - written) <= 100 * 8
    taken = namespace.queue("q").acquire(100)
    namespace.queue("q").complete(taken.tags[:40])
    namespace.queue("q").defer(taken.tags[40:70])
    namespace.queue("q").dead_letter(taken.tags[70:], None, None)
    namespace.commit()
    assert 60 * len(payload) < namespace.engine.runtime("q").size_bytes < 60 * (len(payload) + 200)
    for path in ("q", "q/$DeadLetterQueue"):
        queue = namespace.queue(path)
        for number in range(1, 101):
            with suppress(MessageNotFoundError):
                queue.complete(queue.receive_deferred([number]).tags)
        while acquired := queue.acquire(100):
            queue.complete(acquired.tags)
        namespace.commit()
    assert namespace.engine.runtime("q").size_bytes == 0


@pytest.mark.parametrize(
    ("user", "text"),
    [
        ({"a": "x" * 32_700}, ""),
        ({"a": "x" * 32_800}, "the application property 'a' has"),
        ({"n" * 400: "x" * 32_700}, "the application property '...' has"),
        ({str(number): "x" * 30_000 for number in range(3)}, "the application properties have"),
    ],
)
def test_properties_over_the_limits_are_refused(namespace: Any, message: Make, user: Any, text: str) -> None:
    namespace.engine.create_queue("q")
    namespace.commit()
    if not text:
        namespace.send("q", message("m", user=user))
        return
    with pytest.raises(InvalidMessageError, match=text):
        namespace.send("q", message("m", user=user))


def test_status_decides_who_may_pass(namespace: Any, queue: Any, message: Make) -> None:
    namespace.send("q", message("a"))
    for status, sends, receives in (
        (EntityStatus.SEND_DISABLED, False, True),
        (EntityStatus.RECEIVE_DISABLED, True, False),
        (EntityStatus.DISABLED, False, False),
        (EntityStatus.ACTIVE, True, True),
    ):
        namespace.engine.update_queue("q", QueueDescription(status=status))
        for allowed, call in ((sends, lambda: queue.accept([message("b")])), (receives, lambda: queue.acquire(1))):
            if allowed:
                call()
            else:
                with pytest.raises(EntityDisabledError, match=str(status)):
                    call()


def test_peek_shows_all_states_in_order(namespace: Any, queue: Any, message: Make, read: Any) -> None:
    now = namespace.clock.wall_ms()
    namespace.send("q", *(message(f"m{number}") for number in range(3)))
    queue.schedule([(message("s"), now + 60_000)])
    namespace.send("q", message("m4"))
    queue.defer(queue.acquire(2).tags[1:])
    namespace.commit()
    assert [read(one).sequence for one in queue.peek(0, 10)] == [1, 2, 3, 4, 5]
    assert [read(one).sequence for one in queue.peek(2, 2)] == [2, 3]
    assert [read(one).sequence for one in queue.peek(-5, 1)] == [1]
    assert queue.peek(6, 10) == []
    assert all("x-opt-locked-until" not in read(one).annotations for one in queue.peek(0, 10))


def test_batches_are_deleted_without_what_is_locked(namespace: Any, queue: Any, message: Make) -> None:
    namespace.send("q", *(message(f"m{number}") for number in range(10)))
    later = namespace.clock.wall_ms() + 1
    namespace.clock.advance(10)
    namespace.send("q", message("new"))
    queue.acquire(3)
    assert queue.delete_batch(5) == 5
    assert queue.delete_batch(100, before_ms=later) == 2
    namespace.commit()
    assert list(queue.acquire(100).sequences) == [11]
    assert queue.active_count == 4


def test_older_messages_behind_newer_ones_are_deleted(namespace: Any, queue: Any, message: Make) -> None:
    """In a dead-letter queue, which has them in the order of their failures, with the times of their acceptance."""
    for text in ("old", "new"):
        namespace.send("q", *(message(f"{text}{number}") for number in range(300)))
        namespace.clock.advance(10)
    locked = queue.acquire(600)
    queue.dead_letter(locked.tags[300:])
    queue.dead_letter(locked.tags[:300])
    namespace.commit()
    dead = namespace.queue("q/$DeadLetterQueue")
    before_ms = namespace.clock.wall_ms() - 10
    assert dead.delete_batch(1, before_ms) == 1
    assert dead.delete_batch(1000, before_ms) == 299
    assert dead.delete_batch(1000, before_ms) == 0
    namespace.commit()
    assert list(dead.acquire(1000).sequences) == list(range(1, 301))


@pytest.mark.parametrize("reads", [0, 1])
def test_a_store_that_cannot_be_read_keeps_no_message_from_receivers_while_a_batch_is_deleted(
    namespace: Any, queue: Any, message: Make, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    namespace.send("q", *(message(f"m{number}") for number in range(600)))
    queue.backlog.put_back([(1, 600)] if queue.acquire(600) else ())
    scan, left = namespace.journal.scan, [reads]

    def scan_once(*span: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise StoreError("unreadable")
        return scan(*span, **options)

    monkeypatch.setattr(namespace.journal, "scan", scan_once)
    with suppress(StoreError):
        assert queue.delete_batch(600, before_ms=1) == 0
    monkeypatch.undo()
    assert len(queue.acquire(600).sequences) == 600


def test_settled_messages_leave_the_store(namespace: Any, queue: Any, message: Make) -> None:
    def rows() -> int:
        return len(list(namespace.journal.scan(*numbered_span(MESSAGE, queue.number))))

    for _ in range(4):
        namespace.send("q", *(message(f"m{number}") for number in range(5_000)))
    first = queue.acquire(1)
    rest = queue.acquire(20_000)
    queue.complete(rest.tags)
    namespace.commit()
    assert rows() == 1  # one is locked in front: the others are deleted behind it
    queue.complete(first.tags)
    namespace.commit()
    assert queue.head == 20_001
    namespace.advance(60_000)
    assert rows() == 0


def test_a_deleted_queue_refuses_everything(namespace: Any, queue: Any, message: Make) -> None:
    notified: list[int] = []
    queue.add_listener(lambda: notified.append(1))
    namespace.send("q", message("a"))
    tags = queue.acquire(1).tags
    notified.clear()
    namespace.engine.delete_queue("q")
    assert notified
    assert queue.is_deleted
    for call in (
        lambda: queue.accept([message("b")]),
        lambda: queue.acquire(1),
        lambda: queue.complete(tags),
        lambda: queue.peek(0, 1),
    ):
        with pytest.raises(EntityNotFoundError):
            call()
    namespace.commit()
    namespace.engine.create_queue("q")
    namespace.commit()
    assert namespace.queue("q").acquire(1) is None
    assert namespace.queue("q") is not queue


def test_a_tail_kept_in_memory_is_bounded(namespace: Any, message: Make) -> None:
    """Window I3: what does not fit is read from the store, in order, each message once."""
    namespace.limits = Limits(live_tail_bytes=20_000)
    namespace.start()
    namespace.engine.create_queue("q")
    namespace.commit()
    queue = namespace.queue("q")
    queue.add_listener(lambda: None)
    seen: list[int] = []
    for number in range(60):
        namespace.send("q", *(message(f"{number}.{place}") for place in range(7)))
        if number % 3 == 0:
            seen += queue.acquire(5 + number % 11).sequences
    while (acquired := queue.acquire(50)) is not None:
        seen += acquired.sequences
    assert seen == list(range(1, 421))
    namespace.send("q", message("again"))
    assert list(queue.acquire(9).sequences) == [421]


def test_passing_over_expired_messages_is_bounded_and_continues(namespace: Any, queue: Any, message: Make) -> None:
    namespace.send("q", *(message(f"{number}", ttl_ms=1_000) for number in range(120)), message("alive"))
    namespace.clock.advance(1_001)
    notified: list[int] = []
    queue.add_listener(lambda: notified.append(1))
    looks = 1
    while (acquired := queue.acquire(1)) is None:
        looks += 1
        notified.clear()
        namespace.commit()
        assert notified
    assert list(acquired.sequences) == [121]
    assert looks == 3


@pytest.mark.parametrize("restart", ["clean", "kill"])
def test_a_message_that_expired_while_it_was_locked_ends_after_a_restart(
    namespace: Any, message: Make, restart: str
) -> None:
    namespace.engine.create_queue("q", QueueDescription(lock_duration_ms=5_000))
    namespace.send("q", message("m", ttl_ms=1_500))
    assert namespace.queue("q").acquire(1)
    namespace.advance(3_000)
    if restart == "clean":
        namespace.engine.close()
        namespace.start()
    else:
        namespace.crash()
    assert namespace.queue("q").active_count == 1
    namespace.advance(7_000)
    assert namespace.queue("q").active_count == 0
    assert namespace.queue("q").peek(0, 10) == []


# Application properties of the right form outside, and not inside: they are not looked at when the message comes.
UNREADABLE = section.encode_properties({"message_id": "m"}) + b"\0St\xc1\x03\x02\xff\xff" + b"\0Su\xa0\x01x"


@pytest.fixture
def strict(namespace: Any) -> Any:
    description = QueueDescription(
        lock_duration_ms=30_000,
        max_delivery_count=1,
        default_message_time_to_live_ms=60_000,
        dead_lettering_on_message_expiration=True,
    )
    namespace.engine.create_queue("strict", description)
    namespace.send("strict", UNREADABLE)
    return namespace.queue("strict")


@pytest.mark.parametrize("cause", ["dead-letter", "abandon", "lock", "life"])
def test_a_message_with_unreadable_properties_is_dead_lettered_as_any_other(
    namespace: Any, strict: Any, message: Make, cause: str
) -> None:
    """Otherwise it would not be delivered any more, and expiry and schedules would stop for all messages."""
    if cause == "life":
        namespace.advance(70_000)
    else:
        tags = strict.acquire(1).tags
        if cause == "dead-letter":
            strict.dead_letter(tags, "reason", "description", {"own": 1})
        elif cause == "abandon":
            strict.abandon(tags, {"own": 1})
        else:
            namespace.advance(31_000)
    namespace.commit()
    assert (strict.active_count, strict.dead_letters.active_count) == (0, 1)
    assert strict.dead_letters.acquire(1).payloads[0].endswith(UNREADABLE)


def test_unreadable_properties_are_kept_where_others_would_be_changed(namespace: Any, message: Make) -> None:
    namespace.engine.create_queue("plain")
    namespace.send("plain", UNREADABLE)
    queue = namespace.queue("plain")
    queue.defer(queue.acquire(1).tags, {"own": 1})
    namespace.commit()
    assert queue.receive_deferred([1]).payloads[0].endswith(UNREADABLE)


@pytest.mark.parametrize("due", [-1, 0, 2**63, 2**64 - 1])
def test_any_time_that_a_client_writes_is_one_to_schedule_for(
    namespace: Any, queue: Any, message: Make, due: int
) -> None:
    """Beyond the range of a timestamp it is the last timestamp; before the epoch it is past."""
    [sequence] = queue.schedule([(message("a"), due)])
    namespace.send("q", message("b", annotations={"x-opt-scheduled-enqueue-time": ULong(max(due, 0))}))
    namespace.advance(1000)
    is_past = due <= 0
    assert (queue.active_count, queue.scheduled_count) == ((2, 0) if is_past else (0, 2))
    assert len(queue.peek(0, 10)) == 2
    if not is_past:
        queue.cancel_scheduled([sequence])
        namespace.commit()
        namespace.crash()
        assert namespace.queue("q").scheduled_count == 1


def test_a_default_life_of_more_than_49_days_holds_for_scheduled_messages_too(namespace: Any, message: Make) -> None:
    """No header can name it."""
    day = 86_400_000
    namespace.engine.create_queue("long", QueueDescription(default_message_time_to_live_ms=60 * day))
    queue = namespace.queue("long")
    queue.schedule([(message("a"), namespace.clock.wall_ms() + 1000)])
    namespace.advance(2000)
    assert queue.active_count == 1
    namespace.advance(59 * day)
    assert queue.active_count == 1
    namespace.advance(day + 2000)
    assert queue.active_count == 0


def test_ids_made_for_many_differ_and_are_as_for_one(namespace: Any, queue: Any, read: Any) -> None:
    body = b"\0Su\xa0\x01x"
    with_properties = section.encode_properties({"subject": "s"}) + body
    namespace.send("q", *[body, with_properties] * 50)
    found = [read(payload) for payload in queue.acquire(100).payloads]
    ids = {each.properties["message_id"] for each in found}
    assert len(ids) == 100
    assert all(len(each) == 32 and set(each) <= set("0123456789abcdef") for each in ids)
    assert [each.properties.get("subject") for each in found] == [None, "s"] * 50
    assert {each.body for each in found} == {body}


def _sequences(read: Any, payloads: list[bytes]) -> list[int]:
    return [read(payload).sequence for payload in payloads]


def test_a_look_reads_so_much_and_no_more(namespace: Any, queue: Any, message: Make, read: Any) -> None:
    """Thousands of messages of a megabyte would fill the memory; a client that wants more asks for what follows."""
    large = section.encode_message(b"x" * 900_000)
    for _ in range(3):
        queue.schedule([(large, namespace.clock.wall_ms() + 3_600_000)] * 5)
        namespace.send("q", *[large] * 10)
    seen: list[int] = []
    while found := _sequences(read, queue.peek(seen[-1] + 1 if seen else 0, 4000)):
        assert len(found) <= 20
        seen += found
    assert seen == list(range(1, 46))


def test_deferred_messages_that_are_too_much_at_once_are_refused(
    namespace: Any, queue: Any, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.entities.queue.deferred._TOGETHER_BYTES", 2500)
    namespace.send("q", *[message(str(number) * 100) for number in range(9)])
    queue.defer(queue.acquire(9).tags)
    namespace.commit()
    with pytest.raises(InvalidArgumentError, match="ask for fewer"):
        queue.receive_deferred(range(1, 10))
    assert queue.locked_count == 0
    assert len(queue.receive_deferred(range(1, 10, 2)).tags) == 5


def test_numbers_of_which_the_first_is_unused_are_not_all_looked_up(namespace: Any, queue: Any) -> None:
    asked: list[int] = []
    real = namespace.journal.get_many
    namespace.journal.get_many = lambda keys: asked.append(len(keys)) or real(keys)
    with pytest.raises(MessageNotFoundError):
        queue.receive_deferred(range(100_000))
    assert sum(asked) < 1000


def test_ends_of_life_one_by_one_before_a_reader_that_lags(
    namespace: Any, queue: Any, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each message that ended, all that waits in memory was looked through."""
    looked: list[int] = []
    real = window.unpack_message
    monkeypatch.setattr(window, "unpack_message", lambda key: looked.append(1) or real(key))
    queue.add_listener(lambda: None)
    for start in range(0, 5000, 500):
        lives = [(number * 7919) % 600 for number in range(start, start + 500)]
        messages = [
            section.encode_message(
                b"x", header=section.Header(ttl_ms=1000 * life + 500), properties={"message_id": "m"}
            )
            for life in lives
        ]
        namespace.send("q", *messages)
    looked.clear()
    namespace.advance(60_000)
    assert len(looked) < 50_000
    left = [number + 1 for number in range(5000) if (number * 7919) % 600 >= 60]
    assert queue.active_count == len(left)
    seen: list[int] = []
    while (acquired := queue.acquire(500)) is not None:
        seen += acquired.sequences
    assert seen == left


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_a_step_of_the_wall_clock_moves_no_lock(namespace: Any, message: Make, step_ms: int) -> None:
    """Delivery I3."""
    namespace.engine.create_queue("steady", QueueDescription(lock_duration_ms=30_000))
    namespace.commit()
    queue = namespace.queue("steady")
    namespace.send("steady", message("m1"), message("m2"))
    taken = queue.acquire(2)
    assert taken is not None
    namespace.advance(20_000)
    [until_ms] = queue.renew(taken.tags[1:])
    assert until_ms == namespace.clock.wall_ms() + 30_000
    namespace.clock.set_wall(namespace.clock.wall_ms() + step_ms)
    namespace.advance(0)
    assert queue.holds(taken.tags) == [True, True]
    namespace.advance(10_000)
    assert queue.holds(taken.tags) == [False, True]
    [until_ms] = queue.renew(taken.tags[1:])
    assert until_ms == namespace.clock.wall_ms() + 30_000  # what clients are shown is by the clock as it is now
    namespace.advance(29_000)
    assert queue.holds(taken.tags[1:]) == [True]
    namespace.advance(1_000)
    assert queue.holds(taken.tags[1:]) == [False]


SETTLEMENTS = {
    "abandon": "settlement.with_delivery_count",
    "defer": "settlement.merged",
    "dead_letter": "dead_letter.take_apart",
}


@pytest.mark.parametrize("how", SETTLEMENTS)
def test_what_a_settlement_cannot_write_changes_nothing(namespace: Any, queue: Any, message: Make, how: str) -> None:
    namespace.send("q", message("a"), message("b"))
    tags = queue.acquire(2).tags
    with pytest.raises(CodecError):
        getattr(queue, how)(tags, properties={"no AMQP type": object()})
    namespace.commit()
    assert queue.holds(tags) == [True, True]


@pytest.mark.parametrize("how", SETTLEMENTS)
def test_a_fault_in_a_settlement_leaves_no_message_unavailable(
    namespace: Any, queue: Any, message: Make, monkeypatch: Any, how: str
) -> None:
    """Settlement I2, whatever is raised: the message is there again, as after a restart."""
    namespace.send("q", message("a"), message("b"))
    tags = queue.acquire(2).tags
    with monkeypatch.context() as patched:
        patched.setattr(f"isthmus.entities.queue.{SETTLEMENTS[how]}", lambda *args: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            getattr(queue, how)(tags)
    namespace.commit()
    assert len(queue.acquire(9).tags) == 2
    assert (queue.active_count, queue.deferred_count, queue.dead_letters.active_count) == (2, 0, 0)


@pytest.mark.parametrize("how", SETTLEMENTS)
def test_a_settlement_whose_messages_the_disk_does_not_give_leaves_none_unavailable(
    namespace: Any, queue: Any, message: Make, monkeypatch: Any, how: str
) -> None:
    """Of several, the first one is changed already when the second one cannot be read."""
    namespace.send("q", message("a"), message("b"))
    tags = [queue.acquire(1).tags[0] for _ in range(2)]
    reads = iter([0])
    get_many = namespace.journal.get_many

    def refuses(keys: Any) -> Any:
        if next(reads, None) is None:
            raise StoreError("a block cannot be read")
        return get_many(keys)

    with monkeypatch.context() as patched:
        patched.setattr(namespace.journal, "get_many", refuses)
        with pytest.raises(StoreError):
            getattr(queue, how)(tags)
    namespace.commit()
    assert len(queue.acquire(9).tags) == 2
    assert (queue.active_count, queue.deferred_count, queue.dead_letters.active_count) == (2, 0, 0)


def test_a_fault_behind_duplicate_detection_leaves_nothing_of_the_message(
    namespace: Any, message: Any, monkeypatch: Any
) -> None:
    """Intake I1: what is sent again after it is no duplicate."""
    namespace.engine.create_queue("q", QueueDescription(requires_duplicate_detection=True))
    namespace.commit()
    queue = namespace.queue("q")
    with monkeypatch.context() as patched:
        patched.setattr(queue, "_take", lambda *args: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            queue.accept([message("a")])
    namespace.commit()
    namespace.send("q", message("a"))
    assert queue.active_count == 1


@pytest.mark.parametrize("count", [1, 2])
def test_returned_messages_that_the_disk_does_not_give_stay_where_they_are(
    namespace: Any, queue: Any, message: Make, monkeypatch: Any, count: int
) -> None:
    namespace.send("q", *(message(str(number)) for number in range(count)))
    queue.release(queue.acquire(count).tags)

    def refuses(*args: Any, **kind: Any) -> Any:
        raise StoreError("a block cannot be read")

    with monkeypatch.context() as patched:
        for name in ("get", "scan"):
            patched.setattr(namespace.journal, name, refuses)
        with pytest.raises(StoreError):
            queue.acquire(count)
    assert len(queue.acquire(9).tags) == count
