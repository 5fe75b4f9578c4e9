"""The write-ahead log that a store is writing, recorded beside it, so that its removal is detected.

What it is: a file with the number of the newest log, and the check whether that log still exists. What it is not: RocksDB's
own record; it finds a log by its name in the folder alone, and opens a store without one as if nothing had been written.

Invariants:
    I1. A log is reported missing only if the manifest still needs it: a log that RocksDB removed itself is not.
    I2. A record that is out of date names an older log, and so reports nothing missing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from isthmus.store.manifest import oldest_log

__all__ = ["LogInUse", "log_files", "log_number", "missing_log"]

_NOTE = "log-in-use"


def log_files(folder: Path) -> list[Path]:
    """The logs of a store, in no order. Files of others with other names are ignored."""
    return [file for file in folder.glob("*.log") if file.stem.isascii() and file.stem.isdigit()]


def log_number(file: Path) -> int:
    """The number of a log."""
    return int(file.stem)


class LogInUse:
    """The newest log of an open store.

    Args:
        folder: the store's.

    Attributes:
        path: of the log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self.path = folder
        with suppress(OSError):  # then nothing is reported missing until the next check
            self.is_missing()

    def is_missing(self) -> bool:
        """Whether the log was removed without a newer one.

        Raises:
            OSError: the folder cannot be read.
        """
        if self._number:
            with suppress(FileNotFoundError):
                self.path.stat()
                return False
        newest = max(map(log_number, log_files(self._folder)), default=0)
        if newest <= self._number:
            return self._number > 0
        self._number = newest
        self.path = self._folder / f"{newest:06}.log"
        with suppress(OSError):  # a full disk: the record is out of date (I2)
            self._note()
        return False

    def _note(self) -> None:
        descriptor = os.open(self._folder / _NOTE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, b"%020d" % self._number, 0)
        finally:
            os.close(descriptor)


def missing_log(folder: Path) -> str:
    """Name of the log that was in use when the store was last open, if it is missing and needed; else empty.

    Raises:
        OSError: record or manifest exists and cannot be read.
    """
    try:
        number = int((folder / _NOTE).read_bytes())
    except (FileNotFoundError, ValueError):
        return ""
    log = folder / f"{number:06}.log"
    return "" if log.exists() or number < oldest_log(folder) else log.name
