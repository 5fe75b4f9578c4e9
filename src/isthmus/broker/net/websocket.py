"""AMQP over WebSocket.

What it is: the handshake of `GET /$servicebus/websocket`, and the protocol that then has the connection: the payload of
frames is one stream of bytes for a `Peer`. What it is not: the HTTP server, the frames themselves (`websocket_frame`).
Spec: RFC 6455 section 4.2; OASIS AMQP WebSocket binding 1.0 (subprotocol `AMQPWSB10`).

Invariants:
    I1. Bytes leave in the order in which they were written; the limits of `shell` hold here too.
    I2. A connection that was closed is gone `CLOSE_SECONDS` later, whether its client has read what was left or not.
    I3. Nothing of a message is kept until it is whole: fragments hold no memory.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
from typing import TYPE_CHECKING

from aiohttp import web

from isthmus.broker.net.shell import Shell
from isthmus.broker.net.websocket_frame import CLOSE, PONG, FrameError, FrameReader, make_frame

if TYPE_CHECKING:
    from isthmus.broker.namespace import Namespace

__all__ = ["WEBSOCKET_PATH", "WebSocketShell", "add_websocket"]

_log = logging.getLogger(__name__)

WEBSOCKET_PATH = "/$servicebus/websocket"
_SUBPROTOCOL = "AMQPWSB10"
_VERSION = "13"
_KEY_BYTES = 16
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_NORMAL = 1000


class WebSocketShell(Shell):
    """One connection's WebSocket, after its handshake.

    Args:
        namespace: what the client came for.
        before: the HTTP server's protocol, which is told when the connection is gone.

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
        """Take what the client sent behind its request, as a parser of the HTTP server's."""
        self._take(data)
        return False, b""

    def feed_eof(self) -> None:
        """As a parser of the HTTP server's."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.over.set()
        self._before.connection_lost(exc)

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until they can be sent."""
        super().write(make_frame(data))

    def close(self) -> None:
        """Send what was written, then close; see `Wire.close`."""
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
    """Let an HTTP application serve AMQP at `WEBSOCKET_PATH`."""

    async def serve(request: web.Request) -> web.StreamResponse:
        accepted = _accept_key(request)
        if accepted is None:
            return web.Response(
                status=400,
                text=f"This takes a WebSocket handshake of version {_VERSION} (RFC 6455).",
                headers={"Sec-WebSocket-Version": _VERSION},
            )
        answer = web.StreamResponse(status=101)
        answer.headers.update({"Upgrade": "websocket", "Connection": "upgrade", "Sec-WebSocket-Accept": accepted})
        if _offers(request, "Sec-WebSocket-Protocol", _SUBPROTOCOL):
            answer.headers["Sec-WebSocket-Protocol"] = _SUBPROTOCOL
        try:
            await answer.prepare(request)
        except ConnectionError:  # the client has gone meanwhile, which is no fault to log
            return web.Response()
        transport = request.transport
        if transport is None:
            return answer
        shell = WebSocketShell(namespace, request.protocol)
        shell.connection_made(transport)
        transport.set_protocol(shell)
        request.protocol.set_parser(shell)  # type: ignore[arg-type]
        await shell.over.wait()
        return answer

    app.router.add_get(WEBSOCKET_PATH, serve)


def _accept_key(request: web.Request) -> str | None:
    """The answer to a handshake's key; None where the request is no handshake."""
    key = request.headers.get("Sec-WebSocket-Key", "").strip()
    try:
        is_key = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        is_key = False
    if not (
        is_key
        and request.headers.get("Sec-WebSocket-Version", "").strip() == _VERSION
        and _offers(request, "Upgrade", "websocket")
        and _offers(request, "Connection", "upgrade")
    ):
        return None
    return base64.b64encode(hashlib.sha1(key.encode() + _MAGIC, usedforsecurity=False).digest()).decode()


def _offers(request: web.Request, header: str, word: str) -> bool:
    """Whether a word is one of a header's list."""
    values = ",".join(request.headers.getall(header, ())).split(",")
    return word.lower() in (value.strip().lower() for value in values)
