"""Routes and flows of tasks.

What it is: the patterns' routes and flows, with the steps, the rate, the canary and the ledger that a task of any pattern can declare. What it is not: the patterns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from isthmus.topology.check.start import start_of
from isthmus.topology.kind import KINDS, SERVICE_BUS
from isthmus.topology.mailbox import rerouted
from isthmus.topology.model import Endpoint, Federation, Flow, Route, Task
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.pattern.part.duplicate import DETECTION_WINDOW_MS
from isthmus.topology.pattern.part.mixed_member import unmarked_only
from isthmus.topology.step import StepDeclaration, changes, may_drop
from isthmus.topology.step.divert import DivertTo, divert_of

__all__ = ["flows", "routes"]


def routes(federation: Federation, task: str | None = None) -> list[Route]:
    """The routes of a federation, or of one of its tasks, in the file's order.

    Raises:
        KeyError: there is no such task.
    """
    tasks = federation.tasks.values() if task is None else [federation.tasks[task]]
    return [route for each in tasks for route in _routes(each)]


def flows(task: Task) -> list[Flow]:
    """The flows of a task, which verification compares."""
    found = PATTERNS[task.pattern].audit(task)
    diverts = tuple(end for each in task.diverts if _is_read(each) for end in _looked_at(each))
    if not task.steps:
        return list(found)
    window_ms = _divert_detection_ms(task)
    return [replace(_stepped(flow, task.steps), diverts=diverts, divert_detection_ms=window_ms) for flow in found]


def _divert_detection_ms(task: Task) -> int:
    """The history window at the entities to which messages are diverted, by the file; 0 if any has none."""
    if any(KINDS[each.kind or SERVICE_BUS.name] is not SERVICE_BUS for each in task.diverts):
        return 0
    by_origin = DETECTION_WINDOW_MS if getattr(task, "duplicates", "") in ("auto", "origin") else 0
    return getattr(task, "duplicate_detection_ms", 0) or by_origin


def _is_read(divert: DivertTo) -> bool:
    """Whether diverted messages there can be read without consuming them: a topic keeps none."""
    kind = KINDS[divert.kind or SERVICE_BUS.name]
    return kind.is_log or (not divert.is_topic and (not kind.is_plain or kind.browses))


def _looked_at(divert: DivertTo) -> Iterator[Endpoint]:
    """The entities where diverted messages may be; a queue dead-letters messages that were received too often."""
    yield Endpoint(divert.alias, divert.entity)
    if KINDS[divert.kind or SERVICE_BUS.name] is SERVICE_BUS:
        yield Endpoint(divert.alias, f"{divert.entity}/$DeadLetterQueue")


def _stepped(flow: Flow, steps: Sequence[StepDeclaration]) -> Flow:
    # If a rule's action changes messages before the steps see them, no step selects them as they were sent.
    conditions, others = ([], list(steps)) if flow.changes else _selection(steps)
    every = dict.fromkeys((*filter(None, (flow.filter,)), *conditions))
    return replace(
        flow,
        filter=" AND ".join(f"({each})" for each in every) if conditions else flow.filter,
        changes=flow.changes or any(changes(step) for step in steps),
        # Diverted messages may have been consumed from there.
        drops=flow.drops or any(may_drop(step) or divert_of(step.settings) for step in others),
    )


def _selection(steps: Sequence[StepDeclaration]) -> tuple[list[str], list[StepDeclaration]]:
    """The conditions of steps that select messages as they were sent, and the other steps."""
    conditions: list[str] = []
    others: list[StepDeclaration] = []
    for at, step in enumerate(steps):
        if changes(step):
            return conditions, [*others, *steps[at:]]
        if step.kind == "filter" and may_drop(step):
            conditions.append(str(step.settings["where"]))
        else:
            others.append(step)
    return conditions, others


def _routes(task: Task) -> Iterator[Route]:
    steps = tuple(step.to_text() for step in task.steps)
    for route in PATTERNS[task.pattern].routes(task):
        options = replace(
            route.options,
            steps=unmarked_only(route, steps),
            diverts=task.diverts,
            rate=task.rate,
            canary_ms=task.canary_ms,
            ledger=task.ledger,
            when_full=task.when_full,
            session_state=task.session_state,
            compression=task.compression,
            hop_budget=task.hop_budget,
        )
        found = rerouted(task, replace(route, options=options))
        yield replace(found, options=replace(found.options, start=start_of(found)))
