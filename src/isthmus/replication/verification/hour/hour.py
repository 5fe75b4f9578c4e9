"""When messages entered their origins, by the hour.

What it is: for an origin's sequence numbers, the hours (UTC) in which they were enqueued there, and counts by these hours, for `isthmus
verify --by hour`. What it is not: any reading (`isthmus.replication.verification.audit.audit`), or what is counted
(`isthmus.replication.verification.reconciliation.reconcile`).

Invariants:
    I1. A number whose time is reported has the hour of that time: of the first one, where several are reported.
    I2. A number whose time is not reported has the hour of its neighbours, the next lower and the next higher number of its partition whose times
        are reported, where both have the same hour; else its hour is not known.
    I3. The counts of all hours, including the messages without a known hour, add up to the counts without hours.
    I4. Memory grows by 12 bytes for each reported time, and by 20 for each change of the hour; by 80 more while times are sorted, where
        numbers do not increase.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

from isthmus.connectors.servicebus.head import FRAGMENT_BITS
from isthmus.replication.verification.reconciliation.count import COUNTS

__all__ = ["UNKNOWN", "HourCounts", "HourOf", "Times", "counted", "hours_of", "summed"]

HOUR_MS = 3_600_000
UNKNOWN = -1
"""The value that marks the hour of a message whose time is not known."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The end of the year 9999, the last one that a `datetime` can express.
_END_MS = 253_402_300_800_000

HourOf = Callable[[int], int]
"""By sequence number at the origin, the hour since the epoch in which it was enqueued there; or `UNKNOWN`."""


class HourCounts(NamedTuple):
    """What is counted of the messages that were enqueued at their origin in one hour.

    Attributes:
        hour: its begin, UTC; None: those whose time is not known.
        counts: of each kind of `isthmus.replication.verification.reconciliation.count`.
    """

    hour: datetime | None
    counts: Mapping[str, int]

    @property
    def name(self) -> str:
        """The begin of the hour as text in ISO 8601; `unknown` where there is none."""
        return "unknown" if self.hour is None else f"{self.hour:%Y-%m-%dT%H:%M:%SZ}"

    def to_dict(self) -> dict[str, Any]:
        """The counts as plain values."""
        return {"hour": self.name, **self.counts}


class Times:
    """Reported times of one origin's messages, the most trusted first."""

    __slots__ = ("hours", "numbers")

    def __init__(self) -> None:
        self.numbers: array[int] = array("q")
        self.hours: array[int] = array("i")

    def add(self, number: int, enqueued_ms: int) -> None:
        """A message was enqueued at its origin at this wall time; no time, or one that no calendar has, is left out."""
        if self.numbers and self.numbers[-1] == number:
            return  # a message that waits for several targets is read for each
        if number >= 0 and 0 < enqueued_ms < _END_MS:
            self.numbers.append(number)
            self.hours.append(enqueued_ms // HOUR_MS)

    def extend(self, other: Times) -> None:
        """Adds the times of another one."""
        self.numbers.extend(other.numbers)
        self.hours.extend(other.hours)


def hours_of(times: Times) -> HourOf:
    """The hours of an origin's messages, by their sequence numbers there."""
    numbers, hours = times.numbers, times.hours
    order: Iterable[int] = range(len(numbers))
    if any(after <= before for before, after in pairwise(numbers)):
        order = sorted(order, key=numbers.__getitem__)  # the sort is stable: among equal numbers the first stays first
    first: array[int] = array("q")
    last: array[int] = array("q")
    hour: array[int] = array("i")
    for at in order:
        number = numbers[at]
        if last and number == last[-1]:
            continue
        if last and hours[at] == hour[-1] and number >> FRAGMENT_BITS == last[-1] >> FRAGMENT_BITS:
            last[-1] = number
            continue
        first.append(number)
        last.append(number)
        hour.append(hours[at])

    def hour_of(number: int) -> int:
        at = bisect_right(first, number) - 1
        return hour[at] if at >= 0 and number <= last[at] else UNKNOWN

    return hour_of


def counted(numbers: Mapping[str, Iterable[int]], hour_of: HourOf) -> tuple[HourCounts, ...]:
    """Counts by hour.

    Args:
        numbers: by the count's name, sequence numbers at the origin; one that is there twice counts twice.
        hour_of: their hours.
    """
    found: dict[int, dict[str, int]] = {}
    for kind, each in numbers.items():
        for hour, count in Counter(map(hour_of, each)).items():
            found.setdefault(hour, {})[kind] = count
    return summed(
        HourCounts(None if hour == UNKNOWN else _EPOCH + timedelta(hours=hour), counts)
        for hour, counts in found.items()
    )


def summed(hours: Iterable[HourCounts]) -> tuple[HourCounts, ...]:
    """One entry for each hour in which anything was counted, in order; what has no known hour comes last."""
    totals: dict[datetime | None, dict[str, int]] = {}
    for each in hours:
        total = totals.setdefault(each.hour, dict.fromkeys((count.name for count in COUNTS), 0))
        for kind, count in each.counts.items():
            total[kind] += count
    known = sorted(hour for hour in totals if hour is not None)
    return tuple(
        HourCounts(hour, totals[hour])
        for hour in (*known, *([None] if None in totals else []))
        if any(totals[hour].values())
    )
