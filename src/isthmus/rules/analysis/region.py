"""Sample values that represent all others, as far as comparisons with given constants can distinguish them.

Between two neighbouring constants every value compares alike, so one value of each gap, the constants themselves, and one
value of every type that is compared with none of them are enough to see every verdict.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from isthmus.rules.value import LONG_MAX, LONG_MIN, Kind, Value, kind_of

__all__ = ["regions_of"]

_TICK = timedelta(microseconds=1)


def regions_of(constants: Sequence[Value], kind: Kind | None = None) -> list[Value]:
    """One value of every region that constants cut the values into.

    Args:
        constants: what a property is compared with.
        kind: the only kind that the property can have; None for any.
    """
    found: list[Value] = [True, False]
    found += _texts([one for one in constants if isinstance(one, str)])
    found += _numbers([one for one in constants if isinstance(one, int | float) and not isinstance(one, bool)])
    for constant in constants:
        if isinstance(constant, datetime | timedelta):
            found += _times(constant)
        elif kind_of(constant) in (Kind.UUID, Kind.BINARY):
            found.append(constant)
    seen: dict[tuple[type, Value], Value] = {}
    for value in found:
        if kind in (None, kind_of(value)):
            seen.setdefault((type(value), value), value)
    return list(seen.values()) or [_sample(kind)]


def _sample(kind: Kind | None) -> Value:
    """A value of a kind that no constant has."""
    if kind is Kind.DATETIME:
        return datetime.min.replace(tzinfo=UTC)
    return timedelta() if kind is Kind.TIMESPAN else b""


def _texts(constants: list[str]) -> Iterator[str]:
    yield ""
    for text in sorted(set(constants)):
        yield from (text, text + "\0")


def _numbers(constants: list[int | float]) -> Iterator[int | float]:
    yield 0
    ordered = sorted({one for one in constants if not math.isnan(one)})
    for number in ordered:
        yield number
        if isinstance(number, int):
            yield from (near for near in (number - 1, number + 1) if LONG_MIN <= near <= LONG_MAX)
        else:
            yield from (math.nextafter(number, -math.inf), math.nextafter(number, math.inf))
    for low, high in itertools.pairwise(ordered):
        yield float(low) + (float(high) - float(low)) / 2
    if constants:
        yield from (-math.inf, math.inf, math.nan)


def _times(constant: datetime | timedelta) -> Iterator[Value]:
    yield constant
    for step in (-_TICK, _TICK):
        try:
            yield constant + step
        except OverflowError:
            continue
