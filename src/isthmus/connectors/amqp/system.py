"""AMQP 1.0 brokers as the driver sees them (`isthmus.connectors.system`).

What it is: the checks and browsing, and a substitute for an administration, which AMQP 1.0 lacks. What it is not: a broker's own management:
queues and topics are created there, or by the broker when a link requests them; a durable subscription is created when its route first opens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from isthmus.amqp.performative import Source, Target
from isthmus.connectors.administration import Administration, EntitySize
from isthmus.connectors.amqp.browse import QueueBrowse, broker_options
from isthmus.connectors.amqp.remote import endpoint_of, open_client
from isthmus.connectors.system import Peek, Waits
from isthmus.errors import NotAllowedError
from isthmus.topology.model import NamespaceRef
from isthmus.topology.planning.change import Change
from isthmus.topology.state import NamespaceState, PlainState, WantedState
from isthmus.transport import LinkTerms, Receiver, Sender

__all__ = ["SYSTEM", "AmqpAdministration", "AmqpSystem"]

_ATTACH_SECONDS = 10.0


class AmqpAdministration:
    """The administration of a broker without one: all requested entities are reported as existing.

    Args:
        namespace: the broker.
    """

    def __init__(self, namespace: NamespaceRef) -> None:
        self._options = broker_options(namespace.options())

    def observe(self, alias: str, entities: Sequence[WantedState]) -> NamespaceState:
        """Connects, so that a broker that is unreachable, or refuses, is reported.

        Raises:
            IsthmusError: it cannot be reached, or refuses.
        """
        with open_client(self._options, f"isthmus-plan-{os.getpid()}") as client:
            endpoint = client.namespace_id
        plain = tuple(each for each in entities if isinstance(each, PlainState))
        return NamespaceState(alias=alias, endpoint=endpoint, plain=plain)

    def make(self, change: Change) -> None:
        """Makes no change.

        Raises:
            NotAllowedError: always.
        """
        raise NotAllowedError(f"{change.path}: AMQP 1.0 cannot create it; create it with the broker's own tools")

    def size(self, entity: str) -> EntitySize | None:
        """Always None: the size is unknown."""
        return None

    def close(self) -> None:
        """Does nothing: no connection is kept open."""


class AmqpSystem:
    """The kind `amqp`."""

    def administration(self, namespace: NamespaceRef) -> Administration:
        """The administration of a broker."""
        return AmqpAdministration(namespace)

    def identity(self, options: Mapping[str, str]) -> str:
        """The broker's address: a broker reports no unique identity."""
        return self.addresses(options)[0]

    def addresses(self, options: Mapping[str, str]) -> Sequence[str]:
        """Its address, in the form of errors."""
        endpoint = endpoint_of(
            broker_options({**options, "username": "", "password": "", "key_password": "", "sasl": "none"})
        )
        return [f"{endpoint.host}:{endpoint.port}"]

    def check(self, options: Mapping[str, str], entity: str, *, reads: bool) -> None:
        """Attaches a link, without credit, and detaches it.

        Raises:
            IsthmusError: the broker cannot be reached, or refuses.
        """
        with open_client(broker_options(options), f"isthmus-check-{os.getpid()}") as client:
            if reads:
                receiver = Receiver(client, entity, terms=LinkTerms(source=Source(entity))).wait_attached(
                    _ATTACH_SECONDS
                )
                receiver.close()
                return
            sender = Sender(client, entity, terms=LinkTerms(target=Target(entity)))
            what = f"'{entity}': no answer to attach"
            client.wait_until(lambda: sender.attached or sender.error is not None, _ATTACH_SECONDS, what)
            # A refusal follows the answer with a null target.
            if sender.error is not None:
                raise sender.error
            sender.close()

    def waiting(self, options: Mapping[str, str], entity: str, group: str) -> Waits:
        """Refuses: AMQP 1.0 does not report it.

        Raises:
            NotAllowedError: always.
        """
        raise NotAllowedError(
            f"'{entity}': AMQP 1.0 does not report how many messages wait; use the broker's own metrics"
        )

    def peek(self, options: Mapping[str, str], entity: str, *, names_partition: bool = False) -> Peek:
        """Browses a queue.

        Raises:
            IsthmusError: no answer, the queue does not exist, or the broker does not allow browsing.
        """
        return QueueBrowse(options, entity)


SYSTEM = AmqpSystem()
