"""The order in which the entities of a member are stopped, and the messages that each stop waits for.

Invariants:
    I1. A forwarding entity is stopped before its target, and no message waits in it then: forwarded messages find the target open.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.connectors.servicebus.administration.message_count import Counts
from isthmus.topology.pair.description import Description, Key

__all__ = ["deliverable", "feeds", "stop_layers", "with_topics"]


def stop_layers(existing: Mapping[Key, Description]) -> list[list[Description]]:
    """Queues and topics in the order in which sends to them are stopped: forwarding entities before their targets.

    Rings of forwarding share a layer with their targets, at the end.
    """
    entities = {key: each for key, each in existing.items() if each.kind in {"queue", "topic"}}
    feeders: dict[Key, set[Key]] = {key: set() for key in entities}
    for each in existing.values():
        for target in each.forwards:
            if (target,) in entities and each.key[:1] != (target,):
                feeders[(target,)].add(each.key[:1])
    layers: list[list[Description]] = []
    left = dict(entities)
    while left:
        ready = [key for key in left if not feeders[key] & left.keys()] or list(left)
        layers.append([left.pop(key) for key in ready])
    return layers


def feeds(each: Description, layer: list[Description]) -> bool:
    """Whether an entity forwards active messages and belongs to a layer."""
    return bool(each.settings.get("forward_to")) and each.key[:1] in {stopped.key for stopped in layer}


def deliverable(counts: Counts | None) -> int:
    """How many messages are about to be received or forwarded."""
    return counts.active + counts.transfer if counts is not None else 0


def with_topics(entities: list[Description]) -> list[Description]:
    """Entities, and the topics of the subscriptions among them, by which these are counted."""
    topics = {
        each.names[0]: Description(kind="topic", names=each.names[:1]) for each in entities if len(each.names) > 1
    }
    return [*entities, *topics.values()]
