"""`ReplicatedReceiver` for asyncio.

What it is: the same class with coroutines for methods, over the same threads for the connections; the event loop never waits for a
namespace or for the list of seen messages. What it is not: the asyncio classes of azure-servicebus; a message that is handed over is of the
same type as theirs. See `isthmus.client.replicated_receiver`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

from isthmus.client import replicated_receiver
from isthmus.client.endpoint import EndpointLike
from isthmus.client.receive.async_credential import for_threads
from isthmus.client.receive.async_face import AsyncTwoRegionReceiver
from isthmus.client.receive.face import ReceiverStatistics
from isthmus.client.replicated_receiver import ReplicatedSession

__all__ = ["AsyncReplicatedSession", "ReplicatedReceiver"]


class AsyncReplicatedSession:
    """The session of a `ReplicatedReceiver`; see `isthmus.client.replicated_receiver.ReplicatedSession`."""

    def __init__(self, session: ReplicatedSession) -> None:
        self._session = session
        self.session_id = session.session_id

    async def get_state(self) -> bytes | None:
        """The session's state.

        Raises:
            ConnectionError: no namespace answers.
        """
        return await asyncio.to_thread(self._session.get_state)

    async def set_state(self, state: str | bytes | bytearray | None) -> None:
        """Sets the session's state at every namespace that is connected.

        Raises:
            ConnectionError: it was set at no namespace.
        """
        await asyncio.to_thread(self._session.set_state, state)


class ReplicatedReceiver(AsyncTwoRegionReceiver):
    """`isthmus.client.ReplicatedReceiver` for asyncio: the same arguments; a credential may be one of `azure.identity.aio`.

        async with ReplicatedReceiver(primary, secondary, "orders", seen="/var/lib/shop/seen.db") as receiver:
            async for message in receiver:
                await handle(message)
                await receiver.complete_message(message)

    Args:
        primary: see `isthmus.client.ReplicatedReceiver`.
        secondary: see there.
        entity: see there.
        subscription: see there.
        options: its further arguments.
    """

    _receiver: replicated_receiver.ReplicatedReceiver

    def __init__(
        self,
        primary: EndpointLike,
        secondary: EndpointLike,
        entity: str,
        subscription: str | None = None,
        **options: Any,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._receiver = replicated_receiver.ReplicatedReceiver(
            for_threads(primary, loop), for_threads(secondary, loop), entity, subscription, **options
        )

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    @property
    def session(self) -> AsyncReplicatedSession | None:
        """The session that is read; None for an entity without sessions."""
        session = self._receiver.session
        return None if session is None else AsyncReplicatedSession(session)

    def statistics(self) -> ReceiverStatistics:
        """Statistics since the receiver was opened."""
        return self._receiver.statistics()
