"""The setting `start`: the messages with which a new route begins, by its source.

What it is: the messages that each route finds once `apply` has created its source, and the checks of `start` against them. What it is
not: the offsets of a log's consumer group (`isthmus.topology.planning.log_planner`).

| a route reads | it begins with |
| --- | --- |
| a log | the end of the log when `apply` creates the consumer group (`now`), or its beginning (`existing`) |
| a queue, an application's subscription, or dead letters, which it empties | the existing messages: `existing` |
| a subscription of its own, which `apply` creates on a topic | messages sent after that: `now` |

Invariants:
    I1. No route begins later than its task's `start` requires without a fault or a warning.
"""

from __future__ import annotations

import enum

from isthmus.topology.file.document import Document
from isthmus.topology.model import Route, Task
from isthmus.topology.pattern import PATTERNS

__all__ = ["Beginning", "beginning", "check_start", "start_of", "alternative_to"]

_SUBSCRIPTION = "/subscriptions/isthmus."
_OWN = "isthmus."


class Beginning(enum.Enum):
    """The messages with which a new route begins."""

    AS_WRITTEN = "a log"
    EXISTING = "what is there"
    NOW = "what is sent after its subscription was made"


def beginning(route: Route) -> Beginning:
    """The messages with which a new route begins."""
    options = route.options
    if options.log.group:
        return Beginning.AS_WRITTEN
    if options.plain.reads:
        return Beginning.NOW if options.plain.reads_topic else Beginning.EXISTING
    path = (options.feed or route.source.entity).lower()
    # A source forwards also its existing messages into a topic of the task.
    is_fed = _SUBSCRIPTION in path and not path.startswith(_OWN)
    return Beginning.NOW if is_fed else Beginning.EXISTING


def start_of(route: Route) -> str:
    """`now` or `existing`, as the route behaves."""
    found = beginning(route)
    return route.options.start if found is Beginning.AS_WRITTEN else found.name.lower()


def alternative_to(route: Route) -> str:
    """How earlier messages, which a new subscription does not get, can be included."""
    if route.options.plain.reads:
        return "read a queue with these messages by a task of pattern move, or a stream by a separate task"
    if route.pattern == "all-active":
        return "empty a subscription that has these messages and no readers, by a task of pattern move"
    return (
        "empty a subscription that has these messages and no readers, by a task of pattern move; or isthmus export and "
        "isthmus import"
    )


def check_start(task: Task, document: Document) -> None:
    """Fault, or warn of, a `start` that the task's routes cannot follow (I1)."""
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
                f"start: now is impossible: route {emptied.name} empties {emptied.source}, and begins with the existing messages",
                "write start: existing, or remove start",
            )
        return
    late = next((each for each, begins in found if begins is Beginning.NOW), None)
    if late is None:
        return
    why = f"a subscription gets only messages sent after its creation, and route {late.name} reads one that apply creates at {late.source.alias}"
    if all(begins is Beginning.NOW for _, begins in found):
        document.fault(place, f"start: existing is impossible: {why}", f"write start: now; {alternative_to(late)}")
    else:
        document.warn(place, f"start: existing does not apply everywhere: {why}", alternative_to(late))
