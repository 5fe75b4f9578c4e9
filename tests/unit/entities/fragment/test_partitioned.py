"""Partitioned entities over journals in memory: placement, settlement, failures of one store, removal."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest

from harness.fixture.partitioned_fixture import FRAGMENTS, STORES, Stores, body_of, message, sequence_of
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

QUEUE = QueueDescription(enable_partitioning=True)


@pytest.fixture
def harness() -> Stores:
    stores = Stores()
    stores.engine.create_queue("q", QUEUE)
    stores.commit()
    return stores


def queue_of(harness: Stores, path: str = "q") -> PartitionedQueueBase:
    found = harness.engine.receiver(path)
    assert isinstance(found, PartitionedQueueBase)
    return found


def sessions_of(harness: Stores, path: str = "s") -> PartitionedSessionQueue:
    found = harness.engine.receiver(path)
    assert isinstance(found, PartitionedSessionQueue)
    return found


def send(harness: Stores, path: str, *messages: bytes) -> list[str]:
    """Send each by itself; what became of them, in order of their answers."""
    answers: list[str] = []
    for one in messages:
        harness.engine.sender(path).accept(
            [one], partial(answers.append, "ok"), lambda error: answers.append(type(error).__name__)
        )
    harness.commit()
    return answers


def drain(harness: Stores, path: str = "q") -> list[tuple[str, int]]:
    """Everything that can be received, completed: body and sequence number."""
    queue = queue_of(harness, path)
    found: list[tuple[str, int]] = []
    while (acquired := queue.acquire(10)) is not None:
        found += [(body_of(payload), sequence_of(payload)) for payload in acquired.payloads]
        queue.complete(acquired.tags)
        harness.commit()
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

    def test_session_id_then_partition_key_then_message_id_then_in_turn(self, harness: Stores) -> None:
        harness.engine.create_queue("d", QueueDescription(enable_partitioning=True, requires_duplicate_detection=True))
        harness.commit()
        send(harness, "d", message("a", session="x", key="x"), message("b", key="y"), message("c", message_id="z"))
        where = {body: fragment_of(sequence) for body, sequence in drain(harness, "d")}
        assert where == {"a": place("x", FRAGMENTS), "b": place("y", FRAGMENTS), "c": place("z", FRAGMENTS)}
        send(harness, "q", *(message(str(number), message_id="same") for number in range(FRAGMENTS)))
        assert {fragment_of(sequence) for _, sequence in drain(harness)} == set(range(FRAGMENTS))

    def test_sequence_numbers_are_unbroken_in_a_fragment(self, harness: Stores) -> None:
        send(harness, "q", *(message(str(number), key="k") for number in range(5)))
        first = place("k", FRAGMENTS) << 48
        assert [sequence - first for _, sequence in drain(harness)] == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("which", ["key", "session"])
    def test_what_is_placed_by_is_not_read_at_any_length(self, harness: Stores, which: str) -> None:
        for length, taken in ((1025, False), (100, True)):
            with nullcontext() if taken else pytest.raises(InvalidMessageError, match="1025 characters"):
                harness.engine.sender("q").accept([message("a", **{which: "k" * length})])

    def test_a_unit_goes_to_one_fragment_or_is_refused(self, harness: Stores) -> None:
        sender = harness.engine.sender("q")
        sender.accept([message("a"), message("b"), message("c")])
        with pytest.raises(InvalidMessageError, match="same SessionId or PartitionKey"):
            sender.accept([message("d", key="1"), message("e", key="2")])
        with pytest.raises(InvalidMessageError, match="none"):
            sender.accept([message("d", key="1"), message("e")])
        with pytest.raises(InvalidMessageError, match="differs from the SessionId"):
            sender.accept([message("d", key="1", session="2")])
        with pytest.raises(InvalidMessageError):
            sender.accept([b"\x00\x53"])
        harness.commit()
        found = drain(harness)
        assert [body for body, _ in found] == ["a", "b", "c"]
        assert len({fragment_of(sequence) for _, sequence in found}) == 1

    def test_runs_keep_keys_apart_and_the_rest_together(self, harness: Stores) -> None:
        sender = queue_of(harness)
        payloads = [message("a"), message("b"), message("c", key="k"), message("d", session="k"), message("e", key="l")]
        assert sender.runs([*payloads, b"\x00", message("f")]) == [2, 2, 1, 1, 1]

    def test_duplicates_are_of_the_same_message_id_and_partition_key(self, harness: Stores) -> None:
        harness.engine.create_queue("d", QueueDescription(enable_partitioning=True, requires_duplicate_detection=True))
        harness.commit()
        same = next(f"l{n}" for n in range(1000) if place(f"l{n}", FRAGMENTS) == place("k", FRAGMENTS))
        for _ in range(2):
            assert send(
                harness, "d", message("a", message_id="1", key="k"), message("b", message_id="1", key=same)
            ) == [
                "ok",
                "ok",
            ]
            harness.crash()
        assert sorted(body for body, _ in drain(harness, "d")) == ["a", "b"]


class TestReceiving:
    def test_settling_goes_to_the_fragment_of_the_token(self, harness: Stores) -> None:
        queue = queue_of(harness)
        send(harness, "q", *(message(str(number)) for number in range(FRAGMENTS)))
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
        harness.commit()
        runtime = harness.engine.runtime("q")
        assert (runtime.active_message_count, runtime.deferred_message_count) == (FRAGMENTS - 3, 1)
        assert (runtime.dead_letter_message_count, runtime.locked_message_count) == (1, 2)
        dead = queue_of(harness, "q/$DeadLetterQueue").acquire(5)
        assert dead is not None
        assert fragment_of(dead.sequences[0]) == fragment_of(taken[3].sequences[0])
        deferred = queue.receive_deferred(taken[2].sequences)
        assert [body_of(payload) for payload in deferred.payloads] == [body_of(taken[2].payloads[0])]

    def test_deferred_messages_of_several_fragments(self, harness: Stores) -> None:
        queue = queue_of(harness)
        send(harness, "q", *(message(str(number)) for number in range(3)))
        sequences = []
        for _ in range(3):
            acquired = queue.acquire(1)
            assert acquired is not None
            sequences += acquired.sequences
            queue.defer(acquired.tags)
        harness.commit()
        with pytest.raises(MessageNotFoundError):
            queue.receive_deferred([*sequences, 6 << 48 | 9])
        with pytest.raises(MessageNotFoundError):
            queue.receive_deferred([99 << 48])
        with pytest.raises(InvalidArgumentError, match="several partitions"):
            queue.receive_deferred(sequences, lock=False)
        taken = queue.receive_deferred(sequences)  # what the refused call had locked is free again
        assert sorted(body_of(payload) for payload in taken.payloads) == ["0", "1", "2"]
        assert all(queue.complete([tag]) == [True] for tag in taken.tags)

    def test_batch_delete_is_refused(self, harness: Stores) -> None:
        with pytest.raises(NotAllowedError, match="batch delete"):
            queue_of(harness).delete_batch(5)

    def test_listeners_are_called_by_every_fragment_and_released(self, harness: Stores) -> None:
        reported: list[int] = []
        queue, listener = queue_of(harness), lambda: reported.append(1)
        queue.add_listener(listener)
        for number in range(FRAGMENTS):
            send(harness, "q", message(str(number)))
        assert len(reported) == FRAGMENTS
        queue.remove_listener(listener)
        send(harness, "q", message("x"))
        assert len(reported) == FRAGMENTS

    def test_peek_continues_where_it_ended(self, harness: Stores) -> None:
        send(harness, "q", *(message(str(number)) for number in range(20)))
        queue = queue_of(harness)
        seen: list[int] = []
        while part := queue.peek(seen[-1] + 1 if seen else 0, 3):
            seen += [sequence_of(payload) for payload in part]
        assert len(seen) == 20
        assert seen == sorted(set(seen))

    def test_scheduled_messages_are_cancelled_together_or_not_at_all(self, harness: Stores) -> None:
        sender, done = harness.engine.sender("q"), []
        due = harness.clock.wall_ms() + 60_000
        numbers = sender.schedule([(message(str(n), key=str(n)), due) for n in range(9)], lambda: done.append("ok"))
        assert len({fragment_of(number) for number in numbers}) > 2
        harness.commit()
        assert done == ["ok"]
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled([*numbers, 3 << 48 | 77])
        assert harness.engine.runtime("q").scheduled_message_count == 9
        sender.cancel_scheduled(numbers[:8], lambda: done.append("cancelled"))
        harness.commit()
        assert done == ["ok", "cancelled"]
        harness.advance(60_001)
        assert [body for body, _ in drain(harness)] == ["8"]

    @pytest.mark.parametrize("path", ["q", "t"])
    @pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)], ids=["others first", "the failed one first"])
    def test_messages_of_several_fragments_are_scheduled_together_or_not_at_all(
        self, harness: Stores, path: str, order: tuple[int, ...]
    ) -> None:
        """The sender has no numbers of what it could cancel."""
        harness.engine.create_topic("t", TopicDescription(enable_partitioning=True))
        harness.engine.create_subscription("t", "all")
        harness.commit()
        reported: list[str] = []
        due = harness.clock.wall_ms() + 60_000
        messages = [(message(str(n), key=key_in(n)), due) for n in range(STORES)]
        harness.engine.sender(path).schedule(
            messages, lambda: reported.append("ok"), lambda error: reported.append(type(error).__name__)
        )
        harness.journals[1].fail_syncs = OSError("bad sector")
        for index in order:
            harness.commit_store(index)
        harness.journals[1].fail_syncs = None
        assert reported == ["StoreError"]
        harness.stores.retry()
        harness.commit()
        assert harness.engine.runtime(path).scheduled_message_count == 0
        harness.crash()
        harness.advance(60_001)
        assert drain(harness, "q" if path == "q" else "t/Subscriptions/all") == []

    def test_nothing_stays_scheduled_where_a_fragment_refuses(
        self, harness: Stores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Schedule I1."""
        due, queue = harness.clock.wall_ms() + 60_000, queue_of(harness)
        refusing = queue._member(place(key_in(1), FRAGMENTS))

        def full(*_: object) -> None:
            raise QuotaExceededError("q")

        monkeypatch.setattr(refusing, "schedule", full)
        with pytest.raises(QuotaExceededError):
            harness.engine.sender("q").schedule([(message(str(n), key=key_in(n)), due) for n in range(STORES)])
        harness.commit()
        assert harness.engine.runtime("q").scheduled_message_count == 0

    def test_locks_expire_and_messages_end(self, harness: Stores) -> None:
        send(harness, "q", message("a"))
        queue = queue_of(harness)
        assert queue.acquire(1) is not None
        harness.advance(60_001)
        again = queue.acquire(1)
        assert again is not None
        assert queue.locked_count == 1


class TestSessions:
    def test_a_session_is_in_one_fragment(self) -> None:
        """Sessions I1, I2."""
        harness = Stores()
        harness.engine.create_queue("s", QueueDescription(enable_partitioning=True, requires_session=True))
        harness.commit()
        send(harness, "s", *(message(f"{name}{n}", session=name) for n in range(3) for name in "abcdefgh"))
        queue = sessions_of(harness)
        assert queue.sessions.list_sessions(None, 2, 3) == ["c", "d", "e"]
        hold = queue.sessions.open_session("c")
        hold.set_state(b"half")
        harness.commit()
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
        harness.crash()
        assert sessions_of(harness).sessions.open_session("c").get_state() == b"half"
        assert len(queue_of(harness, "s").peek(0, 10, "e")) == 3

    def test_who_waits_is_called_once_by_whichever_fragment(self) -> None:
        harness = Stores()
        harness.engine.create_queue("s", QueueDescription(enable_partitioning=True, requires_session=True))
        harness.commit()
        queue, called = sessions_of(harness), []
        first, second = partial(called.append, 1), partial(called.append, 2)
        queue.sessions.wait_for_session(first)
        queue.sessions.wait_for_session(second)
        queue.sessions.cancel_wait(second)
        send(harness, "s", message("a", session="a"), message("b", session="b"), message("c", session="c"))
        assert called == [1]
        assert queue.sessions.receiver_count == 0


class TestTopics:
    def test_copies_are_in_the_fragment_of_the_message(self) -> None:
        harness = Stores()
        engine = harness.engine
        engine.create_topic("t", TopicDescription(enable_partitioning=True))
        engine.create_subscription("t", "all")
        engine.create_subscription("t", "s", SubscriptionDescription(requires_session=True))
        harness.commit()
        send(harness, "t", *(message(str(n), session=str(n % 3)) for n in range(9)))
        harness.crash()
        found = drain(harness, "t/Subscriptions/all")
        assert len(found) == 9
        assert all(fragment_of(sequence) == place(str(int(body) % 3), FRAGMENTS) for body, sequence in found)
        hold = sessions_of(harness, "t/Subscriptions/s").sessions.open_session("1")
        acquired = hold.messages.acquire(10)
        assert acquired is not None
        assert [body_of(payload) for payload in acquired.payloads] == ["1", "4", "7"]

    def test_a_subscription_gets_nothing_before_it_is_durable(self) -> None:
        harness = Stores()
        harness.engine.create_topic("t", TopicDescription(enable_partitioning=True))
        harness.commit()
        harness.engine.create_subscription("t", "late")
        answers: list[str] = []
        harness.engine.sender("t").accept([message("a")], lambda: answers.append("ok"))
        for index in range(STORES):
            harness.commit_store(index)
        assert answers == ["ok"]
        harness.crash()
        assert harness.engine.get_subscription("t", "late") is None
        harness.engine.create_subscription("t", "next")  # which has the numbers that the lost one had
        harness.commit()
        assert drain(harness, "t/Subscriptions/next") == []
        send(harness, "t", message("b"))
        assert [body for body, _ in drain(harness, "t/Subscriptions/next")] == ["b"]

    def test_a_subscription_gets_nothing_because_one_before_it_had_its_name(self) -> None:
        """I2 of topics: the row of the one that was deleted says nothing of the one that was made since."""
        harness = Stores()
        harness.engine.create_topic("t", TopicDescription(enable_partitioning=True))
        harness.commit()
        harness.engine.create_subscription("t", "late")
        first = harness.engine.begin_commit()
        assert first is not None
        harness.main.sync()
        harness.engine.delete_subscription("t", "late")
        harness.engine.create_subscription("t", "late")
        harness.engine.end_commit(first)
        harness.engine.sender("t").accept([message("a")])
        for index in range(STORES):
            harness.commit_store(index)
        harness.crash()
        harness.engine.delete_subscription("t", "late")
        harness.engine.create_subscription("t", "next")  # which has the numbers that the lost one had
        harness.commit()
        assert drain(harness, "t/Subscriptions/next") == []


class TestFailingStore:
    def test_sends_go_round_it_and_keys_of_it_are_refused(self, harness: Stores) -> None:
        """I2; Slot I1."""
        bad = key_in(1)
        assert send(harness, "q", message("before", key=bad)) == ["ok"]
        harness.journals[1].fail_syncs = OSError("bad sector")
        assert send(harness, "q", message("lost", key=bad)) == ["StoreError"]
        assert harness.reported == [(1, False)]
        assert send(harness, "q", *(message(str(number)) for number in range(20))) == ["ok"] * 20
        with pytest.raises(ServerBusyError, match="store 1"):
            harness.engine.sender("q").accept([message("x", key=bad)])
        assert send(harness, "q", message("y", key=key_in(2))) == ["ok"]
        found = drain(harness)
        assert sorted(body for body, _ in found) == sorted([*map(str, range(20)), "y"])
        assert all(fragment_of(sequence) % STORES != 1 for _, sequence in found)
        assert len(harness.engine.sender("q").peek(0, 50)) == 0
        harness.journals[1].fail_syncs = None
        harness.stores.retry()
        harness.commit()
        assert harness.reported == [(1, False), (1, True)]
        assert send(harness, "q", message("after", key=bad)) == ["ok"]
        assert [body for body, _ in drain(harness) if body != "lost"] == ["before", "after"]

    def test_a_refused_write_takes_only_its_store_out(self, harness: Stores) -> None:
        other = harness.engine
        other.create_queue("plain")
        harness.commit()
        harness.journals[0].fail_writes = OSError("no space")
        assert send(harness, "q", message("a", key=key_in(0))) == ["StoreError"]
        assert send(harness, "plain", message("p")) == ["ok"]
        harness.stores.retry()
        harness.commit()
        assert harness.reported[-1] == (0, False)
        harness.advance(30_000)
        harness.journals[0].fail_writes = None
        harness.stores.retry()
        harness.commit()
        assert harness.reported[-1] == (0, True)
        assert drain(harness) == []

    def test_locks_in_it_are_lost_and_those_of_others_are_kept(self, harness: Stores) -> None:
        bad, good = key_in(1), key_in(2)
        send(harness, "q", message("a", key=bad), message("b", key=good))
        queue = queue_of(harness)
        taken = {body_of(each.payloads[0]): each for each in (queue.acquire(1), queue.acquire(1)) if each is not None}
        harness.journals[1].fail_syncs = OSError("bad sector")
        failed: list[str] = []
        queue.complete(taken["a"].tags, None, lambda error: failed.append(type(error).__name__))
        harness.commit()
        assert failed == ["StoreError"]
        with pytest.raises(ServerBusyError):
            queue.complete(taken["a"].tags)
        assert queue.complete(taken["b"].tags) == [True]
        harness.journals[1].fail_syncs = None
        harness.stores.retry()
        harness.commit()
        assert [body for body, _ in drain(harness)] == ["a"]

    def test_sessions_in_it_are_lost_and_come_back(self) -> None:
        harness = Stores()
        harness.engine.create_queue("s", QueueDescription(enable_partitioning=True, requires_session=True))
        harness.commit()
        bad, good = key_in(1), key_in(2)
        send(harness, "s", message("a", session=bad), message("b", session=good))
        queue, lost = sessions_of(harness), []
        for name in (bad, good):
            queue.sessions.open_session(name).on_lost = partial(lost.append, name)
        harness.journals[1].fail_writes = OSError("no space")
        send(harness, "s", message("c", session=bad))
        assert lost == [bad]
        with pytest.raises(ServerBusyError):
            queue.sessions.open_session(bad)
        assert queue.sessions.held_session(good).session_id == good
        called: list[int] = []
        queue.sessions.wait_for_session(lambda: called.append(1))
        harness.journals[1].fail_writes = None
        harness.stores.retry()
        harness.commit()
        assert called == [1]
        hold = queue.sessions.next_session()
        assert hold is not None
        assert hold.session_id == bad

    def test_sessions_that_cannot_be_read_delay_none_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        harness = Stores()
        harness.engine.create_queue("s", QueueDescription(enable_partitioning=True, requires_session=True))
        harness.commit()
        bad, good = key_in(1), key_in(2)
        send(harness, "s", message("a", session=bad), message("b", session=good))
        harness.crash()
        queue = sessions_of(harness)

        def refuses(key: bytes) -> None:
            raise StoreError("block checksum mismatch")

        monkeypatch.setattr(harness.journals[1], "get", refuses)
        queue._next_session_index = place(bad, FRAGMENTS)
        hold = queue.sessions.next_session()
        assert hold is not None
        assert hold.session_id == good
        with pytest.raises(StoreError, match="block checksum mismatch"):
            queue.sessions.next_session()

    def test_settings_that_a_store_refuses_a_read_for_are_taken_by_all_others_and_later_by_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another window of detection is passed to each store, which is read for that."""
        harness = Stores()
        detects = replace(QUEUE, requires_duplicate_detection=True)
        harness.engine.create_queue("q", detects)
        harness.commit()
        get = harness.journals[1].get

        def refuses(key: bytes) -> bytes | None:
            if key[0] == ERAS:
                raise StoreError("block checksum mismatch")
            return get(key)

        changed = replace(detects, duplicate_detection_history_time_window_ms=3_600_000, lock_duration_ms=7_000)
        with monkeypatch.context() as patched:
            patched.setattr(harness.journals[1], "get", refuses)
            assert harness.engine.update_queue("q", changed) == changed
            harness.commit()
        assert harness.reported == [(1, False)]
        harness.stores.retry()
        harness.commit()
        assert harness.reported == [(1, False), (1, True)]
        found = queue_of(harness)
        assert {slot.member.lock_duration_ms for slot in found.slots if slot.member is not None} == {7_000}
        harness.crash()
        assert harness.engine.get_queue("q") == changed

    def test_one_that_cannot_be_read_any_more_comes_back(self, harness: Stores) -> None:
        send(harness, "q", message("a", key=key_in(1)))
        journal = harness.journals[1]
        reopen = journal.reopen

        def unavailable() -> None:
            journal.close()
            raise StoreError("the folder is gone")

        journal.reopen = unavailable  # type: ignore[method-assign]
        journal.fail_syncs = OSError("bad sector")
        send(harness, "q", message("b", key=key_in(1)))
        journal.fail_syncs = None
        assert send(harness, "q", *(message(str(number)) for number in range(10))) == ["ok"] * 10
        harness.stores.retry()
        harness.advance(60_000)
        assert harness.reported == [(1, False)]
        journal.reopen = reopen  # type: ignore[method-assign]
        harness.stores.retry()
        harness.commit()
        assert harness.reported == [(1, False), (1, True)]
        assert {"a"} <= {body for body, _ in drain(harness)}

    def test_one_that_cannot_be_opened_at_the_start(self, harness: Stores) -> None:
        bad = key_in(1)
        harness.engine.create_topic("t", TopicDescription(enable_partitioning=True))
        harness.engine.create_subscription("t", "all")
        harness.commit()
        send(harness, "q", message("a", key=bad))
        send(harness, "t", message("b", key=bad))
        harness.broken.add(1)
        harness.crash()
        reported: list[int] = []
        queue_of(harness).add_listener(lambda: reported.append(1))
        assert send(harness, "q", *(message(str(number)) for number in range(10))) == ["ok"] * 10
        assert len(drain(harness)) == 10
        with pytest.raises(ServerBusyError):
            harness.engine.sender("t").accept([message("x", key=bad)])
        harness.stores.retry()
        assert drain(harness) == []
        harness.broken.clear()
        before = len(reported)
        harness.stores.retry()
        harness.commit()
        assert len(reported) > before
        assert [body for body, _ in drain(harness)] == ["a"]
        send(harness, "t", message("c", key=bad))
        assert [body for body, _ in drain(harness, "t/Subscriptions/all")] == ["b", "c"]

    def test_all_down_refuses_everything(self, harness: Stores) -> None:
        harness.broken |= set(range(STORES))
        harness.crash()
        with pytest.raises(ServerBusyError, match="All stores"):
            harness.engine.sender("q").accept([message("a")])
        assert queue_of(harness).acquire(1) is None

    @pytest.mark.parametrize("path", ["q", "q/$DeadLetterQueue", "q/$Transfer/$DeadLetterQueue"])
    def test_those_who_wait_look_again_when_it_is_back(self, harness: Stores, path: str) -> None:
        waits: list[bool] = []
        queue = queue_of(harness, path)
        queue.add_listener(lambda: waits.append(queue.is_whole))
        harness.journals[1].fail_syncs = OSError("broken")
        send(harness, "q", message("lost", key=key_in(1)))
        harness.journals[1].fail_syncs = None
        assert not queue.is_whole
        waits.clear()
        harness.stores.retry()
        harness.commit()
        assert queue.is_whole
        assert True in waits

    def test_a_failed_catalog_leaves_fragments_and_their_locks(self, harness: Stores) -> None:
        send(harness, "q", message("a"))
        queue = queue_of(harness)
        acquired = queue.acquire(1)
        assert acquired is not None
        harness.main.fail_syncs = OSError("bad sector")
        harness.engine.create_queue("other", QUEUE)
        harness.commit()
        harness.main.fail_syncs = None
        assert harness.engine.get_queue("other") is None
        assert queue_of(harness) is queue
        assert queue.complete(acquired.tags) == [True]

    def test_nothing_is_changed_while_a_catalog_is_not_back(
        self, harness: Stores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was read of it before a read was refused was delivered already."""

        def refuse() -> None:
            raise StoreError("a block cannot be read")

        harness.engine.create_queue("other", QUEUE)
        harness.engine.create_topic("topic", TopicDescription(enable_partitioning=True))
        with monkeypatch.context() as patched:
            patched.setattr(harness.engine.hubs, "reload", refuse)
            harness.main.fail_syncs = OSError("bad sector")
            with pytest.raises(StoreError, match="a block"):
                harness.commit_catalog()
            harness.main.fail_syncs = None
            for change in (
                lambda: harness.engine.delete_queue("other"),
                lambda: harness.engine.delete_topic("topic"),
                lambda: harness.engine.create_queue("third", QUEUE),
            ):
                with pytest.raises(StoreError, match="not reopened yet"):
                    change()
        harness.engine.tick()
        assert [name for name, _ in harness.engine.list_queues()] == ["q"]
        harness.engine.delete_queue("q")


class TestRemoval:
    def test_nothing_is_left(self, harness: Stores) -> None:
        engine = harness.engine
        engine.create_queue("s", QueueDescription(enable_partitioning=True, requires_session=True))
        engine.create_topic("t", TopicDescription(enable_partitioning=True))
        engine.create_subscription("t", "all")
        harness.commit()
        empty = {index: _rows(harness, index) + 1 for index in range(STORES)}  # and the counter of sessions' numbers
        send(harness, "q", *(message(str(number)) for number in range(20)))
        send(harness, "s", *(message(str(number), session=str(number)) for number in range(20)))
        send(harness, "t", *(message(str(number)) for number in range(20)))
        queue = queue_of(harness)
        acquired = queue.acquire(1)
        assert acquired is not None
        queue.dead_letter(acquired.tags)
        harness.commit()
        for name in ("q", "s"):
            engine.delete_queue(name)
        engine.delete_topic("t")
        with pytest.raises(EntityNotFoundError):
            queue.acquire(1)
        harness.commit()
        assert {index: _rows(harness, index) for index in range(STORES)} == empty
        assert list(harness.main.scan(DOOMED, after(DOOMED))) == []

    @pytest.mark.parametrize("path", ["q", "q/$DeadLetterQueue", "q/$Transfer/$DeadLetterQueue"])
    def test_receivers_are_notified(self, harness: Stores, path: str) -> None:
        reported: list[str] = []
        queue = queue_of(harness, path)
        queue.add_listener(lambda: reported.append("listener"))
        harness.engine.delete_queue("q")
        harness.engine.create_queue("q", QUEUE)
        harness.commit()
        assert "listener" in reported
        with pytest.raises(EntityNotFoundError):
            queue.check_receivable()
        queue_of(harness, path).check_receivable()

    @pytest.mark.parametrize("path", ["q", "q/$DeadLetterQueue", "q/$Transfer/$DeadLetterQueue"])
    def test_a_deletion_that_failed_leaves_receivers_what_they_have(self, harness: Stores, path: str) -> None:
        queue = queue_of(harness, path)
        harness.main.fail_syncs = OSError("bad sector")
        harness.engine.delete_queue("q")
        harness.commit()
        harness.main.fail_syncs = None
        assert queue_of(harness, path) is queue
        queue.check_receivable()

    @pytest.mark.parametrize("kept", [0, 1, 2, 9])
    def test_a_kill_leaves_all_of_it_or_nothing(self, harness: Stores, kept: int) -> None:
        send(harness, "q", *(message(str(number)) for number in range(20)))
        empty_rows = 3  # format, identity, and the counter of sessions' numbers at most
        harness.engine.delete_queue("q")
        harness.commit_catalog()
        harness.crash(kept)
        harness.commit()
        assert harness.engine.get_queue("q") is None
        assert all(_rows(harness, index) <= empty_rows for index in range(STORES))

    def test_a_deletion_that_was_not_durable_took_nothing(self, harness: Stores) -> None:
        send(harness, "q", *(message(str(number)) for number in range(20)))
        harness.engine.delete_queue("q")
        for index in range(STORES):
            harness.commit_store(index)
        harness.crash()
        assert len(drain(harness)) == 20

    def test_a_deletion_that_failed_took_nothing(self, harness: Stores) -> None:
        send(harness, "q", *(message(str(number)) for number in range(20)))
        harness.main.fail_syncs = OSError("bad sector")
        harness.engine.delete_queue("q")
        harness.commit()
        harness.main.fail_syncs = None
        assert len(drain(harness)) == 20

    def test_a_deletion_that_the_store_shows_after_a_failure_takes_nothing_before_it_is_durable(
        self, harness: Stores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a full disk the store continues with what was written, and a power cut may take that away."""
        harness.engine.sender("q").accept([message("kept", key="a")])
        harness.commit()
        harness.engine.delete_queue("q")
        commit = harness.engine.begin_commit()
        assert commit is not None
        monkeypatch.setattr(harness.main, "reopen", lambda: None)
        harness.engine.fail_commit(commit, StoreError("no space left on device"))
        for index in range(STORES):
            harness.commit_store(index)
        harness.crash()
        assert harness.engine.runtime("q").active_message_count == 1

    def test_an_entity_that_the_store_shows_after_a_failure_takes_nothing_before_it_is_durable(
        self, harness: Stores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it took would have no entity after a power cut."""
        harness.engine.create_queue("new", QUEUE)
        commit = harness.engine.begin_commit()
        assert commit is not None
        monkeypatch.setattr(harness.main, "reopen", lambda: None)
        harness.engine.fail_commit(commit, StoreError("no space left on device"))
        with pytest.raises(ServerBusyError):
            harness.engine.sender("new").accept([message("early")])
        harness.advance(11_000)
        harness.engine.sender("new").accept([message("kept")])
        harness.commit()
        harness.crash()
        assert harness.engine.runtime("new").active_message_count == 1

    def test_what_a_store_has_goes_when_it_is_back(self, harness: Stores) -> None:
        send(harness, "q", *(message(str(number), key=key_in(1)) for number in range(20)))
        harness.broken.add(1)
        harness.crash()
        harness.engine.delete_queue("q")
        harness.commit()
        assert len(list(harness.main.scan(DOOMED, after(DOOMED)))) == 1
        harness.broken.clear()
        harness.crash()
        harness.commit()
        assert _rows(harness, 1) <= 3
        assert list(harness.main.scan(DOOMED, after(DOOMED))) == []


class TestDescriptions:
    def test_nothing_is_taken_before_the_row_is_durable(self) -> None:
        """I3."""
        harness = Stores()
        harness.engine.create_queue("q", QUEUE)
        with pytest.raises(ServerBusyError, match="being created"):
            harness.engine.sender("q").accept([message("a")])
        harness.commit_catalog()
        assert send(harness, "q", message("a")) == ["ok"]

    def test_the_layout_is_that_of_the_creation(self, harness: Stores) -> None:
        send(harness, "q", *(message(str(number), key=str(number)) for number in range(20)))
        harness.limits = type(harness.limits)(partitions_per_entity=2, partition_stores=1)
        harness.crash()
        assert len(drain(harness)) == 20
        harness.engine.create_queue("small", QUEUE)
        harness.commit()
        send(harness, "small", *(message(str(number), key=str(number)) for number in range(20)))
        assert {fragment_of(sequence) for _, sequence in drain(harness, "small")} == {0, 1}

    def test_settings_reach_every_fragment(self, harness: Stores) -> None:
        changed = QueueDescription(enable_partitioning=True, default_message_time_to_live_ms=1000, max_delivery_count=1)
        harness.engine.update_queue("q", changed)
        send(harness, "q", *(message(str(number)) for number in range(FRAGMENTS)))
        harness.advance(5_000)
        assert harness.engine.runtime("q").message_count == 0

    def test_what_is_not_served_is_refused(self, harness: Stores) -> None:
        with pytest.raises(InvalidArgumentError, match="EnablePartitioning"):
            harness.engine.update_queue("q", QueueDescription())
        with pytest.raises(NotAllowedError, match="takes no sends"):
            harness.engine.via("q/$DeadLetterQueue", "q")
        harness.engine.create_topic("t", TopicDescription(enable_partitioning=True))
        harness.commit()
        harness.limits = type(harness.limits)(max_partitioned_entities=2)
        harness.crash()
        with pytest.raises(QuotaExceededError, match="partitioned"):
            harness.engine.create_queue("more", QUEUE)


class TestTransactions:
    def test_one_fragment_takes_part_as_a_whole(self, harness: Stores) -> None:
        send(harness, "q", message("a", key="k"))
        queue = queue_of(harness)
        acquired = queue.acquire(1)
        assert acquired is not None
        transaction = harness.engine.transaction()
        ended: list[Ending] = []
        transaction.settle(queue, acquired.tags, queue.complete, ended.append)
        transaction.send(harness.engine.sender("q"), [message("b", key="k")])
        transaction.send(harness.engine.sender("q"), [message("c")])  # without a key: where the others are
        other = next(f"o{n}" for n in range(100) if place(f"o{n}", FRAGMENTS) != place("k", FRAGMENTS))
        with pytest.raises(NotAllowedError, match="same partition key"):
            transaction.send(harness.engine.sender("q"), [message("d", key=other)])
        done: list[str] = []
        transaction.commit(lambda: done.append("ok"))
        assert ended == []
        harness.commit()
        assert (ended, done) == ([Ending.COMMITTED], ["ok"])
        harness.crash()
        found = drain(harness)
        assert [body for body, _ in found] == ["b", "c"]
        assert {fragment_of(sequence) for _, sequence in found} == {place("k", FRAGMENTS)}

    def test_scheduling_and_cancelling_are_of_one_fragment(self, harness: Stores) -> None:
        queue, due_ms = harness.engine.sender("q"), harness.clock.wall_ms() + 60_000
        other = next(f"o{n}" for n in range(100) if place(f"o{n}", FRAGMENTS) != place("k", FRAGMENTS))
        old, elsewhere = queue.schedule([(message("a", key="k"), due_ms), (message("b", key=other), due_ms)])
        harness.commit()
        transaction = harness.engine.transaction()
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
        harness.commit()
        harness.crash()
        queue = harness.engine.sender("q")
        with pytest.raises(MessageNotFoundError):
            queue.cancel_scheduled([old])
        queue.cancel_scheduled([new, elsewhere])

    def test_a_commit_finds_its_entity_deleted(self, harness: Stores) -> None:
        """Its fragments go only when that is durable, and their stores are up."""
        sending, scheduling = harness.engine.transaction(), harness.engine.transaction()
        sending.send(harness.engine.sender("q"), [message("a")])
        due_ms = harness.clock.wall_ms() + 60_000
        scheduling.schedule(harness.engine.sender("q"), [(message("b"), due_ms)], lambda: None, lambda _: None)
        harness.engine.delete_queue("q")
        for transaction in (sending, scheduling):
            with pytest.raises(TransactionRolledBackError, match="'q'"):
                transaction.commit()

    def test_a_roll_back_leaves_everything(self, harness: Stores) -> None:
        transaction = harness.engine.transaction()
        transaction.send(harness.engine.sender("q"), [message("b", key="k")])
        transaction.rollback()
        harness.commit()
        assert drain(harness) == []


def _rows(harness: Stores, index: int) -> int:
    return len(list(harness.journals[index].scan(b"", b"\xff" * 32)))


def test_a_look_at_all_fragments_leaves_nothing_out(harness: Stores) -> None:
    """Each reads so much and no more, and where one may have more the look ends."""
    for key in ("a", "b", "c"):
        send(harness, "q", *[message("x" * 900_000, key=key, message_id="m")] * 25)
    queue = queue_of(harness)
    seen: list[int] = []
    while found := [sequence_of(payload) for payload in queue.peek(seen[-1] + 1 if seen else 0, 4000)]:
        assert len(found) <= 40
        seen += found
    assert len(seen) == len(set(seen)) == 75


def test_what_was_deleted_leaves_nothing_in_memory(harness: Stores) -> None:
    engines = [store.engine for store in harness.engine.stores or () if store.engine is not None]
    before = [(len(engine._numbers), len(engine.transfers), len(engine._first_numbers)) for engine in engines]
    for _ in range(3):
        harness.engine.create_queue("short", QUEUE)
        harness.commit()
        send(harness, "short", message("a"))
        harness.engine.delete_queue("short")
        harness.commit()
        harness.commit()
    assert [(len(engine._numbers), len(engine.transfers), len(engine._first_numbers)) for engine in engines] == before


class TestABadBlock:
    """I4 of `partitions`: the disk of one store does not give the row of a fragment."""

    @staticmethod
    def _spoil(harness: Stores, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        get = MemoryJournal.get

        def spoiled(self: MemoryJournal, key: bytes) -> bytes | None:
            if self is harness.journals[1] and key == state_key(number):
                raise StoreError("a block cannot be read")
            return get(self, key)

        monkeypatch.setattr(MemoryJournal, "get", spoiled)

    @staticmethod
    def _number(harness: Stores, path: str, index: int) -> int:
        return harness.engine.receiver(path).number + 3 * index  # type: ignore[attr-defined, no-any-return]

    def test_the_namespace_starts_all_the_same(self, harness: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
        harness.engine.create_queue("plain")
        harness.commit()
        keys = {place(key, FRAGMENTS): key for key in map(str, range(100))}
        assert send(harness, "q", *(message(f"m{index}", key=keys[index]) for index in range(FRAGMENTS))) == ["ok"] * 7
        self._spoil(harness, monkeypatch, self._number(harness, "q", 1))
        harness.crash()
        assert [store.is_up for store in harness.stores] == [True, False, True]
        assert send(harness, "plain", message("a")) == ["ok"]
        assert send(harness, "q", message("b")) == ["ok"]
        with pytest.raises(ServerBusyError):
            harness.engine.sender("q").accept([message("c", key=keys[1])])
        for _ in range(3):
            harness.stores.retry()
            harness.commit()
        assert not harness.stores.get(1).is_up
        monkeypatch.undo()
        for _ in range(3):
            harness.stores.retry()
            harness.commit()
        assert queue_of(harness).is_whole
        assert sorted(map(body_of, queue_of(harness).peek(0, 20))) == [
            "b",
            *(f"m{index}" for index in range(FRAGMENTS)),
        ]  # type: ignore[arg-type]

    def test_the_catalog_is_read_again_all_the_same(self, harness: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
        """And what is staged in its store for others is committed."""
        harness.engine.create_queue("plain")
        harness.commit()
        self._spoil(
            harness, monkeypatch, self._number(harness, "q", FRAGMENTS + 2)
        )  # of `r`: `plain` has three numbers
        answers: list[str] = []
        harness.engine.sender("plain").accept(
            [message("a")], lambda: answers.append("ok"), lambda _: answers.append("no")
        )
        harness.engine.create_queue("r", QUEUE)
        harness.commit()
        assert answers == ["ok"]
        assert harness.engine.get_queue("r") is not None
        assert [store.is_up for store in harness.stores] == [True, False, True]
        monkeypatch.undo()
        for _ in range(3):
            harness.stores.retry()
            harness.commit()
        assert queue_of(harness, "r").is_whole
        assert send(harness, "r", *(message(str(number)) for number in range(FRAGMENTS))) == ["ok"] * FRAGMENTS

    def test_what_a_deleted_entity_has_goes_once_it_can_be_read(
        self, harness: Stores, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert send(harness, "q", *(message(str(number)) for number in range(FRAGMENTS))) == ["ok"] * FRAGMENTS
        number = self._number(harness, "q", 1)
        harness.journals[1].fail_syncs = OSError("broken")
        send(harness, "q", *(message(str(number)) for number in range(FRAGMENTS)))
        harness.engine.delete_queue("q")
        harness.commit()
        harness.journals[1].fail_syncs = None
        self._spoil(harness, monkeypatch, number)
        harness.crash()
        assert harness.engine.get_queue("q") is None
        monkeypatch.undo()
        for _ in range(3):
            harness.stores.retry()
            harness.commit()
        assert not list(harness.main.scan(DOOMED, after(DOOMED)))


def test_those_who_wait_look_again_when_a_store_is_back_whatever_settings_meet(
    harness: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    queue_of(harness).add_listener(lambda: reported.append("listener"))
    store = harness.stores.get(1)

    def refused() -> None:
        raise StoreError("the catalog's store is away")

    monkeypatch.setattr(harness.engine._partitions, "_settle", refused)
    with pytest.raises(StoreError):
        harness.engine._partitions._on_store(store)
    assert reported == ["listener"]


def test_a_store_is_up_when_its_commit_has_ended_whatever_a_callback_raises(harness: Stores) -> None:
    store = harness.stores.get(1)
    assert store.engine is not None
    harness.journals[1].fail_syncs = OSError("broken")
    send(harness, "q", *(message(str(number)) for number in range(FRAGMENTS)))
    harness.journals[1].fail_syncs = None
    assert not store.is_up

    def odd() -> None:
        raise ValueError("odd")

    store.engine._staging.confirm(odd)
    store.engine.retry()
    commit = store.engine.begin_commit()
    assert commit is not None
    harness.journals[1].sync()
    with pytest.raises(ExceptionGroup):
        store.engine.end_commit(commit)
    assert store.is_up
    assert harness.reported[-1] == (1, True)


def test_a_failed_store_is_reported_whatever_its_entities_raise(
    harness: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = harness.stores.get(1)
    assert store.engine is not None

    def refused() -> None:
        raise StoreError("the catalog's store is away")

    monkeypatch.setattr(harness.engine._partitions, "_settle", refused)
    with pytest.raises(StoreError):
        store.engine._fail(StoreError("broken"))
    assert harness.reported[-1] == (1, False)
