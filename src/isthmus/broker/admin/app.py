"""The administration API as an aiohttp application.

What it is: authentication, request reading and answering around `operation`, and ``/health``. What it is not: a
listener; the broker serves the application on its ports, over HTTP and HTTPS.
Spec: docs/explanation/protocol.md, Tokens, Administration.

Invariants:
    I1. No operation without a token that grants Manage at that resource; reading needs it too.
    I2. A change is answered only after the commit that makes it durable.
    I3. Every HTTP request gets a document of the service's form for its answer: no traceback, no closed connection.
    I4. No token and no key gets into a log.
    I5. An entity is changed by one request at a time: a second one meanwhile gets a conflict error.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable

from aiohttp import web

from isthmus.broker.admin.address import Address, Resource
from isthmus.broker.admin.atom import error_body
from isthmus.broker.admin.document import DOCUMENT_LIMIT_BYTES
from isthmus.broker.admin.failure import ConflictError, MethodError, TooLargeError, failure
from isthmus.broker.admin.operation import Operations
from isthmus.broker.admin.request import PAGE_LIMIT, Answer, Request
from isthmus.broker.health import HEALTHY, Health
from isthmus.broker.security.authority import Authority
from isthmus.broker.security.grant import Grant, Right
from isthmus.clock import Clock, SystemClock
from isthmus.entities import Engine, Limits
from isthmus.errors import InvalidArgumentError, IsthmusError, UnauthorizedError

__all__ = ["CATALOG_VERSION_HEADER", "INSTANCE_HEADER", "build_admin_app"]

CATALOG_VERSION_HEADER = "Isthmus-Catalog-Version"
INSTANCE_HEADER = "Isthmus-Instance"
"""Header of the namespace's document; its value changes whenever a description may have changed."""

_log = logging.getLogger("isthmus.broker.admin")

_BODY_TIMEOUT_SECONDS = 30.0
_DEFAULT_API_VERSION = "2017-04"
_API_VERSION = re.compile(r"20\d\d-\d\d")
_HOST = re.compile(r"[A-Za-z0-9.\-_]{1,255}(?::\d{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?")
# Refusals worth a log line: not 404 or 409, with which clients test whether an entity exists.
_SUSPECT = frozenset({400, 401, 413})
_CLAIMS = {"GET": "EntityRead", "HEAD": "EntityRead", "PUT": "EntityWrite", "DELETE": "EntityDelete"}
# The token for a forwarding target, where the caller's own does not reach it.
_SUPPLEMENTARY_HEADERS = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    "forward_dead_lettered_messages_to": "ServiceBusDlqSupplementaryAuthorization",
}


def build_admin_app(
    engine: Engine,
    authority: Authority,
    clock: Clock,
    namespace_name: str,
    *,
    commit: Callable[[], Awaitable[None]],
    health: Callable[[], Health] = lambda: HEALTHY,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    token_clock: Clock | None = None,
    on_authorised: Callable[[web.Request], None] = lambda http: None,
    listeners: Callable[[str], int] = lambda name: 0,
) -> web.Application:
    """The application for one namespace.

    Args:
        engine: the entities; all calls come from the loop's thread.
        authority: checks tokens.
        clock: wall time for documents.
        namespace_name: shown in documents and errors.
        commit: awaited after a change; returns when everything staged is durable, raises if it never will be.
        health: the content of ``/health``.
        limits: those of the engine, for what documents show.
        token_clock: wall time for the expiry of tokens; by default the machine's, however the namespace's is shifted.
        on_authorised: called for each request whose token permits it.
        listeners: how many listeners a hybrid connection has.
    """
    operations = Operations(engine, clock, namespace_name, limits.max_message_size_bytes, listeners)
    handler = _Handler(
        operations, authority, clock, token_clock or SystemClock(), namespace_name, commit, health, on_authorised
    )
    app = web.Application(client_max_size=DOCUMENT_LIMIT_BYTES)
    app.router.add_route("*", r"/{path:(?s:.*)}", handler.handle)  # line ends as well: all is answered here
    app.on_response_prepare.append(_sign)
    return app


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "isthmus"


class _Handler:
    """Answers requests."""

    def __init__(
        self,
        operations: Operations,
        authority: Authority,
        clock: Clock,
        token_clock: Clock,
        namespace: str,
        commit: Callable[[], Awaitable[None]],
        health: Callable[[], Health],
        on_authorised: Callable[[web.Request], None],
    ) -> None:
        self._on_authorised = on_authorised
        self._operations = operations
        self._authority = authority
        self._clock = clock
        self._token_clock = token_clock
        self._namespace = namespace
        self._commit = commit
        self._health = health
        # Paths of entities whose change is not durable yet.
        self._changing: set[str] = set()

    async def handle(self, http: web.Request) -> web.Response:
        """Answers one request."""
        # An entity may be called "health" as well; requests for entities carry an api-version.
        if http.rel_url.raw_path == "/health" and "api-version" not in http.query and http.method in ("GET", "HEAD"):
            return _health_answer(self._health())
        try:
            answer = await self._answer(http)
        except IsthmusError as error:
            return self._refuse(http, error)
        except Exception as error:  # noqa: BLE001 - an error that nobody thought of is answered as well
            _log.exception("administration request failed: %s %s", http.method, http.rel_url.raw_path)
            return self._refuse(http, error)
        headers = {"ETag": f'"{answer.updated_at_ms}"'} if answer.updated_at_ms else {}
        if answer.catalog_version:
            headers[CATALOG_VERSION_HEADER] = answer.catalog_version
        if answer.instance:
            headers[INSTANCE_HEADER] = answer.instance
        headers["Content-Type"] = f"application/atom+xml;type={answer.kind};charset=utf-8"
        if not answer.body:
            del headers["Content-Type"]
        return web.Response(status=answer.status, body=answer.body.encode(), headers=headers)

    async def _answer(self, http: web.Request) -> Answer:
        address = Address.parse(http.rel_url.raw_path)
        grant = self._authorise(http, address)
        request = await self._read(http, address, grant)
        if http.method in ("GET", "HEAD"):
            return self._operations.get(request)
        change = {"PUT": self._operations.put, "DELETE": self._operations.delete}.get(http.method)
        if change is None:
            raise MethodError(http.method)
        key = address.path.lower()
        if key in self._changing:
            raise ConflictError(f"'{address.path[:300]}' is being changed by another request; try again.")
        self._changing.add(key)
        try:
            answer = change(request)
            await self._commit()
        finally:
            self._changing.discard(key)
        _log.info("%s /%s: %d by %s", http.method, address.path, answer.status, grant.key_name)
        return answer

    def _authorise(self, http: web.Request, address: Address) -> Grant:
        token = http.headers.get("Authorization", "")
        if not token:
            raise UnauthorizedError("MissingToken: The authorization header was not found.")
        # Any valid token of the namespace permits the empty list at its root.
        path = "" if address.resource is Resource.ROOT else address.path
        grant = self._authority.authorise_token(token, f"{_origin(http)}/{path}", self._token_clock.wall_ms())
        if not grant.covers(path, Right.MANAGE):
            claim = _CLAIMS.get(http.method, "EntityWrite")
            raise UnauthorizedError(f"Manage,{claim} claims required for this operation.")
        self._on_authorised(http)
        return grant

    async def _read(self, http: web.Request, address: Address, grant: Grant) -> Request:
        api_version = http.query.get("api-version", _DEFAULT_API_VERSION)
        if not _API_VERSION.fullmatch(api_version):
            raise InvalidArgumentError(
                f"The api-version '{api_version[:32]}' is not known; there are 2017-04 and later."
            )
        return Request(
            address=address,
            origin=_origin(http),
            api_version=api_version,
            body=await _body(http) if http.method == "PUT" else b"",
            if_match=http.headers.get("If-Match"),
            skip=_count(http, "$skip", 0),
            top=min(_count(http, "$top", PAGE_LIMIT), PAGE_LIMIT),
            filter=http.query.get("$filter", ""),
            check_forward=lambda path, setting: self._check_forward(http, path, setting),
        )

    def _check_forward(self, http: web.Request, path: str, setting: str) -> None:
        """Refuse a forwarding target on which neither the caller's token nor the supplementary one grants Manage."""
        audience = f"{_origin(http)}/{path}"
        tokens = [http.headers.get(name, "") for name in ("Authorization", _SUPPLEMENTARY_HEADERS[setting])]
        for token in filter(None, tokens):
            try:
                grant = self._authority.authorise_token(token, audience, self._token_clock.wall_ms())
            except UnauthorizedError:
                continue
            if grant.covers(path, Right.MANAGE):
                return
        raise UnauthorizedError(
            f"Manage claims on the forwarding target '{path[:300]}' are required for this operation."
        )

    def _refuse(self, http: web.Request, error: Exception) -> web.Response:
        path = http.rel_url.raw_path.strip("/")
        status, detail = failure(error, namespace=self._namespace, path=path, now_ms=self._clock.wall_ms())
        level = logging.WARNING if status in _SUSPECT else logging.INFO
        _log.log(level, "%s /%s: refused with %d", http.method[:16], path[:300], status)
        return web.Response(
            status=status,
            body=error_body(status, detail).encode(),
            headers={"Content-Type": "application/xml; charset=utf-8"},
        )


def _health_answer(health: Health) -> web.Response:
    document: dict[str, object] = {"status": health.status}
    if health.reason:
        document["reason"] = health.reason
    if health.partition_stores_down:
        document["partition_stores_down"] = list(health.partition_stores_down)
    if health.zones_down:
        document["zones_down"] = list(health.zones_down)
    if health.without_listener:
        document["hybrid_connections_without_listener"] = health.without_listener
    return web.json_response(document, status=200 if health.is_ready else 503)


def _origin(http: web.Request) -> str:
    """Scheme and authority as the client wrote them, where they name a host."""
    return f"{http.scheme}://{http.host if _HOST.fullmatch(http.host) else 'localhost'}"


def _count(http: web.Request, name: str, default: int) -> int:
    value = http.query.get(name, "")
    if not value:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= 9):
        raise InvalidArgumentError(f"The value '{value[:32]}' of {name} is not a number.")
    return int(value)


async def _body(http: web.Request) -> bytes:
    encoding = http.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() not in ("identity", ""):
        raise InvalidArgumentError(f"The body has the Content-Encoding '{encoding[:32]}'; it is taken without one.")
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_SECONDS):
            return await http.read()
    except web.HTTPRequestEntityTooLarge:
        raise TooLargeError(f"The body has more than {DOCUMENT_LIMIT_BYTES} bytes.") from None
    except (ConnectionError, web.RequestPayloadError):
        raise InvalidArgumentError("The body broke off.") from None
    except TimeoutError:
        raise InvalidArgumentError(f"The body did not arrive within {_BODY_TIMEOUT_SECONDS:.0f} seconds.") from None
