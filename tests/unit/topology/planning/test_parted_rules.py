"""Subscriptions that divide the messages of a topic among them lose none while their rules change."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from isthmus.rules import DictView, parse_filter
from isthmus.testing.administration import FakeAdministration
from isthmus.topology import Federation, NamespaceState, TopicState, plan, read, wanted
from isthmus.topology.check.rule_check import RULE_LIMIT
from isthmus.topology.planning.finding import OWN

HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\ntasks:\n  t: "
SPLIT = (
    '{pattern: split, source: ewr, %s, targets: [{to: jfk, queue: first, filter: "%s"}, {to: jfk, name: two, queue: second, filter: "%s"}], '
    "first: true, otherwise: {to: jfk, name: rest, queue: rest}}\n"
)
SPILLOVER = "{pattern: spillover, queue: q, members: [ewr, jfk], deadline: 10m, reasons: [%s]}\n"
REASONS = ("MaxDeliveryCountExceeded", "TTLExpiredException", "CardDeclined", "other")


def observed(federation: Federation, namespaces: dict[str, FakeAdministration]) -> dict[str, NamespaceState]:
    desired = wanted(federation)
    return {alias: namespaces[alias].observe(alias, desired[alias]) for alias in desired}


def parted(state: NamespaceState, name: str) -> TopicState:
    found = state.topic(name)
    assert found is not None
    return found


def takers(topic: TopicState, user: dict[str, Any]) -> list[str]:
    """The task's subscriptions that take a message."""
    view = DictView(user=user, sys={"MessageId": "m", "EnqueuedTimeUtc": datetime(2026, 1, 1, tzinfo=UTC)})
    return [
        each.name
        for each in topic.subscriptions
        if each.name.startswith(OWN)
        and any(parse_filter(rule.filter).matches(view) is True for rule in each.rules or ())
    ]


def steps(before: str, after: str, topic: str) -> Iterator[tuple[str, TopicState]]:
    """The topic after each change that leads from one file to another, also where apply ended before and is run again."""
    old, new = read(HEAD + before), read(HEAD + after)
    cut = 0
    while True:
        namespaces = {alias: FakeAdministration(f"{alias}.test", []) for alias in ("ewr", "jfk")}
        for change in plan(old, observed(old, namespaces)).changes:
            namespaces[change.alias].make(change)
        first = plan(new, observed(new, namespaces)).changes
        for part in (first[:cut], None):
            for change in plan(new, observed(new, namespaces)).changes if part is None else part:
                namespaces[change.alias].make(change)
                if change.alias == "ewr":
                    yield f"{cut}: {change.action} {change.path}", parted(observed(new, namespaces)["ewr"], topic)
        assert not plan(new, observed(new, namespaces)).changes, "I1"
        if cut == len(first):
            return
        cut += 1


@pytest.mark.parametrize("source", ["queue: q", "topic: q"])
@pytest.mark.parametrize(
    ("before", "after"), [(("a = 1", "b = 2"), ("b = 2", "a = 1")), (("a = 1", "b = 2"), ("a = 3", "b = 2"))]
)
def test_every_message_of_a_split_has_a_target_while_filters_change(
    source: str, before: tuple[str, str], after: tuple[str, str]
) -> None:
    messages = [{}, {"a": 1}, {"a": 3}, {"b": 2}, {"a": 1, "b": 2}, {"a": 3, "b": 2}]
    found = list(steps(SPLIT % (source, *before), SPLIT % (source, *after), "isthmus.t" if "queue" in source else "q"))
    assert found
    for what, topic in found:
        for each in messages:
            assert takers(topic, dict(each)), f"after {what}: no subscription takes {each}"
    for each in messages:
        assert len(takers(found[-1][1], dict(each))) == 1, "first: true"


def test_i5_rules_too_long_to_be_joined_leave_no_gap_either() -> None:
    """Rules take 1,024 characters: where two do not fit into one, a second rule exists beside the first meanwhile."""
    long = "%s IN ('%s', '" + "x" * 350 + "')"
    before, after = (long % ("a", "1"), long % ("b", "2")), (long % ("b", "2"), long % ("a", "3"))
    messages = [{}, {"a": "1"}, {"a": "3"}, {"b": "2"}, {"a": "1", "b": "2"}, {"a": "3", "b": "2"}]
    found = list(steps(SPLIT % ("queue: q", *before), SPLIT % ("queue: q", *after), "isthmus.t"))
    assert any(len(each.rules or ()) == 2 for _, topic in found for each in topic.subscriptions), "joined all the same"
    for what, topic in found:
        assert all(len(rule.filter) <= RULE_LIMIT for each in topic.subscriptions for rule in each.rules or ())
        for each in messages:
            assert takers(topic, dict(each)), f"after {what}: no subscription takes {each}"
    for each in messages:
        assert len(takers(found[-1][1], dict(each))) == 1, "first: true"


def test_i5_a_file_that_is_changed_while_rules_are_too_long_to_be_joined_leaves_no_gap() -> None:
    long = "%s IN ('%s', '" + "x" * 350 + "')"
    files = [
        SPLIT % ("queue: q", long % ("a", "1"), long % ("b", "2")),
        SPLIT % ("queue: q", long % ("b", "2"), long % ("a", "3")),
        SPLIT % ("queue: q", long % ("c", "4"), long % ("a", "1")),
    ]
    messages = [{}, {"a": "1"}, {"a": "3"}, {"b": "2"}, {"c": "4"}, {"a": "3", "b": "2"}, {"a": "1", "c": "4"}]
    first, second, third = (read(HEAD + each) for each in files)
    for cut in range(11):
        namespaces = {alias: FakeAdministration(f"{alias}.test", []) for alias in ("ewr", "jfk")}
        for federation, limit in ((first, None), (second, cut), (third, None)):
            for change in plan(federation, observed(federation, namespaces)).changes[:limit]:
                namespaces[change.alias].make(change)
                if federation is first:
                    continue
                topic = parted(observed(federation, namespaces)["ewr"], "isthmus.t")
                for each in messages:
                    assert takers(topic, dict(each)), f"{cut}: after {change.path}: no subscription takes {each}"
        assert not plan(third, observed(third, namespaces)).changes, "I1"


@pytest.mark.parametrize(
    ("before", "after"),
    [("max-deliveries, expired", "max-deliveries"), ("max-deliveries", "max-deliveries, expired, CardDeclined")],
)
def test_every_dead_letter_is_spilled_or_parked_while_reasons_change(before: str, after: str) -> None:
    found = list(steps(SPILLOVER % before, SPILLOVER % after, "isthmus.t"))
    assert found
    for what, topic in found:
        for reason in REASONS:
            assert takers(topic, {"DeadLetterReason": reason}), f"after {what}: no subscription takes {reason}"
    for reason in REASONS:
        assert len(takers(found[-1][1], {"DeadLetterReason": reason})) == 1
