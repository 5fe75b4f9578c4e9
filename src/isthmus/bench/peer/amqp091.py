"""Just enough AMQP 0-9-1 to load and watch a RabbitMQ node.

What it is: a blocking client with one channel that declares durable queues, publishes persistent messages with publisher
confirms, counts what waits, and consumes. It exists so that RabbitMQ can be measured without a further
dependency. It is not a general client: no heartbeats, no TLS, no recovery.

Specification: AMQP 0-9-1, sections 4.2 (framing) and 1 (methods); RabbitMQ's publisher confirms extension.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence

from isthmus.errors import ConnectionLostError, ProtocolError

__all__ = ["Channel091"]

_FRAME_METHOD, _FRAME_HEADER, _FRAME_BODY, _FRAME_END = 1, 2, 3, b"\xce"
_CHANNEL = 1
_BASIC_CLASS = 60
_FRAME_HEAD = struct.Struct(">BHI")

# Method ids: class, method.
_CONNECTION_START, _CONNECTION_START_OK = (10, 10), (10, 11)
_CONNECTION_TUNE, _CONNECTION_TUNE_OK = (10, 30), (10, 31)
_CONNECTION_OPEN, _CONNECTION_OPEN_OK = (10, 40), (10, 41)
_CHANNEL_OPEN, _CHANNEL_OPEN_OK = (20, 10), (20, 11)
_QUEUE_DECLARE, _QUEUE_DECLARE_OK = (50, 10), (50, 11)
_BASIC_QOS, _BASIC_QOS_OK = (60, 10), (60, 11)
_BASIC_CONSUME, _BASIC_CONSUME_OK = (60, 20), (60, 21)
_BASIC_PUBLISH, _BASIC_DELIVER, _BASIC_ACK, _BASIC_NACK = (60, 40), (60, 60), (60, 80), (60, 120)
_CONFIRM_SELECT, _CONFIRM_SELECT_OK = (85, 10), (85, 11)
_CLOSES = {(10, 50), (20, 40)}

_DURABLE, _PASSIVE_DURABLE = 0x02, 0x03
_PERSISTENT = struct.pack(">HB", 0x1000, 2)  # property flags: only delivery-mode; 2 = persistent


def _short(text: str) -> bytes:
    raw = text.encode()
    return bytes([len(raw)]) + raw


def _method(method: tuple[int, int], arguments: bytes) -> bytes:
    return _frame(_FRAME_METHOD, struct.pack(">HH", *method) + arguments)


def _frame(kind: int, payload: bytes, channel: int = _CHANNEL) -> bytes:
    return _FRAME_HEAD.pack(kind, channel, len(payload)) + payload + _FRAME_END


class Channel091:
    """One connection with one channel to a RabbitMQ node on this machine, as its user guest.

    Args:
        port: the node's AMQP port.

    Raises:
        ConnectionLostError: if the node does not answer or closes.
    """

    def __init__(self, port: int) -> None:
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        except OSError as error:
            raise ConnectionLostError(f"no RabbitMQ node on port {port}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._confirmed = 0
        self._published = 0
        self._open()

    def close(self) -> None:
        """Drops the connection; unacknowledged messages are requeued."""
        self._socket.close()

    def declare(self, queue: str) -> None:
        """Make a durable classic queue."""
        self._socket.sendall(
            _method(_QUEUE_DECLARE, struct.pack(">H", 0) + _short(queue) + bytes([_DURABLE]) + struct.pack(">I", 0))
        )
        self._await(_QUEUE_DECLARE_OK)

    def count(self, queue: str) -> int:
        """How many messages are ready in the queue."""
        self._socket.sendall(
            _method(
                _QUEUE_DECLARE, struct.pack(">H", 0) + _short(queue) + bytes([_PASSIVE_DURABLE]) + struct.pack(">I", 0)
            )
        )
        answer = self._await(_QUEUE_DECLARE_OK)
        return int(struct.unpack_from(">I", answer, 1 + answer[0])[0])

    def confirm(self) -> None:
        """Asks the node to confirm publishes from now on."""
        self._socket.sendall(_method(_CONFIRM_SELECT, b"\0"))
        self._await(_CONFIRM_SELECT_OK)

    def publish(self, queue: str, bodies: Sequence[bytes], window: int = 2000) -> None:
        """Publish persistent messages through the default exchange, with at most `window` unconfirmed.

        Raises:
            ProtocolError: if the node refuses one.
        """
        method = _method(_BASIC_PUBLISH, struct.pack(">H", 0) + _short("") + _short(queue) + b"\0")
        parts: list[bytes] = []
        for body in bodies:
            header = _frame(_FRAME_HEADER, struct.pack(">HHQ", _BASIC_CLASS, 0, len(body)) + _PERSISTENT)
            parts += (method, header, _frame(_FRAME_BODY, body))
        self._socket.sendall(b"".join(parts))
        self._published += len(bodies)
        while self._published - self._confirmed > window:
            self._confirm_next()

    def flush(self) -> None:
        """Wait until everything published is confirmed."""
        while self._confirmed < self._published:
            self._confirm_next()

    def consume(self, queue: str, prefetch: int = 1000) -> Iterator[bytes]:
        """Receives messages and acknowledges each run of them, until the connection closes."""
        self._socket.sendall(_method(_BASIC_QOS, struct.pack(">IHB", 0, prefetch, 0)))
        self._await(_BASIC_QOS_OK)
        self._socket.sendall(
            _method(
                _BASIC_CONSUME,
                struct.pack(">H", 0) + _short(queue) + _short("isthmus-bench") + b"\0" + struct.pack(">I", 0),
            )
        )
        self._await(_BASIC_CONSUME_OK)
        body, size, tag = bytearray(), 0, 0
        while True:
            kind, payload = self._next_frame()
            if kind == _FRAME_METHOD and struct.unpack_from(">HH", payload) == _BASIC_DELIVER:
                tag = struct.unpack_from(">Q", payload, 5 + payload[4])[0]
            elif kind == _FRAME_HEADER:
                size = struct.unpack_from(">Q", payload, 4)[0]
                body.clear()
            elif kind == _FRAME_BODY:
                body += payload
                if len(body) >= size:
                    yield bytes(body)
                    if not self._buffer or tag % (prefetch // 2 or 1) == 0:
                        self._socket.sendall(_method(_BASIC_ACK, struct.pack(">QB", tag, 1)))

    def _open(self) -> None:
        self._socket.sendall(b"AMQP\0\0\x09\x01")
        self._await(_CONNECTION_START)
        credentials = struct.pack(">I", len(b"\0guest\0guest")) + b"\0guest\0guest"
        self._send_connection(
            _CONNECTION_START_OK, struct.pack(">I", 0) + _short("PLAIN") + credentials + _short("en_US")
        )
        tune = self._await(_CONNECTION_TUNE)
        channels, frame_bytes, _ = struct.unpack_from(">HIH", tune)
        self._send_connection(_CONNECTION_TUNE_OK, struct.pack(">HIH", channels, frame_bytes, 0))
        self._send_connection(_CONNECTION_OPEN, _short("/") + b"\0\0")
        self._await(_CONNECTION_OPEN_OK)
        self._socket.sendall(_method(_CHANNEL_OPEN, b"\0"))
        self._await(_CHANNEL_OPEN_OK)

    def _send_connection(self, method: tuple[int, int], arguments: bytes) -> None:
        self._socket.sendall(_frame(_FRAME_METHOD, struct.pack(">HH", *method) + arguments, channel=0))

    def _confirm_next(self) -> None:
        _, payload = self._next_frame()
        self._note_confirm(payload)

    def _note_confirm(self, payload: bytes) -> None:
        method = struct.unpack_from(">HH", payload)
        if method == _BASIC_ACK:
            tag, multiple = struct.unpack_from(">QB", payload, 4)
            self._confirmed = tag if multiple else self._confirmed + 1
        elif method == _BASIC_NACK:
            raise ProtocolError("RabbitMQ refused a published message")

    def _await(self, wanted: tuple[int, int]) -> bytes:
        """The arguments of the next method of this kind; confirms that come before it are counted."""
        while True:
            kind, payload = self._next_frame()
            if kind != _FRAME_METHOD:
                continue
            method = struct.unpack_from(">HH", payload)
            if method == wanted:
                return payload[4:]
            if method in _CLOSES:
                raise ConnectionLostError(f"RabbitMQ closed: {payload[7 : 7 + payload[6]].decode(errors='replace')}")
            self._note_confirm(payload)

    def _next_frame(self) -> tuple[int, bytes]:
        head = self._take(_FRAME_HEAD.size)
        kind, _, size = _FRAME_HEAD.unpack(head)
        payload = self._take(size + 1)[:-1]
        return kind, payload

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionLostError("RabbitMQ closed the connection")
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken
