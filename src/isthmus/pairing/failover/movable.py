"""Which entities' messages a planned fail-over can move.

Invariants:
    I1. Nothing is moved to where duplicate detection may drop it: the MessageId of what is moved back has been there.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.topology.pair.description import Description, Key

__all__ = ["detects", "is_movable"]


def is_movable(entity: Description, held: Mapping[Key, Description]) -> bool:
    """Whether a copy of a message in it, sent to the entity of the same name, comes to be where the message was."""
    return entity.kind in {"queue", "topic"} and not detects(entity, held)


def detects(entity: Description, held: Mapping[Key, Description]) -> bool:
    """Whether a queue or topic, or something that it forwards to, detects duplicates.

    It would accept a message whose MessageId it has seen within its window and drop it: one that was there before it was
    moved here, by the fail-over before.
    """
    waiting, seen = [entity.key[:1]] if entity.kind != "subscription" else [], set[Key]()
    while waiting:
        key = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        for each in held.values():
            if each.key[:1] != key or each.kind == "rule":
                continue
            if each.settings.get("requires_duplicate_detection"):
                return True
            waiting += [(target,) for target in each.forwards]
    return False
