"""Warnings of topics that keep nothing for a route.

What it is: queries whether the queue of each route is bound to the exchange that it copies. An exchange that was deleted and made again has no
bindings, and what is published to it is dropped without an error anywhere. What it is not: the creation of a binding (`isthmus apply`), or a
condition for a run.

Invariants:
    I1. A missing binding is logged once, and again after it was there.
    I2. A namespace that does not answer is not asked again before the next time, and fails nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.topology.model import Route

__all__ = ["INTERVAL_SECONDS", "BindingWatch"]

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 30.0


class BindingWatch:
    """The bindings of routes from one namespace.

    Args:
        routes: whose source is there.

    Attributes:
        due: when to query again; infinity where no route has a queue of its own.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [each for each in routes if each.options.plain.subscription]
        self._missing: set[str] = set()
        self.due = 0.0 if self._routes else math.inf

    def query(self, clients: NamespaceClients, now: float) -> None:
        """Queries all bindings, unless that was done shortly before."""
        if now < self.due:
            return
        self.due = now + INTERVAL_SECONDS
        for route in self._routes:
            queue = route.options.plain.subscription
            try:
                is_bound = clients.is_bound(route.source, queue)
            except Exception as error:  # the thread measures backlogs, too: whatever happens, it continues
                log.debug("route %s: its binding is unknown", route.name, exc_info=error)
                return
            if is_bound is False and route.name not in self._missing:
                log.warning(
                    "route %s: queue %s is not bound to exchange %s at %s: what is published there is not moved; bind it by: isthmus apply",
                    route.name,
                    queue,
                    route.source.entity,
                    route.source.alias,
                )
            (self._missing.add if is_bound is False else self._missing.discard)(route.name)
