"""Which of several routes has left a diverted message at the entity that they all divert to.

What it is: what a copy there, or a ledger, tells of routes that divert one message to one entity: where the entity detects duplicates it
keeps the first one. What it is not: any reading.

Invariants:
    I1. One message that an entity keeps counts as diverted on the ways of the route that sent it, and as dropped on the others.
    I2. A route that is part of several ways diverts a message once: that counts on each of them.
    I3. Without detection nothing is dropped, and a copy that names no route that is known counts on every way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError, decode
from isthmus.message.name import WHY_SOURCE
from isthmus.replication.verification.reconciliation.reconcile import Undelivered
from isthmus.topology.model import Route

__all__ = ["diverted_from", "dropped_of_told", "sources_of"]

Pair = tuple[str, str]
_KEY = b"\xa1" + bytes((len(WHY_SOURCE),)) + WHY_SOURCE.encode()


def diverted_from(message: bytes) -> str:
    """Where a route received a message that it diverted, in lower case; empty where that is not told."""
    for key, value, _ in section.map_items(message, section.locate(message).application_properties):
        if message[key:value] == _KEY:
            try:
                told = decode(message, value)[0]
            except CodecError:
                return ""
            return told.lower() if isinstance(told, str) else ""
    return ""


def sources_of(routes: Iterable[Route]) -> frozenset[str]:
    """What diverted messages name these routes' sources."""
    return frozenset(str(route.source).lower() for route in routes)


def dropped_of_told(
    told: Mapping[Pair, Mapping[int, int]], windows_ms: Mapping[Pair, int], rest: Mapping[Pair, Undelivered]
) -> None:
    """Of what ledgers alone tell as diverted, what was dropped for an equal that came before.

    Args:
        told: by (origin, member), the numbers that a ledger confirms, and when each was diverted.
        windows_ms: by (origin, member), how long the entity remembers what came; 0: it does not.
        rest: gets it.
    """
    by_message: dict[tuple[str, int], list[tuple[int, Pair]]] = defaultdict(list)
    for pair, times in told.items():
        if windows_ms.get(pair):
            for number, at_ms in times.items():
                by_message[pair[0], number].append((at_ms, pair))
    for (_, number), each in by_message.items():
        for pair in _later(sorted(each), windows_ms):
            rest[pair].diverted.discard(number)
            rest[pair].dropped.add(number)


def _later(times: Sequence[tuple[int, Pair]], windows_ms: Mapping[Pair, int]) -> Iterable[Pair]:
    kept_ms = times[0][0]
    for at_ms, pair in times[1:]:
        if kept_ms < at_ms <= kept_ms + windows_ms[pair]:  # equal: the same route told it (I2)
            yield pair
        else:
            kept_ms = at_ms
