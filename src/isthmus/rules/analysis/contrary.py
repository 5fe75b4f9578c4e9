"""The complement of a filter: a filter that selects every message that the first one does not.

What it is: `not_true`, which follows the three-valued logic of SQL filters. `NOT (a = 1)` is not the complement: for a message without
`a`, or whose `a` is text, both are unknown, and neither selects it. What it is not: the evaluation of filters
(`isthmus.rules.evaluation.closure`).
Specification: Microsoft Learn, "Subscription Rule SQL Filter Syntax".

Invariants:
    I1. Of a filter and its complement exactly one selects any message whose properties are missing, null, text, numbers, truth
        values, UUIDs or times. Binary values and timespans compare with no constant of a rule.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.rules.syntax.tree import (
    And,
    Comparison,
    Constant,
    Exists,
    Expression,
    In,
    IsNull,
    Like,
    NewId,
    Not,
    Or,
    Predicate,
    Property,
)
from isthmus.rules.system import SYSTEM_PROPERTIES
from isthmus.rules.value import Kind

__all__ = ["not_true"]

_NOW = Property("sys", "EnqueuedTimeUtc")
_TEXT, _NUMBER, _TRUTH, _UUID, _TIME = "text", "number", "truth", "uuid", "time"
# Constants are never times or timespans: a system property of one of these types compares with none.
_KINDS = {Kind.STRING: _TEXT, Kind.LONG: _NUMBER}


def not_true(tree: Predicate) -> Predicate | None:
    """The complement of a filter; None where none can be written.

    It can be written for comparisons of one property with constants, IN, LIKE, IS NULL and EXISTS, joined by AND, OR and NOT.
    """
    return _contrary(tree, of=True)


def _contrary(tree: Predicate, *, of: bool) -> Predicate | None:
    """A condition that is true exactly where the tree is not `of`."""
    match tree:
        case And(operands) | Or(operands):
            parts = [_contrary(each, of=of) for each in operands]
            found = [each for each in parts if each is not None]
            if len(found) < len(parts):
                return None
            return _any(found) if isinstance(tree, And) == of else And(tuple(found))
        case Not(operand):
            return _contrary(operand, of=not of)
        case IsNull() | Exists():
            return Not(tree) if of else tree
        case Comparison() | In() | Like():
            tested = _tested(tree)
            if tested is None:
                return None
            subject, kinds = tested
            other: list[Predicate] = [IsNull(subject), Not(tree) if of else tree]
            if subject.scope == "user":
                if len(kinds) != 1:
                    return None  # with constants of several types, some comparisons are unknown for every value
                other += (
                    test
                    for kind in (_TEXT, _NUMBER, _TRUTH, _UUID, _TIME)
                    if kind not in kinds
                    for test in _is(subject, kind)
                )
            return _any(other)


def _any(parts: Iterable[Predicate]) -> Predicate:
    flat: list[Predicate] = []
    for each in parts:
        flat.extend(each.operands if isinstance(each, Or) else [each])
    return Or(tuple(flat))


def _tested(tree: Comparison | In | Like) -> tuple[Property, set[str]] | None:
    """The one property that a condition tests, and the types of what it is compared with; None for anything else."""
    match tree:
        case Comparison(_, Property() as subject, Constant() as constant) | Comparison(
            _, Constant() as constant, Property() as subject
        ):
            values: tuple[Expression, ...] = (constant,)
        case In(Property() as subject, items):
            values = items
        case Like(Property() as subject, Constant(), None | Constant()):
            return (subject, {_TEXT}) if _compares(subject, {_TEXT}) else None
        case _:
            return None
    kinds = {_kind(each) for each in values}
    return (subject, kinds) if "" not in kinds and _compares(subject, kinds) else None


def _compares(subject: Property, kinds: set[str]) -> bool:
    """Whether a property may be compared with a constant of these types: where it cannot, the comparison is unknown, and so is its complement."""
    if subject.scope == "user":
        return True
    system = SYSTEM_PROPERTIES.get(subject.name)
    return system is not None and _KINDS.get(system.kind) in kinds


def _kind(value: Expression) -> str:
    if not isinstance(value, Constant) or value.value is None:
        return ""
    if isinstance(value.value, bool):
        return _TRUTH
    return _TEXT if isinstance(value.value, str) else _NUMBER


def _is(subject: Property, kind: str) -> Iterable[Predicate]:
    """Conditions of which one is true of any value of a type, and none of a value of another."""
    if kind == _TEXT:
        return (Like(subject, Constant("%")),)
    if kind == _NUMBER:
        return Comparison("<>", subject, Constant(0)), Comparison("=", subject, Constant(0))
    if kind == _TRUTH:
        return (In(subject, (Constant(True), Constant(False))),)
    if kind == _UUID:
        return (Comparison("<>", subject, NewId()),)
    return Comparison("<=", subject, _NOW), Comparison(">", subject, _NOW)
