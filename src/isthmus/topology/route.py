"""Tasks compiled to routes and to what verification compares.

What it is: the patterns' routes and flows, with the steps, the rate and the canary that a task of any pattern can declare. What it is not: the patterns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from isthmus.topology.model import Federation, Flow, Route, Task
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.step import changes

__all__ = ["flows", "routes"]


def routes(federation: Federation, task: str | None = None) -> list[Route]:
    """The routes of a federation, or of one of its tasks, in the file's order.

    Raises:
        KeyError: there is no such task.
    """
    tasks = federation.tasks.values() if task is None else [federation.tasks[task]]
    return [route for each in tasks for route in _routes(each)]


def flows(task: Task) -> list[Flow]:
    """What verification of a task compares."""
    found = PATTERNS[task.pattern].audit(task)
    is_changed = any(changes(step) for step in task.steps)
    return [replace(flow, changes=True) if is_changed else flow for flow in found]


def _routes(task: Task) -> Iterator[Route]:
    steps = tuple(step.to_text() for step in task.steps)
    for route in PATTERNS[task.pattern].routes(task):
        yield replace(route, options=replace(route.options, steps=steps, rate=task.rate, canary_ms=task.canary_ms))
