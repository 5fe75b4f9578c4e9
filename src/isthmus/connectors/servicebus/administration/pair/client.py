"""The administration clients of one member of a pair, and the threads that use them.

What it is: a client for each thread, opened at its first request, and several requests at a time. What it is not: the requests (`member`,
`count`, `step`, `marker`).

Invariants:
    I1. Each thread has its own client: a transport that adds rules serves one thread.
    I2. Concurrent reads do not wait for each other's work: they have a thread of their own.
    I3. A client whose key was refused is not used again: the key may have been replaced, and `isthmus pair run` runs for months.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from isthmus.connectors.servicebus.administration.client import OpenClient, open_administration_client
from isthmus.topology import NamespaceRef

__all__ = ["THREADS", "PairClients"]

THREADS = 6
_READ_TIMEOUT_SECONDS = 8.0
_RETRIES = 1

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class PairClients:
    """The clients of one namespace.

    Args:
        namespace: the namespace, with its connection.

    Attributes:
        alias: its name in the topology.
        endpoint: `host[:port]`, for errors.
    """

    def __init__(self, namespace: NamespaceRef) -> None:
        self.alias = namespace.alias
        self._namespace = namespace
        self._local = threading.local()
        self._opened: list[OpenClient] = []
        self._lock = threading.Lock()
        self.endpoint = self.open().endpoint
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix=f"pair-{namespace.alias}")
        # A read waits for work of the pool: in the pool itself, concurrent reads would leave no thread for that work.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix=f"pair-{namespace.alias}-read")

    def close(self) -> None:
        """Close all connections."""
        self._reader.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            opened, self._opened = self._opened, []
        for each in opened:
            each.client.close()

    def open(self) -> OpenClient:
        """This thread's client (I1)."""
        found: OpenClient | None = getattr(self._local, "opened", None)
        if found is not None and found.transport.is_refused:
            with self._lock:
                if found in self._opened:
                    self._opened.remove(found)
            found.client.close()
            found = None
        if found is None:
            found = open_administration_client(
                self._namespace, read_timeout_seconds=_READ_TIMEOUT_SECONDS, retries=_RETRIES
            )
            self._local.opened = found
            with self._lock:
                self._opened.append(found)
        return found

    def map(self, work: Callable[[_Asked], _Answer], asked: Iterable[_Asked]) -> list[_Answer]:
        """Answers in the order of the arguments, several requests at a time."""
        return list(self._pool.map(work, asked))

    def submit(self, work: Callable[[], _Answer]) -> Future[_Answer]:
        """Starts one request."""
        return self._pool.submit(work)

    def read(self, work: Callable[[], _Answer]) -> Future[_Answer]:
        """Starts a read of many requests, after those that were started before (I2)."""
        return self._reader.submit(work)
