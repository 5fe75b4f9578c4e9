"""Wanted queues, compared with namespaces in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.testing.administration import FakeAdministration
from isthmus.topology import Change, Federation, NamespaceRef, NamespaceState, QueueState, SubscriptionState, TopicState
from isthmus.topology.file.reference import SecretReference
from isthmus.topology.planning.finding import Findings
from isthmus.topology.planning.order import ordered
from isthmus.topology.planning.queue import plan_queue
from isthmus.topology.planning.topic import plan_topic

FEDERATION = Federation(
    namespaces={"ewr": NamespaceRef("ewr", SecretReference.parse("env:A"))}, tasks={}, file="a.yaml"
)
WANTED = QueueState(
    name="orders",
    max_delivery_count=5,
    dead_letters_expired=True,
    forward_dead_letters_to="parked",
    default_ttl_ms=300_000,
)
PARKED = QueueState(name="parked")


def planned(namespace: FakeAdministration, *wanted: QueueState | TopicState) -> Findings:
    findings = Findings(FEDERATION)
    state: NamespaceState = namespace.observe("ewr", wanted)
    for each in wanted:
        if isinstance(each, QueueState):
            plan_queue(findings, state, each)
        else:
            plan_topic(findings, state, each)
    return findings


def make(namespace: FakeAdministration, findings: Findings) -> list[Change]:
    changes = ordered(findings.changes)
    for change in changes:
        namespace.make(change)
    return list(changes)


def test_queues_are_made_targets_first_and_then_nothing_is_to_do() -> None:
    namespace = FakeAdministration("ewr.test")
    changes = make(namespace, planned(namespace, WANTED, PARKED))
    assert [(change.action, change.kind, change.path) for change in changes] == [
        ("create", "queue", "parked"),
        ("create", "queue", "orders"),
    ]
    assert set(changes[1].details) == {
        "MaxDeliveryCount 5",
        "DeadLetteringOnMessageExpiration yes",
        "ForwardDeadLetteredMessagesTo parked",
        "DefaultMessageTimeToLive 5m",
    }
    assert not planned(namespace, WANTED, PARKED).changes


def test_only_what_is_declared_changes_of_an_existing_queue() -> None:
    theirs = QueueState(name="Orders", lock_duration_ms=5_000, max_delivery_count=7, auto_delete_on_idle_ms=3_600_000)
    namespace = FakeAdministration("ewr.test", queues=[theirs, "parked"])
    before = namespace.observe("ewr", [WANTED]).queue("orders")
    findings = planned(
        namespace, QueueState(name="orders", dead_letters_expired=True, initial_ttl_ms=1, initial_size_megabytes=1)
    )
    (change,) = make(namespace, findings)
    assert change.details == ("DeadLetteringOnMessageExpiration no → yes",)
    assert before is not None
    assert namespace.observe("ewr", [WANTED]).queue("orders") == replace(
        before, name="orders", dead_letters_expired=True
    )


def test_a_queue_that_begins_to_forward_is_noted() -> None:
    namespace = FakeAdministration("ewr.test", queues=["orders", QueueState(name="billed", forward_to="orders")])
    notes = planned(
        namespace, QueueState(name="orders", forward_to="billed"), QueueState(name="billed", forward_to="")
    ).notes
    assert notes == [
        "messages of queue orders at ewr will be forwarded to billed, and no application can receive from it any more",
        "messages of queue billed at ewr will stay there; until now they were forwarded to orders",
    ]


def test_what_forwards_is_never_deleted_when_idle_and_is_not_planned_so() -> None:
    namespace = FakeAdministration("ewr.test", queues=["b"])
    wanted = QueueState(name="a", forward_to="b", auto_delete_on_idle_ms=3_600_000)
    make(namespace, planned(namespace, wanted))
    assert not planned(namespace, wanted).changes


@pytest.mark.parametrize(
    ("existing", "wanted", "message"),
    [
        ({"requires_session": True}, {"requires_session": False}, "queue q requires sessions, which cannot be changed"),
        ({}, {"requires_session": True}, "queue q does not require sessions, which cannot be changed"),
        ({"requires_session": True}, {"forward_to": "x"}, "requires sessions, and such an entity cannot forward to x"),
        ({"partitioned": True}, {"partitioned": False}, "is partitioned and keeps no order"),
        ({}, {"partitioned": True}, "is not partitioned, which cannot be changed"),
        ({}, {"duplicate_detection_ms": 600_000}, "without duplicate detection, which cannot be turned on"),
    ],
)
def test_what_cannot_be_changed_is_a_fault(existing: dict[str, bool], wanted: dict[str, bool], message: str) -> None:
    namespace = FakeAdministration("ewr.test", queues=[QueueState(name="q", **existing)])  # type: ignore[arg-type]
    (fault,) = planned(namespace, QueueState(name="q", **wanted)).faults  # type: ignore[arg-type]
    assert message in fault.message
    assert fault.hint


def test_a_subscription_with_sessions_cannot_forward() -> None:
    existing = SubscriptionState(name="s", requires_session=True)
    namespace = FakeAdministration("ewr.test", [TopicState(name="t", subscriptions=(existing,))], queues=["q"])
    wanted = TopicState(name="t", subscriptions=(SubscriptionState(name="s", forward_to="q"),))
    (fault,) = planned(namespace, wanted).faults
    assert "subscription s of t requires sessions" in fault.message


def test_a_topic_in_the_queues_place_is_a_fault_and_the_reverse() -> None:
    namespace = FakeAdministration("ewr.test", [TopicState(name="orders")], queues=["events"])
    messages = [fault.message for fault in planned(namespace, WANTED, TopicState(name="events")).faults]
    assert messages == [
        "namespace ewr: there is a topic with the name of the queue orders",
        "namespace ewr: there is a queue with the name of the topic events",
    ]


_SETTINGS = {
    "lock_duration_ms": st.sampled_from([5_000, 60_000]),
    "max_delivery_count": st.sampled_from([1, 2000]),
    "auto_delete_on_idle_ms": st.sampled_from([300_000, 3_600_000]),
    "forward_to": st.sampled_from(["", "x", "y"]),
    "forward_dead_letters_to": st.sampled_from(["", "x", "Y"]),
    "default_ttl_ms": st.sampled_from([1_000, 86_400_000]),
    "dead_letters_expired": st.booleans(),
    "duplicate_detection_ms": st.sampled_from([0, 20_000, 600_000]),
    "initial_ttl_ms": st.just(7_000),
    "status": st.sampled_from(["Active", "ReceiveDisabled"]),
}


@given(
    st.none() | st.fixed_dictionaries({}, optional=_SETTINGS),
    st.fixed_dictionaries({}, optional=_SETTINGS),
)
def test_i1_from_any_state_one_apply_is_enough(settings: dict[str, str] | None, wanted: dict[str, str]) -> None:
    existing = [] if settings is None else [QueueState(name="Q", **settings)]  # type: ignore[arg-type]
    namespace = FakeAdministration("ewr.test", queues=["x", "y", *existing])
    desired = QueueState(name="q", **wanted)  # type: ignore[arg-type]
    findings = planned(namespace, desired)
    if findings.faults:
        return
    make(namespace, findings)
    again = planned(namespace, desired)
    assert not again.changes
    assert not again.faults
