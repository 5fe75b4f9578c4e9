"""A link that reads one partition.

What it is: the receiver of a partition's events, with its credit. Events are not settled individually: reading takes nothing from a log. What
it is not: the account of read events (`reading`).
Specification: Microsoft Learn, "AMQP 1.0 in Azure Service Bus and Event Hubs protocol guide"; OASIS AMQP 1.0, 2.6.7.

Invariants:
    I1. No more credit is granted than was requested.
    I2. A closed link reports nothing more.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from isthmus.amqp.performative import Target
from isthmus.connectors.eventhubs.partition.address import GEO_REPLICATION, Begin, receiver_properties, receiver_source
from isthmus.errors import IsthmusError

if TYPE_CHECKING:
    from isthmus.amqp import Link, Transfers
    from isthmus.transport import Client

__all__ = ["PartitionLink"]

_SETTLED = 1


class PartitionLink:
    """The link.

    Args:
        client: an open connection, authorized for the hub.
        hub: name of the event hub.
        group: the consumer group.
        partition: its number.
        begin: the start of the link.
        owner_level: the reader's owner level; below 0: none.
        mark: called when a frame arrives.
        name: the reader's name, for the namespace's diagnostics; empty: a generated one.

    Attributes:
        attached: whether the service has answered.
        error: why the link is unusable.
        arrived: encoded events that were not taken.
    """

    def __init__(
        self,
        client: Client,
        hub: str,
        group: str,
        partition: int,
        begin: Begin,
        owner_level: int,
        mark: Callable[[], None],
        name: str = "",
    ) -> None:
        self.client = client
        self.partition = partition
        self.path = f"{hub}/ConsumerGroups/{group}/Partitions/{partition}"
        self.attached = False
        self.error: IsthmusError | None = None
        self.arrived: list[Sequence[bytes]] = []
        self.count = 0
        self._mark = mark
        self._session = client.begin(self)
        link_name = f"isthmus-{uuid.uuid4().hex[:12]}"
        self.link = self._session.attach_receiver(
            link_name,
            receiver_source(hub, group, partition, begin),
            target=Target(client.connection.container_id),
            snd_settle_mode=_SETTLED,
            desired_capabilities=[GEO_REPLICATION],
            properties=receiver_properties(owner_level, name or link_name),
        )
        self.link.context = self

    @property
    def credit(self) -> int:
        """Events that may still arrive."""
        return self.link.credit

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        if self.error is None and self.client.error is None:
            self.link.grant(credit)

    def take(self) -> list[bytes]:
        """The events since the last call."""
        taken = [payload for payloads in self.arrived for payload in payloads]
        self.arrived.clear()
        self.count = 0
        return taken

    def close(self) -> None:
        """Detaches."""
        self._mark = _nothing
        self.arrived.clear()
        if self.client.error is None:
            self.link.detach()
            self.client.end(self._session)

    # ---- calls of the client

    def on_attached(self, link: Link) -> None:
        """The service answered; a null source announces a refusal."""
        self.attached = link.source is not None
        self._mark()

    def on_credit(self, link: Link) -> None:
        """The service used credit."""

    def on_transfers(self, event: Transfers) -> None:
        """Events arrived."""
        self.arrived.append(event.payloads)
        self.count += len(event.payloads)
        if not event.settled:
            event.link.dispose(event.first_delivery_id, event.first_delivery_id + len(event.payloads) - 1)
        self._mark()

    def on_disposed(self, first: int, last: int, state: Any) -> None:
        """Ignored: only for sending links."""

    def on_lost(self, error: IsthmusError) -> None:
        """The link is lost."""
        if self.error is None:
            self.error = error
        self._mark()


def _nothing() -> None:
    """The callback of a closed link."""
