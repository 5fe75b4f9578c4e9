"""The authorization rules of an engine's queues, topics and event hubs, as the keyring asks for them.

What it is: the lookup by path and by name. What it is not: any check of a key or a right (`keyring`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isthmus.entities import AuthorizationRule, Engine, QueueDescription, TopicDescription
from isthmus.entities.hub import EventHubDescription

__all__ = ["EngineRules"]


class EngineRules:
    """The rules of an engine's entities; an `isthmus.broker.security.keyring.EntityRules`.

    Args:
        engine: where the entities are.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def of(self, path: str) -> Sequence[AuthorizationRule]:
        """The rules of the entity with a canonical path; empty where there is no such entity."""
        description = self._description(path)
        return description.authorization_rules if description is not None else ()

    def exists(self, path: str) -> bool:
        """Whether a queue, a topic or an event hub has this canonical path."""
        return self._description(path) is not None

    def _description(self, path: str) -> QueueDescription | TopicDescription | EventHubDescription | None:
        engine = self._engine
        return engine.get_queue(path) or engine.get_topic(path) or engine.hubs.get(path)

    def named(self, key_name: str) -> Iterator[tuple[str, AuthorizationRule]]:
        """Every entity's rule of that name, with the entity's canonical path."""
        engine = self._engine
        for path in (*engine.key_names.having(key_name), *engine.hubs.key_names.having(key_name)):
            yield from ((path, rule) for rule in self.of(path) if rule.key_name == key_name)
