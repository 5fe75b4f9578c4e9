"""ISO 8601 durations as Service Bus writes them.

What it is: text to milliseconds and back, with .NET's greatest time span for "never ends". What it is not: a
parser of calendar arithmetic; a year counts 365 days and a month 30, as .NET's XmlConvert takes them.
Spec: ISO 8601, W3C XML Schema ``xs:duration``.
"""

from __future__ import annotations

import re

from isthmus.errors import InvalidArgumentError

__all__ = ["INFINITE_TEXT", "format_duration", "parse_duration"]

# TimeSpan.MaxValue is 2**63 - 1 ticks of 100 ns. Clients round its fraction in their own ways, so that everything from
# 10,675,199 days on means the same.
INFINITE_TEXT = "P10675199DT2H48M5.4775807S"
_INFINITE_FROM_MS = 10_675_199 * 86_400_000

_DURATION = re.compile(
    r"P(?!$)(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)D)?(?:T(?=[\d.])(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d*)?|\.\d+)S)?)?", re.ASCII
)
_UNITS_MS = (365 * 86_400_000, 30 * 86_400_000, 86_400_000, 3_600_000, 60_000)


def parse_duration(text: str, *, infinite_ms: int) -> int:
    """Milliseconds of a duration such as ``PT1M30S``.

    Args:
        text: the duration; a fraction of a millisecond is rounded up, so that a positive duration stays positive.
        infinite_ms: what a duration that never ends becomes.

    Raises:
        InvalidArgumentError: the text is no duration or is negative.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or len(text) > 64:
        raise InvalidArgumentError(f"'{text[:64]}' is not a duration; write it as ISO 8601, e.g. PT1M30S.")
    *counts, seconds = match.groups()
    total_ms = sum(int(count or 0) * unit for count, unit in zip(counts, _UNITS_MS, strict=True))
    whole, _, fraction = (seconds or "0").partition(".")
    total_ms += int(whole or 0) * 1000 + -(-int(f"{fraction:0<9.9}") // 1_000_000)
    return infinite_ms if total_ms >= _INFINITE_FROM_MS else total_ms


def format_duration(duration_ms: int) -> str:
    """The shortest ISO 8601 text of a duration in milliseconds."""
    if duration_ms >= _INFINITE_FROM_MS:
        return INFINITE_TEXT
    days, rest = divmod(duration_ms, 86_400_000)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    date = f"{days}D" if days else ""
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if rest or not (date or time):
        time += f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "S"
    return f"P{date}" + (f"T{time}" if time else "")
