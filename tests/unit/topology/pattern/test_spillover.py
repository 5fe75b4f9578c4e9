"""The entities and the routes of a spillover task."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from isthmus.rules import DictView, parse_filter
from isthmus.testing.administration import FakeAdministration
from isthmus.topology import lint, plan, read, wanted
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.pattern.spillover import SpilloverTask
from isthmus.topology.state import QueueState, TopicState

HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\ntasks:\n  pay: {pattern: spillover, "
PATTERN = PATTERNS["spillover"]
SPILLED = {"DeadLetterReason": "TTLExpiredException"}


def task(settings: str = "queue: payments, members: [ewr, jfk], deadline: 10m") -> SpilloverTask:
    made = read(f"{HEAD}{settings}}}\n").tasks["pay"]
    assert isinstance(made, SpilloverTask)
    return made


def matching(user: dict[str, Any], made: SpilloverTask | None = None) -> list[str]:
    """Which subscriptions a dead letter goes to."""
    made = made or task()
    view = DictView(sys={"EnqueuedTimeUtc": datetime(2026, 1, 1, tzinfo=UTC)}, user=user)
    filters = {"spill": made.spill_filter, "park": made.parking_filter}
    return [subscription for subscription, text in filters.items() if parse_filter(text).matches(view) is True]


@pytest.mark.parametrize("reason", ["TTLExpiredException", "MaxDeliveryCountExceeded"])
@pytest.mark.parametrize("mark", [None, 1, 0, "1", True], ids=repr)
def test_i1_i2_a_chosen_reason_spills_until_it_has(reason: str, mark: object) -> None:
    marked = {} if mark is None else {"isthmus-pay-spilled": mark}
    assert matching({"DeadLetterReason": reason} | marked) == (["spill"] if mark is None else ["park"])


@pytest.mark.parametrize(
    "reason",
    [None, "", "Fraud", "ttlexpired", 1, 2, 1.5, True, uuid.UUID(int=1), datetime(2026, 1, 1, tzinfo=UTC)],
)
def test_i1_whatever_else_the_reason_is_the_message_is_parked(reason: object) -> None:
    assert matching({} if reason is None else {"DeadLetterReason": reason}) == ["park"]


def test_an_applications_own_reason_spills_where_the_task_names_it() -> None:
    made = task('queue: payments, members: [ewr, jfk], deadline: 10m, reasons: [max-deliveries, "card\'s limit"]')
    assert made.reasons == ("MaxDeliveryCountExceeded", "card's limit")
    assert matching({"DeadLetterReason": "card's limit"}, made) == ["spill"]
    assert matching(SPILLED, made) == ["park"]


def test_a_queue_expires_after_half_of_the_deadline_into_the_topic_of_the_task() -> None:
    wanted = [(alias, entity) for alias, entity in PATTERN.wanted(task()) if entity.name == "payments"]
    assert [alias for alias, _ in wanted] == ["ewr", "jfk"]
    for _, queue in wanted:
        assert isinstance(queue, QueueState)
        assert (queue.default_ttl_ms, queue.dead_letters_expired, queue.forward_dead_letters_to) == (
            300_000,
            True,
            "isthmus.pay",
        )


def test_a_subscriptions_dead_letters_spill_into_the_pairs_topic() -> None:
    made = task("topic: orders, subscription: workers, members: [ewr, jfk], deadline: 10m")
    (topic,) = [each for alias, each in PATTERN.wanted(made) if (alias, each.name) == ("ewr", "orders")]
    assert isinstance(topic, TopicState)
    (workers,) = topic.subscriptions
    assert (workers.name, workers.rules, workers.default_ttl_ms) == ("workers", None, 300_000)
    assert (workers.dead_letters_expired, workers.forward_dead_letters_to) == (True, "isthmus.pay")
    assert [str(route.target) for route in PATTERN.routes(made)] == ["jfk/orders", "ewr/orders"]
    assert made.parking == "orders-parked"


def test_what_the_route_cannot_copy_is_parked_and_nothing_expires_in_transit_i3() -> None:
    (topic,) = [each for alias, each in PATTERN.wanted(task()) if (alias, each.name) == ("ewr", "isthmus.pay")]
    assert isinstance(topic, TopicState)
    spill, park = topic.subscriptions
    assert (spill.name, spill.forward_to, spill.forward_dead_letters_to) == ("isthmus.pay.jfk", "", "payments-parked")
    assert (park.name, park.forward_to) == ("isthmus.pay.parking", "payments-parked")
    for subscription in topic.subscriptions:
        assert subscription.rules is not None
        assert subscription.rules[0].action.startswith("SET sys.TimeToLive = '3650.00:00:00'")


def test_a_route_gives_the_copy_the_rest_of_the_deadline() -> None:
    for route in PATTERN.routes(task()):
        policy = route.options.policy
        assert (policy.deadline_ms, policy.deadline_spent_ms, policy.keeps_dead_letter) == (600_000, 300_000, True)
        assert (route.options.mark, route.options.mark_is_number) == ("isthmus-pay-spilled", True)


def test_verify_reads_what_spilled_from_the_audit_subscription() -> None:
    bare = list(PATTERN.audit(task()))
    audited = list(PATTERN.audit(task("queue: payments, members: [ewr, jfk], deadline: 10m, audit: 1d")))
    assert [flow.witness.entity for flow in bare] == ["", ""]
    assert [str(flow.witness) for flow in audited] == [
        "ewr/isthmus.pay/Subscriptions/audit",
        "jfk/isthmus.pay/Subscriptions/audit",
    ]
    assert [str(flow.target) for flow in audited] == ["jfk/payments", "ewr/payments"]
    assert {flow.expires_ms for flow in audited} == {600_000}


@pytest.mark.parametrize("order", [1, -1])
def test_i3_a_parking_queue_is_no_queue_of_another_spillover(order: int) -> None:
    """What is parked would expire there, whichever task is written first."""
    head = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\ntasks:\n"
    tasks = [
        f"  {name}: {{pattern: spillover, queue: {queue}, members: [ewr, jfk], deadline: 10m, parking: {parking}}}\n"
        for name, queue, parking in (("a", "pay", "Rest"), ("b", "rest", "lost"))
    ]
    faults = [str(each) for each in lint(head + "".join(tasks[::order]))]
    assert len(faults) == 1, faults
    assert "for parking" in faults[0]


def test_what_was_parked_elsewhere_is_named_where_parking_is_changed() -> None:
    namespaces = {alias: FakeAdministration(f"{alias}.test") for alias in ("ewr", "jfk")}
    notes = []
    for parking in ("", ", parking: other-parked", ", parking: other-parked"):
        federation = read(f"{HEAD}queue: payments, members: [ewr, jfk], deadline: 10m{parking}}}\n")
        found = plan(
            federation, {alias: namespaces[alias].observe(alias, each) for alias, each in wanted(federation).items()}
        )
        for change in found.changes:
            namespaces[change.alias].make(change)
        notes.append([note for note in found.notes if "messages parked in payments-parked" in note])
    assert list(map(len, notes)) == [0, 2, 0]
    assert "redrive --parked reads only other-parked" in notes[1][0]
