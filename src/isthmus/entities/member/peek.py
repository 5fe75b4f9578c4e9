"""The messages that one peek returns: limited in number and in bytes.

What it is: the reading of messages without locks, its limit, and the merging of several reads. What it is not: the choice of
the messages (`intake`, `session.directory`).
Spec: docs/explanation/protocol.md, Management.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isthmus.entities.member.context import Context
from isthmus.entities.storage.key import MESSAGE, message_span, unpack_message

__all__ = ["PEEK_BYTES", "PeekedRecord", "first_records", "peek_records"]

# Sequence number, record, and state as in the message's annotation.
PeekedRecord = tuple[int, bytes, int]
# Bytes of messages that one peek reads; a client that wants more repeats it from the next number.
PEEK_BYTES = 16 << 20


class PeekedEntity(Protocol):
    """The entity or session that is peeked.

    Attributes:
        number: under which they are in the store.
        head: lowest sequence number of an active message that is not removed.
        committed: highest sequence number that may be seen.
    """

    number: int
    head: int
    committed: int

    @property
    def context(self) -> Context:
        """The objects that entities share."""
        ...


def peek_records(
    entity: PeekedEntity, tables: Sequence[tuple[int, int]], from_sequence: int, count: int
) -> list[PeekedRecord]:
    """The messages of an entity, in order, as the store has them.

    Args:
        entity: to read.
        tables: (table, state as in the annotation) of those that contain messages.
        from_sequence: the first sequence number.
        count: how many, at most.
    """
    found: list[PeekedRecord] = []
    for table, state in tables:
        first = max(from_sequence, entity.head if table == MESSAGE else 0, 0)
        if first > entity.committed:
            continue
        span = message_span(table, entity.number, first, entity.committed)
        size = 0
        for index, (key, record) in enumerate(entity.context.staging.journal.scan(*span)):
            if index == count or size >= PEEK_BYTES:
                break
            size += len(record)
            found.append((unpack_message(key), record, state))
    return first_records(found, count)


def first_records(seen: list[PeekedRecord], count: int) -> list[PeekedRecord]:
    """The first of the messages read, sorted; as many as one peek returns, at least one.

    Reads that were cut off at the same size each contain everything before their end.
    """
    seen.sort(key=lambda entry: entry[0])
    size = 0
    for index, (_, record, _) in enumerate(seen):
        if index == count or size >= PEEK_BYTES:
            return seen[:index]
        size += len(record)
    return seen
