"""Rules that an operator wrote, checked before a broker sees them.

What it is: syntax of filters and actions, and filters that can never select a message, as faults of the file. What it is
not: the language, which is `isthmus.rules`.
"""

from __future__ import annotations

from isthmus.rules.error import RuleSyntaxError
from isthmus.rules.parser import parse_predicate, parse_statements
from isthmus.topology.document import Document, Place

__all__ = ["check_action", "check_filter"]

# Service Bus: filter and action take 1,024 characters each (quotas).
RULE_LIMIT = 1024


def check_filter(text: str, place: Place, document: Document, *, mark: str = "", joined: bool = False) -> None:
    """Fault a filter that is malformed, too long, or can never select a message.

    Args:
        text: the SQL text.
        place: where it stands.
        document: takes the faults.
        mark: the task's mark, on which the operator's filter has no business.
        joined: whether the text is the replication rule joined with the operator's filter; only its length is checked.
    """
    if joined:
        _check_length(text, place, document, "filter, joined with the rule on the mark,")
        return
    try:
        parse_predicate(text)
    except RuleSyntaxError as error:
        _refuse(error, "filter", place, document)
        return
    _check_length(text, place, document, "filter")


def check_action(text: str, place: Place, document: Document) -> None:
    """Fault an action that is malformed or too long."""
    try:
        parse_statements(text)
    except RuleSyntaxError as error:
        _refuse(error, "action", place, document)
        return
    _check_length(text, place, document, "action")


def _refuse(error: RuleSyntaxError, what: str, place: Place, document: Document) -> None:
    for fault in error.faults:
        where = f"line {fault.line}, column {fault.column}" if fault.line > 1 else f"column {fault.column}"
        document.fault(place, f"{what}, {where}: {fault.message}", fault.hint)


def _check_length(text: str, place: Place, document: Document, what: str) -> None:
    if len(text) > RULE_LIMIT:
        document.fault(place, f"the {what} has {len(text)} characters", f"write at most {RULE_LIMIT}")
