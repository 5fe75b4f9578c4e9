"""The files to which a target appends its account, before they become a table.

What it is: appending blocks (`isthmus.connectors.spool.block`) to a file that no other process writes. What it is not: the table
(`isthmus.replication.ledger.ledger`), which takes a file when its writer has closed it or has ended: the writer locks it until then.

Invariants:
    I1. Appended records are in the file when the process is killed; a power failure may lose the last ones.
    I2. A file has one writer, which is known to have ended when its lock is free.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from isthmus.connectors.spool.block import Record, encode

__all__ = ["OPEN", "LedgerFile"]

OPEN = Path("_isthmus") / "open"
"""The subfolder of the ledger's folder for files that are not in the table yet."""

_BYTES = 32 << 20
_SECONDS = 60.0


class LedgerFile:
    """Appends to one file after another.

    Args:
        folder: the ledger's folder.
        wall: wall clock, in seconds.
    """

    def __init__(self, folder: Path, wall: Callable[[], float] = time.time) -> None:
        self._folder = folder / OPEN
        self._wall = wall
        self._file = -1
        self._size = self._count = 0
        self._began = 0.0

    def append(self, records: Sequence[Record]) -> None:
        """Write records.

        Raises:
            OSError: the disk refuses the write.
        """
        now = self._wall()
        if self._file < 0:
            self._open(now)
        data = memoryview(encode(records, self._count, round(now * 1000)))
        self._size += len(data)
        self._count += len(records)
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            self.close()  # its last block may be incomplete
            raise
        if self._size >= _BYTES:
            self.close()

    def tick(self) -> None:
        """Closes a file that is old enough, so that it becomes part of the table."""
        if self._file >= 0 and self._wall() >= self._began + _SECONDS:
            self.close()

    def close(self) -> None:
        """Close the file; the next `append` begins another."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def is_open(self) -> bool:
        """Whether it has a file open that is not part of the table yet."""
        return self._file >= 0

    def _open(self, now: float) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{uuid.uuid4().hex}.log"
        # Under another name until it is locked: a file with the final name and no lock counts as finished.
        hidden = path.with_suffix(".new")
        self._file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            hidden.rename(path)
        except OSError:
            self.close()  # a file without its final name is never read
            with suppress(OSError):
                hidden.unlink()
            raise
        self._size = self._count = 0
        self._began = now
