"""A link that reads one partition.

What it is: the receiver of a partition's events, with its credit. Events are not settled one by one: reading takes nothing from a log. What
it is not: the account of what was read (`reading`).
Specification: Microsoft Learn, "AMQP 1.0 in Azure Service Bus and Event Hubs protocol guide"; OASIS AMQP 1.0, 2.6.7.

Invariants:
    I1. No more credit is granted than was asked for.
    I2. A link that was closed tells nothing more.
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
        partition: which.
        begin: where to begin.
        owner_level: of the reader; below 0: none.
        mark: called when something comes.
        name: of the reader, for what the namespace tells of it; empty: one that is made up.

    Attributes:
        attached: whether the service has answered.
        error: why the link is of no use any more.
        arrived: events, encoded, that were not taken.
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
        """Events that may still come."""
        return self.link.credit

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        if self.error is None and self.client.error is None:
            self.link.grant(credit)

    def take(self) -> list[bytes]:
        """The events that came since the last call."""
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

    # ---- called by the client

    def on_attached(self, link: Link) -> None:
        """The service answered; a null source announces a refusal."""
        self.attached = link.source is not None
        self._mark()

    def on_credit(self, link: Link) -> None:
        """The service used credit up."""

    def on_transfers(self, event: Transfers) -> None:
        """Events came."""
        self.arrived.append(event.payloads)
        self.count += len(event.payloads)
        if not event.settled:
            event.link.dispose(event.first_delivery_id, event.first_delivery_id + len(event.payloads) - 1)
        self._mark()

    def on_disposed(self, first: int, last: int, state: Any) -> None:
        """Of links that send."""

    def on_lost(self, error: IsthmusError) -> None:
        """The link is gone."""
        if self.error is None:
            self.error = error
        self._mark()


def _nothing() -> None:
    """Nobody is interested any more."""
