"""The graph of a federation file, and lint's faults for cycles in it."""

from __future__ import annotations

import pytest

from isthmus.topology import lint, read
from isthmus.topology.graph.edge import edges
from isthmus.topology.model import Federation

HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n  lga: {connection: env:C}\ntasks:\n"
THERE = "  there: {pattern: move, source: ewr, queue: q, target: jfk}\n"
BACK = "  back: {pattern: move, source: jfk, queue: Q, target: ewr}\n"
COPY = "  %s: {pattern: copy, source: %s, topic: %s, target: %s, target_%s: %s%s}\n"
SPLIT = '  %s: {pattern: split, source: %s, queue: q, targets: [{to: %s, queue: q, filter: "%s"%s}], otherwise: drop}\n'


def test_a_cycle_is_named_route_by_route_at_its_last_task() -> None:
    (fault,) = lint(HEAD + BACK + THERE)
    assert fault.message == (
        "messages would circulate for ever, no mark stops them: jfk/q → ewr/q (task back: route back.jfk.ewr) → "
        "jfk/q (task there: route there.ewr.jfk)"
    )
    assert fault.line == 8


@pytest.mark.parametrize(
    "tasks",
    [
        THERE,
        "  a: {pattern: all-active, topic: a, members: [ewr, jfk, lga]}\n",
        "  a: {pattern: all-active, topic: a, members: [ewr, jfk, lga], mark: replication}\n",
        # Copies in both directions: each task leaves out what it has copied.
        COPY % ("a", "ewr", "t", "jfk", "topic", "t", "") + COPY % ("b", "jfk", "t", "ewr", "topic", "t", ""),
        # One marked route is enough.
        COPY % ("a", "ewr", "t", "jfk", "queue", "q", "") + "  b: {pattern: move, source: jfk, queue: q, target: ewr, target_topic: t}\n",
        "  a: {pattern: fan-out, topic: t, hub: ewr, members: {jfk: [lga]}}\n" + COPY % ("b", "lga", "t", "ewr", "topic", "t", ""),
        # Steps that only leave messages out take no mark away, and a task whose routes all set one sets it again.
        "".join(
            f"  {name}: {{pattern: copy, source: {source}, topic: t, target: {target}, steps: [{{filter: p = 1}}]}}\n"
            for name, source, target in [("a", "ewr", "jfk"), ("b", "jfk", "ewr")]
        ),
        "  a: {pattern: all-active, topic: a, members: [ewr, jfk], steps: [{set: 'SET a = 1'}]}\n",
        # No message is selected by both.
        SPLIT % ("a", "ewr", "jfk", "p = 1", "") + SPLIT % ("b", "jfk", "ewr", "p = 2", ""),
        # A mark of the operator's own.
        SPLIT % ("a", "ewr", "jfk", "seen IS NULL", ", action: SET seen = 1") + SPLIT % ("b", "jfk", "ewr", "p = 2", ""),
    ],
)  # fmt: skip
def test_what_comes_to_an_end_is_no_fault(tasks: str) -> None:
    assert lint(HEAD + tasks) == []


@pytest.mark.parametrize(
    "tasks",
    [
        THERE + "  x: {pattern: move, source: jfk, queue: q, target: lga}\n  y: {pattern: move, source: lga, queue: q, target: ewr}\n",
        SPLIT % ("a", "ewr", "jfk", "p = 1", "") + SPLIT % ("b", "jfk", "ewr", "p > 0", ""),
        SPLIT % ("a", "ewr", "jfk", "p = 1", ", action: SET p = 2") + SPLIT % ("b", "jfk", "ewr", "p = 2", ", action: SET p = 1"),
        SPLIT % ("a", "ewr", "jfk", "seen IS NULL", ", action: SET seen = 1") + SPLIT % ("b", "jfk", "ewr", "1 = 1", ", action: REMOVE seen"),
        # Steps may give both copies other MessageIds, so that neither mark fits any more.
        "".join(
            f"  {name}: {{pattern: copy, source: {source}, topic: t, target: {target}, steps: [{{set: 'SET a = 1'}}]}}\n"
            for name, source, target in [("a", "ewr", "jfk"), ("b", "jfk", "ewr")]
        ),
        # The copy gets another MessageId on the return route, so that the mark does not fit any more.
        COPY % ("a", "ewr", "t", "jfk", "queue", "q", "")
        + SPLIT.replace("queue: q, filter", "topic: t, filter") % ("b", "jfk", "ewr", "1 = 1", ", action: SET sys.MessageId = newid()"),
    ],
)  # fmt: skip
def test_what_goes_round_for_ever_is_a_fault(tasks: str) -> None:
    assert ["circulate for ever" in fault.message for fault in lint(HEAD + tasks)] == [True]


def test_forwarding_is_part_of_the_graph() -> None:
    federation: Federation = read(HEAD + SPLIT % ("a", "ewr", "jfk", "p = 1", ""))
    assert [(each.source, each.target, each.text) for each in edges(federation)] == [
        (("ewr", "q"), ("ewr", "isthmus.a"), "queue q forwards"),
        (("ewr", "isthmus.a"), ("jfk", "q"), "route a.ewr.jfk"),
    ]
