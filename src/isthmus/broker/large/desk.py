"""The shared resources of a namespace's large messages: threads, and the bytes that wait for the disk.

What it is: the threads that do the disk work of uploads and streams outside the loop. What it is not: either of them.

Invariants:
    I1. The loop never waits for a file: files are written, synced, read and removed in threads.
    I2. Syncs of messages and of bodies run in different threads: a commit waits for no body.
    I3. Work for which no thread can be started ends with an error, like any other: nothing waits for it for ever.
    I4. A body whose last user ends is removed by the loop, not where it ends: the garbage collector may end it inside a `submit`, which
        takes a lock that is not reentrant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from isthmus.entities import BlobFiles, Blobs
from isthmus.errors import ServerBusyError, StoreError

__all__ = ["LARGE_BYTES", "LargeDesk"]

_T = TypeVar("_T")
# A larger message is stored in a file of its own. It is the default limit of a message, and the most that a connection reads
# per iteration.
LARGE_BYTES = 1 << 20
_WRITERS = 2
_READERS = 2


class LargeDesk:
    """Must be created on the running loop that owns the engine.

    Args:
        blobs: the engine's; its `on_discard` and `schedule` are taken over.
        uploads_limit: how many messages may arrive at once; each has a file open.

    Attributes:
        blobs: likewise.
        uploads: messages that are arriving now.
        waiting_bytes: that wait for the disk, of all uploads together.
    """

    def __init__(self, blobs: Blobs, uploads_limit: int = 256) -> None:
        self.blobs = blobs
        self.uploads = 0
        self._uploads_limit = uploads_limit
        self.waiting_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="isthmus-large-write")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="isthmus-large-read")
        self._remover = ThreadPoolExecutor(1, thread_name_prefix="isthmus-large-remove")
        self._is_closed = False
        blobs.on_discard = self.remove
        blobs.schedule = self._schedule

    @property
    def files(self) -> BlobFiles | None:
        """The files of bodies; None where large messages are not accepted."""
        return self.blobs.files

    def check_room(self) -> None:
        """Refuses one more upload where there are too many.

        Raises:
            ServerBusyError: there are.
        """
        if self.uploads > self._uploads_limit:
            raise ServerBusyError(
                f"{self._uploads_limit} large messages are under way to the namespace; try again later."
            )

    def write(self, work: Callable[[], _T], done: Callable[[Future[_T]], None]) -> Future[_T]:
        """Runs work in a writing thread; `done` is called on the loop afterwards."""
        return self._do(self._writers, work, done)

    def read(self, work: Callable[[], _T], done: Callable[[Future[_T]], None]) -> Future[_T]:
        """Runs work in a reading thread; `done` is called on the loop afterwards."""
        return self._do(self._readers, work, done)

    def remove(self, number: int, after: Callable[[], None] = lambda: None) -> None:
        """Removes a body in a thread, after other work."""
        files = self.files

        def work() -> None:
            after()
            if files is not None:
                files.remove(number)

        if not self._is_closed:
            with suppress(RuntimeError):  # no thread can be started: it waits in the pool for the next one
                self._remover.submit(work)
        # Otherwise the next start removes it as an orphan.

    def call_later(self, seconds: float, run: Callable[[], None]) -> None:
        """Calls after a pause, in a later iteration of the loop."""
        self._loop.call_later(seconds, run)

    def _schedule(self, run: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: the next start removes bodies without a reference
            self._loop.call_soon_threadsafe(run)

    def _do(self, pool: ThreadPoolExecutor, work: Callable[[], _T], done: Callable[[Future[_T]], None]) -> Future[_T]:
        if self._is_closed:
            return Future()  # no one waits for it any more
        future: Future[_T] = Future()
        try:
            pool.submit(_run, future, work)
        except RuntimeError as error:  # no thread can be started; the pool keeps the work for the next one
            if future.cancel():
                future = Future()
                future.set_exception(StoreError(str(error)))
        future.add_done_callback(lambda each: self._call(done, each))
        return future

    def _call(self, done: Callable[[Future[_T]], None], future: Future[_T]) -> None:
        if not self._is_closed:
            self._loop.call_soon_threadsafe(done, future)

    def close(self) -> None:
        """Ends the threads; the next start removes unfinished bodies as orphans."""
        self._is_closed = True
        self._writers.shutdown()
        self._readers.shutdown()
        self._remover.shutdown(cancel_futures=True)


def _run(future: Future[_T], work: Callable[[], _T]) -> None:
    """In a thread."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the one that waits
        future.set_exception(error)
        del future, work  # the error's traceback refers to this frame: a cycle otherwise
