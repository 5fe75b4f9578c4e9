"""Messages that a source sets aside, sent to an address of the same broker.

What it is: copies with their reason, in flight to the address and stored there. What it is not: the broker's own dead-letter address,
where rejected messages go, without the reason.

Invariants:
    I1. A position is reported as stored only after the broker has accepted its copy.
    I2. An address that cannot be written, or refuses a copy, ends the source's link: no message is lost, and the route reports why.
    I3. A message that cannot be read is the body of its copy.
    I4. `is_full` stops the source while many copies are not stored (`copy_limit`). The wait for outcomes begins also for copies that the broker
        grants no credit for; until a copy is stored it lasts twice as long each time (`copy_limit`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.amqp.copy_limit import is_full, longer
from isthmus.connectors.amqp.mapping import with_header, with_properties
from isthmus.connectors.amqp.remote import sender_terms
from isthmus.connectors.servicebus.port.end import MarkedSender
from isthmus.connectors.servicebus.port.outcome_wait import OutcomeWait
from isthmus.message import name as names
from isthmus.transport import Client

__all__ = ["DeadLetters"]

_TEXT_CHARACTERS = 4096


class DeadLetters:
    """The messages that one source sets aside.

    Args:
        address: the address to send them to.
        mark: called when the broker sends a frame.
    """

    def __init__(self, address: str, mark: Callable[[], None]) -> None:
        self._address = address
        self._mark = mark
        self._sender: MarkedSender | None = None
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._sent: list[int] = []  # positions by the sender's ordinals
        self._pending: dict[int, int] = {}  # sizes by position that is not stored
        self._nbytes = 0  # of these
        self._seconds = 0.0  # the next wait for outcomes; 0: as of every link

    def attach(self, client: Client) -> None:
        """Begins the link to the address.

        Raises:
            IsthmusError: the connection is lost.
        """
        terms = sender_terms(self._address, "queue")
        self._sender = MarkedSender(self._mark, client, self._address, terms=terms)
        self._sender.wait = OutcomeWait(client, self._seconds)

    @property
    def senders(self) -> tuple[MarkedSender, ...]:
        """The link, where there is one; its outcomes are awaited."""
        return () if self._sender is None else (self._sender,)

    def send(self, position: int, payload: bytes, disposition: Disposition) -> None:
        """Queues a copy."""
        reasons = {
            names.DEAD_LETTER_REASON: disposition.reason[:_TEXT_CHARACTERS],
            names.DEAD_LETTER_DESCRIPTION: disposition.description[:_TEXT_CHARACTERS],
        }
        self._pending[position] = len(payload)
        self._nbytes += len(payload)
        self._waiting.append((position, _copy(payload, {name: text for name, text in reasons.items() if text})))
        self._mark()

    @property
    def is_full(self) -> bool:
        """Whether so many copies are not stored that the source must deliver nothing more."""
        return is_full(len(self._pending), self._nbytes)

    def stored(self) -> Iterator[tuple[int, int]]:
        """First and last of positions whose copies are stored; sends waiting copies.

        Raises:
            IsthmusError: the address cannot be used.
        """
        sender = self._sender
        if sender is None:
            return
        if sender.error is not None and (self._waiting or self._sent):
            raise sender.error
        while self._waiting and sender.sendable:
            position, payload = self._waiting.popleft()
            sender.send((payload,))
            self._sent.append(position)
        while sender.outcomes:
            outcome = sender.outcomes.popleft()
            if outcome.error is not None:
                raise outcome.error
            for ordinal in range(outcome.first, outcome.last + 1):
                position = self._sent[ordinal]
                self._nbytes -= self._pending.pop(position, 0)
                self._seconds = 0.0
                yield position, position
        if self._waiting:
            sender.wait.sent(time.monotonic())  # for credit

    def pending(self) -> list[int]:
        """Positions whose copies are not stored yet."""
        return sorted(self._pending)

    def link_lost(self) -> list[int]:
        """The source's link is lost: these positions, which are not stored, are delivered again as new deliveries."""
        pending = sorted(self._pending)
        self._pending.clear()
        self._nbytes = 0
        sender, self._sender = self._sender, None
        if sender is not None and sender.wait.is_over(time.monotonic()):
            self._seconds = longer(sender.wait.seconds)
        self._waiting.clear()
        self._sent.clear()
        if sender is not None and sender.client.error is None:
            sender.close()
        return pending


def _copy(payload: bytes, reasons: Mapping[str, str]) -> bytes:
    try:
        return with_header(with_properties(payload, reasons), durable=True)
    except (CodecError, IndexError, ValueError):
        return with_header(section.encode_message(payload, application_properties=dict(reasons)), durable=True)
