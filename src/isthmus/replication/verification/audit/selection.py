"""What a task does with a message that a publisher sent, according to the rule of its replication subscriptions.

What it is: the decision for one message, which `verify` counts as entered, or as not replicated for one of several reasons. What it is not: the rule
(`isthmus.topology.pattern.part.mark`).

Invariants:
    I1. A copy that the task made when its members had other roles, e.g. before primary and secondary of an active-passive task were
        swapped, does not count as a new message that carries a copy's properties.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.connectors.servicebus.head import peeked_message
from isthmus.entities.record.parse import HeadCache, split
from isthmus.entities.record.view import MessageView
from isthmus.message import Provenance
from isthmus.message.name import ORIGIN
from isthmus.replication.verification.audit.audited import Selects
from isthmus.replication.verification.audit.sibling import matches
from isthmus.replication.verification.identity import Identity, provenance_of
from isthmus.rules import FilterError, parse_filter
from isthmus.rules.value import compare
from isthmus.topology.model import RouteOptions
from isthmus.topology.pattern.part.mark import mark_filter

__all__ = ["selection"]


def selection(
    condition_text: str, options: RouteOptions, came_back: Callable[[Provenance], bool] = lambda _: False
) -> Selects:
    """What a task does with a message that is not known to be a copy from one of its origins.

    A publisher may mark a message to exclude it from replication. A mark on a message that also has provenance came with a copy's
    properties, from an application that sends them again or from another task: the rule stops a new message then.

    Args:
        condition_text: which messages are replicated; empty: all.
        options: of the task's routes, which name the mark; an empty mark: the task needs none.
        came_back: whether a message has been where the task's copies go.
    """
    condition = parse_filter(condition_text) if condition_text else None
    is_number = options.mark_is_number
    mark = options.mark.lower()
    unmarked = parse_filter(mark_filter(options.mark, is_number=is_number) if mark else "1 = 1")
    origin = ORIGIN.encode()

    def selects(message: bytes, identity: Identity) -> str:
        start, end = section.locate(message).application_properties
        may_be_marked = bool(mark) and (not mark.isascii() or mark.encode() in message[start:end].lower())
        if condition is None and not may_be_marked:
            return ""
        view = MessageView(split(message, HeadCache(0)), identity.number, peeked_message(message).enqueued_ms)
        free = matches(unmarked, view) if may_be_marked else True
        if not free:
            # The rule is unknown, not false, where a value in one of its alternatives cannot be compared.
            if free is None and not (is_number and _is_one(view, mark)):
                return "incomparable"
            if is_number and origin not in message[start:end]:
                return "held_back"
            provenance = provenance_of(message)
            return "returned" if provenance is not None and came_back(provenance) else "stopped"
        return "" if condition is None or matches(condition, view) else "filtered"

    return selects


def _is_one(view: MessageView, mark: str) -> bool:
    """Whether the mark is the number 1."""
    try:
        return compare("=", view.user(mark), 1) is True
    except (FilterError, CodecError):
        return False
