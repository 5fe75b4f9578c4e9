"""The messages at the targets of an example, counted by the stamps of its applications.

What it is: a second count besides `isthmus verify`, by publisher and number, which would show even a message that a namespace
acknowledged and then lost. What it is not: a reading of origins or of any counter.

Invariants:
    I1. A flow is judged only where the stamps are sufficient: applications publish to its origin, nobody consumes its target, its steps
        change no contents, and its copies do not expire before they are read.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator

from isthmus.connectors.servicebus.head import peeked_message
from isthmus.demo.consumer import stamp
from isthmus.entities.record.parse import HeadCache, split
from isthmus.entities.record.view import MessageView
from isthmus.replication.verification.audit.passage import Peek, PeekOpener
from isthmus.replication.verification.reconciliation.reconcile import Comparison, compare
from isthmus.rules import Filter, FilterError, parse_filter
from isthmus.topology.model import Endpoint, Flow

__all__ = ["Stamped"]

PAGE_MESSAGES = 250


class Stamped:
    """The flows of an example and what was published into them.

    Args:
        flows: all of the federation's.
        consumed: entities from which the example's applications receive.
        logs: aliases of clusters, whose streams have no order across partitions: `isthmus verify` checks it in each.
    """

    def __init__(self, flows: Iterable[Flow], consumed: Collection[Endpoint] = (), logs: Collection[str] = ()) -> None:
        self._logs = frozenset(logs)
        self._flows = [flow for flow in flows if not flow.changes and flow.target not in consumed]
        self._filters: list[Filter | None] = [
            parse_filter(flow.filter) if flow.filter else None for flow in self._flows
        ]
        self._expected: dict[tuple[int, str], array[int]] = {}

    def publish(self, to: Endpoint, publisher: str, number: int, message: bytes) -> None:
        """A namespace has acknowledged a message."""
        for index, flow in enumerate(self._flows):
            if flow.origin == to and _matches(self._filters[index], message):
                self._expected.setdefault((index, publisher), array("q")).append(number)

    def judge(self, open_peek: PeekOpener, elapsed_ms: int) -> Iterator[Comparison]:
        """Reads the targets and compares each publisher with each flow.

        Args:
            open_peek: opens a target for browsing.
            elapsed_ms: since the first message was published.

        Raises:
            IsthmusError: a target cannot be read.
        """
        arrived: dict[Endpoint, dict[str, list[int]]] = {}
        for (index, publisher), expected in self._expected.items():
            flow = self._flows[index]
            if 0 < flow.expires_ms <= elapsed_ms or not flow.target.entity:
                continue
            if flow.target not in arrived:
                arrived[flow.target] = _read(open_peek(flow.target))
            numbers = arrived[flow.target].get(publisher, [])
            if self._logs & {flow.origin.alias, flow.target.alias}:
                numbers = sorted(numbers)
            yield compare(publisher, flow.target.alias, expected, numbers)


def _read(peek: Peek) -> dict[str, list[int]]:
    """By publisher, the numbers of its messages at the target, in order."""
    found: dict[str, list[int]] = {}
    start = 0
    while page := peek(start, PAGE_MESSAGES):
        for message in page:
            publisher, number, _ = stamp(message)
            found.setdefault(publisher, []).append(number)
        start = peeked_message(page[-1]).sequence + 1
    return found


def _matches(rule: Filter | None, message: bytes) -> bool:
    if rule is None:
        return True
    try:
        return rule.matches(MessageView(split(message, HeadCache(0)), 0, 0)) is True
    except FilterError:
        return False
