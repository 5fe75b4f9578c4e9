"""Whether an event hub has got more partitions while it is read.

What it is: a look from time to time at which partitions there are. What it is not: their reading: the source is opened again, which begins
in each of them where it has to (`opening`). Without this what is sent to a new partition would wait for the next opening, an hour where the
connection lasts.
Specification: Microsoft Learn, "Dynamically add partitions to an event hub".

Invariants:
    I1. One look at a time is under way, each `LOOK_SECONDS` after the one before; one that fails says nothing.
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
    """The looks of one source.

    Args:
        mark: called when an answer has come.
        is_wanted: whether new partitions are read.
    """

    def __init__(self, mark: Callable[[], None], *, is_wanted: bool) -> None:
        self._mark = mark
        self._is_wanted = is_wanted
        self._look: HubLook | None = None
        self._due = math.inf

    @property
    def deadline(self) -> float:
        """When `added` has something to do though nothing came."""
        return self._due

    def begin(self, now: float) -> None:
        """All partitions that there are are read now."""
        self.close()
        if self._is_wanted:
            self._due = now + LOOK_SECONDS

    def added(self, client: Client, hub: str, known: Collection[int], now: float) -> list[int]:
        """The partitions that nobody knew, as far as a look has told.

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
        """The connection is of no use any more, or the source ends."""
        look, self._look, self._due = self._look, None, math.inf
        if look is not None:
            look.close()
