"""A blocking client of AMQP 0-9-1 for tests: publishes with confirms, and takes messages from a queue by `basic.get`.

It shares the reading of fields with the connector, and nothing of its connection.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Self

from harness.server.rabbitmq_server import PASSWORD, USER
from isthmus.connectors.rabbitmq.protocol import table, wire
from isthmus.connectors.rabbitmq.protocol.property import Record
from isthmus.connectors.rabbitmq.protocol.wire import M

__all__ = ["RabbitClient"]

FRAME_BYTES = 131_072
WINDOW = 200
_GET, _GET_OK, _GET_EMPTY = (60, 70), (60, 71), (60, 72)
_TIMEOUT_SECONDS = 60.0


class RabbitClient:
    """One connection with one channel.

    Args:
        port: of a node on this machine.
        host: the virtual host.
        user: who, with the tests' password.

    Attributes:
        returned: messages that came back.
    """

    def __init__(self, port: int, host: str = "/", user: str = USER) -> None:
        self.returned: list[Record] = []
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._numbers = self._confirmed = 0
        self._confirms: set[int] = set()
        try:
            self._open(host, user)
        except BaseException:
            self._socket.close()
            raise

    def _open(self, host: str, user: str) -> None:
        self._socket.sendall(wire.PROTOCOL_HEADER)
        self._wait(M.CONNECTION_START)
        response = wire.long_text(f"\0{user}\0{PASSWORD}".encode())
        self._send(0, M.CONNECTION_START_OK, table.encode([]) + wire.short("PLAIN") + response + wire.short("en_US"))
        self._wait(M.CONNECTION_TUNE)
        self._send(0, M.CONNECTION_TUNE_OK, struct.pack(">HIH", 8, FRAME_BYTES, 0))
        self._send(0, M.CONNECTION_OPEN, wire.short(host) + b"\0\0")
        self._wait(M.CONNECTION_OPEN_OK)
        self._send(1, M.CHANNEL_OPEN, b"\0")
        self._wait(M.CHANNEL_OPEN_OK)
        self._send(1, M.CONFIRM_SELECT, b"\0")
        self._wait(M.CONFIRM_SELECT_OK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(self, records: Sequence[Record]) -> None:
        """Publishes messages, and waits for the confirms."""
        for record in records:
            parts = [wire.publish_method(1, record.exchange, record.routing_key)]
            parts += wire.content_frames(1, record.properties, record.body, FRAME_BYTES)
            self._socket.sendall(b"".join(parts))
            self._numbers += 1
            while self._numbers - self._confirmed > WINDOW:
                self._next()
        while self._confirmed < self._numbers:
            self._next()

    def take(self, queue: str, limit: int = 10_000) -> list[Record]:
        """Takes messages from a queue, so many at most."""
        return list(self.each(queue, limit))

    def each(self, queue: str, limit: int = 10_000) -> Iterator[Record]:
        """The same, one by one: a message is acknowledged after its use, so that an error loses none that was taken before."""
        for _ in range(limit):
            got = self.get(queue)
            if got is None:
                return
            yield got[1]
            self._socket.sendall(wire.ack(1, got[0], False))

    def get(self, queue: str) -> tuple[int, Record] | None:
        """One message, with its delivery tag; None where the queue is empty. It is not acknowledged."""
        self._send(1, _GET, b"\0\0" + wire.short(queue) + b"\0")
        while True:
            which, arguments, content = self._next()
            if which == _GET_EMPTY:
                return None
            if which == _GET_OK and content is not None:
                exchange, at = wire.short_at(arguments, 9)
                return struct.unpack_from(">Q", arguments)[0], Record(
                    content[1], content[0], exchange, wire.short_at(arguments, at)[0]
                )

    def call(self, which: tuple[int, int], arguments: bytes, answer: tuple[int, int]) -> bytes:
        """A method, and the arguments of its answer."""
        self._send(1, which, arguments)
        return self._wait(answer)

    def close(self) -> None:
        """Ends it."""
        self._socket.close()

    def _send(self, channel: int, which: tuple[int, int], arguments: bytes) -> None:
        self._socket.sendall(wire.method(channel, which, arguments))

    def _wait(self, wanted: tuple[int, int]) -> bytes:
        while True:
            which, arguments, _ = self._next()
            if which == wanted:
                return arguments

    def _next(self) -> tuple[tuple[int, int], bytes, tuple[bytes, bytes] | None]:
        kind, payload = self._frame()
        while kind != wire.METHOD:
            kind, payload = self._frame()
        which: Any = struct.unpack_from(">HH", payload)
        arguments = payload[4:]
        content = None
        if which in (_GET_OK, M.BASIC_RETURN, M.BASIC_DELIVER):
            _, header = self._frame()
            size, properties = struct.unpack_from(">Q", header, 4)[0], header[12:]
            body = b""
            while len(body) < size:
                body += self._frame()[1]
            content = properties, body
        if which == M.BASIC_RETURN and content is not None:
            self.returned.append(Record(content[1], content[0]))
        elif which in (M.BASIC_ACK, M.BASIC_NACK):
            number, multiple = struct.unpack_from(">Q?", arguments)
            assert which == M.BASIC_ACK, "RabbitMQ refused a message"
            self._confirms |= set(range(self._confirmed + 1, number + 1)) if multiple else {number}
            while self._confirmed + 1 in self._confirms:
                self._confirmed += 1
                self._confirms.discard(self._confirmed)
        elif which in (M.CHANNEL_CLOSE, M.CONNECTION_CLOSE):
            raise EOFError(str(wire.read_close(arguments)))
        return which, arguments, content

    def _frame(self) -> tuple[int, bytes]:
        kind, _, size = struct.unpack(">BHI", self._take(7))
        return kind, self._take(size + 1)[:-1]

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError("RabbitMQ closed the connection")
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken
