"""When a member began to take part in a task: the creation of the subscriptions that `apply` made with it.

What it is: the query of these times, at the namespaces' administrations, and the decision. What it is not: its use
(`isthmus.replication.verification.audit.joined`).

Invariants:
    I1. The oldest subscription of a member counts: one that was deleted and created again, with the messages in it, does not make the member younger. Where there is
        only one, nothing shows which of the two it is, and the time is not known.
    I2. A key that may not query a time, or a namespace that does not answer, hides nothing: the time is not known then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache

from isthmus.connectors.servicebus.administration.creation import created_ms
from isthmus.errors import IsthmusError
from isthmus.replication.verification.audit.passage import Passage
from isthmus.topology.model import Endpoint, Federation, Route

__all__ = ["joined_of"]

_LEAST = 2


def joined_of(
    federation: Federation,
    routes: Collection[Route],
    audited: Collection[Endpoint],
    created: Callable[..., int] = created_ms,
) -> Callable[[Passage], int]:
    """A function that gives the wall time from which a passage existed, by the namespaces' clocks; 0: not known.

    Args:
        federation: with absolute paths.
        routes: all routes of the task.
        audited: audit subscriptions that `apply` has made for the task.
        created: queries a subscription's time of creation.
    """

    @cache
    def at(end: Endpoint) -> int | None:
        """0: it is no subscription; None: it cannot be queried."""
        namespace = federation.namespaces[end.alias]
        if not namespace.is_service_bus:
            return 0
        try:
            return created(namespace, end.entity)
        except IsthmusError:
            return None

    @cache
    def began_ms(alias: str) -> int:
        ends = {end for end in audited if end.alias == alias}
        for route in routes:
            if alias in (route.source.alias, *(target.alias for target in route.targets)):
                ends.add(Endpoint(route.source.alias, route.options.feed or route.source.entity))
        times = [at(end) for end in ends]
        known = [each for each in times if each]
        return min(known) if None not in times and len(known) >= _LEAST else 0

    def joined(passage: Passage) -> int:
        if not passage.routes:
            return 0
        return max(began_ms(passage.routes[0].source.alias), began_ms(passage.routes[-1].target.alias))

    return joined
