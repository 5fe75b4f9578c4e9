"""The order of changes."""

from __future__ import annotations

import itertools

from isthmus.topology import Change, QueueState, RuleState, SubscriptionState, TopicState
from isthmus.topology.planning.order import ordered


def queue(name: str, **settings: str) -> Change:
    after = QueueState(name=name, **settings)  # type: ignore[arg-type]
    return Change(alias="ewr", action="create", kind="queue", topic=name, after=after)


def topic(name: str, alias: str = "ewr") -> Change:
    return Change(alias=alias, action="create", kind="topic", topic=name, after=TopicState(name=name))


def subscription(of: str, name: str, alias: str = "ewr", action: str = "create", **settings: str) -> Change:
    after = SubscriptionState(name=name, **settings)  # type: ignore[arg-type]
    return Change(
        alias=alias,
        action=action,  # type: ignore[arg-type]
        kind="subscription",
        topic=of,
        subscription=name,
        after=after,
    )


def rule(of: str, subscribed: str) -> Change:
    after = RuleState("r", "1=1")
    return Change(alias="ewr", action="update", kind="rule", topic=of, subscription=subscribed, after=after)


def test_i1_what_forwards_comes_after_its_target_and_the_targets_subscriptions() -> None:
    changes = [
        queue("a", forward_to="B"),
        queue("b", forward_dead_letters_to="isthmus.t"),
        subscription("isthmus.t", "isthmus.t.jfk"),
        rule("isthmus.t", "isthmus.t.lga"),
        subscription("t", "s", forward_to="a"),
        topic("isthmus.t"),
        topic("t"),
    ]
    for permuted in itertools.permutations(changes):
        order = ordered(permuted)
        at = {(change.topic, change.kind): place for place, change in enumerate(order)}
        assert at["isthmus.t", "subscription"] < at["b", "queue"] < at["a", "queue"] < at["t", "subscription"]
        assert at["isthmus.t", "topic"] < at["isthmus.t", "rule"] < at["b", "queue"]


def test_i1_a_subscription_forwards_only_when_its_rules_are_right() -> None:
    changes = [subscription("t", "isthmus.t.jfk", action="update", forward_to="q"), rule("t", "isthmus.t.jfk")]
    assert [change.kind for change in ordered(changes)] == ["rule", "subscription"]


def test_i4_a_rule_is_changed_when_the_subscriptions_of_its_topic_are_there() -> None:
    """A rule that is narrowed leaves messages to a subscription that has to exist by then."""
    changes = [
        rule("isthmus.t", "isthmus.t.rest"),
        subscription("isthmus.t", "isthmus.t.new"),
        # Needs all that belongs to its target, and the replication subscription waits for ordinary ones.
        subscription("t", "s", action="update", forward_to="isthmus.t"),
    ]
    for permuted in itertools.permutations(changes):
        assert [change.subscription for change in ordered(permuted)] == ["isthmus.t.new", "isthmus.t.rest", "s"]


def test_i2_a_replication_subscription_waits_for_ordinary_ones_that_forward() -> None:
    changes = [
        subscription("t", "isthmus.t.jfk"),
        subscription("t", "s", alias="jfk", forward_to="q"),
        Change(alias="jfk", action="create", kind="queue", topic="q", after=QueueState(name="q")),
        topic("t", alias="jfk"),
    ]
    kinds = [(change.kind, change.subscription) for change in ordered(changes)]
    assert kinds == [("topic", ""), ("queue", ""), ("subscription", "s"), ("subscription", "isthmus.t.jfk")]


def test_i2_gives_way_where_an_ordinary_subscription_forwards_to_its_topic() -> None:
    changes = [subscription("t", "s", forward_to="isthmus.t"), subscription("isthmus.t", "isthmus.t.jfk")]
    assert [change.subscription for change in ordered(changes)] == ["isthmus.t.jfk", "s"]


def test_a_circle_ends_in_some_order() -> None:
    changes = [queue("a", forward_to="b"), queue("b", forward_to="a")]
    assert len(ordered(changes)) == 2


def test_i3_every_kind_of_change_has_its_place() -> None:
    kinds = ("rule", "group", "subscription", "queue", "log", "topic")
    changes = [Change(alias="a", action="create", kind=kind, topic="t") for kind in kinds]  # type: ignore[arg-type]
    assert [change.kind for change in ordered(changes)] == ["log", "topic", "group", "queue", "subscription", "rule"]
