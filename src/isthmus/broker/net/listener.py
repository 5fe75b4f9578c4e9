"""Listening sockets on which one port speaks AMQP, TLS, HTTP and WebSocket.

What it is: accepts connections, peeks at their first bytes, and gives each to the
protocol that it speaks; inside TLS it peeks again. What it is not: any of these protocols.

Invariants:
    I1. A client that sends nothing, does not complete its TLS handshake, or does not complete its first HTTP head, is
        dropped `SILENCE_SECONDS` after it was accepted; one that speaks neither protocol, or whose first HTTP head is longer
        than `_HEAD_BYTES`, at once. Each causes one line in the log, and the port keeps serving.
    I2. Running out of file descriptors stops accepting for a moment, not permanently; so does any other failure.
    I3. Every socket is in the account of `admission` from its acceptance until its descriptor is closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import cast

from isthmus.broker.net.admission import Admission
from isthmus.broker.net.sniff import ENOUGH_BYTES, Speech, recognise
from isthmus.errors import IsthmusError

__all__ = ["SILENCE_SECONDS", "Doorway", "ListenError", "Listener", "ProtocolFactory"]

_log = logging.getLogger(__name__)

ProtocolFactory = Callable[[], asyncio.BaseProtocol]

# The service drops a connection without a token after 20 s; one that has sent nothing gets no more time.
SILENCE_SECONDS = 20.0
# Bytes that the kernel may hold for a connection in either direction: a batch of messages fits at once.
_SOCKET_BUFFER_BYTES = 1 << 20
_BACKLOG = 1024
_PAUSE_SECONDS = 0.2
# An HTTP head is handed over when it is complete, so that a slow sender costs only a timer; no legitimate head is longer, and
# the HTTP server would buffer a megabyte of an endless one.
_HEAD_BYTES = 32 << 10
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class ListenError(IsthmusError):
    """An address cannot be listened on."""

    code = "cannot-listen"

    def __init__(self, host: str = "", port: int = 0, reason: str = "") -> None:
        super().__init__("", host=host, port=port, reason=reason)

    def text(self) -> str:
        a = self.attributes
        return (
            f"Cannot listen on {a.get('host')}, port {a.get('port')}: {a.get('reason')}; choose another, or 0 for any."
        )


class Doorway(asyncio.Protocol):
    """Reads the first bytes of a stream and hands it to their protocol.

    Args:
        protocols: for a stream of AMQP or HTTP.
        deadline: time of the loop by which it must be handed over; None is `SILENCE_SECONDS` from now.
        on_made: called with the transport.
    """

    def __init__(
        self,
        protocols: Mapping[Speech, ProtocolFactory],
        deadline: float | None = None,
        on_made: Callable[[asyncio.Transport], None] = lambda transport: None,
    ) -> None:
        self._protocols = protocols
        self._deadline = deadline
        self._on_made = on_made
        self._seen = b""
        self._transport: asyncio.Transport | None = None
        self._silence: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._on_made(self._transport)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SILENCE_SECONDS if self._deadline is None else self._deadline
        self._silence = loop.call_at(deadline, self._drop, "said nothing")

    def data_received(self, data: bytes) -> None:
        self._seen += data
        speech = recognise(self._seen[:ENOUGH_BYTES])
        if speech is None or self._transport is None:
            return
        if speech is Speech.HTTP and b"\r\n\r\n" not in self._seen[-len(data) - 3 :]:
            if len(self._seen) > _HEAD_BYTES:
                self._transport.write(_TOO_LARGE)
                self._drop(f"has an http head of more than {_HEAD_BYTES} bytes")
            return
        factory = self._protocols.get(speech)
        if factory is None:
            self._drop(f"speaks {speech.value}")
            return
        self._settle()
        transport, seen, self._transport, self._seen = self._transport, self._seen, None, b""
        protocol = factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        feed(protocol, seen)

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        self._transport = None

    def eof_received(self) -> bool:
        return False

    def _settle(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _drop(self, why: str) -> None:
        self._settle()
        if self._transport is not None:
            _log.warning("connection dropped: peer=%s reason=%s", self._transport.get_extra_info("peername"), why)
            self._transport.abort()
            self._transport, self._seen = None, b""


def feed(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """Gives a protocol bytes that another one has read."""
    if isinstance(protocol, asyncio.BufferedProtocol):
        view = memoryview(data)
        while view:
            buffer = memoryview(protocol.get_buffer(len(view)))
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            protocol.buffer_updated(count)
            view = view[count:]
    else:
        cast("asyncio.Protocol", protocol).data_received(data)


class _Accepted(socket.socket):
    """An accepted socket, which reports when its descriptor is closed or handed over.

    Attributes:
        peer: address and port of the client.
        on_gone: called once, with the descriptor.
        transport: once there is one.
    """

    def __init__(self, accepted: socket.socket) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self.peer = _name(self)
        self.on_gone: Callable[[int], None] = lambda descriptor: None
        self.transport: asyncio.Transport | None = None

    def close(self) -> None:
        self._go()
        super().close()

    def detach(self) -> int:  # by a loop that closes the descriptor itself
        self._go()
        return super().detach()

    def _go(self) -> None:
        if self.fileno() >= 0:
            on_gone, self.on_gone = self.on_gone, lambda descriptor: None
            on_gone(self.fileno())
        self.transport = None

    def abort(self) -> None:
        """Ends the connection at once; its reader gets an end of stream."""
        if self.transport is not None:
            self.transport.abort()
        else:
            with suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)


class Listener:
    """One listening socket.

    Args:
        host: address to bind.
        port: 0 for any that is free.
        protocols: for a stream of AMQP or HTTP, in plain or inside TLS.
        tls: the certificate to show; None refuses TLS.
        plain: whether clients without TLS are served.
        admission: the account of connections; those that it evicts are ended.

    Raises:
        ListenError: the address is in use or not this machine's.
    """

    def __init__(
        self,
        host: str,
        port: int,
        protocols: Mapping[Speech, ProtocolFactory],
        *,
        tls: ssl.SSLContext | None = None,
        plain: bool = True,
        admission: Admission | None = None,
    ) -> None:
        self._admission = admission or Admission()
        self._protocols = protocols
        self._tls = tls
        self._plain = plain
        self._socket = _bind(host, port)
        self._accepting: asyncio.Task[None] | None = None
        self._greeting: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port that was bound."""
        return cast("int", self._socket.getsockname()[1])

    def start(self) -> None:
        """Begin to accept connections on the running loop."""
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        """Stop accepting; connections that were handed over stay."""
        tasks = [*self._greeting, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._socket)
            except (
                OSError
            ) as error:  # no descriptors, or an error of the client's connection, which Linux reports here (accept(2))
                _log.warning("accept failed: reason=%s", error.strerror)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            is_one_too_many = self._enter(connection := _Accepted(accepted))
            task = loop.create_task(self._greet(connection))
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)
            if is_one_too_many:  # an aborted connection closes its descriptor in a later iteration of the loop
                await asyncio.sleep(0)

    def _enter(self, accepted: _Accepted) -> bool:
        """Puts a connection into the account, and ends the one that has to be closed, if any."""
        accepted.on_gone = self._admission.leave
        evicted = self._admission.enter(accepted.fileno(), accepted.peer.rpartition(":")[0], accepted)
        if evicted is None:
            return False
        _log.warning("connection dropped: peer=%s reason=too many clients without a token", evicted.peer)
        evicted.abort()
        return True

    async def _greet(self, accepted: _Accepted) -> None:
        """Finds out whether the client starts with TLS, and connects the protocol."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SILENCE_SECONDS

        def made(transport: asyncio.Transport) -> None:
            accepted.transport = transport

        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                accepted.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
            async with asyncio.timeout(SILENCE_SECONDS):
                first = await _peek(accepted)
            if not first:
                accepted.close()
                return
            secure = first.startswith(b"\x16")
            if secure and self._tls is None:
                reason = "speaks tls where there is none"
            elif not secure and not self._plain:
                reason = "speaks in the clear where only tls is served"
            else:
                await loop.connect_accepted_socket(
                    lambda: Doorway(self._protocols, deadline, made),
                    accepted,
                    ssl=self._tls if secure else None,
                    ssl_handshake_timeout=max(0.01, deadline - loop.time()) if secure else None,
                )
                return
        except asyncio.CancelledError:
            accepted.close()
            raise
        except TimeoutError:
            reason = "said nothing"
        except OSError as error:  # a failed TLS handshake too: ssl.SSLError is an OSError
            reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
        _log.warning("connection dropped: peer=%s reason=%s", accepted.peer, reason)
        accepted.close()


async def _peek(accepted: socket.socket) -> bytes:
    """The first byte in the socket, without reading it; empty at the end of the stream."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return accepted.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            readable = asyncio.Event()
            loop.add_reader(accepted, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(accepted)


def _bind(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(host, port, error.strerror or str(error)) from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise ListenError(host, port, error.strerror or str(error)) from None
    return bound


def _name(accepted: socket.socket) -> str:
    try:
        address = accepted.getpeername()
    except OSError:
        return "unknown"
    return f"{address[0]}:{address[1]}"
