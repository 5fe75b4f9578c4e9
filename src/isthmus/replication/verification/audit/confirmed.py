"""What a ledger confirms about messages that may have been consumed.

What it is: the comparison of when a number was moved with when the message that now has it entered: an entity that was created again assigns its
numbers again, and what was moved earlier was another message. What it is not: the reading of a ledger (`isthmus.replication.ledger.moved`).

Invariants:
    I1. A number that was moved before its message entered confirms nothing. At an origin whose messages are not retained, a message entered after each known message
        of a lower number in its partition. Records of a log carry a time of their own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from isthmus.connectors.servicebus.head import FRAGMENT_BITS
from isthmus.replication.verification.audit.audited import Arrivals, Audited
from isthmus.replication.verification.audit.passage import DRIFT_MS, Passage

__all__ = ["confirmed", "entered_since"]


def confirmed(doubtful: Collection[int], moved_ms: Mapping[int, int], entered_ms: Callable[[int], int]) -> set[int]:
    """The numbers of `doubtful` that were moved after their messages entered (I1).

    Args:
        doubtful: sequence numbers, at the origin, of messages that may have been consumed.
        moved_ms: by number, when it was last moved.
        entered_ms: the earliest time at which the message of a number can have entered.
    """
    return {number for number in doubtful if number in moved_ms and moved_ms[number] >= entered_ms(number) - DRIFT_MS}


def entered_since(passage: Passage, audited: Mapping[str, Audited]) -> Callable[[int], int]:
    """The earliest time at which a message of this passage can have entered its origin; 0 where that is not known."""
    if passage.is_witnessed:
        origin = audited[passage.origin]
        return _unknown if origin.is_log else _kept(origin)
    arrivals = audited[passage.member].arrivals.get(passage.origin)
    return _unknown if arrivals is None else _behind(arrivals)


def _kept(origin: Audited) -> Callable[[int], int]:
    originals = origin.originals
    return lambda number: originals.enqueued_ms(number) if number in originals else 0


def _unknown(number: int) -> int:
    return 0


def _behind(arrivals: Arrivals) -> Callable[[int], int]:
    known: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, entered_ms in zip(arrivals.numbers, arrivals.entered_ms, strict=True):
        known[number >> FRAGMENT_BITS].append((number, entered_ms))
    for each in known.values():
        each.sort()
        latest = 0
        for at, (number, entered_ms) in enumerate(each):
            latest = max(latest, entered_ms)
            each[at] = number, latest

    def earliest(number: int) -> int:
        lower = known.get(number >> FRAGMENT_BITS, [])
        at = bisect_left(lower, (number, 0))
        return lower[at - 1][1] if at else 0

    return earliest
