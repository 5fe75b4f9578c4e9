"""Filters of an operator, who writes times as text.

What it is: a SQL filter in which a time of the message is compared with a text, read as a comparison with that time: the language has
no literal for times, and such a comparison is unknown for every message, so that a purge of all old messages would remove none and report
that. What it is not: a rule of a subscription, which a namespace reads like the service.

Invariants:
    I1. A text that is not a time, compared with one, is a fault; it never selects no message silently.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from isthmus.errors import InvalidArgumentError
from isthmus.rules import Filter, parse_filter
from isthmus.rules.evaluation.conversion import parse_datetime, parse_timespan
from isthmus.rules.syntax.tree import (
    And,
    Comparison,
    Constant,
    Expression,
    Not,
    Or,
    Parameter,
    Predicate,
    Property,
    render,
)
from isthmus.rules.system import SYSTEM_PROPERTIES
from isthmus.rules.value import Kind

__all__ = ["parse_operator_filter"]

Values = dict[str, datetime | timedelta]


def parse_operator_filter(text: str) -> Filter:
    """Parse a filter; times are ISO 8601, in UTC if they name no zone, and durations `[d.]hh:mm:ss`.

    Raises:
        RuleSyntaxError: with every fault of the expression.
        InvalidArgumentError: a time is compared with a text that is not a time.
    """
    parsed = parse_filter(text)
    values: Values = {}
    tree = _read(parsed.tree, values)
    return parse_filter(render(tree), values) if values else parsed


def _read(node: Predicate, values: Values) -> Predicate:
    match node:
        case And(operands):
            return And(tuple(_read(each, values) for each in operands))
        case Or(operands):
            return Or(tuple(_read(each, values) for each in operands))
        case Not(operand):
            return Not(_read(operand, values))
        case Comparison(operation, left, right):
            return Comparison(operation, _value(left, right, values), _value(right, left, values))
        case _:
            return node


def _value(side: Expression, other: Expression, values: Values) -> Expression:
    if not (isinstance(side, Constant) and isinstance(side.value, str)):
        return side
    if not (isinstance(other, Property) and other.scope == "sys"):
        return side
    kind = SYSTEM_PROPERTIES[other.name].kind
    found: datetime | timedelta | None
    if kind is Kind.DATETIME:
        found, expected = parse_datetime(side.value), "a time as 2026-11-23 or 2026-11-23T12:00:00Z"
    elif kind is Kind.TIMESPAN:
        found, expected = parse_timespan(side.value), "a duration as 0:10:00"
    else:
        return side
    if found is None:
        raise InvalidArgumentError(f"the filter compares sys.{other.name} with '{side.value}'; write {expected}")
    name = f"time{len(values)}"
    values[name] = found
    return Parameter(name)
