"""Forwarding and sending via, from and to partitioned entities: over stores that fail and are killed one by one."""

from __future__ import annotations

import pytest

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
from partitioned_fixture import FRAGMENTS, STORES, Stores, body_of, message, sequence_of


@pytest.fixture
def held() -> Stores:
    """`p` and `r` are partitioned, `plain` is not."""
    stores = Stores()
    for name in ("p", "r"):
        stores.engine.create_queue(name, QueueDescription(enable_partitioning=True))
    stores.engine.create_queue("plain")
    stores.commit()
    return stores


def forward(held: Stores, name: str, to: str | None, *, dead: str | None = None) -> None:
    partitioned = name in ("p", "r")
    held.engine.update_queue(
        name,
        QueueDescription(
            enable_partitioning=partitioned, forward_to=to, forward_dead_lettered_messages_to=dead, max_delivery_count=1
        ),
    )
    held.commit()


def send(held: Stores, path: str, *messages: bytes) -> int:
    """Send each by itself; how many were acknowledged."""
    answers: list[str] = []
    for one in messages:
        held.engine.sender(path).accept([one], lambda: answers.append("ok"), lambda _: None)
    held.commit()
    return len(answers)


def drain(held: Stores, path: str) -> list[str]:
    """Everything that can be received, completed."""
    queue = held.engine.receiver(path)
    found: list[str] = []
    while (acquired := queue.acquire(100)) is not None:
        found += map(body_of, acquired.payloads)  # type: ignore[arg-type]
        assert all(queue.complete(acquired.tags))
        held.commit()
    return found


def lines(held: Stores) -> int:
    """Messages that stand in a line of any store."""
    first, end = bytes([LEAVING]), after(bytes([LEAVING]))
    return sum(len(list(journal.scan(first, end))) for journal in (held.main, *held.journals.values()))


def key_in(store: int) -> str:
    return next(f"k{number}" for number in range(1000) if place(f"k{number}", FRAGMENTS) % STORES == store)


class TestForwarding:
    @pytest.mark.parametrize(("source", "target"), [("p", "plain"), ("plain", "p"), ("p", "r")])
    def test_messages_arrive_once_in_the_order_of_their_keys(self, held: Stores, source: str, target: str) -> None:
        forward(held, source, target)
        bodies = [f"{key}{number}" for number in range(10) for key in "abcde"]
        assert send(held, source, *(message(body, key=body[0]) for body in bodies)) == 50
        assert lines(held) == 0
        assert held.engine.runtime(source).message_count == 0
        assert held.engine.runtime(source).size_bytes == 0
        held.crash()
        found = drain(held, target)
        assert sorted(found) == sorted(bodies)
        for key in "abcde":
            assert [body for body in found if body[0] == key] == [f"{key}{number}" for number in range(10)]

    def test_a_key_decides_on_the_fragment_at_the_target(self, held: Stores) -> None:
        forward(held, "plain", "p")
        send(held, "plain", message("a", key="x"), message("b", session="y"))
        where = {body_of(each): fragment_of(sequence_of(each)) for each in held.engine.receiver("p").peek(0, 9)}  # type: ignore[arg-type]
        assert where == {"a": place("x", FRAGMENTS), "b": place("y", FRAGMENTS)}

    def test_without_a_key_a_message_stays_in_its_store(self, held: Stores) -> None:
        forward(held, "p", "r")
        send(held, "p", *(message(str(number)) for number in range(FRAGMENTS * 2)))
        assert len(drain(held, "r")) == FRAGMENTS * 2
        first, end = bytes([ARRIVED]), after(bytes([ARRIVED]))
        assert not any(list(journal.scan(first, end)) for journal in held.journals.values())

    def test_what_has_arrived_leaves_the_line_though_a_commit_fails_while_more_is_delivered(self, held: Stores) -> None:
        """I3: the line's store forgets that it removed a message, and the next delivery ends after that."""
        forward(held, "plain", "p")
        sender, key = held.engine.sender("plain"), key_in(0)
        send(held, "plain", message("first", key=key))
        for body in "ab":
            sender.accept([message(body, key=key)])
            held.commit_catalog()  # a is on its way to the store, b stands behind it
        held.commit_store(0)
        held.main.fail_syncs = StoreError("no space")
        held.commit_catalog()  # that a has left is lost; b is on its way
        held.main.fail_syncs = None
        held.commit_store(0)
        held.commit()
        assert drain(held, "p") == ["first", "a", "b"]
        assert lines(held) == 0
        assert held.engine.runtime("plain").transfer_message_count == 0
        assert held.engine.handover.statistics() == {"crossing_messages": 0}

    def test_what_left_the_line_is_counted_once_when_the_other_store_fails(self, held: Stores) -> None:
        """The other store is asked again before that is written."""
        forward(held, "plain", "p")
        sender, key = held.engine.sender("plain"), key_in(0)
        send(held, "plain", message("first", key=key))
        for body in "ab":
            sender.accept([message(body, key=key)])
            held.commit_catalog()
        held.commit_store(0)  # that a has left is staged, and b is on its way
        held.journals[0].fail_syncs = StoreError("no space")
        held.commit_store(0)
        held.journals[0].fail_syncs = None
        held.stores.retry()
        held.commit_store(0)
        held.engine.handover.pump()
        held.commit_store(0)
        held.commit()
        assert drain(held, "p") == ["first", "a", "b"]
        assert lines(held) == 0
        assert held.engine.runtime("plain").transfer_message_count == 0
        assert held.engine.handover.statistics() == {"crossing_messages": 0}

    def test_what_waited_goes_on_and_nobody_receives_there(self, held: Stores) -> None:
        send(held, "p", *(message(str(number)) for number in range(20)))
        forward(held, "p", "plain")
        assert sorted(map(int, drain(held, "plain"))) == list(range(20))
        queue = held.engine.receiver("p")
        with pytest.raises(NotAllowedError, match="auto-forwarding"):
            queue.check_stays()
        with pytest.raises(NotAllowedError, match="auto-forwarding"):
            queue.acquire(1)
        forward(held, "p", None)
        send(held, "p", message("stays"))
        assert drain(held, "p") == ["stays"]

    def test_the_target_detects_duplicates_as_of_any_sender(self, held: Stores) -> None:
        settings = QueueDescription(enable_partitioning=True, requires_duplicate_detection=True)
        held.engine.create_queue("once", settings)
        held.engine.create_queue("in", QueueDescription(forward_to="once"))
        held.commit()
        send(held, "once", message("a", message_id="1", key="k"), message("b", message_id="2"))
        send(
            held,
            "in",
            message("c", message_id="1", key="k"),
            message("d", message_id="1"),
            message("e", message_id="2"),
        )
        assert sorted(drain(held, "once")) == ["a", "b", "d"]

    def test_the_first_sequence_number_goes_with_them(self, held: Stores) -> None:
        forward(held, "plain", "p")
        send(held, "plain", message("a"), message("b"))
        reported = {}
        for payload in held.engine.receiver("p").peek(0, 9):
            assert isinstance(payload, bytes)
            annotations = section.decode_map(payload, section.locate(payload).message_annotations)
            reported[body_of(payload)] = annotations["x-opt-enqueue-sequence-number"]
        assert reported == {"a": 1, "b": 2}

    def test_topics_and_subscriptions(self, held: Stores) -> None:
        engine = held.engine
        engine.create_topic("t", TopicDescription(enable_partitioning=True))
        engine.create_subscription("t", "on", SubscriptionDescription(forward_to="plain"))
        engine.create_subscription("t", "over", SubscriptionDescription(forward_to="p"))
        held.commit()
        send(held, "t", *(message(str(number), key=str(number)) for number in range(8)))
        assert sorted(drain(held, "plain")) == sorted(drain(held, "p")) == [str(number) for number in range(8)]
        engine.create_queue("in", QueueDescription(forward_to="t"))
        engine.create_subscription("t", "all")
        held.commit()
        send(held, "in", message("x"))
        assert drain(held, "t/Subscriptions/all") == ["x"]

    def test_four_hops_and_no_fifth(self, held: Stores) -> None:
        forward(held, "plain", "p")
        forward(held, "p", "r")
        forward(held, "r", "plain")
        send(held, "plain", message("round", key="k"))
        assert lines(held) == 0
        found = [path for path in ("plain", "p", "r") if held.engine.runtime(path).dead_letter_message_count]
        assert found == ["p"]  # plain, p, r, plain, p
        (payload,) = held.engine.receiver("p/$DeadLetterQueue").peek(0, 9)
        assert isinstance(payload, bytes)
        properties = section.decode_map(payload, section.locate(payload).application_properties)
        assert properties["DeadLetterReason"] == "MaxTransferHopCountExceeded"

    def test_dead_letters_go_on(self, held: Stores) -> None:
        forward(held, "p", None, dead="plain")
        send(held, "p", message("a", key="k"), message("b", key="k"))
        queue = held.engine.receiver("p")
        acquired = queue.acquire(2)
        assert acquired is not None
        queue.dead_letter(acquired.tags, "bad")
        held.commit()
        assert held.engine.runtime("p").dead_letter_message_count == 0
        assert drain(held, "plain") == ["a", "b"]

    def test_dead_letters_that_the_target_does_not_take_stay(self, held: Stores) -> None:
        forward(held, "p", None, dead="plain")
        held.engine.update_queue("plain", QueueDescription(status=EntityStatus.SEND_DISABLED))
        send(held, "p", message("a", key="k"))
        queue = held.engine.receiver("p")
        acquired = queue.acquire(1)
        assert acquired is not None
        queue.dead_letter(acquired.tags, "bad")
        held.commit()
        assert held.engine.runtime("p").dead_letter_message_count == 1
        held.engine.update_queue("plain", QueueDescription())
        held.commit()
        assert drain(held, "plain") == ["a"]


class TestRefusals:
    def test_a_target_that_is_disabled_dead_letters_at_the_source(self, held: Stores) -> None:
        forward(held, "plain", "p")
        held.engine.update_queue("p", QueueDescription(enable_partitioning=True, status=EntityStatus.SEND_DISABLED))
        held.commit()
        send(held, "plain", message("a"))
        assert drain(held, "plain/$DeadLetterQueue") == ["a"]

    @pytest.mark.parametrize(("source", "target"), [("p", "plain"), ("plain", "p")])
    def test_a_target_that_has_gone_gets_nothing(self, held: Stores, source: str, target: str) -> None:
        forward(held, source, target)
        held.engine.delete_queue(target)
        held.commit()
        send(held, source, message("a"), message("b"))
        assert held.engine.runtime(source).transfer_dead_letter_message_count == 2
        held.crash()
        assert sorted(drain(held, f"{source}/$Transfer/$DeadLetterQueue")) == ["a", "b"]
        assert lines(held) == 0

    @pytest.mark.parametrize("gone", [False, True])
    def test_what_a_target_refuses_after_it_left_comes_back(self, held: Stores, gone: bool) -> None:
        """The target changes while messages stand in the line: they go to a dead-letter queue of the source, once."""
        forward(held, "plain", "p")
        sender = held.engine.sender("plain")
        sender.accept([message(str(number), key="k") for number in range(3)])
        held.commit_catalog()
        assert lines(held) == 3
        if gone:
            held.engine.delete_queue("p")
        else:
            held.engine.update_queue("p", QueueDescription(enable_partitioning=True, status=EntityStatus.DISABLED))
        held.commit_catalog()
        held.crash()
        held.commit()
        assert lines(held) == 0
        path = "plain/$Transfer/$DeadLetterQueue" if gone else "plain/$DeadLetterQueue"
        assert drain(held, path) == ["0", "1", "2"]

    def test_keys_that_contradict_each_other_dead_letter(self, held: Stores) -> None:
        forward(held, "plain", "p")
        send(held, "plain", message("a", key="x", session="y"), message("b"))
        assert drain(held, "p") == ["b"]
        assert drain(held, "plain/$DeadLetterQueue") == ["a"]

    def test_a_target_with_sessions_takes_only_messages_that_have_one(self, held: Stores) -> None:
        held.engine.create_queue("s", QueueDescription(enable_partitioning=True, requires_session=True))
        held.engine.create_queue("in", QueueDescription(forward_to="s"))
        held.commit()
        send(held, "in", message("a", session="x"), message("b"))
        assert held.engine.runtime("s").active_message_count == 1
        assert drain(held, "in/$DeadLetterQueue") == ["b"]


class TestFailures:
    def test_a_store_that_is_down_gets_its_messages_later(self, held: Stores) -> None:
        forward(held, "plain", "p")
        bad = key_in(1)
        held.journals[1].fail_syncs = OSError("bad sector")
        send(held, "p", message("breaks", key=bad))
        assert send(held, "plain", message("a", key=bad), message("b"), message("c", key=bad)) == 3
        assert drain(held, "p") == ["b"]
        runtime = held.engine.runtime("plain")
        assert (runtime.transfer_message_count, runtime.message_count, runtime.active_message_count) == (2, 2, 0)
        assert runtime.size_bytes > 0
        held.crash()
        held.journals[1].fail_syncs = None
        held.stores.retry()
        held.commit()
        assert [body for body in drain(held, "p") if body != "breaks"] == ["a", "c"]
        assert held.engine.runtime("plain").message_count == 0

    @pytest.mark.parametrize("how", ["fail_writes", "fail_syncs"])
    @pytest.mark.parametrize(("source", "target"), [("plain", "p"), ("p", "plain"), ("p", "r")])
    def test_a_delivery_that_fails_is_made_once(self, held: Stores, how: str, source: str, target: str) -> None:
        forward(held, source, target)
        bodies = [f"{number}" for number in range(30)]
        for number, body in enumerate(bodies):
            index = number % (STORES + 1) - 1
            journal = held.main if index < 0 else held.journals[index]
            send(held, source, message(body, key=body)) if number % 3 == 0 else held.engine.sender(source).accept(
                [message(body, key=body)]
            )
            setattr(journal, how, OSError("broken"))
            held.commit_store(0)
            held.commit()
            setattr(journal, how, None)
            held.stores.retry()
            held.advance(20_000)
        held.crash()
        held.commit()
        found = drain(held, target)
        assert len(found) == len(set(found)), "a message arrived twice"
        assert lines(held) == 0

    def test_a_kill_between_arrival_and_removal_doubles_nothing(self, held: Stores) -> None:
        forward(held, "plain", "p")
        held.engine.sender("plain").accept([message(str(number), key="k") for number in range(5)])
        held.commit_catalog()
        for _ in range(2):  # what the other store says, then the delivery
            held.commit_store(place("k", FRAGMENTS) % STORES)
        assert lines(held) == 5, "the removal is staged only"
        held.crash()
        held.commit()
        assert lines(held) == 0
        assert drain(held, "p") == ["0", "1", "2", "3", "4"]
        assert held.engine.runtime("plain").message_count == 0

    def test_a_kill_before_arrival_loses_nothing(self, held: Stores) -> None:
        forward(held, "p", "plain")
        held.engine.sender("p").accept([message(str(number), key="k") for number in range(5)])
        held.commit_store(place("k", FRAGMENTS) % STORES)
        assert lines(held) == 5
        held.crash()
        held.commit()
        assert drain(held, "plain") == ["0", "1", "2", "3", "4"]

    def test_places_are_not_given_again_after_a_loss_of_the_last_ones(self, held: Stores) -> None:
        """The source's store is older than the target's, as after a power cut that it did not survive in full."""
        forward(held, "plain", "p")
        send(held, "plain", message("a", key="k"))
        drain(held, "p")
        before = dict(held.main._table.values), list(held.main._table.keys)
        held.clock.advance(5)
        send(held, "plain", *(message(str(number), key="k") for number in range(50)))
        drain(held, "p")
        held.main._table.values, held.main._table.keys = before
        held.main.sync()
        held.main._synced.values, held.main._synced.keys = dict(before[0]), list(before[1])
        held.clock.advance(5)
        held.start()
        held.commit()
        assert send(held, "plain", message("new", key="k")) == 1
        assert drain(held, "p") == ["new"]

    def test_a_source_that_is_deleted_keeps_what_is_on_its_way(self, held: Stores) -> None:
        forward(held, "p", "plain")
        held.engine.sender("p").accept([message("a", key="k")])
        held.commit_store(place("k", FRAGMENTS) % STORES)
        assert lines(held) == 1
        held.engine.delete_queue("p")
        held.commit_catalog()
        held.crash()
        held.commit()
        assert drain(held, "plain") == ["a"]
        held.crash()
        held.commit()
        assert lines(held) == 0

    def test_held_deliveries_wait(self, held: Stores) -> None:
        handover = held.engine.handover
        assert handover is not None
        forward(held, "plain", "p")
        handover.pause()
        assert send(held, "plain", message("a")) == 1
        assert handover.is_quiet
        assert handover.statistics() == {"crossing_messages": 1}
        assert drain(held, "p") == []
        handover.resume()
        held.commit()
        assert drain(held, "p") == ["a"]


class TestVia:
    @pytest.mark.parametrize(("between", "to"), [("p", "plain"), ("plain", "p"), ("p", "r")])
    def test_messages_go_via(self, held: Stores, between: str, to: str) -> None:
        way = held.engine.via(between, to)
        done: list[str] = []
        way.accept([message("a", key="x")], lambda: done.append("ok"))
        held.commit()
        assert done == ["ok"]
        assert drain(held, to) == ["a"]

    def test_the_via_key_chooses_between_and_the_key_behind(self, held: Stores) -> None:
        way = held.engine.via("p", "r")
        via, behind = "v", next(f"o{n}" for n in range(100) if place(f"o{n}", FRAGMENTS) != place("v", FRAGMENTS))
        payload = section.encode_message(
            b"x",
            annotations={"x-opt-via-partition-key": via, "x-opt-partition-key": behind},
            properties={"message_id": "1"},
        )
        way.accept([payload])
        held.commit()
        (found,) = held.engine.receiver("r").peek(0, 9)
        assert isinstance(found, bytes)
        assert fragment_of(sequence_of(found)) == place(behind, FRAGMENTS)
        annotations = section.decode_map(found, section.locate(found).message_annotations)
        assert fragment_of(annotations["x-opt-enqueue-sequence-number"]) == place(via, FRAGMENTS)

    def test_a_transaction_settles_and_sends_on(self, held: Stores) -> None:
        send(held, "p", message("a", key="k"))
        queue = held.engine.receiver("p")
        assert isinstance(queue, PartitionedQueueBase)
        acquired = queue.acquire(1)
        assert acquired is not None
        transaction = held.engine.transaction()
        transaction.settle(queue, acquired.tags, queue.complete, lambda _: None)
        transaction.send(held.engine.via("p", "plain"), [message("b")])
        transaction.send(held.engine.via("p", "r"), [message("c", key="other")])
        transaction.commit()
        held.commit()
        held.crash()
        assert (drain(held, "p"), drain(held, "plain"), drain(held, "r")) == ([], ["b"], ["c"])

    def test_a_transaction_is_on_one_partition(self, held: Stores) -> None:
        one = held.engine.transaction()
        one.send(held.engine.sender("p"), [message("a", key="k")])
        other = next(f"o{n}" for n in range(100) if place(f"o{n}", FRAGMENTS) != place("k", FRAGMENTS))
        payload = section.encode_message(b"b", annotations={"x-opt-via-partition-key": other})
        with pytest.raises(NotAllowedError, match="same partition key"):
            one.send(held.engine.via("p", "plain"), [payload])
        one.commit()
        held.commit()
        assert (drain(held, "p"), drain(held, "plain")) == (["a"], [])

    def test_a_roll_back_sends_nothing(self, held: Stores) -> None:
        one = held.engine.transaction()
        one.send(held.engine.via("p", "plain"), [message("b")])
        one.rollback()
        held.commit()
        assert drain(held, "plain") == []

    def test_via_a_key_of_a_store_that_is_down(self, held: Stores) -> None:
        held.journals[1].fail_syncs = OSError("bad sector")
        send(held, "p", message("breaks", key=key_in(1)))
        payload = section.encode_message(b"b", annotations={"x-opt-via-partition-key": key_in(1)})
        with pytest.raises(ServerBusyError, match="store 1"):
            held.engine.via("p", "plain").accept([payload])
        held.engine.via("p", "plain").accept([message("c")])
        held.commit()
        assert drain(held, "plain") == ["c"]

    def test_a_disabled_destination_fills_the_transfer_dead_letter_queue(self, held: Stores) -> None:
        held.engine.update_queue("plain", QueueDescription(status=EntityStatus.SEND_DISABLED))
        held.commit()
        held.engine.via("p", "plain").accept([message("a", key="k")])
        held.commit()
        assert held.engine.runtime("p").transfer_dead_letter_message_count == 1
        assert drain(held, "p/$Transfer/$DeadLetterQueue") == ["a"]


def test_plain_namespaces_have_no_line() -> None:
    held = Stores()
    held.engine.create_queue("b")
    held.engine.create_queue("a", QueueDescription(forward_to="b"))
    held.commit()
    send(held, "a", message("x"))
    queue = held.engine.receiver("b")
    assert isinstance(queue, Queue)
    assert drain(held, "b") == ["x"]
    assert lines(held) == 0
    assert held.journals == {}


def test_a_target_that_could_not_be_loaded_again_is_not_taken_for_deleted(
    held: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes on meanwhile from stores that are up waits for it, and lies in no dead-letter queue."""
    forward(held, "p", "plain")
    journal = held.main
    get, row = journal.get, state_key(held.engine.sender("plain").number)  # type: ignore[union-attr]

    def refuses(key: bytes) -> bytes | None:
        if key == row:
            raise StoreError("a block cannot be read")
        return get(key)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "get", refuses)
        held.engine.create_queue("fails")
        with pytest.raises(StoreError):
            held.engine.fail_commit(held.engine.begin_commit(), StoreError("no space"))  # type: ignore[arg-type]
        way = held.engine._queues["p"].queue
        way.accept([message("waits", key="a")])
        for index in range(STORES):
            held.commit_store(index)
    for _ in range(3):
        held.advance(10_000)
    assert drain(held, "plain") == ["waits"]
    assert drain(held, "p/$Transfer/$DeadLetterQueue") == []


def test_a_receiver_is_told_that_messages_could_not_be_read(held: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for messages that are there already, and of which nobody is told again."""
    assert send(held, "p", message("there", key="a")) == 1
    index = place("a", FRAGMENTS)
    journal = held.journals[index % STORES]

    def refuses(*args: object, **kwargs: object) -> None:
        raise StoreError("a block cannot be read")

    queue = held.engine.receiver("p")
    with monkeypatch.context() as patch:
        patch.setattr(journal, "scan", refuses)
        with pytest.raises(StoreError):
            queue.acquire(1)
    assert drain(held, "p") == ["there"]


def test_what_a_failure_left_in_the_line_is_not_delivered_before_it_is_durable(
    held: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk the store goes on with what was written; after a power cut it would be moved once more."""
    held.engine.sender("plain").accept([message("once")])
    held.commit()
    held.engine.update_queue("plain", QueueDescription(forward_to="p"))
    commit = held.engine.begin_commit()
    assert commit is not None
    monkeypatch.setattr(held.main, "reopen", lambda: None)
    held.engine.fail_commit(commit, StoreError("no space left on device"))
    held.engine.handover.pump()  # type: ignore[union-attr]
    for _ in range(3):
        for index in range(STORES):
            held.commit_store(index)
    monkeypatch.undo()
    held.crash()
    for _ in range(3):
        held.advance(11_000)
    assert [*drain(held, "plain"), *drain(held, "p")] == ["once"]


def test_what_a_failure_left_in_the_line_goes_on_though_nothing_else_is_stored(
    held: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward(held, "plain", "p")
    for journal in held.journals.values():
        journal.fail_writes = OSError("no space")
    held.stores.get(0)
    held.engine.sender("plain").accept([message("waits", key="a")])
    held.commit()
    held.engine._fail(StoreError("a block cannot be read"))
    for journal in held.journals.values():
        journal.fail_writes = None
    held.stores.retry()
    for _ in range(4):
        held.advance(11_000)
    assert drain(held, "p") == ["waits"]
