"""`FailoverReceiver` for asyncio: the same class with coroutines for methods; see `isthmus.client.failover_receiver`."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from isthmus.client import failover_receiver
from isthmus.client.endpoint import EndpointLike
from isthmus.client.failover_receiver import FailoverState, FailoverStatistics
from isthmus.client.receive.async_credential import for_threads
from isthmus.client.receive.async_face import AsyncTwoRegionReceiver

__all__ = ["FailoverReceiver"]


class FailoverReceiver(AsyncTwoRegionReceiver):
    """`isthmus.client.FailoverReceiver` for asyncio: the same arguments; a credential may be one of `azure.identity.aio`.

    `trigger`, `publishers` and `on_change` are plain functions; they are called in threads.

    Args:
        primary: see `isthmus.client.FailoverReceiver`.
        secondary: see there.
        entity: see there.
        subscription: see there.
        options: its further arguments.
    """

    _receiver: failover_receiver.FailoverReceiver

    def __init__(
        self,
        primary: EndpointLike,
        secondary: EndpointLike,
        entity: str,
        subscription: str | None = None,
        **options: Any,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._receiver = failover_receiver.FailoverReceiver(
            for_threads(primary, loop), for_threads(secondary, loop), entity, subscription, **options
        )

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    @property
    def state(self) -> FailoverState:
        """The current state."""
        return self._receiver.state

    async def fail_over(self) -> None:
        """As `isthmus.client.FailoverReceiver.fail_over`."""
        await asyncio.to_thread(self._receiver.fail_over)

    async def fail_back(self, *, at_once: bool = False) -> None:
        """As `isthmus.client.FailoverReceiver.fail_back`."""
        await asyncio.to_thread(self._receiver.fail_back, at_once=at_once)

    def statistics(self) -> FailoverStatistics:
        """Statistics since the receiver was opened."""
        return self._receiver.statistics()
