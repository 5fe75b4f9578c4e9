"""The HTTP server of a process's listeners.

What it is: for each address one server, in a thread with an event loop of its own; sources add and remove their paths. What it is not:
the decisions (`door`).

Invariants:
    I1. A server ends with the last of its paths.
    I2. A body that exceeds the limit of its path is not kept.
    I3. A sender that expects 100-continue before it sends a body is answered (RFC 9110, 10.1.1).
    I4. A replaced certificate is used `CERTIFICATE_SECONDS` later; while its files are invalid, the previous one is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from concurrent.futures import Future

from aiohttp import web

from isthmus.connectors.listen.door import RETRY_SECONDS, Door, Reply
from isthmus.connectors.listen.option import ListenOptions
from isthmus.errors import IsthmusError

__all__ = ["ListenError", "enter"]

START_SECONDS = 30.0
# For requests in flight at the end.
STOP_SECONDS = 2.0
CERTIFICATE_SECONDS = 60.0
_lock = threading.Lock()
_servers: dict[tuple[str, int], _Server] = {}


class ListenError(IsthmusError):
    """A listener cannot listen."""

    code = "listen"
    retryable = True


def enter(options: ListenOptions, door: Door) -> _Entry:
    """Listens on a path; blocks until it does.

    Raises:
        ListenError: the address is in use, or the certificate is invalid, or differs from that of the address's other paths.
    """
    key = options.host, options.port
    with _lock:
        server = _servers.get(key)
        if server is None:
            server = _Server(options)
            server.start()
            if options.port:
                _servers[key] = server
        if not server.is_as(options):
            raise ListenError(
                f"{options.host}:{options.port} is listened on with another certificate, or without; write the same certificate_file and "
                "key_file at each listener of an address"
            )
        if options.path in server.doors:
            raise ListenError(f"path {options.path} of {options.host}:{options.port} is listened on by another source")
        server.doors[options.path] = door
        return _Entry(server, options.path, key)


class _Entry:
    """A path with a listener.

    Attributes:
        port: the server's port.
    """

    def __init__(self, server: _Server, path: str, key: tuple[str, int]) -> None:
        self._server, self._path, self._key = server, path, key
        self.port = server.port

    def leave(self) -> None:
        """Stops listening."""
        with _lock:
            self._server.doors.pop(self._path, None)
            if self._server.doors:
                return
            _servers.pop(self._key, None)
        self._server.stop()


class _Server:
    """One address."""

    def __init__(self, options: ListenOptions) -> None:
        self._options = options
        self.doors: dict[str, Door] = {}
        self.port = options.port
        self._started: Future[int] = Future()
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._newest: ssl.SSLContext | None = None
        self._thread = threading.Thread(target=self._run, name=f"listen-{options.port}", daemon=True)

    def is_as(self, options: ListenOptions) -> bool:
        """Whether a path's options match the server's TLS settings."""
        own = self._options
        return (own.certificate_file, own.key_file) == (options.certificate_file, options.key_file)

    def start(self) -> None:
        self._thread.start()
        try:
            self.port = self._started.result(START_SECONDS)
        except (OSError, ssl.SSLError) as error:
            where = f"{self._options.host}:{self._options.port}"
            raise ListenError(f"nothing can be listened for on {where}: {error.strerror or error}") from None

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(START_SECONDS)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # this also ends connections made meanwhile
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - `start` raises it
            if not self._started.done():
                self._started.set_exception(error)

    async def _serve(self) -> None:
        options = self._options
        if options.certificate_file:
            self._newest = self._load()
            self._newest.sni_callback = self._renew
        # The signature may cover the body as it was sent.
        server = web.Server(self._handle, auto_decompress=False)
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=STOP_SECONDS)
        await runner.setup()
        try:
            site = web.TCPSite(runner, options.host, options.port, ssl_context=self._newest, backlog=1024)
            await site.start()
            self._started.set_result(runner.addresses[0][1])
            await self._wait_stopped()
        finally:
            await runner.cleanup()

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._options.certificate_file, self._options.key_file or None)
        return context

    def _renew(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in each handshake, whether the client names a server or not."""
        if self._newest is not None:
            connection.context = self._newest

    async def _wait_stopped(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), CERTIFICATE_SECONDS if self._newest else None)
                return
            # Into a context of its own: files that change meanwhile would leave a certificate without its key in the one in use.
            with contextlib.suppress(OSError):
                self._newest = self._load()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        door = self.doors.get(request.path)
        if door is None:
            return web.Response(status=404, text="nothing is accepted at this path")
        headers = {name.lower(): value for name, value in request.headers.items()}
        if request.method == "OPTIONS":
            return _response(door.options_reply(headers))
        if request.method != "POST":
            return web.Response(status=405, text="POST is accepted here", headers={"Allow": "POST, OPTIONS"})
        body = await _body(request, door.max_body_bytes)
        if body is None:
            return web.Response(
                status=413, text=f"{door.max_body_bytes} bytes are accepted", headers={"Connection": "close"}
            )
        reply = door.post(headers, body)
        if isinstance(reply, Reply):
            return _response(reply)
        try:
            await asyncio.wrap_future(reply)
        except Exception:  # noqa: BLE001 - after any error the events are not on disk
            return _response(Reply(503, "the events cannot be stored now", {"Retry-After": str(RETRY_SECONDS)}))
        return web.Response(status=200)


async def _body(request: web.BaseRequest, limit: int) -> bytes | None:
    """The body of a request; None where it exceeds the limit."""
    if (request.content_length or 0) > limit:
        return None
    if request.headers.get("Expect", "").lower() == "100-continue":  # aiohttp answers it only in an application
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    parts, size = [], 0
    async for part in request.content.iter_any():
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)


def _response(reply: Reply) -> web.Response:
    headers = dict(reply.headers)
    headers.setdefault("Content-Type", "text/plain; charset=utf-8")
    return web.Response(status=reply.status, body=reply.body.encode(), headers=headers)
