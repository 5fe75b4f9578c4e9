"""AMQP 1.0 brokers as the driver sees them (`isthmus.connectors.system`).

What it is: looks, and what takes the place of an administration, which AMQP 1.0 lacks. What it is not: a broker's own management: queues and
topics are made there, or by the broker when a link asks for them; a durable subscription is made when its route first opens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from isthmus.amqp.performative import Source, Target
from isthmus.connectors.administration import Administration, EntitySize
from isthmus.connectors.amqp.browse import QueueBrowse, broker_options
from isthmus.connectors.amqp.peer import endpoint_of, open_client
from isthmus.connectors.system import Peek, Waits
from isthmus.errors import NotAllowedError
from isthmus.topology.model import NamespaceRef
from isthmus.topology.planning.change import Change
from isthmus.topology.state import NamespaceState, PlainState, WantedState
from isthmus.transport import LinkTerms, Receiver, Sender

__all__ = ["SYSTEM", "AmqpAdministration", "AmqpSystem"]

_ATTACH_SECONDS = 10.0


class AmqpAdministration:
    """What a broker without administration answers: all that is asked for exists.

    Args:
        namespace: the broker.
    """

    def __init__(self, namespace: NamespaceRef) -> None:
        self._options = broker_options(namespace.options())

    def observe(self, alias: str, entities: Sequence[WantedState]) -> NamespaceState:
        """Connects, so that a broker that is away, or refuses, is told of.

        Raises:
            IsthmusError: it cannot be reached, or refuses.
        """
        with open_client(self._options, f"isthmus-plan-{os.getpid()}") as client:
            endpoint = client.namespace_id
        plain = tuple(each for each in entities if isinstance(each, PlainState))
        return NamespaceState(alias=alias, endpoint=endpoint, plain=plain)

    def make(self, change: Change) -> None:
        """Nothing is ever missing.

        Raises:
            NotAllowedError: always.
        """
        raise NotAllowedError(f"{change.path}: AMQP 1.0 cannot make it; make it by the broker's own tools")

    def size(self, entity: str) -> EntitySize | None:
        """Not told."""
        return None

    def close(self) -> None:
        """Nothing is kept open."""


class AmqpSystem:
    """The kind `amqp`."""

    def administration(self, namespace: NamespaceRef) -> Administration:
        """Of a broker."""
        return AmqpAdministration(namespace)

    def identity(self, options: Mapping[str, str]) -> str:
        """A broker tells none that no other one has: its address."""
        return self.places(options)[0]

    def places(self, options: Mapping[str, str]) -> Sequence[str]:
        """Its address, as errors write it."""
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
            # A refusal follows the answer of a null target.
            if sender.error is not None:
                raise sender.error
            sender.close()

    def waiting(self, options: Mapping[str, str], entity: str, group: str) -> Waits:
        """Not told by AMQP 1.0.

        Raises:
            NotAllowedError: always.
        """
        raise NotAllowedError(
            f"'{entity}': AMQP 1.0 does not tell how many messages wait; look at the broker's own metrics"
        )

    def peek(self, options: Mapping[str, str], entity: str, *, names_partition: bool = False) -> Peek:
        """A queue, browsed.

        Raises:
            IsthmusError: no answer, no such queue, or the broker does not let it be browsed.
        """
        return QueueBrowse(options, entity)


SYSTEM = AmqpSystem()
