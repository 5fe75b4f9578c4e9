"""The requirements of the setting `ordering` on a task's entities, and where it is impossible.

What it is: which entities must not be partitioned, which require sessions, and the checks of `ordering: session`. What it is not: how
an order is kept (docs/explanation/lease.md, "Order" and "Sessions").
"""

from __future__ import annotations

from isthmus.topology.file.document import Document
from isthmus.topology.model import Federation, NamespaceRef, Task
from isthmus.topology.step import shuffles

__all__ = ["SESSIONS_AT_ONCE", "check_sessions", "in_sessions", "partitioned"]

SESSIONS_AT_ONCE = 128
"""The most sessions that a route has locked at once: each costs its namespace a link, and a renewal every third of LockDuration."""

_TAKES_SESSIONS = (
    "all-active",
    "active-passive",
    "copy",
    "move",
    "consolidate",
    "fan-out",
    "split",
    "queue-to-stream",
)
_WHY_NOT = {
    "spillover": "a dead-letter queue has no sessions",
    "stream-to-queue": "a stream has no sessions, and its partitions keep their order with ordered",
}


def partitioned(ordering: str) -> bool | None:
    """Whether entities may be partitioned: False: they must not; None: not decided. A session is in one partition."""
    return False if ordering in ("ordered", "strict") else None


def in_sessions(ordering: str) -> bool:
    """Whether the sources of the routes require sessions."""
    return ordering == "session"


def check_sessions(task: Task, federation: Federation, document: Document) -> None:
    """Fault `ordering: session` where it is impossible."""
    if not in_sessions(getattr(task, "ordering", "")):
        return
    place = task.places.get("ordering", task.place)
    if task.pattern not in _TAKES_SESSIONS:
        why = _WHY_NOT.get(task.pattern, "it reads none")
        document.fault(
            place, f"a task of pattern {task.pattern} cannot read sessions: {why}", "write ordering: ordered"
        )
        return
    for alias in task.members:
        namespace = federation.namespaces.get(alias)
        if namespace is not None and not namespace.is_service_bus and not _is_only_target(task, namespace):
            document.fault(
                place,
                f"{alias} is of kind {namespace.kind}, which has no sessions",
                "write ordering: ordered, which also keeps the order within each key",
            )
    if any(getattr(each, "through", "") for each in getattr(task, "transfers", ())):
        document.fault(
            place,
            "a queue that is split forwards into a topic, and one that requires sessions cannot forward",
            "let publishers send to a topic, or write ordering: ordered",
        )
    if task.mailbox:
        document.fault(
            task.places.get("mailbox", place),
            "a subscription that requires sessions cannot forward to a mailbox",
            "remove mailbox, or write ordering: ordered",
        )
    if task.when_full == "spool":
        document.fault(
            task.places.get("when_full", place),
            "a spool keeps the order of arrival, and not the sessions of messages",
            "write when_full: alert, or ordering: ordered",
        )
    for step in filter(shuffles, task.steps):
        document.fault(
            step.place,
            f"the step {step} processes messages of all sessions together and keeps no order within one",
            "remove it, or write ordering: ordered",
        )


def _is_only_target(task: Task, namespace: NamespaceRef) -> bool:
    """Whether messages are only sent to a namespace."""
    if task.pattern == "queue-to-stream":
        return namespace.is_log
    transfers = getattr(task, "transfers", ())
    return bool(transfers) and all(each.source.alias != namespace.alias for each in transfers)
