"""Values of reference data: their look-up text, and their form in JSON."""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from isthmus.message.json_number import JsonNumber

__all__ = ["Reference", "json_value", "text_of"]

Reference = dict[str, tuple[Any, ...]]
"""The columns to add, by the text of the looked-up value."""


def text_of(value: Any) -> str:
    """Numbers and texts compare as texts, so that 5 in JSON finds "5" and 5 in the file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, JsonNumber):
        return value.text
    if isinstance(value, float | Decimal) and math.isfinite(value) and value == int(value):
        return str(int(value))
    return value if isinstance(value, str) else str(value)


def json_value(value: Any) -> Any:
    """A cell as a JSON value; numbers that JSON does not have are null."""
    if isinstance(value, dict):
        return {name: json_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return float(value) if Decimal(repr(float(value))) == value else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
