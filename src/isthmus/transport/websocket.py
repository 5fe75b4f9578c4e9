"""AMQP over WebSocket, client side.

What it is: a socket whose bytes are sent in the binary messages of a WebSocket (OASIS AMQP WebSocket binding 1.0,
docs/explanation/protocol.md, Connection strings), for networks that allow nothing but HTTPS. The WebSocket is aiohttp's, on a thread of its own; what a
client gets is one end of a socket pair, so that it polls and writes as over TCP. What it is not: AMQP, or a server.

A proxy is taken from the environment (`HTTPS_PROXY`, `NO_PROXY`, for plain WebSocket `HTTP_PROXY`), as other programs do;
this machine itself is always reached directly. aiohttp's own reading of the environment would also send what `.netrc` has for a host.

Invariants:
    I1. Bytes arrive in the order in which they were written; a side that does not read stops the other.
    I2. When either end is gone the other is closed, and the thread ends.
    I3. Nothing goes to another address than the endpoint's.
    I4. No error holds the password of a proxy.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from concurrent.futures import Future
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from isthmus.errors import ConnectionLostError, IsthmusError, OperationTimeoutError
from isthmus.transport.endpoint import AZURE_PATH, Endpoint
from isthmus.transport.redirect import unredirected

__all__ = ["SUBPROTOCOL", "SUBPROTOCOLS", "dial", "proxy_of"]

SUBPROTOCOL = "AMQPWSB10"
# The second is the name in the binding's specification, which other brokers use (OASIS AMQP WebSocket binding 1.0, 2.1).
SUBPROTOCOLS = (SUBPROTOCOL, "amqp")
# A WebSocket message for each read; larger ones gain nothing, and some proxies refuse them.
READ_BYTES = 64 << 10
BUFFER_BYTES = 1 << 20
CLOSE_SECONDS = 1.0
TURN_SECONDS = 0.01


def dial(endpoint: Endpoint, timeout_seconds: float) -> socket.socket:
    """A connected socket; blocks.

    Raises:
        ConnectionLostError: no connection could be made, or the server does not support AMQP over WebSocket.
        OperationTimeoutError: it took too long.
    """
    mine, inner = socket.socketpair()
    for end in (mine, inner):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    inner.setblocking(False)
    opened: Future[None] = Future()
    threading.Thread(
        target=_run, args=(endpoint, inner, opened, timeout_seconds), name=f"websocket-{endpoint.host}", daemon=True
    ).start()
    try:
        opened.result()
    except BaseException:
        mine.close()
        raise
    return mine


def _run(endpoint: Endpoint, inner: socket.socket, opened: Future[None], timeout_seconds: float) -> None:
    try:
        asyncio.run(_carry(endpoint, inner, opened, timeout_seconds))
    except Exception as error:  # noqa: BLE001 - whatever it is, the client must learn of it
        if not opened.done():
            opened.set_exception(_error_of(error, endpoint, timeout_seconds))
    finally:
        inner.close()


async def _carry(endpoint: Endpoint, inner: socket.socket, opened: Future[None], timeout_seconds: float) -> None:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    url = f"{'wss' if endpoint.tls else 'ws'}://{host}:{endpoint.port}{endpoint.websocket_path}"
    below: socket.socket | None = None
    try:
        async with aiohttp.ClientSession(trace_configs=[unredirected()]) as http:
            async with asyncio.timeout(timeout_seconds):
                stream = await http.ws_connect(
                    url,
                    protocols=(SUBPROTOCOL,) if endpoint.websocket_path == AZURE_PATH else SUBPROTOCOLS[1:],
                    ssl=endpoint.ssl_context() or True,
                    proxy=proxy_of(f"{'https' if endpoint.tls else 'http'}://{host}"),
                    max_msg_size=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
                )
            below = stream.get_extra_info("socket")
            async with stream:
                if stream.protocol not in SUBPROTOCOLS:
                    raise ConnectionLostError(
                        f"{url}: the server did not take the subprotocol {' or '.join(SUBPROTOCOLS)}"
                    )
                opened.set_result(None)
                await _relay(inner, stream)
    finally:
        await _closed(below)


async def _closed(below: socket.socket | None) -> None:
    """Waits for the socket to be closed, for which aiohttp takes a few more turns of the event loop."""
    limit = time.monotonic() + CLOSE_SECONDS
    await asyncio.sleep(TURN_SECONDS)
    while below is not None and below.fileno() >= 0 and time.monotonic() < limit:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(TURN_SECONDS)


async def _relay(inner: socket.socket, stream: aiohttp.ClientWebSocketResponse) -> None:
    """Copies bytes both ways until one of the ends is closed."""
    up, down = asyncio.create_task(_upstream(inner, stream)), asyncio.create_task(_downstream(inner, stream))
    await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
    if up.done() and up.exception() is not None:
        # The server closed while the client wrote; what it sent before can still be read.
        await asyncio.wait((down,), timeout=CLOSE_SECONDS)
    for way in (up, down):
        way.cancel()
    await asyncio.gather(up, down, return_exceptions=True)


async def _upstream(inner: socket.socket, stream: aiohttp.ClientWebSocketResponse) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(inner, READ_BYTES):
        await stream.send_bytes(data)


async def _downstream(inner: socket.socket, stream: aiohttp.ClientWebSocketResponse) -> None:
    loop = asyncio.get_running_loop()
    async for message in stream:
        if message.type is not aiohttp.WSMsgType.BINARY:
            return
        await loop.sock_sendall(inner, message.data)


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an address, by its scheme; None: it is reached directly."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if _is_loopback(host) or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme) or None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _error_of(error: Exception, endpoint: Endpoint, timeout_seconds: float) -> IsthmusError:
    where = f"{endpoint.host}:{endpoint.port}"
    if isinstance(error, IsthmusError):
        return error
    if isinstance(error, TimeoutError):
        return OperationTimeoutError(f"{where}: no WebSocket within {timeout_seconds:g} s")
    # Of these the text has an address: of a proxy as the environment has it, with its password.
    if isinstance(error, aiohttp.ClientResponseError):
        who = "proxy of the environment" if isinstance(error, aiohttp.ClientHttpProxyError) else "server"
        return ConnectionLostError(f"{where}: the {who} answered {error.status} to the WebSocket's request")
    # A certificate that is refused is a ValueError as well.
    if isinstance(error, aiohttp.InvalidURL | ValueError) and not isinstance(error, OSError):
        return ConnectionLostError(f"{where}: it, or the proxy that the environment names, is no address")
    return ConnectionLostError(f"{where}: {error}")
