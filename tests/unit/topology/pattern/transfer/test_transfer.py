"""Patterns that consist of transfers: their wanted entities, routes and flows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.rules import DictView, Filter
from isthmus.topology import lint, read
from isthmus.topology.linter import warnings
from isthmus.topology.model import Flow, Route
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.state import QueueState, SubscriptionState, TopicState

FILE = Path(__file__).parents[4] / "fixtures" / "topology" / "faults" / "patterns_sound.yaml"
TEXT = FILE.read_text()
FEDERATION = read(TEXT)


def wanted(task: str) -> list[tuple[str, Any]]:
    declared = FEDERATION.tasks[task]
    return list(PATTERNS[declared.pattern].wanted(declared))


def routes(task: str) -> list[Route]:
    declared = FEDERATION.tasks[task]
    return list(PATTERNS[declared.pattern].routes(declared))


def flows(task: str) -> list[Flow]:
    declared = FEDERATION.tasks[task]
    return list(PATTERNS[declared.pattern].audit(declared))


def fed(task: str) -> dict[str, SubscriptionState]:
    """The subscriptions that feed the routes, by the path that a route reads."""
    return {
        f"{alias}/{entity.name}/Subscriptions/{each.name}": each
        for alias, entity in wanted(task)
        for each in getattr(entity, "subscriptions", ())
        if each.name.startswith("isthmus.")
    }


@pytest.mark.parametrize("task", FEDERATION.tasks)
def test_i1_every_route_has_one_existing_source_and_one_existing_target(task: str) -> None:
    existing = set()
    for alias, entity in wanted(task):
        existing.add(f"{alias}/{entity.name}")
        existing |= {
            f"{alias}/{entity.name}/Subscriptions/{each.name}" for each in getattr(entity, "subscriptions", ())
        }
    found = routes(task)
    assert len({route.name for route in found}) == len(found) > 0
    assert {str(route.source) for route in found} | {str(route.target) for route in found} <= existing
    assert {name for flow in flows(task) for name in flow.routes} == {route.name for route in found}


@pytest.mark.parametrize("task", FEDERATION.tasks)
def test_i2_i3_a_copy_has_a_mark_that_its_rule_leaves_out_and_a_move_has_none(task: str) -> None:
    rules = fed(task)
    for route in routes(task):
        options = route.options
        assert options.policy.dead_letters_returning == (not options.mark)
        if options.mark:
            rule = rules[str(route.source)].rules[0]  # type: ignore[index]
            seen = {options.mark: 1 if options.mark_is_number else "m"}
            user = {"base": "EWR", "engines": 4}
            assert selects(rule.filter, user)
            assert not selects(rule.filter, user | seen)


def selects(text: str, user: dict[str, Any]) -> bool:
    view = DictView(sys={"MessageId": "m", "EnqueuedTimeUtc": datetime(2026, 1, 1, tzinfo=UTC)}, user=user)
    return Filter(text).matches(view) is True


def test_a_copy_does_the_operators_action_before_it_sets_the_mark() -> None:
    (subscription,) = fed("crews").values()
    assert subscription.rules is not None
    assert subscription.rules[0].action == "SET seen = 1; SET replication = 1"
    assert subscription.max_delivery_count == 2000


def test_what_is_emptied_is_read_itself_and_lint_warns() -> None:
    assert [str(route.source) for route in routes("gates") + routes("meals")] == [
        "ewr/gates",
        "ewr/meals/Subscriptions/kitchen",
    ]
    source = dict(wanted("gates"))["ewr"]
    assert isinstance(source, QueueState)
    assert (source.requires_session, source.forward_to, source.max_delivery_count) == (False, "", 2000)
    kitchen = dict(wanted("meals"))["ewr"].subscription("kitchen")
    assert kitchen.rules is None  # an application's; they stay as they are
    warned = [each.message for each in warnings(TEXT)]
    assert [text.partition(":")[0] for text in warned[:2]] == [
        "task gates empties ewr/gates",
        "task meals empties ewr/meals/Subscriptions/kitchen",
    ]


def test_consolidated_messages_are_known_by_their_origin() -> None:
    assert {route.options.duplicates for route in routes("weather")} == {"origin"}
    target = dict(wanted("weather"))["ord"]
    assert (target.duplicate_detection_ms, target.keyless_detection_ms) == (0, 600_000)


def test_every_edge_of_a_tree_has_a_mark_of_its_own() -> None:
    found = routes("flights")
    assert [route.name for route in found] == [
        "flights.ewr.jfk",
        "flights.ewr.ord",
        "flights.jfk.lga",
        "flights.jfk.sfo",
    ]
    assert len({route.options.mark for route in found}) == 4
    names_of = {(str(flow.origin), flow.target.alias): flow.routes for flow in flows("flights")}
    assert names_of["ewr/flights", "lga"] == ("flights.ewr.jfk", "flights.jfk.lga")
    assert names_of["jfk/flights", "lga"] == ("flights.jfk.lga",)
    assert ("jfk/flights", "ord") not in names_of


VALUES = st.sampled_from([None, "us", "eu", "de", 1, 6, 9.5, True])


@given(st.fixed_dictionaries({}, optional={"region": VALUES, "priority": VALUES}))
def test_i1_a_message_goes_to_the_first_target_that_fits_or_to_otherwise(user: dict[str, Any]) -> None:
    chosen = [path.rpartition(".")[2] for path, each in fed("orders").items() if selects(each.rules[0].filter, user)]  # type: ignore[index]
    region, priority = user.get("region"), user.get("priority")
    is_rush = isinstance(priority, int | float) and not isinstance(priority, bool) and priority > 5
    expected = "jfk" if region == "us" else "lga" if region in ("eu", "uk") else "jfk-2" if is_rush else "ord"
    assert chosen == [expected]


def test_a_queue_is_split_by_a_topic_of_the_task() -> None:
    queue = next(entity for alias, entity in wanted("orders") if entity.name == "orders" and alias == "ewr")
    assert isinstance(queue, QueueState)
    assert queue.forward_to == "isthmus.orders"
    assert any(isinstance(entity, TopicState) and entity.name == "isthmus.orders" for _, entity in wanted("orders"))
    assert [str(flow.origin) for flow in flows("orders")] == ["ewr/orders"] * 4


def test_a_split_topic_keeps_its_messages_and_each_target_has_a_subscription() -> None:
    assert sorted(fed("planes")) == [
        "ewr/planes/Subscriptions/isthmus.planes.jfk",
        "ewr/planes/Subscriptions/isthmus.planes.lga",
    ]


def test_a_task_whose_topic_would_be_that_of_claims_is_refused() -> None:
    text = TEXT.replace("  orders:\n", "  Claims:\n")
    assert [fault.message for fault in lint(text)] == [
        "the task's topic isthmus.claims is reserved for claims of tasks"
    ]
