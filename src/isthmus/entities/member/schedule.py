"""Scheduled messages of an entity, in the store until they are due.

What it is: adding one, cancelling some, and taking those that are due, with counts and calendar. What it is not:
the handling of a message that is due (`intake`). Spec: docs/explanation/protocol.md, Sending; docs/explanation/store.md.

Invariants:
    I1. A scheduled message is activated or cancelled, never both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isthmus.amqp.types import Timestamp
from isthmus.entities.member.context import Context
from isthmus.entities.record.amend import take_apart, with_annotation
from isthmus.entities.record.record import Parts, build
from isthmus.entities.storage.key import SCHEDULED, message_key
from isthmus.entities.storage.staging import Member
from isthmus.errors import MessageNotFoundError

__all__ = ["add", "cancel", "missing", "put", "take_due"]

# The last time that an AMQP timestamp can express.
_LATEST_MS = (1 << 63) - 1


class Owner(Member, Protocol):
    """The entity that has the messages.

    Attributes:
        path: canonical.
        number: under which they are in the store.
        last: highest sequence number assigned.
        scheduled_count: number of scheduled messages.
        size_bytes: of everything that the entity stores.
    """

    path: str
    number: int
    last: int
    scheduled_count: int
    size_bytes: int

    @property
    def context(self) -> Context:
        """The objects that entities share."""
        ...

    @property
    def quota_number(self) -> int:
        """Number of the entity whose quota counts bodies of large messages."""
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


def add(owner: Owner, messages: Sequence[tuple[Parts | None, int]], now_ms: int) -> list[int]:
    """Stage (message, due wall ms) pairs; returns their numbers. A dropped duplicate (None) has one too, under which nothing is stored."""
    sequences = []
    for parts, due_ms in messages:
        owner.last += 1
        sequences.append(owner.last)
        if parts is not None:
            put(owner, owner.last, parts, due_ms, now_ms)
    owner.context.staging.touch(owner)
    return sequences


def missing(owner: Owner, sequences: Sequence[int]) -> list[int]:
    """The given sequence numbers that are not of scheduled messages."""
    records = _records(owner, sequences)
    return [sequence for sequence in sequences if sequence not in records]


def cancel(owner: Owner, sequences: Sequence[int]) -> None:
    """Stage the removal of scheduled messages.

    Raises:
        MessageNotFoundError: one of them is not scheduled; none is dropped then.
    """
    records = _records(owner, sequences)
    unknown = [sequence for sequence in sequences if sequence not in records]
    if unknown:
        raise MessageNotFoundError(f"'{owner.path}' has no scheduled message with sequence number {unknown[0]}")
    for sequence, record in records.items():
        _remove(owner, sequence, record, _due_ms_of(record))
    owner.context.staging.touch(owner)


def take_due(owner: Owner, due: Sequence[tuple[int, int]]) -> list[Parts]:
    """Stage the removal of scheduled messages that are due.

    Args:
        owner: the entity.
        due: (due ms, sequence number) of each.

    Returns:
        Those that were still scheduled.
    """
    records = _records(owner, [sequence for _, sequence in due])
    taken = []
    for due_ms, sequence in due:
        record = records.get(sequence)
        if record is None:
            owner.context.calendar.unschedule(due_ms, owner.number, sequence)
            continue
        _remove(owner, sequence, record, due_ms)
        taken.append(take_apart(record).parts)
    if taken:
        owner.context.staging.touch(owner)
    return taken


def _records(owner: Owner, sequences: Sequence[int]) -> dict[int, bytes]:
    """The scheduled messages among these numbers, as they are stored."""
    staging = owner.context.staging
    staging.write()
    keys = [message_key(SCHEDULED, owner.number, max(0, sequence)) for sequence in sequences]
    found = zip(sequences, staging.journal.get_many(keys), strict=True)
    return {sequence: record for sequence, record in found if record is not None}


def _remove(owner: Owner, sequence: int, record: bytes, due_ms: int) -> None:
    context = owner.context
    context.staging.batch.delete(message_key(SCHEDULED, owner.number, sequence))
    context.calendar.unschedule(due_ms, owner.number, sequence)
    owner.scheduled_count -= 1
    owner.size_bytes -= len(record)


def _due_ms_of(record: bytes) -> int:
    """When a stored scheduled message is due: the annotation that `put` sets is the last one."""
    parts = take_apart(record).parts
    return int.from_bytes(parts.head.annotations[-8:], "big")
