"""`RelayRequester` for asyncio: requests and connections to a service behind one of two relays.

What it is: the I/O around the decisions of `isthmus.client.relay.pair`. What it is not: a pool of its own; aiohttp's session keeps
connections.

Invariants:
    I1. A request ends with a listener's answer, or with an error that states whether a listener may have handled it.
    I2. No password of `.netrc` is sent to a relay, and no proxy password is in an error.
"""

from __future__ import annotations

import asyncio
import io
import logging
import random
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from isthmus.client.endpoint import EndpointError, EndpointLike, EndpointUnavailableError
from isthmus.client.relay.address import RelayAddress, ResolvedRelay
from isthmus.client.relay.message import RelayConnection, RelayResponse
from isthmus.client.relay.pair import (
    IDEMPOTENT,
    Outcome,
    Pair,
    RelayRefusedError,
    RelayUnavailableError,
    outcome_of_status,
)
from isthmus.errors import InvalidArgumentError
from isthmus.transport.credential import TokenError
from isthmus.transport.redirect import unredirected
from isthmus.transport.websocket import proxy_of

__all__ = ["RelayRequester", "RequesterStatistics", "addresses"]

_log = logging.getLogger(__name__)

_HEADER = "ServiceBusAuthorization"


@dataclass(frozen=True, slots=True)
class RequesterStatistics:
    """Statistics of a `RelayRequester` since it was created.

    Attributes:
        active: the side that is tried first.
        swaps: changes of roles.
        answered: side → requests and connections that a listener accepted.
        failed: side → attempts that reached no listener.
        unknown: requests with an unknown outcome.
    """

    active: str
    swaps: int
    answered: Mapping[str, int]
    failed: Mapping[str, int]
    unknown: int


class _Failed(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, outcome: Outcome, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.outcome, self.reason, self.status = outcome, reason, status


class RelayRequester:
    """Reaches a service that listens at two relays, or at one.

    Args:
        primary: a relay; see `isthmus.client.endpoint` for the accepted forms.
        secondary: the other relay; None if there is none.
        entity: the hybrid connection; "" uses the `EntityPath` of the connection strings.
        secondary_entity: the name at the secondary, if it differs.
        timeout: seconds for a request at one relay.
        connect_timeout: seconds for opening a connection to a relay.
        retry_unknown: send a request that may have been handled to the other relay as well, whatever its method.
        source: chooses the first active relay; seeded in tests.
        options: `connection_verify` or `ssl_context`, for both.
    """

    def __init__(
        self,
        primary: EndpointLike,
        secondary: EndpointLike | None = None,
        entity: str = "",
        *,
        secondary_entity: str = "",
        timeout: float = 60.0,
        connect_timeout: float = 5.0,
        retry_unknown: bool = False,
        source: random.Random | None = None,
        **options: Any,
    ) -> None:
        if timeout <= 0 or connect_timeout <= 0:
            raise InvalidArgumentError("timeout and connect_timeout must be above 0 seconds")
        self._addresses = addresses(primary, secondary, entity, secondary_entity, options)
        for address in self._addresses.values():
            address.check()
        self._pair = Pair(tuple(self._addresses), source)
        self._entity = entity or self._addresses["primary"].given
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._retry_unknown = retry_unknown
        self._session: aiohttp.ClientSession | None = None
        self._connections: weakref.WeakSet[RelayConnection] = (
            weakref.WeakSet()
        )  # the application's; those that it has kept
        self._is_closed = False
        self._answered = dict.fromkeys(self._addresses, 0)
        self._failed = dict.fromkeys(self._addresses, 0)
        self._unknown = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def active(self) -> str:
        """The side that is tried first: "primary" or "secondary"."""
        return self._pair.active

    def statistics(self) -> RequesterStatistics:
        """Counts since the requester was created."""
        return RequesterStatistics(
            self._pair.active, self._pair.swaps, dict(self._answered), dict(self._failed), self._unknown
        )

    async def request(
        self, method: str, target: str = "", *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> RelayResponse:
        """Send a request to the service.

        Args:
            method: the HTTP method.
            target: path and query below the hybrid connection.
            headers: headers of the request.
            body: body of the request.

        Returns:
            The service's answer, whatever its status.

        Raises:
            RelayUnavailableError: no relay returned an answer; the error has whether the request may have been handled.
            RelayRefusedError: a relay refuses the request.
        """
        method = method.upper()

        async def attempt(side: str, relay: ResolvedRelay, token: str) -> RelayResponse:
            return await self._request(side, relay, token, method, target, headers or {}, body)

        result: RelayResponse = await self._try(attempt, may_repeat=self._retry_unknown or method in IDEMPOTENT)
        return result

    async def connect(
        self, target: str = "", *, subprotocols: tuple[str, ...] = (), headers: Mapping[str, str] | None = None
    ) -> RelayConnection:
        """Connect to the service by WebSocket.

        Args:
            target: path and query below the hybrid connection.
            subprotocols: the offered subprotocols.
            headers: headers of the handshake.

        Raises:
            RelayUnavailableError: no relay reached a listener.
            RelayRefusedError: a relay, or the service itself, refuses the connection.
        """

        async def attempt(side: str, relay: ResolvedRelay, token: str) -> RelayConnection:
            return await self._connect(side, relay, token, target, subprotocols, headers or {})

        # A listener that accepted a connection which its requester then gives up finds it closed: nothing was handled.
        result: RelayConnection = await self._try(attempt, may_repeat=True)
        return result

    async def _try(self, attempt: Any, *, may_repeat: bool) -> Any:
        failures: dict[str, str] = {}
        unknown = False
        for side in self._pair.order():
            try:
                relay = self._addresses[side].resolve()
                result = await attempt(side, relay, (await relay.token()).text)
            except (EndpointError, EndpointUnavailableError, TokenError) as error:
                # Both endpoints were valid at the start: a file that is being replaced now must not prevent the use of the other relay.
                failures[side] = str(error)
            except _Failed as failed:
                if failed.outcome is Outcome.REFUSED and not unknown:
                    raise RelayRefusedError(side, failed.status, failed.reason) from None
                failures[side] = failed.reason
                if failed.outcome is Outcome.UNKNOWN:
                    unknown = True
                    if not may_repeat:
                        self._failed[side] += 1
                        self._unknown += 1
                        self._pair.doubted(side)
                        raise RelayUnavailableError(self._entity, failures, unknown=True) from None
            else:
                if side != self._pair.active:
                    _log.warning("roles swapped: entity=%s active=%s reason=%s", self._entity, side, failures)
                self._pair.answered(side)
                self._answered[side] += 1
                return result
            self._failed[side] += 1
        self._unknown += unknown
        raise RelayUnavailableError(self._entity, failures, unknown=unknown)

    async def _request(
        self,
        side: str,
        relay: ResolvedRelay,
        token: str,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> RelayResponse:
        limit = aiohttp.ClientTimeout(total=self._timeout, connect=self._connect_timeout)
        try:
            async with self._http().request(
                method, relay.http(target), headers={**headers, _HEADER: token}, data=io.BytesIO(body) if body else None, ssl=relay.tls,
                allow_redirects=False, timeout=limit, proxy=proxy_of(relay.http("")),
            ) as answer:  # fmt: skip
                outcome = outcome_of_status(answer.status, answer.headers.getall("Via", ()), relay.host)
                if outcome is not Outcome.ANSWERED:
                    raise _Failed(outcome, answer.reason or str(answer.status), answer.status)
                whole = await answer.read()
                return RelayResponse(answer.status, whole, answer.headers.copy(), answer.reason or "", side)
        except aiohttp.InvalidURL as error:
            raise InvalidArgumentError(f"the target {target!r} makes no URL: {error}") from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError) as error:
            raise _Failed(Outcome.NOT_DELIVERED, _error_text(error)) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _Failed(Outcome.UNKNOWN, _error_text(error)) from None

    async def _connect(
        self,
        side: str,
        relay: ResolvedRelay,
        token: str,
        target: str,
        subprotocols: tuple[str, ...],
        headers: Mapping[str, str],
    ) -> RelayConnection:
        try:
            async with asyncio.timeout(self._timeout):
                address = relay.websocket("connect", target)
                socket = await self._http().ws_connect(
                    address, headers={**headers, _HEADER: token}, protocols=subprotocols, ssl=relay.tls, max_msg_size=0,
                    proxy=proxy_of(address),
                )  # fmt: skip
        except aiohttp.InvalidURL as error:
            raise InvalidArgumentError(f"the target {target!r} makes no URL: {error}") from None
        except aiohttp.WSServerHandshakeError as error:
            via = error.headers.getall("Via", ()) if error.headers is not None else ()
            outcome = outcome_of_status(error.status, via, relay.host)
            if outcome is Outcome.ANSWERED:  # the service rejects it, and would do so over the other relay
                outcome = Outcome.REFUSED
            raise _Failed(outcome, f"status {error.status}", error.status) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _Failed(Outcome.NOT_DELIVERED, _error_text(error)) from None
        connection = RelayConnection(socket, target=target, headers=headers, side=side)
        self._connections.add(connection)
        return connection

    def _http(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise _Failed(Outcome.NOT_DELIVERED, "the requester was closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(connect=self._connect_timeout),
                trace_configs=[unredirected()],
            )
        return self._session

    async def close(self) -> None:
        """Close all connections; running requests end, and no more are sent."""
        self._is_closed = True
        await asyncio.gather(*(each.leave("The requester is closed.") for each in list(self._connections)))
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def addresses(
    primary: EndpointLike, secondary: EndpointLike | None, entity: str, secondary_entity: str, options: dict[str, Any]
) -> dict[str, RelayAddress]:
    """The relays by their sides."""
    found = {"primary": RelayAddress(primary, entity, **options)}
    if secondary is not None:
        found["secondary"] = RelayAddress(secondary, secondary_entity or entity, **options)
    return found


def _error_text(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientHttpProxyError):  # its text has the proxy's address, with the password
        return f"the proxy answers {error.status}"
    return str(error) or type(error).__name__
