"""The conversion of a client's `statistics()` to metrics.

What it is: a pure walk over the dataclasses and mappings of statistics. What it is not: the metric types of a library (`metric`).

Invariants:
    I1. Only a few known texts become metrics: others, such as errors, are unbounded and may contain addresses.
    I2. Names are `isthmus_client_CLASS_FIELD`; a counter never falls while its object lives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum

__all__ = ["Sample", "class_name", "samples"]

# Current values; all other numbers are counts since the object was created.
_GAUGES = frozenset({"waiting", "held_by_others", "unsettled", "circuits_failures"})
# Texts with a few values.
_STATES = frozenset({"active", "reads", "state"})
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SIDES = frozenset({"primary", "secondary"})


@dataclass(frozen=True, slots=True)
class Sample:
    """One number.

    Attributes:
        name: without the prefix of the class.
        labels: `side` or `value`, where there is one.
        value: the number.
        is_counter: whether it only grows.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    is_counter: bool


def class_name(client: object) -> str:
    """The part of a metric's name for a class; the classes for threads and for asyncio have the same."""
    return _WORD.sub("_", type(client).__name__.removeprefix("Async")).lower()


def samples(found: object, path: str = "", side: str = "") -> Iterator[Sample]:
    """The numbers in what `statistics()` returned."""
    labels = (("side", side),) if side else ()
    if is_dataclass(found) and not isinstance(found, type):
        for each in fields(found):
            yield from samples(getattr(found, each.name), f"{path}_{each.name}" if path else each.name, side)
    elif isinstance(found, Mapping):
        for key, value in found.items():
            if key in _SIDES:
                yield from samples(value, path, key)
            else:
                yield from samples(value, f"{path}_{key}" if path else str(key), side)
    elif isinstance(found, bool):
        yield Sample(path, labels, float(found), is_counter=False)
    elif isinstance(found, int | float):
        if path.endswith("oldest_ms"):
            name = path.removesuffix("ms") + "timestamp_seconds"
            yield Sample(name, labels, found / 1000, is_counter=False)
        else:
            yield Sample(path, labels, float(found), is_counter=path not in _GAUGES)
    elif path in _STATES and isinstance(found, str | Enum):
        value = str(found.value if isinstance(found, Enum) else found)
        yield Sample(path, (*labels, ("value", value)), 1.0, is_counter=False)
