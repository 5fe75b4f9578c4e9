"""`RelayListener` for asyncio: a service that listens at two relays at once, or at one.

What it is: a channel for each relay, and their joint lifetime. What it is not: the protocol (`channel`).

Invariants:
    I1. A failure of one relay does not affect the listener at the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import aiohttp

from isthmus.client.endpoint import EndpointLike
from isthmus.client.relay.channel import Channel, ChannelState, Handlers
from isthmus.client.relay.message import RelayConnection, RelayRequest, RelayResponse
from isthmus.client.relay.requester import addresses
from isthmus.errors import InvalidArgumentError
from isthmus.transport.redirect import unredirected

__all__ = ["RelayListener"]


class RelayListener:
    """Listens at two relays, with one entity name or two.

    Args:
        primary: a relay; see `isthmus.client.endpoint` for the accepted forms.
        secondary: the other relay; None if there is none.
        entity: the hybrid connection; "" uses the `EntityPath` of the connection strings.
        secondary_entity: the name at the secondary, if it differs.
        on_request: answers HTTP requests.
        on_connect: owns a WebSocket until it returns; it may `accept` or `reject` it first.
        max_concurrent: requests and connections that are handled at one time, at both relays together.
        max_body_bytes: largest body of a request.
        heartbeat: seconds between two pings at a relay; if a relay does not answer, the listener reconnects.
        connect_timeout: seconds for opening a connection to a relay.
        options: `connection_verify` or `ssl_context`, for both; `token_seconds`, lifetime of a token that is made from a key.
    """

    def __init__(
        self,
        primary: EndpointLike,
        secondary: EndpointLike | None = None,
        entity: str = "",
        *,
        secondary_entity: str = "",
        on_request: Callable[[RelayRequest], Awaitable[RelayResponse]] | None = None,
        on_connect: Callable[[RelayConnection], Awaitable[None]] | None = None,
        max_concurrent: int = 100,
        max_body_bytes: int = 64 << 20,
        heartbeat: float = 20.0,
        connect_timeout: float = 5.0,
        **options: Any,
    ) -> None:
        if on_request is None and on_connect is None:
            raise InvalidArgumentError("pass on_request, on_connect, or both: a listener needs a handler")
        if max_concurrent < 1 or max_body_bytes < 1 or heartbeat <= 0 or connect_timeout <= 0:
            raise InvalidArgumentError(
                "max_concurrent and max_body_bytes must be 1 or more, heartbeat and connect_timeout above 0 seconds"
            )
        self._addresses = addresses(primary, secondary, entity, secondary_entity, options)
        for address in self._addresses.values():
            address.check()
        self._handlers = Handlers(on_request, on_connect)
        self._max_concurrent = max_concurrent
        self._max_body_bytes = max_body_bytes
        self._heartbeat = heartbeat
        self._connect_timeout = connect_timeout
        self._channels: dict[str, Channel] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._changed = asyncio.Condition()
        self._closed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout),
            trace_configs=[unredirected()],
        )
        slots = asyncio.Semaphore(self._max_concurrent)
        for side, address in self._addresses.items():
            self._channels[side] = Channel(
                side, address, self._handlers, self._session, slots, heartbeat=self._heartbeat,
                max_body_bytes=self._max_body_bytes, on_change=self._notify,
            )  # fmt: skip
        self._tasks = [asyncio.create_task(channel.run()) for channel in self._channels.values()]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _notify(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._notifying = asyncio.create_task(notify())

    async def wait_listening(self, count: int = 1, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the library's word
        """Wait until it listens at `count` relays.

        Raises:
            TimeoutError: it does not within `timeout` seconds; `statistics` has the reason.
        """
        async with asyncio.timeout(timeout), self._changed:
            await self._changed.wait_for(
                lambda: sum(channel.state.is_listening for channel in self._channels.values()) >= count
            )

    async def serve_forever(self) -> None:
        """Wait until the listener is closed."""
        await self._closed.wait()

    def statistics(self) -> Mapping[str, ChannelState]:
        """The state at each relay, by side."""
        return {side: replace(channel.state) for side, channel in self._channels.items()}

    async def close(self) -> None:
        """Stop listening; running handlers are cancelled."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        self._closed.set()
