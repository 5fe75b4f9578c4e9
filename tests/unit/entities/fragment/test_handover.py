"""Forwarding and sending via, from and to partitioned entities: over stores that fail and are killed one by one."""

from __future__ import annotations

import pytest

from harness.fixture.partitioned_fixture import FRAGMENTS, STORES, Stores, body_of, message, sequence_of
from isthmus.amqp import section
from isthmus.entities import (
    EntityStatus,
    PartitionedQueueBase,
    Queue,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.fragment.message_key import fragment_of, place
from isthmus.entities.storage.key import ARRIVED, LEAVING, after, state_key
from isthmus.errors import NotAllowedError, ServerBusyError, StoreError


@pytest.fixture
def harness() -> Stores:
    """`p` and `r` are partitioned, `plain` is not."""
    stores = Stores()
    for name in ("p", "r"):
        stores.engine.create_queue(name, QueueDescription(enable_partitioning=True))
    stores.engine.create_queue("plain")
    stores.commit()
    return stores


def forward(harness: Stores, name: str, to: str | None, *, dead: str | None = None) -> None:
    partitioned = name in ("p", "r")
    harness.engine.update_queue(
        name,
        QueueDescription(
            enable_partitioning=partitioned, forward_to=to, forward_dead_lettered_messages_to=dead, max_delivery_count=1
        ),
    )
    harness.commit()


def send(harness: Stores, path: str, *messages: bytes) -> int:
    """Send each by itself; how many were acknowledged."""
    answers: list[str] = []
    for one in messages:
        harness.engine.sender(path).accept([one], lambda: answers.append("ok"), lambda _: None)
    harness.commit()
    return len(answers)


def drain(harness: Stores, path: str) -> list[str]:
    """Everything that can be received, completed."""
    queue = harness.engine.receiver(path)
    found: list[str] = []
    while (acquired := queue.acquire(100)) is not None:
        found += map(body_of, acquired.payloads)  # type: ignore[arg-type]
        assert all(queue.complete(acquired.tags))
        harness.commit()
    return found


def lines(harness: Stores) -> int:
    """Messages that wait in a line of any store."""
    first, end = bytes([LEAVING]), after(bytes([LEAVING]))
    return sum(len(list(journal.scan(first, end))) for journal in (harness.main, *harness.journals.values()))


def key_in(store: int) -> str:
    return next(f"k{number}" for number in range(1000) if place(f"k{number}", FRAGMENTS) % STORES == store)


class TestForwarding:
    @pytest.mark.parametrize(("source", "target"), [("p", "plain"), ("plain", "p"), ("p", "r")])
    def test_messages_arrive_once_in_the_order_of_their_keys(self, harness: Stores, source: str, target: str) -> None:
        forward(harness, source, target)
        bodies = [f"{key}{number}" for number in range(10) for key in "abcde"]
        assert send(harness, source, *(message(body, key=body[0]) for body in bodies)) == 50
        assert lines(harness) == 0
        assert harness.engine.runtime(source).message_count == 0
        assert harness.engine.runtime(source).size_bytes == 0
        harness.crash()
        found = drain(harness, target)
        assert sorted(found) == sorted(bodies)
        for key in "abcde":
            assert [body for body in found if body[0] == key] == [f"{key}{number}" for number in range(10)]

    def test_a_key_decides_on_the_fragment_at_the_target(self, harness: Stores) -> None:
        forward(harness, "plain", "p")
        send(harness, "plain", message("a", key="x"), message("b", session="y"))
        where = {body_of(each): fragment_of(sequence_of(each)) for each in harness.engine.receiver("p").peek(0, 9)}  # type: ignore[arg-type]
        assert where == {"a": place("x", FRAGMENTS), "b": place("y", FRAGMENTS)}

    def test_without_a_key_a_message_stays_in_its_store(self, harness: Stores) -> None:
        forward(harness, "p", "r")
        send(harness, "p", *(message(str(number)) for number in range(FRAGMENTS * 2)))
        assert len(drain(harness, "r")) == FRAGMENTS * 2
        first, end = bytes([ARRIVED]), after(bytes([ARRIVED]))
        assert not any(list(journal.scan(first, end)) for journal in harness.journals.values())

    def test_what_has_arrived_leaves_the_line_though_a_commit_fails_while_more_is_delivered(
        self, harness: Stores
    ) -> None:
        """I3: the line's store forgets that it removed a message, and the next delivery ends after that."""
        forward(harness, "plain", "p")
        sender, key = harness.engine.sender("plain"), key_in(0)
        send(harness, "plain", message("first", key=key))
        for body in "ab":
            sender.accept([message(body, key=key)])
            harness.commit_catalog()  # a is in transit to the store, b waits after it
        harness.commit_store(0)
        harness.main.fail_syncs = StoreError("no space")
        harness.commit_catalog()  # that a has left is lost; b is in transit
        harness.main.fail_syncs = None
        harness.commit_store(0)
        harness.commit()
        assert drain(harness, "p") == ["first", "a", "b"]
        assert lines(harness) == 0
        assert harness.engine.runtime("plain").transfer_message_count == 0
        assert harness.engine.handover.statistics() == {"crossing_messages": 0}

    def test_what_left_the_line_is_counted_once_when_the_other_store_fails(self, harness: Stores) -> None:
        """The other store is asked again before that is written."""
        forward(harness, "plain", "p")
        sender, key = harness.engine.sender("plain"), key_in(0)
        send(harness, "plain", message("first", key=key))
        for body in "ab":
            sender.accept([message(body, key=key)])
            harness.commit_catalog()
        harness.commit_store(0)  # that a has left is staged, and b is in transit
        harness.journals[0].fail_syncs = StoreError("no space")
        harness.commit_store(0)
        harness.journals[0].fail_syncs = None
        harness.stores.retry()
        harness.commit_store(0)
        harness.engine.handover.pump()
        harness.commit_store(0)
        harness.commit()
        assert drain(harness, "p") == ["first", "a", "b"]
        assert lines(harness) == 0
        assert harness.engine.runtime("plain").transfer_message_count == 0
        assert harness.engine.handover.statistics() == {"crossing_messages": 0}

    def test_what_waited_continues_and_nothing_is_received_there(self, harness: Stores) -> None:
        send(harness, "p", *(message(str(number)) for number in range(20)))
        forward(harness, "p", "plain")
        assert sorted(map(int, drain(harness, "plain"))) == list(range(20))
        queue = harness.engine.receiver("p")
        with pytest.raises(NotAllowedError, match="auto-forwarding"):
            queue.check_stays()
        with pytest.raises(NotAllowedError, match="auto-forwarding"):
            queue.acquire(1)
        forward(harness, "p", None)
        send(harness, "p", message("stays"))
        assert drain(harness, "p") == ["stays"]

    def test_the_target_detects_duplicates_as_of_any_sender(self, harness: Stores) -> None:
        settings = QueueDescription(enable_partitioning=True, requires_duplicate_detection=True)
        harness.engine.create_queue("once", settings)
        harness.engine.create_queue("in", QueueDescription(forward_to="once"))
        harness.commit()
        send(harness, "once", message("a", message_id="1", key="k"), message("b", message_id="2"))
        send(
            harness,
            "in",
            message("c", message_id="1", key="k"),
            message("d", message_id="1"),
            message("e", message_id="2"),
        )
        assert sorted(drain(harness, "once")) == ["a", "b", "d"]

    def test_the_first_sequence_number_goes_with_them(self, harness: Stores) -> None:
        forward(harness, "plain", "p")
        send(harness, "plain", message("a"), message("b"))
        reported = {}
        for payload in harness.engine.receiver("p").peek(0, 9):
            assert isinstance(payload, bytes)
            annotations = section.decode_map(payload, section.locate(payload).message_annotations)
            reported[body_of(payload)] = annotations["x-opt-enqueue-sequence-number"]
        assert reported == {"a": 1, "b": 2}

    def test_topics_and_subscriptions(self, harness: Stores) -> None:
        engine = harness.engine
        engine.create_topic("t", TopicDescription(enable_partitioning=True))
        engine.create_subscription("t", "on", SubscriptionDescription(forward_to="plain"))
        engine.create_subscription("t", "over", SubscriptionDescription(forward_to="p"))
        harness.commit()
        send(harness, "t", *(message(str(number), key=str(number)) for number in range(8)))
        assert sorted(drain(harness, "plain")) == sorted(drain(harness, "p")) == [str(number) for number in range(8)]
        engine.create_queue("in", QueueDescription(forward_to="t"))
        engine.create_subscription("t", "all")
        harness.commit()
        send(harness, "in", message("x"))
        assert drain(harness, "t/Subscriptions/all") == ["x"]

    def test_four_hops_and_no_fifth(self, harness: Stores) -> None:
        forward(harness, "plain", "p")
        forward(harness, "p", "r")
        forward(harness, "r", "plain")
        send(harness, "plain", message("round", key="k"))
        assert lines(harness) == 0
        found = [path for path in ("plain", "p", "r") if harness.engine.runtime(path).dead_letter_message_count]
        assert found == ["p"]  # plain, p, r, plain, p
        (payload,) = harness.engine.receiver("p/$DeadLetterQueue").peek(0, 9)
        assert isinstance(payload, bytes)
        properties = section.decode_map(payload, section.locate(payload).application_properties)
        assert properties["DeadLetterReason"] == "MaxTransferHopCountExceeded"

    def test_dead_letters_continue(self, harness: Stores) -> None:
        forward(harness, "p", None, dead="plain")
        send(harness, "p", message("a", key="k"), message("b", key="k"))
        queue = harness.engine.receiver("p")
        acquired = queue.acquire(2)
        assert acquired is not None
        queue.dead_letter(acquired.tags, "bad")
        harness.commit()
        assert harness.engine.runtime("p").dead_letter_message_count == 0
        assert drain(harness, "plain") == ["a", "b"]

    def test_dead_letters_that_the_target_does_not_take_stay(self, harness: Stores) -> None:
        forward(harness, "p", None, dead="plain")
        harness.engine.update_queue("plain", QueueDescription(status=EntityStatus.SEND_DISABLED))
        send(harness, "p", message("a", key="k"))
        queue = harness.engine.receiver("p")
        acquired = queue.acquire(1)
        assert acquired is not None
        queue.dead_letter(acquired.tags, "bad")
        harness.commit()
        assert harness.engine.runtime("p").dead_letter_message_count == 1
        harness.engine.update_queue("plain", QueueDescription())
        harness.commit()
        assert drain(harness, "plain") == ["a"]


class TestRefusals:
    def test_a_target_that_is_disabled_dead_letters_at_the_source(self, harness: Stores) -> None:
        forward(harness, "plain", "p")
        harness.engine.update_queue("p", QueueDescription(enable_partitioning=True, status=EntityStatus.SEND_DISABLED))
        harness.commit()
        send(harness, "plain", message("a"))
        assert drain(harness, "plain/$DeadLetterQueue") == ["a"]

    @pytest.mark.parametrize(("source", "target"), [("p", "plain"), ("plain", "p")])
    def test_a_target_that_was_removed_gets_nothing(self, harness: Stores, source: str, target: str) -> None:
        forward(harness, source, target)
        harness.engine.delete_queue(target)
        harness.commit()
        send(harness, source, message("a"), message("b"))
        assert harness.engine.runtime(source).transfer_dead_letter_message_count == 2
        harness.crash()
        assert sorted(drain(harness, f"{source}/$Transfer/$DeadLetterQueue")) == ["a", "b"]
        assert lines(harness) == 0

    @pytest.mark.parametrize("is_deleted", [False, True])
    def test_what_a_target_refuses_after_it_left_comes_back(self, harness: Stores, is_deleted: bool) -> None:
        """The target changes while messages wait in the line: they go to a dead-letter queue of the source, once."""
        forward(harness, "plain", "p")
        sender = harness.engine.sender("plain")
        sender.accept([message(str(number), key="k") for number in range(3)])
        harness.commit_catalog()
        assert lines(harness) == 3
        if is_deleted:
            harness.engine.delete_queue("p")
        else:
            harness.engine.update_queue("p", QueueDescription(enable_partitioning=True, status=EntityStatus.DISABLED))
        harness.commit_catalog()
        harness.crash()
        harness.commit()
        assert lines(harness) == 0
        path = "plain/$Transfer/$DeadLetterQueue" if is_deleted else "plain/$DeadLetterQueue"
        assert drain(harness, path) == ["0", "1", "2"]

    def test_keys_that_contradict_each_other_dead_letter(self, harness: Stores) -> None:
        forward(harness, "plain", "p")
        send(harness, "plain", message("a", key="x", session="y"), message("b"))
        assert drain(harness, "p") == ["b"]
        assert drain(harness, "plain/$DeadLetterQueue") == ["a"]

    def test_a_target_with_sessions_takes_only_messages_that_have_one(self, harness: Stores) -> None:
        harness.engine.create_queue("s", QueueDescription(enable_partitioning=True, requires_session=True))
        harness.engine.create_queue("in", QueueDescription(forward_to="s"))
        harness.commit()
        send(harness, "in", message("a", session="x"), message("b"))
        assert harness.engine.runtime("s").active_message_count == 1
        assert drain(harness, "in/$DeadLetterQueue") == ["b"]


class TestFailures:
    def test_a_store_that_is_down_gets_its_messages_later(self, harness: Stores) -> None:
        forward(harness, "plain", "p")
        bad = key_in(1)
        harness.journals[1].fail_syncs = OSError("bad sector")
        send(harness, "p", message("breaks", key=bad))
        assert send(harness, "plain", message("a", key=bad), message("b"), message("c", key=bad)) == 3
        assert drain(harness, "p") == ["b"]
        runtime = harness.engine.runtime("plain")
        assert (runtime.transfer_message_count, runtime.message_count, runtime.active_message_count) == (2, 2, 0)
        assert runtime.size_bytes > 0
        harness.crash()
        harness.journals[1].fail_syncs = None
        harness.stores.retry()
        harness.commit()
        assert [body for body in drain(harness, "p") if body != "breaks"] == ["a", "c"]
        assert harness.engine.runtime("plain").message_count == 0

    @pytest.mark.parametrize("how", ["fail_writes", "fail_syncs"])
    @pytest.mark.parametrize(("source", "target"), [("plain", "p"), ("p", "plain"), ("p", "r")])
    def test_a_delivery_that_fails_is_made_once(self, harness: Stores, how: str, source: str, target: str) -> None:
        forward(harness, source, target)
        bodies = [f"{number}" for number in range(30)]
        for number, body in enumerate(bodies):
            index = number % (STORES + 1) - 1
            journal = harness.main if index < 0 else harness.journals[index]
            send(harness, source, message(body, key=body)) if number % 3 == 0 else harness.engine.sender(source).accept(
                [message(body, key=body)]
            )
            setattr(journal, how, OSError("broken"))
            harness.commit_store(0)
            harness.commit()
            setattr(journal, how, None)
            harness.stores.retry()
            harness.advance(20_000)
        harness.crash()
        harness.commit()
        found = drain(harness, target)
        assert len(found) == len(set(found)), "a message arrived twice"
        assert lines(harness) == 0

    def test_a_kill_between_arrival_and_removal_doubles_nothing(self, harness: Stores) -> None:
        forward(harness, "plain", "p")
        harness.engine.sender("plain").accept([message(str(number), key="k") for number in range(5)])
        harness.commit_catalog()
        for _ in range(2):  # what the other store says, then the delivery
            harness.commit_store(place("k", FRAGMENTS) % STORES)
        assert lines(harness) == 5, "the removal is staged only"
        harness.crash()
        harness.commit()
        assert lines(harness) == 0
        assert drain(harness, "p") == ["0", "1", "2", "3", "4"]
        assert harness.engine.runtime("plain").message_count == 0

    def test_a_kill_before_arrival_loses_nothing(self, harness: Stores) -> None:
        forward(harness, "p", "plain")
        harness.engine.sender("p").accept([message(str(number), key="k") for number in range(5)])
        harness.commit_store(place("k", FRAGMENTS) % STORES)
        assert lines(harness) == 5
        harness.crash()
        harness.commit()
        assert drain(harness, "plain") == ["0", "1", "2", "3", "4"]

    def test_places_are_not_given_again_after_a_loss_of_the_last_ones(self, harness: Stores) -> None:
        """The source's store is older than the target's, as after a power cut that it did not survive in full."""
        forward(harness, "plain", "p")
        send(harness, "plain", message("a", key="k"))
        drain(harness, "p")
        before = dict(harness.main._table.values), list(harness.main._table.keys)
        harness.clock.advance(5)
        send(harness, "plain", *(message(str(number), key="k") for number in range(50)))
        drain(harness, "p")
        harness.main._table.values, harness.main._table.keys = before
        harness.main.sync()
        harness.main._synced.values, harness.main._synced.keys = dict(before[0]), list(before[1])
        harness.clock.advance(5)
        harness.start()
        harness.commit()
        assert send(harness, "plain", message("new", key="k")) == 1
        assert drain(harness, "p") == ["new"]

    def test_a_source_that_is_deleted_keeps_what_is_in_transit(self, harness: Stores) -> None:
        forward(harness, "p", "plain")
        harness.engine.sender("p").accept([message("a", key="k")])
        harness.commit_store(place("k", FRAGMENTS) % STORES)
        assert lines(harness) == 1
        harness.engine.delete_queue("p")
        harness.commit_catalog()
        harness.crash()
        harness.commit()
        assert drain(harness, "plain") == ["a"]
        harness.crash()
        harness.commit()
        assert lines(harness) == 0

    def test_locked_deliveries_wait(self, harness: Stores) -> None:
        handover = harness.engine.handover
        assert handover is not None
        forward(harness, "plain", "p")
        handover.pause()
        assert send(harness, "plain", message("a")) == 1
        assert handover.is_quiet
        assert handover.statistics() == {"crossing_messages": 1}
        assert drain(harness, "p") == []
        handover.resume()
        harness.commit()
        assert drain(harness, "p") == ["a"]


class TestVia:
    @pytest.mark.parametrize(("between", "to"), [("p", "plain"), ("plain", "p"), ("p", "r")])
    def test_messages_go_via(self, harness: Stores, between: str, to: str) -> None:
        via_sender = harness.engine.via(between, to)
        done: list[str] = []
        via_sender.accept([message("a", key="x")], lambda: done.append("ok"))
        harness.commit()
        assert done == ["ok"]
        assert drain(harness, to) == ["a"]

    def test_the_via_key_chooses_between_and_the_key_behind(self, harness: Stores) -> None:
        via_sender = harness.engine.via("p", "r")
        via, behind = "v", next(f"o{n}" for n in range(100) if place(f"o{n}", FRAGMENTS) != place("v", FRAGMENTS))
        payload = section.encode_message(
            b"x",
            annotations={"x-opt-via-partition-key": via, "x-opt-partition-key": behind},
            properties={"message_id": "1"},
        )
        via_sender.accept([payload])
        harness.commit()
        (found,) = harness.engine.receiver("r").peek(0, 9)
        assert isinstance(found, bytes)
        assert fragment_of(sequence_of(found)) == place(behind, FRAGMENTS)
        annotations = section.decode_map(found, section.locate(found).message_annotations)
        assert fragment_of(annotations["x-opt-enqueue-sequence-number"]) == place(via, FRAGMENTS)

    def test_a_transaction_settles_and_sends_on(self, harness: Stores) -> None:
        send(harness, "p", message("a", key="k"))
        queue = harness.engine.receiver("p")
        assert isinstance(queue, PartitionedQueueBase)
        acquired = queue.acquire(1)
        assert acquired is not None
        transaction = harness.engine.transaction()
        transaction.settle(queue, acquired.tags, queue.complete, lambda _: None)
        transaction.send(harness.engine.via("p", "plain"), [message("b")])
        transaction.send(harness.engine.via("p", "r"), [message("c", key="other")])
        transaction.commit()
        harness.commit()
        harness.crash()
        assert (drain(harness, "p"), drain(harness, "plain"), drain(harness, "r")) == ([], ["b"], ["c"])

    def test_a_transaction_is_on_one_partition(self, harness: Stores) -> None:
        one = harness.engine.transaction()
        one.send(harness.engine.sender("p"), [message("a", key="k")])
        other = next(f"o{n}" for n in range(100) if place(f"o{n}", FRAGMENTS) != place("k", FRAGMENTS))
        payload = section.encode_message(b"b", annotations={"x-opt-via-partition-key": other})
        with pytest.raises(NotAllowedError, match="same partition key"):
            one.send(harness.engine.via("p", "plain"), [payload])
        one.commit()
        harness.commit()
        assert (drain(harness, "p"), drain(harness, "plain")) == (["a"], [])

    def test_a_roll_back_sends_nothing(self, harness: Stores) -> None:
        one = harness.engine.transaction()
        one.send(harness.engine.via("p", "plain"), [message("b")])
        one.rollback()
        harness.commit()
        assert drain(harness, "plain") == []

    def test_via_a_key_of_a_store_that_is_down(self, harness: Stores) -> None:
        harness.journals[1].fail_syncs = OSError("bad sector")
        send(harness, "p", message("breaks", key=key_in(1)))
        payload = section.encode_message(b"b", annotations={"x-opt-via-partition-key": key_in(1)})
        with pytest.raises(ServerBusyError, match="store 1"):
            harness.engine.via("p", "plain").accept([payload])
        harness.engine.via("p", "plain").accept([message("c")])
        harness.commit()
        assert drain(harness, "plain") == ["c"]

    def test_a_disabled_destination_fills_the_transfer_dead_letter_queue(self, harness: Stores) -> None:
        harness.engine.update_queue("plain", QueueDescription(status=EntityStatus.SEND_DISABLED))
        harness.commit()
        harness.engine.via("p", "plain").accept([message("a", key="k")])
        harness.commit()
        assert harness.engine.runtime("p").transfer_dead_letter_message_count == 1
        assert drain(harness, "p/$Transfer/$DeadLetterQueue") == ["a"]


def test_plain_namespaces_have_no_line() -> None:
    harness = Stores()
    harness.engine.create_queue("b")
    harness.engine.create_queue("a", QueueDescription(forward_to="b"))
    harness.commit()
    send(harness, "a", message("x"))
    queue = harness.engine.receiver("b")
    assert isinstance(queue, Queue)
    assert drain(harness, "b") == ["x"]
    assert lines(harness) == 0
    assert harness.journals == {}


def test_a_target_that_could_not_be_loaded_again_is_not_taken_for_deleted(
    harness: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is forwarded meanwhile from stores that are up waits for it, and is in no dead-letter queue."""
    forward(harness, "p", "plain")
    journal = harness.main
    get, row = journal.get, state_key(harness.engine.sender("plain").number)  # type: ignore[union-attr]

    def refuses(key: bytes) -> bytes | None:
        if key == row:
            raise StoreError("a block cannot be read")
        return get(key)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "get", refuses)
        harness.engine.create_queue("fails")
        with pytest.raises(StoreError):
            harness.engine.fail_commit(harness.engine.begin_commit(), StoreError("no space"))  # type: ignore[arg-type]
        via_sender = harness.engine._queues["p"].queue
        via_sender.accept([message("waits", key="a")])
        for index in range(STORES):
            harness.commit_store(index)
    for _ in range(3):
        harness.advance(10_000)
    assert drain(harness, "plain") == ["waits"]
    assert drain(harness, "p/$Transfer/$DeadLetterQueue") == []


def test_a_receiver_gets_an_error_when_messages_could_not_be_read(
    harness: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for messages that are there already, and are not reported again."""
    assert send(harness, "p", message("there", key="a")) == 1
    index = place("a", FRAGMENTS)
    journal = harness.journals[index % STORES]

    def refuses(*args: object, **kwargs: object) -> None:
        raise StoreError("a block cannot be read")

    queue = harness.engine.receiver("p")
    with monkeypatch.context() as patch:
        patch.setattr(journal, "scan", refuses)
        with pytest.raises(StoreError):
            queue.acquire(1)
    assert drain(harness, "p") == ["there"]


def test_what_a_failure_left_in_the_line_is_not_delivered_before_it_is_durable(
    harness: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the store continues with what was written; after a power cut it would be moved once more."""
    harness.engine.sender("plain").accept([message("once")])
    harness.commit()
    harness.engine.update_queue("plain", QueueDescription(forward_to="p"))
    commit = harness.engine.begin_commit()
    assert commit is not None
    monkeypatch.setattr(harness.main, "reopen", lambda: None)
    harness.engine.fail_commit(commit, StoreError("no space left on device"))
    harness.engine.handover.pump()  # type: ignore[union-attr]
    for _ in range(3):
        for index in range(STORES):
            harness.commit_store(index)
    monkeypatch.undo()
    harness.crash()
    for _ in range(3):
        harness.advance(11_000)
    assert [*drain(harness, "plain"), *drain(harness, "p")] == ["once"]


def test_what_a_failure_left_in_the_line_continues_though_nothing_else_is_stored(
    harness: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward(harness, "plain", "p")
    for journal in harness.journals.values():
        journal.fail_writes = OSError("no space")
    harness.stores.get(0)
    harness.engine.sender("plain").accept([message("waits", key="a")])
    harness.commit()
    harness.engine._fail(StoreError("a block cannot be read"))
    for journal in harness.journals.values():
        journal.fail_writes = None
    harness.stores.retry()
    for _ in range(4):
        harness.advance(11_000)
    assert drain(harness, "p") == ["waits"]
