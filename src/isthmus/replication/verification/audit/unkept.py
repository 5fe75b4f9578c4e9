"""What the sequence numbers show of an origin whose messages are not retained.

What it is: for a queue that a route empties, what entered it, and how a number is classified that is found nowhere. A queue numbers
its messages without gaps (Microsoft Learn, "Message sequencing and timestamps"), except those that were scheduled. What it is not:
any reading.

Invariants:
    I1. All numbers from the lowest to the highest known one have entered, in each fragment. What came after the highest, or
        before the lowest, cannot be seen; the latter is reported.
    I2. A number that is found nowhere counts as lost only where no application consumes at either end and every message takes the same passage.
    I3. If the gaps have more than `MOST_LISTED` numbers in all, the longest of them are reported and not compared: an old dead letter at the source of a
        queue that has moved billions since, or a forged copy, then takes no memory.
    I4. A number that is found at one of several targets with filters is not missing at another one, unless that one's filter selects it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from isthmus.connectors.servicebus.head import FRAGMENT_BITS
from isthmus.replication.verification.audit.audited import Audited
from isthmus.replication.verification.audit.passage import Passage
from isthmus.replication.verification.reconciliation.reconcile import Undelivered

__all__ = ["MOST_LISTED", "doubt_unkept", "entered_unkept", "numbered"]

# Each takes some 250 bytes while it is compared.
MOST_LISTED = 1_000_000
_NUMBER = (1 << FRAGMENT_BITS) - 1


def entered_unkept(
    passages: Sequence[Passage],
    audited: Mapping[str, Audited],
    rest: Mapping[tuple[str, str], Undelivered],
    met: Mapping[tuple[str, str], set[int]],
) -> tuple[dict[str, list[int]], list[str]]:
    """By origin whose messages are not retained, what entered it according to its numbers; and a text for each thing that they do not show.

    Args:
        passages: all passages that are audited together.
        audited: what was read of the targets.
        rest: what waits at the routes.
        met: the part of it that waited there.
    """
    entered: dict[str, list[int]] = {}
    unseen = []
    for origin in {each.origin: None for each in passages if not each.is_witnessed}:
        known: set[int] = set()
        until: set[int] = set()
        for each in passages:
            if each.origin != origin:
                continue
            undelivered = rest[each.pair]
            until |= met[each.pair]
            known |= undelivered.waiting | undelivered.expired | undelivered.dead_lettered | undelivered.diverted
            arrivals = audited[each.member].arrivals.get(origin)
            if arrivals is not None:
                until.update(arrivals.numbers[: arrivals.first_pass])
                known.update(arrivals.numbers)
        entered[origin], before, unlisted = numbered(known | until, until)
        if before:
            unseen.append(
                f"{before:,} messages entered {origin} before the first known one: nothing retains what enters there"
            )
        unseen += [
            f"no message of {origin} is known from number {first:,} to {last:,}: too many to be compared, and nothing retains what enters there"
            for first, last in unlisted
        ]
    return entered, unseen


def doubt_unkept(
    passages: Sequence[Passage],
    missing: Mapping[tuple[str, str], set[int]],
    rest: Mapping[tuple[str, str], Undelivered],
    wanted: Mapping[tuple[str, str], set[int]] | None = None,
) -> None:
    """Classifies the missing numbers of origins whose messages are not retained that cannot be called lost.

    Where messages take several passages, one that was found elsewhere is missing only where it is wanted, too, and one that was found
    nowhere is reported once.

    Args:
        passages: the passages of such origins.
        missing: by (origin, member).
        rest: receives the result.
        wanted: by (origin, member), what was found elsewhere and has to be there, too (`Siblings`).
    """
    for each in passages:
        siblings = [other for other in passages if other.origin == each.origin and other.is_filtered]
        if each.is_filtered:
            nowhere = set.intersection(*(missing[other.pair] for other in siblings))
            doubtful = nowhere if each is siblings[0] else set()
            also = missing[each.pair] & (wanted or {}).get(each.pair, set())
            rest[each.pair].elsewhere |= missing[each.pair] - doubtful - also
            rest[each.pair].consumed |= doubtful
            if each.is_consumed or each.expires_ms or each.drops:
                rest[each.pair].consumed |= also
        elif each.is_consumed or each.expires_ms or each.drops:
            rest[each.pair].consumed |= missing[each.pair]


def numbered(
    known: Iterable[int], until: Iterable[int], most: int = MOST_LISTED
) -> tuple[list[int], int, list[tuple[int, int]]]:
    """The numbers that entered an origin whose messages are not retained; how many came before the lowest known one; and the gaps, first and last
    number of each within its fragment, that are not in the list of numbers (I3).

    Args:
        known: numbers that were found anywhere.
        until: those of them that were found before anything else was read; higher ones may have entered since.
        most: how many numbers that were not found are listed.
    """
    highest = _by_fragment(until, max)
    lowest: dict[int, int] = {}
    entered: list[int] = []
    gaps: list[tuple[int, int]] = []
    before = -1
    for number in sorted(set(known)):
        fragment = number >> FRAGMENT_BITS
        if number < 0 or number > highest.get(fragment, -1):
            continue
        if fragment in lowest and number > before + 1:
            gaps.append((before + 1, number))
        lowest.setdefault(fragment, number)
        entered.append(number)
        before = number
    left, unlisted = most, []
    for start, stop in sorted(gaps, key=lambda gap: gap[1] - gap[0]):
        left -= stop - start
        if left >= 0:
            entered.extend(range(start, stop))
        else:
            unlisted.append((start & _NUMBER, (stop - 1) & _NUMBER))
    first = _by_fragment(known, min)
    return sorted(entered), sum(max(0, (each & _NUMBER) - 1) for each in first.values()), sorted(unlisted)


def _by_fragment(numbers: Iterable[int], choose: Callable[[int, int], int]) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for number in numbers:
        if number < 0:
            continue  # its provenance cannot be read
        fragment = number >> FRAGMENT_BITS
        found[fragment] = choose(found.get(fragment, number), number)
    return found
