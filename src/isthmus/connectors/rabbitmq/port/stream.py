"""A stream, browsed.

What it is: the messages of a stream from an offset on, as encoded messages, read over AMQP 0-9-1 without taking any. The queue that `apply`
binds to an exchange for `isthmus verify` is a stream. What it is not: a source: a stream keeps acknowledged messages. Specification: RabbitMQ
documentation, "Streams and Superstreams" (consuming, `x-stream-offset`), 3.9 and later.

A stream does not report its end to a reader. A second reader, of the last chunk, finds the end before the stream is read.

Invariants:
    I1. An empty page means that no message follows: a broker without answer is an error.
    I2. A page contains no message twice, and every message that existed when its end was queried.
    I3. The position of a message is its offset.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from isthmus.connectors.rabbitmq.mapping.mapping import to_message
from isthmus.connectors.rabbitmq.option import BrokerOptions, read_broker
from isthmus.connectors.rabbitmq.port.probe import ANSWER_SECONDS, Probe
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table, wire
from isthmus.connectors.rabbitmq.protocol.connection import Content
from isthmus.connectors.rabbitmq.protocol.property import Record
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.errors import ConnectionLostError, IsthmusError, OperationTimeoutError

__all__ = ["EMPTY_SECONDS", "PREFETCH", "StreamPeek", "first_offset", "last_record"]

# Messages in transit: more than a chunk, so that an answer requested after one follows all of it.
PREFETCH = 20_000
# A stream that reports no messages, and delivers none for so long, is empty.
EMPTY_SECONDS = 2.0
_CHANNEL = 1
_TAG = struct.Struct(">Q?").unpack_from
_OFFSET = "x-stream-offset"


class StreamPeek:
    """Browses one stream.

    Args:
        options: the options that reach the broker.
        queue: the stream.
        read: makes the message of a record at an offset.

    Raises:
        EntityNotFoundError: it does not exist.
        IsthmusError: the broker cannot be reached, or refuses.
    """

    def __init__(
        self, options: Mapping[str, str], queue: str, read: Callable[[Record, int], bytes] = to_message
    ) -> None:
        self._options = read_broker(options)
        self._read = read
        self._queue = queue
        self._end = -1
        self._reader: _Reader | None = None
        with Probe(self._options) as probe:
            probe.queue(queue)

    def __call__(self, from_position: int, count: int) -> Sequence[bytes]:
        """Messages from a position on, `count` at most; empty where there are none.

        Raises:
            IsthmusError: no answer, or a refusal.
        """
        start = max(0, from_position)
        if start > self._end:
            self._end = _last_offset(self._options, self._queue)
            if start > self._end:
                return ()
        try:
            return self._page(start, count)
        except ConnectionLostError:  # it was idle for longer than its heartbeat, or the broker closed it
            self.close()
            return self._page(start, count)

    def _page(self, start: int, count: int) -> Sequence[bytes]:
        reader = self._reader
        if reader is None or reader.at != start:
            self.close()
            reader = self._reader = _Reader(self._options, self._queue, start)
        return [self._read(record, offset) for offset, record in reader.take(start, count, self._end)]

    def close(self) -> None:
        """Closes the connection."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


class _Reader(Probe):
    """A consumer of a stream; an error ends it.

    Attributes:
        at: the next offset to read.
    """

    def __init__(self, options: BrokerOptions, queue: str, start: int | str, prefetch: int = PREFETCH) -> None:
        self.at = start if isinstance(start, int) else -1
        self.tag = 0
        self.came: deque[tuple[int, Record]] = deque()
        super().__init__(options)
        self._queue = queue
        self._ask(queue, wire.qos(_CHANNEL, prefetch), M.BASIC_QOS_OK)
        self._ask(queue, wire.consume_stream(_CHANNEL, queue, "", start), M.BASIC_CONSUME_OK)

    def take(self, start: int, count: int, end: int) -> Sequence[tuple[int, Record]]:
        """So many records at most, from `start` to `end`, with their offsets."""
        found: list[tuple[int, Record]] = []
        while len(found) < count and self.at <= end:
            if not self.came:
                self.wait(lambda: bool(self.came), f"offset {self.at} of stream '{self._queue}'")
            offset, record = self.came.popleft()
            if offset >= start:
                found.append((offset, record))
            self.at = max(self.at, offset + 1)
        self._connection.write(wire.ack(_CHANNEL, self.tag, multiple=True))
        self._connection.flush()
        return found

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = ANSWER_SECONDS) -> None:
        """Reads until a condition is true.

        Raises:
            OperationTimeoutError: it is not within `seconds`.
        """
        limit = time.monotonic() + seconds
        while not condition():
            if not self._serve(limit):
                raise OperationTimeoutError(
                    f"{self.place}: waited {seconds:g} s for {what}; check whether the broker is busy"
                )

    def chunk_is_whole(self) -> None:
        """Sends a request whose answer follows all earlier deliveries of the channel."""
        self._ask(self._queue, wire.declare_passive(_CHANNEL, self._queue), M.QUEUE_DECLARE_OK)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.abandon()

    def on_content(self, channel: int, which: tuple[int, int], content: Content) -> None:
        """A message arrived."""
        arguments, properties, body = content
        tag_at = 1 + arguments[0]
        self.tag = _TAG(arguments, tag_at)[0]
        exchange, at = wire.short_at(arguments, tag_at + 9)
        routing_key, _ = wire.short_at(arguments, at)
        offset = next(
            (table.value_of(kind, raw) for name, kind, raw in props.read(properties).headers if name == _OFFSET), None
        )
        if isinstance(offset, int):
            self.came.append((int(offset), Record(body, properties, exchange, routing_key)))


def first_offset(options: BrokerOptions, queue: str, start: int) -> int:
    """The offset of the first message of a stream at or after `start`, which must exist.

    Raises:
        IsthmusError: no answer, or a refusal.
    """
    reader = _Reader(options, queue, start, prefetch=1)
    try:
        reader.wait(lambda: any(offset >= start for offset, _ in reader.came), f"offset {start} of stream '{queue}'")
        return min(offset for offset, _ in reader.came if offset >= start)
    finally:
        with suppress(IsthmusError):
            reader.close()


def _last_offset(options: BrokerOptions, queue: str) -> int:
    """The offset of the last message of a stream; -1 where it is empty."""
    return last_record(options, queue)[0]


def last_record(options: BrokerOptions, queue: str) -> tuple[int, Record | None]:
    """The last message of a stream with its offset; -1 and None where none arrived.

    Raises:
        EntityNotFoundError: the queue does not exist.
        IsthmusError: no answer, or a refusal.
    """
    with Probe(options) as probe:
        messages = probe.queue(queue)
    reader = _Reader(options, queue, "last")
    try:
        try:
            seconds = ANSWER_SECONDS if messages else EMPTY_SECONDS
            reader.wait(lambda: bool(reader.came), f"the last chunk of stream '{queue}'", seconds)
        except OperationTimeoutError:
            if messages:
                raise
            return -1, None
        reader.chunk_is_whole()
        return max(reader.came, key=lambda each: each[0])
    finally:
        with suppress(IsthmusError):
            reader.close()
