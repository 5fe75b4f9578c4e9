"""What is at a member, each copy compared with the original that it names.

What it is: of the numbers and digests that were read, which copies arrived, which belong to no message that entered, and which cannot be
classified. Pure. What it is not: the reading (`isthmus.replication.verification.audit.audit`, whose I2 and I5 are decided here), or what is missing
(`isthmus.replication.verification.audit.missing_copy`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from isthmus.connectors.servicebus.head import FRAGMENT_BITS
from isthmus.replication.verification.audit.audited import Arrivals, Audited
from isthmus.replication.verification.audit.passage import DRIFT_MS
from isthmus.replication.verification.reconciliation.reading import Reading
from isthmus.replication.verification.reconciliation.reconcile import Holding, Undelivered

__all__ = ["holding_of", "met_of"]


def holding_of(
    at: Audited,
    audited: Mapping[str, Audited],
    readings: Mapping[str, Reading],
    ended_ms: int,
    unkept: Mapping[str, Sequence[int]],
    changed: Collection[tuple[str, str]],
) -> Holding:
    """What is at a member, each copy compared with the original that it names.

    Args:
        at: what was read there.
        audited: what was read, by alias.
        readings: the same, in the form that the comparison uses.
        ended_ms: when the reading ended.
        unkept: by origin whose messages are not retained, what entered it (`entered_unkept`).
        changed: pairs (origin, member) between which contents change.
    """
    holding = Holding(entered=at.own, kept=at.kept, arrived={at.alias: list(at.own)})
    for alias, arrivals in at.arrivals.items():
        if alias in unkept:
            entered = set(unkept[alias])
            entered_here = [
                (number, lane)
                for number, lane, is_other in zip(arrivals.numbers, arrivals.lanes, _made_of_one(arrivals), strict=True)
                if number in entered and not is_other
            ]
            holding.arrived[alias] = [number for number, _ in entered_here]
            holding.late[alias] = arrivals.late
            holding.lanes[alias] = [lane for _, lane in entered_here]
            continue
        origin = audited.get(alias)
        if origin is None:
            continue
        kept = {number for numbers in origin.kept.values() for number in numbers}
        holding.late[alias] = arrivals.late
        horizons: dict[int, int] = {}
        for number in origin.own:
            horizons[number >> FRAGMENT_BITS] = max(number, horizons.get(number >> FRAGMENT_BITS, number))
        is_incomplete = bool(readings[alias].doubt) or not origin.messages
        for index, (number, digest) in enumerate(zip(arrivals.numbers, arrivals.digests, strict=True)):
            fragment = number >> FRAGMENT_BITS
            horizon = horizons.get(fragment, -1)
            if (
                number in origin.originals
                and 0 < arrivals.entered_ms[index] < origin.originals.enqueued_ms(number) - DRIFT_MS
            ):
                fate = holding.forged
            elif number in origin.originals:
                # An operator who corrects a message before it is sent again changes it.
                is_free = (alias, at.alias) in changed or number in arrivals.late
                equal = is_free or origin.originals.digest(number) == digest
                fate = holding.arrived if equal else holding.unequal
            elif number in kept:
                continue  # a route moved it before the rule was changed
            elif number > horizon and (index >= arrivals.first_pass or number <= origin.last_numbers.get(fragment, 0)):
                continue  # it entered after the first reading of its origin
            elif origin.has_emptied(number) and (origin.is_log or readings[alias].has_aged):
                continue  # the retention, or the time to live, has emptied its partition
            elif is_incomplete or origin.has_emptied(number):
                fate = holding.unknown
            elif 0 <= number < origin.first_numbers.get(fragment, 0):
                continue  # its original has expired in the subscription, or entered before that was created
            elif number > horizon and 0 < arrivals.ends_ms[index] <= ended_ms:
                continue  # its original has expired, behind everything that is there
            else:
                fate = holding.forged
            fate.setdefault(alias, []).append(number)
            if fate is holding.arrived:
                holding.lanes.setdefault(alias, []).append(arrivals.lanes[index])
    return holding


def _made_of_one(arrivals: Arrivals) -> Iterator[bool]:
    """Of each copy whether it is that of another message than the copies of its number before it: rules with actions make several messages of
    one, with its number, which differ in the digits. The first stands for all of them.
    """
    first: dict[int, int] = {}
    several: dict[int, set[int]] = {}
    for number, proof in zip(arrivals.numbers, arrivals.proofs, strict=True):
        if number not in first:
            first[number] = proof
            yield False
            continue
        proofs = several.setdefault(number, {first[number]})
        yield proof not in proofs and 0 not in proofs | {proof}
        proofs.add(proof)


def met_of(origin: str, audited: Mapping[str, Audited], rest: Mapping[tuple[str, str], Undelivered]) -> set[int]:
    """The messages of an origin that are known to have reached the task: those that wait at its routes or were set aside there, and those that arrived."""
    found: set[int] = set()
    for pair, each in rest.items():
        if pair[0] == origin:
            found |= each.waiting | each.expired | each.dead_lettered | each.diverted
    for at in audited.values():
        if origin in at.arrivals:
            found.update(at.arrivals[origin].numbers)
    return found
