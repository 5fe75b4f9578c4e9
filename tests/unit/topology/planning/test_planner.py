"""Planning with namespaces in memory; NAME.txt contains the whole plan of tests/fixtures/topology/plan/NAME.yaml."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import InvalidArgumentError
from isthmus.rules import DictView, parse_filter
from isthmus.testing.administration import FakeAdministration
from isthmus.topology import (
    Change,
    Federation,
    NamespaceState,
    Plan,
    RuleState,
    SubscriptionState,
    TopicState,
    plan,
    read,
    wanted,
    wanted_topics,
)
from isthmus.topology.claim import CLAIM_TOPIC
from isthmus.topology.pattern.part.mark import mark_filter
from isthmus.topology.state import DEFAULT_RULE

FIXTURES = Path(__file__).parents[3] / "fixtures" / "topology" / "plan"
REPLICATION = "isthmus.flights.jfk"
MARK_FILTER = mark_filter("replication", is_number=True)
PAIR = read(
    "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n"
    "tasks:\n  flights: {pattern: all-active, topic: flights, members: [ewr, jfk], mark: replication, "
    "duplicates: message-id, subscriptions: {ua: {filter: a = 1}, all: }}\n"
)


def fakes(federation: Federation, **topics: TopicState) -> dict[str, FakeAdministration]:
    return {
        alias: FakeAdministration(f"{alias}.test", [topics[alias]] if alias in topics else [])
        for alias in federation.namespaces
    }


def planned(federation: Federation, namespaces: dict[str, FakeAdministration]) -> Plan:
    desired = wanted(federation)
    return plan(federation, {alias: namespaces[alias].observe(alias, desired[alias]) for alias in desired})


def make(made: Plan, namespaces: dict[str, FakeAdministration]) -> None:
    for change in made.changes:
        namespaces[change.alias].make(change)


def topic(*subscriptions: SubscriptionState, detection_ms: int = 600_000, partitioned: bool = False) -> TopicState:
    return TopicState(
        name="Flights", subscriptions=subscriptions, duplicate_detection_ms=detection_ms, partitioned=partitioned
    )


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_whole_plan(file: Path) -> None:
    federation = read(file.read_text())
    made = planned(federation, fakes(federation))
    lines = [
        " | ".join((f"{change.alias} {change.action} {change.kind} {change.path}", *change.details))
        for change in made.changes
    ]
    lines += [f"route {route.name}: {route.source} -> {route.target}" for route in made.routes]
    lines += [f"note {note}" for note in made.notes]
    assert lines == file.with_suffix(".txt").read_text().splitlines()
    assert not made.faults
    assert json.dumps(made.to_dict())


def test_only_namespaces_of_tasks_are_observed() -> None:
    federation = read((FIXTURES / "flights.yaml").read_text())
    assert {alias: set(topics) for alias, topics in wanted_topics(federation).items()} == {
        "ewr": {"flights", "bookings", CLAIM_TOPIC},
        "jfk": {"flights", "bookings", CLAIM_TOPIC},
        "lga": {"flights", CLAIM_TOPIC},
    }


def test_a_namespace_that_was_not_observed_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match="jfk"):
        plan(PAIR, {"ewr": NamespaceState(alias="ewr")})


def test_i4_replication_subscriptions_come_last_of_what_is_created() -> None:
    kinds = [
        (change.kind, change.subscription.startswith("isthmus."))
        for change in planned(PAIR, fakes(PAIR)).changes
        if change.topic != CLAIM_TOPIC
    ]
    assert kinds == [("topic", False)] * 2 + [("subscription", False)] * 4 + [("subscription", True)] * 2


def test_i1_after_apply_there_is_nothing_to_do() -> None:
    namespaces = fakes(PAIR)
    make(planned(PAIR, namespaces), namespaces)
    again = planned(PAIR, namespaces)
    assert again.changes == again.faults == ()
    assert len(again.notes) == 1


def test_a_subscription_made_by_hand_is_mended() -> None:
    by_hand = SubscriptionState(name=REPLICATION)
    namespaces = fakes(PAIR, ewr=topic(by_hand))
    changes = [change for change in planned(PAIR, namespaces).changes if change.subscription == REPLICATION]
    assert [(change.action, change.path.rpartition("/")[2]) for change in changes] == [
        ("update", REPLICATION),
        ("update", DEFAULT_RULE),
        ("create", "isthmus"),
        ("delete", DEFAULT_RULE),
    ]
    assert changes[0].details == ("LockDuration 1m → 30s", "MaxDeliveryCount 10 → 2000")
    make(planned(PAIR, namespaces), namespaces)
    assert not planned(PAIR, namespaces).changes


def test_a_changed_rule_is_overwritten_in_place() -> None:
    namespaces = fakes(PAIR)
    make(planned(PAIR, namespaces), namespaces)
    other = read(
        "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n"
        "tasks:\n  flights: {pattern: all-active, topic: flights, members: [ewr, jfk], mark: seen, duplicate_detection: 1h}\n"
    )
    made = planned(other, namespaces)
    assert [(change.action, change.kind) for change in made.changes] == [("update", "topic")] * 2 + [
        ("update", "rule")
    ] * 2
    assert made.changes[0].details == ("DuplicateDetection 10m → 1h",)
    make(made, namespaces)
    assert not planned(other, namespaces).changes


def test_i2_what_an_application_made_is_left_alone() -> None:
    theirs = SubscriptionState(name="all", rules=(RuleState("theirs", "x = 1"),), lock_duration_ms=5000)
    namespaces = fakes(PAIR, ewr=topic(theirs, SubscriptionState(name="unknown")))
    touched = {
        change.subscription
        for change in planned(PAIR, namespaces).changes
        if change.alias == "ewr" and change.topic == "flights"
    }
    assert touched == {"ua", REPLICATION}


@pytest.mark.parametrize(
    ("existing", "message"),
    [
        (topic(detection_ms=0), "without duplicate detection, which cannot be turned on"),
        (topic(partitioned=True), "is partitioned and keeps no order"),
        (topic(SubscriptionState(name=REPLICATION, requires_session=True)), "requires sessions"),
    ],
)
def test_conflicts_that_cannot_be_changed_are_faults(existing: TopicState, message: str) -> None:
    (fault,) = planned(PAIR, fakes(PAIR, ewr=existing)).faults
    assert message in fault.message
    assert fault.hint
    assert (fault.line, fault.column) == (3, 3)


def test_detection_that_is_on_is_no_conflict_where_it_is_not_asked_for() -> None:
    off = read(
        "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n"
        "tasks:\n  flights: {pattern: all-active, topic: flights, members: [ewr, jfk], duplicate_detection: off}\n"
    )
    made = planned(off, fakes(off, ewr=topic(), jfk=topic()))
    assert not made.faults
    assert {change.topic for change in made.changes if change.kind == "topic"} == {CLAIM_TOPIC}


def test_a_queue_in_the_topics_place_is_a_fault() -> None:
    namespaces = fakes(PAIR)
    namespaces["jfk"] = FakeAdministration("jfk.test", queues=["FLIGHTS"])
    (fault,) = planned(PAIR, namespaces).faults
    assert "there is a queue with the name of the topic flights" in fault.message


def test_one_namespace_under_two_aliases_is_a_fault() -> None:
    namespaces = fakes(PAIR)
    namespaces["jfk"] = FakeAdministration("EWR.test")
    (fault,) = planned(PAIR, namespaces).faults
    assert "is also namespace ewr" in fault.message


def test_subscriptions_of_removed_members_are_noted() -> None:
    existing = topic(SubscriptionState(name="isthmus.flights.lga"))
    made = planned(PAIR, fakes(PAIR, ewr=existing))
    (note,) = [each for each in made.notes if "isthmus.flights.lga" in each]
    assert "belongs to no task" in note
    assert "isthmus remove" in note, "apply --prune deletes nothing of a task that the file does not have"


_RULES = st.lists(
    st.sampled_from(
        [
            RuleState(DEFAULT_RULE, "1=1"),
            RuleState("isthmus", "1=1"),
            RuleState("ISTHMUS", MARK_FILTER, "SET replication = 1"),
            RuleState("other", "a = 1"),
            RuleState("third", MARK_FILTER.replace(" ", "  "), "SET replication = 1"),
        ]
    ),
    max_size=4,
    unique_by=lambda rule: rule.name.lower(),
)
_SUBSCRIPTIONS = st.lists(
    st.builds(
        lambda name, rules, lock_ms: SubscriptionState(name=name, rules=tuple(rules), lock_duration_ms=lock_ms),
        st.sampled_from([REPLICATION, "ISTHMUS.flights.jfk", "ua", "all", "other"]),
        _RULES,
        st.sampled_from([5_000, 30_000]),
    ),
    unique_by=lambda subscription: subscription.name.lower(),
)


def _takes_unmarked(subscription: SubscriptionState) -> bool:
    """Whether some message would enter the subscription as a copy that bears no mark."""
    samples = [DictView(user={}), DictView(user={"a": 1})]
    return any(
        "replication" not in rule.action and any(parse_filter(rule.filter).matches(sample) for sample in samples)
        for rule in subscription.rules or ()
    )


@given(_SUBSCRIPTIONS)
def test_i1_i3_from_any_state(subscriptions: list[SubscriptionState]) -> None:
    namespaces = fakes(PAIR, ewr=topic(*subscriptions))
    made = planned(PAIR, namespaces)
    assert not made.faults
    before = {each.name.lower(): each for each in subscriptions}
    unmarked = REPLICATION in before and _takes_unmarked(before[REPLICATION])
    for change in made.changes:
        namespaces[change.alias].make(change)
        existing = namespaces["ewr"].observe("ewr", wanted(PAIR)["ewr"]).topics[0].subscription(REPLICATION)
        now = existing is not None and _takes_unmarked(existing)
        assert unmarked or not now
        unmarked = now
    again = planned(PAIR, namespaces)
    assert again.changes == again.faults == ()
    existing = namespaces["ewr"].observe("ewr", wanted(PAIR)["ewr"]).topics[0].subscription(REPLICATION)
    assert existing is not None
    assert existing.rules is not None
    assert [replace(rule, name="isthmus") for rule in existing.rules] == list(
        wanted(PAIR)["ewr"][0].subscription(REPLICATION).rules or ()
    )


HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n"


def flights(settings: str = "") -> Federation:
    return read(f"{HEAD}tasks:\n  flights: {{pattern: all-active, topic: flights, members: [ewr, jfk]{settings}}}\n")


def test_the_rule_of_an_earlier_version_is_a_change_of_the_rule_alone() -> None:
    namespaces = fakes(PAIR)
    federation = flights()
    make(planned(federation, namespaces), namespaces)
    old = RuleState("isthmus", "replication IS NULL OR replication <> 1", "SET replication = 1")
    for alias, target in (("ewr", "jfk"), ("jfk", "ewr")):
        (existing,) = namespaces[alias].observe(alias, wanted(federation)[alias][:1])
        (subscription,) = existing.subscriptions
        rule = subscription.rules[0]
        change = Change(
            alias=alias,
            action="update",
            kind="rule",
            topic="flights",
            subscription=f"isthmus.flights.{target}",
            after=old,
            before=rule,
        )
        namespaces[alias].make(change)
    assert [(change.action, change.kind) for change in planned(federation, namespaces).changes] == [
        ("update", "rule")
    ] * 2


@pytest.mark.parametrize(
    ("settings", "own_ms", "azure_ms", "note"),
    [
        ("", 0, 0, "at jfk a copy that is sent again after a crash appears twice"),
        (", duplicate_detection: off", 0, 0, "appears twice"),
        (", duplicates: origin", 0, 600_000, "a copy's MessageId is derived from its origin"),
        (", duplicates: message-id", 600_000, 600_000, "publishers with equal MessageIds lose messages"),
        (", duplicate_detection: 1h", 3_600_000, 3_600_000, "publishers with equal MessageIds lose messages"),
        (", duplicates: allow", 0, 0, "appears twice"),
    ],
)
def test_how_copies_are_distinguished(settings: str, own_ms: int, azure_ms: int, note: str) -> None:
    federation = flights(settings)
    namespaces = {"ewr": FakeAdministration("localhost:5671"), "jfk": FakeAdministration("jfk.servicebus.windows.net")}
    made = planned(federation, namespaces)
    windows = {
        c.alias: c.after.duplicate_detection_ms for c in made.changes if c.kind == "topic" and c.topic == "flights"
    }
    assert windows == {"ewr": own_ms, "jfk": azure_ms}
    assert any(note in each for each in made.notes)
    make(made, namespaces)
    assert not planned(federation, namespaces).changes


def test_existing_detection_that_is_not_asked_for_is_noted() -> None:
    federation = flights()
    made = planned(federation, fakes(federation, ewr=topic(), jfk=topic(detection_ms=0)))
    (note,) = made.notes
    assert note.startswith("topic flights at ewr has duplicate detection (10m)")


@pytest.mark.parametrize(
    ("rules", "is_told"),
    [
        ((RuleState(DEFAULT_RULE, "1=1"),), False),
        ((RuleState("filter", "a = 1"), RuleState("all", "1 = 1")), False),
        ((RuleState("filter", "a = 1"),), True),
        ((), True),
    ],
)
def test_an_audit_subscription_with_rules_of_its_own_is_reported(rules: tuple[RuleState, ...], is_told: bool) -> None:
    """One that had a filter in the file before keeps it; verify would take it for one that contains every message."""
    federation = read(
        "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n"
        "tasks:\n  flights: {pattern: all-active, topic: flights, members: [ewr, jfk], subscriptions: [audit]}\n"
    )
    namespaces = fakes(federation, ewr=topic(SubscriptionState(name="audit", rules=rules)))
    reported = [note for note in planned(federation, namespaces).notes if "does not get every message" in note]
    assert [each.partition(" has")[0] for each in reported] == ["subscription audit of flights at ewr"] * is_told


@pytest.mark.parametrize(
    ("subscriptions", "rule", "reported"),
    [
        ("[boards, gates]", "a = 1", ["subscription boards of flights at ewr"]),
        ("[gates, boards]", "a = 1", []),
        ("[boards, audit]", "a = 1", []),
        ("[boards]", "1 = 1", []),
    ],
)
def test_a_subscription_that_verify_reads_and_that_misses_messages_is_reported(
    subscriptions: str, rule: str, reported: list[str]
) -> None:
    """A filter that the file named before, or an application's: without audit verify would call clean what it leaves out."""
    federation = read(
        "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n"
        f"tasks:\n  flights: {{pattern: all-active, topic: flights, members: [ewr, jfk], subscriptions: {subscriptions}}}\n"
    )
    namespaces = fakes(federation, ewr=topic(SubscriptionState(name="boards", rules=(RuleState("filter", rule),))))
    found = [note for note in planned(federation, namespaces).notes if "does not get every message" in note]
    assert [each.partition(" has")[0] for each in found] == reported


@pytest.mark.parametrize(
    ("rules", "is_told"),
    [
        ((RuleState("filter", "a = 1"),), True),
        ((RuleState("filter", "1 = 1"),), False),
        ((RuleState("filter", "a = 1"), RuleState("all", "1 = 1")), False),
        ((RuleState("mine", "a = 1"),), False),
    ],
)
def test_a_filter_that_was_taken_out_of_the_file_is_reported(rules: tuple[RuleState, ...], is_told: bool) -> None:
    """The file says that the subscription gets every message; its rule is left as it is."""
    federation = read(
        "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n"
        "tasks:\n  flights: {pattern: all-active, topic: flights, members: [ewr, jfk], subscriptions: [all, ua]}\n"
        "  inside: {pattern: chain, members: [ewr], forward: {flights/Subscriptions/boards: boards}}\n"
    )
    existing = [SubscriptionState(name=name, rules=rules) for name in ("ua", "boards")]
    made = planned(federation, fakes(federation, ewr=topic(*existing)))
    reported = [each for each in made.notes if "keeps its rule filter" in each]
    assert [each.partition(" keeps")[0] for each in reported] == [
        "subscription ua of flights at ewr",
        "subscription boards of flights at ewr",
    ] * is_told
    assert all(
        '(a = 1), which the file does not declare, and gets only the messages that it selects; write filter: "1 = 1"'
        in each
        for each in reported
    )
