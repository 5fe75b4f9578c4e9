"""How messages come into a dead-letter queue, and which one.

What it is: the copies that are staged there, with the reason. What it is not: why a message is dead-lettered (`settlement`,
`expiry`, `relay`). Spec: docs/explanation/protocol.md, Settlement, Forwarding.

Invariants:
    I1. Enqueued time, delivery count and first sequence number of a dead-lettered message stay its own.
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
    """What moves dead letters on (`relay`)."""

    def pass_dead(self, messages: Sequence[Stored]) -> Sequence[Stored]:
        """Let dead letters go on at once; those that have to stay."""
        ...


class DeadLetterQueue(BacklogQueue, Protocol):
    """Where messages come."""

    @property
    def backlog(self) -> Backlog:
        """Its messages."""
        ...

    @property
    def relay(self) -> DeadLetterRelay | None:
        """What moves them on; None where they stay."""
        ...


class SourceQueue(DeadLetterQueue, Protocol):
    """Whose messages they were."""

    @property
    def path(self) -> str:
        """Canonical."""
        ...

    @property
    def dead_letters(self) -> DeadLetterQueue | None:
        """Its dead-letter queue; None for one that is itself one."""
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
        source: path of the entity that they were in.
        reason: for machines; None keeps what a message tells already.
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
    """Stage a message that could not go on where somebody will look for it; not for dead-letter queues."""
    if isinstance(error, EntityNotFoundError):
        target = queue.context.transfer_dead_letters(queue)
    else:
        assert queue.dead_letters is not None
        target = queue.dead_letters
    store(target, [stored], queue.path, reason_of(error), str(error))


def take_back(queue: SourceQueue, stored: Stored, error: IsthmusError) -> None:
    """Stage a message that left for another store, whose target did not take it; a dead letter is one again."""
    if queue.dead_letters is not None:
        set_aside(queue, stored, error)
    else:
        before = annotation_of(stored.parts, "x-opt-deadletter-source")
        store(queue, [stored], str(before), None, None)
