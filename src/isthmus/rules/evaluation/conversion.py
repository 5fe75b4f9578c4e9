"""Conversions that SET makes: to a system property's type, and between a long and a double.

What it is not: part of any comparison or arithmetic; there nothing but C#'s promotions happens (see `value`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from isthmus.rules.error import FilterError
from isthmus.rules.value import LONG_MAX, LONG_MIN, Kind, Value, kind_of

__all__ = ["converted", "like_existing", "parse_datetime", "parse_timespan", "show_datetime", "show_timespan"]

# .NET's forms: [-][d.]hh:mm[:ss[.fffffff]], d:hh:mm:ss; a bare number is days.
_TIMESPAN: Final = re.compile(
    r"\s*(?P<sign>-)?(?:(?P<bare>\d{1,8})|(?:(?P<days>\d{1,8})(?:\.|:(?=\d+:\d+:)))?(?P<hours>\d{1,2}):(?P<minutes>\d{1,2})"
    r"(?::(?P<seconds>\d{1,2})(?:\.(?P<fraction>\d{1,7}))?)?)\s*",
    re.ASCII,
)


def like_existing(value: Value, existing: object) -> Value:
    """A number in the type of the number it replaces, if that loses nothing; any other value unchanged."""
    if type(value) is int and kind_of(existing) is Kind.DOUBLE:
        return float(value) if int(float(value)) == value else value
    if type(value) is float and kind_of(existing) is Kind.LONG and value.is_integer():
        return int(value) if LONG_MIN <= value <= LONG_MAX else value
    return value


def converted(value: Value, kind: Kind, name: str) -> Value:
    """A value as the type of the system property `name`.

    Raises:
        FilterError: there is no such conversion, or the text is not of the type's form.
    """
    found = kind_of(value)
    if found is kind:
        return value
    if kind is Kind.STRING and found not in (None, Kind.BINARY):
        return _as_string(value)
    result: Value = None
    if isinstance(value, str):
        if kind is Kind.TIMESPAN:
            result = parse_timespan(value)
        elif kind is Kind.DATETIME:
            result = parse_datetime(value)
    if result is None:
        what = found.value if found else "value"
        raise FilterError(f"sys.{name} takes a {kind.value}; {value!r}, a {what}, is none and does not convert to one")
    return result


def parse_timespan(text: str) -> timedelta | None:
    """Reads .NET's ``[-][d.]hh:mm[:ss[.fffffff]]``, or None if the text is not of that form."""
    found = _TIMESPAN.fullmatch(text)
    if found is None:
        return None
    if found["bare"]:
        span = timedelta(days=int(found["bare"]))
    else:
        hours, minutes, seconds = int(found["hours"]), int(found["minutes"]), int(found["seconds"] or 0)
        if hours > 23 or minutes > 59 or seconds > 59:
            return None
        microseconds = int((found["fraction"] or "0").ljust(7, "0")) // 10
        span = timedelta(int(found["days"] or 0), seconds, microseconds, minutes=minutes, hours=hours)
    return -span if found["sign"] else span


def parse_datetime(text: str) -> datetime | None:
    """Reads ISO 8601, in UTC where it names no zone; None if the text is not of that form."""
    try:
        parsed = datetime.fromisoformat(text.strip())
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError):  # in UTC it may lie beyond the years that there are
        return None


def _as_string(value: Value) -> str:
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, datetime):
        return show_datetime(value)
    if isinstance(value, timedelta):
        return show_timespan(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def show_datetime(value: datetime) -> str:
    """A time as ISO 8601 in UTC, with as many decimals as it needs."""
    utc = value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    return utc.isoformat().replace("+00:00", "Z")


def show_timespan(value: timedelta) -> str:
    """A timespan in .NET's constant format, e.g. ``1.02:03:04.5000000``."""
    sign = "-" if value < timedelta() else ""
    magnitude = abs(value)
    minutes, seconds = divmod(magnitude.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days = f"{magnitude.days}." if magnitude.days else ""
    fraction = f".{magnitude.microseconds * 10:07d}" if magnitude.microseconds else ""
    return f"{sign}{days}{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"
