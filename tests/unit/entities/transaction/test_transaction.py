"""Transactions and sending via an entity, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.entities import (
    EntityStatus,
    Limits,
    QueueDescription,
    TransactionRolledBackError,
    TransactionTimeoutError,
)
from isthmus.entities.transaction.transaction import Ending
from isthmus.errors import EntityNotFoundError, NotAllowedError, QuotaExceededError, StoreError


def count(namespace: Any, path: str) -> int:
    return len(namespace.queue(path).peek(0, 1000))


def test_sending_via_an_entity(namespace: Any, message: Any, read: Any) -> None:
    engine = namespace.engine
    engine.create_queue("between")
    engine.create_queue("to", QueueDescription(max_size_in_megabytes=1))
    engine.via("between", "to").accept([message("a"), message("b")])
    namespace.commit()
    acquired = namespace.queue("to").acquire(10)
    found = [read(payload) for payload in acquired.payloads]
    assert [one.annotations["x-opt-enqueue-sequence-number"] for one in found] == [1, 2]
    assert count(namespace, "between") == 0
    engine.update_queue("to", QueueDescription(status=EntityStatus.DISABLED))
    engine.via("between", "to").accept([message("c")])
    namespace.commit()
    assert engine.runtime("between").transfer_dead_letter_message_count == 1
    engine.update_queue("to", QueueDescription(max_size_in_megabytes=1))
    engine.sender("to").accept([message("x" * 1_000_000, message_id="x")])
    via = engine.via("between", "to")
    with pytest.raises(QuotaExceededError):
        via.accept([message("d" * 50_000, message_id="d")])
    engine.delete_queue("to")
    with pytest.raises(EntityNotFoundError):
        via.accept([message("e")])
    with pytest.raises(NotAllowedError):
        engine.via("between/$DeadLetterQueue", "between")
    namespace.commit()
    assert engine.runtime("between").message_count == 1


def test_a_commit_is_one_batch_of_the_store_i2(namespace: Any, message: Any) -> None:
    """Reads that ask for what is staged come before: dead-lettering reads the message back."""
    namespace.engine.create_queue("q")
    namespace.send("q", message("a"), message("b"), message("c"))
    queue = namespace.queue("q")
    tags = queue.acquire(3).tags
    transaction = namespace.engine.transaction()
    transaction.send(queue, [message("new")])
    for tag, settle in zip(tags, (queue.dead_letter, queue.defer, queue.abandon), strict=True):
        transaction.settle(queue, [tag], settle, lambda done: None)
    assert not namespace.engine.has_staged
    transaction.commit()
    assert namespace.journal.unsynced_count == 0
    namespace.engine.begin_commit()
    assert namespace.journal.unsynced_count == 1
    namespace.crash()
    assert (count(namespace, "q"), count(namespace, "q/$DeadLetterQueue")) == (3, 0)


def test_a_store_that_cannot_be_read_undoes_the_commit_i2(namespace: Any, message: Any, monkeypatch: Any) -> None:
    namespace.engine.create_queue("q")
    namespace.send("q", message("a"))
    queue = namespace.queue("q")
    transaction = namespace.engine.transaction()
    transaction.send(queue, [message("new")])

    def broken(tokens: Any) -> None:
        raise StoreError("cannot be read")

    transaction.settle(queue, queue.acquire(1).tags, broken, lambda done: None)
    with pytest.raises(StoreError):
        transaction.commit()
    assert not namespace.engine.has_staged
    assert count(namespace, "q") == 1


def test_an_ended_transaction_takes_nothing_i3(namespace: Any, message: Any) -> None:
    namespace.engine.create_queue("q")
    transaction = namespace.engine.transaction()
    transaction.commit()
    with pytest.raises(TransactionRolledBackError):
        transaction.send(namespace.queue("q"), [message("a")])
    with pytest.raises(TransactionRolledBackError):
        transaction.commit()


def test_the_messages_of_a_transaction_are_bounded_together(namespace: Any, message: Any) -> None:
    namespace.limits = Limits(max_transaction_bytes=1000)
    namespace.start()
    namespace.engine.create_queue("q")
    transaction = namespace.engine.transaction()
    transaction.send(namespace.queue("q"), [message("a" * 2000, message_id="a")])
    with pytest.raises(QuotaExceededError, match="1000 bytes"):
        transaction.send(namespace.queue("q"), [message("b")])
    transaction.commit()
    namespace.commit()
    assert count(namespace, "q") == 1


def test_reserved_numbers_are_not_reused_after_a_kill(namespace: Any, message: Any) -> None:
    namespace.engine.create_queue("q")
    namespace.commit()
    reported: list[str] = []
    transaction = namespace.engine.transaction()
    due_ms = namespace.clock.wall_ms() + 60_000
    messages = [(message("a"), due_ms), (message("b"), due_ms)]
    numbers = transaction.schedule(namespace.queue("q"), messages, lambda: reported.append("reported"), lambda _: None)
    namespace.engine.begin_commit()
    assert reported == []
    namespace.crash()
    assert namespace.queue("q").last == 0
    transaction = namespace.engine.transaction()
    numbers = transaction.schedule(namespace.queue("q"), messages, lambda: reported.append("reported"), lambda _: None)
    namespace.commit()
    assert reported == ["reported"]
    namespace.crash()
    namespace.send("q", message("c"))
    assert namespace.queue("q").acquire(1).sequences[0] > max(numbers)
    assert count(namespace, "q") == 1


def test_scheduling_and_cancelling_are_in_the_batch_of_the_commit_i2(namespace: Any, message: Any) -> None:
    namespace.engine.create_queue("q")
    queue, due_ms = namespace.queue("q"), namespace.clock.wall_ms() + 60_000
    (old,) = queue.schedule([(message("old"), due_ms)])
    namespace.commit()
    transaction = namespace.engine.transaction()
    (new,) = transaction.schedule(queue, [(message("new"), due_ms)], lambda: None, lambda _: None)
    transaction.cancel_scheduled(queue, [old])
    namespace.commit()
    transaction.commit()
    assert namespace.journal.unsynced_count == 0
    namespace.engine.begin_commit()
    assert namespace.journal.unsynced_count == 1
    assert queue.missing_scheduled([old, new]) == [old]
    namespace.crash()
    assert namespace.queue("q").missing_scheduled([old, new]) == [new]


def test_a_commit_finds_its_entity_deleted(namespace: Any, message: Any) -> None:
    for name in ("p", "q"):
        namespace.engine.create_queue(name)
    queue, due_ms = namespace.queue("q"), namespace.clock.wall_ms() + 60_000
    (old,) = queue.schedule([(message("old"), due_ms)])
    namespace.commit()
    cancelling, scheduling = namespace.engine.transaction(), namespace.engine.transaction()
    cancelling.cancel_scheduled(queue, [old])
    scheduling.schedule(queue, [(message("new"), due_ms)], lambda: None, lambda _: None)
    namespace.engine.delete_queue("q")
    for transaction in (cancelling, scheduling):
        with pytest.raises(TransactionRolledBackError, match="'q'"):
            transaction.commit()


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_commit_finds_the_entity_deleted_that_it_sends_via(namespace: Any, message: Any, is_made_again: bool) -> None:
    """What its destination does not accept could be stored nowhere, and all that is staged would fail with it."""
    for name in ("between", "to", "other"):
        namespace.engine.create_queue(name)
    namespace.send("other", message("held"))
    tags = namespace.queue("other").acquire(1).tags
    transaction = namespace.engine.transaction()
    transaction.send(namespace.engine.via("between", "to"), [message("a")])
    namespace.engine.update_queue("to", QueueDescription(status=EntityStatus.DISABLED))
    namespace.engine.delete_queue("between")
    if is_made_again:
        namespace.engine.create_queue("between")
    with pytest.raises(TransactionRolledBackError, match="'between'"):
        transaction.commit()
    namespace.commit()
    assert namespace.queue("other").holds(tags) == [True]
    if is_made_again:
        assert namespace.engine.runtime("between").message_count == 0


def test_a_transaction_refuses_what_comes_after_its_time(namespace: Any, message: Any) -> None:
    """Its own limit, whatever else limits the time: two minutes from the first operation on."""
    namespace.engine.create_queue("q")
    namespace.send("q", message("old"))
    queue = namespace.queue("q")
    idle, used, late = (namespace.engine.transaction() for _ in range(3))
    namespace.clock.advance(60_000)
    used.send(queue, [message("a")])
    late.send(queue, [message("b")])
    namespace.clock.advance(119_999)
    with pytest.raises(TransactionTimeoutError):
        idle.send(queue, [message("c")])
    used.send(queue, [message("d")])
    used.commit()
    namespace.clock.advance(1)
    due_ms = namespace.clock.wall_ms() + 1
    tags = queue.acquire(1).tags
    for operation in (
        lambda: late.send(queue, [message("e")]),
        lambda: late.schedule(queue, [(message("f"), due_ms)], lambda: None, lambda _: None),
        lambda: late.cancel_scheduled(queue, [1]),
        lambda: late.settle(queue, tags, queue.complete, lambda _: None),
    ):
        with pytest.raises(TransactionTimeoutError):
            operation()
    with pytest.raises(TransactionRolledBackError, match="120"):
        late.commit()
    namespace.commit()
    assert count(namespace, "q") == 3


def test_scheduled_messages_count_to_the_bytes_of_a_transaction(namespace: Any, message: Any) -> None:
    namespace.limits = Limits(max_transaction_bytes=1000)
    namespace.start()
    namespace.engine.create_queue("q")
    queue, due_ms = namespace.queue("q"), namespace.clock.wall_ms() + 60_000
    transaction = namespace.engine.transaction()
    transaction.schedule(queue, [(message("a" * 600, message_id="a"), due_ms)], lambda: None, lambda _: None)
    with pytest.raises(QuotaExceededError, match="1000 bytes"):
        transaction.schedule(queue, [(message("b" * 600, message_id="b"), due_ms)], lambda: None, lambda _: None)
    with pytest.raises(QuotaExceededError, match="1000 bytes"):
        transaction.send(queue, [message("b" * 600, message_id="b")])


def test_what_is_sent_via_a_topic_waits_where_it_is_looked_for(namespace: Any, message: Any, read: Any) -> None:
    """A topic has a transfer dead-letter queue, too; without it the whole namespace ended, and stayed so."""
    engine, lost = namespace.engine, "between/$Transfer/$DeadLetterQueue"
    engine.create_topic("between")
    engine.create_queue("to", QueueDescription(status=EntityStatus.DISABLED))
    namespace.commit()
    reported: list[str] = []
    engine.via("between", "to").accept(
        [message("a")], lambda: reported.append("ok"), lambda error: reported.append(str(error))
    )
    namespace.commit()
    assert reported == ["ok"]
    for _ in range(2):
        runtime = namespace.engine.runtime("between")
        assert (runtime.transfer_dead_letter_message_count, runtime.message_count) == (1, 1)
        namespace.crash()
    namespace.journal.fail_writes = OSError("no space")
    with pytest.raises(StoreError):
        namespace.send("between", message("b"))
    namespace.journal.fail_writes = None
    assert namespace.engine.runtime("between").transfer_dead_letter_message_count == 1
    (dead,) = (read(payload) for payload in namespace.queue(lost).acquire(9).payloads)
    assert dead.body.endswith(b"a")
    assert dead.user["DeadLetterReason"] == "MessagingEntityDisabled"
    namespace.engine.delete_topic("between")
    namespace.engine.create_topic("between")
    namespace.commit()
    assert namespace.engine.runtime("between").message_count == 0
    assert count(namespace, lost) == 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_receiver_that_raises_in_its_callback_keeps_no_other_callback_from_running(
    namespace: Any, message: Any, fails: bool
) -> None:
    namespace.engine.create_queue("q")
    namespace.send("q", message("a"), message("b"))
    queue = namespace.queue("q")
    tags = queue.acquire(2).tags
    reported: list[str] = []

    def odd(ending: Ending) -> None:
        reported.append("odd")
        raise ValueError("odd")

    transaction = namespace.engine.transaction()
    transaction.settle(queue, tags[:1], queue.complete, odd)
    transaction.settle(queue, tags[1:], queue.complete, lambda ending: reported.append("even"))
    transaction.commit(lambda: reported.append("durable"), lambda error: reported.append("failed"))
    if fails:
        commit = namespace.engine.begin_commit()
        namespace.engine.fail_commit(commit, StoreError("no space"))
    else:
        namespace.commit()
    assert reported == ["odd", "even", "failed" if fails else "durable"]
