"""The detection of new partitions of an event hub while it is read.

What it is: a periodic query of the existing partitions. What it is not: their reading: the source is opened again, which begins
at the right event in each of them (`opening`). Without this, events in a new partition would wait for the next opening, an hour if the
connection lasts.
Specification: Microsoft Learn, "Dynamically add partitions to an event hub".

Invariants:
    I1. One query at a time is in progress, each `QUERY_SECONDS` after the previous one; a failed one has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from isthmus.connectors.eventhubs.partition.hub_query import HubQuery

if TYPE_CHECKING:
    from isthmus.transport import Client

__all__ = ["QUERY_SECONDS", "PartitionGrowth"]

QUERY_SECONDS = 60.0


class PartitionGrowth:
    """The queries of one source.

    Args:
        mark: called when an answer has arrived.
        is_wanted: whether new partitions are read.
    """

    def __init__(self, mark: Callable[[], None], *, is_wanted: bool) -> None:
        self._mark = mark
        self._is_wanted = is_wanted
        self._query: HubQuery | None = None
        self._due = math.inf

    @property
    def deadline(self) -> float:
        """When `added` has work even without events."""
        return self._due

    def begin(self, now: float) -> None:
        """All existing partitions are read now."""
        self.close()
        if self._is_wanted:
            self._due = now + QUERY_SECONDS

    def added(self, client: Client, hub: str, known: Collection[int], now: float) -> list[int]:
        """The new partitions, from the last query.

        Args:
            client: an open connection, authorized for the hub.
            hub: its name.
            known: the partitions that are read.
            now: monotonic seconds.
        """
        if self._query is None:
            if now >= self._due:
                self._due = math.inf
                self._query = HubQuery(client, hub, self._mark, ())
            return []
        self._query.advance()
        if not self._query.is_done:
            return []
        found = [] if self._query.error is not None else [each for each in self._query.partitions if each not in known]
        self.begin(now)
        return found

    def close(self) -> None:
        """The connection is unusable, or the source closes."""
        query, self._query, self._due = self._query, None, math.inf
        if query is not None:
            query.close()
