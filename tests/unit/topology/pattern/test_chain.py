"""The pattern chain: its wanted entities, faults and flows."""

from __future__ import annotations

import pytest

from isthmus.testing.administration import FakeAdministration
from isthmus.topology import (
    Federation,
    Plan,
    QueueState,
    RuleState,
    SubscriptionState,
    TopicState,
    lint,
    plan,
    read,
    wanted,
)
from isthmus.topology.file.starter import starter
from isthmus.topology.pattern import PATTERNS

HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\ntasks:\n"


def chain(settings: str) -> str:
    return f"{HEAD}  t: {{pattern: chain, members: [ewr], {settings}}}\n"


def planned(federation: Federation, namespace: FakeAdministration) -> Plan:
    return plan(federation, {"ewr": namespace.observe("ewr", wanted(federation)["ewr"])})


def test_what_a_chain_wants() -> None:
    federation = read(
        chain(
            "forward: {acme: Orders, Orders/Subscriptions/boards: boards, "
            "orders/subscriptions/ua: {to: ua, filter: \"carrier = 'UA'\"}, old: off}, "
            "dead_letters: {Boards: parked, orders/Subscriptions/UA: parked}"
        )
    )
    assert wanted(federation) == {
        "ewr": (
            QueueState(name="acme", forward_to="Orders"),
            QueueState(name="boards", forward_dead_letters_to="parked"),
            QueueState(name="ua"),
            QueueState(name="old", forward_to=""),
            QueueState(name="parked"),
            TopicState(
                name="Orders",
                subscriptions=(
                    SubscriptionState(name="boards", forward_to="boards"),
                    SubscriptionState(
                        name="ua",
                        rules=(RuleState("filter", "carrier = 'UA'"),),
                        forward_to="ua",
                        forward_dead_letters_to="parked",
                    ),
                ),
            ),
        )
    }
    assert not planned(federation, FakeAdministration("ewr.test")).routes


def test_a_chain_is_made_from_its_end_and_then_complete() -> None:
    federation = read(chain("forward: {a: b, b: t, t/Subscriptions/s: c, c: d}"))
    namespace = FakeAdministration("ewr.test")
    made = planned(federation, namespace)
    assert [change.path for change in made.changes] == ["t", "d", "c", "t/Subscriptions/s", "b", "a"]
    for change in made.changes:
        namespace.make(change)
    assert planned(federation, namespace).changes == ()


def test_partners_are_suspended_alone_and_resumed() -> None:
    namespace = FakeAdministration("ewr.test", queues=[QueueState(name="other", status="Disabled")])
    forward = "forward: {acme: orders, umbrella: orders, orders: mailbox}"

    def statuses(settings: str) -> dict[str, str | None]:
        federation = read(chain(forward + settings))
        made = planned(federation, namespace)
        assert not made.faults
        for change in made.changes:
            namespace.make(change)
        return {queue.name: queue.status for queue in namespace.observe("ewr", wanted(federation)["ewr"]).queues}

    active = dict.fromkeys(("acme", "umbrella", "orders", "mailbox"), "Active")
    assert statuses("") == active
    suspended = active | {"acme": "SendDisabled", "mailbox": "ReceiveDisabled"}
    assert statuses(", suspended: {acme: send, mailbox: receive}") == suspended
    assert statuses("") == suspended
    assert statuses(", suspended: {}") == active


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("forward: {}", "task t forwards nothing"),
        ("dead_letters: {a: b}", "has no forward"),
        ("forward: [a]", "forward is not a mapping"),
        ("forward: {a: [b]}", "forward of a is not a mapping"),
        ("forward: {a: {filter: x = 1}}", "has no to"),
        ("forward: {a: {to: b, filter: x = 1}}", "queue a cannot select messages"),
        ("forward: {t/Subscriptions/s: {to: b, filter: x = = 1}}", "filter, column"),
        ("forward: {a: b, A: c}", "A appears twice in forward"),
        (
            "forward: {a: b}, dead_letters: {t/Subscriptions/s: {to: b, filter: x = 1}}",
            "dead_letters of t cannot select messages",
        ),
        ("forward: {a: {to: t, kind: topic}, t: c}", "t is a topic here and forwards nothing itself"),
        ("forward: {t/Subscriptions/s: b, t: c}", "t is a topic here and forwards nothing itself"),
        ("forward: {a: isthmus.claims}", "isthmus's own"),
        ("forward: {a: b, b: A}", "in a circle: a → b → a"),
        ("forward: {a: b}, suspended: {x: send}", "queue x is not in this chain"),
        ("forward: {a: b}, suspended: {b: send}", "others forward to b"),
        ("forward: {a: b}, suspended: {a: receive}", "no application can receive from a"),
        ("forward: {a: b}, suspended: {a: all}", "unknown value"),
        ("forward: {a: b}, mark: x", "has no setting 'mark'"),
    ],
)
def test_what_a_chain_refuses(settings: str, message: str) -> None:
    (fault,) = lint(chain(settings))
    assert message in fault.message
    assert fault.hint or "column" in message
    assert fault.line == 6


def test_two_tasks_that_forward_one_queue_to_two_places_are_a_fault() -> None:
    text = chain("forward: {a: b}") + "  u: {pattern: chain, members: [ewr, jfk], forward: {A: c}}\n"
    (fault,) = lint(text)
    assert fault.message == "tasks t and u want queue a with ForwardTo b and c at ewr"
    assert fault.line == 7


def test_audit_goes_from_each_entry_to_each_end() -> None:
    federation = read(
        chain(
            "forward: {acme: t, umbrella: t, t/Subscriptions/s: mid, mid: end, t/Subscriptions/u: {to: ua, filter: c = 1}}"
        )
    )
    task = federation.tasks["t"]
    assert [(str(flow.origin), str(flow.target), flow.filter) for flow in PATTERNS["chain"].audit(task)] == [
        ("ewr/acme", "ewr/end", ""),
        ("ewr/acme", "ewr/ua", "(c = 1)"),
        ("ewr/umbrella", "ewr/end", ""),
        ("ewr/umbrella", "ewr/ua", "(c = 1)"),
    ]


def test_the_starter_has_no_fault() -> None:
    assert lint(starter("chain")) == []


def test_an_entry_queue_leads_to_a_topic_of_another_task() -> None:
    text = chain("forward: {inbox: TARGET}") + "  u: {pattern: all-active, topic: flights, members: [ewr, jfk]}\n"
    (fault,) = lint(text.replace("TARGET", "flights"))
    assert fault.message == "tasks t and u want both a queue and a topic flights at ewr"
    federation = read(text.replace("TARGET", "{to: flights, kind: topic}"))
    assert [type(each).__name__ for each in wanted(federation)["ewr"]] == ["QueueState", "TopicState", "TopicState"]
    (flow,) = PATTERNS["chain"].audit(federation.tasks["t"])
    assert str(flow.target) == "ewr/flights"
