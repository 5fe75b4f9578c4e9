"""The mark: the application property by which the rules of a task exclude the task's own copies.

What it is: the default mark's name, and the filter and action of a replication rule for either kind of mark. What it is
not: the marking of copies, which is the route's (`isthmus.connectors.servicebus.message.message_rewriter`).
Specification: Microsoft Learn, "Subscription Rule SQL Filter Syntax".

A mark of the task's own has the copy's MessageId as its value. The rule compares the two, so that another message which an
application sends with a copy's properties is replicated. A mark that the operator named has the value 1, as in the guides to
federation, and a mark of any other type or value selects the message.

Invariants:
    I1. No copy of a task is selected by a rule of the task.
    I2. A message without the mark is selected, and so is one with a mark of another value or type: a number that is not 1, text,
        true or false, a UUID, a time. Only binary values and lists cannot be compared with anything in a rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha1

from isthmus.rules.syntax.tree import Property, render

__all__ = ["default_mark", "mark_action", "mark_filter", "unmarked_filter"]

_HASH_CHARACTERS = 6


def default_mark(task: str, addresses: Iterable[tuple[str, str]]) -> str:
    """The mark of a task's own: the same in every namespace, and different from that of another file with a task of the same name and other
    members.

    Args:
        task: the task's name.
        addresses: alias, and host or reference to the connection, of each member.
    """
    text = "\0".join(f"{alias}\0{address}" for alias, address in sorted(addresses))
    return f"isthmus-{task}-{sha1(text.encode(), usedforsecurity=False).hexdigest()[:_HASH_CHARACTERS]}"


def mark_filter(mark: str, condition: str = "", *, is_number: bool = False) -> str:
    """The replication rule's filter: messages that this task has not copied and that the operator's condition selects.

    Args:
        mark: the property's name.
        condition: the operator's filter; empty: every message.
        is_number: whether the mark has the value 1; otherwise the copy's MessageId.
    """
    name = render(Property("user", mark))
    if is_number:
        # A comparison of two types is unknown, not true: each type has its own alternative.
        unmarked = (
            f"{name} IS NULL OR {name} <> 1 OR {name} LIKE '%' OR {name} IN (TRUE, FALSE) OR {name} <> newid() OR "
            f"{name} <= sys.EnqueuedTimeUtc OR {name} > sys.EnqueuedTimeUtc"
        )
    else:
        unmarked = f"{name} IS NULL OR {name} <> sys.MessageId"
    return f"({unmarked}) AND ({condition})" if condition else unmarked


def unmarked_filter(mark: str, condition: str) -> str:
    """The part of the filter that a check can decide: messages without the mark, or with another number than 1."""
    name = render(Property("user", mark))
    return f"({name} IS NULL OR {name} <> 1) AND ({condition})"


def mark_action(mark: str, *, is_number: bool = False) -> str:
    """The replication rule's action; none for a mark with the copy's MessageId, which only the route can set."""
    return f"SET {render(Property('user', mark))} = 1" if is_number else ""
