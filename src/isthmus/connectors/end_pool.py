"""Pools of ends with a thread each, and the descriptor by which the threads wake the process's loop.

What it is: the pool of sources or targets of a system that cannot be polled: librdkafka has sockets and threads of its own and exposes
none of them, and a disk has no descriptor that reports a sync. What it is not: an end.

Invariants:
    I1. An end whose thread has results is returned by the next `service`.
    I2. Only `close` blocks, for at most `CLOSE_SECONDS`.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

__all__ = ["EndPool"]

CLOSE_SECONDS = 5.0


class Leaving(Protocol):
    """A thread that ends without further calls."""

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


class EndPool:
    """The common part of `SourcePool` and `TargetPool`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._marked: dict[int, None] = {}
        self._leaving: list[Leaving] = []
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        self._is_closed = False

    # ---- for ends; any thread may call `mark`

    def mark(self, key: int) -> None:
        """An end has results."""
        with self._lock:
            if self._is_closed or key in self._marked:
                return
            self._marked[key] = None
            if len(self._marked) == 1:
                with contextlib.suppress(BlockingIOError):
                    self._writing.send(b"\0")

    def unmark(self, key: int) -> None:
        """An end is closed."""
        with self._lock:
            self._marked.pop(key, None)

    def add_leaving(self, thread: Leaving) -> None:
        """Adds the thread of a closed end; `close` waits for it."""
        self._leaving = [each for each in self._leaving if each.is_alive()] + [thread]

    # ---- the port

    def descriptors(self) -> Sequence[tuple[int, int]]:
        """The descriptors to poll."""
        return [] if self._is_closed else [(self._reading.fileno(), select.POLLIN)]

    def deadline(self, now: float) -> float:
        """When `service` has work even if no descriptor is ready."""
        return now if self._marked else math.inf

    def service(self, ready: Mapping[int, int], now: float) -> Sequence[int]:
        """The keys of the ends that have results."""
        if self._is_closed:
            return ()
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                while len(self._reading.recv(4096)) == 4096:
                    pass
            marked = list(self._marked)
            self._marked.clear()
        return marked

    def flush(self) -> None:
        """Does nothing: requests to an end are passed to its thread at once."""

    def close(self) -> None:
        """Waits for the threads of ends that were closed, so that settled messages are committed."""
        limit = time.monotonic() + CLOSE_SECONDS
        for thread in self._leaving:
            if thread.is_alive():  # it may never have been started
                thread.join(max(0.0, limit - time.monotonic()))
        with self._lock:
            self._is_closed = True
            self._marked.clear()
        self._reading.close()
        self._writing.close()
