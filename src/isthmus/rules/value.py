"""Values of the rules language and what operators do with them.

What it is: the types that properties, constants and parameters have, C#'s promotions among them, and three-valued
logic. What it is not: how values are read from a message (see `view`).

A value is one of Python's ``bool``, ``int`` (a long of 64 bits), ``float`` (a double), ``str``, ``datetime`` (aware;
a naive one is taken as UTC), ``timedelta`` (a timespan), ``UUID``, ``bytes``; ``None`` is null and, as the result of an
operator, unknown. A value of any other type (a list, a map) is opaque: it exists, and compares with nothing.

Spec: docs/explanation/protocol.md, Filter language, Rules.

Invariants:
    I1. A comparison or an arithmetic operation with null, a missing property or operands whose types do not go
        together is unknown; it never raises for that.
    I2. bool is not a number here, unlike in Python.
    I3. A long compares with a long exactly; with a double it is first made a double, as C# does.
    I4. Arithmetic on longs that leaves 64 bits, and a long divided by zero, raise FilterError; doubles follow IEEE 754.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

from isthmus.rules.error import FilterError

__all__ = [
    "COMPARISONS",
    "LONG_MAX",
    "LONG_MIN",
    "MISSING",
    "Kind",
    "Missing",
    "Value",
    "all_of",
    "any_of",
    "arithmetic",
    "compare",
    "kind_of",
    "negate",
    "negated",
    "plain",
]


class Missing(enum.Enum):
    """The type of MISSING, kept apart from null so that EXISTS can tell them apart."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING

Value: TypeAlias = bool | int | float | str | bytes | datetime | timedelta | UUID | None
Verdict: TypeAlias = bool | None
Comparison: TypeAlias = Callable[[Any, Any], bool]

LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1


class Kind(enum.Enum):
    """The type of a value."""

    BOOL = "bool"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    DATETIME = "datetime"
    TIMESPAN = "timespan"
    UUID = "uuid"
    BINARY = "binary"


_KINDS: Final[dict[type, Kind]] = {
    bool: Kind.BOOL,
    int: Kind.LONG,
    float: Kind.DOUBLE,
    str: Kind.STRING,
    datetime: Kind.DATETIME,
    timedelta: Kind.TIMESPAN,
    UUID: Kind.UUID,
    bytes: Kind.BINARY,
}

COMPARISONS: Final[dict[str, Comparison]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_ORDERED: Final = frozenset({Kind.LONG, Kind.DOUBLE, Kind.STRING, Kind.DATETIME, Kind.TIMESPAN})
_NUMBERS: Final = frozenset({Kind.LONG, Kind.DOUBLE})


def kind_of(value: object) -> Kind | None:
    """The kind of a value; None for null, MISSING and opaque values. Subclasses (AMQP's typed integers) count."""
    kind = _KINDS.get(type(value))
    if kind is None and value is not None and value is not MISSING:
        for base, candidate in _KINDS.items():
            if isinstance(value, base):
                return candidate
    return kind


def plain(value: object) -> Value:
    """A value reduced to the language's own types: subclasses to their base, naive times to UTC, the rest to null."""
    kind = _KINDS.get(type(value)) or kind_of(value)
    if kind is None:
        return None
    if kind is Kind.DATETIME:
        assert isinstance(value, datetime)
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if type(value) in _KINDS:
        return value  # type: ignore[return-value]  # one of the exact types just looked up
    base = next(base for base, candidate in _KINDS.items() if candidate is kind)
    if base is UUID:
        return UUID(int=value.int)  # type: ignore[attr-defined]  # kind_of found a UUID
    if base is timedelta:
        return timedelta() + value  # type: ignore[operator]  # kind_of found a timedelta
    return base(value)  # type: ignore[no-any-return]  # a base is called like the type it is


def compare(operation: str, left: object, right: object) -> Verdict:
    """Compares two values.

    Args:
        operation: one of ``=``, ``<>``, ``<``, ``<=``, ``>``, ``>=``.
        left: any value, null or MISSING.
        right: likewise.

    Returns:
        True or False, or None where a side is unknown or the types do not go together.
    """
    left_kind, right_kind = kind_of(left), kind_of(right)
    if left_kind is None or right_kind is None:
        return None
    if left_kind is not right_kind:
        if left_kind in _NUMBERS and right_kind in _NUMBERS:
            return COMPARISONS[operation](float(left), float(right))  # type: ignore[arg-type]
        return None
    if left_kind not in _ORDERED and operation not in ("=", "<>"):
        return None
    if left_kind is Kind.DATETIME:
        return COMPARISONS[operation](plain(left), plain(right))
    return bool(COMPARISONS[operation](left, right))


def arithmetic(operation: str, left: object, right: object) -> Value:
    """Applies ``+``, ``-``, ``*``, ``/`` or ``%``.

    Returns:
        The result, or None where a side is unknown or the types do not go together.

    Raises:
        FilterError: overflow of a long or of a time, a long divided by zero, or a string that is too long.
    """
    left_kind, right_kind = kind_of(left), kind_of(right)
    if left_kind is None or right_kind is None:
        return None
    a: Any = left
    b: Any = right
    if left_kind is Kind.LONG and right_kind is Kind.LONG:
        return _long_arithmetic(operation, int(a), int(b))
    if left_kind in _NUMBERS and right_kind in _NUMBERS:
        return _double_arithmetic(operation, float(a), float(b))
    if left_kind is Kind.STRING and right_kind is Kind.STRING:
        return _joined(str(a), str(b)) if operation == "+" else None
    try:
        return _time_arithmetic(operation, left_kind, plain(left), right_kind, plain(right))
    except OverflowError:
        raise FilterError(f"{a} {operation} {b} leaves the range of times") from None


# Two properties of the largest size, twice.
_STRING_CHARACTERS = 131_072


def _joined(a: str, b: str) -> str:
    """Two strings as one: an expression that names a long property many times must not take seconds."""
    if len(a) + len(b) > _STRING_CHARACTERS:
        raise FilterError(f"a string of {len(a) + len(b)} characters; the limit is {_STRING_CHARACTERS}")
    return a + b


def negate(value: object) -> Value:
    """Unary minus, for numbers and timespans."""
    kind = kind_of(value)
    operand: Any = value
    if kind is Kind.LONG:
        return _in_range(-int(operand), "-", 0, int(operand))
    return -operand if kind in (Kind.DOUBLE, Kind.TIMESPAN) else None


def _long_arithmetic(operation: str, a: int, b: int) -> int:
    if operation == "+":
        return _in_range(a + b, operation, a, b)
    if operation == "-":
        return _in_range(a - b, operation, a, b)
    if operation == "*":
        return _in_range(a * b, operation, a, b)
    if b == 0:
        raise FilterError(f"{a} {operation} 0 divides by zero")
    # Division truncates toward zero and the remainder has the sign of the dividend, where Python's operators floor.
    quotient = abs(a) // abs(b) if (a < 0) == (b < 0) else -(abs(a) // abs(b))
    if operation == "/":
        return _in_range(quotient, operation, a, b)
    return a - b * quotient


def _in_range(result: int, operation: str, a: int, b: int) -> int:
    if LONG_MIN <= result <= LONG_MAX:
        return result
    raise FilterError(f"{a} {operation} {b} leaves the 64 bits of a long")


def _double_arithmetic(operation: str, a: float, b: float) -> float:
    if operation == "+":
        return a + b
    if operation == "-":
        return a - b
    if operation == "*":
        return a * b
    if operation == "/":
        if b != 0.0:
            return a / b
        return math.nan if a == 0.0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return math.nan if b == 0.0 or math.isinf(a) else math.fmod(a, b)


def _time_arithmetic(operation: str, left_kind: Kind, a: Any, right_kind: Kind, b: Any) -> Value:
    if operation == "-" and left_kind is Kind.DATETIME and right_kind is Kind.DATETIME:
        return a - b  # type: ignore[no-any-return]
    if operation in ("+", "-") and left_kind in (Kind.DATETIME, Kind.TIMESPAN) and right_kind is Kind.TIMESPAN:
        return a + b if operation == "+" else a - b  # type: ignore[no-any-return]
    if operation == "+" and left_kind is Kind.TIMESPAN and right_kind is Kind.DATETIME:
        return a + b  # type: ignore[no-any-return]
    return None


def negated(verdict: Verdict) -> Verdict:
    """NOT: unknown stays unknown."""
    return None if verdict is None else not verdict


def all_of(left: Verdict, right: Verdict) -> Verdict:
    """AND: false wins over unknown."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def any_of(left: Verdict, right: Verdict) -> Verdict:
    """OR: true wins over unknown."""
    if left is True or right is True:
        return True
    return None if left is None or right is None else False
