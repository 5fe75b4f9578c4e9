"""Links on which clients send messages into a queue or topic.

What it is: an `IncomingLink` into an entity, alone or within a transaction. What it is not: validation of messages, which the
entity does.
Spec: docs/explanation/protocol.md, Links, Sending, Transactions.

Invariants:
    I1. Messages of a link are taken in the order in which they were sent: messages that arrive while a large one is written
        wait.
    I2. A large message in a transaction is stored before anything that follows it on the connection is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from isthmus.amqp import BATCH_FORMAT, Link, TransferParts, Transfers
from isthmus.amqp.performative import Accepted, TransactionalState
from isthmus.broker.large import LARGE_BYTES, LargeDesk, Upload
from isthmus.broker.link.coordinator import Transactions
from isthmus.broker.link.handler import LinkUse
from isthmus.broker.link.incoming_link import BATCH_BYTES, CREDIT, Durable, Failed, IncomingLink, Refusing, wrap
from isthmus.broker.security.grant import Right
from isthmus.entities import Copy, Large, Payload, Transaction
from isthmus.entities.port import MessageTarget
from isthmus.entities.record import envelope
from isthmus.entities.transaction.participant import Participant
from isthmus.errors import IsthmusError, MessageTooLargeError, NotAllowedError

__all__ = ["BATCH_BYTES", "CREDIT", "Destination", "ReceiverLink"]


class Destination(Participant, Refusing, Protocol):
    """The destination of messages: a queue, a topic, or a transfer via one."""

    def accept(
        self,
        payloads: Sequence[Payload],
        on_durable: Callable[[], None] | None = None,
        on_failed: Callable[[Exception], None] | None = None,
        /,
    ) -> None:
        """Takes messages as one unit."""
        ...

    def reserve_room(self, size_bytes: int, /) -> None:
        """See `isthmus.entities.queue.intake.Intake.reserve_room`."""
        ...

    def release_room(self, size_bytes: int, /) -> None:
        """See `isthmus.entities.queue.intake.Intake.release_room`."""
        ...


class ReceiverLink(IncomingLink):
    """One link on which a client sends.

    Args:
        link: whose receiver we are, accepted.
        path: the entity as the client wrote it.
        destination: the entity.
        account: as for `IncomingLink`.
        transactions: of the connection.
        large: takes large messages; None reads them like all others.
        account_large: called with bytes of large messages that wait for the disk, as `account` with those of others.
        batch_limit: how many messages an envelope may have; None for any number.
        credit: deliveries that the client may have in flight, unread by the namespace.
        takes_copies: whether the messages are a route's copies, which have duplicate keys.
    """

    use = LinkUse("publisher", "Message")

    def __init__(
        self,
        link: Link,
        path: str,
        destination: MessageTarget,
        account: Callable[[int], None],
        transactions: Transactions,
        large: LargeDesk | None = None,
        account_large: Callable[[int], None] = lambda size: None,
        *,
        batch_limit: int | None = None,
        credit: int = CREDIT,
        takes_copies: bool = False,
    ) -> None:
        super().__init__(link, path, destination, account, credit)
        self._takes_copies = takes_copies
        self._destination = destination
        self._transactions = transactions
        self._large = large
        self._account_large = account_large
        self._batch_limit = batch_limit
        if large is not None and large.files is not None:
            link.parts_above_bytes = LARGE_BYTES
        # A large message whose end has not come.
        self._coming: Upload | None = None
        # Messages that cannot be taken yet: a large message that is being written, and all after it.
        self._line: deque[tuple[Upload | None, Transfers]] = deque()

    # ---- large messages

    def on_transfers(self, event: Transfers) -> None:
        if self._line:
            self._append(None, event)
            if event.state is None:
                return
            self._clear_line()
            return
        super().on_transfers(event)

    def on_parts(self, event: TransferParts) -> None:
        """Takes parts of a large message."""
        upload = self._coming
        if upload is None:
            assert self._large is not None
            upload = self._coming = Upload(self._large, self._account_large, cast("Destination", self._destination))
        if event.aborted:
            self._coming = None
            upload.abort()
            return
        upload.add(event.parts)
        if not event.is_last:
            return
        self._coming = None
        whole = Transfers(event.link, event.delivery_id, [b""], [], 0, event.settled, event.state)
        self._append(upload, whole)
        if event.state is None:
            upload.finish(self._advance)
        else:
            self._clear_line()

    def close(self) -> None:
        """The link is gone; complete messages are still stored."""
        if self._coming is not None:
            self._coming.abort()
            self._coming = None

    def _append(self, upload: Upload | None, event: Transfers) -> None:
        self._line.append((upload, event))
        self.owed.add()

    def _clear_line(self) -> None:
        """Takes everything now (I2)."""
        for upload, _ in list(self._line):
            if upload is not None:
                upload.finish_now()
        self._advance()

    def _advance(self) -> None:
        while self._line:
            upload, event = self._line[0]
            if upload is not None and not upload.is_over:
                return
            self._line.popleft()
            if upload is None:
                super().on_transfers(event)
            else:
                self._take_large(upload, event)
            self.owed.paid()

    def _take_large(self, upload: Upload, event: Transfers) -> None:
        first, settled = event.first_delivery_id, event.settled
        rejected = self._rejected
        payload: Large | None = None
        upload.release_room()
        try:
            payload = upload.payload()
            payload.is_copy = self._takes_copies
            if event.state is None:
                size_bytes = len(payload.front) + 1
                self.store([payload], *self._outcomes(first, 1, size_bytes, settled))
                self._await(size_bytes)
        except IsthmusError as error:
            if settled:
                self._transactions.lose(event.state)
            self.reject(first, 1, error, settled)
        else:
            if event.state is not None:
                payloads: list[Any] = [payload]
                event.payloads = payloads
                self.enlist(event)
        if payload is not None and self._rejected > rejected:
            payload.blob.let_go()
        self.top_up()
        self._touch()

    def _touch(self) -> None:
        """Schedules a flush: this runs outside the connection's own event handling."""
        self._account(0)

    # ---- as all links

    def store(self, payloads: Sequence[Payload], durable: Durable, failed: Failed, /) -> None:
        self._destination.accept(self._typed(payloads), durable, failed)

    def store_batch(self, envelope_bytes: bytes, durable: Durable, failed: Failed, /) -> None:
        self._destination.accept(self._unpack(envelope_bytes), durable, failed)

    def enlist(self, event: Transfers) -> None:
        """Takes a delivery into the transaction that its state names; deliveries with a state arrive in runs of one."""
        state, first = event.state, event.first_delivery_id
        found: Transaction | None = None
        try:
            if not isinstance(state, TransactionalState):
                raise NotAllowedError("A transfer's state can only name a transaction.")
            amqp_session = self.link.amqp_session
            found = self._transactions.find(
                state.txn_id, amqp_session, [(each, Right.SEND) for each in (self.path, *self.destinations)]
            )
            way = self._transactions.way(state.txn_id, self._destination.path, amqp_session)
            for payload in event.payloads:
                is_batch = event.message_format == BATCH_FORMAT
                messages = self._unpack(payload) if is_batch else self._typed([payload])
                found.send(way or self._destination, messages)
        except IsthmusError as error:
            if found is not None and event.settled:
                found.doom(error)
            self.reject(first, len(event.payloads), error, event.settled)
            return
        if not event.settled:
            last = first + len(event.payloads) - 1
            self.link.dispose(wrap(first), wrap(last), TransactionalState(state.txn_id, Accepted()))

    def _unpack(self, payload: bytes) -> Sequence[Payload]:
        """The messages of an envelope.

        Raises:
            MessageTooLargeError: there are many, and the envelope is too large, or too many.
            InvalidMessageError: it is not an envelope.
        """
        messages = envelope.unpack(payload, self._batch_limit, are_copies=self._takes_copies)
        if len(payload) > BATCH_BYTES and len(messages) > 1:
            raise MessageTooLargeError(len(payload), BATCH_BYTES)
        return messages

    def _typed(self, payloads: Sequence[Payload]) -> Sequence[Payload]:
        """Messages with their type: copies, or messages of a client. Large ones have it already."""
        if not self._takes_copies:
            return payloads
        return [Copy(payload) if isinstance(payload, bytes) else payload for payload in payloads]
