"""The operator's HTTP interface of a namespace: `/metrics`, statistics as JSON, a back-up.

What it is: three resources in front of the administration API, and who may use them.

    GET  /metrics                 Prometheus text
    GET  /$isthmus/statistics     the same numbers as one JSON object
    POST /$isthmus/backup?name=N  makes a back-up at backups/N of the data folder; JSON with its path

What it is not: the numbers (`statistics`), the command line (`isthmus.operations`).

Invariants:
    I1. `/metrics` is read from this machine, or with a token or key that has Manage on the namespace. Everything else
        needs the token or key, from any address.
    I2. An answer for ten thousand entities is made in parts; messages are served in between.
    I3. A back-up contains everything acknowledged before it was requested, and is in the data folder only.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from isthmus.broker.backup import back_up
from isthmus.broker.exposition import CONTENT_TYPE, entity_text, is_quiet, namespace_text
from isthmus.broker.namespace import Namespace
from isthmus.broker.net.admission import admit
from isthmus.broker.relay.metric import relay_text
from isthmus.broker.security.authority import Authority
from isthmus.broker.security.grant import Grant, Right
from isthmus.broker.statistics import EntityRow, as_dict, entity_rows, namespace_row
from isthmus.clock import SystemClock
from isthmus.errors import InvalidArgumentError, IsthmusError, UnauthorizedError

__all__ = ["BACKUP_PATH", "METRICS_PATH", "STATISTICS_PATH", "add_operator_api"]

_log = logging.getLogger(__name__)

METRICS_PATH = "/metrics"
# No entity's name begins with a dollar sign.
STATISTICS_PATH = "/$isthmus/statistics"
BACKUP_PATH = "/$isthmus/backup"
_BACKUP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Entities read before other work is served: about 2 ms.
_ROWS_AT_ONCE = 500

# How often to check whether deliveries between stores have ended before a copy.
_QUIET_SECONDS = 0.002

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_operator_api(app: web.Application, namespace: Namespace, authority: Authority, backups: Path | None) -> None:
    """Adds the resources in front of the application's own.

    Args:
        app: the administration API.
        namespace: whose numbers they give.
        authority: checks tokens and keys.
        backups: folder of back-ups, in the data folder; None where none can be made.
    """
    operator = _Operator(namespace, authority, backups)
    table: dict[tuple[str, str], _Handler] = {
        ("GET", METRICS_PATH): operator.metrics,
        ("GET", STATISTICS_PATH): operator.statistics,
        ("POST", BACKUP_PATH): operator.backup,
    }

    @web.middleware
    async def before(request: web.Request, handler: _Handler) -> web.StreamResponse:
        # An entity may be called "metrics" as well; requests for entities carry an api-version.
        found = table.get((request.method, request.rel_url.path))
        if found is None or "api-version" in request.query:
            return await handler(request)
        try:
            return await found(request)
        except ConnectionError:  # the client has disconnected, which is not logged as a fault
            return web.Response()
        except IsthmusError as error:
            _log.warning("operator's request refused: %s %s: %s", request.method, request.rel_url.path, error)
            status = 401 if isinstance(error, UnauthorizedError) else 400 if _is_callers(error) else 503
            headers = {"WWW-Authenticate": 'Basic realm="isthmus"'} if status == 401 else {}
            return web.json_response({"error": error.to_dict()}, status=status, headers=headers)

    app.middlewares.append(before)


def _is_callers(error: IsthmusError) -> bool:
    return isinstance(error, InvalidArgumentError)


class _Operator:
    def __init__(self, namespace: Namespace, authority: Authority, backups: Path | None) -> None:
        self._namespace = namespace
        self._authority = authority
        self._backups = backups
        self._backup = asyncio.Lock()

    async def metrics(self, http: web.Request) -> web.StreamResponse:
        """Prometheus's page."""
        if not _is_local(http):
            self._authorise(http)
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        rows = [row for row in await self._rows() if not is_quiet(row)]
        await response.prepare(http)
        await response.write(namespace_text(namespace_row(self._namespace)).encode())
        await response.write(relay_text(self._namespace.relay.rows()).encode())
        for part in entity_text(rows):
            await response.write(part.encode())
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    async def statistics(self, http: web.Request) -> web.StreamResponse:
        """Everything as JSON."""
        self._authorise(http)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        rows = await self._rows()
        await response.prepare(http)
        hybrids = [row.as_dict() for row in self._namespace.relay.rows()]
        whole = {"namespace": as_dict(namespace_row(self._namespace)), "at": time.time(), "hybrid_connections": hybrids}
        await response.write((json.dumps(whole)[:-1] + ', "entities": [').encode())
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = ", ".join(json.dumps(as_dict(row)) for row in rows[start : start + _ROWS_AT_ONCE])
            await response.write(((", " if start else "") + part).encode())
            await asyncio.sleep(0)
        await response.write(b"]}\n")
        await response.write_eof()
        return response

    async def backup(self, http: web.Request) -> web.StreamResponse:
        """Copies the store into the data folder."""
        grant = self._authorise(http)
        name = http.query.get("name") or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        if not _BACKUP_NAME.fullmatch(name):
            raise InvalidArgumentError(
                f"'{name[:80]}' is no name for a back-up; write letters, digits, '.', '-' and '_', 64 at most"
            )
        if self._backups is None:
            raise InvalidArgumentError("this namespace has no folder for back-ups")
        folder = self._backups / name
        async with self._backup:
            began = time.monotonic()
            await self._namespace.commits.wait_durable()
            # Shielded: after a caller that disconnects, a thread must not work on files that the next request removes.
            store, blobs, data = self._namespace.store, self._namespace.engine.blobs.files, self._backups.parent
            stores = self._namespace.engine.stores
            fragments = stores.journals() if stores is not None else {}
            making = self._copied(lambda: back_up(store, blobs, data, folder, fragments))
            await asyncio.shield(asyncio.ensure_future(making))
        seconds = time.monotonic() - began
        _log.info("back-up made: folder=%s seconds=%.3f by=%s", folder, seconds, grant.key_name)
        return web.json_response({"folder": str(folder.resolve()), "seconds": seconds})

    async def _copied(self, copy: Callable[[], None]) -> None:
        """Copies in a thread. Meanwhile no message moves from one store to another: the stores are copied one after the other,
        and a message that moved in between could be missing in both copies.
        """
        handover = self._namespace.engine.handover
        if handover is None:
            await asyncio.to_thread(copy)
            return
        handover.pause()
        try:
            while not handover.is_quiet:  # noqa: ASYNC110 - a delivery ends within a sync, and copies are rare
                await asyncio.sleep(_QUIET_SECONDS)
            await asyncio.to_thread(copy)
        finally:
            handover.resume()

    async def _rows(self) -> list[EntityRow]:
        rows: list[EntityRow] = []
        for row in entity_rows(self._namespace):
            rows.append(row)
            if len(rows) % _ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return rows

    def _authorise(self, http: web.Request) -> Grant:
        """The grant of the request's token or key on the namespace as a whole.

        Raises:
            UnauthorizedError: it has none, or not Manage.
        """
        shown = http.headers.get("Authorization", "")
        if not shown:
            raise UnauthorizedError("This needs a token, or a rule's name and key (Basic), with Manage.")
        scheme, _, rest = shown.partition(" ")
        if scheme.lower() == "basic":
            name, _, key = _decoded(rest).partition(":")
            grant = self._authority.authorise_plain(name, key)[0]
        else:
            audience = f"{http.scheme}://{http.host}/"
            grant = self._authority.authorise_token(shown, audience, SystemClock().wall_ms())
        if not grant.covers("", Right.MANAGE):
            raise UnauthorizedError("Manage on the namespace is required for this.")
        admit(self._namespace.admission, http.transport)
        return grant


def _is_local(http: web.Request) -> bool:
    address = http.transport.get_extra_info("peername") if http.transport is not None else None
    try:
        return ipaddress.ip_address(address[0]).is_loopback if address else False
    except ValueError:
        return False


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        raise UnauthorizedError("The Basic credentials cannot be read.") from None
