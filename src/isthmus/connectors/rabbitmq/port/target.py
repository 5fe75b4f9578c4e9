"""A queue or an exchange as a target on the port.

What it is: the copies as messages of AMQP 0-9-1, published in their order with confirms, and the broker's answers as events of the
delivery machine. What it is not: the decision what to send when (`isthmus.bridge.delivery.delivery`), or the mapping (`outward`).
docs/how-to/use-rabbitmq.md.
Specification: RabbitMQ documentation, "Consumer Acknowledgements and Publisher Confirms".

Every message is published as mandatory: one without a queue is returned before its confirm. A returned message is reported as refused.

Invariants:
    I1. Ordinals of outcomes are those of the present connection, from 0, in the order of sending.
    I2. A returned message is never reported as accepted.
    I3. A broker that confirms no sent message for `stall_seconds` is lost, unless it reported that it is blocked. As long as bytes of the
        messages still arrive there, the time does not begin.
"""

from __future__ import annotations

import math
import re
import struct
import time
from collections.abc import Sequence
from functools import lru_cache

from isthmus.amqp.codec import CodecError
from isthmus.bridge.delivery_event import Granted, Lost, Opened, Progressed, Send, Stopped
from isthmus.bridge.port import Copies, TargetEvent
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.copier import copies_of
from isthmus.connectors.rabbitmq.mapping.outward import to_record
from isthmus.connectors.rabbitmq.option import TargetOptions
from isthmus.connectors.rabbitmq.port.end import CHANNEL, End
from isthmus.connectors.rabbitmq.port.flight import Flight
from isthmus.connectors.rabbitmq.port.pool import BrokerPool
from isthmus.connectors.rabbitmq.port.publication import Publications
from isthmus.connectors.rabbitmq.protocol import wire
from isthmus.connectors.rabbitmq.protocol.connection import Connection, Content
from isthmus.connectors.rabbitmq.protocol.error import ClosedByBrokerError, refusal_of
from isthmus.connectors.rabbitmq.protocol.property import Record
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.servicebus.message.message_rewriter import Mark, MessageRewriter
from isthmus.connectors.transit import Transit
from isthmus.errors import IsthmusError
from isthmus.message.copy_policy import CopyPolicy

__all__ = ["RabbitTarget"]

# RabbitMQ's text: "message size 300 is larger than configured max size 100".
_TOO_LARGE = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")
# The size of an encoded message besides its body; the broker limits the body's size, which is checked at sending.
_ENCODING_BYTES = 1 << 20
_FULL = "RabbitMQ refused the message: a queue is full (overflow reject-publish), or cannot store it"
_TAG = struct.Struct(">QB").unpack_from


class RabbitTarget(End):
    """One route's target.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the queue or exchange, and how copies are made.
        origin_identity: identity of the namespace from which the messages are read; empty where unknown.
    """

    def __init__(self, pool: BrokerPool, key: int, options: TargetOptions, origin_identity: str) -> None:
        super().__init__(pool, key, options, options.entity)
        self.options = options
        self._rewriter = self._rewriter_for(origin_identity)
        self._limit_bytes = options.max_message_bytes
        self._flight = Flight()
        self._publications = Publications(CHANNEL)
        self._was_reported = False
        self._blocked_by = self._reported_block = ""  # why the broker accepts nothing
        self._reported_credit = 0  # minus the messages sent since
        self._transit: Transit | None = None

    # ---- the port

    def poll(self, now: float) -> Sequence[TargetEvent]:
        """The events since the last call."""
        if self.is_closed:
            return ()
        self.check_time(now)
        events: list[TargetEvent] = []
        flight = self._flight
        if self.is_open:
            if not self._was_reported:
                self._was_reported = True
                events.append(Opened(self._limit_bytes + _ENCODING_BYTES if self._limit_bytes else 0))
            events += flight.take(now)
            credit = 0 if self._blocked_by else flight.credit
            if credit != self._reported_credit:
                self._reported_credit = credit
                events.append(Granted(credit))
            if self._blocked_by != self._reported_block:
                self._reported_block = self._blocked_by
                events.append(Stopped(self._blocked_by))
            if self._progresses(now):
                events.append(Progressed())
            if self.fault is None and now >= self._stalls_at():
                text = f"'{self.entity}': no confirm for {self.options.stall_seconds:g} s"
                self._lost(Refusal(RefusalKind.UNKNOWN, "", text), events, now)
        if self.fault is not None:
            self._learn(self.fault)
            self._lost(refusal_of(self.fault), events, now)
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has something to do even without socket activity."""
        return min(self.step_deadline(now), self._stalls_at(), self._looks_at())

    def _looks_at(self) -> float:
        return math.inf if self._blocked_by or self._transit is None else self._transit.due(self._flight.since)

    def _progresses(self, now: float) -> bool:
        """Whether bytes of the messages have arrived since the last look; then the wait for confirms begins again."""
        flight, transit = self._flight, self._transit
        if self._blocked_by or transit is None or not transit.progresses(now, flight.since):
            return False
        flight.wait_again(now)
        return True

    def _stalls_at(self) -> float:
        return math.inf if self._blocked_by else self._flight.since + self.options.stall_seconds

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        """The copies of messages as this target accepts them."""
        if self._rewriter is None:
            return Copies([data[offsets[at] : offsets[at + 1]] for at in range(len(offsets) - 1)])
        return copies_of(self._rewriter, data, offsets, now_ms)

    def send(self, send: Send) -> None:
        """Queues deliveries; after a lost connection it does nothing, and `poll` reports the loss."""
        connection = self.connection
        if connection is None or not self.is_open or connection.error is not None:
            return
        now = time.monotonic()
        flight, frame_bytes = self._flight, connection.frame_bytes
        most = wire.largest_body(frame_bytes)
        most = min(most, self._limit_bytes or most)
        frames_of, learn = self._publications.frames, self._publications.learn
        parts: list[bytes] = []
        count = len(send.payloads)
        self._reported_credit -= 1 if send.is_envelope else count
        first = flight.begin(count) if send.is_envelope else flight.begin_singles(count)
        for number, payload in enumerate(send.payloads, first):
            frames = frames_of(payload, most)
            if frames is not None:
                flight.sent(number, payload, now)
                parts += frames
                continue
            record = self._record(payload, frame_bytes)
            if isinstance(record, Refusal):
                flight.refuse(number, record)
                self.mark()
                continue
            flight.sent(number, payload, now)
            parts.append(_publish(record.exchange, record.routing_key))
            parts += wire.content_frames(CHANNEL, record.properties, record.body, frame_bytes)
            learn(payload, record)
        connection.write_all(parts)

    def close(self) -> None:
        """Closes it."""
        self.is_closed = True
        self.pool.unmark(self.key)
        self.disconnect(time.monotonic(), politely=not self._blocked_by)

    # ---- the channel

    def mark(self) -> None:
        """It has events to report."""
        if not self.is_closed:
            super().mark()

    def begin(self, connection: Connection) -> None:
        """Declares the entity, and requests confirms."""
        self._flight = Flight()
        self._publications = Publications(CHANNEL)
        self._transit = Transit(connection)
        self._was_reported = False
        self._blocked_by = self._reported_block = ""  # why the broker accepts nothing
        self._reported_credit = 0
        options = self.options
        if options.exchange:
            connection.write(wire.declare_exchange_passive(CHANNEL, options.exchange))
        else:
            connection.write(wire.declare_passive(CHANNEL, options.entity))
        connection.write(wire.method(CHANNEL, M.CONFIRM_SELECT, b"\0"))

    def on_method(self, channel: int, which: tuple[int, int], arguments: bytes) -> None:
        """A method arrived."""
        if which == M.BASIC_ACK:
            self._flight.answered(*_ack_at(arguments), None)
        elif which == M.BASIC_NACK:
            self._flight.answered(
                *_ack_at(arguments), Refusal(RefusalKind.BLOCKED, "basic.nack", f"'{self.entity}': {_FULL}")
            )
        elif which == M.CONFIRM_SELECT_OK:
            self.opened()
        elif which == M.CONNECTION_BLOCKED:
            reason, _ = wire.short_at(arguments, 0)
            self._blocked_by = f"'{self.entity}': RabbitMQ accepts no messages: {reason}"
        elif which == M.CONNECTION_UNBLOCKED:
            self._blocked_by = ""
            self._flight.wait_again(time.monotonic())
        else:
            return
        self.mark()

    def on_content(self, channel: int, which: tuple[int, int], content: Content) -> None:
        """A message was returned."""
        code, text = wire.read_close(content.arguments)
        exchange, at = wire.short_at(content.arguments, 3 + content.arguments[2])
        routing_key, _ = wire.short_at(content.arguments, at)
        missing = (
            f"exchange '{exchange}' has no queue for routing key '{routing_key}'"
            if exchange
            else f"there is no queue '{routing_key}'"
        )
        refusal = Refusal(
            RefusalKind.UNCLEAR, str(code), f"RabbitMQ reports {code} {text}: {missing}; bind one", "Unroutable"
        )
        returned = Record(content.body, content.properties, exchange, routing_key)
        if not self._flight.returned(returned, refusal, self._routed):
            self.fail(IsthmusError(f"'{self.entity}': a message was returned that was not sent: {refusal}"))

    # ---- messages

    def _routed(self, payload: bytes) -> Record:
        """The record of a message, with its exchange and routing key."""
        options = self.options
        body, properties, _, routing_key = to_record(payload, options.username)
        if not options.exchange:
            return Record(body, properties, "", options.entity)
        return Record(body, properties, options.exchange, options.routing_key or routing_key)

    def _record(self, payload: bytes, frame_bytes: int) -> Record | Refusal:
        try:
            record = self._routed(payload)
        except CodecError as error:
            return Refusal(RefusalKind.MESSAGE, "", str(error), "Malformed")
        size, limit = len(record.body), self._limit_bytes
        if limit and size > limit:
            text = f"'{self.entity}': the body has {size} bytes; the broker accepts {limit}"
            return Refusal(RefusalKind.MESSAGE, "", text, "MessageTooLarge")
        if len(record.properties) > frame_bytes - 64:
            text = f"'{self.entity}': properties and headers have {len(record.properties)} bytes; a frame has at most {frame_bytes}"
            return Refusal(RefusalKind.MESSAGE, "", text, "MessageTooLarge")
        return record

    def _learn(self, error: IsthmusError) -> None:
        """Learns RabbitMQ's limit, which it reports only when it refuses a message and closes the channel."""
        if isinstance(error, ClosedByBrokerError):
            found = _TOO_LARGE.search(error.reply_text)
            if found:
                self._limit_bytes = int(found[1])

    def _rewriter_for(self, origin_identity: str) -> MessageRewriter | None:
        options = self.options
        if not options.origin and not options.target and not options.policy:
            return None
        return MessageRewriter(
            options.origin,
            options.target,
            options.hop_budget,
            origin_namespace=origin_identity if options.origin else "",
            entity=options.entity,
            mark=Mark(options.mark, is_number=options.mark_value == "number") if options.mark else None,
            trusts=options.trusts_provenance,
            policy=CopyPolicy.from_text(options.policy),
        )

    def _lost(self, refusal: Refusal, events: list[TargetEvent], now: float) -> None:
        events += self._flight.lost(refusal)
        self.disconnect(now)
        self._flight = Flight()
        self._blocked_by = self._reported_block = ""
        events.append(Lost(refusal))


@lru_cache(1024)
def _publish(exchange: str, routing_key: str) -> bytes:
    return wire.publish_method(CHANNEL, exchange, routing_key)


def _ack_at(arguments: bytes) -> tuple[int, bool]:
    """The number, and whether it covers all before it; a nack has another flag besides."""
    number, bits = _TAG(arguments)
    return number, bool(bits & 1)
