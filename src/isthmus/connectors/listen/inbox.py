"""The spool of a listener: written by one thread, which syncs all messages that arrived meanwhile together.

What it is: the thread around `SpoolWriter`, and the account of the folder's size. What it is not: the reading (`outgoing`).

Invariants:
    I1. A message that was put is done only after the sync that covers it.
    I2. After a failed write the spool is opened again before more is written; the messages of that write are reported as failed.
    I3. Settled records do not count towards the folder's size: they are deleted as soon as a later segment is begun.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import pairwise

from isthmus.connectors.listen.option import ListenOptions
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder, SpoolInUseError
from isthmus.connectors.spool.writer import SpoolWriter

__all__ = ["Inbox"]

SEGMENT_BYTES = 16 << 20
# In a small folder, so that settled segments can be deleted.
_SEGMENTS = 4
# The messages of one sync at most.
_GROUP_BYTES = 16 << 20
# A killed process releases the lock at once.
_LOCK_SECONDS = 10.0
_STEP_SECONDS = 0.05
_MEASURE_SECONDS = 1.0


class Inbox:
    """Writes the spool.

    Args:
        options: of the source.
        on_news: called when more messages are on disk.
        settled: the number of the first record that is not settled.
    """

    def __init__(self, options: ListenOptions, on_news: Callable[[], None], settled: Callable[[], int]) -> None:
        self._options = options
        self._on_news = on_news
        self._settled = settled
        self._folder = SpoolFolder(options.spool)
        self._writer = SpoolWriter(options.spool, min(SEGMENT_BYTES, options.spool_bytes // _SEGMENTS))
        self._condition = threading.Condition()
        self._queue: deque[tuple[Sequence[bytes], Future[None]]] = deque()
        self._waiting_bytes = 0
        self._folder_bytes = 0
        self._measured_at = 0.0
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=f"inbox-{options.entity}", daemon=True)

    def open(self) -> int:
        """Opens the spool; returns the number of the next record.

        Raises:
            SpoolError: the spool cannot be written, or another process writes it.
        """
        limit = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                self._writer.open()
                break
            except SpoolInUseError:
                if time.monotonic() >= limit:
                    raise
                time.sleep(_STEP_SECONDS)
        number = self._writer.number
        self._thread.start()
        return number

    @property
    def is_full(self) -> bool:
        """Whether the folder has reached its size limit."""
        now = time.monotonic()
        if now >= self._measured_at + _MEASURE_SECONDS:
            self._measured_at = now
            size, settled = 0, self._settled()
            numbers = self._folder.numbers()
            for number, following in pairwise([*numbers, self._writer.number]):
                if following <= settled:
                    continue
                try:
                    size += self._folder.segment(number).stat().st_size
                except FileNotFoundError:
                    continue
            self._folder_bytes = size
        return self._folder_bytes + self._waiting_bytes >= self._options.spool_bytes

    def put(self, messages: Sequence[bytes]) -> Future[None]:
        """Writes messages; the future is done once they are on disk."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # the caller may cancel; the write is done nevertheless
        with self._condition:
            if self._is_stopped:
                done.set_exception(SpoolError("the listener ends"))
                return done
            self._queue.append((messages, done))
            self._waiting_bytes += sum(map(len, messages))
            self._condition.notify()
        return done

    def close(self) -> None:
        """Writes the remaining messages, and releases the spool."""
        with self._condition:
            self._is_stopped = True
            self._condition.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._writer.close()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queue or self._is_stopped)
                if not self._queue:
                    return
                group, size = [], 0
                while self._queue and size < _GROUP_BYTES:
                    group.append(self._queue.popleft())
                    size += sum(map(len, group[-1][0]))
            error = self._write([message for messages, _ in group for message in messages])
            with self._condition:
                self._waiting_bytes -= size
                self._folder_bytes += size
            for _, done in group:
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)
            if error is None:
                self._on_news()

    def _write(self, messages: Sequence[bytes]) -> SpoolError | None:
        now_ms = round(time.time() * 1000)
        try:
            if messages and self._writer.append([Record("", -1, now_ms, message) for message in messages]):
                self._writer.sync()
        except SpoolError as error:
            return self._open_again(error)
        except Exception as error:  # noqa: BLE001 - if the thread ended, no request would be answered
            self._writer.close()
            return self._open_again(SpoolError(f"{type(error).__name__}: {error}"))
        return None

    def _open_again(self, error: SpoolError) -> SpoolError:
        try:
            self._writer.open()
        except SpoolError as again:
            return again
        return error
