"""The HTTP interface of the relay: listeners, requesters' WebSockets and requesters' requests.

What it is: the resources below ``/$hc/``, and at the paths of hybrid connections. What it is not: the exchange of one
request (`request`), the listeners (`relay`), tokens (`access`).
Spec: Microsoft Learn, "Azure Relay Hybrid Connections protocol".

    GET /$hc/NAME?sb-hc-action=listen            a listener's control channel
    GET /$hc/NAME/MORE?sb-hc-action=connect      a requester's WebSocket
    GET /$hc/NAME/MORE?sb-hc-action=accept       a listener that accepts one, or rejects it
    GET /$hc/NAME/MORE?sb-hc-action=request      a listener that takes a request, or answers it, over a connection of its own
    any /NAME/MORE                               a requester's request

Invariants:
    I1. A request that no listener has taken is answered with the reason within the time of the namespace's limits.
    I2. Paths of no hybrid connection, and paths with an ``api-version``, are the administration's.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web

from isthmus.broker.namespace import Namespace
from isthmus.broker.net.admission import admit
from isthmus.broker.net.handshake import accept_key, refusal, upgrade
from isthmus.broker.relay import message
from isthmus.broker.relay.access import (
    RelayRefusedError,
    authorise,
    check_token,
    parameter,
    refused,
    token_is_plain_header,
)
from isthmus.broker.relay.address import (
    find_name,
    is_below,
    leads_up,
    query_parameter,
    rendezvous_address,
    split_target,
    without_own,
    written_behind,
)
from isthmus.broker.relay.exchange import Rendezvous
from isthmus.broker.relay.listener import Listener
from isthmus.broker.relay.relay import PendingRendezvous, Rejection, Relay
from isthmus.broker.relay.request import host_of, origin_of, relay_request, remote_of
from isthmus.broker.relay.socket import GOING_AWAY, RelaySocket
from isthmus.broker.security.grant import Grant, Right
from isthmus.broker.security.sas import canonical_path
from isthmus.entities.catalog.description import EntityStatus
from isthmus.entities.hybrid_connection import HybridConnectionDescription
from isthmus.errors import EntityNotFoundError, ServerBusyError, UnauthorizedError

__all__ = ["add_relay"]

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
# The namespace's own resources; a hybrid connection of such a name is reached below its path.
_OWN = frozenset({"/health", "/metrics"})
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_relay(app: web.Application, namespace: Namespace, relay: Relay) -> None:
    """Adds the relay to an HTTP application.

    Args:
        app: gets the relay's resources in front of its own.
        namespace: whose hybrid connections are served.
        relay: the listeners and the relayed connections.
    """
    gate = _Gate(namespace, relay)

    @web.middleware
    async def before(request: web.Request, handler: _Handler) -> web.StreamResponse:
        path, _ = split_target(request.raw_path)
        try:
            if is_below(path):
                return await gate.websocket(request, path)
            name = "" if path in _OWN else gate.find(path)
            if name and ("api-version" not in request.query or canonical_path(path) != name):
                return await gate.request(request, name)
        except RelayRefusedError as error:
            _log.info("not relayed: %s %s: %d %s", request.method[:16], path[:300], error.status, error)
            return refused(error)
        return await handler(request)

    app.middlewares.append(before)

    def tick() -> None:
        now_ms = namespace.token_clock.wall_ms()
        relay.tick(asyncio.get_running_loop().time(), now_ms, namespace.authority.is_current)

    namespace.every(_TICK_SECONDS, tick)


class _Gate:
    def __init__(self, namespace: Namespace, relay: Relay) -> None:
        self._namespace = namespace
        self._relay = relay
        self._hybrids = namespace.engine.hybrid_connections

    def find(self, path: str) -> str:
        """The canonical name of the hybrid connection that a path begins with; "" where there is none."""
        if not len(self._hybrids):
            return ""
        return find_name(path, self._hybrids.__contains__)

    def _description(self, name: str) -> HybridConnectionDescription:
        """The settings of one that is enabled.

        Raises:
            RelayRefusedError: it is not.
        """
        found = self._hybrids.get(name)
        if found is None:
            raise _missing(name)
        if self._namespace.is_stopping:
            raise RelayRefusedError(503, "The namespace is stopping.")
        if found.status is not EntityStatus.ACTIVE:
            raise RelayRefusedError(503, f"The hybrid connection '{name}' is {found.status}.")
        return found

    async def websocket(self, http: web.Request, path: str) -> web.StreamResponse:
        """Serves the paths below ``/$hc/``."""
        action = parameter(http, "sb-hc-action").lower()
        serve = {"listen": self._listen, "connect": self._connect}.get(action)
        meet = {"accept": self._accept, "request": self._take_request}.get(action)
        if serve is None and meet is None:
            raise RelayRefusedError(
                400, "The parameter sb-hc-action is not one of listen, connect, accept and request."
            )
        accepted = accept_key(http)
        if accepted is None:
            return refusal()
        if meet is not None:
            return await meet(http, accepted)
        assert serve is not None
        name = self.find(path)
        if not name:
            # Only with a token for the namespace does a client learn that a name does not exist.
            name = canonical_path(path[path.index("/", 1) :])
            authorise(http, self._namespace, name, Right.LISTEN if action == "listen" else Right.SEND)
            raise _missing(name)
        return await serve(http, accepted, name)

    # ---- listeners

    async def _listen(self, http: web.Request, accepted: str, name: str) -> web.StreamResponse:
        grant = authorise(http, self._namespace, name, Right.LISTEN)
        self._description(name)
        if not self._relay.has_room(name):
            limit = self._relay.limits.max_listeners_per_hybrid_connection
            raise RelayRefusedError(
                503, f"'{name}' has {limit} listeners, as many as it may have; end one of them first."
            )
        socket = RelaySocket(http.protocol)
        answer = await upgrade(http, accepted, socket)
        if answer is None:
            return web.Response()

        def renew(token: str) -> Grant:
            try:
                return check_token(self._namespace, name, token, Right.LISTEN)
            except RelayRefusedError as error:
                raise UnauthorizedError(str(error)) from None

        now = asyncio.get_running_loop().time()
        listener = Listener(name, socket, origin_of(http), grant, renew, self._relay.leave, now)
        self._relay.enter(listener)
        socket.start(listener)
        await socket.over.wait()
        return answer

    async def _accept(self, http: web.Request, accepted: str) -> web.StreamResponse:
        pending = self._relay.take_rendezvous(parameter(http, "sb-hc-rendezvous"), "accept")
        if pending is None or pending.joined is None:
            raise _expired()
        admit(self._namespace.admission, http.transport)
        # Without a prefix only after the address: the parameters before it are the requester's.
        behind = written_behind(split_target(http.raw_path)[1])
        status = parameter(http, "sb-hc-statusCode") or query_parameter(behind, "statusCode")
        if status:
            reason = parameter(http, "sb-hc-statusDescription") or query_parameter(behind, "statusDescription")
            code = int(status) if status.isascii() and status.isdigit() and len(status) == 3 else 502
            pending.joined.set_result(Rejection(code if code >= 400 else 502, reason or "The listener rejected it."))
            raise RelayRefusedError(410, "The connection was rejected, as asked for.")
        subprotocol = message.token(http.headers.get("Sec-WebSocket-Protocol", "").partition(",")[0])
        headers = {"Sec-WebSocket-Protocol": subprotocol} if subprotocol else {}
        socket = RelaySocket(http.protocol)
        answer = await upgrade(http, accepted, socket, headers)
        if answer is None:
            if not pending.joined.done():
                pending.joined.set_result(Rejection(502, "The listener went away while it accepted the connection."))
            return web.Response()
        if pending.joined.done():
            socket.close(GOING_AWAY, "The requester is gone.")
        else:
            pending.joined.set_result((socket, subprotocol))
        await socket.over.wait()
        return answer

    async def _take_request(self, http: web.Request, accepted: str) -> web.StreamResponse:
        pending = self._relay.take_rendezvous(parameter(http, "sb-hc-rendezvous"), "request")
        if pending is None or pending.exchange is None:
            raise _expired()
        admit(self._namespace.admission, http.transport)
        socket = RelaySocket(http.protocol)
        answer = await upgrade(http, accepted, socket)
        if answer is None:
            pending.exchange.fail("The listener went away while it connected.")
            return web.Response()
        if pending.is_awaited:
            pending.exchange.rendezvous.set_result(socket)
            socket.start(Rendezvous(pending.exchange, socket))
        else:
            socket.close(GOING_AWAY, "The requester is gone.")
        await socket.over.wait()
        return answer

    # ---- requesters

    def _admit_requester(self, http: web.Request, name: str) -> None:
        if self._description(name).requires_client_authorization:
            path, _ = split_target(http.raw_path)
            path = canonical_path(path[path.index("/", 1) :] if is_below(path) else path)
            authorise(http, self._namespace, name, Right.SEND, name if leads_up(path) else path)

    def _strips_authorization(self, http: web.Request, name: str) -> bool:
        found = self._hybrids.get(name)
        return found is not None and found.requires_client_authorization and token_is_plain_header(http)

    def _choose(self, name: str, status: int) -> Listener:
        """A listener.

        Raises:
            RelayRefusedError: there is none, with this status, or all are overloaded.
        """
        try:
            listener = self._relay.choose(name)
        except ServerBusyError as error:
            self._relay.refuse(name)
            raise RelayRefusedError(503, str(error)) from None
        if listener is None:
            self._relay.refuse(name)
            raise RelayRefusedError(status, f"There are no listeners connected for the endpoint '{name}'.")
        return listener

    def _begin(self, name: str) -> None:
        try:
            self._relay.begin(name)
        except ServerBusyError as error:
            raise RelayRefusedError(503, str(error)) from None

    async def request(self, http: web.Request, name: str) -> web.StreamResponse:
        """A requester's request."""
        self._admit_requester(http, name)
        if "upgrade" in http.headers:
            raise RelayRefusedError(400, f"Connect a WebSocket to /$hc/{name}?sb-hc-action=connect instead.")
        self._begin(name)
        try:
            strip = self._strips_authorization(http, name)
            return await relay_request(
                http, name, self._relay, lambda: self._choose(name, 502), strip_authorization=strip
            )
        finally:
            self._relay.end()

    async def _connect(self, http: web.Request, accepted: str, name: str) -> web.StreamResponse:
        self._admit_requester(http, name)
        self._begin(name)
        ending = self._relay.end
        try:
            found = await self._find_partner(http, name)
            if isinstance(found, Rejection):
                self._relay.refuse(name)
                return refused(RelayRefusedError(found.status, found.reason), message.with_via({}, host_of(http)))
            partner, subprotocol = found
            offered = [each.strip() for each in http.headers.get("Sec-WebSocket-Protocol", "").split(",")]
            headers = {"Sec-WebSocket-Protocol": subprotocol} if subprotocol and subprotocol in offered else {}
            socket = RelaySocket(http.protocol)
            answer = await upgrade(http, accepted, socket, headers)
            if answer is None:
                partner.close(GOING_AWAY, "The requester is gone.")
                return web.Response()
            self._relay.join(name, socket, partner, ending)
            ending = _nothing  # from now on owned by the tunnel
            await socket.over.wait()
            return answer
        finally:
            ending()

    async def _find_partner(self, http: web.Request, name: str) -> tuple[RelaySocket, str] | Rejection:
        """The listener's socket for a requester's, with its subprotocol."""
        listener = self._choose(name, 404)
        path, query = split_target(http.raw_path)
        connection_id = parameter(http, "sb-hc-id") or str(uuid.uuid4())
        pending = PendingRendezvous(name, "accept", listener, joined=asyncio.get_running_loop().create_future())
        assert pending.joined is not None
        secret = self._relay.open_rendezvous(pending)
        own = {"sb-hc-action": "accept", "sb-hc-id": connection_id, "sb-hc-rendezvous": secret}
        address = rendezvous_address(listener.origin, path, without_own(query), own)
        strip = self._strips_authorization(http, name)
        headers = message.connect_headers(http.headers.items(), strip_authorization=strip)
        try:
            listener.send(message.accept(address, connection_id, headers, remote_of(http)))
            seconds = self._relay.limits.relay_accept_timeout_ms / 1000
            async with asyncio.timeout(seconds):
                return await asyncio.shield(pending.joined)
        except TimeoutError:
            if pending.joined.done():  # in the same iteration of the loop
                return pending.joined.result()
            pending.joined.set_result(Rejection(504, ""))
            raise RelayRefusedError(504, f"The listener did not accept the connection within {seconds:g} s.") from None
        finally:
            self._relay.close_rendezvous(secret)


def _nothing() -> None:
    pass


def _missing(name: str) -> RelayRefusedError:
    return RelayRefusedError(404, f"Endpoint does not exist: {EntityNotFoundError(name)}")


def _expired() -> RelayRefusedError:
    return RelayRefusedError(403, "The address is not valid, or nobody waits there any more.")
