"""Links on which producers send events into an event hub.

What it is: takes runs of transfers to the hub and disposes of them once they are durable, in credit and held back as
senders of queues are. What it is not: the choice of the partition, which the hub makes.
Spec: SERVICE-BUS.md W6, W16.

Invariants:
    I1. accepted leaves only from the callback of the commit that made the events durable.
    I2. A batch envelope is accepted or rejected as a whole, and goes to one partition; a bad event in a run of single
        ones is rejected alone.
    I3. The only outcomes sent are accepted, and rejected with condition and text.
    I4. Settled transfers get no disposition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from isthmus.amqp import BATCH_FORMAT, Link, Transfers
from isthmus.amqp.performative import Rejected
from isthmus.broker.condition import amqp_error, refusal
from isthmus.entities import envelope
from isthmus.entities.hub import EventHub, Partition
from isthmus.errors import IsthmusError, NotAllowedError

__all__ = ["HubIntake"]

_log = logging.getLogger(__name__)

# As for queues: deliveries under way on a link; one frame of a flow serves half as many.
_CREDIT = 2000
_MASK32 = 0xFFFFFFFF


class HubIntake:
    """One link on which a producer sends.

    Args:
        link: whose receiver we are, accepted.
        path: the address as the client wrote it.
        hub: where the events go.
        partition: the one that the address names; None leaves the choice to the hub.
        account: told of bytes that wait for the disk: positive when they come, negative when they are durable.
    """

    def __init__(
        self, link: Link, path: str, hub: EventHub, partition: Partition | None, account: Callable[[int], None]
    ) -> None:
        self.link = link
        self.path = path
        self._hub = hub
        self._partition = partition
        self._account = account
        self._accepted = 0
        self._rejected = 0

    def open(self) -> None:
        """Grant the first credit."""
        self.link.grant(_CREDIT)

    def check_open(self) -> None:
        """Refuse where the link cannot go on.

        Raises:
            IsthmusError: the hub was deleted, or takes no events any more.
        """
        self._hub.check_sendable()

    def on_transfers(self, event: Transfers) -> None:
        """Take a run of deliveries."""
        first, settled = event.first_delivery_id, event.settled
        if event.state is not None:
            self._reject(first, len(event.payloads), NotAllowedError("Event hubs take no transactions."), settled)
        elif event.message_format == BATCH_FORMAT:
            for number, payload in enumerate(event.payloads):
                self._take_batch(payload, first + number, settled)
        else:
            self._take_run(event.payloads, first, settled)
        if self.link.credit <= _CREDIT // 2:
            self.link.grant(_CREDIT)

    def statistics(self) -> dict[str, int]:
        """Deliveries accepted and rejected so far."""
        return {"accepted": self._accepted, "rejected": self._rejected}

    def _take_batch(self, payload: bytes, delivery_id: int, settled: bool) -> None:
        durable, failed = self._outcomes(delivery_id, 1, len(payload), settled)
        try:
            self._hub.accept_batch(payload, envelope.unpack(payload), self._partition, durable, failed)
        except IsthmusError as error:
            self._reject(delivery_id, 1, error, settled)
            return
        self._account(len(payload))

    def _take_run(self, payloads: list[bytes], first: int, settled: bool) -> None:
        size_bytes = sum(map(len, payloads))
        durable, failed = self._outcomes(first, len(payloads), size_bytes, settled)
        try:
            self._hub.accept(payloads, self._partition, durable, failed)
        except IsthmusError as error:
            if len(payloads) == 1:
                self._reject(first, 1, error, settled)
                return
            for number, payload in enumerate(payloads):
                self._take_run([payload], first + number, settled)
            return
        self._account(size_bytes)

    def _outcomes(
        self, first: int, count: int, size_bytes: int, settled: bool
    ) -> tuple[Callable[[], None], Callable[[Exception], None]]:
        """What happens when the commit has ended well, and when it has not."""

        def durable() -> None:
            self._account(-size_bytes)
            self._accepted += count
            if not settled:
                self.link.dispose(first & _MASK32, (first + count - 1) & _MASK32)

        def failed(error: Exception) -> None:
            self._account(-size_bytes)
            self._reject(first, count, error, settled)

        return durable, failed

    def _reject(self, first: int, count: int, error: Exception, settled: bool) -> None:
        self._rejected += count
        self._hub.refused_total += count
        _, condition, text = refusal(error)
        _log.warning("send rejected: event hub=%r condition=%s reason=%s", self.path, condition, text)
        if not settled:
            self.link.dispose(first & _MASK32, (first + count - 1) & _MASK32, Rejected(amqp_error(error)))
