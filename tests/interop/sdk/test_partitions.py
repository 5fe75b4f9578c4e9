"""Partitioned entities by azure-servicebus, unmodified, against a served namespace."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from isthmus.broker.backup import back_up_stopped
from isthmus.operations.server.backup import make_backup
from isthmus.testing.namespace import namespace

DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
ENTITIES = """
limits: {min_lock_duration: 1s, partitions_per_entity: 8, partition_stores: 3}
queues:
  spread: {enable_partitioning: true, max_delivery_count: 2}
  keyed: {enable_partitioning: true}
  batched: {enable_partitioning: true}
  detecting: {enable_partitioning: true, requires_duplicate_detection: true}
  looked: {enable_partitioning: true}
  later: {enable_partitioning: true}
  kept: {enable_partitioning: true}
  sessions: {enable_partitioning: true, requires_session: true}
topics:
  fanned:
    enable_partitioning: true
    subscriptions:
      all: {}
      heavy: {rules: {heavy: {filter: "weight > 10"}}}
      sessions: {requires_session: true}
"""


WITH_WAYS = """
limits: {partitions_per_entity: 8, partition_stores: 3}
queues:
  last: {}
  middle: {enable_partitioning: true, forward_to: last}
  first: {forward_to: middle}
"""


@pytest.fixture(scope="module")
def served():
    with namespace(config=ENTITIES) as running:
        yield running


@contextmanager
def connected(served, **options):
    with ServiceBusClient.from_connection_string(served.connection_string, retry_total=0, **options) as client:
        yield client


@pytest.fixture(scope="module")
def client(served):
    with connected(served) as client:
        yield client


def send(client, queue, *messages):
    with client.get_queue_sender(queue) as sender:
        for message in messages:
            sender.send_messages(message)


def receive(receiver, count, seconds=20):
    found = []
    until = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < until:
        found += receiver.receive_messages(max_message_count=count - len(found), max_wait_time=1)
    return found


def peek_all(receiver):
    found = []
    while part := receiver.peek_messages(
        max_message_count=500, sequence_number=found[-1].sequence_number + 1 if found else 1
    ):
        found += part
    return found


def fragment(message):
    return message.sequence_number >> 48


def test_messages_without_a_key_go_over_all_fragments_and_all_come(client):
    send(client, "spread", *(ServiceBusMessage(str(number)) for number in range(40)))
    with client.get_queue_receiver("spread") as receiver:
        found = receive(receiver, 40)
        assert sorted(int(str(each)) for each in found) == list(range(40))
        assert {fragment(each) for each in found} == set(range(8))
        assert len({each.sequence_number for each in found}) == 40
        for each in found:
            receiver.complete_message(each)
        assert receiver.receive_messages(max_wait_time=1) == []


def test_a_key_keeps_its_fragment_and_its_order(client):
    keys = ["amber", "birch", "cedar", "dune"]
    send(client, "keyed", *(ServiceBusMessage(str(number), partition_key=key) for number in range(20) for key in keys))
    with client.get_queue_receiver("keyed", receive_mode=DELETE) as receiver:
        by_key = defaultdict(list)
        for each in receive(receiver, 80):
            by_key[each.partition_key].append(each)
    for key in keys:
        assert [int(str(each)) for each in by_key[key]] == list(range(20))
        assert len({fragment(each) for each in by_key[key]}) == 1
    assert len({fragment(messages[0]) for messages in by_key.values()}) > 1


def test_an_envelope_is_in_one_fragment_in_order(client):
    with client.get_queue_sender("batched") as sender:
        batch = sender.create_message_batch()
        for number in range(50):
            batch.add_message(ServiceBusMessage(str(number)))
        sender.send_messages(batch)
    with client.get_queue_receiver("batched", receive_mode=DELETE) as receiver:
        found = receive(receiver, 50)
    assert [int(str(each)) for each in found] == list(range(50))
    assert len({fragment(each) for each in found}) == 1


def test_an_envelope_with_two_keys_is_refused_as_a_whole(client):
    messages = [ServiceBusMessage("a", partition_key="a"), ServiceBusMessage("b", partition_key="b")]
    refused = pytest.raises(ServiceBusError, match="same SessionId or PartitionKey")
    with client.get_queue_sender("batched") as sender, refused:
        sender.send_messages(messages)
    with client.get_queue_receiver("batched") as receiver:
        assert receiver.peek_messages(max_message_count=10) == []


def test_a_session_with_another_partition_key_is_refused(client):
    message = ServiceBusMessage("x", session_id="one")
    message.raw_amqp_message.annotations = {b"x-opt-partition-key": "two"}
    with client.get_queue_sender("keyed") as sender, pytest.raises(ServiceBusError, match="differs from the SessionId"):
        sender.send_messages(message)


def test_duplicates_are_those_of_the_same_message_id_and_partition_key(client):
    for _ in range(2):
        send(
            client,
            "detecting",
            ServiceBusMessage("a", message_id="1"),
            ServiceBusMessage("b", message_id="1", partition_key="k"),
            ServiceBusMessage("c", message_id="1", partition_key="l"),
            ServiceBusMessage("d", message_id="2", partition_key="k"),
        )
    with client.get_queue_receiver("detecting", receive_mode=DELETE) as receiver:
        assert sorted(str(each) for each in receive(receiver, 4)) == ["a", "b", "c", "d"]
        assert receiver.receive_messages(max_wait_time=1) == []


def test_peek_sees_every_fragment_in_the_order_of_sequence_numbers(client):
    send(client, "looked", *(ServiceBusMessage(str(number)) for number in range(24)))
    with client.get_queue_receiver("looked") as receiver:
        found = []
        while part := receiver.peek_messages(max_message_count=5):
            found += part
        assert sorted(int(str(each)) for each in found) == list(range(24))
        numbers = [each.sequence_number for each in found]
        assert numbers == sorted(numbers)
        one = receiver.peek_messages(max_message_count=1, sequence_number=numbers[13])
        assert one[0].sequence_number == numbers[13]


def test_scheduled_messages_come_and_can_be_cancelled(client):
    with client.get_queue_sender("later") as sender:
        far = datetime.now(UTC) + timedelta(hours=1)
        numbers = sender.schedule_messages(
            [ServiceBusMessage(str(number), partition_key=str(number)) for number in range(6)], far
        )
        assert len({number >> 48 for number in numbers}) > 1
        sender.cancel_scheduled_messages(numbers)
        with pytest.raises(ServiceBusError):
            sender.cancel_scheduled_messages(numbers[0])
        soon = datetime.now(UTC) + timedelta(seconds=1)
        sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b", partition_key="k")], soon)
    with client.get_queue_receiver("later", receive_mode=DELETE) as receiver:
        assert sorted(str(each) for each in receive(receiver, 2)) == ["a", "b"]
        assert receiver.peek_messages(max_message_count=10) == []


def test_deferred_dead_lettered_abandoned_and_renewed(client):
    send(client, "spread", *(ServiceBusMessage(str(number)) for number in range(12)))
    with client.get_queue_receiver("spread") as receiver:
        found = {int(str(each)): each for each in receive(receiver, 12)}
        until = found[0].locked_until_utc
        assert receiver.renew_message_lock(found[0]) >= until
        for number in range(4):
            receiver.defer_message(found[number])
        for number in range(4, 8):
            receiver.dead_letter_message(found[number], reason="bad", error_description=str(number))
        for number in range(8, 12):
            receiver.abandon_message(found[number])
        again = {int(str(each)): each for each in receive(receiver, 4)}
        assert sorted(again) == [8, 9, 10, 11]
        assert all(each.delivery_count == 1 for each in again.values())
        for each in again.values():
            receiver.abandon_message(each)  # at MaxDeliveryCount
        numbers = [found[number].sequence_number for number in range(4)]
        deferred = receiver.receive_deferred_messages(numbers)
        assert sorted(int(str(each)) for each in deferred) == [0, 1, 2, 3]
        for each in deferred:
            receiver.complete_message(each)
    with client.get_queue_receiver("spread", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        dead = {int(str(each)): each for each in receive(receiver, 8)}
        assert sorted(dead) == list(range(4, 12))
        assert dead[5].dead_letter_reason == "bad"
        assert dead[9].dead_letter_reason == "MaxDeliveryCountExceeded"
        for number, each in dead.items():
            assert fragment(each) == fragment(found[number])
            receiver.complete_message(each)


def test_sessions_are_found_again_and_given_in_turn(client):
    names = [f"s{number}" for number in range(5)]
    send(
        client, "sessions", *(ServiceBusMessage(str(number), session_id=name) for number in range(5) for name in names)
    )
    with client.get_queue_receiver("sessions", session_id="s3") as receiver:
        receiver.session.set_state("half")
        assert [int(str(each)) for each in receiver.peek_messages(max_message_count=9)] == list(range(5))
        found = receive(receiver, 2)
        for each in found:
            receiver.complete_message(each)
    with client.get_queue_receiver("sessions", session_id="s3") as receiver:
        assert receiver.session.get_state() == b"half"
        receiver.session.set_state(None)
    seen = {}
    while len(seen) < 5:
        with client.get_queue_receiver("sessions", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) as receiver:
            name = receiver.session.session_id
            messages = receive(receiver, 3 if name == "s3" else 5)
            assert len({fragment(each) for each in messages}) == 1
            for each in messages:
                receiver.complete_message(each)
            seen[name] = [int(str(each)) for each in messages]
    assert sorted(seen) == sorted(names)
    assert all(numbers == list(range(2 if name == "s3" else 0, 5)) for name, numbers in seen.items())


def test_a_topic_copies_within_the_fragment(client):
    with client.get_topic_sender("fanned") as sender:
        for number in range(20):
            message = ServiceBusMessage(str(number), session_id=str(number % 4))
            message.application_properties = {"weight": number}
            sender.send_messages(message)
    with client.get_subscription_receiver("fanned", "all", receive_mode=DELETE) as receiver:
        everything = {int(str(each)): each for each in receive(receiver, 20)}
    assert sorted(everything) == list(range(20))
    with client.get_subscription_receiver("fanned", "heavy", receive_mode=DELETE) as receiver:
        heavy = {int(str(each)): each for each in receive(receiver, 9)}
    assert sorted(heavy) == list(range(11, 20))
    assert all(fragment(heavy[number]) == fragment(everything[number]) for number in heavy)
    for name in range(4):
        with client.get_subscription_receiver(
            "fanned", "sessions", session_id=str(name), receive_mode=DELETE
        ) as receiver:
            assert [int(str(each)) for each in receive(receiver, 5)] == list(range(name, 20, 4))


def test_the_administration_makes_counts_and_removes_them(served, client):
    with ServiceBusAdministrationClient.from_connection_string(
        served.admin_connection_string, connection_verify=str(served.ca_file)
    ) as admin:
        made = admin.create_queue("made", enable_partitioning=True)
        assert made.enable_partitioning is True
        send(client, "made", *(ServiceBusMessage("x" * 100) for _ in range(10)))
        runtime = admin.get_queue_runtime_properties("made")
        assert runtime.active_message_count == runtime.total_message_count == 10
        assert runtime.size_in_bytes > 1000
        made.enable_partitioning = False
        with pytest.raises(Exception, match="EnablePartitioning"):
            admin.update_queue(made)
        admin.delete_queue("made")
        admin.create_queue("made", enable_partitioning=True)
        with client.get_queue_receiver("made") as receiver:
            assert receiver.peek_messages(max_message_count=10) == []


def test_forwarding_and_sending_via(served, client):
    with ServiceBusAdministrationClient.from_connection_string(
        served.admin_connection_string, connection_verify=str(served.ca_file)
    ) as admin:
        admin.create_queue("last")
        admin.create_queue("middle", enable_partitioning=True, forward_to="last")
        admin.create_queue("first", forward_to="middle")
        send(client, "first", *(ServiceBusMessage(str(number), partition_key=str(number % 3)) for number in range(12)))
        with client.get_queue_receiver("last", receive_mode=DELETE) as receiver:
            found = receive(receiver, 12)
        assert sorted(int(str(each)) for each in found) == list(range(12))
        for key in "012":
            numbers = [int(str(each)) for each in found if each.partition_key == key]
            assert numbers == sorted(numbers)
        with pytest.raises(ServiceBusError, match="auto-forwarding"), client.get_queue_receiver("middle") as receiver:
            receiver.receive_messages(max_wait_time=1)
        for name in ("first", "middle"):
            assert admin.get_queue_runtime_properties(name).total_message_count == 0
        admin.delete_queue("last")
        send(client, "first", ServiceBusMessage("lost", partition_key="k"))
        until = time.monotonic() + 20
        while not admin.get_queue_runtime_properties("middle").transfer_dead_letter_message_count:
            assert time.monotonic() < until
            time.sleep(0.05)
    with client.get_queue_receiver(
        "middle", sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER, receive_mode=DELETE
    ) as receiver:
        assert [str(each) for each in receive(receiver, 1)] == ["lost"]


def test_a_back_up_while_messages_cross_has_each_once(tmp_path):
    """Taken while a sender sends: what was acknowledged before it began is in it, everything once at most."""
    stop, sent = threading.Event(), []
    with namespace(data=tmp_path / "data", config=WITH_WAYS) as served:

        def work():
            with connected(served) as own, own.get_queue_sender("first") as sender:
                while not stop.is_set():
                    sender.send_messages([ServiceBusMessage(f"{len(sent)}", partition_key=str(len(sent) % 5))])
                    sent.append(len(sent))

        worker = threading.Thread(target=work)
        worker.start()
        try:
            copies = []
            for _ in range(4):
                enough, until = len(sent) + 15, time.monotonic() + 60
                while len(sent) < enough:
                    assert time.monotonic() < until
                    time.sleep(0.01)
                before = len(sent)
                copies.append((before, tmp_path / f"copy{before}"))
                assert make_backup(served.data, copies[-1][1]), "a running process makes it"
        finally:
            stop.set()
            worker.join()
    assert len(sent) > 50
    for before, copy in copies:
        with namespace(data=copy, config=WITH_WAYS) as served, connected(served) as client:
            with client.get_queue_receiver("last") as receiver:
                found = []
                until = time.monotonic() + 20
                while len(found) < before and time.monotonic() < until:
                    found = peek_all(receiver)
            numbers = [int(str(each)) for each in found]
            assert len(numbers) == len(set(numbers))
            assert set(range(before)) <= set(numbers)


def test_what_was_taken_stays_after_a_restart_also_of_a_back_up(tmp_path):
    data, copy = tmp_path / "data", tmp_path / "copy"
    with namespace(data=data, config=ENTITIES) as served, connected(served) as client:
        send(client, "kept", *(ServiceBusMessage(str(number)) for number in range(30)))
        with client.get_queue_receiver("kept") as receiver:
            completed = {int(str(each)) for each in receive(receiver, 10) if receiver.complete_message(each) is None}
        send(client, "sessions", ServiceBusMessage("a", session_id="one"))
        with client.get_queue_receiver("sessions", session_id="one") as receiver:
            receiver.session.set_state("kept")
    assert sorted(folder.name for folder in (data / "fragments").iterdir()) == ["0", "1", "2"]
    back_up_stopped(data, copy)
    with namespace(data=copy, config=ENTITIES) as served, connected(served) as client:
        send(client, "kept", ServiceBusMessage("30"))
        with client.get_queue_receiver("kept") as receiver:
            left = receive(receiver, 21)
            assert {int(str(each)) for each in left} == set(range(31)) - completed
        with client.get_queue_receiver("sessions", session_id="one") as receiver:
            assert receiver.session.get_state() == b"kept"
            assert [str(each) for each in receive(receiver, 1)] == ["a"]


def test_a_namespace_without_them_opens_no_store(tmp_path):
    with namespace(data=tmp_path, config="queues: {plain: {}}") as served, connected(served) as client:
        send(client, "plain", ServiceBusMessage("x"))
        assert not (tmp_path / "fragments").exists()
