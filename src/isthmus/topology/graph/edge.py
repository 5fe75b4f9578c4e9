"""The graph of a federation: every path of a message from one entity to another.

What it is: the edges of all tasks, from the entities that they want (forwarding of queues, subscriptions and dead letters) and
from their routes with the rules of the subscriptions that feed them, and the faults of cycles in it. What it is not: the search
(`isthmus.topology.graph.cycle`); entities of a namespace that are not in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from isthmus.errors import Fault
from isthmus.message.name import WHY_DESCRIPTION, WHY_REASON, WHY_ROUTE, WHY_SOURCE
from isthmus.rules import Filter, RuleSyntaxError, parse_action
from isthmus.rules.analysis.analysis import never_matches
from isthmus.rules.syntax.tree import And, Comparison, Constant, Predicate, Property, Set
from isthmus.topology.graph.cycle import Edge, Node, cycles
from isthmus.topology.model import Federation, Route, Task
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.pattern.part.mark import mark_filter
from isthmus.topology.route import routes
from isthmus.topology.state import QueueState, RuleState, SubscriptionState, TopicState
from isthmus.topology.step import changes

__all__ = ["cycle_faults", "edges"]

_SUBSCRIPTIONS = "/subscriptions/"
_DEAD_LETTERS = ("/$deadletterqueue", "/$transfer")

Fed = dict[tuple[str, str, str], SubscriptionState]
"""Subscriptions by alias, topic and name, in lower case."""


def cycle_faults(federation: Federation) -> Iterator[Fault]:
    """A fault for each cycle in which messages could circulate for ever."""
    names = list(federation.tasks)
    for cycle in cycles(edges(federation)):
        last = max({edge.task for edge in cycle}, key=names.index)
        path = _shown(cycle[0].source) + "".join(
            f" → {_shown(edge.target)} (task {edge.task}: {edge.text})" for edge in cycle
        )
        place = federation.tasks[last].place
        yield Fault(
            f"messages would circulate for ever, no mark stops them: {path}",
            "remove one of these paths, or give one another target; for copies in both directions write pattern: all-active",
            federation.file,
            place.line,
            place.column,
        )


def edges(federation: Federation) -> list[Edge]:
    """The edges of all tasks, in the file's order."""
    found: list[Edge] = []
    for task in federation.tasks.values():
        fed: Fed = {}
        for alias, entity in PATTERNS[task.pattern].wanted(task):
            if isinstance(entity, TopicState):
                for each in entity.subscriptions:
                    fed[alias, entity.name.lower(), each.name.lower()] = each
                    found += _forwards(task, alias, entity.name, each, f"subscription {each.name}")
            elif isinstance(entity, QueueState):
                found += _forwards(task, alias, entity.name, entity, f"queue {entity.name}")
        is_changed = any(changes(step) for step in task.steps)
        for route in routes(federation, task.name):
            found += (_edge(route, fed, is_changed=is_changed), *_diverted(route, fed))
    return list(dict.fromkeys(found))


def _forwards(task: Task, alias: str, entity: str, state: QueueState | SubscriptionState, what: str) -> Iterator[Edge]:
    for target, how in ((state.forward_to, "forwards"), (state.forward_dead_letters_to, "forwards dead letters")):
        if target:
            edge = Edge(source=_node(alias, entity), target=_node(alias, target), task=task.name, text=f"{what} {how}")
            yield _ruled(edge, state) if isinstance(state, SubscriptionState) else edge


def _read_from(route: Route) -> tuple[str, str]:
    """The entity that a route reads, and the subscription; empty: none."""
    path = (route.options.feed or route.source.entity).lower()
    for suffix in _DEAD_LETTERS:
        path = path.partition(suffix)[0]
    entity, _, subscription = path.partition(_SUBSCRIPTIONS)
    return entity, subscription


def _diverted(route: Route, fed: Fed) -> Iterator[Edge]:
    """The edges to the entities to which steps divert messages: as received, without a mark, with the reason added."""
    entity, subscription = _read_from(route)
    state = fed.get((route.source.alias, entity, subscription))
    for divert in route.options.diverts:
        edge = Edge(
            source=_node(route.source.alias, entity),
            target=_node(divert.alias, divert.entity),
            task=route.task,
            text=f"a step of route {route.name} diverts",
            changed=frozenset((WHY_REASON, WHY_DESCRIPTION, WHY_SOURCE, WHY_ROUTE)),
        )
        yield _ruled(edge, state) if state is not None else edge


def _edge(route: Route, fed: Fed, *, is_changed: bool) -> Edge:
    entity, subscription = _read_from(route)
    policy = route.options.policy
    edge = Edge(
        source=_node(route.source.alias, entity),
        target=_node(route.target.alias, route.target.entity),
        task=route.task,
        text=f"route {route.name}",
        changed=None if is_changed else frozenset(name.lower() for name in (*policy.properties, *policy.removed)),
        changes_id=is_changed,
    )
    state = fed.get((route.source.alias, entity, subscription))
    return _marked(_ruled(edge, state), state, route) if state is not None else _stopping(edge, route)


def _stopping(edge: Edge, route: Route) -> Edge:
    """The edge of a route whose source has no rules: the route itself excludes messages whose mark is their MessageId."""
    options = route.options
    if not options.mark or options.mark_is_number or not (options.log.group or options.plain.reads):
        return edge
    return replace(edge, mark=options.mark.lower(), holds_id=True)


def _marked(edge: Edge, state: SubscriptionState, route: Route) -> Edge:
    """The edge with the mark that its route sets and that every rule of its subscription excludes."""
    options, rules = route.options, state.rules or ()
    unmarked = mark_filter(options.mark, is_number=options.mark_is_number) if options.mark else ""
    if (
        options.mark
        and rules
        and all(rule.filter == unmarked or rule.filter.startswith(f"({unmarked}) AND ") for rule in rules)
    ):
        return replace(
            edge,
            mark=options.mark.lower(),
            value="1" if options.mark_is_number else "",
            holds_id=not options.mark_is_number,
        )
    number = {options.mark: 1} if options.mark and options.mark_is_number else {}
    for name, value in {**_constants(rules), **options.policy.properties, **number}.items():
        has_it = Comparison("=", Property("user", name), Constant(value))
        if edge.filters and all(never_matches(And((tree, has_it))) for tree in edge.filters):
            return replace(edge, mark=name.lower(), value=str(value))
    return edge


def _constants(rules: tuple[RuleState, ...]) -> dict[str, bool | int | float | str]:
    """The properties that the only rule of a subscription sets to a constant."""
    found: dict[str, bool | int | float | str] = {}
    with suppress(RuleSyntaxError):
        for each in parse_action(rules[0].action).statements if len(rules) == 1 and rules[0].action else ():
            found.pop(each.target.name, None)
            value = each.value.value if isinstance(each, Set) and isinstance(each.value, Constant) else None
            if value is not None and each.target.scope == "user":
                found[each.target.name] = value
    return found


def _ruled(edge: Edge, state: SubscriptionState) -> Edge:
    """The edge with the filters of a subscription's rules, and the properties that their actions change."""
    trees: list[Predicate] = []
    changed: set[str] = set()
    for rule in state.rules or ():
        try:
            trees.append(Filter(rule.filter).tree)
            for statement in parse_action(rule.action).statements if rule.action else ():
                name = statement.target.name.lower()
                changed.add(name if statement.target.scope == "user" else f"sys.{name}")
        except RuleSyntaxError:
            return replace(
                edge, changed=None, changes_id=True
            )  # a correlation filter, or a rule with a fault reported elsewhere
    return replace(
        edge,
        filters=tuple(trees),
        changed=None if edge.changed is None else edge.changed | changed,
        changes_id=edge.changes_id or "sys.messageid" in changed,
    )


def _node(alias: str, entity: str) -> Node:
    return alias, entity.lower()


def _shown(node: Node) -> str:
    return "/".join(node)
