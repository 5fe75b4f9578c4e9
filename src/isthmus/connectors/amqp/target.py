"""A queue, topic or exchange of a broker on the port.

What it is: the link to one address, the copies in the form that the broker accepts, and its answers as events of the delivery machine. What
it is not: the decision what to send when (`isthmus.bridge.delivery.delivery`).
Specification: OASIS AMQP 1.0, 2.6.7 (credit), 3.4 (outcomes). Accepted: the broker has the message. Rejected: the message is at fault where the
condition says so, otherwise it is sent again. Released, modified: it is sent again.

Invariants:
    I1. Ordinals of outcomes are those of the present connection, from 0, in the order of sending.
    I2. Nothing is sent without the broker's credit; a connected broker that grants none for `CREDIT_SECONDS`, although messages wait, counts
        as lost.
    I3. A message that is larger than the broker's limit is not sent: the delivery machine knows the limit.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence

from isthmus.bridge.delivery_event import Granted, Lost, Opened, Progressed, Send
from isthmus.bridge.port import Copies, TargetEvent
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.amqp.mapping import Copier
from isthmus.connectors.amqp.option import TargetOptions
from isthmus.connectors.amqp.remote import remote_of, sender_terms
from isthmus.connectors.envelope import EnvelopeAccount
from isthmus.connectors.servicebus.port.end import End, MarkedSender, Step
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.connectors.servicebus.refusal import may_pass, refusal_of
from isthmus.errors import InvalidArgumentError, IsthmusError, OperationTimeoutError
from isthmus.transport import Client

__all__ = ["CREDIT_SECONDS", "AmqpTarget"]

CREDIT_SECONDS = 30.0
# The product name in the open frame of a broker that detects duplicates by a property of the message.
_DETECTS = "apache-activemq-artemis"


class AmqpTarget(End):
    """One route's target.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the address, and how copies are made.
        origin_identity: identity of the namespace from which the messages are read; empty where unknown.
    """

    def __init__(self, pool: ConnectionPool, key: int, options: TargetOptions, origin_identity: str) -> None:
        super().__init__(pool, key, options.entity, remote_of(options), sessions=1)
        self._options = options
        self._origin_identity = origin_identity
        self._copier: Copier | None = None
        self._sender: MarkedSender | None = None
        self._flight = EnvelopeAccount()
        self._waiting: deque[bytes] = deque()  # messages of envelopes beyond the link's credit
        self._credit = 0
        self._no_credit_since = math.inf
        self._has_work = False  # copies were made

    # ---- the port

    def poll(self, now: float) -> Sequence[TargetEvent]:
        """The events since the last call."""
        events: list[TargetEvent] = []
        sender = self._sender
        self.check_time(now)
        if self.check_outcomes(self._senders, now):
            events.append(Progressed())
        if sender is not None and self.fault is None:
            if self.step is Step.ATTACHING and sender.attached and sender.error is None:
                self._opened(sender, events)
            if self.step is Step.ATTACHED:
                self._send_waiting(sender)
                self._granted(sender, events, now)
        if sender is not None and self.step is Step.ATTACHED:
            self._outcomes(sender, events)
        error = self.fault or (sender.error if sender is not None else None)
        if error is not None:
            lost = _lost(error)
            events += self._flight.lost(lost.refusal)
            self._disconnect(now)
            events.append(lost)
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has work even without socket activity."""
        return min(self.step_deadline(now), self._no_credit_since + CREDIT_SECONDS, self.outcomes_due(self._senders))

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        """The copies of messages as this target accepts them.

        Raises:
            InvalidArgumentError: the target was never open.
        """
        if self._copier is None:
            raise InvalidArgumentError(
                f"'{self.path}': copies are made for a target that has answered; wait for Opened"
            )
        made = self._copier.copies(data, offsets, now_ms)
        self._has_work = self._has_work or bool(made.payloads)
        return made

    def send(self, send: Send) -> None:
        """Queues deliveries; after a lost connection it does nothing, and `poll` reports the loss."""
        sender = self._sender
        if sender is None or sender.error is not None or self.step is not Step.ATTACHED:
            return
        if send.is_envelope:
            self._flight.sent_envelope(len(send.payloads))
            self._waiting.extend(send.payloads)
            self._credit -= 1
            self._send_waiting(sender)
            return
        self._flight.sent(len(send.payloads))
        self._credit -= len(send.payloads)
        if self._waiting:
            self._waiting.extend(send.payloads)
            self._send_waiting(sender)
        else:
            sender.send(send.payloads)

    def close(self) -> None:
        """Closes it."""
        self._disconnect(time.monotonic())
        self.pool.unmark(self.key)

    # ---- the link

    def attach(self, client: Client) -> None:
        """Begins the link."""
        terms = sender_terms(self.path, self._options.entity_type)
        self._sender = MarkedSender(self.mark, client, self.path, terms=terms)

    def _opened(self, sender: MarkedSender, events: list[TargetEvent]) -> None:
        detects = str(sender.client.peer_properties.get("product", "")) == _DETECTS
        self._copier = Copier(self._options, self._origin_identity, detects=detects)
        self.attached()
        self._credit = 0
        self._flight = EnvelopeAccount()
        limits = [each for each in (sender.max_message_bytes, self._options.max_message_bytes) if each]
        events.append(Opened(min(limits, default=0)))

    def _send_waiting(self, sender: MarkedSender) -> None:
        while self._waiting and sender.sendable:
            count = min(sender.sendable, len(self._waiting))
            sender.send([self._waiting.popleft() for _ in range(count)])

    def _granted(self, sender: MarkedSender, events: list[TargetEvent], now: float) -> None:
        credit = max(0, sender.sendable - len(self._waiting))
        if credit != self._credit:
            self._credit = credit
            events.append(Granted(credit))
        if credit or sender.outstanding or not self._has_work:
            self._no_credit_since = math.inf
        elif self._no_credit_since == math.inf:
            self._no_credit_since = now
        elif now >= self._no_credit_since + CREDIT_SECONDS:
            self.fail(
                OperationTimeoutError(
                    f"'{self.path}': the broker has granted no credit for {CREDIT_SECONDS:g} s; check whether the address is full"
                )
            )

    def _outcomes(self, sender: MarkedSender, events: list[TargetEvent]) -> None:
        outcomes = sender.outcomes
        while outcomes:
            first, last, error = outcomes.popleft()
            if error is not None:
                events += self._flight.answered(first, last, refusal_of(error))
                continue
            while outcomes and outcomes[0].first == last + 1 and outcomes[0].error is None:
                last = outcomes.popleft().last
            events += self._flight.answered(first, last, None)

    @property
    def _senders(self) -> tuple[MarkedSender, ...]:
        return () if self._sender is None else (self._sender,)

    def _disconnect(self, now: float) -> None:
        sender, self._sender = self._sender, None
        if sender is not None and sender.client.error is None:
            sender.close()
        self._waiting.clear()
        self._credit, self._no_credit_since = 0, math.inf
        self.disconnect(now)


def _lost(error: IsthmusError) -> Lost:
    """The meaning of a lost connection, or a failed opening, for the delivery machine."""
    kind = RefusalKind.UNKNOWN if may_pass(error) else RefusalKind.FATAL
    return Lost(Refusal(kind, "", str(error)))
