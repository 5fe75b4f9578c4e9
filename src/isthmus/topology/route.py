"""Tasks compiled to routes."""

from __future__ import annotations

from isthmus.topology.model import Federation, Route
from isthmus.topology.pattern import PATTERNS

__all__ = ["routes"]


def routes(federation: Federation, task: str | None = None) -> list[Route]:
    """The routes of a federation, or of one of its tasks, in the file's order.

    Raises:
        KeyError: there is no such task.
    """
    tasks = federation.tasks.values() if task is None else [federation.tasks[task]]
    return [route for each in tasks for route in PATTERNS[each.pattern].routes(each)]
