"""The entities and the route of an active-passive task."""

from __future__ import annotations

from isthmus.topology import read
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.pattern.active_passive import ActivePassiveTask
from isthmus.topology.state import TopicState

HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\ntasks:\n  book: {pattern: active-passive, "
PATTERN = PATTERNS["active-passive"]
BOTH = "primary: ewr, secondary: jfk, failover_within: 1m"


def task(settings: str = f"topic: bookings, {BOTH}") -> ActivePassiveTask:
    made = read(f"{HEAD}{settings}}}\n").tasks["book"]
    assert isinstance(made, ActivePassiveTask)
    return made


def topics(made: ActivePassiveTask) -> dict[str, TopicState]:
    return {alias: topic for alias, topic in PATTERN.wanted(made) if isinstance(topic, TopicState)}


def test_i1_there_is_one_direction() -> None:
    (route,) = PATTERN.routes(task())
    assert str(route.source) == "ewr/bookings/Subscriptions/isthmus.book.jfk"
    assert str(route.target) == "jfk/bookings"
    replicating = [
        (alias, subscription.name)
        for alias, topic in topics(task()).items()
        for subscription in topic.subscriptions
        if subscription.name.startswith("isthmus.")
    ]
    assert replicating == [("ewr", "isthmus.book.jfk")]


def test_i2_copies_live_twice_as_long_as_a_failover_may_take() -> None:
    (route,) = PATTERN.routes(task())
    assert route.options.policy.ttl_ceiling_ms == 120_000
    (replication,) = topics(task())["ewr"].subscriptions
    assert (replication.default_ttl_ms, replication.dead_letters_expired) == (120_000, False)
    (flow,) = PATTERN.audit(task())
    assert flow.expires_ms == 120_000


def test_a_queue_is_a_topic_with_one_subscription_at_both() -> None:
    wanted = topics(task(f"queue: bookings, subscription: desk, {BOTH}"))
    assert [each.name for each in wanted["ewr"].subscriptions] == ["desk", "isthmus.book.jfk"]
    assert [each.name for each in wanted["jfk"].subscriptions] == ["desk"]


def test_verify_compares_audit_with_audit_where_there_is_one() -> None:
    (flow,) = PATTERN.audit(task(f"topic: bookings, subscriptions: [desk], {BOTH}"))
    assert (str(flow.witness), flow.origin_is_consumed) == ("ewr/bookings/Subscriptions/desk", True)
    (flow,) = PATTERN.audit(task(f"topic: bookings, subscriptions: [desk], audit: 1d, {BOTH}"))
    assert (str(flow.target), flow.target_is_consumed) == ("jfk/bookings/Subscriptions/audit", False)
