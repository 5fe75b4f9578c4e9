"""A listener at one relay: its control channel, which is kept open, and the requests and connections that arrive over it.

What it is: the loop that connects and reconnects, the answers to requests and connections, and the renewal of the token.
What it is not: the application's handlers.
Spec: Microsoft Learn, "Azure Relay Hybrid Connections protocol" (listener protocol).

Invariants:
    I1. Whatever ends the channel, it is opened again, with growing delays, until the listener is closed.
    I2. Every request is answered and every connection accepted or rejected, also if a handler raises, or returns an invalid answer: a
        partial answer would be joined with the next one.
    I3. A relay that silently disappears is noticed within one and a half `heartbeat`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp

from isthmus.client.relay.address import RelayAddress, ResolvedRelay
from isthmus.client.relay.message import RelayConnection, RelayRequest, RelayResponse
from isthmus.errors import ConnectionLostError, IsthmusError
from isthmus.transport.backoff import Backoff
from isthmus.transport.websocket import proxy_of

__all__ = ["Channel", "ChannelState", "Handlers"]

_log = logging.getLogger(__name__)

_HEADER = "ServiceBusAuthorization"
# The largest answer over the control channel, which all requests share; larger ones use a connection of their own.
_CONTROL_BYTES = 60 << 10
# The share of a token's lifetime after which it is renewed.
_RENEW_SHARE = 0.75
# After a channel was open for this long, the next wait is a short one again.
_GOOD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Handlers:
    """The application's handlers.

    Attributes:
        on_request: answers a request; None: requests are rejected.
        on_connect: owns a connection until it returns; None: connections are rejected.
    """

    on_request: Callable[[RelayRequest], Awaitable[RelayResponse]] | None
    on_connect: Callable[[RelayConnection], Awaitable[None]] | None


@dataclass(slots=True)
class ChannelState:
    """The state of the listener at one relay.

    Attributes:
        is_listening: whether requesters at this relay reach it.
        opened: how often the control channel was opened.
        requests: requests that were answered.
        connections: connections that were accepted.
        failed: requests whose handler raised, and answers that could not be sent.
        error: the error that ended the last channel, or prevented it from opening; "" for none.
    """

    is_listening: bool = False
    opened: int = 0
    requests: int = 0
    connections: int = 0
    failed: int = 0
    error: str = ""


class Channel:
    """The listener at one relay.

    Args:
        side: name of the relay: primary or secondary.
        address: address of the relay.
        handlers: the application's handlers.
        session: creates connections.
        slots: bounds the requests and connections handled at one time, at both relays together.
        heartbeat: seconds between two pings.
        max_body_bytes: largest body of a request.
        on_change: called when `is_listening` has changed.
    """

    def __init__(
        self,
        side: str,
        address: RelayAddress,
        handlers: Handlers,
        session: aiohttp.ClientSession,
        slots: asyncio.Semaphore,
        *,
        heartbeat: float,
        max_body_bytes: int,
        on_change: Callable[[], None],
    ) -> None:
        self.side = side
        self.state = ChannelState()
        self._address = address
        self._handlers = handlers
        self._session = session
        self._slots = slots
        self._heartbeat = heartbeat
        self._max_body_bytes = max_body_bytes
        self._on_change = on_change
        self._backoff = Backoff(0.2, 10.0)
        self._sending = asyncio.Lock()
        self._working: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Listen until cancelled."""
        try:
            while True:
                began = time.monotonic()
                try:
                    await self._listen()
                    self.state.error = "the relay closed the control channel"
                except (aiohttp.ClientError, IsthmusError, TimeoutError, OSError, ValueError) as error:
                    self.state.error = _error_text(error)
                except Exception as error:  # noqa: BLE001  # the end of a listener would be noticed only by its requesters
                    self.state.error = _error_text(error)
                    _log.exception("the control channel failed: side=%s", self.side)
                _log.info("not listening: side=%s reason=%s", self.side, self.state.error)
                if time.monotonic() - began > _GOOD_SECONDS:
                    self._backoff.reset()
                await asyncio.sleep(self._backoff.next_seconds())
        finally:
            for task in self._working:
                task.cancel()
            await asyncio.gather(*self._working, return_exceptions=True)

    def _set_listening(self, value: bool) -> None:
        self.state.is_listening = value
        self._on_change()

    async def _listen(self) -> None:
        relay = self._address.resolve()
        token = await relay.token()
        address = relay.websocket("listen")
        async with self._session.ws_connect(
            address, headers={_HEADER: token.text}, ssl=relay.tls, heartbeat=self._heartbeat,
            max_msg_size=self._max_body_bytes, proxy=proxy_of(address),
        ) as control:  # fmt: skip
            _log.info("listening: side=%s", self.side)
            self.state.opened += 1
            self.state.error = ""
            renewing = asyncio.create_task(self._renew(control, token.expires_at))
            self._set_listening(True)
            try:
                await self._read(control, relay)
            finally:
                self._set_listening(False)
                renewing.cancel()
                await asyncio.wait([renewing])  # `wait` passes on the cancellation of this task
                if not renewing.cancelled():
                    renewing.result()
            if control.close_code not in (None, 1000):
                self.state.error = f"the relay closed the control channel with {control.close_code}"

    async def _renew(self, control: aiohttp.ClientWebSocketResponse, expires_at: float) -> None:
        """Send another token in time; if none can be obtained, retry until the old one expires."""
        while True:
            left = max(0.0, expires_at - time.time())
            await asyncio.sleep(max(left * _RENEW_SHARE, 1.0))
            try:
                token = await self._address.resolve().token()
                async with self._sending:
                    await control.send_json({"renewToken": {"token": token.text}})
                expires_at = token.expires_at
            except (IsthmusError, aiohttp.ClientError, OSError) as error:
                _log.warning("token not renewed: side=%s reason=%s", self.side, error)

    async def _read(self, control: aiohttp.ClientWebSocketResponse, relay: ResolvedRelay) -> None:
        async for message in control:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue  # a body that no request waits for
            received = json.loads(message.data)
            if isinstance(accept := received.get("accept"), dict):
                self._begin(partial(self._accept, accept, relay))
            elif isinstance(request := received.get("request"), dict):
                body = b""
                if request.get("body"):
                    following = await control.receive()
                    if following.type is not aiohttp.WSMsgType.BINARY:
                        raise ConnectionLostError("the control channel ended within a request")
                    body = following.data
                self._begin(partial(self._answer, control, request, body, relay))

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            try:
                async with self._slots:
                    await work()
            except (
                aiohttp.ClientError,
                OSError,
                TimeoutError,
                ConnectionLostError,
                ValueError,
                LookupError,
                TypeError,
            ) as error:
                self.state.failed += 1
                _log.warning("not answered: side=%s reason=%s", self.side, _error_text(error))

        task = asyncio.create_task(bounded())
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    # ---- requests

    async def _answer(
        self, control: aiohttp.ClientWebSocketResponse, details: dict[str, Any], body: bytes, relay: ResolvedRelay
    ) -> None:
        if "method" in details:
            answer, is_the_services = await self._handle(details, body)
            if len(answer.body) + sum(len(n) + len(v) for n, v in answer.headers.items()) <= _CONTROL_BYTES:
                async with self._sending:
                    await _send(control, details["id"], answer)
                self.state.requests += is_the_services
                return
            async with self._meet(details["address"], relay) as meeting:
                await _send(meeting, details["id"], answer)
                self.state.requests += is_the_services
                await meeting.receive()  # until the relay has all of it
            return
        async with self._meet(details["address"], relay) as meeting:
            request = json.loads((await meeting.receive()).data)["request"]
            if request.get("body"):
                message = await meeting.receive()
                if message.type is not aiohttp.WSMsgType.BINARY:
                    raise ConnectionLostError(
                        f"a request's body is incomplete, or has more than {self._max_body_bytes} bytes"
                    )
                body = message.data
            answer, is_the_services = await self._handle(request, body)
            await _send(meeting, request["id"], answer)
            self.state.requests += is_the_services
            await meeting.receive()

    async def _handle(self, details: dict[str, Any], body: bytes) -> tuple[RelayResponse, bool]:
        """The answer to a request, and whether its handler returned it."""
        request = RelayRequest(
            details["method"],
            details["requestTarget"],
            details.get("requestHeaders") or {},
            body,
            self.side,
            details["id"],
        )
        if self._handlers.on_request is None:
            return RelayResponse(501, b"The service takes no requests.\n"), False
        try:
            answer = await self._handlers.on_request(request)
        except Exception:  # noqa: BLE001 - an error of the application; its requester gets a 500
            _log.exception("the handler of a request failed: side=%s method=%s", self.side, request.method)
            self.state.failed += 1
            return RelayResponse(500, b"The service failed.\n"), False
        if not _can_be_sent(answer):
            _log.error(
                "the handler of a request has to give a RelayResponse, with texts as headers and bytes as body: side=%s method=%s",
                self.side,
                request.method,
            )
            self.state.failed += 1
            return RelayResponse(500, b"The service failed.\n"), False
        return answer, True

    # ---- connections

    async def _accept(self, details: dict[str, Any], relay: ResolvedRelay) -> None:
        address = _secured(details["address"], relay)

        async def join(subprotocol: str) -> aiohttp.ClientWebSocketResponse:
            protocols = (subprotocol,) if subprotocol else ()
            return await self._session.ws_connect(
                address, protocols=protocols, ssl=relay.tls, max_msg_size=0, proxy=proxy_of(address)
            )

        async def refuse(status: int, reason: str) -> None:
            more = f"&sb-hc-statusCode={status}&sb-hc-statusDescription={quote(reason, safe='')}"
            try:
                socket = await self._session.ws_connect(address + more, ssl=relay.tls, proxy=proxy_of(address))
            except aiohttp.WSServerHandshakeError:  # a rejection ends with 410
                return
            await socket.close()

        connection = RelayConnection(
            join=join,
            refuse=refuse,
            target=_target(address),
            headers=details.get("connectHeaders") or {},
            side=self.side,
        )
        if self._handlers.on_connect is None:
            await connection.reject(501, "The service takes no connections.")
            return
        try:
            await self._handlers.on_connect(connection)
        except asyncio.CancelledError:
            await connection.leave("The listener is closed.")
            raise
        except ConnectionLostError:
            _log.info("a relayed connection was lost: side=%s", self.side)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("the handler of a connection failed: side=%s", self.side)
            self.state.failed += 1
            if connection.is_accepted:
                await connection.close(1011, "The service failed.")
            else:
                await connection.reject(500, "The service failed.")
            return
        if connection.is_accepted:
            self.state.connections += 1
            await connection.close()
        else:
            await connection.reject()

    def _meet(self, address: str, relay: ResolvedRelay) -> Any:
        secured = _secured(address, relay)
        return self._session.ws_connect(
            secured, ssl=relay.tls, max_msg_size=self._max_body_bytes, proxy=proxy_of(secured)
        )


def _can_be_sent(answer: object) -> bool:
    """Whether it is a valid answer: a handler of the application may return anything."""
    if not isinstance(answer, RelayResponse):
        return False
    status: Any = answer.status  # the class does not check its values
    headers: Any = answer.headers
    if not isinstance(status, int) or not isinstance(headers, Mapping) or not isinstance(answer.body, bytes):
        return False
    return all(isinstance(each, str) for each in (answer.reason, *headers.keys(), *headers.values()))


async def _send(socket: aiohttp.ClientWebSocketResponse, request_id: str, answer: RelayResponse) -> None:
    head = {
        "requestId": request_id, "statusCode": answer.status, "responseHeaders": dict(answer.headers),
        "body": bool(answer.body),
    }  # fmt: skip
    if answer.reason:
        head["statusDescription"] = answer.reason
    await socket.send_json({"response": head})
    if answer.body:
        await socket.send_bytes(answer.body)


def _secured(address: str, relay: ResolvedRelay) -> str:
    """An address to connect to: by TLS if the relay uses TLS. A relay behind a proxy that ends TLS may not know that it does."""
    return address if relay.is_plain or not address.startswith("ws://") else "wss://" + address.removeprefix("ws://")


def _target(address: str) -> str:
    """Path and query of a requester in an address, without the relay's own parameters."""
    found = urlsplit(address)
    query = "&".join(part for part in found.query.split("&") if part and not part.lower().startswith("sb-hc-"))
    path = found.path.removeprefix("/$hc")
    return f"{path}?{query}" if query else path


def _error_text(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientHttpProxyError):  # its text has the proxy's address, with the password
        return f"the proxy answers {error.status}"
    if isinstance(error, aiohttp.WSServerHandshakeError):
        return f"the relay refuses the listener with {error.status}"
    return str(error) or type(error).__name__
