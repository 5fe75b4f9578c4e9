"""The entities that have an authorization rule of a given name.

What it is: an index in memory, for clients that send a key and name no entity. What it is not: any check of a key; the
rules themselves are in the descriptions.

Invariants:
    I1. Every entity with a rule of a name is found under it; a query costs as much as its result, however many entities there are.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.entities.catalog.description import AuthorizationRule

__all__ = ["KeyNames"]


class KeyNames:
    """Names of entities, in lower case, by the names of their rules."""

    def __init__(self) -> None:
        self._entities: dict[str, set[str]] = {}
        self._rules: dict[str, list[str]] = {}

    def put(self, entity: str, rules: Iterable[AuthorizationRule]) -> None:
        """Replace the rules of an entity; its name in any case."""
        entity = entity.lower()
        self.remove(entity)
        names = [rule.key_name for rule in rules]
        if names:
            self._rules[entity] = names
        for name in names:
            self._entities.setdefault(name, set()).add(entity)

    def remove(self, entity: str) -> None:
        """Remove an entity; no error if it had no rules."""
        for name in self._rules.pop(entity.lower(), ()):
            having = self._entities[name]
            having.discard(entity.lower())
            if not having:
                del self._entities[name]

    def clear(self) -> None:
        """Remove all entities."""
        self._entities.clear()
        self._rules.clear()

    def having(self, key_name: str) -> list[str]:
        """The entities with a rule of that name, in order."""
        return sorted(self._entities.get(key_name, ()))
