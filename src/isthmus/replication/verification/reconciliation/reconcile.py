"""Reconciliation: the comparison of what entered a source with what is at the targets.

What it is: the pure comparison by message identity (origin namespace, sequence number there) that `verify` and the demo print.
`isthmus.replication.verification.reconciliation.count` says what each count means and whether it is a fault. What it is not: the reading of
namespaces (`isthmus.replication.verification.audit.audit`); and it never looks at a route's own counters.

Invariants:
    I1. Every identity that entered a member and is there is, for each other member, exactly one of: arrived, waiting, before its route,
        expired, dead-lettered, diverted, dropped, copy expired, resent, delivered, consumed, ended, lost.
    I2. A second arrival of an identity counts as duplicated, also at its own origin, where it is a copy that came back.
    I3. Order is judged per origin, over first arrivals only: one is out of order if a later one of the same origin is
        before it. There is no order between partitions, neither those of the origin nor those of the member.
    I4. A copy whose content differs from its original's has not arrived: it counts as unequal, and its original as missing.
    I5. What is in a route's dead-letter queue counts whether or not its original still exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

from isthmus.connectors.servicebus.head import FRAGMENT_BITS
from isthmus.replication.verification.hour.hour import HourCounts, HourOf, counted, summed
from isthmus.replication.verification.reconciliation.count import COUNTS, Verdict, verdict_of
from isthmus.replication.verification.reconciliation.reading import Reading

__all__ = ["Comparison", "Holding", "Reconciliation", "Undelivered", "compare", "reconcile"]

SAMPLE_LIMIT = 20
"""How many sequence numbers of each kind a comparison names."""

# Counted only at the origin.
_AT_ORIGIN = ("filtered", "earlier", "held_back", "returned", "stopped", "incomparable")
# Also a fault at the origin itself.
_ALSO_AT_ORIGIN = ("duplicated", "out_of_order", "unequal", "forged")


@dataclass(slots=True)
class Holding:
    """What is at one member, in that member's order.

    Attributes:
        entered: sequence numbers, at this member, of messages that publishers sent to it and that the task replicates.
        arrived: origin's alias → sequence numbers there, in the order in which they are at this member. The member's
            own alias is included where its own messages are in the entity that was read.
        lanes: origin's alias → in which partition of this member each of `arrived` is; absent: all in one.
        late: origin's alias → those of `arrived` that an operator sent later, to which order does not apply.
        unequal: origin's alias → sequence numbers there of copies with other content.
        forged: origin's alias → sequence numbers there at which nothing entered.
        unknown: origin's alias → sequence numbers there of copies whose original is no longer there.
        kept: count's name → sequence numbers, at this member, of messages that the task does not replicate.
    """

    entered: Sequence[int] = ()
    arrived: dict[str, list[int]] = field(default_factory=dict)
    lanes: dict[str, list[int]] = field(default_factory=dict)
    late: dict[str, set[int]] = field(default_factory=dict)
    unequal: dict[str, list[int]] = field(default_factory=dict)
    forged: dict[str, list[int]] = field(default_factory=dict)
    unknown: dict[str, list[int]] = field(default_factory=dict)
    kept: dict[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Undelivered:
    """What a route has not delivered, as sequence numbers at its origin.

    Attributes:
        waiting: still in the route's source.
        before_route: entered before the route's source was created.
        expired: they expired in the route's source, and are there or in its dead-letter queue.
        dead_lettered: in its dead-letter queue for any other reason.
        diverted: sent to the entity of a step's `divert_to`.
        dropped: dropped by duplicate detection, of the target (see `detection`) or of the entity of `divert_to`, which contains an equal message.
        resent: dead letters that were sent again and entered again.
        copy_expired: the time to live that the task gives copies has passed.
        consumed: may have been taken out of the entity that was read at the target, or of the origin.
        delivered: those of them that the target has acknowledged, according to a ledger.
        ended: found nowhere after they expired.
        elsewhere: meant for another target.
    """

    waiting: set[int] = field(default_factory=set)
    before_route: set[int] = field(default_factory=set)
    expired: set[int] = field(default_factory=set)
    dead_lettered: set[int] = field(default_factory=set)
    diverted: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    copy_expired: set[int] = field(default_factory=set)
    resent: set[int] = field(default_factory=set)
    consumed: set[int] = field(default_factory=set)
    delivered: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One origin's messages at one member.

    Attributes:
        origin: alias of the namespace that they entered.
        member: alias of the namespace where they should be.
        counts: of each kind of `isthmus.replication.verification.reconciliation.count`.
        samples: sequence numbers at the origin of the first few, by kind.
        hours: the counts by the hour in which the messages were enqueued at the origin; None where they were not requested.
    """

    origin: str
    member: str
    counts: Mapping[str, int]
    samples: Mapping[str, Sequence[int]]
    hours: tuple[HourCounts, ...] | None = None

    def __getattr__(self, name: str) -> int:
        """The count of that name."""
        if name in self.__slots__ or name.startswith("_") or name not in self.counts:
            raise AttributeError(name)
        return self.counts[name]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain values."""
        return {
            "origin": self.origin,
            "member": self.member,
            **self.counts,
            "samples": {kind: list(numbers) for kind, numbers in self.samples.items()},
            **({} if self.hours is None else {"hours": [each.to_dict() for each in self.hours]}),
        }


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """All comparisons of a task.

    Attributes:
        task: the task's name.
        comparisons: one for each origin and member.
        ordered: whether the task promises order; else what is out of order is counted but is not a fault.
        readings: what was read of each member; empty where the caller does not say.
        unread: what could not be read or is incomplete, and why.
        by_hour: whether the comparisons have hours.
    """

    task: str
    comparisons: tuple[Comparison, ...]
    ordered: bool = True
    readings: tuple[Reading, ...] = ()
    unread: tuple[str, ...] = ()
    by_hour: bool = False

    def total(self, kind: str) -> int:
        """The sum of one count over all comparisons between different members; some kinds also count at the origin."""
        return sum(each.counts[kind] for each in self._summands(kind))

    def _summands(self, kind: str) -> Iterator[Comparison]:
        at_origin = kind == "entered" or kind in _AT_ORIGIN
        own = at_origin or kind in _ALSO_AT_ORIGIN
        for each in self.comparisons:
            if own if each.origin == each.member else not at_origin:
                yield each

    @property
    def hours(self) -> tuple[HourCounts, ...]:
        """The totals by the hour in which messages were enqueued at their origin; empty where they were not requested."""
        return summed(
            HourCounts(hour.hour, {count.name: hour.counts[count.name]})
            for count in COUNTS
            for each in self._summands(count.name)
            for hour in each.hours or ()
        )

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the reading is incomplete; empty where it is complete."""
        found = [doubt for reading in self.readings if (doubt := reading.doubt)]
        if self.readings and not any(reading.messages for reading in self.readings):
            found.append("the subscriptions that were read are empty: there is nothing to compare")
        return (*found, *self.unread)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the counts that are not zero, and of the doubts."""
        kinds = [count.name for count in COUNTS if count.name != "out_of_order" or self.ordered]
        worst = max((verdict_of(kind) for kind in kinds if self.total(kind)), default=Verdict.CLEAN)
        return max(worst, Verdict.UNCLEAR) if self.doubts else worst

    @property
    def clean(self) -> bool:
        """Whether everything is accounted for without a fault."""
        return self.verdict is Verdict.CLEAN

    def to_dict(self) -> dict[str, Any]:
        """The reconciliation as plain values."""
        return {
            "task": self.task,
            "clean": self.clean,
            "verdict": self.verdict.name.lower(),
            **{count.name: self.total(count.name) for count in COUNTS},
            "doubts": list(self.doubts),
            "read": [reading.to_dict() for reading in self.readings],
            "comparisons": [each.to_dict() for each in self.comparisons],
            **({"hours": [each.to_dict() for each in self.hours]} if self.by_hour else {}),
        }


def reconcile(
    task: str,
    holdings: Mapping[str, Holding],
    undelivered: Mapping[tuple[str, str], Undelivered] | None = None,
    *,
    ordered: bool = True,
    readings: Sequence[Reading] = (),
    pairs: Collection[tuple[str, str]] | None = None,
    unread: Sequence[str] = (),
    hours: Callable[[str], HourOf] | None = None,
) -> Reconciliation:
    """Compare every origin with every member.

    Args:
        task: the task's name.
        holdings: by member's alias.
        undelivered: by (origin, member), what the routes have not delivered.
        ordered: whether the task promises order.
        readings: what was read of each member.
        pairs: only these pairs of origin and member; None: all.
        unread: what could not be read, and why.
        hours: by an origin's alias, when its messages entered; None: not requested.
    """
    rest = undelivered or {}
    comparisons = []
    for origin, holding in holdings.items():
        hour_of = None if hours is None else hours(origin)
        for member, at in holdings.items():
            if pairs is None or (origin, member) in pairs:
                compared = compare(
                    origin,
                    member,
                    holding.entered,
                    at.arrived.get(origin, ()),
                    rest.get((origin, member), Undelivered()),
                    at.lanes.get(origin, ()),
                    hour_of,
                    at.late.get(origin, ()),
                )
                comparisons.append(_completed(compared, holding, at, hour_of))
    return Reconciliation(task, tuple(comparisons), ordered, tuple(readings), tuple(unread), by_hour=hours is not None)


def _completed(comparison: Comparison, holding: Holding, at: Holding, hour_of: HourOf | None = None) -> Comparison:
    """The comparison with the counts that come from the readings instead of the compared identities."""
    found = {kind: getattr(at, kind).get(comparison.origin, ()) for kind in ("unequal", "forged", "unknown")}
    if comparison.origin == comparison.member:
        found |= {kind: holding.kept.get(kind, ()) for kind in _AT_ORIGIN}
    counts = {kind: len(numbers) for kind, numbers in found.items()}
    samples = {kind: tuple(numbers[:SAMPLE_LIMIT]) for kind, numbers in found.items() if numbers}
    kept = {kind: numbers for kind, numbers in comparison.samples.items() if kind not in found}
    hours = None
    if hour_of is not None:
        others = [
            HourCounts(each.hour, {kind: count for kind, count in each.counts.items() if kind not in found})
            for each in comparison.hours or ()
        ]
        hours = summed((*others, *counted(found, hour_of)))
    return Comparison(comparison.origin, comparison.member, {**comparison.counts, **counts}, {**kept, **samples}, hours)


def compare(
    origin: str,
    member: str,
    entered: Sequence[int],
    arrived: Iterable[int],
    undelivered: Undelivered | None = None,
    lanes: Sequence[int] = (),
    hour_of: HourOf | None = None,
    late: Collection[int] = (),
) -> Comparison:
    """Compare what entered one origin with what is at one member.

    Args:
        origin: alias of the origin.
        member: alias of the member.
        entered: sequence numbers at the origin.
        arrived: sequence numbers at the origin of what is at the member, in the member's order.
        undelivered: what the route between them has not delivered.
        lanes: in which partition of the member each of `arrived` is; none: all in one.
        hour_of: when the messages entered; None: not requested.
        late: those of `arrived` to which order does not apply.
    """
    rest = undelivered or Undelivered()
    seen: set[int] = set()
    duplicated: list[int] = []
    disordered: list[int] = []
    highest: dict[tuple[int, int], int] = {}
    for number, lane in zip(arrived, chain(lanes, repeat(0)), strict=False):
        if number in seen:
            duplicated.append(number)
            continue
        seen.add(number)
        if number in late:
            continue
        key = number >> FRAGMENT_BITS, lane
        if number < highest.get(key, -1):
            disordered.append(number)
        else:
            highest[key] = number
    expected = set(entered) - rest.elsewhere
    # What was set aside counts although its original may have been removed meanwhile.
    found = {"expired": rest.expired - seen, "dead_lettered": rest.dead_lettered - seen - rest.expired}
    missing = expected - seen - found["expired"] - found["dead_lettered"]
    for kind in (
        "waiting",
        "before_route",
        "diverted",
        "dropped",
        "copy_expired",
        "resent",
        "delivered",
        "consumed",
        "ended",
    ):
        found[kind] = missing & getattr(rest, kind)
        missing -= found[kind]
    found["lost"] = missing
    found["unknown"] = seen - expected
    named: dict[str, Sequence[int]] = {kind: sorted(numbers) for kind, numbers in found.items()}
    named |= {"duplicated": duplicated, "out_of_order": disordered}
    counts = dict.fromkeys((count.name for count in COUNTS), 0)
    counts |= {kind: len(numbers) for kind, numbers in named.items()}
    counts |= {"entered": len(expected), "arrived": len(seen & expected)}
    hours = None
    if hour_of is not None:
        hours = counted({**named, "entered": expected, "arrived": seen & expected}, hour_of)
    samples = {kind: tuple(numbers[:SAMPLE_LIMIT]) for kind, numbers in named.items() if numbers and kind != "waiting"}
    return Comparison(origin, member, counts, samples, hours)
