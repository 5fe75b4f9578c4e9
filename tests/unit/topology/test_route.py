"""isthmus.topology.route: routes and flows of tasks with steps."""

from __future__ import annotations

import pytest

from isthmus.topology import read
from isthmus.topology.linter import warnings
from isthmus.topology.route import flows, routes

HEAD = (
    "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n"
    "  hub: {kind: kafka, bootstrap: 'a:1'}\n  lake: {kind: kafka, bootstrap: 'b:1'}\ntasks:\n  t: "
)
COPY = '{pattern: copy, source: ewr, topic: f, target: jfk, target_queue: q, filter: "a = 1", steps: [%s]}\n'
MIRROR = "{pattern: copy, source: hub, topic: f, target: lake%s, steps: [%s]}\n"


@pytest.mark.parametrize(
    ("steps", "filter_text", "drops"),
    [
        ('{filter: "b = 2"}', "(a = 1) AND (b = 2)", False),
        ('{filter: {where: "b = 2", on_failure: dead-letter}}', "a = 1", False),
        # What the rule of the publisher's message says nothing about any more.
        ('{set: "SET b = 2"}, {filter: "b = 2"}', "a = 1", True),
        ('{filter: "b = 2"}, {validate: {schema: s.json, on_failure: drop}}', "(a = 1) AND (b = 2)", True),
        ("{validate: {schema: s.json}}", "a = 1", False),
        ('{sql: "SELECT * FROM rows"}', "a = 1", True),
        # What a step drops before another one changes messages.
        ('{deduplicate: 10m}, {set: "SET b = 2"}', "a = 1", True),
        (
            '{validate: {schema: s.json, on_failure: drop}}, {filter: "c = 3"}, {set: "SET b = 2"}',
            "(a = 1) AND (c = 3)",
            True,
        ),
    ],
)
def test_what_steps_leave_out_is_not_expected_or_cannot_be_reported(steps: str, filter_text: str, drops: bool) -> None:
    (flow,) = flows(read(HEAD + COPY % steps).tasks["t"])
    assert (flow.filter, flow.drops) == (filter_text, drops)


def test_behind_an_action_no_step_says_what_was_sent() -> None:
    """The step selects what the rule's action has made of a message, which is not what its publisher sent."""
    text = COPY.replace("steps:", 'action: "SET b = 2", steps:') % '{filter: "b = 2"}'
    (flow,) = flows(read(HEAD + text).tasks["t"])
    assert (flow.filter, flow.changes, flow.drops) == ("a = 1", True, True)


@pytest.mark.parametrize(
    ("dead", "steps", "is_warned"),
    [
        ("", "{validate: {schema: s.json}}", True),
        ("", "{validate: {schema: s.json, on_failure: drop}}", False),
        (", dead_letter_stream: f.rejected", "{validate: {schema: s.json}}", False),
    ],
)
def test_a_step_that_sets_messages_aside_at_a_log_needs_a_stream_for_them(
    dead: str, steps: str, is_warned: bool
) -> None:
    text = HEAD + MIRROR % (dead, steps)
    assert [("write on_failure: drop" in str(each)) for each in warnings(text)] == [True] * is_warned
    (route,) = routes(read(text))
    assert route.options.refused == ("dead-letter" if dead else "block")
    assert route.options.log.dead_letters == ("f.rejected" if dead else "")
    assert route.options.steps
