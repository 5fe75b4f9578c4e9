"""Queues that are planned and made against a served namespace, through azure-servicebus's administration client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from isthmus.connectors.administration import EntityChangedError
from isthmus.connectors.servicebus.administration.administration import ServiceBusAdministration
from isthmus.connectors.servicebus.entity import Entities, EntityPath
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.topology import EntityState, Federation, NamespaceRef, QueueState, RuleState, SubscriptionState, TopicState
from isthmus.topology.file.reference import SecretReference
from isthmus.topology.planning.finding import Findings
from isthmus.topology.planning.order import ordered
from isthmus.topology.planning.queue import plan_queue
from isthmus.topology.planning.topic import plan_topic

HOUR_MS = 3_600_000
WANTED: tuple[EntityState, ...] = (
    QueueState(
        name="orders",
        lock_duration_ms=30_000,
        max_delivery_count=3,
        default_ttl_ms=HOUR_MS,
        dead_letters_expired=True,
        forward_dead_letters_to="isthmus.orders",
        duplicate_detection_ms=60_000,
        initial_size_megabytes=2048,
    ),
    QueueState(name="front", forward_to="orders", auto_delete_on_idle_ms=HOUR_MS),
    QueueState(name="sessions", requires_session=True, status="ReceiveDisabled"),
    TopicState(
        name="isthmus.orders",
        subscriptions=(
            SubscriptionState(
                name="isthmus.orders.jfk",
                rules=(RuleState("isthmus", "1 = 1"),),
                max_delivery_count=2000,
                dead_letters_expired=False,
                forward_to="",
            ),
        ),
    ),
)


@pytest.fixture(scope="module")
def served() -> Iterator[NamespaceProcess]:
    with namespace() as started:
        yield started


@contextmanager
def administration(served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceBusAdministration]:
    monkeypatch.setenv("EWR_CONNECTION", served.connection_string)
    opened = ServiceBusAdministration.open(
        NamespaceRef("ewr", SecretReference.parse("env:EWR_CONNECTION"), ca_file=str(served.ca_file))
    )
    try:
        yield opened
    finally:
        opened.close()


def planned(opened: ServiceBusAdministration, *wanted: EntityState) -> Findings:
    reference = NamespaceRef("ewr", SecretReference.parse("env:EWR_CONNECTION"))
    findings = Findings(Federation(namespaces={"ewr": reference}, tasks={}))
    state = opened.observe("ewr", wanted)
    for each in wanted:
        if isinstance(each, QueueState):
            plan_queue(findings, state, each)
        else:
            plan_topic(findings, state, each)
    return findings


def test_queues_are_made_changed_and_then_unchanged(served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with administration(served, monkeypatch) as opened:
        for change in ordered(planned(opened, *WANTED).changes):
            opened.make(change)
        again = planned(opened, *WANTED)
        assert again.changes == []
        assert again.faults == []
        size = opened.size("orders")
        assert size is not None
        assert (size.kind, size.limit_bytes) == ("queue", 2048 * 1024**2)
        assert opened.size("nothing") is None
        with ServiceBusAdministrationClient.from_connection_string(
            served.connection_string, connection_verify=str(served.ca_file)
        ) as admin:
            orders = admin.get_queue("orders")
            assert (orders.max_delivery_count, orders.lock_duration) == (3, timedelta(seconds=30))
            assert orders.dead_lettering_on_message_expiration
            assert orders.duplicate_detection_history_time_window == timedelta(minutes=1)
            assert str(admin.get_queue("sessions").status) == "ReceiveDisabled"
            # An application's own settings outlive a change of what the task declares.
            orders.user_metadata = "theirs"
            admin.update_queue(orders)
            other = QueueState(name="ORDERS", max_delivery_count=5, forward_dead_letters_to="", status="Active")
            (change,) = planned(opened, other).changes
            assert change.details == ("MaxDeliveryCount 3 → 5", "ForwardDeadLetteredMessagesTo isthmus.orders → ")
            opened.make(change)
            orders = admin.get_queue("orders")
            assert (orders.max_delivery_count, orders.user_metadata) == (5, "theirs")
            assert orders.forward_dead_lettered_messages_to is None
            assert orders.dead_lettering_on_message_expiration


@pytest.mark.parametrize("verb", ["apply", "entity update"])
def test_i3_of_two_operators_at_once_neither_sets_back_what_the_other_has_set(
    served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The other one's update comes between the reading and the writing of this one's."""
    theirs = ServiceBusAdministrationClient.from_connection_string(
        served.connection_string, connection_verify=str(served.ca_file)
    )
    wanted = QueueState(name="shared", max_delivery_count=5 if verb == "apply" else 6)
    with theirs, administration(served, monkeypatch) as opened:
        theirs.delete_queue("shared") if opened.observe("ewr", [wanted]).queues else None
        theirs.create_queue("shared")
        (change,) = planned(opened, wanted).changes
        update = opened._client.update_queue

        def late(state: object) -> None:
            monkeypatch.setattr(opened._client, "update_queue", update)
            other = theirs.get_queue("shared")
            other.user_metadata = "theirs"
            theirs.update_queue(other)
            update(state)  # type: ignore[arg-type]

        def make() -> None:
            if verb == "apply":
                opened.make(change)
            else:
                Entities(opened._opened).update(EntityPath("shared"), {"max_delivery_count": 6})

        monkeypatch.setattr(opened._client, "update_queue", late)
        with pytest.raises(EntityChangedError, match="run it again"):
            make()
        make()
        found = theirs.get_queue("shared")
        assert (found.user_metadata, found.max_delivery_count) == ("theirs", wanted.max_delivery_count)


def test_what_is_planned_moves_messages(served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with administration(served, monkeypatch) as opened:
        for change in ordered(planned(opened, *WANTED).changes):
            opened.make(change)
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        with client.get_queue_sender("front") as sender:
            sender.send_messages(ServiceBusMessage("one"))
        with client.get_queue_receiver("orders", max_wait_time=5) as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=5)
            receiver.dead_letter_message(message, reason="Late")
        with client.get_subscription_receiver("isthmus.orders", "isthmus.orders.jfk", max_wait_time=5) as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=5)
            assert str(message) == "one"
            assert (message.application_properties or {})[b"DeadLetterReason"] == b"Late"
            receiver.complete_message(message)


def test_what_exists_with_the_other_kind_and_what_is_fixed_are_faults(
    served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with administration(served, monkeypatch) as opened:
        for each in (
            TopicState(name="a-topic"),
            QueueState(name="a-queue"),
            QueueState(name="s", requires_session=True),
        ):
            for change in planned(opened, each).changes:
                opened.make(change)
        wrong = planned(
            opened,
            QueueState(name="a-topic"),
            TopicState(name="a-queue"),
            QueueState(name="s", forward_to="a-queue"),
        )
        assert [fault.message for fault in wrong.faults] == [
            "namespace ewr: there is a topic with the name of the queue a-topic",
            "namespace ewr: there is a queue with the name of the topic a-queue",
            "namespace ewr: queue s requires sessions, and such an entity cannot forward to a-queue",
        ]
        assert wrong.changes == []
