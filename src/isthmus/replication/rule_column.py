"""A filter's tree to a Spark Column: the back end of routes whose source has no filters.

What it is: the same language as the broker's closures, over columns; both are tested with the fixtures in
tests/fixtures/rules. What it is not: actions, which a broker applies to its copies (a route changes properties by its
steps).

How: Spark's columns have one type each, a property's value has one of eight. So a value is a `Cell`: one column per kind,
of which at most one is not null in a row. Operators combine the kinds that are comparable; other combinations are null, which is
unknown, and Spark's own three-valued AND, OR and NOT do the rest. A row whose evaluation fails (where a closure raises
FilterError) is marked in a separate column.

Invariants:
    I1. A verdict is true, false or null exactly where the closure returns True, False or None.
    I2. A row has failed exactly where the closure raises FilterError, and its verdict is null.
    I3. No expression built here ends a query at run time, in ANSI mode either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F

from isthmus.replication.rule_cell import Cell, RuleColumns, either, literal
from isthmus.replication.rule_operator import (
    any_failed,
    arithmetic_cell,
    compare_cells,
    like_cells,
    like_pattern,
    negative_cell,
    signed_cell,
)
from isthmus.rules import CorrelationFilter, DictView, FalseFilter, Filter, FilterError, TrueFilter, Value
from isthmus.rules.evaluation.closure import compile_expression, compile_predicate
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
    Node,
    Not,
    Or,
    Parameter,
    Predicate,
    Property,
    PropertyOf,
    Unary,
    children,
)
from isthmus.rules.value import Kind, plain

__all__ = ["RuleVerdict", "filter_column"]


class RuleVerdict(NamedTuple):
    """The verdict of a filter for every row.

    Attributes:
        verdict: true selects; false and null (unknown, or failed) do not. Fit for `DataFrame.filter`.
        failed: true where the evaluation failed, otherwise false; never null.
    """

    verdict: Column
    failed: Column


def filter_column(rule: Filter | CorrelationFilter | TrueFilter | FalseFilter, columns: RuleColumns) -> RuleVerdict:
    """Compiles a filter for a DataFrame.

    Args:
        rule: the filter.
        columns: the columns with a message's properties.

    Raises:
        InvalidArgumentError: the filter reads a system property for which there is no column.
    """
    if isinstance(rule, TrueFilter | FalseFilter):
        return RuleVerdict(F.lit(rule.verdict), F.lit(False))
    if isinstance(rule, CorrelationFilter):
        return RuleVerdict(_correlation(rule, columns), F.lit(False))
    parameters = {name.removeprefix("@").lower(): plain(value) for name, value in rule.parameters.items()}
    verdict, failed = _Compiler(columns, parameters).predicate(rule.tree)
    if failed is None:
        return RuleVerdict(verdict, F.lit(False))
    return RuleVerdict(F.when(~failed, verdict), failed)


def _correlation(rule: CorrelationFilter, columns: RuleColumns) -> Column:
    conditions = [compare_cells("=", columns.sys(name), literal(value)) for name, value in rule.sys.items()]
    conditions += [compare_cells("=", columns.user(name.lower()), literal(value)) for name, value in rule.user.items()]
    return ~either(*(~F.coalesce(condition, F.lit(False)) for condition in conditions))


_Judged = tuple[Column, Column | None]


class _Compiler:
    def __init__(self, columns: RuleColumns, parameters: Mapping[str, Value]) -> None:
        self.columns = columns
        self.parameters = parameters

    # Conditions: the verdict, and where its evaluation failed

    def predicate(self, tree: Predicate) -> _Judged:
        if _is_constant(tree):
            return self.constant_predicate(tree)
        match tree:
            case Comparison(operation, left, right):
                a, b = self.expression(left), self.expression(right)
                return compare_cells(operation, a, b), any_failed(a.failed, b.failed)
            case IsNull(operand, negated):
                known = self.property(operand).known()
                return (known if negated else ~known), None
            case Exists(operand):
                exists = self.property(operand).exists
                assert exists is not None
                return exists(), None
            case In():
                return self.membership(tree)
            case Like():
                return self.like(tree)
            case Not(inner):
                verdict, failed = self.predicate(inner)
                return ~verdict, failed
            case And(operands):
                return self.chain(operands, decided_by=False)
            case Or(operands):
                return self.chain(operands, decided_by=True)
        raise AssertionError(tree)

    def constant_predicate(self, tree: Predicate) -> _Judged:
        try:
            verdict = compile_predicate(tree, self.parameters)(DictView())
        except FilterError:
            return F.lit(None).cast("boolean"), F.lit(True)
        return F.lit(verdict).cast("boolean"), None

    def chain(self, operands: tuple[Predicate, ...], *, decided_by: bool) -> _Judged:
        """AND and OR, which stop at the first operand that decides: a failure after it does not count."""
        verdict, failed = self.predicate(operands[0])
        for operand in operands[1:]:
            more, more_failed = self.predicate(operand)
            if more_failed is not None:
                reached = ~verdict.eqNullSafe(F.lit(decided_by))
                failed = any_failed(failed, reached & more_failed)
            verdict = verdict | more if decided_by else verdict & more
        return verdict, failed

    def membership(self, tree: In) -> _Judged:
        operand = self.expression(tree.operand)
        items = [self.expression(item) for item in tree.items]
        equal = [compare_cells("=", operand, item) for item in items]
        found = either(*(one.eqNullSafe(F.lit(True)) for one in equal))
        comparable = either(*(one.isNotNull() for one in equal))
        known = either(*(item.known() for item in items))
        verdict = (
            F.when(~operand.typed(), F.lit(None).cast("boolean"))
            .when(found, F.lit(True))
            .when(comparable | ~known, F.lit(False))
        )
        failed = any_failed(operand.failed, *(item.failed for item in items))
        return (~verdict if tree.negated else verdict), failed

    def like(self, tree: Like) -> _Judged:
        operand = self.expression(tree.operand)
        pattern = self.fixed_text(tree.pattern)
        escape = "" if tree.escape is None else self.fixed_text(tree.escape)
        verdict: Column | None = None
        failed = operand.failed
        if pattern is not None and escape is not None and (tree.escape is None or len(escape) == 1):
            text = operand.get(Kind.STRING)
            verdict = F.lit(None).cast("boolean") if text is None else like_pattern(text, pattern, escape)
        if verdict is None:
            escaping = None if tree.escape is None else self.expression(tree.escape)
            verdict, failed = like_cells(operand, self.expression(tree.pattern), escaping)
        return (~verdict if tree.negated else verdict), failed

    def fixed_text(self, tree: Expression) -> str | None:
        value = None
        if isinstance(tree, Constant):
            value = tree.value
        elif isinstance(tree, Parameter):
            return text if isinstance(text := self.parameters[tree.name.lower()], str) else None
        return value if isinstance(value, str) else None

    # Values

    def expression(self, tree: Expression) -> Cell:
        if _is_constant(tree):
            return self.constant_expression(tree)
        match tree:
            case Property():
                return self.property(tree)
            case PropertyOf(inner):
                name = self.expression(inner)
                text = name.get(Kind.STRING)
                if text is None:
                    return Cell({}, failed=name.failed)
                found = self.columns.user(F.lower(text))
                return Cell(found.parts, known=found.known, failed=name.failed)
            case NewId():
                column = F.expr("uuid()")
                return Cell({Kind.UUID: lambda: column}, known=lambda: F.lit(True))
            case Unary(operation, inner):
                operand = self.expression(inner)
                return negative_cell(operand) if operation == "-" else signed_cell(operand)
            case Arithmetic(first, rest):
                cell = self.expression(first)
                for operation, one in rest:
                    cell = arithmetic_cell(operation, cell, self.expression(one))
                return cell
        raise AssertionError(tree)

    def constant_expression(self, tree: Expression) -> Cell:
        try:
            return literal(plain(compile_expression(tree, self.parameters)(DictView())))
        except FilterError:
            return Cell({}, failed=F.lit(True))

    def property(self, tree: Property) -> Cell:
        return self.columns.sys(tree.name) if tree.scope == "sys" else self.columns.user(tree.key)


def _is_constant(tree: Node) -> bool:
    """Whether a tree has one value for all messages."""
    return not isinstance(tree, Property | PropertyOf | NewId) and all(map(_is_constant, children(tree)))
