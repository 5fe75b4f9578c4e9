"""A target entity on the port.

What it is: the link to one queue or topic, the copies in the form that the target accepts, and its answers as events of the delivery
machine. What it is not: the decision what to send when (`isthmus.bridge.delivery.delivery`).

Invariants:
    I1. Ordinals of outcomes are those of the present connection, from 0, in the order of sending.
    I2. Copies are made for the namespace that answered first; another one is refused by this target.
    I3. A connected target that grants no credit for `CREDIT_SECONDS`, although messages wait, counts as lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from isthmus.amqp import BATCH_FORMAT
from isthmus.bridge.delivery_event import Granted, Lost, Opened, Outcome, Progressed, Send
from isthmus.bridge.port import Copies, TargetEvent
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.copier import SourceIsTargetError, check_apart, copies_of
from isthmus.connectors.servicebus.message.message_rewriter import Mark, MessageRewriter
from isthmus.connectors.servicebus.option import SinkOptions
from isthmus.connectors.servicebus.port.connection import remote_of
from isthmus.connectors.servicebus.port.end import End, MarkedSender, Step
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.connectors.servicebus.refusal import may_pass, refusal_of
from isthmus.connectors.servicebus.spark.error import TargetChangedError
from isthmus.errors import InvalidArgumentError, IsthmusError, OperationTimeoutError
from isthmus.message import DUPLICATE_KEYS
from isthmus.message import name as names
from isthmus.message.compression import DEFLATE, DEFLATED_FORMAT, compress
from isthmus.message.copy_policy import CopyPolicy
from isthmus.transport import Client
from isthmus.transport.sender import envelope

__all__ = ["CREDIT_SECONDS", "ServiceBusTarget"]

CREDIT_SECONDS = 30.0
# A larger number would save little credit, and require more to be sent again where one is refused; the service accepts thousands.
ENVELOPE_MESSAGES = 200
# Larger envelopes are sent uncompressed: a namespace expands no more at a time.
ENVELOPE_BYTES = 1_000_000
# A partitioned entity, or an event hub, uses the key of an envelope or of its first message.
_PARTITION_KEY = names.PARTITION_KEY.encode()


class ServiceBusTarget(End):
    """One route's target.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the entity, and how copies are made.
        origin_identity: identity of the namespace from which the messages are read; empty where unknown.
    """

    def __init__(self, pool: ConnectionPool, key: int, options: SinkOptions, origin_identity: str) -> None:
        super().__init__(pool, key, options.entity.strip("/"), remote_of(options), sessions=1)
        self._options = options
        self._origin_identity = origin_identity
        # Sequence numbers identify messages of one namespace: without its identity they are not duplicate keys.
        asks = bool(options.origin and origin_identity) and options.duplicates in ("auto", "origin")
        deflates = options.compression == "deflate"
        self._capabilities = (*((DUPLICATE_KEYS,) if asks else ()), *((DEFLATE,) if deflates else ()))
        self._deflates = False  # the present link accepts deflated envelopes
        self._known: tuple[str, frozenset[str]] | None = None
        self._rewriter: MessageRewriter | None = None
        self._sender: MarkedSender | None = None
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
                self._opened(sender, events, now)
            if self.step is Step.ATTACHED:
                self._granted(sender, events, now)
                self._outcomes(sender, events)
        elif sender is not None and self.step is Step.ATTACHED:
            self._outcomes(sender, events)
        error = self.fault or (sender.error if sender is not None else None)
        if error is not None:
            self._disconnect(now)
            events.append(_lost(error))
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has work even without socket activity."""
        return min(self.step_deadline(now), self._no_credit_since + CREDIT_SECONDS, self.outcomes_due(self._senders))

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        """The copies of messages as this target accepts them.

        Raises:
            InvalidArgumentError: the target was never open.
        """
        if self._rewriter is None:
            raise InvalidArgumentError(
                f"'{self.path}': copies are made for a target that has answered; wait for Opened"
            )
        # From the end: in half the time, where there is none.
        made = copies_of(self._rewriter, data, offsets, now_ms, is_alone=data.rfind(_PARTITION_KEY) >= 0)
        self._has_work = self._has_work or bool(made.payloads)
        return made

    def send(self, send: Send) -> None:
        """Queues deliveries; after a lost connection it does nothing, and `poll` reports the loss."""
        sender = self._sender
        if sender is None or sender.error is not None or self.step is not Step.ATTACHED:
            return
        if send.is_envelope:
            self._send_envelope(sender, envelope(send.payloads))
            self._credit -= 1
        elif self._deflates:
            for payload in send.payloads:
                self._send_alone(sender, payload)
            self._credit -= len(send.payloads)
        else:
            sender.send(send.payloads)
            self._credit -= len(send.payloads)

    def _send_envelope(self, sender: MarkedSender, data: bytes) -> None:
        deflated = compress(data) if self._deflates else None
        if deflated is None:
            sender.send((data,), message_format=BATCH_FORMAT)
        else:
            sender.send((deflated,), message_format=DEFLATED_FORMAT)

    def _send_alone(self, sender: MarkedSender, payload: bytes) -> None:
        is_small = len(payload) <= ENVELOPE_BYTES
        deflated = compress(envelope((payload,))) if is_small else None
        if deflated is None:
            sender.send((payload,))
        else:
            sender.send((deflated,), message_format=DEFLATED_FORMAT)

    def close(self) -> None:
        """Closes it."""
        self._disconnect(time.monotonic())
        self.pool.unmark(self.key)

    # ---- the link

    def attach(self, client: Client) -> None:
        """Begins the link."""
        self._sender = MarkedSender(self.mark, client, self.path, self._capabilities)

    def _opened(self, sender: MarkedSender, events: list[TargetEvent], now: float) -> None:
        found = (sender.client.namespace_id, frozenset(filter(sender.offers, set(self._capabilities) - {DEFLATE})))
        if self._known is None:
            try:
                self._rewriter = self._rewriter_for(*found)
            except SourceIsTargetError as error:
                self.fail(error)
                return
            self._known = found
        elif self._known != found:
            self.fail(TargetChangedError(f"'{self.path}': another namespace, or another version of it, answers now"))
            return
        self.attached()
        self._credit = 0
        self._deflates = sender.offers(DEFLATE)
        events.append(Opened(sender.max_message_bytes, ENVELOPE_MESSAGES))

    def _rewriter_for(self, namespace_id: str, offered: frozenset[str]) -> MessageRewriter:
        options, origin = self._options, self._origin_identity
        check_apart(options.origin, options.target, self.path, origin_identity=origin, target_identity=namespace_id)
        return MessageRewriter(
            options.origin,
            options.target,
            options.hop_budget,
            origin_namespace=origin if options.origin else "",
            target_namespace=namespace_id,
            entity=self.path,
            mark=Mark(options.mark, is_number=options.mark_value == "number") if options.mark else None,
            makes_message_ids=options.duplicates == "origin" and DUPLICATE_KEYS not in offered,
            trusts=options.trusts_provenance,
            policy=CopyPolicy.from_text(options.policy),
        )

    def _granted(self, sender: MarkedSender, events: list[TargetEvent], now: float) -> None:
        credit = sender.sendable
        if credit != self._credit:
            self._credit = credit
            events.append(Granted(credit))
        if credit or sender.outstanding or not self._has_work:
            self._no_credit_since = math.inf
        elif self._no_credit_since == math.inf:
            self._no_credit_since = now
        elif now >= self._no_credit_since + CREDIT_SECONDS:
            self.fail(
                OperationTimeoutError(f"'{self.path}': the target has granted no credit for {CREDIT_SECONDS:g} s")
            )

    def _outcomes(self, sender: MarkedSender, events: list[TargetEvent]) -> None:
        outcomes = sender.outcomes
        while outcomes:
            first, last, error = outcomes.popleft()
            if error is not None:
                events.append(Outcome(first, last, refusal_of(error)))
                continue
            while outcomes and outcomes[0].first == last + 1 and outcomes[0].error is None:
                last = outcomes.popleft().last
            events.append(Outcome(first, last))

    @property
    def _senders(self) -> tuple[MarkedSender, ...]:
        return () if self._sender is None else (self._sender,)

    def _disconnect(self, now: float) -> None:
        sender, self._sender = self._sender, None
        if sender is not None and sender.client.error is None:
            sender.close()
        self._credit, self._no_credit_since = 0, math.inf
        self.disconnect(now)


def _lost(error: IsthmusError) -> Lost:
    """The meaning of a lost connection, or a failed opening, for the delivery machine."""
    kind = RefusalKind.UNKNOWN if may_pass(error) else RefusalKind.FATAL
    return Lost(Refusal(kind, "", str(error)))
