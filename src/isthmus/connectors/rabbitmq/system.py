"""RabbitMQ for the driver (`isthmus.connectors.system`).

What it is: administration, queries of queues and exchanges, waiting messages, and the browsing of streams. What it is not: the browsing of
queues: a message that is read there has been taken, and returns as redelivered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from isthmus.connectors.rabbitmq.option import read_broker
from isthmus.connectors.rabbitmq.port.probe import Probe
from isthmus.connectors.rabbitmq.port.stream import StreamPeek
from isthmus.connectors.system import Peek, Waits
from isthmus.errors import EntityNotFoundError, NotAllowedError
from isthmus.topology.state import AUDIT_SUFFIX

if TYPE_CHECKING:
    from isthmus.connectors.administration import Administration
    from isthmus.topology.model import NamespaceRef

__all__ = ["SYSTEM", "RabbitSystem"]


class RabbitSystem:
    """The kind `rabbitmq`."""

    def administration(self, namespace: NamespaceRef) -> Administration:
        """The queues and exchanges of a virtual host."""
        from isthmus.connectors.rabbitmq.administration import RabbitAdministration

        return RabbitAdministration.open(namespace)

    def identity(self, options: Mapping[str, str]) -> str:
        """Empty: the name of a cluster is not an identity, because two may have the same."""
        with Probe(read_broker(options)):
            return ""

    def addresses(self, options: Mapping[str, str]) -> Sequence[str]:
        """The nodes in the namespace's settings."""
        hosts = options.get("host", "")
        return [each.strip() for each in (hosts, *hosts.split(",")) if each.strip()]

    def check(self, options: Mapping[str, str], entity: str, *, reads: bool) -> None:
        """Queries a queue; if it is written to, an exchange may have the name."""
        broker = read_broker(options)
        try:
            with Probe(broker) as probe:
                probe.queue(entity)
        except EntityNotFoundError:
            with Probe(broker) as probe:
                probe.exchange(entity)

    def is_bound(self, options: Mapping[str, str], entity: str, group: str) -> bool | None:
        """Whether the route's queue is bound to an exchange, as far as the management plugin reports it."""
        from isthmus.connectors.rabbitmq.administration import RabbitAdministration

        return RabbitAdministration(read_broker(options)).is_bound(entity, group)

    def waiting(self, options: Mapping[str, str], entity: str, group: str) -> Waits:
        """The messages of a queue that are ready; of an exchange those of the route's queue."""
        with Probe(read_broker(options)) as probe:
            return Waits(probe.queue(group or entity), are_ready=True)

    def peek(self, options: Mapping[str, str], entity: str, *, names_partition: bool = False) -> Peek:
        """Opens a stream for browsing.

        Raises:
            NotAllowedError: it is a queue.
            IsthmusError: the broker cannot be reached, or refuses.
        """
        if not entity.endswith(AUDIT_SUFFIX):
            raise NotAllowedError(f"queue '{entity}': RabbitMQ does not allow browsing a queue without taking messages")
        return StreamPeek(options, entity)

    def unsettled(self, options: Mapping[str, str], entity: str, group: str) -> int:
        """The number of messages of a queue that are ready or unacknowledged, as the management plugin counted them some seconds ago."""
        from isthmus.connectors.rabbitmq.administration import RabbitAdministration

        counted = RabbitAdministration(read_broker(options)).messages(group or entity)
        return max(counted, self.waiting(options, entity, group).messages)


SYSTEM = RabbitSystem()
