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
from isthmus.message.name import ORIGIN
from isthmus.replication.audit import Selects, audit
from isthmus.replication.identity import Identity, Members
from isthmus.replication.reach import Reach
from isthmus.replication.reconcile import Reconciliation
from isthmus.rules import FilterError, parse_filter
from isthmus.rules.value import compare
from isthmus.topology.model import Endpoint, Federation, Task
from isthmus.topology.pattern.all_active import AllActiveTask
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
                members=_members(each, reach),
                ordered=all(route.options.ordering == "ordered" for route in chosen),
            )


def _members(task: Task, reach: Reach) -> Members | None:
    return Members(reach.identities(task.members), task.entity) if isinstance(task, AllActiveTask) else None


def selection(task: AllActiveTask) -> Selects:
    """Which messages the task has to replicate, of those that publishers sent.

    Not what the rule on the mark selects, but what it is there for: all but those that an application marked with the
    number 1 to keep them where they are. What the rule keeps back otherwise counts as missing: a mark that it cannot
    compare, or a copy's mark on a new message.
    """
    condition = parse_filter(task.filter) if task.filter else None
    is_number = task.mark_is_number
    mark = task.mark.lower()
    origin = ORIGIN.encode()

    def selects(message: bytes, identity: Identity) -> bool:
        start, end = section.locate(message).application_properties
        may_be_marked = is_number and (not mark.isascii() or mark.encode() in message[start:end].lower())
        if condition is None and not may_be_marked:
            return True
        view = MessageView(split(message, HeadCache(0)), identity.number, standing(message).enqueued_ms)
        try:
            # Provenance that does not fit: an application sends a copy's properties, the mark among them.
            if may_be_marked and origin not in message[start:end] and compare("=", view.user(mark), 1):
                return False
            return condition is None or condition.matches(view) is True
        except (FilterError, CodecError):
            return False

    return selects
