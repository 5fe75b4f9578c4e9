"""Connects without holding up the loop.

What it is: short-lived threads that resolve the reference to a connection string, connect, and open; their results are taken by
the loop, which a socket wakes. What it is not: an owner of connections; a client is touched by its thread until it is a result,
and by the loop alone from then on.

Invariants:
    I1. At most `THREADS` connections are made at a time; the others wait in their order.
    I2. After `close` no client is left open.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
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


class Dialer(Generic[T, C]):
    """The threads of one pool."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[T, Callable[[], C]]] = deque()
        self._results: deque[Dialed[T, C]] = deque()
        self._running = 0
        self._closed = False
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)

    def fileno(self) -> int:
        """Readable when there are results."""
        return self._wake_read.fileno()

    def dial(self, owner: T, dial: Callable[[], C]) -> None:
        """Has `dial` called in a thread."""
        with self._lock:
            if self._running >= THREADS:
                self._waiting.append((owner, dial))
                return
            self._running += 1
        self._start(owner, dial)

    def take(self) -> list[Dialed[T, C]]:
        """The results since the last call."""
        with contextlib.suppress(BlockingIOError):
            self._wake_read.recv(4096)
        with self._lock:
            results = list(self._results)
            self._results.clear()
        return results

    def close(self) -> None:
        """Takes no more results."""
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

    def _start(self, owner: T, dial: Callable[[], C]) -> None:
        threading.Thread(target=self._run, args=(owner, dial), name=f"dial-{os.getpid()}", daemon=True).start()

    def _run(self, owner: T, dial: Callable[[], C]) -> None:
        while True:
            result = _result(owner, dial)
            with self._lock:
                self._running -= 1
                unwanted = self._closed
                if not unwanted:
                    self._results.append(result)
                    with contextlib.suppress(OSError):
                        self._wake_write.send(b"x")
                if unwanted or not self._waiting:
                    break
                owner, dial = self._waiting.popleft()
                self._running += 1
        if unwanted and result.client is not None:
            result.client.abandon()


def _result(owner: T, dial: Callable[[], C]) -> Dialed[T, C]:
    try:
        return Dialed(owner, dial(), None)
    except IsthmusError as error:
        return Dialed(owner, None, error)
    except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits has to be told
        return Dialed(owner, None, ConnectionLostError(f"no connection: {type(error).__name__}: {error}"))
