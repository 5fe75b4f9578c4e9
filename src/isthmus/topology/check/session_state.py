"""The setting `session_state: copy`: where the state of sessions can be copied.

What it is: the checks across a task and its routes. What it is not: the copying
(`isthmus.connectors.servicebus.port.session.state_copier`).

The state of a session belongs to one entity: the queue, or the subscription, that an application reads. So a state can be copied only
if a route empties that entity, and its target is a queue.
"""

from __future__ import annotations

from isthmus.topology.file.document import Document
from isthmus.topology.model import Federation, Route, Task
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.route import routes
from isthmus.topology.state import TopicState

__all__ = ["check_session_states"]

_OWN = "/subscriptions/isthmus."


def check_session_states(federation: Federation, document: Document) -> None:
    """Fault `session_state: copy` where it is impossible."""
    for task in federation.tasks.values():
        if task.session_state != "copy":
            continue
        place = task.places.get("session_state", task.place)
        if getattr(task, "ordering", "") != "session":
            document.fault(
                place,
                "session_state: copy needs ordering: session: a route without session locks cannot read a state",
                "write ordering: session, or remove session_state"
                if hasattr(task, "ordering")
                else "remove session_state",
            )
            continue
        why = next(filter(None, (_why_not(each, task, federation) for each in routes(federation, task.name))), None)
        if why is not None:
            document.fault(place, *why)
        if federation.spark.is_remote:
            document.fault(
                place,
                "session_state: copy stores the copied states in the state folder, which executors on other machines cannot access",
                "remove session_state, or run the task on one machine",
            )


def _why_not(route: Route, task: Task, federation: Federation) -> tuple[str, str] | None:
    """The reason why a route cannot copy states, and the alternative."""
    target = route.target
    if target.is_table or not federation.namespaces[target.alias].is_service_bus:
        kind = "a table" if target.is_table else f"of kind {federation.namespaces[target.alias].kind}"
        where = target if target.is_table else target.alias
        return f"session_state: copy needs sessions at the target, and {where} is {kind}", "remove session_state"
    if _OWN in route.source.entity.lower():
        return (
            f"route {route.name} reads {route.source}, which is the task's own: an application's states are at its own subscription",
            "write pattern: move with a queue, or with a topic and a subscription; or let the application send its state as a message",
        )
    topics = {
        each.name.lower()
        for alias, each in PATTERNS[task.pattern].wanted(task)
        if alias == target.alias and isinstance(each, TopicState)
    }
    if target.entity.lower() in topics:
        return (
            f"{target} is a topic: a session has a state at each subscription, and none at the topic",
            "write target_queue: NAME, or remove session_state",
        )
    return None
