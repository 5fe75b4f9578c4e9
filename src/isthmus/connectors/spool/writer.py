"""The writing of a spool: append, sync, roll; and recovery after a crash.

What it is: one object that a single thread calls. What it is not: the thread, or the route (`target`). docs/explanation/spool.md.

Invariants:
    I1. Records for which `sync` has returned are on disk, and only then published to readers.
    I2. One process writes a spool at a time; the lock ends with the process, however it ends.
    I3. A message that was received before is not written again (`seen`), before and after a crash.
    I4. A block that a crash left half-written at the end is cut off; synced bytes are never cut off.
    I5. After a failed sync no record that it covered counts as written: the system may have dropped it.
    I6. `seen` is on disk up to the last segment before that segment is created.
    I7. The numbers of records that were published are not given again, even if their segment is missing.
    I8. Records in a segment that was deleted while it was written do not count as written.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from isthmus.connectors.spool.block import Block, Damage, Record, decode, encode, walk
from isthmus.connectors.spool.folder import (
    Durable,
    SpoolError,
    SpoolFolder,
    SpoolInUseError,
)
from isthmus.connectors.spool.seen import Seen, SeenNames, mark_of
from isthmus.whole_file import sync_folder, write_file

__all__ = ["SEGMENT_BYTES", "SEGMENT_SECONDS", "SpoolWriter"]

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
SEGMENT_SECONDS = 600.0


class SpoolWriter:
    """Writes one spool.

    Args:
        path: its folder.
        segment_bytes: maximum size of a segment.
        segment_seconds: maximum age of a segment.
        wall: wall clock, in seconds.
        named: whether the numbers of messages are made of names.
        compares: whether a message is told from another one under its number by what it holds, whatever their times.
        made: whether the spool has been made: one that is missing is an error, since its file system may not be mounted.
    """

    def __init__(
        self,
        path: Path,
        segment_bytes: int = SEGMENT_BYTES,
        segment_seconds: float = SEGMENT_SECONDS,
        wall: Callable[[], float] = time.time,
        *,
        named: bool = False,
        compares: bool = False,
        made: bool = False,
    ) -> None:
        self._compares = compares
        self._is_made = made
        self._folder = SpoolFolder(path)
        self._segment_bytes = segment_bytes
        self._segment_seconds = segment_seconds
        self._wall = wall
        self._lock = self._file = self._durable = -1
        self._made: type[Seen | SeenNames] = SeenNames if named else Seen
        self._seen = self._made()
        self._segment = self._position = self._on_disk = self._number = 0
        self._began = 0.0

    @property
    def number(self) -> int:
        """Number of the next record."""
        return self._number

    def open(self) -> SpoolWriter:
        """Opens the spool, and continues where the last writer ended.

        Raises:
            SpoolInUseError: another process writes it.
            SpoolError: the folder cannot be written, or is missing.
        """
        try:
            if self._is_made:
                self._folder.require()
            self._folder.make()
            self._take_lock()
            self._recover()
        except OSError as error:
            raise self._failed("written", error) from error
        except BaseException:
            self.close()
            raise
        return self

    def append(self, records: Sequence[Record]) -> int:
        """Writes messages except those received before; returns how many were written. `sync` puts them on disk.

        Raises:
            SpoolError: they cannot be written; open the spool again.
        """
        try:
            if self._position and (
                self._position >= self._segment_bytes or self._wall() - self._began >= self._segment_seconds
            ):
                self._roll()
            add, epoch = self._seen.add, self._seen.epoch
            fresh = [
                each._replace(epoch=epoch(each.key, each.sequence))
                for each in records
                if add(each.key, each.sequence, each.enqueued_ms, self._mark(each))
            ]
            self._tell_uncompared()
            if not fresh:
                return 0
            data = memoryview(encode(fresh, self._number, round(self._wall() * 1000)))
            self._position += len(data)
            self._number += len(fresh)
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            raise self._failed("written", error) from error
        return len(fresh)

    def _tell_uncompared(self) -> None:
        for each in self._seen.take_uncompared():
            log.error(
                "spool %s: '%s' was made again or has lost its end: up to %d messages with numbers from %d to %d were taken for redelivered "
                "ones, and are not in the spool; they are still at the source",
                self._folder.path,
                each.key.strip(),
                each.messages,
                each.first,
                each.last,
            )

    def sync(self) -> None:
        """Syncs the written records.

        Raises:
            SpoolError: the sync failed; open the spool again.
        """
        try:
            self._sync_file()
            self._publish()
        except OSError as error:
            raise self._failed("synced", error) from error

    def close(self) -> None:
        """Releases the spool."""
        for descriptor in (self._file, self._durable, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._durable = self._lock = -1

    def _failed(self, what: str, error: OSError) -> SpoolError:
        self.close()
        return SpoolError(f"spool {self._folder.path} cannot be {what}: {error.strerror or error}")

    # ---- recovery

    def _take_lock(self) -> None:
        self._lock = os.open(self._folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpoolInUseError(
                f"spool {self._folder.path} is written by another process; one task writes a spool, in one run"
            ) from None

    def _recover(self) -> None:
        self._durable = self._folder.open_durable()
        numbers, durable = self._folder.numbers(), self._folder.durable()
        known = self._read_seen()
        for number in numbers[:-1]:
            if number >= known:
                self._scan(number)
        if numbers:
            self._go_on(numbers[-1], known)
        else:
            self._begin(max(known, self._folder.released(), durable.number if durable is not None else 0))

    def _read_seen(self) -> int:
        """Loads the received numbers; returns the record up to which they are complete."""
        self._seen = self._made()
        try:
            data = (self._folder.path / "seen").read_bytes()
        except FileNotFoundError:
            return 0
        checksum, _, text = data.partition(b"\n")
        head, _, rest = text.partition(b"\n")
        try:
            if int(checksum, 16) != zlib.crc32(text):
                raise ValueError("checksum")
            self._seen = self._made.from_text(rest.decode())
            return int(head)
        except (ValueError, TypeError):
            log.error(
                "spool %s: file seen is damaged; a redelivered message that was settled before the remaining segments appears twice",
                self._folder.path,
            )
            return 0

    def _write_seen(self) -> None:
        text = b"%d\n%b" % (self._number, self._seen.to_text().encode())
        write_file(self._folder.path / "seen", b"%x\n%b" % (zlib.crc32(text), text))

    def _scan(self, number: int) -> int:
        """Adds the records of a segment; returns the number of the record after its last block."""
        data = self._folder.segment(number).read_bytes()
        end = number
        for each in walk(data):
            if isinstance(each, Block):
                end = max(end, each.end)
                for record in decode(data, each):
                    self._restore(record)
        return end

    def _restore(self, record: Record) -> None:
        self._seen.restore(record.key, record.sequence, record.enqueued_ms, record.epoch, self._mark(record))

    def _mark(self, record: Record) -> int:
        if record.sequence < 0:
            return 0
        return mark_of(record.message, 0 if self._compares else record.enqueued_ms)

    def _go_on(self, number: int, known: int) -> None:
        """Continues in the last segment, or in a new one where that is damaged.

        `seen` covers the records before `known`, which may be in the middle of the segment: then no segment can be created after it.
        """
        path = self._folder.segment(number)
        durable = self._folder.durable()
        on_disk = durable.position if durable is not None and durable.segment == number else 0
        data = path.read_bytes()
        found = list(walk(data))
        torn = found[-1] if found and isinstance(found[-1], Damage) else None
        stop = torn.start if torn is not None and torn.start >= on_disk else len(data)
        if stop < len(data):
            log.info("spool %s: %d bytes that were half-written are cut off", path, len(data) - stop)
            os.truncate(path, stop)
        blocks = [each for each in found if isinstance(each, Block)]
        for block in blocks:
            for record in decode(data, block) if block.end > known else ():
                self._restore(record)
        end = max((each.end for each in blocks), default=number)
        # Also if it is of a later segment, which is missing (I7).
        self._number = max(end, durable.number if durable is not None and durable.segment >= number else 0)
        is_whole = stop == (blocks[-1].stop if blocks else 0) and self._number == end
        self._open_segment(number, stop)
        self._sync_file()
        sync_folder(
            self._folder.segments
        )  # the process that created the segment may have been killed, or failed, before that
        if not is_whole and self._number > number:
            self._roll()
        self._publish()

    # ---- segments

    def _sync_file(self) -> None:
        try:
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._on_disk)
            raise
        if not os.fstat(self._file).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "its last segment was deleted")
        self._on_disk = self._position

    def _roll(self) -> None:
        self._sync_file()
        self._begin(self._number)

    def _begin(self, number: int) -> None:
        """Begins a segment; `seen` covers the records before it."""
        self._number = number
        self._write_seen()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._open_segment(number, 0)
        sync_folder(self._folder.segments)
        self._publish()

    def _open_segment(self, number: int, position: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._folder.segment(number), flags, 0o600)
        self._segment, self._position, self._began = number, position, self._wall()
        self._on_disk = position

    def _publish(self) -> None:
        SpoolFolder.write_durable(self._durable, Durable(self._segment, self._position, self._number))
