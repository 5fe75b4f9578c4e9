"""A RabbitMQ with one stream in memory, and a source of kind `rabbitmq-streams` that reads it: no socket, no thread, no clock of its own."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from isthmus.connectors.checkpoint.checkpoint import Checkpoint, CheckpointError
from isthmus.connectors.checkpoint.thread import Loaded, Written
from isthmus.connectors.rabbitmq.port.end import CHANNEL
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table, wire
from isthmus.connectors.rabbitmq.protocol.connection import Content
from isthmus.connectors.rabbitmq.protocol.property import Properties, Record
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.rabbitmq_streams.option import read_source
from isthmus.connectors.rabbitmq_streams.source import StreamSource
from isthmus.errors import ConnectionLostError

__all__ = ["CLOCKS", "OPTIONS", "Clock", "DeadLink", "Link", "Reader", "Stream", "Thread", "delivery", "record"]

CLOCKS = (
    "isthmus.connectors.rabbitmq.dead_letter.time",
    "isthmus.connectors.rabbitmq.port.end.time",
    "isthmus.connectors.rabbitmq_streams.source.time",
)
"""What a `Clock` has to stand for."""
OPTIONS = {
    "host": "h",
    "username": "u",
    "password": "env:P",
    "topic": "orders",
    "checkpoints": "/nowhere",
    "checkpoint_seconds": "0.5",
}
CHUNK = 10


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


def record(offset: int, body: bytes = b"") -> Record:
    headers = (("x-stream-offset", *table.field_of(offset)),)
    return Record(body or b"#%d" % offset, props.write(Properties(headers=headers)), "", "orders")


def delivery(tag: int, found: Record) -> Content:
    reported = wire.short("t") + struct.pack(">Q?", tag, False) + wire.short("") + wire.short("orders")
    return Content(reported, found.properties, found.body)


class Stream:
    """A broker with one stream; RabbitMQ gives whole chunks while the consumer has credit."""

    def __init__(self) -> None:
        self.messages: dict[int, Record] = {}
        self.published: list[int] = []  # delivery tags of what was set aside, without a confirm
        self.is_silent = False  # answers nothing more
        self.connection: Link | None = None

    def add(self, first: int, stop: int, **settings: Any) -> None:
        self.messages |= {offset: record(offset, **settings) for offset in range(first, stop)}

    def remove(self, first: int, stop: int) -> None:
        for offset in range(first, stop):
            self.messages.pop(offset, None)

    def chunk_of(self, offset: int) -> int:
        return offset - offset % CHUNK


class Link:
    """The connection, from the source's side; `serve` brings what the broker has answered."""

    frame_bytes = 1 << 17
    cluster_name = "rabbit@h"

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.user: Any = None
        self.error: Exception | None = None
        self.is_paused = False
        self.answers: deque[tuple[Any, ...]] = deque()
        self.asked: list[int | str] = []
        self._tags = self._acked = 0
        self._credit, self._next = 0, -1

    def flush(self) -> None:
        pass

    def write_all(self, parts: list[bytes]) -> None:
        pass  # the content of a copy; its method was written before

    def write(self, data: bytes) -> None:
        kind, channel, size = struct.unpack_from(">BHI", data)
        assert kind == wire.METHOD
        which = struct.unpack_from(">HH", data, 7)
        arguments = data[11 : 7 + size]
        if self.stream.is_silent:
            return
        if which == M.QUEUE_DECLARE:
            answer = wire.short("orders") + struct.pack(">II", len(self.stream.messages), 1)
            self.answers.append((channel, M.QUEUE_DECLARE_OK, answer))
        elif which == M.BASIC_QOS:
            self._credit = struct.unpack_from(">IH", arguments)[1]
            self.answers.append((channel, M.BASIC_QOS_OK, b""))
        elif which == M.BASIC_CONSUME:
            self._consume(channel, arguments)
        elif which == M.BASIC_ACK:
            tag = struct.unpack_from(">Q", arguments)[0]
            self._credit += tag - self._acked
            self._acked = tag
        elif which == M.CHANNEL_CLOSE and channel == CHANNEL:
            self._next, self._tags, self._acked = -1, 0, 0
            self.answers.append((channel, M.CHANNEL_CLOSE_OK, b""))

    def _consume(self, channel: int, arguments: bytes) -> None:
        tag, at = wire.short_at(arguments, 2 + 1 + arguments[2])
        [(_, kind, raw)], _ = table.decode(arguments, at + 1)
        start = table.value_of(kind, raw)
        self.asked.append(start)
        self.answers.append((channel, M.BASIC_CONSUME_OK, wire.short(tag)))
        messages = self.stream.messages
        self._next = (
            self.stream.chunk_of(max(messages)) if start == "last" and messages else -1 if start == "last" else start
        )
        if start == "last" and not messages:
            self._next = 0
        self.push()

    def push(self) -> None:
        """Chunks, while there is credit."""
        messages = self.stream.messages
        while self._next >= 0 and self._credit > 0:
            left = [each for each in messages if each >= self._next]
            if not left:
                return
            chunk = self.stream.chunk_of(min(left))
            for offset in sorted(each for each in left if each < chunk + CHUNK):
                self._tags += 1
                self._credit -= 1
                found = messages[offset]
                self.answers.append((CHANNEL, M.BASIC_DELIVER, delivery(self._tags, found)))
                self._next = offset + 1

    def serve(self) -> None:
        self.push()
        while self.answers and not self.is_paused and self.user is not None:
            channel, which, arguments = self.answers.popleft()
            if isinstance(arguments, Content):
                self.user.on_content(channel, which, arguments)
            else:
                self.user.on_method(channel, which, arguments)


class DeadLink:
    """The connection of copies, from the source's side."""

    frame_bytes = 1 << 17
    queued_bytes = arrived_bytes = 0

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.user: Any = None
        self.error: Exception | None = None
        self.answers: deque[tuple[tuple[int, int], bytes]] = deque()
        self._copies = 0
        stream.published = []

    def flush(self) -> None:
        pass

    def write_all(self, parts: list[bytes]) -> None:
        pass  # the content of a copy; its method was written before

    def write(self, data: bytes) -> None:
        which = struct.unpack_from(">HH", data, 7)
        if which == M.BASIC_PUBLISH:
            self._copies += 1
            self.stream.published.append(self._copies)
        elif which == M.CONNECTION_CLOSE:
            self.stream.published = []

    def confirm(self) -> None:
        self.answers.append((M.BASIC_ACK, struct.pack(">QB", self.stream.published[-1], 1)))

    def serve(self) -> None:
        while self.answers and self.user is not None:
            which, arguments = self.answers.popleft()
            self.user.on_method(CHANNEL, which, arguments)


class Thread:
    """The store of checkpoints, whose answers come with the next poll."""

    ident = None

    def __init__(self) -> None:
        self.kept: dict[int, Checkpoint] = {}
        self.answers: list[Any] = []
        self.keys: list[Any] = []
        self.error: CheckpointError | None = None
        self.is_slow = False

    def load(self, key: Any, number: int) -> None:
        self.keys.append(key)
        self.answers.append(Loaded(number, dict(self.kept), None))

    def write(self, key: Any, checkpoints: Mapping[int, Checkpoint]) -> None:
        if self.error is None:
            for number, each in checkpoints.items():
                if number not in self.kept or self.kept[number].sequence <= each.sequence:
                    self.kept[number] = each
        self.answers.append(Written(checkpoints, self.error))

    def take(self) -> list[Any]:
        if self.is_slow:
            return []
        taken, self.answers = self.answers, []
        return taken

    def stop(self) -> None:
        pass

    def is_alive(self) -> bool:
        return False


class Reader:
    """A source that is served until nothing happens."""

    def __init__(
        self, stream: Stream, clock: Clock, thread: Thread | None = None, *, only_present: bool = False, **options: str
    ) -> None:
        self.stream, self.clock = stream, clock
        self.thread = thread or Thread()
        self.links: list[Link] = []
        self.left: list[Link] = []
        self.owing: list[StreamSource] = []
        pool: Any = SimpleNamespace(
            connect=self._connect,
            mark=lambda _: None,
            unmark=lambda _: None,
            drop=self._drop,
            leave=lambda link, _: self.left.append(link),
            owes=self.owing.append,
            threads=SimpleNamespace(mark=lambda _: None, add_leaving=lambda _: None),
        )
        reported = read_source({**OPTIONS, **options})
        self.source = StreamSource(pool, 1, reported, only_present=only_present, thread=lambda *_: self.thread)  # type: ignore[arg-type]
        self.events: list[Any] = []
        self._wants = False
        self._asked: Any = None
        self.dead: DeadLink | None = None  # the connection of copies

    @property
    def link(self) -> Link:
        return self.links[-1]

    def _connect(self, end: Any, options: Any) -> Any:
        request = SimpleNamespace(end=end)
        if end is self.source:
            self._wants = True
        else:
            self._asked = request
        return request

    def confirm(self) -> None:
        """All copies are confirmed."""
        assert self.dead is not None
        self.dead.confirm()

    def _drop(self, link: Link | DeadLink) -> None:
        link.user = None

    def open(self) -> list[Any]:
        self.source.open()
        return self.run()

    @property
    def is_connecting(self) -> bool:
        return self._wants

    @property
    def is_connected(self) -> bool:
        return bool(self.links) and self.source.connection is self.link  # type: ignore[comparison-overlap]

    def serve(self) -> None:
        """Connects where that is wanted, and brings what the broker has answered."""
        if self._wants:
            self._wants = False
            self.stream.published = []
            self.links.append(Link(self.stream))
            self.source.on_connected(self.link)  # type: ignore[arg-type]
        if self.links and self.link.user is not None:
            self.link.serve()
        asked, self._asked = self._asked, None
        if asked is not None and asked.end is not None:
            self.dead = DeadLink(self.stream)
            asked.end.on_connected(self.dead)
        if self.dead is not None:
            self.dead.serve()

    def run(self) -> list[Any]:
        """Serves it until nothing happens any more; what is reported to the owner."""
        reported: list[Any] = []
        for _ in range(50):
            self.serve()
            reported += self.source.poll(self.clock.now)
        return reported

    def lose(self) -> list[Any]:
        self.source.fail(ConnectionLostError("gone"))
        return self.run()
