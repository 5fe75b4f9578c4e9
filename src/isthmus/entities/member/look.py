"""What one look at an entity's messages shows: so many messages, and so many bytes.

What it is: the reading of messages without locks, its limit, and the merging of several looks. What it is not: the choice of
what is looked at (`intake`, `session.directory`).
Spec: docs/explanation/protocol.md, Management.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isthmus.entities.member.context import Context
from isthmus.entities.storage.key import MESSAGE, message_span, unpack_message

__all__ = ["LOOK_BYTES", "Seen", "first_seen", "look"]

# Sequence number, record, and state as messages tell it.
Seen = tuple[int, bytes, int]
# Of messages that one look reads; whoever wants more asks for what follows.
LOOK_BYTES = 16 << 20


class Looked(Protocol):
    """Whose messages they are.

    Attributes:
        number: under which they are in the store.
        head: lowest sequence number of an active message that is not gone.
        committed: highest sequence number that may be seen.
    """

    number: int
    head: int
    committed: int

    @property
    def context(self) -> Context:
        """What entities share."""
        ...


def look(entity: Looked, tables: Sequence[tuple[int, int]], from_sequence: int, count: int) -> list[Seen]:
    """The messages of an entity, in order, as the store has them.

    Args:
        entity: whose.
        tables: (table, state as messages tell it) of those that hold messages.
        from_sequence: the first of interest.
        count: how many, at most.
    """
    found: list[Seen] = []
    for table, state in tables:
        first = max(from_sequence, entity.head if table == MESSAGE else 0, 0)
        if first > entity.committed:
            continue
        span = message_span(table, entity.number, first, entity.committed)
        size = 0
        for place, (key, record) in enumerate(entity.context.staging.journal.scan(*span)):
            if place == count or size >= LOOK_BYTES:
                break
            size += len(record)
            found.append((unpack_message(key), record, state))
    return first_seen(found, count)


def first_seen(seen: list[Seen], count: int) -> list[Seen]:
    """The first messages of those seen, sorted; as many as one look shows, at least one.

    Looks that were cut off at the same size each have all that comes before.
    """
    seen.sort(key=lambda entry: entry[0])
    size = 0
    for place, (_, record, _) in enumerate(seen):
        if place == count or size >= LOOK_BYTES:
            return seen[:place]
        size += len(record)
    return seen
