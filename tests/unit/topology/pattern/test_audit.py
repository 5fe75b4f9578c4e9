"""The audit subscription of a task: how long it keeps messages; none are kept for ever by default."""

from __future__ import annotations

import pytest

from isthmus.topology import TopicState, read, wanted
from isthmus.topology.file.duration import INFINITE_MS
from isthmus.topology.linter import warnings
from isthmus.topology.state import SubscriptionState

DAY_MS = 86_400_000
FILE = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\ntasks:\n  flights: {%s}\n"
ALL = "pattern: all-active, topic: flights, members: [ewr, jfk]"


def audit_of(task: str) -> SubscriptionState:
    topics = [
        each for each in wanted(read(FILE % task))["jfk"] if isinstance(each, TopicState) and each.name == "flights"
    ]
    (found,) = [each for each in topics[0].subscriptions if each.name == "audit"]
    return found


TASKS = [
    f"{ALL}, subscriptions: [boards, audit]",
    "pattern: fan-out, topic: flights, hub: ewr, members: [jfk], subscriptions: [audit]",
    "pattern: active-passive, topic: flights, primary: ewr, secondary: jfk, failover_within: 1m, subscriptions: [audit]",
]


@pytest.mark.parametrize("task", TASKS)
def test_a_topic_is_made_larger_than_the_service_makes_it(task: str) -> None:
    topics = [
        each for each in wanted(read(FILE % task))["jfk"] if isinstance(each, TopicState) and each.name == "flights"
    ]
    assert topics[0].initial_size_megabytes == 5 * 1024


@pytest.mark.parametrize("task", TASKS)
def test_an_audit_subscription_is_made_with_a_time_to_live_and_an_existing_one_is_left(task: str) -> None:
    audit = audit_of(task)
    assert (audit.initial_ttl_ms, audit.default_ttl_ms) == (DAY_MS, None)


def test_a_time_that_is_written_is_set_also_where_the_subscription_exists() -> None:
    audit = audit_of(f"{ALL}, subscriptions: [boards], audit: 2d")
    assert (audit.initial_ttl_ms, audit.default_ttl_ms) == (None, 2 * DAY_MS)


def test_an_audit_subscription_that_keeps_for_ever_is_warned_of() -> None:
    text = FILE % f"{ALL}, subscriptions: [boards, audit], audit: off"
    assert audit_of(f"{ALL}, subscriptions: [boards, audit], audit: off").default_ttl_ms == INFINITE_MS
    assert any("keeps its messages for ever" in str(each) for each in warnings(text))
