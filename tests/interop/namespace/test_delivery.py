"""A route of the bridge between entities of a real namespace, written and read by azure-servicebus."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

from harness.bridge.hosted_lease import carry, queue_route
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.host.sender import handle as sender_handle
from isthmus.testing.namespace import NamespaceProcess, namespace

CONFIG = """
queues:
  source: {lock_duration: 30s}
  sessions: {requires_session: true}
"""
COUNT = 60


@pytest.fixture(scope="module")
def served() -> Iterator[NamespaceProcess]:
    with namespace(config=CONFIG) as running:
        yield running


@pytest.fixture(autouse=True)
def _set_connection(served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", served.connection_string)


def set_aside_after(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_handle, "DeliverySettings", partial(DeliverySettings, set_aside_seconds=seconds))


def ends(target: str) -> tuple[dict[str, str], dict[str, str]]:
    source = {"connection": "env:PLACE", "entity": "source", "lock_seconds": "30"}
    return source, {"connection": "env:PLACE", "entity": target}


def test_a_message_that_its_target_never_takes_is_dead_lettered_and_the_others_cross(
    served: NamespaceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entity that requires sessions refuses a message without one as not allowed, whenever it comes."""
    set_aside_after(0.5, monkeypatch)
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        with client.get_queue_sender("source") as sender:
            sender.send_messages([ServiceBusMessage(f"{n}", session_id=None if n == 7 else "s") for n in range(COUNT)])
        carry(tmp_path, queue_route(*ends("sessions"), only_present=True))
        with client.get_queue_receiver("source", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            (dead,) = receiver.receive_messages(max_message_count=5, max_wait_time=5)
            assert (str(dead), dead.dead_letter_reason) == ("7", "RefusedByTarget")
            assert "amqp:not-allowed" in str(dead.dead_letter_error_description)
            assert "SessionId" in str(dead.dead_letter_error_description)
            receiver.complete_message(dead)
        with client.get_queue_receiver("sessions", session_id="s") as receiver:
            bodies: list[str] = []
            while len(bodies) < COUNT - 1:
                found = receiver.receive_messages(max_message_count=100, max_wait_time=5)
                assert found
                for message in found:
                    bodies.append(str(message))
                    receiver.complete_message(message)
        assert bodies == [str(n) for n in range(COUNT) if n != 7]


def test_where_the_target_takes_none_none_is_set_aside(
    served: NamespaceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The route fails and gives everything back; the lease continues for others, until it is ended."""
    set_aside_after(0.2, monkeypatch)
    monkeypatch.setattr("harness.bridge.hosted_lease.LEASE_SECONDS", 5.0)
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        with client.get_queue_sender("source") as sender:
            sender.send_messages([ServiceBusMessage(f"{n}") for n in range(COUNT)])
        carry(tmp_path, queue_route(*ends("sessions"), target_seconds=2.0))
        with client.get_queue_receiver("source", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            assert receiver.peek_messages(max_message_count=5) == []
        with client.get_queue_receiver("source") as receiver:
            left = receiver.receive_messages(max_message_count=COUNT, max_wait_time=5)
            assert [str(message) for message in left] == [str(n) for n in range(len(left))]
            assert left
            assert {message.delivery_count for message in left} == {0}
