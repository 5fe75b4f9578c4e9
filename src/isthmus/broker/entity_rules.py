"""The authorization rules of an engine's queues, topics and event hubs, as the keyring asks for them.

What it is: the lookup by path and by name. What it is not: any check of a key or a right (`keyring`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from isthmus.entities import AuthorizationRule, Engine

__all__ = ["EngineRules"]


class EngineRules:
    """The rules of an engine's entities; an `isthmus.broker.keyring.EntityRules`.

    Args:
        engine: where the entities are.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def of(self, path: str) -> Sequence[AuthorizationRule]:
        """The rules of the entity with a canonical path; empty where there is no such entity."""
        engine = self._engine
        description = engine.get_queue(path) or engine.get_topic(path) or engine.hubs.get(path)
        return description.authorization_rules if description is not None else ()

    def named(self, key_name: str) -> Iterator[tuple[str, AuthorizationRule]]:
        """Every entity's rule of that name, with the entity's canonical path."""
        engine = self._engine
        queues = ((name, description.authorization_rules) for name, description in engine.list_queues())
        topics = ((name, description.authorization_rules) for name, description in engine.list_topics())
        hubs = ((name, engine.hubs.row(name).description.authorization_rules) for name in engine.hubs.names())
        for name, rules in chain(queues, topics, hubs):
            yield from ((name.lower(), rule) for rule in rules if rule.key_name == key_name)
