"""Writing to an outbox: one sync of the disk serves all waiting threads.

What it is: one stream of one process. A call returns when its record is on disk; calls that arrive while the disk syncs share the
next sync. What it is not: delivery (`drain`).

Invariants:
    I1. `append` returns only after the record is on disk; if it raises, the record is not read later, unless the error says that it may be.
    I2. Records are in the file in the order in which `append` accepted them: records of one thread in the order of its calls.
    I3. A failed write leaves nothing: the file is truncated to its valid records, and a new file is begun.
    I4. Every record for which `append` returned is in a file that the folder has, also if other processes remove files from it.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

from isthmus.client.outbox.folder import NEW_SUFFIX, Folder, Lock, Segment
from isthmus.client.outbox.frame import encode_note, encode_record
from isthmus.errors import OutcomeUnknownError, StoreError

__all__ = ["Journal"]

SEGMENT_BYTES = 64 << 20
_ATTEMPTS = 3
_log = logging.getLogger(__name__)


class _Call:
    """One call of `append`; its thread sleeps on the lock until its record is committed or it has to commit itself."""

    __slots__ = ("error", "is_done", "leads", "lock", "record")

    def __init__(self, record: bytes) -> None:
        self.record = record
        self.is_done = False
        self.leads = False
        self.error: Exception | None = None
        self.lock = threading.Lock()
        self.lock.acquire()


class Journal:
    """One stream of records. Its methods may be called from any thread.

    Args:
        folder: the outbox.
        check: called with the number of bytes before each write; raises if they must not be written.
        segment_bytes: a file of this size is not continued.
        sync: makes a file durable; replaced in tests.
    """

    def __init__(
        self,
        folder: Folder,
        check: Callable[[int], None] = lambda _: None,
        segment_bytes: int = SEGMENT_BYTES,
        sync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        self._folder = folder
        self._check = check
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._taking = threading.Lock()
        self._waiting: list[_Call] = []
        self._has_leader = False
        self._descriptor = -1
        self._is_closed = False
        self._number = 0  # of the file that was created last, or could not be created
        self.segment: Segment | None = None
        self.offset = 0
        self.records = 0
        self.syncs = 0
        self.stream, self._lock, self.before = self._begin()
        _JOURNALS.add(self)

    def _begin(self) -> tuple[str, Lock, list[str]]:
        self._pid = os.getpid()
        return self._folder.new_stream()

    def _after_fork(self) -> None:
        """A child shares neither the lock nor the file: its first record begins a stream of its own."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._number, self.segment, self.offset = -1, 0, None, 0
        self._taking, self._waiting, self._has_leader = threading.Lock(), [], False

    def append(self, payloads: Sequence[bytes]) -> None:
        """Commit messages, all or none.

        Raises:
            StoreError: the disk refused; nothing was stored.
            OutcomeUnknownError: the disk failed while it synced; the messages may be delivered or not.
        """
        call = _Call(encode_record(payloads, time.time_ns() // 1_000_000))
        self._take_part(call)
        if call.error is not None:
            raise call.error

    def _take_part(self, call: _Call) -> None:
        """Add a call to those of the next commit, and wait for that commit, or perform it."""
        try:
            with self._taking:
                self._waiting.append(call)
                call.leads = not self._has_leader
                self._has_leader = True
            if not call.leads:
                call.lock.acquire()
            if not call.is_done:
                self._lead(call)
        except BaseException:  # e.g. Ctrl-C: the others must not wait for this one
            with self._taking:
                is_waiting = call in self._waiting
                if is_waiting:
                    self._waiting.remove(call)
            if is_waiting and call.leads:
                self._hand_over()
            raise

    def _hand_over(self) -> None:
        """Let one of the waiting calls perform the next commit."""
        with self._taking:
            following = self._waiting[0] if self._waiting else None
            self._has_leader = following is not None
            if following is not None:
                following.leads = True
        if following is not None:
            following.lock.release()

    def _lead(self, own: _Call) -> None:
        """Commit all waiting calls, and let one of those that arrived meanwhile perform the next commit."""
        with self._taking:
            group, self._waiting = self._waiting, []
        error: Exception | None = OutcomeUnknownError(
            f"writing to the outbox {self._folder.path} was interrupted; send the messages again with the same MessageIds"
        )
        try:
            error = self._commit([call.record for call in group])
        finally:
            self._hand_over()
            for call in group:
                call.error, call.is_done = error, True
                if call is not own:
                    call.lock.release()

    def close(self) -> None:
        """End the stream; its records are delivered by the next process that opens the outbox."""
        if self._is_closed:
            return
        self._is_closed = True
        self._take_part(_Call(b""))  # after every call that did not see it closed
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self.segment is None and os.getpid() == self._pid:  # a forked child has no stream yet
            self._folder.forget_stream(self.stream)
        self._lock.release()

    # ---- one thread at a time

    def _commit(self, records: list[bytes]) -> Exception | None:
        try:
            if self._is_closed:
                raise StoreError("the outbox is closed; make a new sender")
            if os.getpid() != self._pid:
                self.stream, self._lock, self.before = self._begin()
            data = b"".join(records)
            self._check(len(data))
            for _ in range(_ATTEMPTS):
                self._keep_names()
                self._write(data)
                if os.fstat(self._descriptor).st_nlink:
                    break
            else:
                raise OutcomeUnknownError(
                    f"the files of the outbox {self._folder.path} are removed as soon as they are written: the messages of this "
                    "call may be delivered or not; send them again with the same MessageIds"
                )
            self.records += len(records)
        except (StoreError, OutcomeUnknownError) as error:
            return error
        except OSError as error:
            return StoreError(
                f"the outbox {self._folder.path} cannot be written: {error.strerror}; nothing was kept of this call; "
                "free the disk or name another folder"
            )
        return None

    def _keep_names(self) -> None:
        """Begin another stream if the lock or the file was removed (I4): without its lock, readers would regard this stream as ended."""
        is_there = self._descriptor < 0 or os.fstat(self._descriptor).st_nlink
        if is_there and self._lock.has_name:
            return
        _log.error("files of the outbox were removed while it is written: folder=%s", self._folder.path)
        if self._descriptor >= 0:
            self._close_segment()
        self._lock.release()
        self._number, self.segment, self.offset = 0, None, 0
        self.stream, self._lock, self.before = self._begin()

    def _write(self, data: bytes) -> None:
        if self._descriptor < 0 or self.offset >= self._segment_bytes:
            self._next_segment()
        start = self.offset
        try:
            written = 0
            view = memoryview(data)
            while written < len(data):
                written += os.pwrite(self._descriptor, view[written:], start + written)
        except BaseException:
            self._give_up_segment(start)
            raise
        try:
            self._sync(self._descriptor)
        except BaseException as error:
            # After a failed sync the content of the disk is unknown, and a second one may report success for lost pages.
            self._close_segment()
            if not isinstance(error, OSError):
                raise
            raise OutcomeUnknownError(
                f"the disk of the outbox {self._folder.path} failed while it synced ({error.strerror}): the messages of this "
                "call may be delivered or not; send them again with the same MessageIds"
            ) from error
        self.syncs += 1
        self.offset = start + len(data)

    def _next_segment(self) -> None:
        self._number += 1  # also after a failure: the drain may have the removed file open
        segment = self._folder.segment(self.stream, self._number)
        note = encode_note({"stream": self.stream, "after": self.before}, time.time_ns() // 1_000_000)
        # The file gets its name once its note is written: a reader of the stream must know the streams before it.
        fresh = segment.path.with_suffix(NEW_SUFFIX)
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if os.pwrite(descriptor, note, 0) < len(note):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._sync(descriptor)
            fresh.rename(segment.path)
            self._folder.sync()
        except BaseException:
            os.close(descriptor)
            fresh.unlink(missing_ok=True)
            segment.path.unlink(missing_ok=True)
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self.segment, self.offset = descriptor, segment, len(note)

    def _give_up_segment(self, start: int) -> None:
        """Truncate the rest of a failed write, and write no more to this file.

        The drain may have read valid records of a group that is incomplete. It would skip new records at the same offsets.
        """
        with suppress(OSError):
            os.ftruncate(self._descriptor, start)
        self._close_segment()

    def _close_segment(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1


_JOURNALS: weakref.WeakSet[Journal] = weakref.WeakSet()


def _begin_again_in_child() -> None:
    for journal in list(_JOURNALS):
        journal._after_fork()


os.register_at_fork(after_in_child=_begin_again_in_child)
