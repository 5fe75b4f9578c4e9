"""The administration of a system in which nothing is made: every entity that is asked for exists.

What it is: `isthmus.connectors.administration.Administration` for addresses and for services whose data plane has no administration. What
it is not: a look; whether an entity is there is told by the route that uses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.connectors.administration import AdministrationError, EntitySize
from isthmus.topology.planning.change import Change
from isthmus.topology.state import NamespaceState, PlainState, WantedState

__all__ = ["StandingAdministration"]


class StandingAdministration:
    """Finds everything.

    Args:
        endpoint: what the system is called.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def observe(self, alias: str, entities: Sequence[WantedState]) -> NamespaceState:
        """All that is asked for."""
        found = tuple(each for each in entities if isinstance(each, PlainState))
        return NamespaceState(alias=alias, endpoint=self._endpoint, plain=found)

    def make(self, change: Change) -> None:
        """Nothing can be made.

        Raises:
            AdministrationError: always.
        """
        raise AdministrationError(
            self._endpoint, f"{change.kind} cannot be made there", "make it by the system's own means"
        )

    def size(self, entity: str) -> EntitySize | None:
        """It is not known."""
        return None

    def close(self) -> None:
        """Nothing is open."""
