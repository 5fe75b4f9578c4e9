"""Which entities prove a task, and the proof.

What it is: the choice of the subscription that is read at each member, and the audit of each task. What it is not: the
reading (`isthmus.replication.audit`) or the comparison (`isthmus.replication.reconcile`).
"""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.connectors.servicebus.head import standing
from isthmus.entities.parse import HeadCache, split
from isthmus.entities.view import MessageView
from isthmus.errors import InvalidArgumentError
from isthmus.replication.audit import Selects, audit
from isthmus.replication.identity import Identity
from isthmus.replication.reach import Reach
from isthmus.replication.reconcile import Reconciliation
from isthmus.rules import FilterError, parse_filter
from isthmus.topology.model import Endpoint, Federation, Task
from isthmus.topology.pattern.all_active import AllActiveTask, mark_filter
from isthmus.topology.route import routes

__all__ = ["AUDIT", "audited_subscription", "selection", "verify"]

AUDIT = "audit"
"""Name of the subscription that is read where a task declares one of it."""


def audited_subscription(task: Task) -> str:
    """The subscription of a task that holds every message.

    Raises:
        InvalidArgumentError: the task declares none.
    """
    declared = task.subscriptions if isinstance(task, AllActiveTask) else ()
    named = next((each.name for each in declared if each.name.lower() == AUDIT), "")
    whole = next((each.name for each in declared if not each.rules), "")
    if not named and not whole:
        raise InvalidArgumentError(
            f"task {task.name} declares no subscription that holds every message: write subscriptions: [{AUDIT}] and apply "
            "it, or name one with --subscription"
        )
    return named or whole


def verify(federation: Federation, *, task: str = "", subscription: str = "") -> Iterator[Reconciliation]:
    """Reconcile a federation's tasks by independent reading; blocks.

    Args:
        federation: with absolute paths.
        task: this one only; empty for all.
        subscription: the subscription to read at every member; empty to choose.

    Raises:
        InvalidArgumentError: there is no such task, or nothing to read.
        IsthmusError: a namespace cannot be read.
    """
    if task and task not in federation.tasks:
        raise InvalidArgumentError(f"no task {task} in {federation.file}: {', '.join(federation.tasks)}")
    with Reach(federation, "isthmus-verify") as reach:
        for each in federation.tasks.values():
            if task and each.name != task:
                continue
            name = subscription or audited_subscription(each)
            chosen = routes(federation, each.name)
            entities = {route.source.alias: route.source.entity.partition("/Subscriptions/")[0] for route in chosen}
            read = {alias: Endpoint(alias, f"{entity}/Subscriptions/{name}") for alias, entity in entities.items()}
            window_ms = each.duplicate_detection_ms if isinstance(each, AllActiveTask) else 0
            yield audit(
                each.name,
                chosen,
                read,
                reach.peek,
                detection_ms=dict.fromkeys(read, window_ms),
                selects=selection(each) if isinstance(each, AllActiveTask) else None,
                ordered=all(route.options.ordering == "ordered" for route in chosen),
            )


def selection(task: AllActiveTask) -> Selects:
    """Which messages the task replicates, of those that publishers sent: by the rule of its replication subscriptions."""
    rule = parse_filter(mark_filter(task.mark, task.filter))
    mark = task.mark.lower().encode()

    def selects(message: bytes, identity: Identity) -> bool:
        start, end = section.locate(message).application_properties
        if not task.filter and task.mark.isascii() and mark not in message[start:end].lower():
            return True  # the rule, and most messages bear no mark
        view = MessageView(split(message, HeadCache(0)), identity.number, standing(message).enqueued_ms)
        try:
            return rule.matches(view) is True
        except (FilterError, CodecError):
            return False

    return selects
