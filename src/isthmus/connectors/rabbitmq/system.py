"""RabbitMQ as the driver sees it (`isthmus.connectors.system`).

What it is: administration, looks at queues and exchanges, and what waits. What it is not: browsing: a message that is looked at over AMQP 0-9-1
has been taken, and goes back as redelivered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from isthmus.connectors.rabbitmq.option import read_broker
from isthmus.connectors.rabbitmq.probe import Probe
from isthmus.connectors.system import Peek, Waits
from isthmus.errors import EntityNotFoundError, NotAllowedError

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
        """None: the name of a cluster is no identity, since two may have the same."""
        with Probe(read_broker(options)):
            return ""

    def places(self, options: Mapping[str, str]) -> Sequence[str]:
        """The nodes that the file names."""
        hosts = options.get("host", "")
        return [each.strip() for each in (hosts, *hosts.split(",")) if each.strip()]

    def check(self, options: Mapping[str, str], entity: str, *, reads: bool) -> None:
        """Asks for a queue; for what is written to, an exchange may have the name."""
        broker = read_broker(options)
        try:
            with Probe(broker) as probe:
                probe.queue(entity)
        except EntityNotFoundError:
            with Probe(broker) as probe:
                probe.exchange(entity)

    def waiting(self, options: Mapping[str, str], entity: str, group: str) -> Waits:
        """The messages of a queue that are ready; of an exchange those of the queue that is bound to it for the route."""
        with Probe(read_broker(options)) as probe:
            return Waits(probe.queue(group or entity))

    def peek(self, options: Mapping[str, str], entity: str, *, names_partition: bool = False) -> Peek:
        """Not possible.

        Raises:
            NotAllowedError: always.
        """
        raise NotAllowedError(f"queue '{entity}': RabbitMQ lets nobody look into a queue without taking from it")


SYSTEM = RabbitSystem()
