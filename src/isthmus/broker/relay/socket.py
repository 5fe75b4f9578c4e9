"""One WebSocket of the relay: a listener's control channel, or either end of a relayed connection.

What it is: an asyncio protocol between a transport and the socket's owner, with back-pressure both ways, and an orderly
close. What it is not: aware of the meaning of frames.
Spec: RFC 6455 sections 5 and 7.

Invariants:
    I1. Nothing is read before the socket has an owner; bytes that arrived with the handshake wait for it.
    I2. Frames are written whole: where a frame has been begun and not ended the connection is ended without a close frame.
    I3. A closed socket is gone `CLOSE_SECONDS` later, whether its client answers or not.
    I4. A client that disappeared is detected by TCP keep-alive within two minutes; where nothing is read from it only
        `has_left` detects it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Protocol, cast

from isthmus.broker.net.websocket_frame import FrameError, make_frame, make_head
from isthmus.broker.relay.frame import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Piece, PieceReader

__all__ = ["CLOSE_SECONDS", "GOING_AWAY", "NORMAL", "POLICY", "PROTOCOL_ERROR", "TOO_BIG", "RelaySocket", "SocketOwner"]

_log = logging.getLogger(__name__)

NORMAL, GOING_AWAY, PROTOCOL_ERROR, POLICY, TOO_BIG = 1000, 1001, 1002, 1008, 1009
CLOSE_SECONDS = 5.0
_HIGH_BYTES, _LOW_BYTES = 256 << 10, 64 << 10
_REASON_BYTES = 123
_LEFT = frozenset({7, 8})  # TCP_CLOSE and TCP_CLOSE_WAIT of Linux, in the first byte of TCP_INFO
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


class SocketOwner(Protocol):
    """The owner of a socket."""

    def on_piece(self, piece: Piece) -> None:
        """A piece of a data frame, of a ping or of a pong has arrived, or a whole close frame."""
        ...

    def on_lost(self) -> None:
        """The socket is gone; nothing arrives any more."""
        ...

    def on_writable(self, is_writable: bool) -> None:
        """`is_writable` has changed."""
        ...


class RelaySocket(asyncio.Protocol):
    """One WebSocket, after its handshake.

    Args:
        before: the HTTP server's protocol, which is notified when the connection is gone.

    Attributes:
        over: set once the connection is gone.
        name: address of the client, for the log.
        is_writable: whether the unsent bytes are below the limit.
        is_closing: whether a close frame was sent, or the connection is gone.
    """

    def __init__(self, before: asyncio.BaseProtocol) -> None:
        self.over = asyncio.Event()
        self.name = "unknown"
        self.is_writable = True
        self.is_closing = False
        self._before = before
        self._owner: SocketOwner | None = None
        self._reader = PieceReader()
        self._transport: asyncio.Transport | None = None
        self._early = b""
        self._in_frame = 0  # bytes of a begun frame that are still to be written
        self._in_message = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._end: asyncio.TimerHandle | None = None

    def start(self, owner: SocketOwner) -> None:
        """Gives the socket its owner, or another one; pieces that arrived meanwhile are handed over at once."""
        self._owner = owner
        if self._transport is None:
            owner.on_lost()
            return
        early, self._early = self._early, b""
        if early:
            self._take(early)
        self.resume_reading()

    # ---- called by the loop and by the HTTP server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_BYTES, _LOW_BYTES)
        address = self._transport.get_extra_info("peername")
        self.name = f"{address[0]}:{address[1]}" if address else "unknown"
        _keep_alive(self._transport.get_extra_info("socket"))
        if self._owner is None:
            self._transport.pause_reading()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Takes bytes that the client sent after its request, as a parser of the HTTP server."""
        self.data_received(data)
        return False, b""

    def feed_eof(self) -> None:
        """As a parser of the HTTP server."""

    def data_received(self, data: bytes) -> None:
        if self._owner is None:
            self._early += data
        else:
            self._take(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_writable = False
        self._writable.clear()
        if self._owner is not None:
            self._owner.on_writable(False)

    def resume_writing(self) -> None:
        self.is_writable = True
        self._writable.set()
        if self._owner is not None:
            self._owner.on_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.is_closing = True
        self._writable.set()
        if self._end is not None:
            self._end.cancel()
        self.over.set()
        if self._owner is not None:
            self._owner.on_lost()
        self._before.connection_lost(exc)

    # ---- reading

    def _take(self, data: bytes) -> None:
        try:
            pieces = self._reader.feed(data)
        except FrameError as error:
            _log.warning("connection dropped: peer=%s reason=%s", self.name, error)
            self.close(error.status, str(error))
            return
        for piece in pieces:
            if self._owner is not None and (not self.is_closing or piece.opcode == CLOSE):
                self._owner.on_piece(piece)

    def pause_reading(self) -> None:
        """Stops reading from the client."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    @property
    def has_left(self) -> bool:
        """Whether the client has ended its side. The event loop, which reports it otherwise, does not while reading is paused."""
        below = self._transport.get_extra_info("socket") if self._transport is not None else None
        option = getattr(socket, "TCP_INFO", None)
        if below is None or option is None:
            return self._transport is None
        try:
            return below.getsockopt(socket.IPPROTO_TCP, option, 1)[0] in _LEFT
        except OSError:  # not a TCP socket, or gone already
            return False

    # ---- writing

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that wait to be sent."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    async def wait_writable(self) -> None:
        """Waits until `is_writable`, or the connection is gone."""
        await self._writable.wait()

    def send_text(self, text: str) -> None:
        """Sends a whole text message."""
        self._write(make_frame(text.encode(), TEXT))

    def send_binary(self, data: bytes, *, is_final: bool = True) -> None:
        """Sends a binary message, or a fragment of one; the last fragment may be empty."""
        opcode = CONTINUATION if self._in_message else BINARY
        self._in_message = not is_final
        self._write(make_head(len(data), opcode, is_final=is_final) + data)

    def send_ping(self) -> None:
        """Sends a ping."""
        self._write(make_frame(b"", PING))

    def send_pong(self, payload: bytes) -> None:
        """Answers a ping, unless so many bytes wait to be sent that its client evidently does not read."""
        if self.is_writable:
            self._write(make_frame(payload, PONG))

    def forward(self, piece: Piece) -> None:
        """Sends a piece of another socket's data frame, ping or pong unchanged."""
        if self.is_closing:
            return
        if piece.length is not None:
            self._in_frame = piece.length
            self._write(make_head(piece.length, piece.opcode, is_final=piece.is_final))
        self._in_frame -= len(piece.data)
        self._write(piece.data)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing() and not self.is_closing:
            self._transport.write(data)

    # ---- the end

    def close(self, status: int, reason: str = "") -> None:
        """Sends a close frame, and ends the connection when the client has answered it."""
        encoded = reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()
        self.send_close(status.to_bytes(2, "big") + encoded)

    def send_close(self, payload: bytes) -> None:
        """As `close`, with the payload of another socket's close frame."""
        if self.is_closing or self._transport is None:
            return
        if self._in_frame:
            self.abort()
            return
        self._write(make_frame(payload, CLOSE))
        self.is_closing = True
        self.resume_reading()
        self._end = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.abort)

    def finish(self, payload: bytes = b"") -> None:
        """Answers the client's close frame, unless it is an answer itself, and ends the connection."""
        if not self.is_closing and not self._in_frame:
            self._write(make_frame(payload, CLOSE))
        self.is_closing = True
        if self._transport is not None:
            self._transport.close()
            if self._end is None:
                self._end = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        """Ends the connection at once."""
        self.is_closing = True
        if self._transport is not None:
            self._transport.abort()


def _keep_alive(below: socket.socket | None) -> None:
    if below is None:
        return
    try:
        below.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                below.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError:  # not a TCP socket, or gone already
        return
