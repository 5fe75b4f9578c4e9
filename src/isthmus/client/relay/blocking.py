"""`RelayListener` and `RelayRequester` for threads.

What it is: the classes for asyncio, run in an event loop on a separate thread. Handlers of a listener run in a pool of threads.
What it is not: any protocol.

Invariants:
    I1. Closing either object ends its threads, and the waits of other threads for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from isthmus.client.endpoint import EndpointLike
from isthmus.client.relay import listener, message, requester
from isthmus.client.relay.channel import ChannelState
from isthmus.client.relay.message import RelayRequest, RelayResponse
from isthmus.errors import ConnectionLostError

__all__ = ["BlockingRelayConnection", "RelayListener", "RelayRequester"]

_T = TypeVar("_T")


class _Loop:
    """An event loop on a thread; its methods may be called from any other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._is_closed = False

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of a coroutine; blocks until it is done.

        Raises:
            ConnectionLostError: the loop is closed, or was closed while the coroutine ran.
        """
        with self._lock:
            if self._is_closed:
                work.close()
                raise ConnectionLostError(f"the {self._name} was closed; make a new one")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ConnectionLostError(f"the {self._name} was closed meanwhile") from None

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run the last coroutine, cancel the others, and end the thread."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        try:
            asyncio.run_coroutine_threadsafe(self._end(last), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        try:
            if last is not None:
                await last()
        finally:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._loop.shutdown_asyncgens()


class BlockingRelayConnection:
    """`isthmus.client.relay.message.RelayConnection` for threads; the same methods, which block."""

    def __init__(self, connection: message.RelayConnection, loop: _Loop) -> None:
        self._connection = connection
        self._loop = loop

    @property
    def target(self) -> str:
        """Path and query that the requester asked for."""
        return self._connection.target

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the requester's handshake."""
        return self._connection.headers

    @property
    def side(self) -> str:
        """The relay by which the connection came."""
        return self._connection.side

    @property
    def offered(self) -> tuple[str, ...]:
        """Subprotocols that the requester offers."""
        return self._connection.offered

    @property
    def subprotocol(self) -> str:
        """The subprotocol that both ends agreed on."""
        return self._connection.subprotocol

    @property
    def close_code(self) -> int | None:
        """The status with which the other end closed."""
        return self._connection.close_code

    def accept(self, subprotocol: str = "") -> None:
        """As `RelayConnection.accept`."""
        self._loop.run(self._connection.accept(subprotocol))

    def reject(self, status: int = 503, reason: str = "The service does not take the connection.") -> None:
        """As `RelayConnection.reject`."""
        self._loop.run(self._connection.reject(status, reason))

    def send(self, sent: str | bytes) -> None:
        """As `RelayConnection.send`."""
        self._loop.run(self._connection.send(sent))

    def receive(self) -> str | bytes | None:
        """As `RelayConnection.receive`."""
        return self._loop.run(self._connection.receive())

    def __iter__(self) -> Iterator[str | bytes]:
        while (received := self.receive()) is not None:
            yield received

    def close(self, code: int = 1000, reason: str = "") -> None:
        """As `RelayConnection.close`."""
        self._loop.run(self._connection.close(code, reason))


class RelayRequester:
    """`isthmus.client.aio.RelayRequester` for threads, which may share one; arguments as there."""

    def __init__(
        self, primary: EndpointLike, secondary: EndpointLike | None = None, entity: str = "", **options: Any
    ) -> None:
        self._inner = requester.RelayRequester(primary, secondary, entity, **options)
        self._loop = _Loop("relay-requester")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def active(self) -> str:
        """The side that is tried first."""
        return self._inner.active

    def statistics(self) -> requester.RequesterStatistics:
        """Counts since the requester was created."""
        return self._inner.statistics()

    def request(
        self, method: str, target: str = "", *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> RelayResponse:
        """As `isthmus.client.aio.RelayRequester.request`."""
        return self._loop.run(self._inner.request(method, target, headers=headers, body=body))

    def connect(
        self, target: str = "", *, subprotocols: tuple[str, ...] = (), headers: Mapping[str, str] | None = None
    ) -> BlockingRelayConnection:
        """As `isthmus.client.aio.RelayRequester.connect`."""
        connection = self._loop.run(self._inner.connect(target, subprotocols=subprotocols, headers=headers))
        return BlockingRelayConnection(connection, self._loop)

    def close(self) -> None:
        """Close all connections, and end the thread; another thread that waits for an answer gets a `ConnectionLostError`."""
        self._loop.close(self._inner.close)


class RelayListener:
    """`isthmus.client.aio.RelayListener` for threads; arguments as there, with handlers that are plain functions."""

    def __init__(
        self,
        primary: EndpointLike,
        secondary: EndpointLike | None = None,
        entity: str = "",
        *,
        on_request: Callable[[RelayRequest], RelayResponse] | None = None,
        on_connect: Callable[[BlockingRelayConnection], None] | None = None,
        max_concurrent: int = 32,
        **options: Any,
    ) -> None:
        self._pool = ThreadPoolExecutor(max_concurrent, "relay-listener")
        self._on_request = on_request
        self._on_connect = on_connect
        self._inner = listener.RelayListener(
            primary, secondary, entity,
            on_request=self._request if on_request is not None else None,
            on_connect=self._connect if on_connect is not None else None,
            max_concurrent=max_concurrent, **options,
        )  # fmt: skip
        self._loop: _Loop | None = None

    async def _request(self, request: RelayRequest) -> RelayResponse:
        assert self._on_request is not None
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._on_request, request)

    async def _connect(self, connection: message.RelayConnection) -> None:
        assert self._on_connect is not None
        assert self._loop is not None
        blocking = BlockingRelayConnection(connection, self._loop)
        await asyncio.get_running_loop().run_in_executor(self._pool, self._on_connect, blocking)

    def __enter__(self) -> Self:
        self._loop = _Loop("relay-listener")
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _started(self) -> _Loop:
        if self._loop is None:
            raise RuntimeError("the listener is used outside its with block")
        return self._loop

    def wait_listening(self, count: int = 1, timeout: float | None = None) -> None:
        """As `isthmus.client.aio.RelayListener.wait_listening`."""
        self._started().run(self._inner.wait_listening(count, timeout))

    def serve_forever(self) -> None:
        """Block until another thread closes the listener."""
        self._started().run(self._inner.serve_forever())

    def statistics(self) -> Mapping[str, ChannelState]:
        """The state at each relay, by side."""
        return self._inner.statistics()

    def close(self) -> None:
        """Stop listening, wait for the running handlers, and end the threads."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run(self._inner.close())
            self._pool.shutdown(cancel_futures=True)  # their connections are closed: handlers that wait for one end
            loop.close()
