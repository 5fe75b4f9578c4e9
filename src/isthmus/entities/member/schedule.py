"""Scheduled messages of an entity, as they are in the store until they are due.

What it is: putting one there, reading some, and taking one away; counts and calendar with it. What it is not: what becomes
of a message when it is due (`intake`). Spec: docs/explanation/protocol.md, Sending; docs/explanation/store.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isthmus.amqp.types import Timestamp
from isthmus.entities.member.context import Context
from isthmus.entities.record.amend import take_apart, with_annotation
from isthmus.entities.record.record import Parts, build
from isthmus.entities.storage.key import SCHEDULED, message_key

__all__ = ["Owner", "due_ms_of", "put", "records", "remove"]

# The last time that an AMQP timestamp can say.
_LATEST_MS = (1 << 63) - 1


class Owner(Protocol):
    """Whose messages they are.

    Attributes:
        number: under which they are in the store.
        scheduled_count: how many there are.
        size_bytes: of all that the entity stores.
    """

    number: int
    scheduled_count: int
    size_bytes: int

    @property
    def context(self) -> Context:
        """What entities share."""
        ...

    @property
    def quota_number(self) -> int:
        """Of the entity whose quota bodies of large messages count to."""
        ...


def put(owner: Owner, sequence: int, parts: Parts, due_ms: int, now_ms: int) -> None:
    """Stage a message as scheduled under a number that it has already."""
    context = owner.context
    due_ms = min(max(due_ms, 0), _LATEST_MS)
    owner.scheduled_count += 1
    scheduled = with_annotation(parts, "x-opt-scheduled-enqueue-time", Timestamp(due_ms))
    record = build(scheduled, sequence, now_ms, 0)
    owner.size_bytes += len(record)
    context.staging.batch.put(message_key(SCHEDULED, owner.number, sequence), record)
    if parts.blob is not None:
        context.blobs.refer(owner.number, sequence, parts.blob, owner.quota_number)
    context.calendar.schedule(due_ms, owner.number, sequence)


def records(owner: Owner, sequences: Sequence[int]) -> dict[int, bytes]:
    """The scheduled messages among these numbers, as they are stored."""
    staging = owner.context.staging
    staging.write()
    keys = [message_key(SCHEDULED, owner.number, max(0, sequence)) for sequence in sequences]
    found = zip(sequences, staging.journal.get_many(keys), strict=True)
    return {sequence: record for sequence, record in found if record is not None}


def remove(owner: Owner, sequence: int, record: bytes, due_ms: int) -> None:
    """Stage that a message is scheduled no longer."""
    context = owner.context
    context.staging.batch.delete(message_key(SCHEDULED, owner.number, sequence))
    context.calendar.unschedule(due_ms, owner.number, sequence)
    owner.scheduled_count -= 1
    owner.size_bytes -= len(record)


def due_ms_of(record: bytes) -> int:
    """For when a stored scheduled message is due: the annotation that `put` sets comes last."""
    parts = take_apart(record).parts
    return int.from_bytes(parts.head.annotations[-8:], "big")
