"""`on_failure: divert`: the setting reaches routes, flows, entities, rights and edges."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.topology import Federation, read
from isthmus.topology.duplicate import federation_notes
from isthmus.topology.graph.edge import edges
from isthmus.topology.linter import lint, warnings
from isthmus.topology.model import Endpoint
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.planning.log_planner import log_changes, wanted_logs
from isthmus.topology.planning.plain_planner import wanted_plain
from isthmus.topology.planning.wanted import wanted
from isthmus.topology.rights import rights
from isthmus.topology.route import flows, routes
from isthmus.topology.state import LogState, NamespaceState, PlainState, QueueState, TopicState
from isthmus.topology.step import StepDeclaration
from isthmus.topology.step.divert import DivertTo

HEAD = """isthmus: 1
namespaces:
  ewr: {connection: env:A}
  jfk: {connection: env:B}
  ops: {connection: env:C}
  hub: {kind: kafka, bootstrap: "k:9092"}
  old: {kind: amqp, url: "amqp://127.0.0.1"}
tasks:
"""
TASK = "  t: {pattern: copy, source: ewr, topic: flights, target: jfk, audit: 1d, %ssteps: [%s]}\n"
STEP = "{validate: {schema: s.json, on_failure: divert, divert_to: {to: %s, %s}}}"


def federation(*ends: tuple[str, str], more: str = "", steps: str = "") -> Federation:
    written = ", ".join([*(STEP % end for end in ends), *([steps] if steps else [])])
    return read(HEAD + TASK % (more, written))


def test_a_step_keeps_where_it_diverts_to_and_passes_as_text() -> None:
    task = federation(("ops", "queue: bad")).tasks["t"]
    (step,) = task.steps
    assert step.settings["divert_to"] == {"to": "ops", "queue": "bad"}
    assert StepDeclaration.from_text(step.to_text()) == step
    assert task.diverts == (DivertTo("ops", "bad", kind="servicebus"),)
    assert task.anchored(Path("/a")).diverts == task.diverts


def test_routes_know_each_entity_once_and_send_to_it() -> None:
    found = federation(("ops", "queue: bad"), ("ops", "queue: bad"), ("hub", "topic: bad"), more="mailbox: true, ")
    (route,) = routes(found)
    assert [each.name for each in route.options.diverts] == ["ops/bad", "hub/bad"]
    assert list(map(str, route.sent_to)) == ["jfk/flights", "ops/bad", "hub/bad"]
    assert route.targets == (Endpoint("jfk", "flights"),)


@pytest.mark.parametrize(
    ("ends", "more", "window_ms"),
    [
        ([("ops", "queue: bad")], "", 600_000),
        ([("ops", "queue: bad")], "duplicates: origin, ", 600_000),
        ([("ops", "queue: bad")], "duplicate_detection: 5m, ", 300_000),
        ([("ops", "queue: bad")], "duplicates: allow, ", 0),
        ([("ops", "queue: bad"), ("hub", "topic: bad")], "", 0),
    ],
)
def test_flows_show_for_how_long_a_second_diverted_copy_is_dropped(
    ends: list[tuple[str, str]], more: str, window_ms: int
) -> None:
    (flow,) = flows(federation(*ends, more=more).tasks["t"])
    assert flow.divert_detection_ms == window_ms


@pytest.mark.parametrize(
    ("more", "windows"),
    [("", (None, None)), ("duplicates: origin, ", (0, 600_000)), ("duplicate_detection: 5m, ", (300_000, None))],
)
def test_the_entities_are_wanted_with_the_tasks_duplicate_detection_and_nothing_else(
    more: str, windows: tuple[int | None, int | None]
) -> None:
    found = wanted(federation(("ops", "queue: bad"), ("ops", "topic: worse"), more=more))["ops"]
    wished = {"duplicate_detection_ms": windows[0], "keyless_detection_ms": windows[1]}
    assert found == (QueueState(name="bad", **wished), TopicState(name="worse", **wished))


def test_entities_of_other_systems_are_wanted_as_those_have_them() -> None:
    found = federation(("hub", "topic: bad"), ("old", "queue: bad"), ("old", "topic: worse"))
    assert wanted_logs(found) == {"hub": (LogState(name="bad"),)}
    assert wanted_plain(found) == {"old": (PlainState(name="bad"), PlainState(name="worse", is_topic=True))}
    assert "hub" not in wanted(found)
    notes = log_changes(found, {"hub": NamespaceState(alias="hub", endpoint="k:9092")}).notes
    assert notes == ["task t: a message that is sent again after a crash appears twice in hub/bad: a log drops none"]


def test_one_name_is_one_entity() -> None:
    """Rows name it by alias and name; in some systems a queue and a topic may have the same."""
    ends = STEP % ("old", "queue: bad") + ", " + STEP % ("old", "topic: bad")
    (fault,) = lint(HEAD + TASK % ("", ends))
    assert fault.message == "divert_to: old/bad is a queue in one step and a topic in another"


def test_what_a_divert_target_does_with_a_second_copy_is_noted() -> None:
    text = HEAD.replace("ops: {connection: env:C}", "ops: {host: a.servicebus.windows.net, identity: default}")
    found = read(text + TASK % ("duplicates: origin, ", STEP % ("ops", "queue: bad")))
    (note,) = federation_notes(found)
    assert note.startswith("task t: at ops a copy's MessageId is derived from its origin")


def test_a_canary_makes_no_subscription_at_a_topic_that_is_diverted_to() -> None:
    (topic,) = wanted(federation(("ops", "topic: bad"), more="canary: 30s, "))["ops"]
    assert topic == TopicState(name="bad")


def test_the_rights_are_send_for_run_and_manage_for_apply() -> None:
    found = {each.alias: each for each in rights(federation(("ops", "queue: bad"), ("hub", "topic: bad")))}
    for alias in ("ops", "hub"):
        assert (found[alias].listen, found[alias].send, found[alias].manage) == ((), ("bad",), ("bad",))


def test_verification_looks_where_something_stays_and_can_be_looked_at() -> None:
    found = federation(("ops", "queue: a"), ("ops", "topic: b"), ("hub", "topic: c"), ("old", "queue: d"))
    (flow,) = flows(found.tasks["t"])
    assert list(map(str, flow.diverts)) == ["ops/a", "ops/a/$DeadLetterQueue", "hub/c", "old/d"]
    assert flow.drops  # what is found nowhere may have been taken from there


def test_of_a_filter_that_diverts_verification_expects_what_it_does_not_select() -> None:
    step = '{filter: {where: "b = 2", on_failure: divert, divert_to: {to: ops, queue: bad}}}'
    (flow,) = flows(federation(steps=step).tasks["t"])
    assert (flow.filter, flow.drops, list(map(str, flow.diverts))) == (
        "",
        True,
        ["ops/bad", "ops/bad/$DeadLetterQueue"],
    )


def test_the_graph_has_an_edge_for_each_entity_without_the_mark() -> None:
    found = federation(("ops", "queue: Bad"), steps='{set: "SET a = 1"}')
    route, diverted = edges(found)
    assert (route.target, bool(route.mark), route.changed) == (("jfk", "flights"), True, None)
    assert (diverted.source, diverted.target, diverted.mark) == (("ewr", "flights"), ("ops", "bad"), "")
    assert diverted.filters == route.filters
    assert diverted.changed is not None  # what other steps change is not on it
    assert "repl-dead-letter-reason" in diverted.changed


def test_a_route_back_to_the_source_is_a_fault_and_one_to_somewhere_else_is_none() -> None:
    text = HEAD + TASK % ("", STEP % ("ops", "queue: bad"))
    back = "  back: {pattern: move, source: ops, queue: bad, target: %s, target_topic: %s}\n"
    assert lint(text + back % ("jfk", "mended")) == []
    (fault,) = lint(text + back % ("ewr", "flights"))
    assert "ewr/flights → ops/bad (task t: a step of route t.ewr.jfk diverts) → ewr/flights" in fault.message


def test_lint_warns_of_what_is_diverted_in_the_clear() -> None:
    text = HEAD + TASK % ("", STEP % ("ops", "queue: bad") + ", {encrypt: {key: file:k}}")
    (fault,) = [each for each in warnings(text) if "diverts" in each.message]
    assert fault.message == (
        "step validate diverts messages as they were received: at ops/bad they are not encrypted by the task's step encrypt"
    )
    assert fault.line > 0
    assert not [
        each for each in warnings(HEAD + TASK % ("", STEP % ("ops", "queue: bad"))) if "diverts" in each.message
    ]


def test_lint_warns_of_a_topic_which_keeps_what_its_subscriptions_take() -> None:
    for end, count in (("topic: bad", 1), ("queue: bad", 0)):
        found = [each for each in warnings(HEAD + TASK % ("", STEP % ("ops", end))) if "subscriptions" in each.message]
        assert len(found) == count, found


@pytest.mark.parametrize("pattern", [name for name in PATTERNS if name != "chain"])
def test_steps_with_on_failure_of_tasks_of_every_pattern_can_divert(pattern: str) -> None:
    tasks = {
        "all-active": "topic: a, members: [ewr, jfk]",
        "active-passive": "topic: a, primary: ewr, secondary: jfk, failover_within: 1h",
        "spillover": "queue: a, members: [ewr, jfk], deadline: 10m",
        "copy": "source: ewr, topic: a, target: jfk",
        "move": "source: ewr, queue: a, target: jfk",
        "consolidate": "topic: a, sources: [ewr, jfk], target: ops, target_topic: c",
        "fan-out": "topic: a, hub: ewr, members: [jfk]",
        "split": "source: ewr, topic: a, targets: [{to: jfk, queue: b}]",
        "stream-to-queue": "source: hub, stream: a, target: jfk, queue: b",
        "queue-to-stream": "source: ewr, queue: a, target: hub, stream: b",
        "archive": "source: ewr, queue: a, table: lake",
    }
    text = f"{HEAD}  t: {{pattern: {pattern}, {tasks[pattern]}, steps: [{STEP % ('ops', 'queue: bad')}]}}\n"
    found = read(text)
    assert all([each.name for each in route.options.diverts] == ["ops/bad"] for route in routes(found))
    assert "bad" in [entity.name for entity in wanted(found)["ops"]]


@pytest.mark.parametrize(
    ("task", "faults"),
    [
        ("source: ewr, topic: flights, target: ops", 1),
        ("source: ewr, topic: FLIGHTS, target: ops", 1),
        ("source: ewr, topic: planes, target: ops", 0),
        ("source: jfk, topic: flights2, target: ops", 0),
        ("source: ewr, topic: flights, target: ops, duplicates: allow", 0),
    ],
)
def test_two_tasks_do_not_divert_one_message_to_one_entity(task: str, faults: int) -> None:
    step = STEP % ("ops", "queue: bad")
    second = f"  u: {{pattern: copy, {task}, audit: 1d, steps: [{STEP % ('ops', 'queue: BAD')}]}}\n"
    found = lint(HEAD + TASK % ("", step) + second)
    reported = [each for each in found if "cannot be determined" in each.message]
    assert len(reported) == faults, found


@pytest.mark.parametrize("is_first", [True, False])
def test_a_divert_target_that_another_task_wants_as_a_topic_is_faulted_at_divert_to(is_first: bool) -> None:
    diverting = TASK % ("", STEP % ("ops", "queue: bad"))
    other = "  u: {pattern: copy, source: ewr, topic: bad, target: ops, audit: 1d}\n"
    text = HEAD + (diverting + other if is_first else other + diverting)
    line = next(at for at, each in enumerate(text.splitlines(), 1) if "divert_to" in each)
    column = text.splitlines()[line - 1].index("{to: ops") + 1
    with pytest.raises(ConfigError) as reported:
        read(text)
    (found,) = reported.value.faults
    assert "want both a queue and a topic bad at ops" in found.message
    assert (found.line, found.column) == (line, column)
