"""One large incoming message: from frames to a file.

What it is: the pieces that a connection reads, checked and handed to a thread that writes and syncs them; in the end the
payload that an entity takes. What it is not: flow control, which the connection does with the reported byte counts.

Invariants:
    I1. A payload is handed over only when its body is durable.
    I2. An upload that is not handed over leaves no file behind.
    I3. Received bytes count towards the entity's quota until the message is taken or aborted; a message that does not fit is
        removed at once.
    I4. Few bytes wait to be written at any time: the owner is notified of every byte that begins or ceases to wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from isthmus.broker.large.body import BodyScan, front_end
from isthmus.broker.large.desk import LargeDesk
from isthmus.entities import BlobWriter, Large
from isthmus.errors import IsthmusError, StoreError

__all__ = ["Upload"]

# The bytes written at once while the message still arrives: a sync of other messages waits for no more than these.
_SLICE_BYTES = 512 << 10
# After each slice the disk is free for others for so long.
_REST_SECONDS = 0.001


class Room(Protocol):
    """An entity with a quota."""

    def reserve_room(self, size_bytes: int, /) -> None:
        """Counts bytes of a message that is still arriving, or raises IsthmusError."""
        ...

    def release_room(self, size_bytes: int, /) -> None:
        """Subtracts them again."""
        ...


class Upload:
    """An incoming message.

    Args:
        desk: of the namespace.
        account: called with bytes that wait for the disk: positive when they arrive, negative when they are written.
        room: the entity to whose quota the bytes count while they arrive.

    Attributes:
        is_over: whether the message is complete, or has failed.
        error: why it has failed.
    """

    def __init__(self, desk: LargeDesk, account: Callable[[int], None], room: Room) -> None:
        assert desk.files is not None
        self.is_over = False
        self.error: IsthmusError | None = None
        self._desk = desk
        self._files = desk.files
        self._account = account
        self._room = room
        self._room_bytes = 0
        self._number = desk.blobs.reserve()
        desk.uploads += 1
        self._is_counted = True
        self._front: bytes | None = None
        self._scan = BodyScan()
        self._size_bytes = 0
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._job: Future[None] | None = None
        self._is_whole = self._is_aborted = self._is_synced = self._is_discarded = False
        self._on_over: Callable[[], None] = lambda: None
        self._payload: Large | None = None
        # Used by the thread:
        self._writer: BlobWriter | None = None
        self._unsettled_bytes = 0

    def add(self, parts: list[bytes]) -> None:
        """Takes the next pieces of the encoded message."""
        if self.error is not None:
            return
        try:
            if self._front is None:
                self._desk.check_room()
            self._hold_room(sum(map(len, parts)))
            if self._front is None:
                start = b"".join(parts)
                at = front_end(start)
                self._front = start[:at]
                parts = [start[at:]]
            for part in parts:
                self._scan.feed(part)
        except IsthmusError as error:
            self.error = error
            self._work()
            return
        size = sum(map(len, parts))
        self._size_bytes += size
        self._queue += parts
        self._queued_bytes += size
        self._count(size)
        self._work()

    def finish(self, on_over: Callable[[], None]) -> None:
        """The message is whole; `on_over` is called when `is_over` holds, perhaps at once."""
        self._is_whole = True
        self._on_over = on_over
        if self.error is None:
            try:
                self._scan.end()
            except IsthmusError as error:
                self.error = error
        self._work()

    def finish_now(self) -> None:
        """As `finish` without a callback; blocks until the remaining bytes have been written."""
        self._is_whole = True
        while not self.is_over:
            job, self._job = self._job, None
            if job is None:
                self.finish(lambda: None)
            else:
                job.exception()
                self._end_job(job)

    def abort(self) -> None:
        """Aborts the message: its end will not arrive."""
        if not self.is_over:
            self._is_aborted = True
            self._on_over = lambda: None
            self._work()

    def _hold_room(self, size_bytes: int) -> None:
        self._room.reserve_room(size_bytes)
        self._room_bytes += size_bytes

    def release_room(self) -> None:
        """From now on the entity counts the message, or nothing does."""
        size_bytes, self._room_bytes = self._room_bytes, 0
        if size_bytes:
            self._room.release_room(size_bytes)

    def payload(self) -> Large:
        """The message.

        Raises:
            IsthmusError: it has failed.
        """
        if self.error is not None:
            raise self.error
        assert self._payload is not None
        return self._payload

    # ---- the steps

    def _count(self, size: int) -> None:
        self._desk.waiting_bytes += size
        self._account(size)

    def _work(self) -> None:
        if self._job is not None or self.is_over:
            return
        if self._is_aborted or self.error is not None:
            self._discard()
            if self._is_aborted or self._is_whole:
                self._over()
        elif self._queue or (self._is_whole and not self._is_synced):
            parts, self._queue = self._queue, []
            size, self._queued_bytes = self._queued_bytes, 0
            is_last = self._is_whole
            self._is_synced = is_last
            job = self._desk.write(lambda: self._write(parts, is_last), self._written)
            self._job = job
            self._job_bytes = size
        elif self._is_whole:
            assert self._front is not None
            self._payload = Large(self._front, self._desk.blobs.whole(self._number, self._size_bytes))
            self._over()

    _job_bytes = 0

    def _written(self, job: Future[None]) -> None:
        if job is self._job:  # otherwise `finish_now` has done it
            self._job = None
            self._end_job(job)

    def _end_job(self, job: Future[None]) -> None:
        size, self._job_bytes = self._job_bytes, 0
        error = job.exception()
        if error is not None and self.error is None:
            self.error = error if isinstance(error, IsthmusError) else StoreError(type(error).__name__)
        if size:
            self._count(-size)
        self._work()

    def _discard(self) -> None:
        """Removes the file, although the client may still send the rest."""
        if self._is_discarded:
            return
        self._is_discarded = True
        self.release_room()
        self._count_out()
        if self._queued_bytes:
            size, self._queued_bytes = self._queued_bytes, 0
            self._queue = []
            self._count(-size)
        self._desk.remove(self._number, self._close)

    def _over(self) -> None:
        self.is_over = True
        self._count_out()
        on_over, self._on_over = self._on_over, lambda: None
        on_over()

    def _count_out(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._desk.uploads -= 1

    # ---- in a thread, one call at a time

    def _write(self, parts: list[bytes], is_last: bool) -> None:
        writer = self._writer
        if writer is None:
            writer = self._writer = self._files.create(self._number)
        due: list[bytes] = []
        for part in parts:
            due.append(part)
            self._unsettled_bytes += len(part)
            if self._unsettled_bytes >= _SLICE_BYTES:
                writer.write(due)
                writer.settle()
                if not is_last:  # the loop may be waiting: see `finish_now`
                    time.sleep(_REST_SECONDS)
                due, self._unsettled_bytes = [], 0
        if due:
            writer.write(due)
        if is_last:
            writer.sync()
            writer.close()
            self._writer = None

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
