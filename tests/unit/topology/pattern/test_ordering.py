"""The requirements of `ordering` on the entities of a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.topology import read
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.state import QueueState, TopicState

FILE = """
isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  jfk: {connection: env:JFK}
  log: {kind: kafka, bootstrap: "127.0.0.1:9092"}
tasks:
  t: {%s}
"""


def wanted(task: str) -> Iterator[tuple[str, Any]]:
    found = read(FILE % task).tasks["t"]
    yield from PATTERNS[found.pattern].wanted(found)


def needs(task: str) -> dict[str, Any]:
    """By entity, whether it has to require sessions; None: as it is."""
    found: dict[str, Any] = {}
    for alias, state in wanted(task):
        if isinstance(state, QueueState):
            found[f"{alias}/{state.name}"] = state.requires_session
        elif isinstance(state, TopicState):
            found |= {f"{alias}/{state.name}/{each.name}": each.requires_session for each in state.subscriptions}
    return found


@pytest.mark.parametrize("ordering", ["ordered", "strict", "none"])
def test_without_sessions_a_route_reads_what_requires_none(ordering: str) -> None:
    found = needs(f"pattern: move, source: ewr, queue: q, target: jfk, ordering: {ordering}")
    assert found == {"ewr/q": False, "jfk/q": None}


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("pattern: move, source: ewr, queue: q, target: jfk", {"ewr/q": True, "jfk/q": True}),
        ("pattern: move, source: ewr, topic: f, subscription: s, target: jfk", {"ewr/f/s": True}),
        (
            "pattern: copy, source: ewr, topic: f, target: jfk, target_queue: q",
            {"ewr/f/isthmus.t.jfk": True, "jfk/q": True},
        ),
        (
            "pattern: all-active, queue: q, members: [ewr, jfk]",
            {
                "ewr/q/consumers": True,
                "ewr/q/isthmus.t.jfk": True,
                "jfk/q/consumers": True,
                "jfk/q/isthmus.t.ewr": True,
            },
        ),
        (
            (
                "pattern: active-passive, primary: ewr, secondary: jfk, topic: f, failover_within: 1m, subscriptions: "
                "{a: {sessions: true}, b: {sessions: false}, c: }"
            ),
            {
                "ewr/f/a": True,
                "ewr/f/b": False,
                "ewr/f/c": None,
                "ewr/f/isthmus.t.jfk": True,
                "jfk/f/a": True,
                "jfk/f/b": False,
                "jfk/f/c": None,
            },
        ),
        ("pattern: queue-to-stream, source: ewr, queue: q, target: log, stream: s", {"ewr/q": True}),
    ],
)
def test_with_sessions_a_route_reads_what_requires_them(task: str, expected: dict[str, Any]) -> None:
    assert needs(f"{task}, ordering: session") == expected


@pytest.mark.parametrize(("ordering", "partitioned"), [("ordered", False), ("strict", False), ("session", None)])
def test_a_session_lives_in_one_partition_and_any_other_order_in_none(ordering: str, partitioned: bool | None) -> None:
    task = f"pattern: move, source: ewr, queue: q, target: jfk, ordering: {ordering}"
    states = [state for _, state in wanted(task) if isinstance(state, QueueState)]
    assert {state.partitioned for state in states} == {partitioned}
