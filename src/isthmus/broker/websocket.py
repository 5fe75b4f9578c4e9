"""AMQP over WebSocket.

What it is: a handler for `GET /$servicebus/websocket` that hands the binary messages of a WebSocket to a `Peer` as one
stream of bytes. What it is not: the HTTP server. Spec: OASIS AMQP WebSocket binding 1.0 (subprotocol `AMQPWSB10`).

Invariants:
    I1. Bytes leave in the order in which they were written; above the high mark `is_writable` is False.
    I2. A connection that was closed is gone `CLOSE_SECONDS` later, whether its client has read what was left or not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import WSMsgType, web

from isthmus.broker.peer import Peer
from isthmus.broker.wire import CLOSE_SECONDS

if TYPE_CHECKING:
    from isthmus.broker.namespace import Namespace

__all__ = ["WEBSOCKET_PATH", "add_websocket"]

WEBSOCKET_PATH = "/$servicebus/websocket"
_SUBPROTOCOL = "AMQPWSB10"
# One WebSocket message carries a frame or more; none of the clients sends larger ones.
_MESSAGE_LIMIT_BYTES = 16 << 20
_HIGH_BYTES = 1 << 20
_LOW_BYTES = 256 << 10


class _Wire:
    """A WebSocket as the byte stream below a peer."""

    def __init__(self, socket: web.WebSocketResponse, name: str, abort: Callable[[], None]) -> None:
        self.name = name
        self.peer: Peer | None = None
        self._socket = socket
        self._abort = abort
        self._end: asyncio.TimerHandle | None = None
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._writable = True
        self._more = asyncio.Event()
        self._readable = asyncio.Event()
        self._readable.set()
        self._closing = False

    @property
    def is_writable(self) -> bool:
        return self._writable

    @property
    def unsent_bytes(self) -> int:
        return self._out_bytes

    def write(self, data: bytes) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        self._writable = self._out_bytes <= _HIGH_BYTES
        self._more.set()

    def close(self) -> None:
        self._closing = True
        self._more.set()
        self._readable.set()  # or who waits to read on would never see that it is over
        if self._end is None:
            self._end = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._abort)

    def pause_reading(self) -> None:
        self._readable.clear()

    def resume_reading(self) -> None:
        self._readable.set()

    async def send(self) -> None:
        """Sends what is written until the stream is closed."""
        while self._out or not self._closing:
            if not self._out:
                self._more.clear()
                await self._more.wait()
                continue
            data = self._out.popleft()
            await self._socket.send_bytes(data)
            self._out_bytes -= len(data)
            if not self._writable and self._out_bytes < _LOW_BYTES:
                self._writable = True
                if self.peer is not None:
                    self.peer.writable()
        await self._socket.close()

    def over(self) -> None:
        """Nothing is left to be sent or received."""
        if self._end is not None:
            self._end.cancel()

    async def receive(self, peer: Peer) -> None:
        """Hands bytes to the peer until the stream ends."""
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY:
                break
            await self._readable.wait()
            peer.receive(message.data)


def add_websocket(app: web.Application, namespace: Namespace) -> None:
    """Let an HTTP application serve AMQP at `WEBSOCKET_PATH`."""

    async def serve(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=(_SUBPROTOCOL,), max_msg_size=_MESSAGE_LIMIT_BYTES, compress=False)
        try:
            await socket.prepare(request)
        except ConnectionError:  # the client has gone meanwhile, which is no fault to log
            return web.Response()
        except ValueError:  # bytes that are no text, which the library can neither read nor quote in its refusal
            return web.Response(status=400, text="A header of the WebSocket handshake is no text.")
        transport = request.transport
        if transport is None:
            return socket
        address = transport.get_extra_info("peername")
        wire = _Wire(socket, f"{address[0]}:{address[1]}" if address else "unknown", transport.abort)
        peer = wire.peer = Peer(namespace, wire)
        sending = asyncio.create_task(wire.send())
        try:
            await wire.receive(peer)
        finally:
            peer.lost()
            wire.close()
            # The client may be gone: what is left is sent if it can be, and forgotten if it cannot.
            await asyncio.gather(sending, return_exceptions=True)
            wire.over()
        return socket

    app.router.add_get(WEBSOCKET_PATH, serve)
