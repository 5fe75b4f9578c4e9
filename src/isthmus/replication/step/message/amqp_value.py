"""Conversion between values of AMQP and of the rules language.

Specification: OASIS AMQP 1.0 part 1, section 1.6; docs/reference/rules.md.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from isthmus.amqp.types import Described, Symbol, Timestamp
from isthmus.rules import MISSING, Missing, Value

__all__ = ["amqp_value", "rule_text", "rule_value"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESPAN = Symbol("com.microsoft:timespan")
_TICKS_PER_MICROSECOND = 10


def rule_value(value: Any) -> Any:
    """A decoded value for rules."""
    if isinstance(value, Timestamp):
        try:
            return _EPOCH + timedelta(milliseconds=value)
        except OverflowError:
            return datetime.max.replace(tzinfo=UTC) if value > 0 else datetime.min.replace(tzinfo=UTC)
    if isinstance(value, Described) and value.descriptor == _TIMESPAN and isinstance(value.value, int):
        return timedelta(microseconds=value.value // _TICKS_PER_MICROSECOND)
    return value


def amqp_value(value: Any) -> Any:
    """A value of the rules language for AMQP; a timespan as the .NET SDK sends it, in ticks of 100 ns."""
    if isinstance(value, datetime):
        return Timestamp((value - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, timedelta):
        return Described(_TIMESPAN, value // timedelta(microseconds=1) * _TICKS_PER_MICROSECOND)
    return value


def rule_text(value: Any) -> Value | Missing:
    """A field of the properties section as text, in the form of clients."""
    if value is None:
        return MISSING
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, str | UUID | int) else MISSING
