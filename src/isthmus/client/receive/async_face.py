"""The methods of azure-servicebus's receiver for asyncio, over an engine of threads.

What it is: the common base of `isthmus.client.aio.ReplicatedReceiver` and `FailoverReceiver`. The event loop never waits for a namespace or
for the list of seen messages.

Invariants:
    I1. A cancelled call loses no message: messages are taken at once, when they are ready, and never while waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from isthmus.client.receive.engine import Engine
from isthmus.client.receive.face import PRIMARY

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

__all__ = ["AsyncTwoRegionReceiver"]


class AsyncTwoRegionReceiver:
    """The common base of the receivers for asyncio: they wait for an engine without blocking the event loop."""

    _receiver: Any

    @property
    def _engine(self) -> Engine:
        engine: Engine = self._receiver._engine
        return engine

    async def _enter(self) -> None:
        """Open the receiver; if that fails or is cancelled, close what was opened, since the caller cannot."""
        self._listen()
        try:
            await asyncio.to_thread(self._receiver.__enter__)
        except BaseException:
            # In a thread of its own: the loop may be ending, and its threads may be the ones that are opening.
            threading.Thread(target=self._receiver.close, name="isthmus-receiver-close").start()
            raise

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no call waits
                loop.call_soon_threadsafe(self._ready.set)

        self._engine.subscribe(notify)

    async def _receive(self, count: int, seconds: float | None) -> list[ServiceBusReceivedMessage]:
        limit = None if seconds is None else time.monotonic() + seconds
        while not self._engine.is_closed:
            self._ready.clear()
            self._engine.want(count)
            found = self._engine.take(count)
            if found:
                return found
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                return []
            self._engine.want(count)
            try:
                async with asyncio.timeout(left):
                    await self._ready.wait()
            except TimeoutError:
                return self._engine.take(count)
        return []

    async def receive_messages(
        self, max_message_count: int = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """As `ReplicatedReceiver.receive_messages`."""
        seconds = self._receiver._checked_wait(max_message_count, max_wait_time)
        return await self._receive(max_message_count, seconds)

    def __aiter__(self) -> AsyncIterator[ServiceBusReceivedMessage]:
        return self

    async def __anext__(self) -> ServiceBusReceivedMessage:
        found = await self._receive(1, self._receiver._max_wait_time)
        if not found:
            raise StopAsyncIteration
        return found[0]

    async def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """As `ReplicatedReceiver.complete_message`."""
        await asyncio.to_thread(self._engine.complete, message)

    async def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """As `ReplicatedReceiver.abandon_message`."""
        await asyncio.to_thread(self._engine.abandon, message)

    async def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """As `ReplicatedReceiver.dead_letter_message`."""
        await asyncio.to_thread(
            self._engine.settle, message, "dead_letter_message", reason=reason, error_description=error_description
        )

    async def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """As `ReplicatedReceiver.defer_message`."""
        await asyncio.to_thread(self._engine.settle, message, "defer_message")

    async def renew_message_lock(self, message: ServiceBusReceivedMessage) -> datetime:
        """As `ReplicatedReceiver.renew_message_lock`."""
        return await asyncio.to_thread(self._engine.renew, message)

    async def receive_deferred_messages(
        self, sequence_numbers: int | list[int], *, namespace: str = PRIMARY
    ) -> list[ServiceBusReceivedMessage]:
        """As `ReplicatedReceiver.receive_deferred_messages`."""
        return await asyncio.to_thread(self._engine.receive_deferred, namespace, sequence_numbers)

    def namespace_of(self, message: ServiceBusReceivedMessage) -> str:
        """As `ReplicatedReceiver.namespace_of`."""
        return self._engine.side_of(message)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As `ReplicatedReceiver.close`."""
        await asyncio.to_thread(self._receiver.close)
