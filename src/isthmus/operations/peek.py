"""Peeks an entity; nothing is locked or changed.

What it is: the messages in sequence order, page by page, and a census: those that a filter selects, by state. What it
is not: a count of all; the administration returns that at less cost.

Invariants:
    I1. Peeking ends at the last message that existed when it began; later ones are not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from isthmus.connectors.servicebus.head import pages
from isthmus.entities.queue.run import RunSet
from isthmus.operations.message import sequence_of, state_of
from isthmus.transport import Client, Management

__all__ = ["PAGE", "Census", "Progress", "messages", "take_census"]

Progress = Callable[[int], None]

PAGE = 250


def messages(client: Client, path: str, start: int = 0, *, at_once: int = PAGE) -> Iterator[bytes]:
    """Every message from a sequence number on, as peeked.

    Args:
        client: connected.
        path: of the entity.
        start: the first sequence number.
        at_once: how many are requested at once: an answer of large messages has many bytes that a caller may not need.

    Raises:
        IsthmusError: the namespace refused or is unreachable.
    """
    management = Management(client, path)
    try:
        for page in pages(management.peek, at_once, start):
            yield from page
    finally:
        management.close()


class Census(NamedTuple):
    """Sequence numbers of the selected messages, by their state."""

    active: RunSet
    deferred: RunSet
    scheduled: RunSet

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(each.count() for each in self)

    def counts(self) -> dict[str, int]:
        """How many there are in each state."""
        return {name: numbers.count() for name, numbers in zip(self._fields, self, strict=True)}


def take_census(
    client: Client, path: str, chosen: Callable[[bytes], bool], *, limit: int = 0, progress: Progress = lambda _: None
) -> Census:
    """Find the selected messages.

    Args:
        client: connected.
        path: of a queue, subscription, dead-letter queue, or topic (scheduled messages).
        chosen: whether a message is selected.
        limit: end after so many; 0 is all.
        progress: called with the number of messages peeked since the last call.
    """
    found = Census(RunSet(), RunSet(), RunSet())
    count = 0
    for payload in messages(client, path):
        progress(1)
        if not chosen(payload):
            continue
        sequence = sequence_of(payload)
        found[state_of(payload)].add(sequence, sequence)
        count += 1
        if count == limit:
            break
    return found
