"""The setting `start`: what a new route begins with, by what it reads.

What it is: what each route finds when `apply` has made what it reads, and the checks of `start` against that. What it is not: the offsets
of a log's consumer group (`isthmus.topology.planning.log_planner`).

| a route reads | it begins with |
| --- | --- |
| a log | where the log ends when `apply` makes the consumer group (`now`), or where it begins (`existing`) |
| a queue, an application's subscription, or dead letters, which it empties | what is there: `existing` |
| a subscription of its own, which `apply` makes on a topic | what is sent after that: `now` |

Invariants:
    I1. No route begins later than its task's `start` says without a fault or a warning.
"""

from __future__ import annotations

import enum

from isthmus.topology.file.document import Document
from isthmus.topology.model import Route, Task
from isthmus.topology.pattern import PATTERNS

__all__ = ["Beginning", "beginning", "check_start", "start_of", "told_instead"]

_SUBSCRIPTION = "/subscriptions/isthmus."
_OWN = "isthmus."


class Beginning(enum.Enum):
    """What a new route begins with."""

    AS_WRITTEN = "a log"
    EXISTING = "what is there"
    NOW = "what is sent after its subscription was made"


def beginning(route: Route) -> Beginning:
    """What a new route begins with."""
    options = route.options
    if options.log.group:
        return Beginning.AS_WRITTEN
    if options.plain.reads:
        return Beginning.NOW if options.plain.reads_topic else Beginning.EXISTING
    path = (options.feed or route.source.entity).lower()
    # Into a topic of the task's own its source forwards, also what is there already.
    is_fed = _SUBSCRIPTION in path and not path.startswith(_OWN)
    return Beginning.NOW if is_fed else Beginning.EXISTING


def start_of(route: Route) -> str:
    """`now` or `existing`, as the route honours it."""
    found = beginning(route)
    return route.options.start if found is Beginning.AS_WRITTEN else found.name.lower()


def told_instead(route: Route) -> str:
    """How what was sent before is taken along, where a subscription does not get it."""
    if route.options.plain.reads:
        return "read a queue that holds them by a task of pattern move, or a stream by a task of its own"
    if route.pattern == "all-active":
        return "empty a subscription that holds them, and that no application reads, by a task of pattern move"
    return (
        "empty a subscription that holds them, and that no application reads, by a task of pattern move; or isthmus export and "
        "isthmus import"
    )


def check_start(task: Task, document: Document) -> None:
    """Fault, or warn of, a `start` that routes of a task cannot honour (I1)."""
    place = task.places.get("start")
    wanted = getattr(task, "start", "now")
    if place is None:
        return
    found = [(each, beginning(each)) for each in PATTERNS[task.pattern].routes(task)]
    if wanted == "now":
        emptied = next((each for each, begins in found if begins is Beginning.EXISTING), None)
        if emptied is not None:
            document.fault(
                place,
                f"start: now cannot be: route {emptied.name} empties {emptied.source}, and begins with what is there",
                "write start: existing, or remove start",
            )
        return
    late = next((each for each, begins in found if begins is Beginning.NOW), None)
    if late is None:
        return
    why = f"a subscription gets what is sent after it was made, and route {late.name} reads one that apply makes at {late.source.alias}"
    if all(begins is Beginning.NOW for _, begins in found):
        document.fault(place, f"start: existing cannot be: {why}", f"write start: now; {told_instead(late)}")
    else:
        document.warn(place, f"start: existing does not hold everywhere: {why}", told_instead(late))
