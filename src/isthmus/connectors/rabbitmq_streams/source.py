"""A stream as a source on the port.

What it is: the consumer of one stream over AMQP 0-9-1: what RabbitMQ gives, as events within the credit. What it is not: the account of what
was read (`isthmus.connectors.eventhubs.partition.reading`), where reading begins (`opening`), or checkpoints (`checkpoint.thread`).
docs/how-to/use-rabbitmq-streams.md. A little over 400 lines: the port, the opening and what comes over the connection change one state.

An opening, in order: connection; a look at the last chunk, and the checkpoint; a new channel with a consumer from the last message that was
done with; `SourceOpened`.

A checkpoint, in order: the target has acknowledged; the owner settles; the account tells up to where nothing is outstanding; the offset before is
written with the digest of its message, at most every `checkpoint_seconds`, and at the end.

Acknowledgements are credit alone: RabbitMQ forgets nothing by them. They are given while less than half the prefetch waits here. RabbitMQ gives
whole chunks, whatever the prefetch; where more than `KEPT_BYTES` wait, nothing more is read from the socket, unless an answer is awaited.

Invariants:
    I1. Nothing is given beyond the credit; the order of the stream is kept. A position is an offset.
    I2. No checkpoint is written for what has no outcome.
    I3. What the retention removed unread is told once, with its range (`loss`).
    I4. Nothing of a stream that was made again is given (`opening`).
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Sequence

from isthmus.amqp.codec import CodecError
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Drained, Exhausted, SourceEvent, SourceLost, SourceOpened
from isthmus.connectors.checkpoint.checkpoint import Checkpoint, GroupKey
from isthmus.connectors.checkpoint.folder_store import FolderStore
from isthmus.connectors.checkpoint.thread import CheckpointThread, Loaded
from isthmus.connectors.eventhubs.partition.reading import Reading
from isthmus.connectors.rabbitmq.dead_letter import DEAD_CHANNEL
from isthmus.connectors.rabbitmq.port.end import CHANNEL, End
from isthmus.connectors.rabbitmq.port.stream import PREFETCH
from isthmus.connectors.rabbitmq.protocol import wire
from isthmus.connectors.rabbitmq.protocol.connection import Connection, Content
from isthmus.connectors.rabbitmq.protocol.error import may_pass
from isthmus.connectors.rabbitmq.protocol.property import Record
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.rabbitmq_streams.last_chunk import LastChunk
from isthmus.connectors.rabbitmq_streams.loss import Losses
from isthmus.connectors.rabbitmq_streams.opening import Opening, explained, made_again, opening
from isthmus.connectors.rabbitmq_streams.option import StreamOptions
from isthmus.connectors.rabbitmq_streams.pool import StreamPool
from isthmus.connectors.rabbitmq_streams.record import StreamReader, digest_of, offset_of
from isthmus.connectors.rabbitmq_streams.settlement import PARTITION, Settlement
from isthmus.connectors.rabbitmq_streams.waiting import WaitingBytes
from isthmus.errors import ConnectionLostError, IsthmusError, ProtocolError

__all__ = ["StreamSource"]

_log = logging.getLogger(__name__)
LOOK, MAIN = "isthmus.look", "isthmus"
_TAG = struct.Struct(">Q?").unpack_from
_COUNT = struct.Struct(">I").unpack_from


class StreamSource(End):
    """One route's source.

    Args:
        pool: what it belongs to.
        key: what the pool's owner knows it by.
        options: where it leads to.
        only_present: give only what exists when it is opened first.
        thread: makes what keeps checkpoints.
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
        self._group: GroupKey | None = None
        self._thread = thread(lambda: FolderStore(options.checkpoints), self._wake)
        self._settlement = Settlement(options, self._reading)
        self._losses = Losses(options.topic)
        self._loads = 0
        self._first: dict[int, Checkpoint] = {}  # where it begins without a checkpoint, until that is written
        self._is_draining = self._is_finished = False
        self._waiting = WaitingBytes()
        self._reset()

    def _reset(self) -> None:
        """What belongs to one connection."""
        self._kept: dict[int, Checkpoint] | None = None
        self._last = LastChunk()
        self._is_recalling = self._was_told = False
        self._opening: Opening | None = None
        self._reset_channel()

    def _reset_channel(self) -> None:
        self._is_verified = self._is_consuming = False
        self._came: list[tuple[int, Record]] = []
        self._tag = 0  # the last that is not acknowledged; 0: none
        if not self._reading.queue.count:
            self._waiting.clear()

    def _wake(self) -> None:
        """The thread has an answer; called by it."""
        if not self.is_closed:
            self.pool.threads.mark(self.key)

    # ---- the port

    @property
    def clock_offset_ms(self) -> int | None:
        """RabbitMQ tells no time: this machine's."""
        return round((time.time() - time.monotonic()) * 1000)

    def poll(self, now: float) -> Sequence[SourceEvent]:
        """What happened since the last call."""
        if self.is_closed:
            return ()
        events: list[SourceEvent] = []
        self.check_time(now)
        try:
            self._take_answers(now)
            self._advance(now)
            self._take_records()
        except CodecError as error:
            self.fail(ProtocolError(f"stream '{self.entity}': {error}"))
        except IsthmusError as error:
            self.fail(error)
        if self.is_open and self.fault is None and not self._was_told:
            self._was_told = True
            events.append(SourceOpened())
        if self._was_told:
            batches = self._reading.take()
            for batch in batches:
                for position, payload in zip(batch.positions, batch.payloads, strict=True):
                    self._settlement.dead.keep(position, payload)
                self._waiting.taken(batch.positions[-1])
                events.append(Arrived(batch.positions, batch.payloads))
            # A source is lost for one reason at a time: what is not told now is told later.
            if batches and self.fault is None and (lost := self._losses.gave()) is not None:
                self.fail(lost)
        if self._was_told and self.fault is None:
            if self._reading.is_over():
                events.append(Exhausted())
            self._refill()
        checkpoints = self._reading.begin_commit(now)
        if checkpoints and self._group is not None:
            self._thread.write(self._group, checkpoints)
        if text := self._settlement.take_refused(now):
            self._lost(SourceLost(text, is_fatal=True), events, now)
        elif self.fault is not None:
            self._lost(SourceLost(str(self.fault), not may_pass(self.fault)), events, now)
        if self._is_draining:
            self._is_draining = False
            events.append(Drained())
        return events

    def deadline(self, now: float) -> float:
        """When `poll` has something to do though the socket is silent."""
        return min(
            self.step_deadline(now), self._reading.commit_due, self._settlement.refused.due(now), self._last.empty_at
        )

    def grant(self, credit: int) -> None:
        """Sets the credit."""
        self._is_draining = False
        self._reading.queue.credit = 0 if self._settlement.refused.text else credit
        self.mark()

    def drain(self) -> None:
        """Takes the credit back; what is on its way waits in the queue for the next."""
        self._reading.queue.credit = 0
        self._is_draining = True
        self.mark()

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Settles delivered positions."""
        connection = self.connection if self.is_open else None
        error = self._settlement.settle(first, last, disposition, connection, time.monotonic())
        if error is not None:
            self.fail(error)
        self.mark()

    def release(self, first: int, last: int) -> None:
        """Gives delivered positions back; they are read again."""
        self._settlement.release(first, last)
        self.mark()

    def close(self) -> None:
        """Ends it, once the copies of what was set aside are confirmed; what is settled is written in the background."""
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
        self.pool.owes(self)

    def finish(self) -> None:
        """Its owner has closed it, and nothing that it waited for comes any more."""
        if self._is_finished:
            return
        self._is_finished = True
        if (untold := self._losses.gave()) is not None:
            _log.error("%s", untold)  # the checkpoint may be behind it, and no reader finds it any more
        last = self._first | self._reading.unconfirmed()
        if last and self._group is not None:
            self._thread.write(self._group, last)
        self._thread.stop()
        if self._thread.ident is not None:
            self.pool.threads.add_leaving(self._thread)
        self.disconnect(time.monotonic(), politely=True)

    @property
    def has_left(self) -> bool:
        """Whether what was settled is written: a reader that begins earlier reads it again."""
        return self._is_finished and not self._thread.is_alive()

    # ---- opening

    def mark(self) -> None:
        """It has something to tell."""
        if not self.is_closed:
            super().mark()

    def begin(self, connection: Connection) -> None:
        """Looks at the last chunk, and asks for the checkpoint."""
        self._reset()
        self._loads += 1
        self._group = self.options.key(connection.cluster_name, self.entity, self.options.group)
        self._thread.load(self._group, self._loads)
        self._settlement.dead.begin(connection)
        connection.write(wire.declare_passive(CHANNEL, self.entity))
        connection.write(wire.qos(CHANNEL, PREFETCH))
        connection.write(wire.consume_stream(CHANNEL, self.entity, LOOK, "last"))

    def _take_answers(self, now: float) -> None:
        for answer in self._thread.take():
            if not isinstance(answer, Loaded):
                self._reading.written(answer.checkpoints, failed=answer.error is not None, now=now)
                if answer.error is not None:
                    self.fail(answer.error)
                else:
                    self._first.clear()
                    self._try_open()
            elif answer.number == self._loads and self.connection is not None:
                if answer.error is not None:
                    self.fail(answer.error)
                else:
                    self._kept = dict(answer.checkpoints)

    def _advance(self, now: float) -> None:
        """Goes on with the opening, and reads again what was given back."""
        connection = self.connection
        if connection is None or self.fault is not None:
            return
        self._last.look(now)
        if self._opening is None:
            if self._last.found is not None and self._kept is not None:
                self._decide(self._last.found, self._kept.get(PARTITION))
                self._recall(connection)
        elif self._reading.rewind and self.is_open and not self._is_recalling:
            self._reading.rewind.clear()
            begin = self._reading.next_of(PARTITION)
            self._opening = Opening(begin, begin, is_known=True)
            self._recall(connection)

    def _decide(self, last: tuple[int, str], kept: Checkpoint | None) -> None:
        reached = self._reading.next_of(PARTITION)
        options = self.options
        digest = self._reading.noted(PARTITION, reached - 1)
        kept = kept or self._first.get(PARTITION)
        found = opening(self.entity, options.checkpoints, *last, kept, reached, options.start, digest)
        if found.first is not None:
            self._first[PARTITION] = found.first
        if self._first and self._group is not None:
            self._thread.write(self._group, dict(self._first))
        self._reading.assign(PARTITION, first=found.begin if found.is_known else -1)
        self._reading.rewind.clear()
        present = self._reading.present
        if present is not None:
            if present.ends is None:
                present.ends = {PARTITION: last[0] + 1}
            present.reached(PARTITION, found.begin)
        self._opening = found

    def _recall(self, connection: Connection) -> None:
        """The channel again: what it has given, and its credit, end with it."""
        self._is_recalling = True
        self.step(f"a new channel of stream '{self.entity}'")
        self._reset_channel()
        connection.is_paused = False
        connection.write(wire.close_method(CHANNEL))
        connection.flush()

    def _try_open(self) -> None:
        """It is open once a later reader would begin where it does."""
        if self._is_consuming and self._step and not self._first:
            self.opened()

    # ---- called by the connection

    def on_method(self, channel: int, which: tuple[int, int], arguments: bytes) -> None:
        """A method came."""
        connection = self.connection
        if channel == DEAD_CHANNEL:
            self._confirmed(self._settlement.dead.on_method(which, arguments))
        elif self.is_closed:
            return
        elif which == M.QUEUE_DECLARE_OK:
            self._last.declared(_COUNT(arguments, 1 + arguments[0])[0])
            self.mark()
        elif which == M.BASIC_CONSUME_OK and self._opening is None:
            self.step(f"the last chunk of stream '{self.entity}'")
            self._last.began(time.monotonic())
            self.mark()
        elif which == M.BASIC_CONSUME_OK:
            self._is_consuming = True
            self.step(f"the first checkpoint of stream '{self.entity}'")
            self._try_open()
        elif which == M.CHANNEL_CLOSE_OK and connection is not None and self._opening is not None:
            self._is_recalling = False
            connection.write(wire.method(CHANNEL, M.CHANNEL_OPEN, b"\0"))
            connection.write(wire.qos(CHANNEL, self.options.prefetch))
            connection.write(wire.consume_stream(CHANNEL, self.entity, MAIN, self._opening.ask))
            connection.flush()
        elif which == M.BASIC_CANCEL:
            self.fail(
                ConnectionLostError(f"stream '{self.entity}': RabbitMQ ended the consumer: it was deleted or moves")
            )

    def on_content(self, channel: int, which: tuple[int, int], content: Content) -> None:
        """A message came."""
        if channel == DEAD_CHANNEL:
            self._confirmed(self._settlement.dead.returned(content.arguments))
            return
        if self._is_recalling or self.is_closed or self.fault is not None:
            return
        arguments, properties, body = content
        at = 1 + arguments[0]
        self._tag = _TAG(arguments, at)[0]
        exchange, at = wire.short_at(arguments, at + 9)
        record = Record(body, properties, exchange, wire.short_at(arguments, at)[0])
        offset = offset_of(record)
        if offset is None:
            hint = "it is no stream; read it with kind rabbitmq"
            self.fail(ProtocolError(f"'{self.entity}' gives messages without offset; {hint}"))
        elif self._opening is None:
            if self._last.saw(offset, digest_of(record)) and self.connection is not None:
                self.connection.write(wire.declare_passive(CHANNEL, self.entity))
                self.connection.flush()
        elif self._is_wanted(self._opening, offset, record):
            self._came.append((offset, record))
            self._waiting.add(offset, len(body) + len(properties))
            self.mark()
            if self.connection is not None:
                self._pause(self.connection)

    def _is_wanted(self, opened: Opening, offset: int, record: Record) -> bool:
        if not self._is_verified and offset >= opened.ask:
            if opened.digest and offset == opened.ask and digest_of(record) != opened.digest:
                self.fail(made_again(self.entity, offset, self.options.checkpoints))
                return False
            self._is_verified = True
            if opened.missing is not None:
                self._reading.drop_gaps(PARTITION, opened.missing)
            awaited = self._reading.missing_before(PARTITION, offset)
            lost = self._losses.found(opened.lost_before(offset, awaited))
            if lost is not None:
                self.fail(lost)
                return False
        if offset < opened.begin:
            self.mark()  # its credit is given back
            return False
        return True

    # ---- reading

    def _take_records(self) -> None:
        came, self._came = self._came, []
        if came:  # also where it is lost: what came before that is the stream's
            self._reading.put(PARTITION, came)
        begun = self._reading.begun_again.pop(PARTITION, None)
        if begun is not None:
            raise ProtocolError(f"stream '{self.entity}': offset {begun} came behind a higher one")
        connection = self.connection
        if connection is None or not self.is_open or self._is_recalling or self.fault is not None:
            return  # gaps are looked at when it is open again
        is_looking = self._opening is not None and self._opening.missing is not None and not self._is_verified
        gaps = [each for each in self._reading.gaps.get(PARTITION, ()) if self._losses.is_news(*each)]
        if gaps and not is_looking:
            # Notes of the broker take offsets, too: nothing was removed while the message before the first gap is there.
            begin = self._reading.next_of(PARTITION)
            self._opening = Opening(min(gaps[0][0] - 1, begin), begin, is_known=True, missing=gaps)
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
        """Reads nothing more while much waits here, unless an answer is in it."""
        is_expecting = bool(self._step) or self._settlement.dead.is_waiting
        connection.is_paused = self._waiting.is_much and not is_expecting

    def _confirmed(self, told: Sequence[int] | IsthmusError) -> None:
        if isinstance(told, IsthmusError):
            self.fail(told)
        elif told:
            self._settlement.confirmed(told, time.monotonic())
            self.mark()
        if self.is_closed and not self._settlement.dead.is_waiting:
            self.finish()

    def on_closed(self, error: IsthmusError) -> None:
        """The connection is lost, or there is none."""
        super().on_closed(explained(error))
        if self.is_closed:
            self.finish()

    def _lost(self, event: SourceLost, events: list[SourceEvent], now: float) -> None:
        self.disconnect(now, politely=event.is_fatal)
        self._settlement.lost()
        self._reset()
        self._reading.queue.credit = 0
        events.append(event)
