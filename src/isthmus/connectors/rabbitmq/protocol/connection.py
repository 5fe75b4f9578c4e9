"""A connection to RabbitMQ, and its channels.

What it is: non-blocking reading and writing, after the handshake (`handshake`): bytes are parsed into methods and
contents for their channel. What it is not: a consumer or a publisher.
Specification: AMQP 0-9-1, 2.2.4 and 4.2; RabbitMQ documentation, "Heartbeats", "Blocked Connection Notifications".

A connection has one user. RabbitMQ stops reading from a connection that publishes faster than a queue accepts: routes that shared one
would block each other.

Invariants:
    I1. `service` and `flush` never block, nor read more than `READ_BYTES` at a time.
    I2. A connection that received nothing for two heartbeats, although it was read, is lost.
    I3. After `error` is set nothing is read, written or reported.
    I4. An exception of its user ends this connection, and nothing else.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from isthmus.connectors.rabbitmq.protocol import wire
from isthmus.connectors.rabbitmq.protocol.error import ClosedByBrokerError
from isthmus.connectors.rabbitmq.protocol.wire import BODY, HEADER, METHOD, M
from isthmus.errors import ConnectionLostError, IsthmusError, ProtocolError
from isthmus.unsent import unsent_bytes

__all__ = ["Connection", "Content", "User", "closed"]

READ_BYTES = 1 << 18
# Where no heartbeat was negotiated: the broker's own time-out is unknown.
UNHEARD_SECONDS = 30
_HEAD = struct.Struct(">BHI").unpack_from
_IDS = struct.Struct(">HH").unpack_from
_SIZE = struct.Struct(">Q").unpack_from


class Content(NamedTuple):
    """A received message: the arguments of its method, properties with their flags, body."""

    arguments: bytes
    properties: bytes
    body: bytes


class User(Protocol):
    """The user of a connection. Methods are called while it is read, in the order of the frames."""

    def on_method(self, channel: int, which: tuple[int, int], arguments: bytes) -> None:
        """A method without content arrived, except close."""
        ...

    def on_content(self, channel: int, which: tuple[int, int], content: Content) -> None:
        """A delivery or a return arrived."""
        ...

    def on_closed(self, error: IsthmusError) -> None:
        """The connection is lost, or one of its channels."""
        ...


class Connection:
    """An open connection.

    Args:
        sock: connected, and after the handshake (`handshake.dial`).
        place: the address, for errors.
        frame_bytes: as negotiated.
        heartbeat_seconds: the same; 0: none.

    Attributes:
        user: gets the events; set by the owner.
        take: takes frames before they are parsed, of received bytes from an offset on, and returns where the next one begins; None: nothing does.
        error: why it is unusable.
        is_ended_by_broker: whether the broker has closed it, so that it keeps no message for it any more.
        is_paused: leave received bytes in the socket; RabbitMQ waits then.
        broker: identifies the broker, of which `place` is one address; set by the dialing code.
        cluster_name: the cluster's name; empty: unknown.
    """

    def __init__(self, sock: socket.socket, place: str, frame_bytes: int, heartbeat_seconds: int) -> None:
        self.user: User | None = None
        self.take: Callable[[bytes, int], int] | None = None
        self.error: IsthmusError | None = None
        self.is_ended_by_broker = False
        self.place = self.broker = place
        self.frame_bytes = frame_bytes
        self.is_paused = False
        self.cluster_name = ""
        self._socket: socket.socket | None = sock
        self._heartbeat_seconds = heartbeat_seconds
        self._buffer = b""
        self._out: list[bytes] = []
        self._rest = memoryview(b"")
        self._wants_write = False
        self._taken_bytes = 0  # of what was queued, what is in `_rest` or was written
        now = time.monotonic()
        self._read_at = self._wrote_at = now
        self._contents: dict[int, _Incoming] = {}

    # ---- the loop

    def fileno(self) -> int:
        """The socket's descriptor; -1 where it is closed."""
        return -1 if self._socket is None else self._socket.fileno()

    def interest(self) -> int:
        """The poll events."""
        wanted = 0 if self.is_paused else select.POLLIN
        return wanted | (select.POLLOUT if self._wants_write else 0)

    def deadline(self) -> float:
        """When `service` is due even without events."""
        if not self._heartbeat_seconds:
            return float("inf")
        due = self._wrote_at + self._heartbeat_seconds / 2
        return due if self.is_paused else min(due, self._read_at + 2 * self._heartbeat_seconds)

    def service(self, now: float, *, is_ready: bool = True) -> None:
        """Reads received bytes, dispatches their frames, and sends a heartbeat if one is due."""
        if self._socket is None or self.error is not None:
            return
        if is_ready and not self.is_paused:
            self._read(now)
        self._beat(now)

    def _beat(self, now: float) -> None:
        if self.error is not None or not self._heartbeat_seconds:
            return
        if self.is_paused:
            self._read_at = now
        elif now >= self._read_at + 2 * self._heartbeat_seconds:
            seconds = 2 * self._heartbeat_seconds
            self.lose(
                ConnectionLostError(
                    f"{self.place}: nothing was received for {seconds} s; check whether the broker is reachable"
                )
            )
            return
        if now >= self._wrote_at + self._heartbeat_seconds / 2:
            self.write(wire.HEARTBEAT_FRAME)
            self.flush()

    def write(self, data: bytes) -> None:
        """Queues bytes."""
        self._out.append(data)

    def write_all(self, parts: list[bytes]) -> None:
        """Queues bytes."""
        self._out += parts

    def flush(self) -> None:
        """Writes queued bytes, as far as the socket accepts them."""
        if self._socket is None or self.error is not None or self.is_written:
            return
        try:
            while True:
                if not len(self._rest):
                    if not self._out:
                        break
                    data, self._out = b"".join(self._out), []
                    self._taken_bytes += len(data)
                    self._rest = memoryview(data)
                sent = self._socket.send(self._rest)
                self._rest = self._rest[sent:]
                self._wrote_at = time.monotonic()
            self._wants_write = False
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._wants_write = True
        except OSError as error:
            self.lose(ConnectionLostError(f"{self.place}: the connection broke: {error}"))

    @property
    def queued_bytes(self) -> int:
        """Bytes that it had to send so far."""
        return self._taken_bytes + sum(map(len, self._out))

    @property
    def arrived_bytes(self) -> int:
        """Of these, those that the remote machine has acknowledged; with TLS approximately."""
        unsent = self._socket is not None and unsent_bytes(self._socket)
        return self._taken_bytes - len(self._rest) - (unsent or 0)

    @property
    def held_seconds(self) -> float:
        """How long the broker may treat it as open, and keep its deliveries, without hearing from it."""
        return 0.0 if self.is_ended_by_broker else 2.0 * (self._heartbeat_seconds or UNHEARD_SECONDS)

    @property
    def is_written(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._out and not len(self._rest)

    def lose(self, error: IsthmusError) -> None:
        """It is unusable from now on."""
        if self.error is None:
            self.error = error
            if self.user is not None:
                self.user.on_closed(error)

    def abandon(self) -> None:
        """Closes the socket without a close method."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None
        self.error = self.error or ConnectionLostError(f"{self.place}: the connection was closed")

    # ---- reading

    def _read(self, now: float) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self.lose(ConnectionLostError(f"{self.place}: the connection broke: {error}"))
            return
        if not data:
            self.is_ended_by_broker = True
            self.lose(ConnectionLostError(f"{self.place}: the broker closed the connection without a reason"))
            return
        self._read_at = now
        try:
            self._parse(self._buffer + data if self._buffer else data)
        except (struct.error, IndexError, ValueError) as error:
            self.lose(ProtocolError(f"{self.place}: the received bytes are not AMQP 0-9-1: {error}"))
        except Exception as error:  # noqa: BLE001 - an error of its user must not end the loop of all routes
            self.lose(
                ConnectionLostError(
                    f"{self.place}: a received frame cannot be handled: {type(error).__name__}: {error}"
                )
            )
        if isinstance(self._socket, ssl.SSLSocket) and self.error is None and self._socket.pending():
            self._read(now)  # poll does not report these bytes

    def _parse(self, data: bytes) -> None:
        at, end = 0, len(data)
        contents = self._contents
        take = self.take if self.user is not None else None
        while end - at >= 8 and self.error is None:
            if take is not None and (taken := take(data, at)) > at:
                at = taken
                continue
            kind, channel, size = _HEAD(data, at)
            start, stop = at + 7, at + 7 + size
            if stop >= end:
                break
            if data[stop] != 0xCE:
                raise ValueError("a frame has no end")
            at = stop + 1
            if kind == METHOD:
                self._on_method(channel, _IDS(data, start), data[start + 4 : stop])
            elif kind == HEADER:
                incoming = contents[channel]
                incoming.left = _SIZE(data, start + 4)[0]
                incoming.properties = data[start + 12 : stop]
                if not incoming.left:
                    self._on_content(channel, contents.pop(channel))
            elif kind == BODY:
                incoming = contents[channel]
                incoming.left -= size
                incoming.parts.append(data[start:stop])
                if incoming.left <= 0:
                    self._on_content(channel, contents.pop(channel))
        self._buffer = data[at:] if at else data

    def _on_method(self, channel: int, which: tuple[int, int], arguments: bytes) -> None:
        if which in (M.BASIC_DELIVER, M.BASIC_RETURN):
            self._contents[channel] = _Incoming(which, arguments)
        elif which in (M.CONNECTION_CLOSE, M.CHANNEL_CLOSE):
            self.write(wire.method(channel, M.CHANNEL_CLOSE_OK if channel else M.CONNECTION_CLOSE_OK))
            self.flush()
            self.is_ended_by_broker = True
            self.lose(closed(self.place, arguments))
        elif which == M.CONNECTION_CLOSE_OK:
            self.is_ended_by_broker = True
            self.lose(ConnectionLostError(f"{self.place}: the connection was closed"))
        elif self.user is not None:
            self.user.on_method(channel, which, arguments)

    def _on_content(self, channel: int, incoming: _Incoming) -> None:
        if self.user is not None:
            parts = incoming.parts
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            self.user.on_content(channel, incoming.which, Content(incoming.arguments, incoming.properties, body))


class _Incoming:
    """A content that is not complete yet."""

    __slots__ = ("arguments", "left", "parts", "properties", "which")

    def __init__(self, which: tuple[int, int], arguments: bytes) -> None:
        self.which, self.arguments = which, arguments
        self.left = 0
        self.properties = b""
        self.parts: list[bytes] = []


def closed(place: str, arguments: bytes) -> ClosedByBrokerError:
    """The error of a close."""
    code, text = wire.read_close(arguments)
    return ClosedByBrokerError("", place=place, reply_code=code, reply_text=text)
