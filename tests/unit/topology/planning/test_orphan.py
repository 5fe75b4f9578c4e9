"""Entities that isthmus created and no task wants any more."""

from __future__ import annotations

import pytest

from isthmus.errors import InvalidArgumentError
from isthmus.testing.administration import FakeAdministration
from isthmus.topology import Change, NamespaceState, Plan, QueueState, SubscriptionState, TopicState, plan, read, wanted
from isthmus.topology.claim import CLAIM_TOPIC
from isthmus.topology.planning.orphan import find_orphans, named, of_tasks, removal, strays

HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n  lga: {connection: env:C}\ntasks:\n"
ALL = "{pattern: all-active, topic: flights, members: [ewr, jfk, lga], subscriptions: [boards]}"
TWO = ALL.replace(", lga]", "]")


def namespaces(text: str) -> dict[str, FakeAdministration]:
    """Namespaces at which a file was applied."""
    federation = read(text)
    found = {alias: FakeAdministration(f"{alias}.test") for alias in federation.namespaces}
    desired = wanted(federation)
    made = plan(federation, {alias: found[alias].observe(alias, desired[alias]) for alias in desired})
    for change in made.changes:
        found[change.alias].make(change)
    return found


def states(found: dict[str, FakeAdministration]) -> dict[str, NamespaceState]:
    return {alias: each.inventory(alias) for alias, each in found.items()}


def test_what_exists_as_declared_has_no_orphans() -> None:
    text = f"{HEAD}  flights: {ALL}\n"
    assert find_orphans(read(text), states(namespaces(text)).values()) == []


def test_a_removed_member_leaves_its_subscriptions_and_claim() -> None:
    found = namespaces(f"{HEAD}  flights: {ALL}\n")
    federation = read(f"{HEAD}  flights: {TWO}\n")
    orphans = find_orphans(federation, states(found).values())
    assert {(each.alias, each.change.path) for each in orphans} == {
        ("ewr", "flights/Subscriptions/isthmus.flights.lga"),
        ("jfk", "flights/Subscriptions/isthmus.flights.lga"),
        ("lga", "flights/Subscriptions/isthmus.flights.ewr"),
        ("lga", "flights/Subscriptions/isthmus.flights.jfk"),
        ("lga", f"{CLAIM_TOPIC}/Subscriptions/flights"),
    }
    assert of_tasks(federation, orphans) == (orphans, [])
    assert set(map(id, named(federation, orphans, "LGA"))) == set(map(id, orphans))
    assert named(federation, orphans, "jfk") == [
        each for each in orphans if each.member == "jfk" or each.alias == "jfk"
    ]
    changes = removal(states(found), orphans)
    for change in changes:
        found[change.alias].make(change)
    assert [change.path for change in changes if change.kind == "topic"] == [CLAIM_TOPIC]
    assert find_orphans(federation, states(found).values()) == []
    # I1: what an application reads stays.
    topic = states(found)["lga"].topic("flights")
    assert topic is not None
    assert [each.name for each in topic.subscriptions] == ["boards"]


def test_i2_a_task_that_the_file_lacks_is_only_removed_by_its_name() -> None:
    found = namespaces(f"{HEAD}  flights: {ALL}\n  gates: {ALL.replace('topic: flights', 'topic: gates')}\n")
    federation = read(f"{HEAD}  flights: {ALL}\n")
    orphans = find_orphans(federation, states(found).values())
    mine, others = of_tasks(federation, orphans)
    assert (mine, {each.task for each in others}) == ([], {"gates"})
    assert named(federation, orphans, "ewr") == []
    chosen = named(federation, orphans, "Gates")
    assert len(chosen) == 9
    for change in removal(states(found), chosen):
        assert change.topic != CLAIM_TOPIC or change.subscription == "gates"
        found[change.alias].make(change)
    assert find_orphans(federation, states(found).values()) == []


def test_a_task_of_the_file_is_not_removed() -> None:
    with pytest.raises(InvalidArgumentError, match="remove it from the file first"):
        named(read(f"{HEAD}  flights: {ALL}\n"), [], "Flights")


def test_i1_i3_an_applications_queue_stops_to_forward_before_its_target_goes() -> None:
    theirs = QueueState(name="orders", forward_dead_letters_to="ISTHMUS.old", max_delivery_count=7)
    front = TopicState(
        name="events",
        subscriptions=(
            SubscriptionState(name="all", forward_to="isthmus.old.box"),
            SubscriptionState(name="isthmus.old.jfk", forward_to="isthmus.old.box"),
        ),
    )
    old = TopicState(name="isthmus.old", subscriptions=(SubscriptionState(name="way", forward_to="isthmus.old.box"),))
    namespace = FakeAdministration("ewr.test", [front, old], ["isthmus.old.box", "isthmusian", theirs])
    federation = read(f"{HEAD}  flights: {TWO}\n")
    state = states({"ewr": namespace})
    changes = removal(state, named(federation, find_orphans(federation, state.values()), "old"))
    assert [(change.action, change.path, change.details) for change in changes] == [
        ("update", "orders", ("ForwardDeadLetteredMessagesTo ISTHMUS.old → ",)),
        ("update", "events/Subscriptions/all", ("ForwardTo isthmus.old.box → ",)),
        ("delete", "events/Subscriptions/isthmus.old.jfk", ()),
        ("delete", "isthmus.old.box", ()),
        ("delete", "isthmus.old", ()),
    ]
    for change in changes:
        namespace.make(change)
    left = namespace.inventory("ewr")
    assert {queue.name: (queue.max_delivery_count, queue.forward_dead_letters_to) for queue in left.queues} == {
        "isthmusian": (10, ""),
        "orders": (7, ""),
    }
    assert [topic.name for topic in left.topics] == ["events"]


def test_i5_the_marker_of_a_pair_of_namespaces_is_none() -> None:
    """Without it it is not known which member is fenced: both would be active."""
    text = f"{HEAD}  flights: {ALL}\n  pair: {ALL.replace('topic: flights', 'topic: gates').replace('subscriptions', 'mailbox: true, subscriptions')}\n"
    found = namespaces(text)
    marker = QueueState(name="isthmus.pair.contoso", status="Disabled")
    found["ewr"].make(Change(alias="ewr", action="create", kind="queue", topic=marker.name, after=marker))
    assert find_orphans(read(text), states(found).values()) == []
    # Nothing distinguishes a task of this name from it: its queues stay, too.
    orphans = find_orphans(read(f"{HEAD}  flights: {ALL}\n"), states(found).values())
    assert not [each for each in orphans if each.change.kind == "queue"]
    assert {each.task for each in orphans} == {"pair"}


SPILL = "{pattern: spillover, queue: %s, members: [ewr, jfk], deadline: 10m}"
SPLIT = "{pattern: split, source: ewr, queue: %s, targets: [{to: jfk, queue: far}]}"


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (SPILL, [("ewr", "payments", None, ""), ("jfk", "payments", None, "")]),
        (SPLIT, [("ewr", "payments", "", None)]),
    ],
)
def test_a_task_with_another_queue_no_longer_gets_what_the_former_one_forwards(
    task: str, expected: list[tuple[str, str, str | None, str | None]]
) -> None:
    former, text = f"{HEAD}  work: {task % 'payments'}\n", f"{HEAD}  work: {task % 'refunds'}\n"
    found = namespaces(former)
    assert strays(read(former), states(found).values()) == ()
    federation = read(text)
    desired = wanted(federation)
    made = plan(federation, {alias: found[alias].observe(alias, desired[alias]) for alias in desired})
    assert sum("queue refunds did not forward to it" in note for note in made.notes) == len(expected)
    for change in made.changes:
        found[change.alias].make(change)
    stray = strays(federation, states(found).values())
    reported = []
    for change in stray:
        assert isinstance(change.after, QueueState)
        reported.append((change.alias, change.path, change.after.forward_to, change.after.forward_dead_letters_to))
        found[change.alias].make(change)
    assert reported == expected
    assert strays(federation, states(found).values()) == ()
    assert strays(read(former), states(found).values())  # the new queue is not the former file's
    again = plan(federation, {alias: found[alias].observe(alias, desired[alias]) for alias in desired})
    assert again.changes == ()


@pytest.mark.parametrize("task", [SPILL, SPLIT])
def test_what_waits_for_a_task_that_has_another_name_is_reported(task: str) -> None:
    former, text = (f"{HEAD}  {name}: {task % 'payments'}\n" for name in ("work", "other"))
    found, federation = namespaces(former), read(text)
    desired = wanted(federation)
    made = plan(federation, {alias: found[alias].observe(alias, desired[alias]) for alias in desired})
    assert (
        sum(
            "messages in isthmus.work at ewr are no longer moved by any task of this file" in note
            for note in made.notes
        )
        == 1
    )


MOVE = "{pattern: move, source: ewr, queue: %s, target: jfk, target_queue: far}"


@pytest.mark.parametrize(
    ("was", "now", "reported"),
    [
        (SPLIT, SPILL, "messages of queue payments at ewr will stay there"),
        (SPILL, SPLIT, "dead-lettered messages of queue payments at ewr will stay there"),
        (SPILL, MOVE, "dead-lettered messages of queue payments at ewr will stay there"),
        (SPLIT, MOVE, "messages of queue payments at ewr will stay there"),
    ],
)
def test_what_a_queue_forwarded_for_another_pattern_of_its_task_ends(was: str, now: str, reported: str) -> None:
    """A queue that was split would have all that is sent to it parked by a task that spills its dead letters."""
    found = namespaces(f"{HEAD}  work: {was % 'payments'}\n")
    federation = read(f"{HEAD}  work: {now % 'payments'}\n")
    desired = wanted(federation)

    def planned() -> Plan:
        return plan(federation, {alias: found[alias].observe(alias, desired[alias]) for alias in desired})

    made = planned()
    assert sum(reported in note for note in made.notes) == 1
    order = [(each.action, each.path) for each in made.changes if each.alias == "ewr"]
    assert not any("/Rules/" in path for _, path in order[: order.index(("update", "payments"))])
    for change in made.changes:
        found[change.alias].make(change)
    assert not planned().changes
    assert not [change for change in strays(federation, states(found).values()) if change.alias == "ewr"]


def test_what_a_queue_forwards_for_a_task_that_is_in_no_file_is_reported() -> None:
    """Another file may have it."""
    found, federation = (
        namespaces(f"{HEAD}  work: {SPILL % 'payments'}\n"),
        read(f"{HEAD}  other: {MOVE % 'payments'}\n"),
    )
    desired = wanted(federation)
    made = plan(federation, {alias: found[alias].observe(alias, desired[alias]) for alias in desired})
    reported = "dead-lettered messages of queue payments at ewr are still forwarded to isthmus.work, which no task of this file declares"
    assert sum(reported in note for note in made.notes) == 1


def test_what_a_subscription_that_no_task_names_continues_to_forward_is_reported() -> None:
    topic = SPILL.replace("queue: %s", "topic: flights, subscription: workers")
    found, federation = namespaces(f"{HEAD}  flights: {topic}\n"), read(f"{HEAD}  flights: {TWO}\n")
    desired = wanted(federation)
    made = plan(federation, {alias: found[alias].observe(alias, desired[alias]) for alias in desired})
    reported = "dead-lettered messages of subscription workers of flights at ewr are still forwarded to isthmus.flights, which no task of this file declares"
    assert sum(reported in note for note in made.notes) == 1


def test_a_subscription_that_its_task_forwards_is_no_stray() -> None:
    text = f"{HEAD}  flights: {ALL[:-1]}, mailbox: true}}\n"
    assert strays(read(text), states(namespaces(text)).values()) == ()
    topic = f"{HEAD}  work: {SPILL.replace('queue: %s', 'topic: orders, subscription: workers')}\n"
    found = namespaces(topic)
    assert strays(read(topic), states(found).values()) == ()
    other = strays(read(topic.replace("workers", "others")), states(found).values())
    assert [each.path for each in other] == ["orders/Subscriptions/workers"] * 2


def test_a_mailbox_that_a_former_topic_fills_is_reported() -> None:
    """What is sent to the former topic would be forwarded to where copies of the new one go."""
    former = f"{HEAD}  work: {{pattern: copy, source: ewr, target: jfk, topic: flights, mailbox: true}}\n"
    federation = read(former.replace("topic: flights", "topic: gates"))
    found = namespaces(former)
    desired = wanted(federation)

    def planned() -> Plan:
        return plan(federation, {alias: found[alias].observe(alias, desired[alias]) for alias in desired})

    made = planned()
    reported = "queue isthmus.work.jfk at ewr exists, and subscription isthmus.work.jfk of gates did not forward to it"
    assert sum(reported in note for note in made.notes) == 1
    for change in made.changes:
        found[change.alias].make(change)
    assert planned().notes == ()
    orphans = find_orphans(federation, states(found).values())
    assert "flights/Subscriptions/isthmus.work.jfk" in {each.change.path for each in orphans}
    whole = namespaces(HEAD + "  flights: " + ALL + "\n")
    plain = read(former)
    first = plan(plain, {alias: whole[alias].observe(alias, wanted(plain)[alias]) for alias in wanted(plain)})
    assert not [note for note in first.notes if "did not forward" in note]
