"""The administration of a system that isthmus cannot administer: every requested entity is reported as existing.

What it is: `isthmus.connectors.administration.Administration` for addresses and for services whose data plane has no administration. What
it is not: a check; the route that uses an entity reports whether it exists.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.connectors.administration import AdministrationError, EntitySize
from isthmus.topology.planning.change import Change
from isthmus.topology.state import NamespaceState, PlainState, WantedState

__all__ = ["StaticAdministration"]


class StaticAdministration:
    """Reports every entity as existing.

    Args:
        endpoint: the name of the system in errors.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def observe(self, alias: str, entities: Sequence[WantedState]) -> NamespaceState:
        """All requested entities."""
        found = tuple(each for each in entities if isinstance(each, PlainState))
        return NamespaceState(alias=alias, endpoint=self._endpoint, plain=found)

    def make(self, change: Change) -> None:
        """Makes no change.

        Raises:
            AdministrationError: always.
        """
        raise AdministrationError(
            self._endpoint, f"{change.kind} cannot be created there", "create it with the system's own tools"
        )

    def size(self, entity: str) -> EntitySize | None:
        """Always None: the size is unknown."""
        return None

    def close(self) -> None:
        """Does nothing: no connection is open."""
