"""The entities that must exist at the namespaces of a federation, over all its tasks.

What it is: the entities of all tasks, merged if several tasks want the same one, with a fault if they contradict each
other. What it is not: the existing entities, nor the comparison with them (`isthmus.topology.planning.planner`).

Invariants:
    I1. Entities of one name at one namespace become one: each setting has the one value that tasks want.
    I2. Two tasks that want different values of one setting, or a queue and a topic of one name, are a fault; the order of
        tasks decides nothing. Only the initial size and time to live of an entity are the larger of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar

from isthmus.errors import Fault
from isthmus.topology.canary import with_canary
from isthmus.topology.claim import claims
from isthmus.topology.divert import wanted_diverts
from isthmus.topology.file.document import Place
from isthmus.topology.mailbox import with_mailboxes
from isthmus.topology.model import Federation, Task
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.planning.change import label, same_value, shown
from isthmus.topology.state import EntityState, LogState, PlainState, QueueState, SubscriptionState, TopicState
from isthmus.topology.step.divert import divert_of

__all__ = ["contradictions", "wanted", "wanted_of", "wanted_topics"]

_State = TypeVar("_State", TopicState, QueueState, SubscriptionState)


def wanted(federation: Federation) -> dict[str, tuple[EntityState, ...]]:
    """The entities at each namespace that a task uses: those of the patterns, and those in which runs claim the tasks."""
    return _gathered(federation)[0]


def contradictions(federation: Federation) -> Iterator[Fault]:
    """A fault for each entity with contradicting settings of two tasks."""
    yield from _gathered(federation)[1]


def wanted_topics(federation: Federation) -> dict[str, tuple[str, ...]]:
    """The names of the queues and topics to observe at each namespace that a task uses."""
    return {alias: tuple(each.name for each in entities) for alias, entities in wanted(federation).items()}


def wanted_of(task: Task) -> Iterator[tuple[str, EntityState]]:
    """The entities that one task wants at Service Bus namespaces. A task without routes needs no claim: no run moves it."""
    pattern = PATTERNS[task.pattern]
    for alias, entity in pattern.wanted(task):
        if not isinstance(entity, LogState | PlainState):
            for each in with_mailboxes(task, alias, with_canary(task, alias, entity)):
                yield alias, each
    for alias, entity in wanted_diverts(task):
        if not isinstance(entity, LogState | PlainState):
            yield alias, entity
    if next(pattern.routes(task), None) is not None:
        yield from claims(task)


def _gathered(federation: Federation) -> tuple[dict[str, tuple[EntityState, ...]], list[Fault]]:
    found: dict[str, dict[str, EntityState]] = {}
    first: dict[tuple[str, str], str] = {}
    faults: list[Fault] = []
    for task in federation.tasks.values():
        for alias, entity in wanted_of(task):
            at, key = found.setdefault(alias, {}), entity.name.lower()
            existing = at.get(key)
            if existing is None:
                at[key] = entity
                first[alias, key] = task.name
                continue
            at[key], conflicts = _merged(existing, entity)
            other = first[alias, key]
            place = _place(task, alias, key) or _place(federation.tasks[other], alias, key) or task.place
            whom = f"tasks {other} and {task.name} want" if other != task.name else f"task {task.name} wants"
            faults += [
                Fault(
                    f"{whom} {what} at {alias}",
                    "write the same in both, or another entity in one of them",
                    federation.file,
                    place.line,
                    place.column,
                )
                for what in conflicts
            ]
    return {alias: tuple(at.values()) for alias, at in found.items()}, faults


def _place(task: Task, alias: str, name: str) -> Place | None:
    """The position where a step of a task declares that it diverts to an entity; None if there is none."""
    for step in task.steps:
        divert = divert_of(step.settings)
        if divert is not None and (divert.alias, divert.entity.lower()) == (alias, name):
            return step.at("divert_to")
    return None


def _merged(first: EntityState, second: EntityState) -> tuple[EntityState, list[str]]:
    if isinstance(first, TopicState) and isinstance(second, TopicState):
        topic, conflicts = _joined(first, second, f"topic {first.name}")
        subscriptions = {each.name.lower(): each for each in first.subscriptions}
        for each in second.subscriptions:
            existing = subscriptions.get(each.name.lower())
            if existing is None:
                subscriptions[each.name.lower()] = each
                continue
            what = f"subscription {each.name} of {first.name}"
            subscriptions[each.name.lower()], more = _joined(existing, each, what)
            conflicts += more
        return replace(topic, subscriptions=tuple(subscriptions.values())), conflicts
    if isinstance(first, QueueState) and isinstance(second, QueueState):
        return _joined(first, second, f"queue {first.name}")
    return first, [f"both a queue and a topic {first.name}"]


def _joined(first: _State, second: _State, what: str) -> tuple[_State, list[str]]:
    """The union of two states without subscriptions, and their contradictions."""
    values: dict[str, Any] = {}
    conflicts = []
    skipped = {"name", "subscriptions", "duplicate_detection_ms", "keyless_detection_ms"}
    mine, theirs = _windows(first), _windows(second)
    if mine and theirs and mine != theirs:
        values_text = " and ".join(
            "/".join(shown("duplicate_detection_ms", each) for each in pair) for pair in (mine, theirs)
        )
        conflicts.append(f"{what} with DuplicateDetection {values_text}")
    if windows := mine or theirs:
        values["duplicate_detection_ms"] = windows[0]
        values["keyless_detection_ms"] = windows[1] if windows[1] != windows[0] else None
    for each in fields(first):
        if each.name in skipped:
            continue
        mine, theirs = getattr(first, each.name), getattr(second, each.name)
        if mine is None or theirs is None:
            values[each.name] = theirs if mine is None else mine
        elif each.name.startswith("initial_"):
            values[each.name] = max(mine, theirs)
        elif each.name == "rules":
            if not _select_alike(first, second):
                conflicts.append(f"{what} with different rules")
        elif not same_value(each.name, mine, theirs):
            values_text = " and ".join(shown(each.name, value) or "none" for value in (mine, theirs))
            conflicts.append(f"{what} with {label(each.name)} {values_text}")
    return replace(first, **values), conflicts


def _windows(state: EntityState | SubscriptionState) -> tuple[int, int] | None:
    """The windows of duplicate detection for a namespace that keeps duplicate keys, and for one that does not."""
    if isinstance(state, SubscriptionState):
        return None
    window_ms, keyless_ms = state.duplicate_detection_ms, state.keyless_detection_ms
    if window_ms is None and keyless_ms is None:
        return None
    return window_ms or 0, (window_ms or 0) if keyless_ms is None else keyless_ms


def _select_alike(first: Any, second: Any) -> bool:
    mine, theirs = first.rules or (), second.rules or ()
    return len(mine) == len(theirs) and all(
        (other := second.rule(rule.name)) is not None and rule.selects_as(other) for rule in mine
    )
