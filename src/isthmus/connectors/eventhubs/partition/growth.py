"""The detection of new partitions of an event hub while it is read.

What it is: a periodic query of the existing partitions. What it is not: their reading: the source is opened again, which begins
at the right event in each of them (`opening`). Without this, events in a new partition would wait for the next opening, an hour if the
connection lasts.
Specification: Microsoft Learn, "Dynamically add partitions to an event hub".

Invariants:
    I1. One query at a time is in progress, each `LOOK_SECONDS` after the previous one; a failed one has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from isthmus.connectors.eventhubs.partition.look import HubLook

if TYPE_CHECKING:
    from isthmus.transport import Client

__all__ = ["LOOK_SECONDS", "PartitionGrowth"]

LOOK_SECONDS = 60.0


class PartitionGrowth:
    """The queries of one source.

    Args:
        mark: called when an answer has arrived.
        is_wanted: whether new partitions are read.
    """

    def __init__(self, mark: Callable[[], None], *, is_wanted: bool) -> None:
        self._mark = mark
        self._is_wanted = is_wanted
        self._look: HubLook | None = None
        self._due = math.inf

    @property
    def deadline(self) -> float:
        """When `added` has work even without events."""
        return self._due

    def begin(self, now: float) -> None:
        """All existing partitions are read now."""
        self.close()
        if self._is_wanted:
            self._due = now + LOOK_SECONDS

    def added(self, client: Client, hub: str, known: Collection[int], now: float) -> list[int]:
        """The new partitions, from the last query.

        Args:
            client: an open connection, authorized for the hub.
            hub: its name.
            known: the partitions that are read.
            now: monotonic seconds.
        """
        if self._look is None:
            if now >= self._due:
                self._due = math.inf
                self._look = HubLook(client, hub, self._mark, ())
            return []
        self._look.advance()
        if not self._look.is_done:
            return []
        found = [] if self._look.error is not None else [each for each in self._look.partitions if each not in known]
        self.begin(now)
        return found

    def close(self) -> None:
        """The connection is unusable, or the source closes."""
        look, self._look, self._due = self._look, None, math.inf
        if look is not None:
            look.close()
