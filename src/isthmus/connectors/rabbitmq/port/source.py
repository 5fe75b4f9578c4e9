"""A queue as a source on the port.

What it is: the consumer of one queue: RabbitMQ's deliveries within the prefetch, as events within the credit; and the owner's settlements, as
acknowledgements. What it is not: the mapping of messages (`mapping`), the account of deliveries (`delivered`). docs/how-to/use-rabbitmq.md.

Invariants:
    I1. Nothing is delivered beyond the credit.
    I2. A message is acknowledged only after the owner has settled it; one that is set aside, after the broker has confirmed its copy.
    I3. After `close` it reports nothing more.
    I4. No message is rejected unless an option states that the queue has a dead-letter exchange: RabbitMQ would drop it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Drained, Exhausted, SourceEvent, SourceLost, SourceOpened
from isthmus.connectors.rabbitmq.dead_letter import DEAD_CHANNEL, NO_PLACE, DeadLetters
from isthmus.connectors.rabbitmq.mapping.fingerprint import Traits, traits_of
from isthmus.connectors.rabbitmq.mapping.mapping import to_message
from isthmus.connectors.rabbitmq.option import SourceOptions
from isthmus.connectors.rabbitmq.port.arrival import Arrivals, delivery_of, has_message_id
from isthmus.connectors.rabbitmq.port.delivered import Delivered, Entry
from isthmus.connectors.rabbitmq.port.end import CHANNEL, End
from isthmus.connectors.rabbitmq.port.pool import BrokerPool
from isthmus.connectors.rabbitmq.port.present import Present
from isthmus.connectors.rabbitmq.port.ready import Ready
from isthmus.connectors.rabbitmq.port.unacked import Unacked
from isthmus.connectors.rabbitmq.protocol import wire
from isthmus.connectors.rabbitmq.protocol.connection import Connection, Content
from isthmus.connectors.rabbitmq.protocol.error import may_pass
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.refused import Refused
from isthmus.errors import ConnectionLostError, IsthmusError

__all__ = ["RabbitSource"]

CONSUMER = "isthmus"
_EPOCH_MS = 1_700_000_000_000
_COUNT = struct.Struct(">I").unpack_from


class RabbitSource(End):
    """One route's source.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the queue, and how it is read.
        ordered: whether the queue's order is kept.
        only_present: deliver only messages that exist when it is first opened.
    """

    def __init__(
        self, pool: BrokerPool, key: int, options: SourceOptions, *, ordered: bool, only_present: bool
    ) -> None:
        super().__init__(pool, key, options, options.queue)
        self.options = options
        self._is_ordered = ordered
        self._is_exclusive = options.consumer == "exclusive" or (options.consumer == "auto" and ordered)
        self._delivered = Delivered(is_counting=only_present)
        # Positions of a later source of the same queue are higher: no message is taken for one of another process.
        self._position = (int(time.time() * 1000) - _EPOCH_MS) << 8
        self._dead = DeadLetters(options, options, pool, self._confirmed)
        self._refused = Refused()
        self._present = Present(options.prefetch // 2) if only_present else None
        self._last: Connection | None = None
        self._reset()

    def _reset(self) -> None:
        """Resets the state of one channel."""
        self._unacked = Unacked()
        self._arrivals = Arrivals(CHANNEL, 1 + len(CONSUMER))
        self._ready = Ready()
        self._credit = 0
        self._is_consuming = self._is_cancelling = self._is_recalling = self._is_draining = self._was_reported = False
        if self._present is not None:
            self._present.channel_begins()

    # ---- the port

    @property
    def clock_offset_ms(self) -> int | None:
        """The offset of this machine's clock: RabbitMQ reports no time."""
        return round((time.time() - time.monotonic()) * 1000)

    def poll(self, now: float) -> Sequence[SourceEvent]:
        """The events since the last call."""
        if self.is_closed:
            return ()
        self.check_time(now)
        events: list[SourceEvent] = []
        if self.is_open and self.fault is None:
            if not self._was_reported:
                self._was_reported = True
                events.append(SourceOpened())
            self._hand_on(events)
            self._check_end(events, now)
            self._dead.check(now)
            if text := self._refused.take(now, len(self._delivered)):
                self._lost(SourceLost(text, is_fatal=True), events, now)
        if self._is_draining:
            self._is_draining = False
            events.append(Drained())
        if self.fault is not None:
            self._lost(SourceLost(str(self.fault), not may_pass(self.fault)), events, now)
        events += self._dead.news()
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has something to do even without socket activity."""
        due = min(self.step_deadline(now), self._refused.due(now), self._dead.due)
        return due if self._present is None else min(due, self._present.due_at)

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        self._is_draining = False
        self._credit = 0 if self._refused.text else credit
        if self._present is not None:
            self._present.moved(time.monotonic())
        self._consume()
        self.mark()  # messages may have arrived already

    def drain(self) -> None:
        """Withdraws the credit."""
        self._credit = 0
        self._is_draining = True
        self.mark()

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles delivered positions."""
        if self._refused.text or self._present is not None:
            self.mark()  # the loss, or the end, may be reported
        if disposition is None or disposition.kind == "complete":
            self._dead.forget(first, last)
            self._ack(self._delivered.settle(first, last))
        elif disposition.kind == "abandon":
            self.release(first, last)
        elif disposition.kind != "dead-letter":
            self._refuse(first, last, f"get the disposition '{disposition.kind}', which queues of RabbitMQ lack")
        elif self.options.dead_letters:
            self._dead.set_aside(self._disposed(first, last), disposition)
        elif self.options.dead_letter_exchange:
            for entry in self._disposed(first, last):
                if entry.tag and self.connection is not None and not self._is_recalling:
                    self.connection.write(wire.reject(CHANNEL, entry.tag, requeue=False))
                    self._unacked.remove(entry.tag)
                    self._delivered.stored((entry.tag,))
        else:
            reason = f"{disposition.reason}: {disposition.description}".strip(": ")
            self._refuse(first, last, f"be set aside ({reason}); {NO_PLACE}")

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions."""
        self._dead.forget(first, last)
        self._return([entry.tag for entry in self._disposed(first, last, is_release=True) if entry.tag])

    def close(self) -> None:
        """Closes it; unsettled messages return with the connection."""
        if self.is_closed:
            return
        self.is_closed = True
        self.pool.unmark(self.key)
        self._dead.leave()
        now = time.monotonic()
        self._last = connection = self.connection
        if connection is not None and self._is_owed and connection.error is None:
            connection.is_paused = False
            self._consume()
            self.pool.leave(connection, now)  # later frames are ignored
            return
        self.disconnect(now, politely=True)

    @property
    def has_left(self) -> bool:
        """Whether the broker has confirmed the close: then unsettled messages are in the queue again."""
        return self._last is None or self.pool.has_left(self._last)

    @property
    def _is_owed(self) -> bool:
        """Whether settled messages cannot be acknowledged yet: their copy is unconfirmed, or they have to be redelivered before."""
        return self._dead.is_waiting or self._delivered.is_owed

    # ---- the channel

    def mark(self) -> None:
        """It has events to report."""
        if not self.is_closed:
            super().mark()

    def begin(self, connection: Connection) -> None:
        """Declares the queue."""
        self._reset()
        connection.take = self._read_ahead
        connection.write(wire.declare_passive(CHANNEL, self.options.queue))
        connection.write(wire.qos(CHANNEL, self.options.prefetch))
        self._dead.begin(connection)

    def _begin_channel(self) -> None:
        """Opens the channel again, after a recall."""
        if self.connection is not None and (not self.is_closed or self._is_owed):
            self.connection.write(wire.method(CHANNEL, M.CHANNEL_OPEN, b"\0"))
            self.connection.write(wire.qos(CHANNEL, self.options.prefetch))
            self.connection.flush()

    def on_method(self, channel: int, which: tuple[int, int], arguments: bytes) -> None:
        """A method arrived."""
        if which == M.QUEUE_DECLARE_OK and channel != DEAD_CHANNEL:  # the queue of dead letters exists
            self._counted(_COUNT(arguments, 1 + arguments[0])[0])
        elif which == M.BASIC_QOS_OK:
            self.opened()
            self._consume()
        elif which == M.CHANNEL_CLOSE_OK:
            self._is_recalling = False
            self._begin_channel()
        elif which == M.BASIC_CANCEL_OK:
            self._is_consuming = self._is_cancelling = False
            self._leave_late()
            self._consume()
        elif which == M.BASIC_CANCEL:
            self.fail(
                ConnectionLostError(f"queue '{self.entity}': RabbitMQ ended the consumer: it was deleted or moves")
            )

    def on_content(self, channel: int, which: tuple[int, int], content: Content) -> None:
        """A message arrived."""
        if self._is_recalling:
            return  # it returns with the channel
        tag, is_again, record = delivery_of(content, 1 + len(CONSUMER))
        self._unacked.add(tag)
        traits = traits_of(record)
        known = self._delivered.recognised(traits) if is_again else None
        if known is not None:
            if not self._delivered.attach(known, tag):
                self._ack([tag])  # it was settled
            self._check_late()
            self._end_if_closed()
            return
        if self.is_closed:
            return  # it is returned
        if self._present is not None:
            again = self._delivered.again(traits) if is_again else ""
            is_late = not self._present.came(tag, time.monotonic(), again)
            self._check_late()
            if is_late:
                return
        payload = to_message(record, self._position + 1, int(time.time() * 1000))
        self._add(tag, traits, payload, is_named=has_message_id(record))
        if not is_again:
            self._arrivals.learn(content.arguments, record)
        self.mark()

    def _read_ahead(self, data: bytes, at: int) -> int:
        """Frames arrived: takes the deliveries that are like the last one; returns where the next frame begins."""
        if self._is_recalling or self.is_closed or self._present is not None:
            return at
        at, found = self._arrivals.read(data, at, self._position)
        for tag, traits, payload in found:
            self._unacked.add(tag)
            self._add(tag, traits, payload, is_named=self._arrivals.is_named)
        if found:
            self.mark()
        return at

    def _add(self, tag: int, traits: Traits, payload: bytes, *, is_named: bool) -> None:
        self._position = position = self._position + 1
        self._delivered.add(Entry(position, tag, traits, is_named))
        self._dead.keep(position, payload)
        self._ready.add(position, payload)

    # ---- delivering

    def _hand_on(self, events: list[SourceEvent]) -> None:
        if self._credit and len(self._ready) and not self._dead.is_full:
            arrived = self._ready.take(self._credit)
            self._credit -= len(arrived.positions)
            if self._present is not None:
                self._present.moved(time.monotonic())
            events.append(arrived)
        if self.connection is not None:
            self.connection.is_paused = self._ready.is_full and not self._is_recalling

    def _consume(self) -> None:
        """Starts to consume if there is credit, or if messages have to be redelivered so that they can be acknowledged."""
        connection = self.connection
        if connection is None or not self.is_open or self._is_consuming or self._is_recalling:
            return
        wants_more = self._credit and not self.is_closed and (self._present is None or not self._present.is_over)
        if wants_more or self._delivered.is_waiting:
            self._is_consuming = True
            connection.write(wire.consume(CHANNEL, self.options.queue, CONSUMER, exclusive=self._is_exclusive))

    def _ack(self, tags: Sequence[int]) -> None:
        if tags and self.connection is not None and not self._is_recalling:
            for tag, multiple in self._unacked.settle(tags):
                self.connection.write(wire.ack(CHANNEL, tag, multiple))

    # ---- releasing

    def _disposed(self, first: int, last: int, *, is_release: bool = False) -> list[Entry]:
        """Positions that the owner disposes of. Released ones are redelivered, and so are those of an earlier channel."""
        entries = self._delivered.take(first, last, is_release=is_release)
        if self._present is not None:
            self._present.released(sum(is_release or not entry.tag for entry in entries))
        return entries

    def _return(self, tags: Sequence[int]) -> None:
        """An ordered source returns all its unsettled messages: it closes the channel, and opens it again."""
        connection = self.connection
        if connection is None or not tags or self._is_recalling:
            return
        for tag in tags:
            self._unacked.remove(tag)
        if not self._is_ordered:
            connection.write(b"".join(wire.requeue(CHANNEL, tag) for tag in tags))
            self._consume()  # they may be existing messages that return after the last one
            return
        self._is_recalling = True
        connection.is_paused = False
        connection.write(wire.close_method(CHANNEL))
        self._forget_channel(is_recall=True)

    def _forget_channel(self, *, is_recall: bool = False) -> None:
        """Unsettled messages are redelivered; undelivered ones are forgotten."""
        for position in self._ready:
            self._delivered.take(position, position)
            self._dead.forget(position, position)
        if self._present is not None:
            self._present.gone_back(len(self._unacked) - self._delivered.attached)
        self._ready.clear()
        self._delivered.lost(is_recall=is_recall)
        self._dead.detach()
        self._unacked.clear()
        self._is_consuming = self._is_cancelling = False

    # ---- setting aside

    def _confirmed(self, tags: Sequence[int] | IsthmusError) -> None:
        if isinstance(tags, IsthmusError):
            self.fail(tags)
            return
        self._ack(self._delivered.stored(tags))
        self._end_if_closed()
        self.mark()  # more may be delivered

    def _end_if_closed(self) -> None:
        if self.is_closed and self.connection is not None and not self._is_owed:
            self.connection.write(wire.close_method(0))
            self.connection.flush()

    def _refuse(self, first: int, last: int, what: str) -> None:
        """The source will be lost: messages in flight are settled before, or they would be redelivered each time."""
        self._refused.add(f"queue '{self.entity}': a message would have to {what}", last - first + 1)
        self._credit = 0
        self.mark()

    # ---- existing messages

    def _counted(self, messages: int) -> None:
        if self._present is not None and self.connection is not None:
            is_idle, kept = not (self._ready or self._delivered), self.pool.kept_until(self.connection.broker)
            self._present.counted(messages, time.monotonic(), is_idle=is_idle, kept_until=kept)
            self._check_late()
            self.mark()

    def _check_end(self, events: list[SourceEvent], now: float) -> None:
        if (present := self._present) is None:
            return
        outstanding = len(self._delivered)
        may_return = self._dead.may_come(outstanding) or (self.options.dead_letter_exchange and outstanding)
        if not (self._ready or may_return) and present.is_at_end(now, is_waiting=self._delivered.is_waiting):
            events.append(Exhausted())
        elif present.is_due(now, can_ask=self._is_consuming and not outstanding) and self.connection is not None:
            self.connection.write(wire.declare_passive(CHANNEL, self.options.queue))

    def _check_late(self) -> None:
        """Stops consuming once all existing messages have arrived; later ones are not delivered, and return."""
        present, connection = self._present, self.connection
        if present is None or not present.is_over or connection is None:
            return
        if self._is_consuming and not self._is_cancelling and not self._delivered.is_waiting:
            self._is_cancelling = True
            connection.write(wire.cancel(CHANNEL, CONSUMER))

    def _leave_late(self) -> None:
        """Releases the later messages. An ordered source keeps them until it ends, so that the order is kept."""
        if self._present is not None and not self._is_ordered:
            self._return(self._present.leave())

    # ---- the end of a channel

    def _lost(self, event: SourceLost, events: list[SourceEvent], now: float) -> None:
        self.disconnect(now, politely=event.is_fatal)
        self._forget_channel()
        self._dead.lost()
        self._reset()
        events.append(event)
