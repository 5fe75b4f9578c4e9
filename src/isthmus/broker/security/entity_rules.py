"""The authorization rules of an engine's queues, topics, event hubs and hybrid connections, for the keyring.

What it is: the lookup by path and by name. What it is not: any check of a key or a right (`keyring`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isthmus.entities import AuthorizationRule, Engine, QueueDescription, TopicDescription
from isthmus.entities.hub import EventHubDescription
from isthmus.entities.hybrid_connection import HybridConnectionDescription

__all__ = ["EngineRules"]

_Described = QueueDescription | TopicDescription | EventHubDescription | HybridConnectionDescription


class EngineRules:
    """The rules of an engine's entities; an `isthmus.broker.security.authority.EntityRules`.

    Args:
        engine: of the entities.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def of(self, path: str) -> Sequence[AuthorizationRule]:
        """The rules of the entity with a canonical path; empty where there is no such entity."""
        description = self._description(path)
        return description.authorization_rules if description is not None else ()

    def exists(self, path: str) -> bool:
        """Whether a queue, a topic, an event hub or a hybrid connection has this canonical path."""
        return self._description(path) is not None

    def _description(self, path: str) -> _Described | None:
        engine = self._engine
        found = engine.get_queue(path) or engine.get_topic(path)
        return found or engine.hubs.get(path) or engine.hybrid_connections.get(path)

    def named(self, key_name: str) -> Iterator[tuple[str, AuthorizationRule]]:
        """Every entity's rule of that name, with the entity's canonical path."""
        engine = self._engine
        for names in (engine.key_names, engine.hubs.key_names, engine.hybrid_connections.key_names):
            for path in names.having(key_name):
                yield from ((path, rule) for rule in self.of(path) if rule.key_name == key_name)
