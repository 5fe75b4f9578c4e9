"""AMQP over WebSocket.

What it is: the resource `GET /$servicebus/websocket`, and the protocol of the connection after its handshake: the payload of
frames is one stream of bytes for a `Peer`. What it is not: the HTTP server, the handshake (`handshake`), the frames
themselves (`websocket_frame`).
Spec: RFC 6455 section 4.2; OASIS AMQP WebSocket binding 1.0 (subprotocol `AMQPWSB10`).

Invariants:
    I1. Bytes are sent in the order in which they were written; the limits of `shell` apply here too.
    I2. A closed connection is gone `CLOSE_SECONDS` later, whether its client has read the remaining bytes or not.
    I3. Messages are not reassembled: fragments use no memory.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aiohttp import web

from isthmus.broker.net.handshake import accept_key, offers, refusal, upgrade
from isthmus.broker.net.shell import Shell
from isthmus.broker.net.websocket_frame import CLOSE, PONG, FrameError, FrameReader, make_frame

if TYPE_CHECKING:
    from isthmus.broker.namespace import Namespace

__all__ = ["WEBSOCKET_PATH", "WebSocketShell", "add_websocket"]

_log = logging.getLogger(__name__)

WEBSOCKET_PATH = "/$servicebus/websocket"
_SUBPROTOCOL = "AMQPWSB10"
_NORMAL = 1000


class WebSocketShell(Shell):
    """One connection's WebSocket, after its handshake.

    Args:
        namespace: that the client connected to.
        before: the HTTP server's protocol, which is notified when the connection is gone.

    Attributes:
        over: set once the connection is gone.
    """

    def __init__(self, namespace: Namespace, before: asyncio.BaseProtocol) -> None:
        super().__init__(namespace)
        self.over = asyncio.Event()
        self._before = before
        self._reader = FrameReader()
        self._has_said_close = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Takes bytes that the client sent after its request, as a parser of the HTTP server."""
        self._take(data)
        return False, b""

    def feed_eof(self) -> None:
        """As a parser of the HTTP server."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.over.set()
        self._before.connection_lost(exc)

    def write(self, data: bytes) -> None:
        """Sends bytes, or buffers them until they can be sent."""
        super().write(make_frame(data))

    def close(self) -> None:
        """Sends the buffered bytes, then closes; see `Wire.close`."""
        self._say_close(_NORMAL)
        super().close()

    def _take(self, data: bytes) -> None:
        try:
            said = self._reader.feed(data)
        except FrameError as error:
            _log.warning("connection dropped: peer=%s reason=%s", self.name, error)
            self._say_close(error.status)
            super().close()
            return
        if said:
            super()._take(said)
        ping, self._reader.ping = self._reader.ping, None
        if ping is not None and self.is_writable:
            super().write(make_frame(ping, PONG))
        if self._reader.is_closed:
            self.close()

    def _say_close(self, status: int) -> None:
        if not self._has_said_close:
            self._has_said_close = True
            super().write(make_frame(status.to_bytes(2, "big"), CLOSE))


def add_websocket(app: web.Application, namespace: Namespace) -> None:
    """Makes an HTTP application serve AMQP at `WEBSOCKET_PATH`."""

    async def serve(request: web.Request) -> web.StreamResponse:
        accepted = accept_key(request)
        if accepted is None:
            return refusal()
        headers = {}
        if offers(request, "Sec-WebSocket-Protocol", _SUBPROTOCOL):
            headers["Sec-WebSocket-Protocol"] = _SUBPROTOCOL
        shell = WebSocketShell(namespace, request.protocol)
        answer = await upgrade(request, accepted, shell, headers)
        if answer is None:
            return web.Response()
        await shell.over.wait()
        return answer

    app.router.add_get(WEBSOCKET_PATH, serve)
