"""Reconciliation: what entered a source against what stands at the targets.

What it is: the pure comparison by message identity (origin namespace, sequence number there) that `verify` and the demo
print: lost, duplicated, out of order, expired, dead-lettered, dropped by detection, still waiting. What it is not: the reading of namespaces
(`isthmus.replication.audit`); and it never looks at a route's own counters.

Invariants:
    I1. Every identity that entered a member is, for each other member, exactly one of: arrived, waiting, expired,
        dead-lettered, dropped, lost.
    I2. A second arrival of an identity counts as duplicated, also at its own origin, where it is a copy that came back.
    I3. Order is judged per origin, over first arrivals only: one is out of order if a later one of the same origin stands
        before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Comparison", "Holding", "Reconciliation", "Undelivered", "compare", "reconcile"]

SAMPLE_LIMIT = 20
"""How many sequence numbers of each kind a comparison names."""


@dataclass(slots=True)
class Holding:
    """What stands at one member, in that member's order.

    Attributes:
        entered: sequence numbers, at this member, of messages that publishers sent to it.
        arrived: origin's alias → sequence numbers there, in the order in which they stand at this member. The member's
            own alias is among them where its own messages stand in the entity that was read.
    """

    entered: Sequence[int] = ()
    arrived: dict[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Undelivered:
    """What a route has not delivered, as sequence numbers at its origin.

    Attributes:
        waiting: still in the route's source.
        expired: in its dead-letter queue because the message's life ended, or nowhere after its life ended.
        dead_lettered: in its dead-letter queue for any other reason.
        dropped: dropped by the target's duplicate detection, which holds an equal (see `detection`).
    """

    waiting: set[int] = field(default_factory=set)
    expired: set[int] = field(default_factory=set)
    dead_lettered: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One origin's messages at one member.

    Attributes:
        origin: alias of the namespace that they entered.
        member: alias of the namespace where they should stand.
        entered: how many there are to find.
        arrived: how many of them stand at the member.
        waiting: how many the route still has before it.
        expired: how many ended their life on the way.
        dead_lettered: how many the route set aside.
        dropped: how many the member's duplicate detection dropped for an equal that stands there.
        lost: how many are nowhere.
        duplicated: how many stand there more than once, counted by the surplus.
        out_of_order: how many stand behind a later one of the same origin.
        unknown: arrivals that did not enter as far as the reading of the origin shows, e.g. because its own copy has been
            consumed since.
        samples: sequence numbers at the origin of the first few, by kind.
    """

    origin: str
    member: str
    entered: int
    arrived: int
    waiting: int
    expired: int
    dead_lettered: int
    dropped: int
    lost: int
    duplicated: int
    out_of_order: int
    unknown: int
    samples: Mapping[str, Sequence[int]]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain values."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "samples"} | {
            "samples": {kind: list(numbers) for kind, numbers in self.samples.items()}
        }


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """All comparisons of a task.

    Attributes:
        task: the task's name.
        comparisons: one for each origin and member.
        ordered: whether the task promises order; else what is out of order is counted, and no fault.
    """

    task: str
    comparisons: tuple[Comparison, ...]
    ordered: bool = True

    def total(self, kind: str) -> int:
        """The sum of one count over all comparisons between different members, duplicates also at the origin."""
        own = kind in ("duplicated", "out_of_order")
        return sum(getattr(each, kind) for each in self.comparisons if own or each.origin != each.member)

    @property
    def clean(self) -> bool:
        """Whether nothing is lost, doubled or, where order is promised, out of order; what waits, has expired or was dropped
        as an equal does not count against it.
        """
        kinds = ("lost", "duplicated", "out_of_order") if self.ordered else ("lost", "duplicated")
        return not any(self.total(kind) for kind in kinds)

    def to_dict(self) -> dict[str, Any]:
        """The reconciliation as plain values."""
        kinds = (
            "arrived",
            "waiting",
            "expired",
            "dead_lettered",
            "dropped",
            "lost",
            "duplicated",
            "out_of_order",
            "unknown",
        )
        return {
            "task": self.task,
            "clean": self.clean,
            "entered": sum(each.entered for each in self.comparisons if each.origin == each.member),
            **{kind: self.total(kind) for kind in kinds},
            "comparisons": [each.to_dict() for each in self.comparisons],
        }


def reconcile(
    task: str,
    holdings: Mapping[str, Holding],
    undelivered: Mapping[tuple[str, str], Undelivered] | None = None,
    *,
    ordered: bool = True,
) -> Reconciliation:
    """Compare every origin with every member.

    Args:
        task: the task's name.
        holdings: by member's alias.
        undelivered: by (origin, member), what the routes still hold.
        ordered: whether the task promises order.
    """
    rest = undelivered or {}
    return Reconciliation(
        task,
        tuple(
            compare(
                origin,
                member,
                holding.entered,
                at.arrived.get(origin, ()),
                rest.get((origin, member), Undelivered()),
            )
            for origin, holding in holdings.items()
            for member, at in holdings.items()
        ),
        ordered,
    )


def compare(
    origin: str, member: str, entered: Sequence[int], arrived: Iterable[int], undelivered: Undelivered | None = None
) -> Comparison:
    """Compare what entered one origin with what stands at one member.

    Args:
        origin: alias of the origin.
        member: alias of the member.
        entered: sequence numbers at the origin.
        arrived: sequence numbers at the origin of what stands at the member, in the member's order.
        undelivered: what the route between them still holds.
    """
    rest = undelivered or Undelivered()
    seen: set[int] = set()
    duplicated: list[int] = []
    disordered: list[int] = []
    highest = -1
    for number in arrived:
        if number in seen:
            duplicated.append(number)
            continue
        seen.add(number)
        if number < highest:
            disordered.append(number)
        else:
            highest = number
    expected = set(entered)
    missing = expected - seen
    waiting = missing & rest.waiting
    missing -= waiting
    expired = missing & rest.expired
    missing -= expired
    dead_lettered = missing & rest.dead_lettered
    missing -= dead_lettered
    dropped = missing & rest.dropped
    missing -= dropped
    unknown = seen - expected
    named = {
        "lost": sorted(missing),
        "duplicated": duplicated,
        "out_of_order": disordered,
        "dead_lettered": sorted(dead_lettered),
        "dropped": sorted(dropped),
        "unknown": sorted(unknown),
    }
    return Comparison(
        origin=origin,
        member=member,
        entered=len(expected),
        arrived=len(seen & expected),
        waiting=len(waiting),
        expired=len(expired),
        dead_lettered=len(dead_lettered),
        dropped=len(dropped),
        lost=len(missing),
        duplicated=len(duplicated),
        out_of_order=len(disordered),
        unknown=len(unknown),
        samples={kind: tuple(numbers[:SAMPLE_LIMIT]) for kind, numbers in named.items() if numbers},
    )
