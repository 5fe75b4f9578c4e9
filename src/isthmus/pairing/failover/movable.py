"""The entities whose messages a planned fail-over can move.

Invariants:
    I1. No message is moved to an entity where duplicate detection may drop it: the MessageId of a message that is moved back is known there.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.topology.pair.description import Description, Key

__all__ = ["detects", "is_movable"]


def is_movable(entity: Description, existing: Mapping[Key, Description]) -> bool:
    """Whether a copy of one of its messages, sent to the entity of the same name, arrives in the same entity."""
    return entity.kind in {"queue", "topic"} and not detects(entity, existing)


def detects(entity: Description, existing: Mapping[Key, Description]) -> bool:
    """Whether a queue or topic, or an entity that it forwards to, detects duplicates.

    It would accept a message whose MessageId it has seen within its window and drop it: one that was there before an earlier
    fail-over moved it here.
    """
    waiting, seen = [entity.key[:1]] if entity.kind != "subscription" else [], set[Key]()
    while waiting:
        key = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        for each in existing.values():
            if each.key[:1] != key or each.kind == "rule":
                continue
            if each.settings.get("requires_duplicate_detection"):
                return True
            waiting += [(target,) for target in each.forwards]
    return False
