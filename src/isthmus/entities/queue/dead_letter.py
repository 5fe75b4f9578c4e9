"""The copies of dead-lettered messages, and the queue that gets them.

What it is: copies staged in a dead-letter queue, with the reason. What it is not: the decision to dead-letter a message (`settlement`,
`expiry`, `relay`). Spec: docs/explanation/protocol.md, Settlement, Forwarding.

Invariants:
    I1. Enqueued time, delivery count and first sequence number of a dead-lettered message stay unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from isthmus.entities.queue.backlog import Backlog, BacklogQueue
from isthmus.entities.queue.onward import reason_of
from isthmus.entities.record.amend import Stored, annotation_of, as_dead_letters, take_apart
from isthmus.errors import EntityNotFoundError, IsthmusError

__all__ = ["SourceQueue", "bury", "set_aside", "store", "take_back"]


class DeadLetterRelay(Protocol):
    """Forwards dead letters (`relay`)."""

    def pass_dead(self, messages: Sequence[Stored]) -> Sequence[Stored]:
        """Forward dead letters immediately; returns those that have to stay."""
        ...


class DeadLetterQueue(BacklogQueue, Protocol):
    """The queue that gets the copies."""

    @property
    def backlog(self) -> Backlog:
        """Its messages."""
        ...

    @property
    def relay(self) -> DeadLetterRelay | None:
        """The forwarding of its messages; None where they stay."""
        ...


class SourceQueue(DeadLetterQueue, Protocol):
    """The queue that the messages leave."""

    @property
    def path(self) -> str:
        """Canonical."""
        ...

    @property
    def dead_letters(self) -> DeadLetterQueue | None:
        """Its dead-letter queue; None for a dead-letter queue."""
        ...


def store(
    queue: DeadLetterQueue,
    messages: Sequence[Stored],
    source: str,
    reason: str | None,
    description: str | None,
    properties: Mapping[str, Any] | None = None,
) -> None:
    """Stage dead-lettered messages.

    Args:
        queue: the dead-letter queue.
        messages: in order.
        source: path of the entity that they leave.
        reason: for programs; None keeps the reason that a message has already.
        description: for people; likewise.
        properties: application properties to set.
    """
    letters = as_dead_letters(messages, source, reason, description, properties)
    queue.backlog.store_again(queue, letters if queue.relay is None else queue.relay.pass_dead(letters))


def bury(
    queue: SourceQueue,
    records: Sequence[bytes],
    reason: str | None,
    description: str | None,
    properties: Mapping[str, Any] | None = None,
) -> None:
    """Stage copies of a queue's stored messages in its dead-letter queue, which it has."""
    assert queue.dead_letters is not None
    messages = [take_apart(record) for record in records]
    store(queue.dead_letters, messages, queue.path, reason, description, properties)


def set_aside(queue: SourceQueue, stored: Stored, error: IsthmusError) -> None:
    """Stage a message that could not be forwarded in the dead-letter queue; does nothing for a dead-letter queue."""
    if isinstance(error, EntityNotFoundError):
        target = queue.context.transfer_dead_letters(queue)
    else:
        assert queue.dead_letters is not None
        target = queue.dead_letters
    store(target, [stored], queue.path, reason_of(error), str(error))


def take_back(queue: SourceQueue, stored: Stored, error: IsthmusError) -> None:
    """Stage a message that left for another store, and was refused there; a dead letter becomes one again."""
    if queue.dead_letters is not None:
        set_aside(queue, stored, error)
    else:
        before = annotation_of(stored.parts, "x-opt-deadletter-source")
        store(queue, [stored], str(before), None, None)
