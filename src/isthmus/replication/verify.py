"""Which entities prove a task, and the proof.

What it is: the choice of the subscription that is read at each member, what of a member's messages the task replicates,
and the audit of each task. What it is not: the reading (`isthmus.replication.audit`) or the comparison
(`isthmus.replication.reconcile`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.connectors.servicebus.head import standing
from isthmus.entities.parse import HeadCache, split
from isthmus.entities.view import MessageView
from isthmus.errors import InvalidArgumentError
from isthmus.message.name import ORIGIN
from isthmus.replication.audit import audit
from isthmus.replication.audited import Selects
from isthmus.replication.identity import Identity, Members
from isthmus.replication.reach import Reach
from isthmus.replication.reconcile import Reconciliation
from isthmus.rules import Filter, FilterError, parse_filter
from isthmus.rules.value import compare
from isthmus.topology.model import Endpoint, Federation, Task
from isthmus.topology.pattern.all_active import AUDIT, AllActiveTask
from isthmus.topology.pattern.mark import mark_filter
from isthmus.topology.route import routes

__all__ = ["Witness", "selection", "verify", "witness_of"]


class Witness(NamedTuple):
    """The subscription that is read at every member.

    Attributes:
        name: of the subscription.
        shared: whether applications consume it: what is missing there may have been consumed.
        ttl_ms: the time to live that it gives its messages; 0 for none, or not known.
    """

    name: str
    shared: bool = False
    ttl_ms: int = 0


def witness_of(task: Task, subscription: str = "") -> Witness:
    """The subscription that holds every message of a task.

    Args:
        task: the task.
        subscription: the one to read; empty: the audit subscription where the task has one, else the first that holds all.

    Raises:
        InvalidArgumentError: the task declares none.
    """
    declared = task.subscriptions if isinstance(task, AllActiveTask) else ()
    kept = next((each for each in declared if each.name.lower() == (subscription or AUDIT).lower()), None)
    if kept is not None and kept.rules and not subscription:
        kept = None  # what a filter leaves out would be missed nowhere
    if kept is not None and kept.name.lower() == AUDIT:
        return Witness(kept.name, ttl_ms=task.audit_ms or 0 if isinstance(task, AllActiveTask) else 0)
    if kept is not None:
        return Witness(kept.name, shared=isinstance(task, AllActiveTask) and task.is_queue)
    if subscription:
        return Witness(subscription)
    whole = next((each.name for each in declared if not each.rules), "")
    if not whole:
        raise InvalidArgumentError(
            f"task {task.name} declares no subscription that holds every message: write audit: 1d in the task and apply "
            "it, or name one with --subscription"
        )
    return Witness(whole, shared=True)


def verify(
    federation: Federation, *, task: str = "", subscription: str = "", former_marks: Sequence[str] = ()
) -> Iterator[Reconciliation]:
    """Reconcile a federation's tasks by independent reading; blocks.

    Args:
        federation: with absolute paths.
        task: this one only; empty for all.
        subscription: the subscription to read at every member; empty to choose.
        former_marks: properties that copies were marked with before the file named another mark.

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
            witness = witness_of(each, subscription)
            chosen = routes(federation, each.name)
            entities = {route.source.alias: route.source.entity.partition("/Subscriptions/")[0] for route in chosen}
            read = {
                alias: Endpoint(alias, f"{entity}/Subscriptions/{witness.name}") for alias, entity in entities.items()
            }
            active = each if isinstance(each, AllActiveTask) else None
            yield audit(
                each.name,
                chosen,
                read,
                reach.peek,
                detection_ms=dict.fromkeys(read, active.duplicate_detection_ms if active else 0),
                selects=selection(active) if active else None,
                members=_members(each, reach),
                ordered=all(route.options.ordering == "ordered" for route in chosen),
                mark=active.mark if active else "",
                former_marks=former_marks,
                shared=witness.shared,
                ttl_ms=witness.ttl_ms,
            )


def _members(task: Task, reach: Reach) -> Members | None:
    return Members(reach.identities(task.members), task.entity) if isinstance(task, AllActiveTask) else None


def selection(task: AllActiveTask) -> Selects:
    """What the task does with a message that a publisher sent, by the rule of its replication subscriptions.

    A publisher may mark a message to keep it where it is. A mark on a message that also has provenance came with a copy's
    properties, from an application that sends them again or from another task: the rule stops a new message then.
    """
    condition = parse_filter(task.filter) if task.filter else None
    unmarked = parse_filter(mark_filter(task.mark, is_number=task.mark_is_number))
    is_number = task.mark_is_number
    mark = task.mark.lower()
    origin = ORIGIN.encode()

    def selects(message: bytes, identity: Identity) -> str:
        start, end = section.locate(message).application_properties
        may_be_marked = not mark.isascii() or mark.encode() in message[start:end].lower()
        if condition is None and not may_be_marked:
            return ""
        view = MessageView(split(message, HeadCache(0)), identity.number, standing(message).enqueued_ms)
        free = _matches(unmarked, view) if may_be_marked else True
        if not free:
            # The rule is unknown, not false, where one of its alternatives cannot be compared.
            if free is None and not (is_number and _is_one(view, mark)):
                return "incomparable"
            return "held_back" if is_number and origin not in message[start:end] else "stopped"
        return "" if condition is None or _matches(condition, view) else "filtered"

    return selects


def _is_one(view: MessageView, mark: str) -> bool:
    """Whether the mark is the number 1."""
    try:
        return compare("=", view.user(mark), 1) is True
    except (FilterError, CodecError):
        return False


def _matches(rule: Filter, view: MessageView) -> bool | None:
    """Whether a rule selects a message; None where it cannot tell."""
    try:
        return rule.matches(view)
    except (FilterError, CodecError):
        return None
