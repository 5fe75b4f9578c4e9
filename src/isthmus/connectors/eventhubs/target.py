"""An event hub as a target on the port.

What it is: the links to a hub and to its partitions, the copies as events, the partition of each, and the hub's answers as events of the delivery
machine. What it is not: the decision what to send when (`isthmus.bridge.delivery.delivery`). docs/how-to/use-eventhubs.md.

Order. Events with one destination, a partition by number or a key, are sent over one link in their order. An envelope of the machine is
divided by destination: the hub stores each batch in one partition. If it refuses one, stored events of the others are not sent again.

Invariants:
    I1. Ordinals of outcomes are those of the present connection, from 0, in the order of sending.
    I2. Copies are made for the namespace that answered first; another one is refused by this target.
    I3. A connected hub that grants no credit for `CREDIT_SECONDS`, although events wait, counts as lost.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from isthmus.amqp import BATCH_FORMAT, section
from isthmus.amqp.codec import CodecError
from isthmus.bridge.delivery_event import Granted, Lost, Opened, Progressed, Send
from isthmus.bridge.port import Copies, TargetEvent
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.copier import check_apart, copies_of
from isthmus.connectors.eventhubs.flight import Flight
from isthmus.connectors.eventhubs.mapping import Outgoing, to_event
from isthmus.connectors.eventhubs.option import TargetOptions
from isthmus.connectors.eventhubs.partition.address import sender_path
from isthmus.connectors.eventhubs.partition.hub_query import HubQuery
from isthmus.connectors.eventhubs.pool import HubPool
from isthmus.connectors.servicebus.message.message_rewriter import Mark, MessageRewriter
from isthmus.connectors.servicebus.port.end import End, MarkedSender, Step
from isthmus.connectors.servicebus.refusal import may_pass, refusal_of
from isthmus.connectors.servicebus.spark.error import TargetChangedError
from isthmus.errors import InvalidArgumentError, IsthmusError, OperationTimeoutError
from isthmus.message import name as names
from isthmus.message.copy_policy import CopyPolicy
from isthmus.transport import Client
from isthmus.transport.sender import envelope

__all__ = ["CREDIT_SECONDS", "EventHubsTarget"]

SESSIONS = 36
CREDIT_SECONDS = 30.0
ENVELOPE_MESSAGES = 200
# The size of a batch's annotations, with a key of 128 characters.
BATCH_OVERHEAD_BYTES = 600


class _Part(NamedTuple):
    """The events of one transfer: to a partition, or to None where the hub decides."""

    partition: int | None
    payload: bytes
    is_batch: bool
    ordinal: int
    numbers: Sequence[int]  # of its events, within the delivery


class EventHubsTarget(End):
    """One route's target.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the event hub, and how copies are made.
        origin_identity: identity of the namespace from which the messages are read; empty where unknown.
    """

    pool: HubPool

    def __init__(self, pool: HubPool, key: int, options: TargetOptions, origin_identity: str) -> None:
        super().__init__(
            pool, key, options.servicebus_options.entity.strip("/"), pool.remote(options.servicebus_options), SESSIONS
        )
        self.settings = options
        self._origin_identity = origin_identity
        self._namespace_id: str | None = None
        self._rewriter: MessageRewriter | None = None
        self._query: HubQuery | None = None
        self._senders: dict[int | None, MarkedSender] = {}
        # By link and its ordinal: the ordinal of the delivery, and the numbers of the events within it.
        self._ordinals: dict[int | None, dict[int, tuple[int, Sequence[int]]]] = {}
        self._flight = Flight()
        self._waiting: deque[_Part] = deque()
        self._credit = 0  # the last granted credit, minus the events sent since
        self._no_credit_since = math.inf
        self._has_work = False  # copies were made

    # ---- the port

    def poll(self, now: float) -> Sequence[TargetEvent]:
        """The events since the last call."""
        events: list[TargetEvent] = []
        self.check_time(now)
        if self.check_outcomes(self._senders.values(), now):
            events.append(Progressed())
        try:
            self._advance(events)
            self._take_outcomes()
            self._send_waiting()
        except IsthmusError as error:
            self.fail(error)
        events += self._flight.take()
        if self.step is Step.ATTACHED and self.fault is None:
            self._granted(events, now)
        if self.fault is not None:
            fault = self.fault
            kind = RefusalKind.UNKNOWN if may_pass(fault) else RefusalKind.FATAL
            refusal = Refusal(kind, str(fault.attributes.get("condition") or ""), str(fault))
            self._flight.lost(refusal)
            events += self._flight.take()
            self._disconnect(now)
            events.append(Lost(refusal))
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has work even without socket activity."""
        due = self.outcomes_due(self._senders.values())
        return min(self.step_deadline(now), self._no_credit_since + CREDIT_SECONDS, due)

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        """The copies of messages as this target accepts them.

        Raises:
            InvalidArgumentError: the target was never open.
        """
        if self._rewriter is None:
            raise InvalidArgumentError(
                f"'{self.path}': copies are made for a target that has answered; wait for Opened"
            )
        made = copies_of(self._rewriter, data, offsets, now_ms)
        self._has_work = self._has_work or bool(made.payloads)
        return made

    def send(self, send: Send) -> None:
        """Queues deliveries; after a lost connection it does nothing, and `poll` reports the loss."""
        if self.step is not Step.ATTACHED or self.fault is not None:
            return
        groups = (send.payloads,) if send.is_envelope else [(payload,) for payload in send.payloads]
        self._credit -= len(groups)
        for group in groups:
            self._add(group)
        try:
            self._send_waiting()
        except IsthmusError as error:
            self.fail(error)

    def close(self) -> None:
        """Closes it."""
        self._disconnect(time.monotonic())
        self.pool.unmark(self.key)

    # ---- sending

    def _add(self, payloads: Sequence[bytes]) -> None:
        """Adds a delivery of one event, or of several."""
        destinations: dict[tuple[int | None, str], tuple[list[bytes], list[int]]] = {}
        try:
            for number, payload in enumerate(payloads):
                outgoing, partition = self._placed(payload)
                destination = (partition, outgoing.key if partition is None else "")
                events, numbers = destinations.setdefault(destination, ([], []))
                events.append(outgoing.payload)
                numbers.append(number)
        except CodecError as error:
            self._flight.answered(self._flight.begin(1), Refusal(RefusalKind.MESSAGE, "", str(error), "Malformed"))
            self.mark()
            return
        ordinal = self._flight.begin(len(destinations))
        is_batch = len(payloads) > 1
        for (partition, key), (events, numbers) in destinations.items():
            data = _batch(events, key) if is_batch else events[0]
            self._waiting.append(_Part(partition, data, is_batch, ordinal, numbers if len(destinations) > 1 else ()))

    def _placed(self, payload: bytes) -> tuple[Outgoing, int | None]:
        """An event, and its partition by number; None: the key decides, or any."""
        how = self.settings.partitioning
        outgoing = to_event(payload)
        if how == "single":
            return outgoing, 0
        partition = outgoing.partition
        if partition is None or (how == "key" and outgoing.key):
            return outgoing, None
        return outgoing, partition % max(1, len(self._senders) - 1)

    def _send_waiting(self) -> None:
        waiting = self._waiting
        while waiting:
            part = waiting[0]
            sender = self._senders[part.partition]
            if sender.sendable <= 0:
                return
            waiting.popleft()
            number = sender.send((part.payload,), message_format=BATCH_FORMAT if part.is_batch else 0)
            self._ordinals[part.partition][number] = part.ordinal, part.numbers

    def _take_outcomes(self) -> None:
        for destination, sender in self._senders.items():
            ordinals = self._ordinals[destination]
            while sender.outcomes:
                first, last, error = sender.outcomes.popleft()
                refusal = None if error is None else refusal_of(error)
                for each in range(first, last + 1):
                    ordinal, numbers = ordinals.pop(each)
                    self._flight.answered(ordinal, refusal, numbers)

    def _granted(self, events: list[TargetEvent], now: float) -> None:
        free = min((sender.sendable for sender in self._senders.values()), default=0)
        credit = max(0, free - len(self._waiting))
        if credit != self._credit:
            self._credit = credit
            events.append(Granted(credit))
        if free or self._ordinals_outstanding or not self._has_work:
            self._no_credit_since = math.inf
        elif self._no_credit_since == math.inf:
            self._no_credit_since = now
        elif now >= self._no_credit_since + CREDIT_SECONDS:
            self.fail(
                OperationTimeoutError(f"'{self.path}': the event hub has granted no credit for {CREDIT_SECONDS:g} s")
            )

    @property
    def _ordinals_outstanding(self) -> bool:
        return any(self._ordinals.values())

    # ---- the links

    def attach(self, client: Client) -> None:
        """Begins the links; if partitions may be selected by number, once their numbers are known."""
        if self.settings.partitioning == "single":
            self._attach_all(client, [0])
        else:
            self._query = HubQuery(client, self.path, self.mark, ())

    def _attach_all(self, client: Client, destinations: Sequence[int | None]) -> None:
        for destination in destinations:
            self._senders[destination] = MarkedSender(self.mark, client, sender_path(self.path, destination), ())
            self._ordinals[destination] = {}

    def _advance(self, events: list[TargetEvent]) -> None:
        client = self.client
        if client is None or self.fault is not None:
            return
        query = self._query
        if query is not None:
            query.advance()
            if query.error is not None:
                raise query.error
            if query.is_done:
                query.close()
                self._query = None
                self._attach_all(client, [None, *query.partitions])
        for sender in self._senders.values():
            if sender.error is not None:
                self._take_outcomes()
                raise sender.error
        if self.step is Step.ATTACHING and self._senders and all(each.attached for each in self._senders.values()):
            self._opened(client, events)

    def _opened(self, client: Client, events: list[TargetEvent]) -> None:
        if self._namespace_id is None:
            self._rewriter = self._rewriter_for(client.namespace_id)
            self._namespace_id = client.namespace_id
        elif self._namespace_id != client.namespace_id:
            raise TargetChangedError(f"'{self.path}': another namespace answers now")
        self.attached()
        self._credit = 0
        limit = min((each.max_message_bytes for each in self._senders.values() if each.max_message_bytes), default=0)
        events.append(Opened(limit and max(1, limit - BATCH_OVERHEAD_BYTES), ENVELOPE_MESSAGES))

    def _rewriter_for(self, namespace_id: str) -> MessageRewriter:
        options, origin = self.settings, self._origin_identity
        check_apart(options.origin, options.target, self.path, origin_identity=origin, target_identity=namespace_id)
        return MessageRewriter(
            options.origin,
            options.target,
            options.hop_budget,
            origin_namespace=origin if options.origin else "",
            target_namespace=namespace_id,
            entity=self.path,
            mark=Mark(options.mark, is_number=options.mark_value == "number") if options.mark else None,
            trusts=options.trusts_provenance,
            policy=CopyPolicy.from_text(options.policy),
        )

    def _disconnect(self, now: float) -> None:
        if self._query is not None:
            self._query.close()
            self._query = None
        for sender in self._senders.values():
            if sender.client.error is None:
                sender.close()
        self._senders.clear()
        self._ordinals.clear()
        self._waiting.clear()
        self._flight = Flight()
        self._credit, self._no_credit_since = 0, math.inf
        self.disconnect(now)


def _batch(events: Sequence[bytes], key: str) -> bytes:
    """An envelope of events for one partition, that of the key where there is one."""
    data = envelope(events)
    if not key:
        return data
    return section.encode_map_section(section.MESSAGE_ANNOTATIONS, {names.PARTITION_KEY: key}) + data
