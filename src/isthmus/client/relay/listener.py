"""`RelayListener` for asyncio: a service that listens at two relays at once, or at one.

What it is: a channel for each relay, and their life together. What it is not: the protocol (`channel`).

Invariants:
    I1. What becomes of one relay leaves the listener at the other alone.
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
    """Listens at two relays, under one name or under two.

    Args:
        primary: a relay; see `isthmus.client.endpoint` for its forms.
        secondary: the other one; None where there is none.
        entity: the hybrid connection; "" takes the `EntityPath` of the connection strings.
        secondary_entity: at the secondary, where it has another name there.
        on_request: answers HTTP requests.
        on_connect: has a WebSocket until it returns; it may `accept` or `reject` it first.
        max_concurrent: requests and connections that are handled at one time, at both relays together.
        max_body_bytes: of a request.
        heartbeat: seconds between two pings at a relay; one that does not answer is left and connected to again.
        connect_timeout: seconds that a connection to a relay may take.
        options: `connection_verify` or `ssl_context`, for both; `token_seconds`, how long a token made of a key is good.
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
            raise InvalidArgumentError(
                "pass on_request, on_connect, or both: a listener without a handler serves nobody"
            )
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
                max_body_bytes=self._max_body_bytes, on_change=self._tell,
            )  # fmt: skip
        self._tasks = [asyncio.create_task(channel.run()) for channel in self._channels.values()]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _tell(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._telling = asyncio.create_task(notify())

    async def wait_listening(self, count: int = 1, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the library's word
        """Until it listens at so many relays.

        Raises:
            TimeoutError: it does not within `timeout` seconds; `statistics` tells why.
        """
        async with asyncio.timeout(timeout), self._changed:
            await self._changed.wait_for(
                lambda: sum(channel.state.is_listening for channel in self._channels.values()) >= count
            )

    async def serve_forever(self) -> None:
        """Until the listener is closed."""
        await self._closed.wait()

    def statistics(self) -> Mapping[str, ChannelState]:
        """How it does at each relay, by side."""
        return {side: replace(channel.state) for side, channel in self._channels.items()}

    async def close(self) -> None:
        """Stop listening; what is being handled is given up."""
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
