"""Links on which clients send messages into a queue or topic.

What it is: takes runs of transfers to the entity and disposes of them once they are durable; keeps the client in credit
and holds it back while too much waits for the disk. What it is not: validation of messages, which the entity does.
Spec: SERVICE-BUS.md W5, W6.

Invariants:
    I1. accepted leaves only from the callback of the commit that made the messages durable.
    I2. A batch envelope is accepted or rejected as a whole; a run of single messages is one unit for the disk, but a bad
        message in it is rejected alone.
    I3. The only outcomes sent are accepted, and rejected with condition and text: one SDK hangs on any other.
    I4. Settled transfers get no disposition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from isthmus.amqp import BATCH_FORMAT, Link, Transfers
from isthmus.amqp.performative import Accepted, Rejected, TransactionalState
from isthmus.broker.condition import amqp_error, refusal
from isthmus.broker.coordinator import Transactions
from isthmus.entities import Transaction, envelope
from isthmus.entities.transaction import Destination as Examined
from isthmus.errors import IsthmusError, NotAllowedError

__all__ = ["CREDIT", "Destination", "Intake"]

_log = logging.getLogger(__name__)

# Deliveries that a client may have under way on a link; one frame of a flow serves half as many.
CREDIT = 2000


class Destination(Examined, Protocol):
    """What takes messages: a queue, a topic, or the way via one."""

    refused_total: int

    def check_sendable(self) -> None:
        """Refuse where no message would be taken."""
        ...

    def accept(
        self,
        payloads: list[bytes],
        on_durable: Callable[[], None] | None = None,
        on_failed: Callable[[Exception], None] | None = None,
        /,
    ) -> None:
        """Take messages as one unit."""
        ...


class Intake:
    """One link on which a client sends.

    Args:
        link: whose receiver we are, accepted.
        path: the entity as the client wrote it.
        destination: the entity.
        account: told of bytes that wait for the disk: positive when they come, negative when they are durable.
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
        self.link = link
        self.path = path
        self._destination = destination
        self._account = account
        self._transactions = transactions
        self._accepted = 0
        self._rejected = 0

    def open(self) -> None:
        """Grant the first credit."""
        self.link.grant(CREDIT)

    def check_open(self) -> None:
        """Refuse where the link cannot go on.

        Raises:
            IsthmusError: the entity was deleted, or takes no messages any more.
        """
        self._destination.check_sendable()

    @property
    def activity(self) -> object:
        """Changes whenever the client sends."""
        return self.link.delivery_count

    def on_transfers(self, event: Transfers) -> None:
        """Take a run of deliveries."""
        first, settled = event.first_delivery_id, event.settled
        if event.state is not None:
            self._take_enlisted(event)
        elif event.message_format == BATCH_FORMAT:
            for number, payload in enumerate(event.payloads):
                self._take_batch(payload, first + number, settled)
        else:
            self._take_run(event.payloads, first, settled)
        if self.link.credit <= CREDIT // 2:
            self.link.grant(CREDIT)

    def _take_enlisted(self, event: Transfers) -> None:
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
            self._reject(first, len(event.payloads), error, event.settled)
            return
        if not event.settled:
            last = first + len(event.payloads) - 1
            self.link.dispose(_wrap(first), _wrap(last), TransactionalState(state.txn_id, Accepted()))

    def statistics(self) -> dict[str, int]:
        """Deliveries accepted and rejected so far."""
        return {"accepted": self._accepted, "rejected": self._rejected}

    def _take_batch(self, payload: bytes, delivery_id: int, settled: bool) -> None:
        try:
            self._accept(envelope.unpack(payload), delivery_id, 1, settled)
        except IsthmusError as error:
            self._reject(delivery_id, 1, error, settled)

    def _take_run(self, payloads: list[bytes], first: int, settled: bool) -> None:
        try:
            self._accept(payloads, first, len(payloads), settled)
        except IsthmusError as error:
            if len(payloads) == 1:
                self._reject(first, 1, error, settled)
                return
            for number, payload in enumerate(payloads):
                self._take_run([payload], first + number, settled)

    def _accept(self, messages: list[bytes], first: int, count: int, settled: bool) -> None:
        size_bytes = sum(map(len, messages))
        last = first + count - 1

        def durable() -> None:
            self._account(-size_bytes)
            self._accepted += count
            if not settled:
                self.link.dispose(_wrap(first), _wrap(last))

        def failed(error: Exception) -> None:
            self._account(-size_bytes)
            self._reject(first, count, error, settled)

        self._destination.accept(messages, durable, failed)
        self._account(size_bytes)

    def _reject(self, first: int, count: int, error: Exception, settled: bool) -> None:
        self._rejected += count
        self._destination.refused_total += count
        _, condition, text = refusal(error)
        _log.warning("send rejected: entity=%r condition=%s reason=%s", self.path, condition, text)
        if not settled:
            self.link.dispose(_wrap(first), _wrap(first + count - 1), Rejected(amqp_error(error)))


def _wrap(delivery_id: int) -> int:
    """Delivery ids are serial numbers of 32 bits."""
    return delivery_id & 0xFFFFFFFF
