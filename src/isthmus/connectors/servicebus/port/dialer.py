"""Connects without blocking the loop.

What it is: short-lived threads that resolve the reference to a connection string, connect, and open; the loop takes
their results, and is woken by a socket. What it is not: an owner of connections; a client is used by its thread until it is a result,
and by the loop alone from then on.

Invariants:
    I1. At most `THREADS` connections with one key are made at a time; the others wait in their order.
    I2. After `close` no client is left open.
    I3. A remote side that does not answer delays no connection to another one.
    I4. A request whose owner no longer waits is not dialed: otherwise all requests made during an outage would be dialed after it.
    I5. A request for which no thread can be started has an error as its result, and later requests are dialed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

from isthmus.errors import ConnectionLostError, IsthmusError

__all__ = ["OPEN_SECONDS", "THREADS", "Dialed", "Dialer"]

THREADS = 4
OPEN_SECONDS = 10.0


class _Client(Protocol):
    def abandon(self) -> None: ...


T = TypeVar("T")
C = TypeVar("C", bound=_Client)


class Dialed(NamedTuple, Generic[T, C]):
    """The result for `owner`: an open client, or why there is none."""

    owner: T
    client: C | None
    error: IsthmusError | None


class _Asked(NamedTuple, Generic[T, C]):
    """A requested connection."""

    owner: T
    dial: Callable[[], C]
    is_wanted: Callable[[], bool]


class Dialer(Generic[T, C]):
    """The threads of one pool."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, deque[_Asked[T, C]]] = {}  # by key for which threads are running
        self._results: deque[Dialed[T, C]] = deque()
        self._running: dict[Hashable, int] = {}
        self._closed = False
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)

    def fileno(self) -> int:
        """Readable when there are results."""
        return self._wake_read.fileno()

    def dial(
        self,
        owner: T,
        dial: Callable[[], C],
        connection_key: Hashable = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Has `dial` called in a thread.

        Args:
            owner: the owner of the result.
            dial: makes the connection.
            connection_key: the key of the connection.
            is_wanted: whether the owner still waits; called in the thread.
        """
        asked = _Asked(owner, dial, is_wanted)
        with self._lock:
            running = self._running.get(connection_key, 0)
            if running >= THREADS:
                self._waiting.setdefault(connection_key, deque()).append(asked)
                return
            self._running[connection_key] = running + 1
        try:
            threading.Thread(
                target=self._run, args=(asked, connection_key), name=f"dial-{os.getpid()}", daemon=True
            ).start()
        except RuntimeError as error:  # the limit of threads is reached
            with self._lock:
                self._ended(connection_key)
                self._report(Dialed(owner, None, ConnectionLostError(f"no connection: {error}")))

    def take(self) -> list[Dialed[T, C]]:
        """The results since the last call."""
        with contextlib.suppress(BlockingIOError):
            self._wake_read.recv(4096)
        with self._lock:
            results = list(self._results)
            self._results.clear()
        return results

    def close(self) -> None:
        """Accepts no more results."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            results = list(self._results)
            self._results.clear()
            self._wake_read.close()
            self._wake_write.close()
        for result in results:
            if result.client is not None:
                result.client.abandon()

    def _run(self, asked: _Asked[T, C] | None, connection_key: Hashable) -> None:
        while asked is not None:
            result = _result(asked.owner, asked.dial) if asked.is_wanted() else None
            with self._lock:
                is_late = self._closed
                if result is not None and not is_late:
                    self._report(result)
                asked = self._next(connection_key)
            if is_late and result is not None and result.client is not None:
                result.client.abandon()

    def _next(self, connection_key: Hashable) -> _Asked[T, C] | None:
        """The next request of a thread, under the lock; None: the thread ends."""
        waiting = self._waiting.get(connection_key)
        if waiting:
            return waiting.popleft()
        self._waiting.pop(connection_key, None)
        self._ended(connection_key)
        return None

    def _ended(self, connection_key: Hashable) -> None:
        """A thread of a key has ended, or could not be started; under the lock."""
        self._running[connection_key] -= 1
        if not self._running[connection_key]:
            del self._running[connection_key]

    def _report(self, result: Dialed[T, C]) -> None:
        """Adds a result, under the lock."""
        self._results.append(result)
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")


def _result(owner: T, dial: Callable[[], C]) -> Dialed[T, C]:
    try:
        return Dialed(owner, dial(), None)
    except IsthmusError as error:
        return Dialed(owner, None, error)
    except Exception as error:  # noqa: BLE001 - the owner must be notified of any error
        return Dialed(owner, None, ConnectionLostError(f"no connection: {type(error).__name__}: {error}"))
