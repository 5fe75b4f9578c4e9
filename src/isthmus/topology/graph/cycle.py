"""Cycles in which messages could circulate for ever.

What it is: the search in a directed graph of entities for cycles that neither a mark nor contradicting filters stop. What it is not:
the graph of a federation (`isthmus.topology.graph.edge`), nor the check at run time for cycles that no file shows (provenance,
docs/explanation/guarantees.md).

A mark stops a message when it reaches an edge with that mark a second time. That holds as long as no edge on the path removes the
mark, and, for a mark with the copy's MessageId, as long as no edge without that mark gives the message another MessageId.

Invariants:
    I1. In a graph without a cycle by this search, a message makes at most `nodes × (marks + 1)` hops.
    I2. In a graph without filters and changes, every reported cycle lets messages circulate for ever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from isthmus.rules.analysis.analysis import never_matches, properties
from isthmus.rules.syntax.tree import And, Predicate

__all__ = ["Edge", "Node", "cycles"]

Node = tuple[str, str]
"""Alias and entity, in lower case."""

# Properties that a message keeps from broker to broker, unless an edge changes them.
_KEPT = frozenset({"CorrelationId", "Label", "To", "ReplyTo", "ReplyToSessionId", "ContentType"})
# This many steps take milliseconds, and find every cycle of a file written by hand.
_STEP_LIMIT = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A path from one entity to another.

    Attributes:
        source: the entity that messages leave.
        target: the entity that they reach.
        task: name of its task.
        text: its description for people, e.g. `route flights.ewr.jfk`.
        mark: lower-case name of the property that it sets on messages, and by which it excludes messages; empty: none.
        value: the value of the mark, as text; marks with one name and two values are two marks.
        holds_id: whether the value of the mark is the message's MessageId, so that it excludes only messages with the same one.
        filters: conditions of which a message must fulfil one; none: every message passes.
        changed: lower-case names of properties, `sys.` before a broker's own, that it may change or remove; None: any.
        changes_id: whether it may give the message another MessageId.
    """

    source: Node
    target: Node
    task: str = ""
    text: str = ""
    mark: str = ""
    value: str = ""
    holds_id: bool = False
    filters: tuple[Predicate, ...] = ()
    changed: frozenset[str] | None = frozenset()
    changes_id: bool = False

    @property
    def key(self) -> tuple[str, str, bool]:
        """Identifies the mark: edges with the same key have the same mark."""
        return self.mark, self.value, self.holds_id


def cycles(edges: Iterable[Edge]) -> Iterator[tuple[Edge, ...]]:
    """For each part of the graph in which messages could circulate for ever, one of its shortest cycles."""
    for part in _parts(list(edges)):
        lasting = {edge.key for edge in part if edge.mark and _lasts(edge, part)}
        rest = [edge for edge in part if edge.key not in lasting]
        for inner in _parts(rest):
            found = _unstopped(inner, part)
            if found:
                yield found


def _lasts(mark: Edge, part: Sequence[Edge]) -> bool:
    """Whether no edge in a part of the graph removes the effect of a mark."""
    return not any(
        other.changed is None
        or mark.mark in other.changed
        or mark.mark == other.mark
        or (mark.holds_id and other.changes_id)
        for other in part
        if other.key != mark.key
    )


def _unstopped(edges: Sequence[Edge], part: Sequence[Edge]) -> tuple[Edge, ...]:
    """The shortest cycle without contradicting filters; any cycle, if there are too many to check."""
    changed: set[str] | None = {edge.mark for edge in part}
    for edge in part:
        changed = None if changed is None or edge.changed is None else changed | edge.changed
    shortest: tuple[Edge, ...] = ()
    for cycle in _simple_cycles(edges):
        if cycle is None:
            return shortest or _any_cycle(edges)
        if (not shortest or len(cycle) < len(shortest)) and not _contradict(cycle, changed):
            shortest = cycle
    return shortest


def _contradict(cycle: Sequence[Edge], changed: set[str] | None) -> bool:
    """Whether no unchanged message can fulfil the filters of all edges."""
    if changed is None:
        return False
    lasting = [
        edge.filters[0]
        for edge in cycle
        if len(edge.filters) == 1
        and all(_is_kept(each.scope, each.name, changed) for each in properties(edge.filters[0]))
    ]
    return bool(lasting) and never_matches(And(tuple(lasting)) if len(lasting) > 1 else lasting[0]) is not None


def _is_kept(scope: str, name: str, changed: set[str]) -> bool:
    if scope == "user":
        return name.lower() not in changed
    return name in _KEPT and f"sys.{name.lower()}" not in changed


def _parts(edges: Sequence[Edge]) -> Iterator[list[Edge]]:
    """The strongly connected parts of a graph that have an edge, each as its edges (Kosaraju)."""
    ahead, behind = _neighbours(edges, forward=True), _neighbours(edges, forward=False)
    order: list[Node] = []
    seen: set[Node] = set()
    for start in list(ahead):
        order += _visited(start, ahead, seen)
    part_of: dict[Node, Node] = {}
    taken: set[Node] = set()
    for start in reversed(order):
        for node in _visited(start, behind, taken):
            part_of[node] = start
    found: dict[Node, list[Edge]] = defaultdict(list)
    for edge in edges:
        if part_of[edge.source] == part_of[edge.target]:
            found[part_of[edge.source]].append(edge)
    yield from found.values()


def _neighbours(edges: Sequence[Edge], *, forward: bool) -> dict[Node, list[Node]]:
    found: dict[Node, list[Node]] = {}
    for edge in edges:
        start, end = (edge.source, edge.target) if forward else (edge.target, edge.source)
        found.setdefault(start, []).append(end)
        found.setdefault(end, [])
    return found


def _visited(start: Node, ahead: Mapping[Node, list[Node]], seen: set[Node]) -> list[Node]:
    """The unvisited nodes that are reachable from a node, each after all nodes reachable from it."""
    if start in seen:
        return []
    seen.add(start)
    done: list[Node] = []
    path = [(start, iter(ahead[start]))]
    while path:
        node, following = path[-1]
        step = next((each for each in following if each not in seen), None)
        if step is None:
            done.append(node)
            path.pop()
        else:
            seen.add(step)
            path.append((step, iter(ahead[step])))
    return done


def _any_cycle(edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """A cycle of a strongly connected part."""
    first = edges[0]
    paths: dict[Node, tuple[Edge, ...]] = {first.target: (first,)}
    while first.source not in paths:
        paths |= {
            edge.target: (*paths[edge.source], edge)
            for edge in edges
            if edge.source in paths and edge.target not in paths
        }
    return paths[first.source]


def _simple_cycles(edges: Sequence[Edge]) -> Iterator[tuple[Edge, ...] | None]:
    """The cycles that pass no node twice, each from its first node in the order of the edges; None if there are too many."""
    leaving: dict[Node, list[Edge]] = defaultdict(list)
    for edge in edges:
        leaving[edge.source].append(edge)
    steps = 0
    rank = {node: number for number, node in enumerate(leaving)}
    for start, first in leaving.items():
        path: list[Edge] = []
        on_path = {start}
        pending = [iter(first)]
        while pending:
            steps += 1
            if steps > _STEP_LIMIT:
                yield None
                return
            following = next(pending[-1], None)
            if following is None:
                pending.pop()
                if path:
                    on_path.discard(path.pop().target)
            elif following.target == start:
                yield (*path, following)
            elif following.target not in on_path and rank.get(following.target, -1) > rank[start]:
                path.append(following)
                on_path.add(following.target)
                pending.append(iter(leaving[following.target]))
