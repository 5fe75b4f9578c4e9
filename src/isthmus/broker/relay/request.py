"""One HTTP request to a listener, and its answer.

What it is: the choice between control channel and rendezvous, the request's body to the listener, the answer's
back. What it is not: the right to send (`access`), the listener's messages (`exchange`).
Spec: Microsoft Learn, "Azure Relay Hybrid Connections protocol" (request message, HTTP request protocol).

A request whose length is known, and that with its head fits into `CONTROL_BYTES`, is sent over the control channel; any other is
fetched by the listener over a connection of its own. That connection is for the one request.

Invariants:
    I1. Bodies beyond `CONTROL_BYTES` are never in memory whole: they are read as fast as the other side takes them.
    I2. The status says whether a listener may have the request: 502 and 503 mean that none has it, 504 that one may.
    I3. A listener's answer has ``Via``; the relay's own answer does not.
    I4. A requester that reads nothing of its answer for `STALL_SECONDS` is disconnected.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web

from isthmus.broker.relay import message
from isthmus.broker.relay.access import RelayRefusedError
from isthmus.broker.relay.address import rendezvous_address, split_target, without_own
from isthmus.broker.relay.exchange import Exchange, ExchangeError
from isthmus.broker.relay.listener import Listener
from isthmus.broker.relay.relay import PendingRendezvous, Relay
from isthmus.broker.relay.socket import GOING_AWAY, NORMAL, RelaySocket
from isthmus.broker.relay.tunnel import STALL_SECONDS

__all__ = ["CONTROL_BYTES", "HEAD_BYTES", "host_of", "origin_of", "relay_request", "remote_of"]

CONTROL_BYTES = 64 << 10
HEAD_BYTES = 32 << 10
_BODILESS = frozenset({204, 304})
_HOST = re.compile(r"[A-Za-z0-9._-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?")


async def relay_request(
    http: web.Request,
    name: str,
    relay: Relay,
    choose: Callable[[], Listener],
    *,
    strip_authorization: bool,
) -> web.StreamResponse:
    """Sends a request to a listener and its answer back.

    Args:
        http: the request, whose sender may send.
        name: of the hybrid connection, canonical.
        relay: the listeners and the relayed connections.
        choose: a listener; raises RelayRefusedError where there is none.
        strip_authorization: whether ``Authorization`` was the token for the relay.

    Raises:
        RelayRefusedError: there is no answer of a listener.
    """
    carrying = _Carrying(http, name, relay, strip_authorization=strip_authorization)
    body = await carrying.small_body()
    listener = choose()
    exchange = carrying.exchange
    relay.begin_exchange(name, exchange)
    pending = PendingRendezvous(name, "request", listener, exchange)
    secret = relay.open_rendezvous(pending)
    try:
        return await carrying.carry(listener, secret, body)
    except ExchangeError as error:
        raise RelayRefusedError(504 if error.was_delivered else 502, str(error)) from None
    finally:
        relay.close_rendezvous(secret)
        listener.forget(exchange)
        relay.end_exchange(name, exchange, carrying.relayed_bytes, is_answered=carrying.is_answered)


class _Carrying:
    def __init__(self, http: web.Request, name: str, relay: Relay, *, strip_authorization: bool) -> None:
        self.exchange = Exchange(str(uuid.uuid4()))
        self.relayed_bytes = 0
        self.is_answered = False
        self._http = http
        self._name = name
        self._path, query = split_target(http.raw_path)
        self._query = without_own(query)
        self._headers = message.request_headers(
            http.headers.items(), host_of(http), strip_authorization=strip_authorization
        )
        self._seconds = relay.limits.relay_response_timeout_ms / 1000
        self._accept_seconds = relay.limits.relay_accept_timeout_ms / 1000
        size = len(http.raw_path) + sum(len(key) + len(value) for key, value in self._headers.items())
        if size > HEAD_BYTES:
            raise RelayRefusedError(431, f"The request's head has {size} bytes; {HEAD_BYTES} are allowed.")
        self._head_bytes = size
        self._moved_at = 0.0  # when the listener's connection last took a part of the body

    async def small_body(self) -> bytes | None:
        """The body, where it is sent over the control channel; None for one that the listener fetches."""
        http = self._http
        if not http.can_read_body:
            return b""
        length = http.content_length
        if length is None or length + self._head_bytes > CONTROL_BYTES:
            return None
        try:
            async with asyncio.timeout(self._seconds):
                body = await http.content.read()
        except TimeoutError:
            raise RelayRefusedError(408, f"The request's body did not arrive within {self._seconds:g} s.") from None
        except (ConnectionError, web.RequestPayloadError):
            raise RelayRefusedError(400, "The requester went away while it sent its request.") from None
        self.relayed_bytes += len(body)
        return body

    async def carry(self, listener: Listener, secret: str, body: bytes | None) -> web.StreamResponse:
        exchange = self.exchange
        own = {"sb-hc-action": "request", "sb-hc-id": exchange.request_id, "sb-hc-rendezvous": secret}
        address = rendezvous_address(listener.origin, self._path, self._query, own)
        upload: asyncio.Task[None] | None = None
        try:
            if body is not None:
                listener.give(exchange, self._message(address, has_body=bool(body)), body)
            else:
                upload = asyncio.create_task(self._upload(await self._fetched(listener, address), address))
            head = await self._wait_head()
            return await self._answer(head)
        finally:
            if upload is not None:
                upload.cancel()
                with suppress(asyncio.CancelledError):
                    await upload
            if exchange.rendezvous.done() and exchange.rendezvous.exception() is None:
                exchange.rendezvous.result().close(NORMAL if self.is_answered else GOING_AWAY)
            exchange.fail("The requester is gone.")

    def _message(self, address: str, *, has_body: bool) -> str:
        target = self._path + (f"?{self._query}" if self._query else "")
        return message.request(
            address, self.exchange.request_id, target, self._http.method, self._headers, remote_of(self._http),
            has_body=has_body,
        )  # fmt: skip

    async def _fetched(self, listener: Listener, address: str) -> RelaySocket:
        """The connection by which the listener fetches the request."""
        listener.watch(self.exchange)
        listener.send(message.fetch(address, self.exchange.request_id))
        try:
            async with asyncio.timeout(self._accept_seconds):
                return await asyncio.shield(self.exchange.rendezvous)
        except TimeoutError:
            text = f"The listener did not fetch the request within {self._accept_seconds:g} s."
            raise ExchangeError(text, was_delivered=False) from None

    async def _upload(self, socket: RelaySocket, address: str) -> None:
        """Sends the request over the listener's connection, its body as it arrives."""
        self.exchange.was_delivered = True
        socket.send_text(self._message(address, has_body=True))
        content = self._http.content
        try:
            while True:
                async with asyncio.timeout(self._seconds):
                    part = await content.readany()
                if not part:
                    break
                self.relayed_bytes += len(part)
                socket.send_binary(part, is_final=False)
                await socket.wait_writable()
                self._moved_at = asyncio.get_running_loop().time()
            socket.send_binary(b"")
        except TimeoutError:
            self.exchange.fail(f"The requester sent nothing of its request's body for {self._seconds:g} s.")
        except (ConnectionError, web.RequestPayloadError):
            self.exchange.fail("The requester went away while it sent its request.")

    async def _wait_head(self) -> message.Response:
        """The head of the answer. The listener's time-out begins at the end of the request, however long that takes to arrive."""
        loop = asyncio.get_running_loop()
        self._moved_at = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(self._moved_at + self._seconds):
                    return await asyncio.shield(self.exchange.head)
            except TimeoutError:
                if loop.time() >= self._moved_at + self._seconds:
                    raise ExchangeError(f"The listener did not answer within {self._seconds:g} s.") from None

    async def _answer(self, head: message.Response) -> web.StreamResponse:
        """Writes the listener's answer to the requester."""
        answer = web.StreamResponse(status=head.status, reason=head.reason or None)
        for key, value in head.headers:
            answer.headers.add(key, value)
        via = message.with_via({key: value for key, value in head.headers if key.lower() == "via"}, host_of(self._http))
        for key, value in via.items():
            answer.headers[key] = value
        if not head.has_body and head.status not in _BODILESS and self._http.method != "HEAD":
            answer.content_length = 0
        self._watch = asyncio.get_running_loop().call_later(STALL_SECONDS, self._check_stall, (0, 0))
        try:
            await answer.prepare(self._http)
            while part := await self.exchange.next_part(self._seconds):
                self.relayed_bytes += len(part)
                if self._http.method != "HEAD" and head.status not in _BODILESS:
                    await answer.write(part)
            await answer.write_eof()
            self.is_answered = True
        except (ExchangeError, TimeoutError):
            # The requester does not know its length: only the end of the connection shows that it is incomplete.
            if self._http.transport is not None:
                self._http.transport.abort()
        except ConnectionError:
            self.exchange.fail("The requester is gone.")
        finally:
            self._watch.cancel()
        return answer

    def _check_stall(self, before: tuple[int, int]) -> None:
        """Ends the requester's connection if the bytes that waited for it at the last check all still wait."""
        transport = self._http.transport
        if transport is None:
            return
        unsent = transport.get_write_buffer_size()
        if unsent and (self.relayed_bytes, unsent) == before:
            transport.abort()
        else:
            now = self.relayed_bytes, unsent
            self._watch = asyncio.get_running_loop().call_later(STALL_SECONDS, self._check_stall, now)


def origin_of(http: web.Request) -> str:
    """Scheme and host by which a client reached the relay, for WebSockets.

    Behind a proxy that terminates TLS they come from the proxy's headers (RFC 7239, or `X-Forwarded-Proto` and `X-Forwarded-Host`).
    A client that sends these headers without a proxy affects only itself: the answer goes to the client that sent them.
    """
    forwarded = http.forwarded[0] if http.forwarded else {}
    scheme = forwarded.get("proto") or _first(http.headers.get("X-Forwarded-Proto"))
    host = forwarded.get("host") or _first(http.headers.get("X-Forwarded-Host"))
    is_secure = http.secure or scheme.lower() in ("https", "wss")
    host = next((each for each in (host, http.host) if _HOST.fullmatch(each)), "localhost")
    return f"{'wss' if is_secure else 'ws'}://{host}"


def host_of(http: web.Request) -> str:
    """The host by which a client reached the relay; with it in ``Via`` the client distinguishes listeners' answers from the relay's own."""
    return origin_of(http).partition("://")[2]


def _first(header: str | None) -> str:
    """The value that the proxy nearest to the client wrote."""
    return (header or "").partition(",")[0].strip()


def remote_of(http: web.Request) -> tuple[str, int]:
    """Address and port of a client."""
    found = http.transport.get_extra_info("peername") if http.transport is not None else None
    return (str(found[0]), int(found[1])) if found else ("", 0)
