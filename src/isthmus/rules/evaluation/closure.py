"""A tree to a Python closure over a view: the back end of the broker.

What it is: one function per node, chosen when the rule is compiled, so that a message costs a few calls. The usual
shapes of rules (a property against a constant, IS NULL, a few joined by AND or OR) have functions of their own; every
other shape takes the general one, and both are tested with the same fixtures.

Spec: docs/explanation/protocol.md, Filter language (semantics of unknown).

Invariants:
    I1. AND and OR are evaluated from left to right and stop as soon as the verdict is known, so that a failing operand
        after that point does not fail the filter. `isthmus.replication.rule_column` gives the same verdicts.
    I2. A verdict is True, False or None (unknown), never another truthy or falsy value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias
from uuid import uuid4

from isthmus.rules.error import FilterError
from isthmus.rules.evaluation.like import compile_like
from isthmus.rules.syntax.tree import (
    And,
    Arithmetic,
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
    Parameter,
    Predicate,
    Property,
    PropertyOf,
    Unary,
)
from isthmus.rules.value import (
    COMPARISONS,
    MISSING,
    Kind,
    Missing,
    Value,
    arithmetic,
    compare,
    kind_of,
    negate,
)
from isthmus.rules.view import View

__all__ = ["Evaluator", "Test", "compile_expression", "compile_predicate"]

Evaluator: TypeAlias = Callable[[View], Value | Missing]
Test: TypeAlias = Callable[[View], bool | None]
Parameters: TypeAlias = Mapping[str, Value]

# The limit of a filter's length: a pattern that comes with a message would otherwise be compiled and searched at any length.
_PATTERN_CHARACTERS = 1024
_SWAPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compile_predicate(tree: Predicate, parameters: Parameters) -> Test:
    """Compiles a condition.

    Args:
        tree: the condition.
        parameters: values by lower-case name without ``@``; the parser has checked that none is missing.
    """
    match tree:
        case Comparison(operation, left, right):
            return _comparison(operation, left, right, parameters)
        case IsNull(operand, negated):
            return _is_null(operand, negated)
        case Exists(operand):
            return _exists(operand)
        case In():
            return _in(tree, parameters)
        case Like():
            return _like(tree, parameters)
        case Not(inner):
            return _not(compile_predicate(inner, parameters))
        case And(operands):
            return _and(tuple(compile_predicate(one, parameters) for one in operands))
        case Or(operands):
            return _or(tuple(compile_predicate(one, parameters) for one in operands))


def compile_expression(tree: Expression, parameters: Parameters) -> Evaluator:
    """Compiles a value; see `compile_predicate`. MISSING is returned only where a property is read."""
    match tree:
        case Constant(value):
            return _constant(value)
        case Parameter(name):
            return _constant(parameters[name.lower()])
        case Property():
            return _property(tree)
        case NewId():
            return lambda view: uuid4()
        case PropertyOf(inner):
            return _property_of(compile_expression(inner, parameters))
        case Unary(operation, inner):
            return _unary(operation, compile_expression(inner, parameters))
        case Arithmetic(first, rest):
            head = compile_expression(first, parameters)
            tail = tuple((operation, compile_expression(one, parameters)) for operation, one in rest)
            return _arithmetic(head, tail)


def _constant(value: Value) -> Evaluator:
    return lambda view: value


def _property(tree: Property) -> Evaluator:
    key = tree.key
    if tree.scope == "sys":
        return lambda view: view.sys(key)
    return lambda view: view.user(key)


def _property_of(name: Evaluator) -> Evaluator:
    def evaluate(view: View) -> Value | Missing:
        key = name(view)
        return view.user(key.lower()) if isinstance(key, str) else None

    return evaluate


def _unary(operation: str, operand: Evaluator) -> Evaluator:
    if operation == "-":
        return lambda view: negate(operand(view))

    def plus(view: View) -> Value | Missing:
        value = operand(view)
        return value if kind_of(value) in (Kind.LONG, Kind.DOUBLE, Kind.TIMESPAN) else None

    return plus


def _arithmetic(first: Evaluator, rest: tuple[tuple[str, Evaluator], ...]) -> Evaluator:
    def evaluate(view: View) -> Value | Missing:
        value = first(view)
        for operation, operand in rest:
            value = arithmetic(operation, value, operand(view))
        return value

    return evaluate


def _fixed(tree: Expression, parameters: Parameters) -> tuple[bool, Value]:
    """Whether an expression has one value for all messages, and which."""
    match tree:
        case Constant(value):
            return True, value
        case Parameter(name):
            return True, parameters[name.lower()]
    return False, None


def _comparison(operation: str, left: Expression, right: Expression, parameters: Parameters) -> Test:
    left_fixed, left_value = _fixed(left, parameters)
    right_fixed, right_value = _fixed(right, parameters)
    if right_fixed and not left_fixed:
        return _against_constant(operation, left, right_value, parameters)
    if left_fixed and not right_fixed:
        return _against_constant(_SWAPPED[operation], right, left_value, parameters)
    if left_fixed:
        verdict = compare(operation, left_value, right_value)
        return lambda view: verdict
    left_of, right_of = compile_expression(left, parameters), compile_expression(right, parameters)
    return lambda view: compare(operation, left_of(view), right_of(view))


def _against_constant(operation: str, tree: Expression, constant: Value, parameters: Parameters) -> Test:
    """A comparison with one side known: the type check is against one type, mostly by identity."""
    of = compile_expression(tree, parameters)
    compared = COMPARISONS[operation]
    exact = type(constant)

    def general(view: View) -> bool | None:
        return compare(operation, of(view), constant)

    if exact is not int and exact is not str:
        return general
    if not isinstance(tree, Property):
        # Calls are the main cost of a filter: below, the read of a property is written out for each scope.
        return general
    key = tree.key
    if tree.scope == "sys":

        def against_sys(view: View) -> bool | None:
            value = view.sys(key)
            if type(value) is exact:
                return compared(value, constant)
            return None if value is MISSING else compare(operation, value, constant)

        return against_sys
    if operation == "=":

        def equals(view: View) -> bool | None:
            value = view.user(key)
            if type(value) is exact:
                return value == constant
            return None if value is MISSING else compare("=", value, constant)

        return equals
    if operation == "<>":

        def differs(view: View) -> bool | None:
            value = view.user(key)
            if type(value) is exact:
                return value != constant
            return None if value is MISSING else compare("<>", value, constant)

        return differs

    def against_user(view: View) -> bool | None:
        value = view.user(key)
        if type(value) is exact:
            return compared(value, constant)
        return None if value is MISSING else compare(operation, value, constant)

    return against_user


def _is_null(operand: Property, negated: bool) -> Test:
    key = operand.key
    if operand.scope == "sys":
        of = _property(operand)
        if negated:
            return lambda view: (value := of(view)) is not MISSING and value is not None
        return lambda view: (value := of(view)) is MISSING or value is None

    def is_null(view: View) -> bool:
        value = view.user(key)
        return value is MISSING or value is None

    def is_not_null(view: View) -> bool:
        value = view.user(key)
        return value is not MISSING and value is not None

    return is_not_null if negated else is_null


def _exists(operand: Property) -> Test:
    key = operand.key
    if operand.scope == "sys":
        return lambda view: view.sys(key) is not MISSING
    return lambda view: view.user(key) is not MISSING


def _in(tree: In, parameters: Parameters) -> Test:
    of = compile_expression(tree.operand, parameters)
    hit, miss = (False, True) if tree.negated else (True, False)
    fixed = [_fixed(item, parameters) for item in tree.items]
    constants = [value for is_fixed, value in fixed if is_fixed]
    if len(constants) == len(tree.items):
        items = tuple(constants)
        strings = frozenset(value for value in constants if type(value) is str)
        longs = frozenset(value for value in constants if type(value) is int)
        if any(type(value) is float for value in constants):
            longs = frozenset()

        def among_constants(view: View) -> bool | None:
            value = of(view)
            kind = type(value)
            if kind is str and strings:
                return hit if value in strings else miss
            if kind is int and longs:
                return hit if value in longs else miss
            return None if value is MISSING else _membership(value, items, hit, miss)

        return among_constants
    evaluators = tuple(compile_expression(item, parameters) for item in tree.items)

    def among(view: View) -> bool | None:
        value = of(view)
        return _membership(value, tuple(item(view) for item in evaluators), hit, miss)

    return among


def _membership(value: object, items: tuple[Value | Missing, ...], hit: bool, miss: bool) -> bool | None:
    """IN: unknown if the left side is, or if every item that has a value is of a type it does not compare with."""
    if kind_of(value) is None:
        return None
    known = comparable = False
    for item in items:
        verdict = compare("=", value, item)
        if verdict:
            return hit
        if verdict is False:
            comparable = True
        elif item is not None and item is not MISSING:
            known = True
    return None if known and not comparable else miss


def _like(tree: Like, parameters: Parameters) -> Test:
    of = compile_expression(tree.operand, parameters)
    negated = tree.negated
    pattern_fixed, pattern = _fixed(tree.pattern, parameters)
    escape_fixed, escape = (True, "") if tree.escape is None else _fixed(tree.escape, parameters)
    matcher = None
    if pattern_fixed and escape_fixed and isinstance(pattern, str) and isinstance(escape, str) and len(escape) < 2:
        matcher = compile_like(pattern, escape) if escape or tree.escape is None else None
    if matcher is not None:
        matches = matcher

        def like_constant(view: View) -> bool | None:
            value = of(view)
            if not isinstance(value, str):
                return None
            return matches(value) is not negated

        return like_constant
    pattern_of = compile_expression(tree.pattern, parameters)
    escape_of = _constant("") if tree.escape is None else compile_expression(tree.escape, parameters)
    has_escape = tree.escape is not None

    def like(view: View) -> bool | None:
        value, wanted, sign = of(view), pattern_of(view), escape_of(view)
        if not isinstance(value, str) or not isinstance(wanted, str) or not isinstance(sign, str):
            return None
        if len(wanted) > _PATTERN_CHARACTERS:
            raise FilterError(f"a pattern of LIKE has {len(wanted)} characters; the limit is {_PATTERN_CHARACTERS}")
        if has_escape and len(sign) != 1:
            raise FilterError(f"ESCAPE takes one character, not {sign!r}")
        found = compile_like(wanted, sign)
        if found is None:
            raise FilterError(f"the pattern {wanted!r} ends with its escape character")
        return found(value) is not negated

    return like


def _not(operand: Test) -> Test:
    def test(view: View) -> bool | None:
        verdict = operand(view)
        return None if verdict is None else not verdict

    return test


def _and(operands: tuple[Test, ...]) -> Test:
    if len(operands) == 2:
        left, right = operands

        def both(view: View) -> bool | None:
            first = left(view)
            if first is False:
                return False
            second = right(view)
            return second if first or second is False else None

        return both

    def every(view: View) -> bool | None:
        verdict: bool | None = True
        for operand in operands:
            one = operand(view)
            if one is False:
                return False
            if one is None:
                verdict = None
        return verdict

    return every


def _or(operands: tuple[Test, ...]) -> Test:
    if len(operands) == 2:
        left, right = operands

        def either(view: View) -> bool | None:
            first = left(view)
            if first:
                return True
            second = right(view)
            return second if first is False or second else None

        return either

    def some(view: View) -> bool | None:
        verdict: bool | None = False
        for operand in operands:
            one = operand(view)
            if one:
                return True
            if one is None:
                verdict = None
        return verdict

    return some
