"""What one look at an entity's messages shows: so many messages, and so many bytes.

What it is: the limit of a look, and the merging of several. What it is not: the reading (`intake`, `session.directory`).
Spec: docs/explanation/protocol.md, Management.
"""

from __future__ import annotations

__all__ = ["LOOK_BYTES", "Seen", "first_seen"]

# Sequence number, record, and state as messages tell it.
Seen = tuple[int, bytes, int]
# Of messages that one look reads; whoever wants more asks for what follows.
LOOK_BYTES = 16 << 20


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
