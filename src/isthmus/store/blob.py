"""Bodies of large messages as files, one each.

What it is: `isthmus.entities.BlobFiles` in a folder: written from the front to the end, synced, then only read, and
removed. What it is not: the references to a body (`isthmus.entities.storage.blob`), or a part of the ordered store: a body in
its log and its tables would be written three times, each time with the interpreter blocked or the writers stalled.

Invariants:
    I1. After `sync` a body survives a kill, name and contents.
    I2. While the folder is copied nothing is removed from it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from isthmus.errors import StoreError
from isthmus.store.private_folder import make_private

__all__ = ["BlobFolder"]

_SUFFIX = ".body"
# How many buffers the system takes in one call.
_PIECES = 1024
# `sync_file_range`: wait for writes in progress, start writing the rest, wait for that too.
_WAIT_WRITE_WAIT = 1 | 2 | 4
# The errors of a system or file system without it.
_NOT_THERE = {errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP}
# Removal of 100 MB at once kept the file system's journal busy for 44 ms, and syncs of other files waited for 28.
_REMOVED_BYTES = 1 << 20
_REMOVAL_REST_SECONDS = 0.004


class _Writer:
    """See `isthmus.entities.BlobWriter`."""

    def __init__(self, folder: Path, path: Path) -> None:
        self._folder = folder
        self._path = path
        self._is_named = False
        self._written = self._settled = 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, parts: Sequence[bytes]) -> None:
        try:
            for first in range(0, len(parts), _PIECES):
                self._write(parts[first : first + _PIECES])
        except OSError as error:
            raise _refused(self._path, error) from error

    def _write(self, parts: Sequence[bytes]) -> None:
        self._written += sum(map(len, parts))
        count = os.writev(self._descriptor, parts)
        for part in parts:
            if count >= len(part):
                count -= len(part)
                continue
            rest = memoryview(part)[count:]
            count = 0
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def settle(self) -> None:
        # Not `fdatasync`: for a file that grows it makes the file system commit its journal, and syncs of other files wait
        # for that.
        start, self._settled = self._settled, self._written
        try:
            if not _send_range(self._descriptor, start, self._written - start):
                os.fdatasync(self._descriptor)
        except OSError as error:
            raise _refused(self._path, error) from error

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
            if not self._is_named:
                _sync(self._folder)
                self._is_named = True
        except OSError as error:
            raise _refused(self._path, error) from error

    def close(self) -> None:
        os.close(self._descriptor)


class _Reader:
    """See `isthmus.entities.BlobReader`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        os.close(os.open(path, os.O_RDONLY))

    def read(self, offset: int, size: int) -> bytes:
        # Slow receivers keep no descriptor open: there may be more of them than descriptors.
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
            try:
                data = os.pread(descriptor, size, offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _refused(self._path, error) from error
        if len(data) != size:
            raise StoreError(f"'{self._path}' ends {size - len(data)} bytes before byte {offset + size}.")
        return data

    def close(self) -> None:
        """Nothing is open between two reads."""


class BlobFolder:
    """The bodies of one namespace.

    Args:
        folder: created with the first body.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copying = threading.Lock()

    def numbers(self) -> list[int]:
        """Of all bodies, whole or not."""
        return [int(path.stem, 16) for path in self._paths()]

    def create(self, number: int) -> _Writer:
        """Begin a body.

        Raises:
            StoreError: the disk refused.
        """
        path = self.path_of(number)
        try:
            if not self._folder.is_dir():
                make_private(self._folder)
                _sync(self._folder.parent)
            return _Writer(self._folder, path)
        except OSError as error:
            raise _refused(path, error) from error

    def open(self, number: int) -> _Reader:
        """Read a body.

        Raises:
            StoreError: it does not exist.
        """
        path = self.path_of(number)
        try:
            return _Reader(path)
        except OSError as error:
            raise _refused(path, error) from error

    def remove(self, number: int) -> None:
        """Remove a body, piece by piece; no error if it does not exist."""
        path = self.path_of(number)
        with self._copying, suppress(OSError):  # a body that cannot be removed now is an orphan at the next start
            found = path.stat()
            if found.st_nlink == 1:  # else a back-up has it as well, and only the name is removed
                for size in range(found.st_size - _REMOVED_BYTES, 0, -_REMOVED_BYTES):
                    os.truncate(path, size)
                    time.sleep(_REMOVAL_REST_SECONDS)
            path.unlink()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within, no body is removed: bodies that a copy of the store refers to can be copied after it."""
        with self._copying:
            yield

    def copy_to(self, folder: Path) -> None:
        """Put all bodies into a folder that does not exist yet, as links where that is possible; durable on return.

        Raises:
            OSError: the disk refused.
        """
        paths = self._paths()
        if not paths:
            return
        make_private(folder)
        for path in paths:
            copy = folder / path.name
            try:
                os.link(path, copy)
            except OSError:
                shutil.copy2(path, copy)
                _sync(copy)
        _sync(folder)

    @property
    def size_bytes(self) -> int:
        """The size of all bodies on the disk."""
        size = 0
        for path in self._paths():
            with suppress(OSError):  # it may be removed meanwhile
                size += path.stat().st_size
        return size

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("*" + _SUFFIX)) if self._folder.is_dir() else []

    def path_of(self, number: int) -> Path:
        """The path of a body."""
        return self._folder / f"{number:016x}{_SUFFIX}"


def _refused(path: Path, error: OSError) -> StoreError:
    return StoreError(f"The body of a large message, '{path}': {error.strerror or error}")


def _range_call() -> Callable[..., int] | None:
    try:
        call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (AttributeError, OSError):  # another system than Linux
        return None
    return call


_sync_file_range = _range_call()


def _send_range(descriptor: int, start: int, size: int) -> bool:
    """Write a part of a file to the disk, without its metadata; False where the system cannot do that.

    The interpreter is released meanwhile.

    Raises:
        OSError: the disk refused; a later `fdatasync` may not report it again.
    """
    if _sync_file_range is None:
        return False
    offset, length = ctypes.c_int64(start), ctypes.c_int64(size)
    if _sync_file_range(ctypes.c_int(descriptor), offset, length, ctypes.c_uint(_WAIT_WRITE_WAIT)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_THERE:
        return False
    raise OSError(number, os.strerror(number))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
