"""Checks of operators' rules before a broker receives them.

What it is: checks of syntax and length of filters and actions, and of filters that can never select a message or that exclude every
unmarked message; the results are faults of the file. What it is not: the language, which is `isthmus.rules`.

Invariants:
    I1. A filter that is refused as never matching matches no message.
"""

from __future__ import annotations

from isthmus.rules import Filter, RuleSyntaxError, parse_action
from isthmus.rules.analysis.analysis import needs_property, never_matches
from isthmus.rules.syntax.tree import Comparison, In, Like, Node, Not, Predicate, children
from isthmus.topology.file.document import Document, Place

__all__ = ["RULE_LIMIT", "check_action", "check_filter", "check_joined"]

# Service Bus: filter and action take 1,024 characters each (quotas).
RULE_LIMIT = 1024

_USUAL_MARKS = ("replication", "replicated")
"""The guides to federation use the first one in their rule and the second one in their text."""


def check_filter(text: str, place: Place, document: Document, *, mark: str = "") -> bool:
    """Fault a filter that is malformed, too long, can never select a message, or excludes all unmarked messages.

    Args:
        text: the SQL text.
        place: its position in the file.
        document: receives the faults.
        mark: the property that marks copies in this task.

    Returns:
        Whether it has no fault.
    """
    before = len(document.faults)
    try:
        tree = Filter(text).tree
    except RuleSyntaxError as error:
        _refuse(error, "filter", place, document)
        return False
    never = never_matches(tree)
    if never:
        document.fault(place, f"the filter never matches: {never}", "write a condition that a message can fulfil")
    elif _negates(tree):
        for name in {mark.lower() or _USUAL_MARKS[0], *_USUAL_MARKS}:
            why = needs_property(tree, name)
            if why:
                reason, _, hint = why.partition("; ")
                document.fault(
                    place,
                    f"the filter never matches a message without {name}: {reason}",
                    hint or f"write {name} IS NULL OR …, since messages that no route has copied have no {name}",
                )
    _check_length(text, place, document, "filter")
    return len(document.faults) == before


def check_joined(text: str, place: Place, document: Document, *, mark: str, unmarked: str) -> None:
    """Fault a useless replication rule: the rule on the mark joined with the operator's filter.

    Args:
        text: the joined filter.
        place: position of the operator's filter in the file.
        document: receives the faults.
        mark: the property.
        unmarked: the operator's filter joined with a condition that every message fulfils that no route has copied.
    """
    if never_matches(Filter(unmarked).tree):
        document.fault(
            place,
            f"the filter contradicts the rule on the mark {mark}: only messages that no route has copied are replicated",
            f"leave {mark} out of the filter",
        )
    _check_length(text, place, document, "filter, joined with the rule on the mark,")


def check_action(text: str, place: Place, document: Document) -> None:
    """Fault an action that is malformed or too long."""
    try:
        parse_action(text)
    except RuleSyntaxError as error:
        _refuse(error, "action", place, document)
        return
    _check_length(text, place, document, "action")


def _negates(tree: Predicate) -> bool:
    """Whether a filter excludes a value by negation; such a condition is unknown, not true, for a missing value."""
    pending: list[Node] = [tree]
    while pending:
        match pending.pop():
            case Comparison("<>", _, _) | Not() | In(negated=True) | Like(negated=True):
                return True
            case node:
                pending.extend(children(node))
    return False


def _refuse(error: RuleSyntaxError, what: str, place: Place, document: Document) -> None:
    for fault in error.faults:
        where = f"line {fault.line}, column {fault.column}" if fault.line > 1 else f"column {fault.column}"
        document.fault(place, f"{what}, {where}: {fault.message}", fault.hint)


def _check_length(text: str, place: Place, document: Document, what: str) -> None:
    if len(text) > RULE_LIMIT:
        document.fault(place, f"the {what} has {len(text)} characters", f"write at most {RULE_LIMIT}")
