"""A partitioned topic: each of its fragments has a fragment of every subscription in the same store.

What it is: the fan-out to the topics of the fragments. What it is not: the copying of messages (`topic`).
Spec: docs/explanation/protocol.md, Entities.

Invariants:
    I1. A message and its copies are in fragments of one index, and so in one store and one commit.
    I2. A subscription gets copies only when its own row in the catalog is durable.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.entities.catalog.limit import Limits
from isthmus.entities.fragment.entity import Partitioned
from isthmus.entities.fragment.port import FragmentStore
from isthmus.entities.fragment.queue import TRANSFER, PartitionedQueue
from isthmus.entities.fragment.session import PartitionedSessionQueue
from isthmus.entities.queue.queue import Queue
from isthmus.entities.topic.selection import Selection
from isthmus.entities.topic.topic import Topic

__all__ = ["PartitionedTopic"]

_Subscription = PartitionedQueue | PartitionedSessionQueue


class PartitionedTopic(Partitioned[Topic]):
    """The entity to which publishers send."""

    _STEP = 2

    def __init__(self, path: str, number: int, stores: Sequence[FragmentStore], limits: Limits) -> None:
        super().__init__(path, number, stores, limits)
        self.transfer_dead_letters: PartitionedQueue | None
        self.transfer_dead_letters = PartitionedQueue(path + TRANSFER, number + 1, stores, limits, is_dead=True)
        self._subscriptions: dict[str, tuple[_Subscription, Selection, bool]] = {}

    @property
    def source(self) -> None:
        """It gives no messages: its subscriptions do."""
        return None

    @property
    def takes_senders(self) -> bool:
        """Whether senders may attach; they may."""
        return True

    def subscribe(self, name: str, queue: _Subscription, selection: Selection, *, dead_letters_failures: bool) -> None:
        """Add a subscription, or replace its rules; `name` in lower case."""
        self._subscriptions[name] = (queue, selection, dead_letters_failures)
        queue.when_durable(lambda: self._feed(name, queue))

    def _feed(self, name: str, subscription: _Subscription) -> None:
        found = self._subscriptions.get(name)
        # It was deleted; a subscription of its name that was created since waits for its own row.
        if found is None or found[0] is not subscription:
            return
        queue, selection, dead_letters_failures = found
        parts: list[Queue | None] = [slot.member for slot in queue.slots]
        for slot, part in zip(self.slots, parts, strict=True):
            if slot.member is not None and part is not None:
                slot.member.subscribe(name, part, selection, dead_letters_failures=dead_letters_failures)

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription; no error if unknown."""
        self._subscriptions.pop(name, None)
        for member in self._members:
            member.unsubscribe(name)
