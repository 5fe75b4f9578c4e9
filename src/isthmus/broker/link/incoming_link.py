"""Base of all links on which clients send: takes deliveries, and answers them once they are durable.

What it is: the base of the links into queues and topics (`receiver link`) and into event hubs (`hub.receiver link`). It grants credit
to the client, withholds it while too much waits for the disk, and disposes of each delivery. What it is not: where messages
are stored, and transactions, which the subclasses define.
Spec: docs/explanation/protocol.md, Links, Sending.

Invariants:
    I1. accepted is sent only from the callback of the commit that made the messages durable.
    I2. A batch envelope is accepted or rejected as a whole; a run of single messages is one unit for the disk, but a bad
        message in it is rejected alone.
    I3. The only outcomes sent are accepted, and rejected with condition and text: one SDK hangs on any other.
    I4. Settled transfers get no disposition.
    I5. A deflated envelope is expanded and taken like any envelope, on a link that was offered the capability.
    I6. `owed` counts outcomes that wait for a commit, so that the link's end is sent after them (`isthmus.broker.link.departure`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from isthmus.amqp import BATCH_FORMAT, Link, Transfers
from isthmus.amqp.performative import Rejected
from isthmus.broker.link.condition import amqp_error, refusal
from isthmus.broker.link.departure import Owed
from isthmus.broker.link.handler import LinkHandler
from isthmus.broker.security.access import Access
from isthmus.broker.security.grant import Right
from isthmus.errors import IsthmusError
from isthmus.message.compression import DEFLATED_FORMAT, expand

__all__ = ["BATCH_BYTES", "CREDIT", "IncomingLink", "Refusing", "wrap"]

_log = logging.getLogger(__name__)

# Deliveries that a client may have in flight on a link; a flow frame is sent after half as many.
CREDIT = 2000
# An envelope is taken in one iteration of the loop; the service's limit, however large an entity's messages may be.
BATCH_BYTES = 1 << 20

Durable = Callable[[], None]
Failed = Callable[[Exception], None]


class Refusing(Protocol):
    """An entity that may refuse messages, and counts them."""

    refused_total: int

    def check_sendable(self) -> None:
        """Raises if no message would be taken."""
        ...


class IncomingLink(LinkHandler, ABC):
    """One link on which a client sends.

    Args:
        link: whose receiver we are, accepted.
        path: the address as the client wrote it.
        taker: the entity that takes the messages.
        account: called with bytes that wait for the disk: positive when they arrive, negative when they are durable.

    Attributes:
        destinations: other paths that the messages go to, on which the client needs Send as well.
        takes_deflated: whether deflated envelopes are taken.
    """

    destinations: tuple[str, ...] = ()
    takes_deflated = False
    owed: Owed

    def __init__(
        self, link: Link, path: str, taker: Refusing, account: Callable[[int], None], credit: int = CREDIT
    ) -> None:
        self.link = link
        self._credit = credit
        self.path = path
        self._taker = taker
        self._account = account
        self.owed = Owed()
        self._accepted = 0
        self._rejected = 0

    # ---- what the kinds differ in

    @abstractmethod
    def store(self, payloads: list[bytes], durable: Durable, failed: Failed, /) -> None:
        """Takes messages as one unit, or raises IsthmusError and takes none; later calls one of the two."""

    @abstractmethod
    def store_batch(self, envelope_bytes: bytes, durable: Durable, failed: Failed, /) -> None:
        """Takes the messages of a batch envelope in the same way."""

    @abstractmethod
    def enlist(self, event: Transfers) -> None:
        """Takes or rejects deliveries whose state names a transaction."""

    # ---- called by the connection

    def open(self) -> None:
        """Grant the first credit."""
        self.link.grant(self._credit)

    def check_open(self) -> None:
        """Raises if the link cannot continue.

        Raises:
            IsthmusError: the entity was deleted, or is disabled for sending.
        """
        self._taker.check_sendable()

    def on_credit(self) -> None:
        self.top_up()

    def is_permitted(self, access: Access) -> bool:
        return all(access.permits(path, Right.SEND) for path in (self.path, *self.destinations))

    @property
    def owes(self) -> bool:
        return self.owed.count > 0

    @property
    def activity(self) -> object:
        """A value that changes whenever the client sends a message or a part of one."""
        partial = self.link.partial
        return self.link.delivery_count, 0 if partial is None else partial.size_bytes

    def on_transfers(self, event: Transfers) -> None:
        """Take a run of deliveries."""
        first, settled = event.first_delivery_id, event.settled
        if event.state is not None:
            self.enlist(event)
        elif event.message_format == BATCH_FORMAT:
            for number, payload in enumerate(event.payloads):
                self._take_batch(payload, first + number, settled)
        elif event.message_format == DEFLATED_FORMAT and self.takes_deflated:
            for number, payload in enumerate(event.payloads):
                self._take_deflated(payload, first + number, settled)
        else:
            self._take_run(event.payloads, first, settled)
        self.top_up()

    def top_up(self) -> None:
        """Grant credit again, once half of it is used up."""
        if self.link.credit <= self._credit // 2:
            self.link.grant(self._credit)

    def statistics(self) -> dict[str, int]:
        """Deliveries accepted and rejected so far."""
        return {"accepted": self._accepted, "rejected": self._rejected}

    # ---- the steps

    def _take_batch(self, payload: bytes, delivery_id: int, settled: bool) -> None:
        size_bytes = len(payload)
        try:
            self.store_batch(payload, *self._outcomes(delivery_id, 1, size_bytes, settled))
        except IsthmusError as error:
            self.reject(delivery_id, 1, error, settled)
            return
        self._await(size_bytes)

    def _take_deflated(self, payload: bytes, delivery_id: int, settled: bool) -> None:
        try:
            whole = expand(payload, BATCH_BYTES)
        except IsthmusError as error:
            self.reject(delivery_id, 1, error, settled)
            return
        self._take_batch(whole, delivery_id, settled)

    def _take_run(self, payloads: list[bytes], first: int, settled: bool) -> None:
        size_bytes = sum(map(len, payloads))
        try:
            self.store(payloads, *self._outcomes(first, len(payloads), size_bytes, settled))
        except IsthmusError as error:
            if len(payloads) == 1:
                self.reject(first, 1, error, settled)
                return
            for number, payload in enumerate(payloads):
                self._take_run([payload], first + number, settled)
            return
        self._await(size_bytes)

    def _await(self, size_bytes: int) -> None:
        """Counts the bytes that wait for the disk and the outstanding outcome, until `_outcomes` is called."""
        self.owed.add()
        self._account(size_bytes)

    def _outcomes(self, first: int, count: int, size_bytes: int, settled: bool) -> tuple[Durable, Failed]:
        """The callbacks for a commit that succeeded, and one that failed."""

        def durable() -> None:
            self._account(-size_bytes)
            self._accepted += count
            if not settled:
                self.link.dispose(wrap(first), wrap(first + count - 1))
            self.owed.paid()

        def failed(error: Exception) -> None:
            self._account(-size_bytes)
            self.reject(first, count, error, settled)
            self.owed.paid()

        return durable, failed

    def reject(self, first: int, count: int, error: Exception, settled: bool) -> None:
        """Rejects deliveries, and counts them."""
        self._rejected += count
        self._taker.refused_total += count
        _, condition, text = refusal(error)
        _log.warning("send rejected: entity=%r condition=%s reason=%s", self.path, condition, text)
        if not settled:
            self.link.dispose(wrap(first), wrap(first + count - 1), Rejected(amqp_error(error)))


def wrap(delivery_id: int) -> int:
    """Delivery ids are serial numbers of 32 bits."""
    return delivery_id & 0xFFFFFFFF
