"""What a ledger confirms of messages that may have been consumed.

What it is: the comparison of when a number was moved with when the message that has it now entered: an entity that was made again gives its
numbers again, and what was moved before was another message. What it is not: the reading of a ledger (`isthmus.replication.ledger.moved`).

Invariants:
    I1. A number that was moved before its message entered confirms nothing. Of an origin that nobody keeps a message entered after each one
        of a lower number in its partition that is known. Records of a log tell a time of their own.
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
    """Of what may have been consumed, what was moved since it entered (I1).

    Args:
        doubtful: sequence numbers at the origin.
        moved_ms: of what was moved, when that was last.
        entered_ms: when the message of a number has entered, at the earliest.
    """
    return {number for number in doubtful if number in moved_ms and moved_ms[number] >= entered_ms(number) - DRIFT_MS}


def entered_since(passage: Passage, audited: Mapping[str, Audited]) -> Callable[[int], int]:
    """When a message of this way has entered its origin, at the earliest; 0 where nothing tells."""
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
