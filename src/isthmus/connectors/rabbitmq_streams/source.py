"""A stream as a source on the port.

What it is: the consumer of one stream over AMQP 0-9-1: RabbitMQ's deliveries, as events within the credit. What it is not: the account of
read messages (`isthmus.connectors.eventhubs.partition.reading`), the start of reading and the check of continuity (`continuity`),
settlement (`settlement`), or checkpoints (`checkpoint.checkpointer`). docs/how-to/use-rabbitmq-streams.md.

An opening, in order: connection; reading the last chunk, and the checkpoint; a new channel with a consumer from the last settled
message; `SourceOpened`.

A checkpoint, in order: the target has acknowledged; the owner settles; the account finds the first outstanding offset; the offset before it is
written with the digest of its message, at most every `checkpoint_seconds`, and at the end.

Acknowledgements serve as credit only: RabbitMQ deletes nothing for them. They are sent while less than half the prefetch waits here. RabbitMQ
delivers whole chunks, with any prefetch; if more than `KEPT_BYTES` wait, reading from the socket stops, unless an answer is awaited.

Invariants:
    I1. Nothing is delivered beyond the credit; the order of the stream is kept. A position is an offset.
    I2. No checkpoint passes a message without outcome.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Sequence

from isthmus.amqp.codec import CodecError
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Drained, Exhausted, SourceEvent, SourceLost, SourceOpened
from isthmus.connectors.checkpoint.checkpointer import Checkpointer
from isthmus.connectors.checkpoint.folder_store import FolderStore
from isthmus.connectors.checkpoint.thread import CheckpointThread
from isthmus.connectors.eventhubs.partition.reading import Reading
from isthmus.connectors.rabbitmq.dead_letter import DEAD_CHANNEL, DeadLetters
from isthmus.connectors.rabbitmq.port.end import CHANNEL, End
from isthmus.connectors.rabbitmq.port.stream import PREFETCH
from isthmus.connectors.rabbitmq.protocol import wire
from isthmus.connectors.rabbitmq.protocol.connection import Connection, Content
from isthmus.connectors.rabbitmq.protocol.error import may_pass
from isthmus.connectors.rabbitmq.protocol.property import Record
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.rabbitmq_streams.continuity import Continuity
from isthmus.connectors.rabbitmq_streams.last_chunk import LastChunk
from isthmus.connectors.rabbitmq_streams.opening import explained
from isthmus.connectors.rabbitmq_streams.option import StreamOptions
from isthmus.connectors.rabbitmq_streams.pool import StreamPool
from isthmus.connectors.rabbitmq_streams.record import StreamReader, delivered, digest_of, offset_of
from isthmus.connectors.rabbitmq_streams.settlement import PARTITION, Settlement
from isthmus.connectors.rabbitmq_streams.waiting import WaitingBytes
from isthmus.errors import ConnectionLostError, IsthmusError, ProtocolError

__all__ = ["StreamSource"]

_log = logging.getLogger(__name__)
LOOK, MAIN = "isthmus.look", "isthmus"
_COUNT = struct.Struct(">I").unpack_from


class StreamSource(End):
    """One route's source.

    Args:
        pool: the pool that it belongs to.
        key: its key in the pool.
        options: the stream, and how it is read.
        only_present: deliver only messages that exist when it is first opened.
        thread: makes the checkpoint thread.
    """

    pool: StreamPool

    def __init__(
        self,
        pool: StreamPool,
        key: int,
        options: StreamOptions,
        *,
        only_present: bool,
        thread: Callable[..., CheckpointThread] = CheckpointThread,
    ) -> None:
        super().__init__(pool, key, options, options.topic)
        self.options = options
        reader = StreamReader(options.topic, gives_ids=options.message_ids == "offset")
        self._reading = Reading(reader, only_present=only_present, keeps=False, seconds=options.checkpoint_seconds)
        made = thread(lambda: FolderStore(options.checkpoints), self._wake)
        self._checkpoints = Checkpointer(made, self._reading)
        self._settlement = Settlement(options, self._reading, DeadLetters(options, options, pool, self._confirmed))
        self._continuity = Continuity(options, self._reading)
        self._is_draining = self._is_finished = False
        self._waiting = WaitingBytes()
        self._reset()

    def _reset(self) -> None:
        """Resets the state of one connection."""
        self._last = LastChunk()
        self._is_recalling = self._was_reported = False
        self._continuity.reset()
        self._reset_channel()

    def _reset_channel(self) -> None:
        self._is_consuming = False
        self._came: list[tuple[int, Record]] = []
        self._tag = 0  # the last unacknowledged tag; 0: none
        if not self._reading.queue.count:
            self._waiting.clear()

    def _wake(self) -> None:
        """The thread has an answer; called in that thread."""
        if not self.is_closed:
            self.pool.threads.mark(self.key)

    # ---- the port

    @property
    def clock_offset_ms(self) -> int | None:
        """The offset of this machine's clock: RabbitMQ reports no time."""
        return round((time.time() - time.monotonic()) * 1000)

    def poll(self, now: float) -> Sequence[SourceEvent]:
        """The events since the last call."""
        if self.is_closed:
            return ()
        events: list[SourceEvent] = []
        self.check_time(now)
        try:
            if (error := self._checkpoints.take(now, is_opening=self.connection is not None)) is not None:
                self.fail(error)
            self._try_open()
            self._advance(now)
            self._take_records()
        except CodecError as error:
            self.fail(ProtocolError(f"stream '{self.entity}': {error}"))
        except IsthmusError as error:
            self.fail(error)
        if self.is_open and self.fault is None and not self._was_reported:
            self._was_reported = True
            events.append(SourceOpened())
        if self._was_reported:
            batches = () if self._settlement.dead.is_full else self._reading.take()
            for batch in batches:
                for position, payload in zip(batch.positions, batch.payloads, strict=True):
                    self._settlement.dead.keep(position, payload)
                self._waiting.taken(batch.positions[-1])
                events.append(Arrived(batch.positions, batch.payloads))
            # A source is lost for one reason at a time: further ones are reported later.
            if batches and self.fault is None and (lost := self._continuity.losses.delivered()) is not None:
                self.fail(lost)
        if self._was_reported and self.fault is None:
            if not self._settlement.dead.may_come(self._reading.outstanding) and self._reading.is_over():
                events.append(Exhausted())
            self._refill()
            self._settlement.dead.check(now)
        self._checkpoints.commit(now)
        if text := self._settlement.take_refused(now):
            self._lost(SourceLost(text, is_fatal=True), events, now)
        elif self.fault is not None:
            self._lost(SourceLost(str(self.fault), not may_pass(self.fault)), events, now)
        if self._is_draining:
            self._is_draining = False
            events.append(Drained())
        events += self._settlement.dead.news()
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has something to do even without socket activity."""
        due = min(self.step_deadline(now), self._settlement.dead.due, self._last.empty_at)
        return min(due, self._reading.commit_due, self._settlement.refused.due(now))

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        self._is_draining = False
        self._reading.queue.credit = 0 if self._settlement.refused.text else credit
        self.mark()

    def drain(self) -> None:
        """Withdraws the credit; messages in transit wait in the queue."""
        self._reading.queue.credit = 0
        self._is_draining = True
        self.mark()

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles delivered positions."""
        self._settlement.settle(first, last, disposition, is_open=self.is_open, now=time.monotonic())
        self.mark()

    def release(self, first: int, last: int) -> None:
        """Releases delivered positions; they are read again."""
        self._settlement.release(first, last)
        self.mark()

    def close(self) -> None:
        """Closes it, once the copies of messages set aside are confirmed; checkpoints of settled messages are written in the background."""
        if self.is_closed:
            return
        self.is_closed = True
        self.pool.unmark(self.key)
        connection = self.connection
        if not self._settlement.dead.is_waiting or connection is None or connection.error is not None:
            self.finish()
            return
        connection.is_paused = False
        if not self._is_recalling:
            connection.write(wire.cancel(CHANNEL, MAIN))
        self.pool.leave(connection, time.monotonic())
        self._settlement.dead.leave()
        self.pool.owes(self)

    def finish(self) -> None:
        """The owner has closed it, and the awaited confirms no longer arrive."""
        if self._is_finished:
            return
        self._is_finished = True
        if (untold := self._continuity.losses.delivered()) is not None:
            _log.error("%s", untold)  # the checkpoint may be after it, and no later reader finds it
        if (thread := self._checkpoints.stop()) is not None:
            self.pool.threads.add_leaving(thread)
        self.disconnect(time.monotonic(), politely=True)
        self._settlement.dead.lost()

    @property
    def has_left(self) -> bool:
        """Whether the checkpoint of settled messages is written: a reader that begins earlier reads them again."""
        return self._is_finished and self._checkpoints.has_stopped

    # ---- opening

    def mark(self) -> None:
        """It has events to report."""
        if not self.is_closed:
            super().mark()

    def begin(self, connection: Connection) -> None:
        """Reads the last chunk, and requests the checkpoint."""
        self._reset()
        self._checkpoints.load(self.options.key(connection.cluster_name, self.entity, self.options.group))
        self._settlement.dead.begin(connection)
        connection.write(wire.declare_passive(CHANNEL, self.entity))
        connection.write(wire.qos(CHANNEL, PREFETCH))
        connection.write(wire.consume_stream(CHANNEL, self.entity, LOOK, "last"))

    def _advance(self, now: float) -> None:
        """Continues the opening, and reads released messages again."""
        connection = self.connection
        if connection is None or self.fault is not None:
            return
        self._last.look(now)
        if self._continuity.opening is None:
            if self._last.found is not None and self._checkpoints.kept is not None:
                self._continuity.decide(self._last.found, self._checkpoints.kept, self._checkpoints.first)
                self._checkpoints.write_first()
                self._recall(connection)
        elif self.is_open and not self._is_recalling and self._continuity.take_return():
            self._recall(connection)

    def _recall(self, connection: Connection) -> None:
        """Opens the channel again: its deliveries and its credit end with it."""
        self._is_recalling = True
        self.step(f"a new channel of stream '{self.entity}'")
        self._reset_channel()
        connection.is_paused = False
        connection.write(wire.close_method(CHANNEL))
        connection.flush()

    def _try_open(self) -> None:
        """It is open once a later reader would begin at the same message."""
        if self._is_consuming and self._step and not self._checkpoints.first:
            self.opened()

    # ---- calls of the connection

    def on_method(self, channel: int, which: tuple[int, int], arguments: bytes) -> None:
        """A method arrived."""
        connection = self.connection
        if channel == DEAD_CHANNEL or self.is_closed:
            return  # the queue of dead letters exists
        if which == M.QUEUE_DECLARE_OK:
            self._last.declared(_COUNT(arguments, 1 + arguments[0])[0])
            self.mark()
        elif which == M.BASIC_CONSUME_OK and self._continuity.opening is None:
            self.step(f"the last chunk of stream '{self.entity}'")
            self._last.began(time.monotonic())
            self.mark()
        elif which == M.BASIC_CONSUME_OK:
            self._is_consuming = True
            self.step(f"the first checkpoint of stream '{self.entity}'")
            self._try_open()
        elif which == M.CHANNEL_CLOSE_OK and connection is not None and (found := self._continuity.opening) is not None:
            self._is_recalling = False
            connection.write(wire.method(CHANNEL, M.CHANNEL_OPEN, b"\0"))
            connection.write(wire.qos(CHANNEL, self.options.prefetch))
            connection.write(wire.consume_stream(CHANNEL, self.entity, MAIN, found.ask))
            connection.flush()
        elif which == M.BASIC_CANCEL:
            self.fail(
                ConnectionLostError(f"stream '{self.entity}': RabbitMQ ended the consumer: it was deleted or moves")
            )

    def on_content(self, channel: int, which: tuple[int, int], content: Content) -> None:
        """A message arrived."""
        if self._is_recalling or self.is_closed or self.fault is not None:
            return
        self._tag, record = delivered(content)
        offset = offset_of(record)
        if offset is None:
            hint = "it is not a stream; read it with kind rabbitmq"
            self.fail(ProtocolError(f"'{self.entity}' delivers messages without offset; {hint}"))
        elif self._continuity.opening is None:
            if self._last.saw(offset, digest_of(record)) and self.connection is not None:
                self.connection.write(wire.declare_passive(CHANNEL, self.entity))
                self.connection.flush()
        else:
            self._take_in(offset, record)

    def _take_in(self, offset: int, record: Record) -> None:
        try:
            is_wanted = self._continuity.is_wanted(offset, record)
        except IsthmusError as error:
            self.fail(error)
            return
        self.mark()  # even if it is not wanted: its credit is returned
        if is_wanted:
            self._came.append((offset, record))
            self._waiting.add(offset, len(record.body) + len(record.properties))
            if self.connection is not None:
                self._pause(self.connection)

    # ---- reading

    def _take_records(self) -> None:
        came, self._came = self._came, []
        if came:  # even if the source is lost: these messages are the stream's
            self._reading.put(PARTITION, came)
        begun = self._reading.begun_again.pop(PARTITION, None)
        if begun is not None:
            raise ProtocolError(f"stream '{self.entity}': offset {begun} arrived after a higher one")
        connection = self.connection
        if connection is None or not self.is_open or self._is_recalling or self.fault is not None:
            return  # gaps are checked when it is open again
        if self._continuity.take_gap():
            self._recall(connection)

    def _refill(self) -> None:
        connection = self.connection
        if connection is None or self._is_recalling:
            return
        if not self._reading.queue.count and not self._came:
            self._waiting.clear()
        self._pause(connection)
        if self._tag and self._reading.queue.count <= self.options.prefetch // 2:
            connection.write(wire.ack(CHANNEL, self._tag, multiple=True))
            self._tag = 0

    def _pause(self, connection: Connection) -> None:
        """Stops reading while many bytes wait here, unless an answer is among them."""
        connection.is_paused = self._waiting.is_much and not self._step

    def _confirmed(self, result: Sequence[int] | IsthmusError) -> None:
        if isinstance(result, IsthmusError):
            self.fail(result)
        elif result:
            self._settlement.confirmed(result, time.monotonic())
        self.mark()
        if self.is_closed and not self._settlement.dead.is_waiting:
            self.finish()

    def on_closed(self, error: IsthmusError) -> None:
        """The connection is lost, or could not be made."""
        super().on_closed(explained(error))
        if self.is_closed:
            self.finish()

    def _lost(self, event: SourceLost, events: list[SourceEvent], now: float) -> None:
        self.disconnect(now, politely=event.is_fatal)
        self._settlement.lost()
        self._reset()
        self._reading.queue.credit = 0
        events.append(event)
