"""Durations as people write them.

What it is: `10m`, `30s`, `1h30m`, `500ms` and ISO 8601 (`PT10M`) to milliseconds and back. What it is not: the
notation of the administration API, which its connector converts.
"""

from __future__ import annotations

import re

__all__ = ["INFINITE_MS", "format_ms", "parse_ms"]

INFINITE_MS = 922_337_203_685_477
"""The infinite duration of Service Bus: TimeSpan.MaxValue, P10675199DT2H48M5.4775807S, in whole milliseconds."""

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PART = re.compile(r"(\d{1,12})(ms|[dhms])")
_WHOLE = re.compile(r"(?:\d{1,12}(?:ms|[dhms]))+")
_ISO = re.compile(r"P(?:(\d{1,8})D)?(?:T(?:(\d{1,8})H)?(?:(\d{1,8})M)?(?:(\d{1,8})(?:\.(\d{1,7}))?S)?)?")


def parse_ms(text: str) -> int:
    """Milliseconds of a duration.

    Raises:
        ValueError: the text is no duration.
    """
    compact = text.strip().replace(" ", "")
    if _WHOLE.fullmatch(compact):
        total_ms = sum(int(count) * _UNITS_MS[unit] for count, unit in _PART.findall(compact))
    elif (match := _ISO.fullmatch(compact)) and any(match.groups()):
        days, hours, minutes, seconds, fraction = match.groups()
        total_ms = sum(
            int(count or 0) * _UNITS_MS[unit]
            for count, unit in zip((days, hours, minutes, seconds), "dhms", strict=True)
        )
        total_ms += int((fraction or "0").ljust(3, "0")[:3])
    else:
        raise ValueError("not a duration")
    return min(total_ms, INFINITE_MS)


def format_ms(duration_ms: int) -> str:
    """The shortest notation of a duration, e.g. ``1h30m``; ``infinite`` for Service Bus's largest."""
    # The Python SDK rounds the largest TimeSpan; any duration over a century counts as infinite.
    if duration_ms >= 36_500 * _UNITS_MS["d"]:
        return "infinite"
    rest_ms, text = duration_ms, ""
    for unit, size_ms in _UNITS_MS.items():
        count, rest_ms = divmod(rest_ms, size_ms)
        text += f"{count}{unit}" if count else ""
    return text or "0s"
