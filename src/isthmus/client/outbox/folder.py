"""The folder of an outbox: its files, and the order in which they are read.

What it is: names, locks and the order of streams. What it is not: records (`frame`).

    drain.lock                 locked by the process that delivers
    folder.lock                locked briefly by the process that opens a stream
    STREAM.lock                locked by the process that writes the stream, as long as it lives
    STREAM-NUMBER.log          records; the next number follows when a file is full
    STREAM-NUMBER.new          a file that is being made
    STREAM-NUMBER.done         how far they have been delivered
    refused.log                messages that the namespace refused permanently, with the reason
    quarantine/                damaged bytes, as they were found

A stream is the sequence of records that one `DurableSender` of one process writes. Its name begins with its opening time.

Invariants:
    I1. A stream that was opened after another one ended follows it: its first record names the streams that had ended
        and were not delivered, and these are delivered first. Concurrent streams have no order among them.
    I2. A stream has ended when its lock can be taken: its process has closed it or is dead.
    I3. Only the current user can read the files.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import StoreError
from isthmus.whole_file import sync_folder

__all__ = ["NEW_SUFFIX", "Folder", "Lock", "Segment"]

NEW_SUFFIX = ".new"
"""The suffix of a file of records that is being created."""

_DIGITS = 8


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One file of records.

    Attributes:
        stream: the stream that it belongs to.
        number: its position in the stream, from 1.
        path: the file.
    """

    stream: str
    number: int
    path: Path

    @property
    def done_path(self) -> Path:
        """The file that records how far this file has been delivered."""
        return self.path.with_suffix(".done")


class Lock:
    """A lock on a file, owned by this process until it is released or the process ends; a forked child does not own it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        _LOCKS.add(self)

    @classmethod
    def take(cls, path: Path, *, wait: bool = False) -> Lock | None:
        """Take the lock; None if another has it and `wait` is not set.

        Raises:
            StoreError: the file cannot be created, or its file system has no locks.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"the outbox cannot be locked, {path}: {error.strerror}; free or repair the disk"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"the outbox cannot be locked, {path}: {error.strerror}; use a local disk") from error
        return cls(path, descriptor)

    @property
    def has_name(self) -> bool:
        """Whether other processes can see the lock: its file may have been removed."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return False

    def release(self) -> None:
        """Release the lock; no error if it is released already."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_LOCKS):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)


class Folder:
    """The folder of one outbox.

    Args:
        path: created if it is missing.

    Raises:
        StoreError: the folder cannot be created or used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.path / "quarantine").mkdir(mode=0o700, exist_ok=True)
            sync_folder(self.path.parent)  # the folder's own name
        except OSError as error:
            raise StoreError(
                f"the outbox {self.path} cannot be made: {error.strerror}; name a folder that can"
            ) from error

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Locks `folder.lock` while a stream is opened, so that all processes agree on the existing streams."""
        lock = Lock.take(self.path / "folder.lock", wait=True)
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def new_stream(self) -> tuple[str, Lock, list[str]]:
        """A new stream: its name, its lock, and the streams that precede it (I1)."""
        with self.changing():
            before = [stream for stream in self.streams() if self.has_ended(stream)]
            stream = f"{time.time_ns():020d}-{os.getpid()}-{os.urandom(3).hex()}"
            lock = Lock.take(self.path / f"{stream}.lock")
            assert lock is not None, "no other process knows this name"
            return stream, lock, before

    def has_ended(self, stream: str) -> bool:
        """Whether no process writes the stream any more (I2)."""
        return _is_free(self.path / f"{stream}.lock")

    def is_draining(self) -> bool:
        """Whether a process delivers."""
        return not _is_free(self.path / "drain.lock")

    def sweep(self) -> None:
        """Remove the locks of streams that ended before they had a record."""
        with self.changing():
            streams = set(self.streams())
            for path in self.path.glob("*.lock"):
                if (
                    path.name not in ("drain.lock", "folder.lock")
                    and path.stem not in streams
                    and self.has_ended(path.stem)
                ):
                    path.unlink(missing_ok=True)
            for path in self.path.glob(f"*{NEW_SUFFIX}"):
                if self.has_ended(path.stem.rpartition("-")[0]):
                    path.unlink(missing_ok=True)
            for path in self.path.glob("*.done"):
                if not path.with_suffix(".log").exists():
                    path.unlink(missing_ok=True)

    def streams(self) -> list[str]:
        """The streams that have files, in the order in which they were opened."""
        return sorted({segment.stream for segment in self.segments()})

    def segments(self) -> list[Segment]:
        """All files of records, in order."""
        found = []
        for path in self.path.glob("*.log"):
            stream, _, number = path.stem.rpartition("-")
            if stream and number.isdigit():
                found.append(Segment(stream, int(number), path))
        return sorted(found)

    def segment(self, stream: str, number: int) -> Segment:
        """A file of records, which may not be there yet."""
        return Segment(stream, number, self.path / f"{stream}-{number:0{_DIGITS}d}.log")

    @property
    def refused_path(self) -> Path:
        """The file with messages that the namespace refused permanently."""
        return self.path / "refused.log"

    @property
    def quarantine_path(self) -> Path:
        """The folder with damaged bytes."""
        return self.path / "quarantine"

    def forget(self, segment: Segment) -> None:
        """Remove a file that has been delivered."""
        segment.path.unlink(missing_ok=True)
        segment.done_path.unlink(missing_ok=True)

    def forget_stream(self, stream: str) -> None:
        """Remove the remaining files of a stream that has ended and been delivered."""
        (self.path / f"{stream}.lock").unlink(missing_ok=True)

    def sync(self) -> None:
        """Wait until the folder's names are on disk."""
        sync_folder(self.path)


def _is_free(path: Path) -> bool:
    """Whether no process has locked the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        # A shared lock: two processes that check at the same time must not mistake each other for the owner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
