"""The requests, answers and connections between a listener's and a requester's application.

What it is: requests and answers with their bodies, and connections. What it is not: the relay's protocol (`channel`).

Invariants:
    I1. A connection that is not accepted is rejected, so that its requester does not wait for a time-out.
    I2. A connection is accepted once, whatever its handler does concurrently.
    I3. A listener or requester that is closed closes its connections with status 1001 (RFC 6455, 7.4.1).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp

from isthmus.errors import ConnectionLostError

__all__ = ["RelayConnection", "RelayRequest", "RelayResponse"]

_LEAVE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RelayRequest:
    """An HTTP request that came by a relay.

    Attributes:
        method: of HTTP.
        target: path and query, the hybrid connection's name included.
        headers: headers, with names as the requester wrote them.
        body: as sent.
        side: the relay by which it came, "primary" or "secondary".
        request_id: the relay's id of the request.
    """

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    side: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class RelayResponse:
    """An answer to a request.

    Attributes:
        status: of HTTP.
        body: as sent.
        headers: names and values.
        reason: the reason phrase of the status; "" for the default one.
        side: for a requester: the relay by which the answer came.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    side: str = ""


class RelayConnection:
    """A WebSocket between the two applications, seen from either end.

    Args:
        socket: the socket, once there is one.
        join: accepts with a subprotocol and returns the socket. For a listener.
        refuse: rejects, with a status and a reason. For a listener.
        target: path and query that the requester asked for.
        headers: headers of its handshake.
        side: the relay by which the connection came.
    """

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse | None = None,
        *,
        join: Callable[[str], Awaitable[aiohttp.ClientWebSocketResponse]] | None = None,
        refuse: Callable[[int, str], Awaitable[None]] | None = None,
        target: str = "",
        headers: Mapping[str, str] = {},
        side: str = "",
    ) -> None:
        self.target = target
        self.headers = headers
        self.side = side
        self.is_rejected = False
        self._socket = socket
        self._join = join
        self._refuse = refuse
        self._joining = asyncio.Lock()

    @property
    def is_accepted(self) -> bool:
        """Whether there is a connection."""
        return self._socket is not None

    @property
    def subprotocol(self) -> str:
        """The subprotocol that both ends agreed on; "" for none."""
        return (self._socket.protocol or "") if self._socket is not None else ""

    @property
    def offered(self) -> tuple[str, ...]:
        """Subprotocols that the requester offers."""
        text = next((value for name, value in self.headers.items() if name.lower() == "sec-websocket-protocol"), "")
        return tuple(part.strip() for part in text.split(",") if part.strip())

    @property
    def close_code(self) -> int | None:
        """The status with which the other end closed; None while the connection is open."""
        return self._socket.close_code if self._socket is not None else None

    async def accept(self, subprotocol: str = "") -> None:
        """Accept the connection; `send` and `receive` do so automatically.

        Raises:
            ConnectionLostError: the connection was rejected, or its requester has closed it.
        """
        async with self._joining:
            if self._socket is None:
                self._socket = await self._joined(subprotocol)

    async def _joined(self, subprotocol: str) -> aiohttp.ClientWebSocketResponse:
        if self._join is None or self.is_rejected:
            raise ConnectionLostError("the connection was rejected")
        try:
            return await self._join(subprotocol)
        except (OSError, aiohttp.ClientError) as error:
            reason = str(error) or type(error).__name__
            raise ConnectionLostError(f"the relayed connection is lost: {reason}") from None

    async def reject(self, status: int = 503, reason: str = "The service does not take the connection.") -> None:
        """Reject the connection; the requester gets the status and the reason."""
        if self._socket is None and self._refuse is not None and not self.is_rejected:
            self.is_rejected = True
            await self._refuse(status, reason)

    async def send(self, message: str | bytes) -> None:
        """Send a message.

        Raises:
            ConnectionLostError: the connection is lost.
        """
        await self.accept()
        assert self._socket is not None
        try:
            if isinstance(message, str):
                await self._socket.send_str(message)
            else:
                await self._socket.send_bytes(message)
        except (ConnectionError, aiohttp.ClientError) as error:
            raise ConnectionLostError(f"the relayed connection is lost: {error}") from None

    async def receive(self) -> str | bytes | None:
        """The next message; None at the end; then `close_code` has the status."""
        await self.accept()
        assert self._socket is not None
        message = await self._socket.receive()
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            return message.data  # type: ignore[no-any-return]
        return None

    async def __aiter__(self) -> AsyncIterator[str | bytes]:
        while (message := await self.receive()) is not None:
            yield message

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection."""
        if self._socket is not None:
            await self._socket.close(code=code, message=reason.encode())

    async def leave(self, reason: str) -> None:
        """Close the connection with status 1001 because this end shuts down; waits only briefly for the other end."""
        with suppress(TimeoutError, OSError, aiohttp.ClientError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self.close(1001, reason)
