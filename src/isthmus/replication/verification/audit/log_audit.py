"""What an audit reads in logs.

What it is: how a log is browsed so that its records look as its routes convert them, what waits at a route (the records that its
group has not committed) and what was set aside (in the log of dead letters). What it is not: the reading of Service Bus
(`isthmus.replication.verification.audit.passage`), or a client of a cluster (`isthmus.replication.namespace_clients`).

Invariants:
    I1. Where several routes share a log of dead letters, each is assigned what came from its own source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from isthmus.amqp import section
from isthmus.connectors.kafka.mapping.record import DEAD_LETTER_PLACE, DEAD_LETTER_REASON
from isthmus.connectors.servicebus.head import FRAGMENT_BITS
from isthmus.errors import EntityNotFoundError
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.verification.audit.passage import Peek, messages
from isthmus.replication.verification.identity import Identity, identify
from isthmus.topology.model import Endpoint, Route

__all__ = ["LogAudit", "placed"]


class LogAudit:
    """Browses the logs of a task.

    Args:
        clients: connections.
        routes: of the task.
    """

    def __init__(self, clients: NamespaceClients, routes: Sequence[Route]) -> None:
        self._clients = clients
        self._named = {route.source for route in routes if route.options.log.keys_by_partition}

    def open(self, endpoint: Endpoint) -> Peek:
        """Opens an entity of any kind.

        Raises:
            IsthmusError: the namespace cannot be reached, or refuses.
        """
        return self._clients.peek(endpoint, names_partition=endpoint in self._named)

    def waiting(self, route: Route) -> Peek:
        """The records that the route's group has not committed.

        Raises:
            IsthmusError: the cluster cannot be read.
        """
        return self._clients.uncommitted(route.source, route.options.log.group)

    def is_placed(self, route: Route) -> bool:
        """Whether the position of the route's group is known.

        Raises:
            IsthmusError: the cluster cannot be read.
        """
        return self._clients.is_placed(route.source, route.options.log.group)

    def set_aside(self, route: Route) -> Iterator[Identity]:
        """The records that were set aside.

        Raises:
            IsthmusError: the cluster cannot be read.
        """
        log = route.options.log.dead_letters
        if not log:
            return
        try:
            peek = self._clients.peek(Endpoint(route.source.alias, log))
        except EntityNotFoundError:
            return
        for message, _ in messages(peek, 0, identify):
            found = placed(message, route.source.entity)
            if found is not None:
                yield found


def placed(message: bytes, log: str) -> Identity | None:
    """The identity of a dead letter at the log that it came from; None where it came from another one."""
    properties: dict[Any, Any] = section.decode_map(message, section.locate(message).application_properties)
    name, _, origin = str(properties.get(DEAD_LETTER_PLACE, "")).partition("/")
    partition, _, offset = origin.partition("/")
    if name != log or not partition.isdigit() or not offset.isdigit():
        return None
    number = int(partition) << FRAGMENT_BITS | int(offset)
    return Identity(number, "", "", number, str(properties.get(DEAD_LETTER_REASON, "")))
