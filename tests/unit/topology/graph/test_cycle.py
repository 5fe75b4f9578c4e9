"""The search for cycles, checked with a message that is sent through every graph."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.rules import DictView, Filter
from isthmus.rules.syntax.tree import render
from isthmus.topology.graph import cycle as module
from isthmus.topology.graph.cycle import Edge, Node, cycles

NODES: tuple[Node, ...] = tuple((alias, "q") for alias in ("ewr", "jfk", "lga", "ord"))
MARKS = ("m", "n", "o")
FILTERS = (
    "p = 1",
    "p = 2",
    "p > 1",
    "p IS NULL",
    "q = 1 OR p = 1",
    "p <> 1",
    "n IS NULL",
    "n = 1",
    "m IS NULL AND p = 1",
)
VALUES = (None, 1, 2)
State = tuple[Node, frozenset[str], tuple[tuple[str, Any], ...]]


def edge(source: int, target: int, **given: Any) -> Edge:
    return Edge(source=NODES[source], target=NODES[target], **given)


@st.composite
def edges(draw: st.DrawFn, *, plain: bool = False) -> Edge:
    """An edge; it holds the number 1 in `n`, and MessageIds in the other marks."""
    source, target = draw(st.lists(st.integers(0, 3), min_size=2, max_size=2, unique=True))
    mark = draw(st.sampled_from(["", "", *MARKS]))
    if plain:
        return edge(source, target, mark=mark, holds_id=mark not in ("", "n"))
    text = draw(st.sampled_from(["", *FILTERS]))
    return edge(
        source,
        target,
        mark=mark,
        holds_id=mark not in ("", "n"),
        filters=(Filter(text).tree,) if text else (),
        changed=frozenset(draw(st.sets(st.sampled_from(["p", "q", "m", "n"]), max_size=1))),
        changes_id=draw(st.integers(0, 4)) == 0,
    )


def following(state: State, graph: list[Edge]) -> set[State]:
    """Where a message comes to from an entity, by all that brokers and routes may do with it."""
    node, marks, user = state
    found: set[State] = set()
    for each in graph:
        if each.source != node or each.mark in marks:
            continue
        view = DictView(sys={}, user=dict(user) | dict.fromkeys(marks, 1))
        if each.filters and not any(Filter(render(tree)).matches(view) is True for tree in each.filters):
            continue
        assert each.changed is not None
        kept = marks - each.changed
        if each.changes_id:
            kept -= {"m", "o"}  # they contain a MessageId that does not exist any more
        for name, value in [(name, value) for name in each.changed & {"p", "q"} or {""} for value in VALUES]:
            changed = dict(user) | ({name: value} if name else {})
            found.add((each.target, kept | ({each.mark} if each.mark else set()), tuple(sorted(changed.items()))))
    return found


def hops(graph: list[Edge], limit: int) -> int:
    """The most hops of a message, from any entity and with any properties; the limit if it is reached."""
    states: set[State] = {(node, frozenset(), (("p", p), ("q", q))) for node in NODES for p in VALUES for q in VALUES}
    for number in range(limit):
        states = {after for state in states for after in following(state, graph)}
        if not states:
            return number
    return limit


@settings(max_examples=100, deadline=None)
@given(st.lists(edges(), max_size=7))
def test_i1_without_a_cycle_no_message_continues_for_ever(graph: list[Edge]) -> None:
    limit = len(NODES) * (len({each.mark for each in graph if each.mark}) + 1)
    if not list(cycles(graph)):
        assert hops(graph, limit + 1) <= limit


@settings(max_examples=100, deadline=None)
@given(st.lists(edges(plain=True), max_size=8))
def test_i2_a_cycle_lets_messages_go_round(graph: list[Edge]) -> None:
    goes_round = hops(graph, 20) == 20
    found = list(cycles(graph))
    assert bool(found) == goes_round
    for cycle in found:
        assert [each.target for each in cycle] == [each.source for each in (*cycle[1:], cycle[0])]


@pytest.mark.parametrize(
    ("graph", "count"),
    [
        ([], 0),
        ([edge(0, 1)], 0),
        ([edge(0, 1), edge(1, 0)], 1),
        ([edge(0, 1, mark="m", holds_id=True), edge(1, 0)], 0),
        ([edge(0, 1, mark="m", holds_id=True), edge(1, 0, changes_id=True)], 1),
        ([edge(0, 1, mark="m"), edge(1, 0, changes_id=True)], 0),
        ([edge(0, 1, mark="m"), edge(1, 0, changed=frozenset({"m"}))], 1),
        ([edge(0, 1, mark="m"), edge(1, 0, changed=None)], 1),
        ([edge(0, 1), edge(1, 0), edge(2, 3), edge(3, 2)], 2),
    ],
)
def test_marks_stop_as_long_as_they_last(graph: list[Edge], count: int) -> None:
    assert len(list(cycles(graph))) == count


def test_filters_that_contradict_each_other_stop_a_cycle() -> None:
    one, two = (Filter(text).tree for text in ("p = 1", "p = 2"))
    assert not list(cycles([edge(0, 1, filters=(one,)), edge(1, 0, filters=(two,))]))
    assert list(cycles([edge(0, 1, filters=(one,)), edge(1, 0, filters=(one,))]))
    changing = edge(0, 1, filters=(one,), changed=frozenset({"p"}))
    assert list(cycles([changing, edge(1, 0, filters=(two,))]))
    size = Filter("sys.Size > 10").tree, Filter("sys.Size < 5").tree
    assert list(cycles([edge(0, 1, filters=size[:1]), edge(1, 0, filters=size[1:])]))


def test_more_cycles_than_can_be_looked_at_are_one_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STEP_LIMIT", 1000)
    nodes = [("ewr", str(number)) for number in range(14)]
    never = (Filter("p = 1 AND p = 2").tree,)
    graph = [Edge(source=one, target=other, filters=never) for one in nodes for other in nodes if one != other]
    (found,) = cycles(graph)
    assert [each.target for each in found] == [each.source for each in (*found[1:], found[0])]


def test_the_shortest_cycle_is_reported() -> None:
    graph = [edge(0, 1), edge(1, 2), edge(2, 3), edge(3, 0), edge(2, 1)]
    (found,) = cycles(graph)
    assert [each.source for each in found] == [NODES[1], NODES[2]]
