"""Links on which clients send messages into a queue or topic.

What it is: an `Inflow` into an entity, alone or within a transaction. What it is not: validation of messages, which the
entity does.
Spec: SERVICE-BUS.md W5, W6, W12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from isthmus.amqp import BATCH_FORMAT, Link, Transfers
from isthmus.amqp.performative import Accepted, TransactionalState
from isthmus.broker.coordinator import Transactions
from isthmus.broker.inflow import CREDIT, Durable, Failed, Inflow, Refusing, wrap
from isthmus.entities import Transaction, envelope
from isthmus.entities.transaction import Destination as Examined
from isthmus.errors import IsthmusError, NotAllowedError

__all__ = ["CREDIT", "Destination", "Intake"]


class Destination(Examined, Refusing, Protocol):
    """What takes messages: a queue, a topic, or the way via one."""

    def accept(
        self,
        payloads: list[bytes],
        on_durable: Callable[[], None] | None = None,
        on_failed: Callable[[Exception], None] | None = None,
        /,
    ) -> None:
        """Take messages as one unit."""
        ...


class Intake(Inflow):
    """One link on which a client sends.

    Args:
        link: whose receiver we are, accepted.
        path: the entity as the client wrote it.
        destination: the entity.
        account: as for `Inflow`.
        transactions: of the connection.
    """

    def __init__(
        self,
        link: Link,
        path: str,
        destination: Destination,
        account: Callable[[int], None],
        transactions: Transactions,
    ) -> None:
        super().__init__(link, path, destination, account)
        self._destination = destination
        self._transactions = transactions

    def store(self, payloads: list[bytes], durable: Durable, failed: Failed, /) -> None:
        self._destination.accept(payloads, durable, failed)

    def store_batch(self, envelope_bytes: bytes, durable: Durable, failed: Failed, /) -> None:
        self._destination.accept(envelope.unpack(envelope_bytes), durable, failed)

    def enlist(self, event: Transfers) -> None:
        """Take a delivery into the transaction that its state names; deliveries with a state come alone."""
        state, first = event.state, event.first_delivery_id
        found: Transaction | None = None
        try:
            if not isinstance(state, TransactionalState):
                raise NotAllowedError("A transfer's state can only name a transaction.")
            found = self._transactions.find(state.txn_id)
            for payload in event.payloads:
                messages = envelope.unpack(payload) if event.message_format == BATCH_FORMAT else [payload]
                found.send(self._destination, messages)
        except IsthmusError as error:
            if found is not None and event.settled:
                found.doom(error)
            self.reject(first, len(event.payloads), error, event.settled)
            return
        if not event.settled:
            last = first + len(event.payloads) - 1
            self.link.dispose(wrap(first), wrap(last), TransactionalState(state.txn_id, Accepted()))
