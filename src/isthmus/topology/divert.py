"""The entities to which steps of tasks divert messages, within the federation.

What it is: the entities that must exist for `on_failure: divert`, and the checks of them against the rest of the file. What it is not:
the setting (`isthmus.topology.step.divert`), or cycles that a diverted message could follow, which are edges of the graph
(`isthmus.topology.graph.edge`).

Invariants:
    I1. No step diverts to a source or a target of its own task.
    I2. An entity that exists keeps its settings, except for the duplicate detection that the task requires of every target.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from isthmus.topology.file.document import Document, Place, suggest
from isthmus.topology.kind import KINDS, SERVICE_BUS
from isthmus.topology.model import Federation, Task
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.pattern.part.duplicate import DETECTION_WINDOW_MS
from isthmus.topology.pattern.part.entity import check_own_name
from isthmus.topology.state import LogState, PlainState, QueueState, TopicState, WantedState
from isthmus.topology.step.divert import DivertTo, divert_of

SUBSCRIPTION = "/subscriptions/"

__all__ = ["check_diverts", "wanted_by", "wanted_diverts"]


def wanted_by(task: Task) -> Iterator[tuple[str, WantedState]]:
    """The entities that the pattern of a task wants, and those to which its steps divert."""
    yield from PATTERNS[task.pattern].wanted(task)
    yield from wanted_diverts(task)


def wanted_diverts(task: Task) -> Iterator[tuple[str, WantedState]]:
    """The entities that must exist for the diverted messages of a task."""
    for divert in task.diverts:
        yield divert.alias, _state(task, divert)


def _state(task: Task, divert: DivertTo) -> WantedState:
    kind = KINDS[divert.kind or SERVICE_BUS.name]
    if kind.is_log:
        return LogState(name=divert.entity)
    if kind.is_plain:
        return PlainState(name=divert.entity, is_topic=divert.is_topic)
    window_ms = getattr(task, "duplicate_detection_ms", 0)
    is_by_origin = getattr(task, "duplicates", "") == "origin"
    detection: dict[str, Any] = {"keyless_detection_ms": DETECTION_WINDOW_MS} if is_by_origin else {}
    if window_ms or is_by_origin:
        detection["duplicate_detection_ms"] = window_ms
    return (TopicState if divert.is_topic else QueueState)(name=divert.entity, **detection)


def check_diverts(task: Task, federation: Federation, document: Document) -> None:
    """Fault conflicts between the diverting steps of a task and the rest of the federation."""
    first: dict[str, DivertTo] = {}
    shared = _shared(task, federation)
    for step in task.steps:
        divert = divert_of(step.settings)
        if divert is None:
            continue
        if first.setdefault(divert.name, divert).is_topic != divert.is_topic:
            document.fault(
                step.at("divert_to"),
                f"divert_to: {divert.name} is a queue in one step and a topic in another",
                "write another name in one of them",
            )
        _check(task, divert, step.at("divert_to"), federation, document)
        if divert.name.lower() in shared:
            document.fault(
                step.at("divert_to"),
                f"divert_to: task {shared[divert.name.lower()]} also diverts to {divert.name}, from the same entity: a message that both "
                "divert is there once, and its target cannot be determined",
                "write another queue or topic",
            )
        if any(each.kind == "encrypt" for each in task.steps):
            document.warn(
                step.at("divert_to"),
                f"step {step} diverts messages as they were received: at {divert.name} they are not encrypted by the task's step encrypt",
                "make sure that readers of it may see them, or write on_failure: dead-letter",
            )


def _shared(task: Task, federation: Federation) -> dict[str, str]:
    """By lower-case name: entities to which an earlier task diverts messages with the same entry point as this task's; and that task."""
    found: dict[str, str] = {}
    own = set(_diverted(task))
    for other in federation.tasks.values():
        if other is task or not own:
            break
        found |= {name: other.name for entered, name in own.intersection(_diverted(other))}
    return found


def _diverted(task: Task) -> Iterator[tuple[str, str]]:
    """The entry point of a route's messages, and where its steps divert them, if copies of one message are distinguished there."""
    if not task.diverts or getattr(task, "duplicates", "") == "allow":
        return
    for route in PATTERNS[task.pattern].routes(task):
        for divert in task.diverts:
            yield f"{route.source.alias}/{route.entered.lower()}", divert.name.lower()


def _check(task: Task, divert: DivertTo, place: Place, federation: Federation, document: Document) -> None:
    namespace = federation.namespaces.get(divert.alias)
    if namespace is None:
        hint = suggest(divert.alias, sorted(federation.namespaces))
        document.fault(place, f"divert_to: no namespace has the alias {divert.alias!r}", hint)
        return
    kind = KINDS[namespace.kind]
    if not kind.writes:
        document.fault(
            place,
            f"divert_to: {divert.alias} is of kind {namespace.kind}, which cannot be a target",
            "write the alias of a namespace that can be written to",
        )
        return
    if kind.is_log and not divert.is_topic:
        document.fault(place, f"divert_to: {divert.alias} is a log, which has no queues", "write topic: NAME")
    check_own_name(divert.entity, place, document)
    if not kind.is_log and SUBSCRIPTION in divert.entity.lower():
        document.fault(
            place,
            f"divert_to: {divert.name} is a subscription, which accepts no messages",
            "write the topic, or another queue",
        )
        return
    if divert.is_topic and not kind.is_log:
        document.warn(
            place,
            f"divert_to: {divert.name} is a topic, which keeps only what subscriptions select: messages diverted before it has one are lost",
            "make sure that it has a subscription between isthmus apply and isthmus run, or write queue: NAME",
        )
    for route in PATTERNS[task.pattern].routes(task):
        sources = {route.source.entity.partition("/")[0], route.source.entity, route.entered}
        if _is_at(divert, route.source.alias, *sources):
            document.fault(
                place,
                f"divert_to: {divert.name} is the source of route {route.name}: failed messages would fail again without end",
                "write another queue or topic",
            )
            return
        if any(_is_at(divert, target.alias, target.entity) for target in route.targets):
            document.fault(
                place,
                f"divert_to: {divert.name} is the target of route {route.name}: failed messages would be mixed with the others",
                "write another queue or topic",
            )
            return


def _is_at(divert: DivertTo, alias: str, *entities: str) -> bool:
    return divert.alias == alias and divert.entity.lower() in {each.lower() for each in entities}
