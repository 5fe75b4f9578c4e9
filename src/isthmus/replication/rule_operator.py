"""The operators of the rules language over Spark cells.

Spark's operators differ from the language's at the edges; this module compensates for it:

- NaN equals nothing and has no order; Spark regards it as equal to itself and greater than all.
- A long divided by zero and a long beyond 64 bits fail the row; Spark's ANSI mode would end the query.
- A double divided by zero is infinite or NaN; Spark would end the query or return null.
- ``/`` between longs truncates; Spark's ``/`` returns a decimal fraction.
- LIKE has no escape character unless one is given; Spark's has the backslash. Any character can be escaped.
- Values of different types are neither equal nor different; Spark would cast one of them.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from isthmus.replication.rule_cell import Cell, Part, either
from isthmus.rules.evaluation.like import ANY_ONE, ANY_RUN, like_parts
from isthmus.rules.value import COMPARISONS, LONG_MIN, Kind

__all__ = [
    "any_failed",
    "arithmetic_cell",
    "compare_cells",
    "like_cells",
    "like_pattern",
    "negative_cell",
    "signed_cell",
]

_ORDERED: Final = (Kind.LONG, Kind.STRING, Kind.DATETIME, Kind.TIMESPAN)
_NUMBERS: Final = (Kind.LONG, Kind.DOUBLE)
_TIME_RESULTS: Final = {
    ("-", Kind.DATETIME, Kind.DATETIME): Kind.TIMESPAN,
    ("-", Kind.DATETIME, Kind.TIMESPAN): Kind.DATETIME,
    ("+", Kind.DATETIME, Kind.TIMESPAN): Kind.DATETIME,
    ("+", Kind.TIMESPAN, Kind.DATETIME): Kind.DATETIME,
    ("+", Kind.TIMESPAN, Kind.TIMESPAN): Kind.TIMESPAN,
    ("-", Kind.TIMESPAN, Kind.TIMESPAN): Kind.TIMESPAN,
}
# The years 1 to 9999, the range of Python's (and .NET's) times.
_FIRST_MICROS: Final = -62_135_596_800_000_000
_LAST_MICROS: Final = 253_402_300_799_999_999


def any_failed(*failures: Column | None) -> Column | None:
    """Where any of several evaluations failed; None if none can."""
    found = [failure for failure in failures if failure is not None]
    return either(*found) if found else None


# Comparison


def compare_cells(operation: str, left: Cell, right: Cell) -> Column:
    """True or false if the types are comparable, null otherwise."""
    results: list[Column] = []
    for left_kind, left_part in left.parts.items():
        for right_kind, right_part in right.parts.items():
            if left_kind in _NUMBERS and right_kind in _NUMBERS and Kind.DOUBLE in (left_kind, right_kind):
                a, b = left_part().cast("double"), right_part().cast("double")
                compared: Column = COMPARISONS[operation](a, b)  # type: ignore[assignment]  # columns give columns
                unordered = F.isnan(a) | F.isnan(b)
                both = a.isNotNull() & b.isNotNull()
                results.append(F.when(both & unordered, F.lit(operation == "<>")).otherwise(compared))
            elif left_kind is right_kind and (left_kind in _ORDERED or operation in ("=", "<>")):
                results.append(COMPARISONS[operation](left_part(), right_part()))  # type: ignore[arg-type]
    return F.coalesce(*results) if results else F.lit(None).cast("boolean")


# Arithmetic


def arithmetic_cell(operation: str, left: Cell, right: Cell) -> Cell:
    """``+ - * / %``."""
    results: dict[Kind, list[Column]] = {}
    failures: list[Column | None] = [left.failed, right.failed]
    for left_kind, left_part in left.parts.items():
        for right_kind, right_part in right.parts.items():
            made = _pair(operation, left_kind, left_part, right_kind, right_part)
            if made is not None:
                kind, column, failed = made
                results.setdefault(kind, []).append(column)
                failures.append(failed)
    return _cell({kind: F.coalesce(*columns) for kind, columns in results.items()}, any_failed(*failures))


def _cell(columns: dict[Kind, Column], failed: Column | None) -> Cell:
    parts: dict[Kind, Part] = {kind: functools.partial(_same, column) for kind, column in columns.items()}
    return Cell(parts, known=lambda: either(*(column.isNotNull() for column in columns.values())), failed=failed)


def _same(column: Column) -> Column:
    return column


def _pair(
    operation: str, left_kind: Kind, left: Part, right_kind: Kind, right: Part
) -> tuple[Kind, Column, Column | None] | None:
    """The combination of two kinds: the result's kind, its column, and where it failed."""
    if left_kind is Kind.LONG and right_kind is Kind.LONG:
        a, b = left(), right()
        result = _long(operation, a, b)
        return Kind.LONG, result, a.isNotNull() & b.isNotNull() & result.isNull()
    if left_kind in _NUMBERS and right_kind in _NUMBERS:
        return Kind.DOUBLE, _double(operation, left().cast("double"), right().cast("double")), None
    if left_kind is Kind.STRING and right_kind is Kind.STRING and operation == "+":
        return Kind.STRING, F.concat(left(), right()), None
    kind = _TIME_RESULTS.get((operation, left_kind, right_kind))
    if kind is None:
        return None
    a, b = left(), right()
    result = _long(operation, a, b)
    if kind is Kind.DATETIME:
        result = F.when(result.between(_FIRST_MICROS, _LAST_MICROS), result)
    return kind, result, a.isNotNull() & b.isNotNull() & result.isNull()


def _long(operation: str, a: Column, b: Column) -> Column:
    """Null if the result exceeds 64 bits or the divisor is zero."""
    if operation == "+":
        return F.try_add(a, b)
    if operation == "-":
        return F.try_subtract(a, b)
    if operation == "*":
        return F.try_multiply(a, b)
    divisor = F.when(b != 0, b)
    if operation == "%":
        return a % divisor
    return F.call_function("div", a, F.when(~((a == F.lit(LONG_MIN)) & (b == -1)), divisor))


def _double(operation: str, a: Column, b: Column) -> Column:
    if operation == "+":
        return a + b
    if operation == "-":
        return a - b
    if operation == "*":
        return a * b
    divisor = F.when(b != 0.0, b)
    both = a.isNotNull() & b.isNotNull()
    if operation == "%":
        return F.coalesce(a % divisor, F.when(both, F.lit(float("nan"))))
    # The only text that distinguishes the two zeros.
    sign = F.signum(a) * F.when(b.cast("string") == "-0.0", F.lit(-1.0)).otherwise(F.lit(1.0))
    by_zero = F.when((a == 0.0) | F.isnan(a), F.lit(float("nan"))).otherwise(sign * F.lit(float("inf")))
    return F.coalesce(a / divisor, F.when(both, by_zero))


def negative_cell(operand: Cell) -> Cell:
    """Unary minus."""
    columns: dict[Kind, Column] = {}
    failed = operand.failed
    for kind in (Kind.LONG, Kind.DOUBLE, Kind.TIMESPAN):
        column = operand.get(kind)
        if column is not None and kind is Kind.DOUBLE:
            columns[kind] = -column
        elif column is not None:
            columns[kind] = F.try_subtract(F.lit(0).cast("bigint"), column)
            failed = any_failed(failed, column.isNotNull() & columns[kind].isNull())
    return _cell(columns, failed)


def signed_cell(operand: Cell) -> Cell:
    """Unary plus."""
    signed = (Kind.LONG, Kind.DOUBLE, Kind.TIMESPAN)
    parts: dict[Kind, Part] = {kind: part for kind, part in operand.parts.items() if kind in signed}
    return Cell(parts, known=Cell(parts).typed, failed=operand.failed)


# LIKE


def like_pattern(text: Column, pattern: str, escape: str) -> Column | None:
    """LIKE with a pattern that is the same in every row; None if it ends with its escape character."""
    parts = like_parts(pattern, escape)
    if parts is None:
        return None
    inner = [part for part in parts if part is not ANY_RUN]
    literal_text = "".join(part for part in inner if isinstance(part, str))
    if ANY_ONE not in parts:
        runs = [index for index, part in enumerate(parts) if part is ANY_RUN]
        if not runs:
            return text == literal_text
        if runs == [len(parts) - 1]:
            return text.startswith(literal_text)
        if runs == [0]:
            return text.endswith(literal_text)
        if runs == [0, len(parts) - 1]:
            return text.contains(literal_text)
    body = "".join(".*" if part is ANY_RUN else "." if part is ANY_ONE else _quoted(str(part)) for part in parts)
    return text.rlike(rf"(?s)\A{body}\z")


def _quoted(c: str) -> str:
    """A character as a regular expression of Java's."""
    return "\\" + c if c.isascii() and re.fullmatch(r"[^A-Za-z0-9\s]", c) else c


def like_cells(text: Cell, pattern: Cell, escape: Cell | None) -> tuple[Column, Column | None]:
    """LIKE with a pattern or an escape character from rows: the verdict, and where it failed."""
    value, wanted = text.get(Kind.STRING), pattern.get(Kind.STRING)
    sign = F.lit("") if escape is None else escape.get(Kind.STRING)
    failed = any_failed(text.failed, pattern.failed, None if escape is None else escape.failed)
    if value is None or wanted is None or sign is None:
        return F.lit(None).cast("boolean"), failed
    if escape is None:
        pieces = F.regexp_extract_all(wanted, F.lit("(?s)."), F.lit(0))
    else:
        one = F.when(F.length(sign) == 1, sign)
        unit = F.concat(F.lit("(?s)"), _java_quoted(one), F.lit(".|."))
        pieces = F.regexp_extract_all(wanted, unit, F.lit(0))
        all_texts = value.isNotNull() & wanted.isNotNull() & sign.isNotNull()
        dangling = F.coalesce(F.try_element_at(pieces, F.lit(-1)) == sign, F.lit(False))
        failed = any_failed(failed, all_texts & ((F.length(sign) != 1) | dangling))
    expressions = F.transform(
        pieces,
        lambda piece: (
            F.when(F.length(piece) > 1, _java_quoted(F.substring(piece, 2, 1)))
            .when(piece == "%", F.lit(".*"))
            .when(piece == "_", F.lit("."))
            .otherwise(_java_quoted(piece))
        ),
    )
    body = F.concat(F.lit(r"(?s)\A"), F.array_join(expressions, ""), F.lit(r"\z"))
    return F.rlike(value, body), failed


def _java_quoted(text: Column) -> Column:
    return F.concat(F.lit(r"\Q"), text, F.lit(r"\E"))
