"""Partitioned entities over journals in memory: placement, settlement, failures of one store, removal."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest

from isthmus.entities import (
    InvalidMessageError,
    PartitionedQueueBase,
    PartitionedSessionQueue,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    TransactionRolledBackError,
)
from isthmus.entities.fragment.message_key import fragment_of, place
from isthmus.entities.storage.key import DOOMED, ERAS, after, state_key
from isthmus.entities.transaction.transaction import Ending
from isthmus.errors import (
    EntityNotFoundError,
    InvalidArgumentError,
    MessageNotFoundError,
    NotAllowedError,
    QuotaExceededError,
    ServerBusyError,
    StoreError,
)
from isthmus.store import MemoryJournal
from partitioned_fixture import FRAGMENTS, STORES, Stores, body_of, message, sequence_of

QUEUE = QueueDescription(enable_partitioning=True)


@pytest.fixture
def held() -> Stores:
    stores = Stores()
    stores.engine.create_queue("q", QUEUE)
    stores.commit()
    return stores


def queue_of(held: Stores, path: str = "q") -> PartitionedQueueBase:
    found = held.engine.receiver(path)
    assert isinstance(found, PartitionedQueueBase)
    return found


def sessions_of(held: Stores, path: str = "s") -> PartitionedSessionQueue:
    found = held.engine.receiver(path)
    assert isinstance(found, PartitionedSessionQueue)
    return found


def send(held: Stores, path: str, *messages: bytes) -> list[str]:
    """Send each by itself; what became of them, in order of their answers."""
    answers: list[str] = []
    for one in messages:
        held.engine.sender(path).accept(
            [one], partial(answers.append, "ok"), lambda error: answers.append(type(error).__name__)
        )
    held.commit()
    return answers


def drain(held: Stores, path: str = "q") -> list[tuple[str, int]]:
    """Everything that can be received, completed: body and sequence number."""
    queue = queue_of(held, path)
    found: list[tuple[str, int]] = []
    while (acquired := queue.acquire(10)) is not None:
        found += [(body_of(payload), sequence_of(payload)) for payload in acquired.payloads]
        queue.complete(acquired.tags)
        held.commit()
    return found


def key_in(store: int, *, up: bool = True) -> str:
    """A partition key whose fragment lies in a store (or, with `up` false, in any other)."""
    return next(f"k{number}" for number in range(1000) if (place(f"k{number}", FRAGMENTS) % STORES == store) == up)


class TestPlacement:
    def test_a_key_is_placed_alike_in_every_process(self) -> None:
        code = (
            "from isthmus.entities.fragment.message_key import place; print([place(f'key-{n}', 16) for n in range(50)])"
        )
        reported = {
            subprocess.run(
                [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                capture_output=True, text=True, check=True,
            ).stdout
            for seed in ("1", "2")
        }  # fmt: skip
        assert reported == {f"{[place(f'key-{number}', 16) for number in range(50)]}\n"}
        assert [place(key, 16) for key in ("", "a", "orders", "é")] == [0, 4, 12, 4]

    def test_keys_go_over_all_fragments(self) -> None:
        counts = [0] * 16
        for number in range(16_000):
            counts[place(f"customer-{number}", 16)] += 1
        assert min(counts) > 800
        assert max(counts) < 1200

    def test_session_id_then_partition_key_then_message_id_then_in_turn(self, held: Stores) -> None:
        held.engine.create_queue("d", QueueDescription(enable_partitioning=True, requires_duplicate_detection=True))
        held.commit()
        send(held, "d", message("a", session="x", key="x"), message("b", key="y"), message("c", message_id="z"))
        where = {body: fragment_of(sequence) for body, sequence in drain(held, "d")}
        assert where == {"a": place("x", FRAGMENTS), "b": place("y", FRAGMENTS), "c": place("z", FRAGMENTS)}
        send(held, "q", *(message(str(number), message_id="same") for number in range(FRAGMENTS)))
        assert {fragment_of(sequence) for _, sequence in drain(held)} == set(range(FRAGMENTS))

    def test_sequence_numbers_are_unbroken_in_a_fragment(self, held: Stores) -> None:
        send(held, "q", *(message(str(number), key="k") for number in range(5)))
        first = place("k", FRAGMENTS) << 48
        assert [sequence - first for _, sequence in drain(held)] == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("which", ["key", "session"])
    def test_what_is_placed_by_is_not_read_at_any_length(self, held: Stores, which: str) -> None:
        for length, taken in ((1025, False), (100, True)):
            with nullcontext() if taken else pytest.raises(InvalidMessageError, match="1025 characters"):
                held.engine.sender("q").accept([message("a", **{which: "k" * length})])

    def test_a_unit_goes_to_one_fragment_or_is_refused(self, held: Stores) -> None:
        sender = held.engine.sender("q")
        sender.accept([message("a"), message("b"), message("c")])
        with pytest.raises(InvalidMessageError, match="same SessionId or PartitionKey"):
            sender.accept([message("d", key="1"), message("e", key="2")])
        with pytest.raises(InvalidMessageError, match="none"):
            sender.accept([message("d", key="1"), message("e")])
        with pytest.raises(InvalidMessageError, match="differs from the SessionId"):
            sender.accept([message("d", key="1", session="2")])
        with pytest.raises(InvalidMessageError):
            sender.accept([b"\x00\x53"])
        held.commit()
        found = drain(held)
        assert [body for body, _ in found] == ["a", "b", "c"]
        assert len({fragment_of(sequence) for _, sequence in found}) == 1

    def test_runs_keep_keys_apart_and_the_rest_together(self, held: Stores) -> None:
        sender = queue_of(held)
        payloads = [message("a"), message("b"), message("c", key="k"), message("d", session="k"), message("e", key="l")]
        assert sender.runs([*payloads, b"\x00", message("f")]) == [2, 2, 1, 1, 1]

    def test_duplicates_are_of_the_same_message_id_and_partition_key(self, held: Stores) -> None:
        held.engine.create_queue("d", QueueDescription(enable_partitioning=True, requires_duplicate_detection=True))
        held.commit()
        same = next(f"l{n}" for n in range(1000) if place(f"l{n}", FRAGMENTS) == place("k", FRAGMENTS))
        for _ in range(2):
            assert send(held, "d", message("a", message_id="1", key="k"), message("b", message_id="1", key=same)) == [
                "ok",
                "ok",
            ]
            held.crash()
        assert sorted(body for body, _ in drain(held, "d")) == ["a", "b"]


class TestReceiving:
    def test_settling_goes_to_the_fragment_of_the_token(self, held: Stores) -> None:
        queue = queue_of(held)
        send(held, "q", *(message(str(number)) for number in range(FRAGMENTS)))
        taken = []
        while (acquired := queue.acquire(5)) is not None:
            taken.append(acquired)
        assert len(taken) == FRAGMENTS
        with pytest.raises(InvalidArgumentError, match="several partitions"):
            queue.complete([taken[0].tags[0], taken[1].tags[0]])
        assert queue.complete(taken[0].tags) == [True]
        assert queue.complete(taken[0].tags) == [False]
        assert queue.complete([b"\xff" * 16]) == [False]
        assert queue.abandon(taken[1].tags) == [True]
        assert queue.defer(taken[2].tags) == [True]
        assert queue.dead_letter(taken[3].tags, "bad", "it is") == [True]
        assert queue.release(taken[4].tags) == [True]
        assert queue.renew(taken[5].tags)[0] is not None
        held.commit()
        runtime = held.engine.runtime("q")
        assert (runtime.active_message_count, runtime.deferred_message_count) == (FRAGMENTS - 3, 1)
        assert (runtime.dead_letter_message_count, runtime.locked_message_count) == (1, 2)
        dead = queue_of(held, "q/$DeadLetterQueue").acquire(5)
        assert dead is not None
        assert fragment_of(dead.sequences[0]) == fragment_of(taken[3].sequences[0])
        deferred = queue.receive_deferred(taken[2].sequences)
        assert [body_of(payload) for payload in deferred.payloads] == [body_of(taken[2].payloads[0])]

    def test_deferred_messages_of_several_fragments(self, held: Stores) -> None:
        queue = queue_of(held)
        send(held, "q", *(message(str(number)) for number in range(3)))
        sequences = []
        for _ in range(3):
            acquired = queue.acquire(1)
            assert acquired is not None
            sequences += acquired.sequences
            queue.defer(acquired.tags)
        held.commit()
        with pytest.raises(MessageNotFoundError):
            queue.receive_deferred([*sequences, 6 << 48 | 9])
        with pytest.raises(MessageNotFoundError):
            queue.receive_deferred([99 << 48])
        with pytest.raises(InvalidArgumentError, match="several partitions"):
            queue.receive_deferred(sequences, lock=False)
        taken = queue.receive_deferred(sequences)  # what the refused call had locked is free again
        assert sorted(body_of(payload) for payload in taken.payloads) == ["0", "1", "2"]
        assert all(queue.complete([tag]) == [True] for tag in taken.tags)

    def test_batch_delete_is_refused(self, held: Stores) -> None:
        with pytest.raises(NotAllowedError, match="batch delete"):
            queue_of(held).delete_batch(5)

    def test_listeners_are_told_by_every_fragment_and_let_go(self, held: Stores) -> None:
        reported: list[int] = []
        queue, listener = queue_of(held), lambda: reported.append(1)
        queue.add_listener(listener)
        for number in range(FRAGMENTS):
            send(held, "q", message(str(number)))
        assert len(reported) == FRAGMENTS
        queue.remove_listener(listener)
        send(held, "q", message("x"))
        assert len(reported) == FRAGMENTS

    def test_peek_goes_on_where_it_ended(self, held: Stores) -> None:
        send(held, "q", *(message(str(number)) for number in range(20)))
        queue = queue_of(held)
        seen: list[int] = []
        while part := queue.peek(seen[-1] + 1 if seen else 0, 3):
            seen += [sequence_of(payload) for payload in part]
        assert len(seen) == 20
        assert seen == sorted(set(seen))

    def test_scheduled_messages_are_cancelled_together_or_not_at_all(self, held: Stores) -> None:
        sender, done = held.engine.sender("q"), []
        due = held.clock.wall_ms() + 60_000
        numbers = sender.schedule([(message(str(n), key=str(n)), due) for n in range(9)], lambda: done.append("ok"))
        assert len({fragment_of(number) for number in numbers}) > 2
        held.commit()
        assert done == ["ok"]
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled([*numbers, 3 << 48 | 77])
        assert held.engine.runtime("q").scheduled_message_count == 9
        sender.cancel_scheduled(numbers[:8], lambda: done.append("cancelled"))
        held.commit()
        assert done == ["ok", "cancelled"]
        held.advance(60_001)
        assert [body for body, _ in drain(held)] == ["8"]

    @pytest.mark.parametrize("path", ["q", "t"])
    @pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)], ids=["others first", "the failed one first"])
    def test_messages_of_several_fragments_are_scheduled_together_or_not_at_all(
        self, held: Stores, path: str, order: tuple[int, ...]
    ) -> None:
        """The sender has no numbers of what it could cancel."""
        held.engine.create_topic("t", TopicDescription(enable_partitioning=True))
        held.engine.create_subscription("t", "all")
        held.commit()
        reported: list[str] = []
        due = held.clock.wall_ms() + 60_000
        messages = [(message(str(n), key=key_in(n)), due) for n in range(STORES)]
        held.engine.sender(path).schedule(
            messages, lambda: reported.append("ok"), lambda error: reported.append(type(error).__name__)
        )
        held.journals[1].fail_syncs = OSError("bad sector")
        for index in order:
            held.commit_store(index)
        held.journals[1].fail_syncs = None
        assert reported == ["StoreError"]
        held.stores.retry()
        held.commit()
        assert held.engine.runtime(path).scheduled_message_count == 0
        held.crash()
        held.advance(60_001)
        assert drain(held, "q" if path == "q" else "t/Subscriptions/all") == []

    def test_nothing_stays_scheduled_where_a_fragment_refuses(
        self, held: Stores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Schedule I1."""
        due, queue = held.clock.wall_ms() + 60_000, queue_of(held)
        refusing = queue._member(place(key_in(1), FRAGMENTS))

        def full(*_: object) -> None:
            raise QuotaExceededError("q")

        monkeypatch.setattr(refusing, "schedule", full)
        with pytest.raises(QuotaExceededError):
            held.engine.sender("q").schedule([(message(str(n), key=key_in(n)), due) for n in range(STORES)])
        held.commit()
        assert held.engine.runtime("q").scheduled_message_count == 0

    def test_locks_expire_and_messages_end(self, held: Stores) -> None:
        send(held, "q", message("a"))
        queue = queue_of(held)
        assert queue.acquire(1) is not None
        held.advance(60_001)
        again = queue.acquire(1)
        assert again is not None
        assert queue.locked_count == 1


class TestSessions:
    def test_a_session_is_in_one_fragment(self) -> None:
        """Sessions I1, I2."""
        held = Stores()
        held.engine.create_queue("s", QueueDescription(enable_partitioning=True, requires_session=True))
        held.commit()
        send(held, "s", *(message(f"{name}{n}", session=name) for n in range(3) for name in "abcdefgh"))
        queue = sessions_of(held)
        assert queue.sessions.list_sessions(None, 2, 3) == ["c", "d", "e"]
        hold = queue.sessions.open_session("c")
        hold.set_state(b"half")
        held.commit()
        names = set()
        while (other := queue.sessions.next_session()) is not None:
            acquired = other.messages.acquire(10)
            assert acquired is not None
            assert [body_of(payload) for payload in acquired.payloads] == [f"{other.session_id}{n}" for n in range(3)]
            names.add(other.session_id)
        assert names == set("abdefgh")
        assert (queue.sessions.session_count, queue.sessions.session_lock_count, queue.sessions.receiver_count) == (
            8,
            8,
            8,
        )
        held.crash()
        assert sessions_of(held).sessions.open_session("c").get_state() == b"half"
        assert len(queue_of(held, "s").peek(0, 10, "e")) == 3

    def test_who_waits_is_called_once_by_whichever_fragment(self) -> None:
        held = Stores()
        held.engine.create_queue("s", QueueDescription(enable_partitioning=True, requires_session=True))
        held.commit()
        queue, called = sessions_of(held), []
        first, second = partial(called.append, 1), partial(called.append, 2)
        queue.sessions.wait_for_session(first)
        queue.sessions.wait_for_session(second)
        queue.sessions.cancel_wait(second)
        send(held, "s", message("a", session="a"), message("b", session="b"), message("c", session="c"))
        assert called == [1]
        assert queue.sessions.receiver_count == 0


class TestTopics:
    def test_copies_are_in_the_fragment_of_the_message(self) -> None:
        held = Stores()
        engine = held.engine
        engine.create_topic("t", TopicDescription(enable_partitioning=True))
        engine.create_subscription("t", "all")
        engine.create_subscription("t", "s", SubscriptionDescription(requires_session=True))
        held.commit()
        send(held, "t", *(message(str(n), session=str(n % 3)) for n in range(9)))
        held.crash()
        found = drain(held, "t/Subscriptions/all")
        assert len(found) == 9
        assert all(fragment_of(sequence) == place(str(int(body) % 3), FRAGMENTS) for body, sequence in found)
        hold = sessions_of(held, "t/Subscriptions/s").sessions.open_session("1")
        acquired = hold.messages.acquire(10)
        assert acquired is not None
        assert [body_of(payload) for payload in acquired.payloads] == ["1", "4", "7"]

    def test_a_subscription_gets_nothing_before_it_is_durable(self) -> None:
        held = Stores()
        held.engine.create_topic("t", TopicDescription(enable_partitioning=True))
        held.commit()
        held.engine.create_subscription("t", "late")
        answers: list[str] = []
        held.engine.sender("t").accept([message("a")], lambda: answers.append("ok"))
        for index in range(STORES):
            held.commit_store(index)
        assert answers == ["ok"]
        held.crash()
        assert held.engine.get_subscription("t", "late") is None
        held.engine.create_subscription("t", "next")  # which has the numbers that the lost one had
        held.commit()
        assert drain(held, "t/Subscriptions/next") == []
        send(held, "t", message("b"))
        assert [body for body, _ in drain(held, "t/Subscriptions/next")] == ["b"]

    def test_a_subscription_gets_nothing_because_one_before_it_had_its_name(self) -> None:
        """I2 of topics: the row of the one that was deleted says nothing of the one that was made since."""
        held = Stores()
        held.engine.create_topic("t", TopicDescription(enable_partitioning=True))
        held.commit()
        held.engine.create_subscription("t", "late")
        first = held.engine.begin_commit()
        assert first is not None
        held.main.sync()
        held.engine.delete_subscription("t", "late")
        held.engine.create_subscription("t", "late")
        held.engine.end_commit(first)
        held.engine.sender("t").accept([message("a")])
        for index in range(STORES):
            held.commit_store(index)
        held.crash()
        held.engine.delete_subscription("t", "late")
        held.engine.create_subscription("t", "next")  # which has the numbers that the lost one had
        held.commit()
        assert drain(held, "t/Subscriptions/next") == []


class TestFailingStore:
    def test_sends_go_round_it_and_keys_of_it_are_refused(self, held: Stores) -> None:
        """I2; Slot I1."""
        bad = key_in(1)
        assert send(held, "q", message("before", key=bad)) == ["ok"]
        held.journals[1].fail_syncs = OSError("bad sector")
        assert send(held, "q", message("lost", key=bad)) == ["StoreError"]
        assert held.reported == [(1, False)]
        assert send(held, "q", *(message(str(number)) for number in range(20))) == ["ok"] * 20
        with pytest.raises(ServerBusyError, match="store 1"):
            held.engine.sender("q").accept([message("x", key=bad)])
        assert send(held, "q", message("y", key=key_in(2))) == ["ok"]
        found = drain(held)
        assert sorted(body for body, _ in found) == sorted([*map(str, range(20)), "y"])
        assert all(fragment_of(sequence) % STORES != 1 for _, sequence in found)
        assert len(held.engine.sender("q").peek(0, 50)) == 0
        held.journals[1].fail_syncs = None
        held.stores.retry()
        held.commit()
        assert held.reported == [(1, False), (1, True)]
        assert send(held, "q", message("after", key=bad)) == ["ok"]
        assert [body for body, _ in drain(held) if body != "lost"] == ["before", "after"]

    def test_a_refused_write_takes_only_its_store_out(self, held: Stores) -> None:
        other = held.engine
        other.create_queue("plain")
        held.commit()
        held.journals[0].fail_writes = OSError("no space")
        assert send(held, "q", message("a", key=key_in(0))) == ["StoreError"]
        assert send(held, "plain", message("p")) == ["ok"]
        held.stores.retry()
        held.commit()
        assert held.reported[-1] == (0, False)
        held.advance(30_000)
        held.journals[0].fail_writes = None
        held.stores.retry()
        held.commit()
        assert held.reported[-1] == (0, True)
        assert drain(held) == []

    def test_locks_in_it_are_lost_and_those_of_others_are_kept(self, held: Stores) -> None:
        bad, good = key_in(1), key_in(2)
        send(held, "q", message("a", key=bad), message("b", key=good))
        queue = queue_of(held)
        taken = {body_of(each.payloads[0]): each for each in (queue.acquire(1), queue.acquire(1)) if each is not None}
        held.journals[1].fail_syncs = OSError("bad sector")
        failed: list[str] = []
        queue.complete(taken["a"].tags, None, lambda error: failed.append(type(error).__name__))
        held.commit()
        assert failed == ["StoreError"]
        with pytest.raises(ServerBusyError):
            queue.complete(taken["a"].tags)
        assert queue.complete(taken["b"].tags) == [True]
        held.journals[1].fail_syncs = None
        held.stores.retry()
        held.commit()
        assert [body for body, _ in drain(held)] == ["a"]

    def test_sessions_in_it_are_lost_and_come_back(self) -> None:
        held = Stores()
        held.engine.create_queue("s", QueueDescription(enable_partitioning=True, requires_session=True))
        held.commit()
        bad, good = key_in(1), key_in(2)
        send(held, "s", message("a", session=bad), message("b", session=good))
        queue, lost = sessions_of(held), []
        for name in (bad, good):
            queue.sessions.open_session(name).on_lost = partial(lost.append, name)
        held.journals[1].fail_writes = OSError("no space")
        send(held, "s", message("c", session=bad))
        assert lost == [bad]
        with pytest.raises(ServerBusyError):
            queue.sessions.open_session(bad)
        assert queue.sessions.held_session(good).session_id == good
        called: list[int] = []
        queue.sessions.wait_for_session(lambda: called.append(1))
        held.journals[1].fail_writes = None
        held.stores.retry()
        held.commit()
        assert called == [1]
        hold = queue.sessions.next_session()
        assert hold is not None
        assert hold.session_id == bad

    def test_sessions_that_cannot_be_read_hold_up_none_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        held = Stores()
        held.engine.create_queue("s", QueueDescription(enable_partitioning=True, requires_session=True))
        held.commit()
        bad, good = key_in(1), key_in(2)
        send(held, "s", message("a", session=bad), message("b", session=good))
        held.crash()
        queue = sessions_of(held)

        def refuses(key: bytes) -> None:
            raise StoreError("block checksum mismatch")

        monkeypatch.setattr(held.journals[1], "get", refuses)
        queue._next_session_index = place(bad, FRAGMENTS)
        hold = queue.sessions.next_session()
        assert hold is not None
        assert hold.session_id == good
        with pytest.raises(StoreError, match="block checksum mismatch"):
            queue.sessions.next_session()

    def test_settings_that_a_store_refuses_a_read_for_are_taken_by_all_others_and_later_by_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another window of detection is told to each store, which is read for that."""
        held = Stores()
        detects = replace(QUEUE, requires_duplicate_detection=True)
        held.engine.create_queue("q", detects)
        held.commit()
        get = held.journals[1].get

        def refuses(key: bytes) -> bytes | None:
            if key[0] == ERAS:
                raise StoreError("block checksum mismatch")
            return get(key)

        changed = replace(detects, duplicate_detection_history_time_window_ms=3_600_000, lock_duration_ms=7_000)
        with monkeypatch.context() as patched:
            patched.setattr(held.journals[1], "get", refuses)
            assert held.engine.update_queue("q", changed) == changed
            held.commit()
        assert held.reported == [(1, False)]
        held.stores.retry()
        held.commit()
        assert held.reported == [(1, False), (1, True)]
        found = queue_of(held)
        assert {slot.member.lock_duration_ms for slot in found.slots if slot.member is not None} == {7_000}
        held.crash()
        assert held.engine.get_queue("q") == changed

    def test_one_that_cannot_be_read_any_more_comes_back(self, held: Stores) -> None:
        send(held, "q", message("a", key=key_in(1)))
        journal = held.journals[1]
        reopen = journal.reopen

        def gone() -> None:
            journal.close()
            raise StoreError("the folder is gone")

        journal.reopen = gone  # type: ignore[method-assign]
        journal.fail_syncs = OSError("bad sector")
        send(held, "q", message("b", key=key_in(1)))
        journal.fail_syncs = None
        assert send(held, "q", *(message(str(number)) for number in range(10))) == ["ok"] * 10
        held.stores.retry()
        held.advance(60_000)
        assert held.reported == [(1, False)]
        journal.reopen = reopen  # type: ignore[method-assign]
        held.stores.retry()
        held.commit()
        assert held.reported == [(1, False), (1, True)]
        assert {"a"} <= {body for body, _ in drain(held)}

    def test_one_that_cannot_be_opened_at_the_start(self, held: Stores) -> None:
        bad = key_in(1)
        held.engine.create_topic("t", TopicDescription(enable_partitioning=True))
        held.engine.create_subscription("t", "all")
        held.commit()
        send(held, "q", message("a", key=bad))
        send(held, "t", message("b", key=bad))
        held.broken.add(1)
        held.crash()
        reported: list[int] = []
        queue_of(held).add_listener(lambda: reported.append(1))
        assert send(held, "q", *(message(str(number)) for number in range(10))) == ["ok"] * 10
        assert len(drain(held)) == 10
        with pytest.raises(ServerBusyError):
            held.engine.sender("t").accept([message("x", key=bad)])
        held.stores.retry()
        assert drain(held) == []
        held.broken.clear()
        before = len(reported)
        held.stores.retry()
        held.commit()
        assert len(reported) > before
        assert [body for body, _ in drain(held)] == ["a"]
        send(held, "t", message("c", key=bad))
        assert [body for body, _ in drain(held, "t/Subscriptions/all")] == ["b", "c"]

    def test_all_down_refuses_everything(self, held: Stores) -> None:
        held.broken |= set(range(STORES))
        held.crash()
        with pytest.raises(ServerBusyError, match="All stores"):
            held.engine.sender("q").accept([message("a")])
        assert queue_of(held).acquire(1) is None

    @pytest.mark.parametrize("path", ["q", "q/$DeadLetterQueue", "q/$Transfer/$DeadLetterQueue"])
    def test_those_who_wait_look_again_when_it_is_back(self, held: Stores, path: str) -> None:
        waits: list[bool] = []
        queue = queue_of(held, path)
        queue.add_listener(lambda: waits.append(queue.is_whole))
        held.journals[1].fail_syncs = OSError("broken")
        send(held, "q", message("lost", key=key_in(1)))
        held.journals[1].fail_syncs = None
        assert not queue.is_whole
        waits.clear()
        held.stores.retry()
        held.commit()
        assert queue.is_whole
        assert True in waits

    def test_a_failed_catalog_leaves_fragments_and_their_locks(self, held: Stores) -> None:
        send(held, "q", message("a"))
        queue = queue_of(held)
        acquired = queue.acquire(1)
        assert acquired is not None
        held.main.fail_syncs = OSError("bad sector")
        held.engine.create_queue("other", QUEUE)
        held.commit()
        held.main.fail_syncs = None
        assert held.engine.get_queue("other") is None
        assert queue_of(held) is queue
        assert queue.complete(acquired.tags) == [True]

    def test_nothing_is_changed_while_a_catalog_is_not_back(
        self, held: Stores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was read of it before a read was refused has gone its way already."""

        def refuse() -> None:
            raise StoreError("a block cannot be read")

        held.engine.create_queue("other", QUEUE)
        held.engine.create_topic("topic", TopicDescription(enable_partitioning=True))
        with monkeypatch.context() as patched:
            patched.setattr(held.engine.hubs, "reload", refuse)
            held.main.fail_syncs = OSError("bad sector")
            with pytest.raises(StoreError, match="a block"):
                held.commit_catalog()
            held.main.fail_syncs = None
            for change in (
                lambda: held.engine.delete_queue("other"),
                lambda: held.engine.delete_topic("topic"),
                lambda: held.engine.create_queue("third", QUEUE),
            ):
                with pytest.raises(StoreError, match="not reopened yet"):
                    change()
        held.engine.tick()
        assert [name for name, _ in held.engine.list_queues()] == ["q"]
        held.engine.delete_queue("q")


class TestRemoval:
    def test_nothing_is_left(self, held: Stores) -> None:
        engine = held.engine
        engine.create_queue("s", QueueDescription(enable_partitioning=True, requires_session=True))
        engine.create_topic("t", TopicDescription(enable_partitioning=True))
        engine.create_subscription("t", "all")
        held.commit()
        empty = {index: _rows(held, index) + 1 for index in range(STORES)}  # and the counter of sessions' numbers
        send(held, "q", *(message(str(number)) for number in range(20)))
        send(held, "s", *(message(str(number), session=str(number)) for number in range(20)))
        send(held, "t", *(message(str(number)) for number in range(20)))
        queue = queue_of(held)
        acquired = queue.acquire(1)
        assert acquired is not None
        queue.dead_letter(acquired.tags)
        held.commit()
        for name in ("q", "s"):
            engine.delete_queue(name)
        engine.delete_topic("t")
        with pytest.raises(EntityNotFoundError):
            queue.acquire(1)
        held.commit()
        assert {index: _rows(held, index) for index in range(STORES)} == empty
        assert list(held.main.scan(DOOMED, after(DOOMED))) == []

    @pytest.mark.parametrize("path", ["q", "q/$DeadLetterQueue", "q/$Transfer/$DeadLetterQueue"])
    def test_receivers_are_told(self, held: Stores, path: str) -> None:
        reported: list[str] = []
        queue = queue_of(held, path)
        queue.add_listener(lambda: reported.append("listener"))
        held.engine.delete_queue("q")
        held.engine.create_queue("q", QUEUE)
        held.commit()
        assert "listener" in reported
        with pytest.raises(EntityNotFoundError):
            queue.check_receivable()
        queue_of(held, path).check_receivable()

    @pytest.mark.parametrize("path", ["q", "q/$DeadLetterQueue", "q/$Transfer/$DeadLetterQueue"])
    def test_a_deletion_that_failed_leaves_receivers_what_they_have(self, held: Stores, path: str) -> None:
        queue = queue_of(held, path)
        held.main.fail_syncs = OSError("bad sector")
        held.engine.delete_queue("q")
        held.commit()
        held.main.fail_syncs = None
        assert queue_of(held, path) is queue
        queue.check_receivable()

    @pytest.mark.parametrize("kept", [0, 1, 2, 9])
    def test_a_kill_leaves_all_of_it_or_nothing(self, held: Stores, kept: int) -> None:
        send(held, "q", *(message(str(number)) for number in range(20)))
        empty_rows = 3  # format, identity, and the counter of sessions' numbers at most
        held.engine.delete_queue("q")
        held.commit_catalog()
        held.crash(kept)
        held.commit()
        assert held.engine.get_queue("q") is None
        assert all(_rows(held, index) <= empty_rows for index in range(STORES))

    def test_a_deletion_that_was_not_durable_took_nothing(self, held: Stores) -> None:
        send(held, "q", *(message(str(number)) for number in range(20)))
        held.engine.delete_queue("q")
        for index in range(STORES):
            held.commit_store(index)
        held.crash()
        assert len(drain(held)) == 20

    def test_a_deletion_that_failed_took_nothing(self, held: Stores) -> None:
        send(held, "q", *(message(str(number)) for number in range(20)))
        held.main.fail_syncs = OSError("bad sector")
        held.engine.delete_queue("q")
        held.commit()
        held.main.fail_syncs = None
        assert len(drain(held)) == 20

    def test_a_deletion_that_the_store_shows_after_a_failure_takes_nothing_before_it_is_durable(
        self, held: Stores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a full disk the store goes on with what was written, and a power cut may take that away."""
        held.engine.sender("q").accept([message("kept", key="a")])
        held.commit()
        held.engine.delete_queue("q")
        commit = held.engine.begin_commit()
        assert commit is not None
        monkeypatch.setattr(held.main, "reopen", lambda: None)
        held.engine.fail_commit(commit, StoreError("no space left on device"))
        for index in range(STORES):
            held.commit_store(index)
        held.crash()
        assert held.engine.runtime("q").active_message_count == 1

    def test_an_entity_that_the_store_shows_after_a_failure_takes_nothing_before_it_is_durable(
        self, held: Stores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it took would have no entity after a power cut."""
        held.engine.create_queue("new", QUEUE)
        commit = held.engine.begin_commit()
        assert commit is not None
        monkeypatch.setattr(held.main, "reopen", lambda: None)
        held.engine.fail_commit(commit, StoreError("no space left on device"))
        with pytest.raises(ServerBusyError):
            held.engine.sender("new").accept([message("early")])
        held.advance(11_000)
        held.engine.sender("new").accept([message("kept")])
        held.commit()
        held.crash()
        assert held.engine.runtime("new").active_message_count == 1

    def test_what_a_store_has_goes_when_it_is_back(self, held: Stores) -> None:
        send(held, "q", *(message(str(number), key=key_in(1)) for number in range(20)))
        held.broken.add(1)
        held.crash()
        held.engine.delete_queue("q")
        held.commit()
        assert len(list(held.main.scan(DOOMED, after(DOOMED)))) == 1
        held.broken.clear()
        held.crash()
        held.commit()
        assert _rows(held, 1) <= 3
        assert list(held.main.scan(DOOMED, after(DOOMED))) == []


class TestDescriptions:
    def test_nothing_is_taken_before_the_row_is_durable(self) -> None:
        """I3."""
        held = Stores()
        held.engine.create_queue("q", QUEUE)
        with pytest.raises(ServerBusyError, match="being created"):
            held.engine.sender("q").accept([message("a")])
        held.commit_catalog()
        assert send(held, "q", message("a")) == ["ok"]

    def test_the_layout_is_that_of_the_creation(self, held: Stores) -> None:
        send(held, "q", *(message(str(number), key=str(number)) for number in range(20)))
        held.limits = type(held.limits)(partitions_per_entity=2, partition_stores=1)
        held.crash()
        assert len(drain(held)) == 20
        held.engine.create_queue("small", QUEUE)
        held.commit()
        send(held, "small", *(message(str(number), key=str(number)) for number in range(20)))
        assert {fragment_of(sequence) for _, sequence in drain(held, "small")} == {0, 1}

    def test_settings_reach_every_fragment(self, held: Stores) -> None:
        changed = QueueDescription(enable_partitioning=True, default_message_time_to_live_ms=1000, max_delivery_count=1)
        held.engine.update_queue("q", changed)
        send(held, "q", *(message(str(number)) for number in range(FRAGMENTS)))
        held.advance(5_000)
        assert held.engine.runtime("q").message_count == 0

    def test_what_is_not_served_is_refused(self, held: Stores) -> None:
        with pytest.raises(InvalidArgumentError, match="EnablePartitioning"):
            held.engine.update_queue("q", QueueDescription())
        with pytest.raises(NotAllowedError, match="takes no sends"):
            held.engine.via("q/$DeadLetterQueue", "q")
        held.engine.create_topic("t", TopicDescription(enable_partitioning=True))
        held.commit()
        held.limits = type(held.limits)(max_partitioned_entities=2)
        held.crash()
        with pytest.raises(QuotaExceededError, match="partitioned"):
            held.engine.create_queue("more", QUEUE)


class TestTransactions:
    def test_one_fragment_takes_part_as_a_whole(self, held: Stores) -> None:
        send(held, "q", message("a", key="k"))
        queue = queue_of(held)
        acquired = queue.acquire(1)
        assert acquired is not None
        transaction = held.engine.transaction()
        ended: list[Ending] = []
        transaction.settle(queue, acquired.tags, queue.complete, ended.append)
        transaction.send(held.engine.sender("q"), [message("b", key="k")])
        transaction.send(held.engine.sender("q"), [message("c")])  # without a key: where the others are
        other = next(f"o{n}" for n in range(100) if place(f"o{n}", FRAGMENTS) != place("k", FRAGMENTS))
        with pytest.raises(NotAllowedError, match="same partition key"):
            transaction.send(held.engine.sender("q"), [message("d", key=other)])
        done: list[str] = []
        transaction.commit(lambda: done.append("ok"))
        assert ended == []
        held.commit()
        assert (ended, done) == ([Ending.COMMITTED], ["ok"])
        held.crash()
        found = drain(held)
        assert [body for body, _ in found] == ["b", "c"]
        assert {fragment_of(sequence) for _, sequence in found} == {place("k", FRAGMENTS)}

    def test_scheduling_and_cancelling_are_of_one_fragment(self, held: Stores) -> None:
        queue, due_ms = held.engine.sender("q"), held.clock.wall_ms() + 60_000
        other = next(f"o{n}" for n in range(100) if place(f"o{n}", FRAGMENTS) != place("k", FRAGMENTS))
        old, elsewhere = queue.schedule([(message("a", key="k"), due_ms), (message("b", key=other), due_ms)])
        held.commit()
        transaction = held.engine.transaction()
        transaction.cancel_scheduled(queue, [old])
        (new,) = transaction.schedule(queue, [(message("c"), due_ms)], lambda: None, lambda _: None)
        assert fragment_of(new) == place("k", FRAGMENTS)
        with pytest.raises(NotAllowedError, match="same partition key"):
            transaction.schedule(queue, [(message("d", key=other), due_ms)], lambda: None, lambda _: None)
        with pytest.raises(NotAllowedError, match="same partition key"):
            transaction.cancel_scheduled(queue, [elsewhere])
        with pytest.raises(InvalidArgumentError, match="several partitions"):
            transaction.cancel_scheduled(queue, [old, elsewhere])
        with pytest.raises(MessageNotFoundError):
            transaction.cancel_scheduled(queue, [1 << 62])
        transaction.commit()
        held.commit()
        held.crash()
        queue = held.engine.sender("q")
        with pytest.raises(MessageNotFoundError):
            queue.cancel_scheduled([old])
        queue.cancel_scheduled([new, elsewhere])

    def test_a_commit_finds_its_entity_gone(self, held: Stores) -> None:
        """Its fragments go only when that is durable, and their stores are up."""
        sending, scheduling = held.engine.transaction(), held.engine.transaction()
        sending.send(held.engine.sender("q"), [message("a")])
        due_ms = held.clock.wall_ms() + 60_000
        scheduling.schedule(held.engine.sender("q"), [(message("b"), due_ms)], lambda: None, lambda _: None)
        held.engine.delete_queue("q")
        for transaction in (sending, scheduling):
            with pytest.raises(TransactionRolledBackError, match="'q'"):
                transaction.commit()

    def test_a_roll_back_leaves_everything(self, held: Stores) -> None:
        transaction = held.engine.transaction()
        transaction.send(held.engine.sender("q"), [message("b", key="k")])
        transaction.rollback()
        held.commit()
        assert drain(held) == []


def _rows(held: Stores, index: int) -> int:
    return len(list(held.journals[index].scan(b"", b"\xff" * 32)))


def test_a_look_at_all_fragments_leaves_nothing_out(held: Stores) -> None:
    """Each reads so much and no more, and where one may have more the look ends."""
    for key in ("a", "b", "c"):
        send(held, "q", *[message("x" * 900_000, key=key, message_id="m")] * 25)
    queue = queue_of(held)
    seen: list[int] = []
    while found := [sequence_of(payload) for payload in queue.peek(seen[-1] + 1 if seen else 0, 4000)]:
        assert len(found) <= 40
        seen += found
    assert len(seen) == len(set(seen)) == 75


def test_what_was_deleted_leaves_nothing_in_memory(held: Stores) -> None:
    engines = [store.engine for store in held.engine.stores or () if store.engine is not None]
    before = [(len(engine._numbers), len(engine.transfers), len(engine._first_numbers)) for engine in engines]
    for _ in range(3):
        held.engine.create_queue("short", QUEUE)
        held.commit()
        send(held, "short", message("a"))
        held.engine.delete_queue("short")
        held.commit()
        held.commit()
    assert [(len(engine._numbers), len(engine.transfers), len(engine._first_numbers)) for engine in engines] == before


class TestABadBlock:
    """I4 of `partitions`: the disk of one store does not give the row of a fragment."""

    @staticmethod
    def _spoil(held: Stores, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        get = MemoryJournal.get

        def spoiled(self: MemoryJournal, key: bytes) -> bytes | None:
            if self is held.journals[1] and key == state_key(number):
                raise StoreError("a block cannot be read")
            return get(self, key)

        monkeypatch.setattr(MemoryJournal, "get", spoiled)

    @staticmethod
    def _number(held: Stores, path: str, index: int) -> int:
        return held.engine.receiver(path).number + 3 * index  # type: ignore[attr-defined, no-any-return]

    def test_the_namespace_starts_all_the_same(self, held: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
        held.engine.create_queue("plain")
        held.commit()
        keys = {place(key, FRAGMENTS): key for key in map(str, range(100))}
        assert send(held, "q", *(message(f"m{index}", key=keys[index]) for index in range(FRAGMENTS))) == ["ok"] * 7
        self._spoil(held, monkeypatch, self._number(held, "q", 1))
        held.crash()
        assert [store.is_up for store in held.stores] == [True, False, True]
        assert send(held, "plain", message("a")) == ["ok"]
        assert send(held, "q", message("b")) == ["ok"]
        with pytest.raises(ServerBusyError):
            held.engine.sender("q").accept([message("c", key=keys[1])])
        for _ in range(3):
            held.stores.retry()
            held.commit()
        assert not held.stores.get(1).is_up
        monkeypatch.undo()
        for _ in range(3):
            held.stores.retry()
            held.commit()
        assert queue_of(held).is_whole
        assert sorted(map(body_of, queue_of(held).peek(0, 20))) == ["b", *(f"m{index}" for index in range(FRAGMENTS))]  # type: ignore[arg-type]

    def test_the_catalog_is_read_again_all_the_same(self, held: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
        """And what is staged in its store for others is committed."""
        held.engine.create_queue("plain")
        held.commit()
        self._spoil(held, monkeypatch, self._number(held, "q", FRAGMENTS + 2))  # of `r`: `plain` has three numbers
        answers: list[str] = []
        held.engine.sender("plain").accept([message("a")], lambda: answers.append("ok"), lambda _: answers.append("no"))
        held.engine.create_queue("r", QUEUE)
        held.commit()
        assert answers == ["ok"]
        assert held.engine.get_queue("r") is not None
        assert [store.is_up for store in held.stores] == [True, False, True]
        monkeypatch.undo()
        for _ in range(3):
            held.stores.retry()
            held.commit()
        assert queue_of(held, "r").is_whole
        assert send(held, "r", *(message(str(number)) for number in range(FRAGMENTS))) == ["ok"] * FRAGMENTS

    def test_what_a_deleted_entity_has_goes_once_it_can_be_read(
        self, held: Stores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert send(held, "q", *(message(str(number)) for number in range(FRAGMENTS))) == ["ok"] * FRAGMENTS
        number = self._number(held, "q", 1)
        held.journals[1].fail_syncs = OSError("broken")
        send(held, "q", *(message(str(number)) for number in range(FRAGMENTS)))
        held.engine.delete_queue("q")
        held.commit()
        held.journals[1].fail_syncs = None
        self._spoil(held, monkeypatch, number)
        held.crash()
        assert held.engine.get_queue("q") is None
        monkeypatch.undo()
        for _ in range(3):
            held.stores.retry()
            held.commit()
        assert not list(held.main.scan(DOOMED, after(DOOMED)))


def test_those_who_wait_look_again_when_a_store_is_back_whatever_settings_meet(
    held: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    queue_of(held).add_listener(lambda: reported.append("listener"))
    store = held.stores.get(1)

    def refused() -> None:
        raise StoreError("the catalog's store is away")

    monkeypatch.setattr(held.engine._partitions, "_settle", refused)
    with pytest.raises(StoreError):
        held.engine._partitions._on_store(store)
    assert reported == ["listener"]


def test_a_store_is_up_when_its_commit_has_ended_whatever_a_callback_raises(held: Stores) -> None:
    store = held.stores.get(1)
    assert store.engine is not None
    held.journals[1].fail_syncs = OSError("broken")
    send(held, "q", *(message(str(number)) for number in range(FRAGMENTS)))
    held.journals[1].fail_syncs = None
    assert not store.is_up

    def odd() -> None:
        raise ValueError("odd")

    store.engine._staging.confirm(odd)
    store.engine.retry()
    commit = store.engine.begin_commit()
    assert commit is not None
    held.journals[1].sync()
    with pytest.raises(ExceptionGroup):
        store.engine.end_commit(commit)
    assert store.is_up
    assert held.reported[-1] == (1, True)


def test_that_a_store_went_down_is_told_whatever_its_entities_meet(
    held: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = held.stores.get(1)
    assert store.engine is not None

    def refused() -> None:
        raise StoreError("the catalog's store is away")

    monkeypatch.setattr(held.engine._partitions, "_settle", refused)
    with pytest.raises(StoreError):
        store.engine._fail(StoreError("broken"))
    assert held.reported[-1] == (1, False)
