"""Canaries are kept from applications by rules, or refused."""

from __future__ import annotations

import pytest

from isthmus.errors import ConfigError
from isthmus.rules import DictView, parse_filter
from isthmus.topology import lint, plan, read
from isthmus.topology.canary import canary_subscription
from isthmus.topology.model import Federation
from isthmus.topology.planning.wanted import wanted
from isthmus.topology.route import routes
from isthmus.topology.state import NamespaceState, RuleState, SubscriptionState, TopicState

HEAD = (
    "isthmus: 1\nnamespaces: {ewr: {connection: env:A}, jfk: {connection: env:B}, lga: {connection: env:C}}\ntasks:\n"
)
FLIGHTS = (
    "  flights: {pattern: all-active, topic: flights, members: [ewr, jfk, lga], audit: 1d, filter: \"carrier = 'UA'\", "
    "subscriptions: {all: , heavy: {filter: weight > 10}}, canary: 30s}\n"
)
NAMES = ["all", "audit", "heavy", "isthmus.flights.canary", "isthmus.flights.jfk", "isthmus.flights.lga"]


@pytest.fixture
def federation() -> Federation:
    return read(HEAD + FLIGHTS)


def topic_at(federation: Federation, alias: str, name: str = "flights") -> TopicState:
    return next(each for each in wanted(federation)[alias] if isinstance(each, TopicState) and each.name == name)


def selecting(topic: TopicState, **user: object) -> list[str]:
    """Subscriptions of which a rule selects a message."""
    view = DictView(user=user)  # type: ignore[arg-type]
    return sorted(
        each.name
        for each in topic.subscriptions
        if each.rules is None or any(parse_filter(rule.filter).matches(view) is True for rule in each.rules)
    )


def test_i2_a_canary_is_selected_by_its_route_alone(federation: Federation) -> None:
    topic = topic_at(federation, "ewr")
    assert sorted(each.name for each in topic.subscriptions) == NAMES
    for target in ("jfk", "lga"):
        canary = {"isthmus-canary": f"flights.ewr.{target}"}
        assert selecting(topic, **canary) == [f"isthmus.flights.{target}"]
        # Whatever the applications' own filters select.
        assert selecting(topic, **canary, weight=50, carrier="UA") == [f"isthmus.flights.{target}"]


def test_i2_its_copy_is_selected_by_the_canarys_subscription_alone(federation: Federation) -> None:
    topic = topic_at(federation, "jfk")
    mark = routes(federation)[0].options.mark
    copy = {"isthmus-canary": "flights.ewr.jfk", "repl-origin": "ewr/flights", mark: "x", "weight": 50, "carrier": "UA"}
    assert selecting(topic, **copy) == [canary_subscription("flights")]


def test_i1_other_messages_are_selected_as_without(federation: Federation) -> None:
    without = read(HEAD + FLIGHTS.replace(", canary: 30s", ""))
    mark = routes(federation)[0].options.mark
    for message in (
        {},
        {"carrier": "UA"},
        {"carrier": "UA", "weight": 50},
        {"carrier": "UA", mark: "id"},
        {"repl-origin": "ewr/flights", mark: "id"},
        {"weight": 3},
    ):
        assert selecting(topic_at(federation, "ewr"), **message) == selecting(topic_at(without, "ewr"), **message)


def test_each_route_learns_how_often(federation: Federation) -> None:
    assert {route.options.canary_ms for route in routes(federation)} == {30_000}


@pytest.mark.parametrize(
    ("task", "fault"),
    [
        (
            "{pattern: spillover, queue: pay, members: [ewr, jfk], deadline: 10m, canary: 30s}",
            "a canary of t.ewr.jfk cannot be kept from the consumers of its target: pay at jfk is no topic",
        ),
        ("{pattern: all-active, topic: t, members: [ewr, jfk], subscriptions: [all], canary: 1ms}", "canary is below"),
        (
            "{pattern: consolidate, topic: t, sources: [ewr, jfk], target: lga, canary: 30s}",
            "isthmus verify could not distinguish canaries from lost messages; write audit: 1d",
        ),
        (
            "{pattern: move, queue: t, source: ewr, target: jfk, canary: 30s}",
            "a canary of t.ewr.jfk cannot be kept from the consumers of its source",
        ),
        (
            "{pattern: all-active, topic: t, members: [ewr, jfk], subscriptions: [all], canary: 30s, steps: [{sql: SELECT * FROM rows}]}",
            "the step sql would process canaries too",
        ),
        (
            "{pattern: all-active, topic: t, members: [ewr, jfk], subscriptions: [all], canary: 30s}\n  other: {pattern: active-passive, topic: t, primary: jfk, secondary: lga, failover_within: 1m, subscriptions: [some]}",
            "task other reads a topic of this task and would copy its canaries; write canary in task other too",
        ),
    ],
)
def test_i3_what_cannot_be_kept_apart_is_refused(task: str, fault: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(f"{HEAD}  t: {task}\n")
    assert fault in str(raised.value)


def test_a_canary_whose_topics_no_other_task_reads_has_no_fault() -> None:
    assert not lint(HEAD + FLIGHTS)


def planned(federation: Federation, *present: SubscriptionState) -> list[str]:
    """Faults of a plan where these subscriptions exist at ewr."""
    states = {
        alias: NamespaceState(
            alias=alias,
            endpoint=alias,
            topics=(TopicState(name="flights", subscriptions=present),) if alias == "ewr" else (),
        )
        for alias in federation.namespaces
    }
    return [str(fault) for fault in plan(federation, states).faults]


def existing(name: str, *rules: RuleState) -> SubscriptionState:
    return SubscriptionState(name=name, rules=rules, requires_session=False, forward_to="")


EVERYTHING = RuleState("$Default", "1=1")


def test_i3_a_subscription_that_the_file_does_not_have_is_a_fault_where_it_takes_canaries(
    federation: Federation,
) -> None:
    (fault,) = planned(federation, existing("billing", EVERYTHING))
    assert "subscription billing of flights would get canaries" in fault
    assert not planned(federation, existing("billing", RuleState("r", "carrier = 'DL'")))
    assert not planned(federation, existing("billing", RuleState("r", "[isthmus-canary] IS NULL")))


def test_i3_rules_that_the_file_does_not_have_are_not_replaced(federation: Federation) -> None:
    assert not planned(federation, existing("all", EVERYTHING))
    (fault,) = planned(federation, existing("all", RuleState("mine", "weight > 3")))
    assert "subscription all of flights has rules that the file does not declare" in fault
