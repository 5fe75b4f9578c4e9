"""Links on which producers send events into an event hub.

What it is: an `IncomingLink` into a hub. A batch envelope goes to one partition as a whole. What it is not: the choice of the
partition, which the hub makes.
Spec: docs/explanation/protocol.md, Sending, Event Hubs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.amqp import Link, Transfers
from isthmus.broker.link.handler import LinkUse
from isthmus.broker.link.incoming_link import Durable, Failed, IncomingLink
from isthmus.entities.hub import EventHub, Partition
from isthmus.entities.record import envelope
from isthmus.errors import NotAllowedError

__all__ = ["HubReceiverLink"]


class HubReceiverLink(IncomingLink):
    """One link on which a producer sends.

    Args:
        link: whose receiver we are, accepted.
        path: the address as the client wrote it.
        hub: where the events go.
        partition: the one in the address; None leaves the choice to the hub.
        account: as for `IncomingLink`.
        lose: called with the state of an event that is refused, and whose producer waits for no outcome.
    """

    use = LinkUse("publisher", "EventHub")

    def __init__(
        self,
        link: Link,
        path: str,
        hub: EventHub,
        partition: Partition | None,
        account: Callable[[int], None],
        lose: Callable[[Any], None],
    ) -> None:
        super().__init__(link, path, hub, account)
        self._lose = lose
        self._hub = hub
        self._partition = partition

    def store(self, payloads: list[bytes], durable: Durable, failed: Failed, /) -> None:
        self._hub.accept(payloads, self._partition, durable, failed)

    def store_batch(self, envelope_bytes: bytes, durable: Durable, failed: Failed, /) -> None:
        self._hub.accept_batch(envelope_bytes, envelope.unpack(envelope_bytes), self._partition, durable, failed)

    def enlist(self, event: Transfers) -> None:
        error = NotAllowedError("Event hubs take no transactions.")
        if event.settled:
            self._lose(event.state)
        self.reject(event.first_delivery_id, len(event.payloads), error, event.settled)
