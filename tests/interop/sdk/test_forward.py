"""azure-servicebus and its administration client, unmodified, where entities forward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from isthmus.testing.namespace import NamespaceProcess, namespace


@pytest.fixture(scope="module")
def served() -> Iterator[NamespaceProcess]:
    with namespace() as running:
        yield running


@pytest.fixture(scope="module")
def client(served: NamespaceProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(served.connection_string, retry_total=0) as client:
        yield client


@pytest.fixture(scope="module")
def admin(served: NamespaceProcess) -> Iterator[ServiceBusAdministrationClient]:
    with ServiceBusAdministrationClient.from_connection_string(
        served.connection_string, connection_verify=str(served.ca_file)
    ) as client:
        yield client


def send(client: ServiceBusClient, queue: str, *bodies: str) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(body) for body in bodies])


def take(receiver: Any, count: int) -> list[Any]:
    with receiver:
        found: list[Any] = []
        while len(found) < count:
            more = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=5)
            assert more, f"{len(found)} of {count} messages came"
            found += more
        for message in found:
            receiver.complete_message(message)
    return found


def test_messages_are_forwarded_along_a_chain(client: Any, admin: Any) -> None:
    admin.create_queue("end")
    for number in range(4, 0, -1):
        admin.create_queue(f"hop{number}", forward_to=f"hop{number + 1}" if number < 4 else "end")
    admin.create_topic("flights")
    admin.create_subscription("flights", "all", forward_to="hop1")
    send(client, "hop1", "a", "b")
    with client.get_topic_sender("flights") as sender:
        sender.send_messages(ServiceBusMessage("c"))
    found = take(client.get_queue_receiver("end"), 2)
    assert [str(message) for message in found] == ["a", "b"]
    assert [message.enqueued_sequence_number for message in found] == [1, 2]
    (dead,) = take(client.get_queue_receiver("hop4", sub_queue=ServiceBusSubQueue.DEAD_LETTER), 1)
    assert (str(dead), dead.dead_letter_reason) == ("c", "MaxTransferHopCountExceeded")
    assert admin.get_queue("hop1").forward_to.endswith("/hop2")
    assert admin.get_queue_runtime_properties("hop1").total_message_count == 0


def test_dead_letters_are_forwarded(client: Any, admin: Any) -> None:
    admin.create_queue("graveyard")
    admin.create_queue("work", forward_dead_lettered_messages_to="graveyard")
    send(client, "work", "x")
    with client.get_queue_receiver("work") as receiver:
        (message,) = receiver.receive_messages(max_wait_time=5)
        receiver.dead_letter_message(message, reason="bad", error_description="very")
    (found,) = take(client.get_queue_receiver("graveyard"), 1)
    assert (found.dead_letter_reason, found.dead_letter_error_description) == ("bad", "very")
    assert found.dead_letter_source == "work"
    assert admin.get_queue_runtime_properties("work").dead_letter_message_count == 0


def test_forwarding_settings_are_checked(client: Any, admin: Any) -> None:
    admin.create_queue("checked")
    for setting in ("forward_to", "forward_dead_lettered_messages_to"):
        queue = admin.get_queue("checked")
        setattr(queue, setting, "missing")
        with pytest.raises(HttpResponseError, match=r"SubCode=40000\..*orward"):
            admin.update_queue(queue)
    own = admin.create_queue("own", forward_to="own")
    assert own.forward_to.endswith("/own")
    with pytest.raises(HttpResponseError, match="does not exist"):
        admin.create_queue("other", forward_to="missing")
    admin.create_queue("passing", forward_to="checked")
    with pytest.raises(ServiceBusError, match="auto-forwarding enabled"), client.get_queue_receiver("passing") as one:
        one.receive_messages(max_wait_time=2)


def test_a_deleted_target_fills_the_transfer_dead_letter_queue(client: Any, admin: Any) -> None:
    admin.create_queue("gone")
    admin.create_queue("orphan", forward_to="gone")
    admin.delete_queue("gone")
    send(client, "orphan", "late")
    counts = admin.get_queue_runtime_properties("orphan")
    assert (counts.transfer_dead_letter_message_count, counts.transfer_message_count) == (1, 0)
    (found,) = take(client.get_queue_receiver("orphan", sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER), 1)
    assert (str(found), found.dead_letter_reason) == ("late", "MessagingEntityNotFound")


def session_of(client: ServiceBusClient, queue: str, session_id: str, count: int) -> list[str]:
    """Bodies of a session, taken and completed."""
    return [str(message) for message in take(client.get_queue_receiver(queue, session_id=session_id), count)]


def test_what_continues_to_an_entity_with_sessions_needs_a_session(client: Any, admin: Any) -> None:
    """With a SessionId it arrives in its session, in order; without one it is dead-lettered where it came from."""
    admin.create_queue("seated", requires_session=True)
    admin.create_queue("doors", forward_to="seated")
    with client.get_queue_sender("doors") as sender:
        sender.send_messages([ServiceBusMessage(body, session_id=body[0]) for body in ("a1", "b1", "a2", "b2")])
        sender.send_messages(ServiceBusMessage("nobody's"))
        sender.send_messages(ServiceBusMessage("a3", session_id="a"))
    assert session_of(client, "seated", "a", 3) == ["a1", "a2", "a3"]
    assert session_of(client, "seated", "b", 2) == ["b1", "b2"]
    (dead,) = take(client.get_queue_receiver("doors", sub_queue=ServiceBusSubQueue.DEAD_LETTER), 1)
    assert str(dead) == "nobody's"
    assert dead.dead_letter_reason == "Session ID is null"
    assert dead.dead_letter_source == "doors"
    assert "session" in dead.dead_letter_error_description.lower()
    assert admin.get_queue_runtime_properties("doors").total_message_count == 0


def test_subscriptions_and_dead_letters_continue_to_entities_with_sessions(client: Any, admin: Any) -> None:
    admin.create_queue("boarded", requires_session=True)
    admin.create_queue("buried", requires_session=True)
    admin.create_topic("gates")
    admin.create_subscription("gates", "all", forward_to="boarded")
    admin.create_queue("sick", forward_dead_lettered_messages_to="buried")
    with client.get_topic_sender("gates") as sender:
        sender.send_messages(
            [
                ServiceBusMessage("c1", session_id="c"),
                ServiceBusMessage("lost"),
                ServiceBusMessage("c2", session_id="c"),
            ]
        )
    assert session_of(client, "boarded", "c", 2) == ["c1", "c2"]
    subscription = client.get_subscription_receiver("gates", "all", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert [(str(dead), dead.dead_letter_reason) for dead in take(subscription, 1)] == [("lost", "Session ID is null")]
    with client.get_queue_sender("sick") as sender:
        sender.send_messages([ServiceBusMessage("d1", session_id="d"), ServiceBusMessage("none")])
    with client.get_queue_receiver("sick") as receiver:
        found: list[Any] = []
        while len(found) < 2:
            found += receiver.receive_messages(max_message_count=2, max_wait_time=5)
        for message in found:
            receiver.dead_letter_message(message, reason="tired")
    with client.get_queue_receiver("buried", session_id="d") as receiver:
        (moved,) = receiver.receive_messages(max_wait_time=5)
        assert (str(moved), moved.dead_letter_reason, moved.dead_letter_source) == ("d1", "tired", "sick")
        receiver.complete_message(moved)
    # What cannot be forwarded stays, and can be received when nothing forwards any more.
    sick = admin.get_queue("sick")
    sick.forward_dead_lettered_messages_to = None
    admin.update_queue(sick)
    (kept,) = take(client.get_queue_receiver("sick", sub_queue=ServiceBusSubQueue.DEAD_LETTER), 1)
    assert (str(kept), kept.dead_letter_reason) == ("none", "tired")
