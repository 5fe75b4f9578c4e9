"""Which of several routes delivered a diverted message to the entity that they all divert to.

What it is: what a copy there, or a ledger, shows about routes that divert one message to one entity: where the entity detects duplicates it
keeps the first one. What it is not: any reading.

Invariants:
    I1. One message that an entity keeps counts as diverted in the passages of the route that sent it, and as dropped in the others.
    I2. A route that is part of several passages diverts a message once: that counts in each of them.
    I3. Without detection nothing is dropped, and a copy that names no known route counts in every passage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError, decode
from isthmus.message.name import WHY_SOURCE
from isthmus.replication.verification.reconciliation.reconcile import Undelivered
from isthmus.topology.model import Route

__all__ = ["diverted_from", "dropped_of_ledgers", "sources_of"]

Pair = tuple[str, str]
_KEY = b"\xa1" + bytes((len(WHY_SOURCE),)) + WHY_SOURCE.encode()


def diverted_from(message: bytes) -> str:
    """Where a route received a message that it diverted, in lower case; empty where the message does not say."""
    for key, value, _ in section.map_items(message, section.locate(message).application_properties):
        if message[key:value] == _KEY:
            try:
                text = decode(message, value)[0]
            except CodecError:
                return ""
            return text.lower() if isinstance(text, str) else ""
    return ""


def sources_of(routes: Iterable[Route]) -> frozenset[str]:
    """How diverted messages name the sources of these routes."""
    return frozenset(str(route.source).lower() for route in routes)


def dropped_of_ledgers(
    recorded: Mapping[Pair, Mapping[int, int]], windows_ms: Mapping[Pair, int], rest: Mapping[Pair, Undelivered]
) -> None:
    """Of the messages that only ledgers show as diverted, marks those that were dropped for an equal message that came before.

    Args:
        recorded: by (origin, member), the numbers that a ledger confirms, and when each was diverted.
        windows_ms: by (origin, member), how long the entity remembers what arrived; 0: it does not.
        rest: receives the result.
    """
    by_message: dict[tuple[str, int], list[tuple[int, Pair]]] = defaultdict(list)
    for pair, times in recorded.items():
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
        if kept_ms < at_ms <= kept_ms + windows_ms[pair]:  # equal times: recorded by the same route (I2)
            yield pair
        else:
            kept_ms = at_ms
