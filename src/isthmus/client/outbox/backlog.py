"""Reading an outbox in order, and storing how far it has been delivered.

What it is: the messages that wait in a folder, as batches of encoded messages, for the one process that has locked `drain.lock`. What
it is not: delivery (`drain`).

Invariants:
    I1. Messages of a stream are returned in the order in which they were written; a stream follows those that its first record
        names; concurrent streams are read round-robin.
    I2. Progress is written after the namespace acknowledged, never before: a crash in between repeats messages under their
        MessageIds and loses no message.
    I3. A file is removed only when all of it has been delivered or set aside, and no process writes it any more.
    I4. Damaged bytes are copied to the quarantine before they are skipped.
    I5. The disk space for the progress record is allocated before the first message of a file is returned. Progress that the disk refuses
        nevertheless, such as a full copy-on-write file system, is written before any further message is returned.
"""

from __future__ import annotations

import logging
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from isthmus.client.outbox.folder import Folder, Segment
from isthmus.client.outbox.frame import Record, find_record, read_record

__all__ = ["Backlog", "Batch", "Position"]

_log = logging.getLogger(__name__)

_READ_BYTES = 2 << 20
_SLOT = struct.Struct(">QQII")
# A record of a live writer that stays incomplete for this long is damaged.
_STALE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a segment: the record at `offset`, and how many of its messages are done."""

    segment: Segment
    offset: int
    index: int = 0


@dataclass(slots=True)
class Batch:
    """Consecutive messages of one stream.

    Attributes:
        payloads: encoded messages.
        ends: the position after each of them.
        last_number: number of the last message, if the messages come from a table.
        oldest_ms: wall time at which the first was written.
    """

    payloads: list[bytes] = field(default_factory=list)
    ends: list[Position] = field(default_factory=list)
    oldest_ms: int = 0
    last_number: int = 0


@dataclass(slots=True)
class _Reader:
    """How far one stream has been read and delivered."""

    stream: str
    number: int
    descriptor: int
    offset: int = 0
    index: int = 0
    last_served: int = 0
    sequence: int = 0
    done_descriptor: int = -1
    after: frozenset[str] = frozenset()
    incomplete_since: float | None = None


class Backlog:
    """The waiting messages of an outbox. One thread uses it, while the process has locked the folder's `drain.lock`.

    Args:
        folder: the outbox.
        reached: what was acknowledged last, where the disk may not have taken it; None: nothing.
        sync_progress: whether each step of progress is synced to disk; without it a power cut repeats more messages.
    """

    def __init__(self, folder: Folder, reached: Position | None = None, *, sync_progress: bool = False) -> None:
        self._folder = folder
        self._reached = reached
        self._sync_progress = sync_progress
        self._readers: dict[str, _Reader] = {}
        self._served = 0
        self.quarantined_bytes = 0
        self.damages = 0

    def next_batch(self, limit_bytes: int, limit_count: int, overhead_bytes: int = 8) -> Batch | None:
        """The next messages of the least recently served stream; None if none wait.

        Args:
            limit_bytes: the most bytes of one batch, unless one message alone is larger.
            limit_count: the most messages of one batch.
            overhead_bytes: bytes that each message needs beyond its own.
        """
        self._find_streams()
        while True:
            known = set(self._readers)
            for reader in sorted(self._readers.values(), key=lambda each: (each.last_served, each.stream)):
                if any(stream in self._readers for stream in reader.after):
                    continue
                batch = self._read(reader, limit_bytes, limit_count, overhead_bytes)
                if batch.payloads:
                    return batch
            if set(self._readers) == known:
                return None  # otherwise a stream was finished, and others may have waited for it

    def done(self, position: Position) -> None:
        """Everything up to a position has been acknowledged or set aside."""
        reader = self._readers[position.segment.stream]
        reader.offset, reader.index = position.offset, position.index
        self._served += 1
        reader.last_served = self._served
        self._write_progress(reader)

    def close(self) -> None:
        """Close the files."""
        for reader in self._readers.values():
            self._close(reader)
        self._readers.clear()

    # ---- streams

    def _find_streams(self) -> None:
        """Find new streams, and open them."""
        first: dict[str, Segment] = {}
        for segment in self._folder.segments():
            first.setdefault(segment.stream, segment)
        for stream, segment in first.items():
            if stream not in self._readers:
                self._open(segment)

    def _open(self, segment: Segment) -> None:
        try:
            descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        reader = _Reader(segment.stream, segment.number, descriptor)
        try:
            self._load_progress(reader, segment)
        except OSError:
            self._close(reader)
            raise
        note = read_record(os.pread(descriptor, _READ_BYTES, 0))
        if isinstance(note, Record) and note.note is not None:
            reader.after = frozenset(note.note.get("after", ()))
            if not reader.offset:
                reader.offset = note.end
        self._readers[segment.stream] = reader

    def _advance(self, reader: _Reader) -> bool:
        """Go on to the stream's next file, or forget the stream; False if its end may still grow."""
        has_ended = self._folder.has_ended(reader.stream)
        later = [
            segment
            for segment in self._folder.segments()
            if segment.stream == reader.stream and segment.number > reader.number
        ]
        if not later and not has_ended:
            return False
        if os.fstat(reader.descriptor).st_size > reader.offset:
            return True  # written between the check of the file and the check of its owner
        segment = self._folder.segment(reader.stream, reader.number)
        self._close(reader)
        del self._readers[reader.stream]
        self._folder.forget(segment)
        if later:
            last_served = reader.last_served
            self._open(later[0])
            if reader.stream in self._readers:
                self._readers[reader.stream].last_served = last_served
        else:
            self._folder.forget_stream(reader.stream)
        return True

    def _close(self, reader: _Reader) -> None:
        for descriptor in (reader.descriptor, reader.done_descriptor):
            if descriptor >= 0:
                with suppress(OSError):
                    os.close(descriptor)

    # ---- records

    def _read(self, reader: _Reader, limit_bytes: int, limit_count: int, overhead_bytes: int) -> Batch:
        batch = Batch()
        size = 0
        while True:
            end = reader.offset
            for record in self._records(reader):
                end = record.end
                segment = self._folder.segment(reader.stream, reader.number)
                index = reader.index if record.start == reader.offset else 0
                for number in range(index, len(record.payloads)):
                    payload = record.payloads[number]
                    size += len(payload) + overhead_bytes
                    if batch.payloads and (size > limit_bytes or len(batch.payloads) >= limit_count):
                        return batch
                    if not batch.payloads:
                        batch.oldest_ms = record.written_ms
                    batch.payloads.append(payload)
                    following = number + 1
                    is_last = following == len(record.payloads)
                    batch.ends.append(
                        Position(segment, end, 0) if is_last else Position(segment, record.start, following)
                    )
            if batch.payloads:
                return batch  # later records are read when these are done
            if end > reader.offset:  # notes
                reader.offset, reader.index = end, 0
            elif os.fstat(reader.descriptor).st_size <= reader.offset:
                if not self._advance(reader) or reader.stream not in self._readers:
                    return batch
                reader = self._readers[reader.stream]
            elif not self._pass_over(reader):
                return batch

    def _records(self, reader: _Reader) -> Iterator[Record]:
        """The valid consecutive records from the delivered position on; at least one, if there is one."""
        base, at = reader.offset, 0
        data = os.pread(reader.descriptor, _READ_BYTES, base)
        wanted = read_record(data, 0, base)
        if isinstance(wanted, int) and wanted > len(data):
            data = os.pread(reader.descriptor, wanted, base)
        while isinstance(record := read_record(data, at, base), Record):
            reader.incomplete_since = None
            yield record
            at = record.end - base

    def _pass_over(self, reader: _Reader) -> bool:
        """Whether reading can continue after bytes that are no valid record (I4)."""
        # Read before the bytes are: a writer that has moved to another file, or ended, has completed its record in this one.
        has_ended, has_later = self._folder.has_ended(reader.stream), self._has_later(reader)
        size = os.fstat(reader.descriptor).st_size
        rest = os.pread(reader.descriptor, size - reader.offset, reader.offset)
        if isinstance(read_record(rest), Record):
            return True  # it is complete now
        next_at = find_record(rest, 1)
        if next_at < 0 and not has_ended and not has_later:
            # The writer may be writing it; a released lock shows that it is not.
            now = time.monotonic()
            if reader.incomplete_since is None:
                reader.incomplete_since = now
            return False
        if next_at >= 0 and not has_ended and self._is_fresh(reader):
            return False
        lost = rest[: next_at if next_at >= 0 else len(rest)]
        is_torn = next_at < 0 and isinstance(read_record(rest, 0), int)
        self._quarantine(reader, lost, is_torn)
        reader.offset += len(lost)
        reader.index = 0
        reader.incomplete_since = None
        self._write_progress(reader)
        return True

    def _is_fresh(self, reader: _Reader) -> bool:
        now = time.monotonic()
        if reader.incomplete_since is None:
            reader.incomplete_since = now
        return now - reader.incomplete_since < _STALE_SECONDS

    def _has_later(self, reader: _Reader) -> bool:
        return any(
            segment.stream == reader.stream and segment.number > reader.number for segment in self._folder.segments()
        )

    def _quarantine(self, reader: _Reader, lost: bytes, is_torn: bool) -> None:
        kind = "torn" if is_torn else "damaged"
        path = self._folder.quarantine_path / f"{reader.stream}-{reader.number}-{reader.offset}.{kind}"
        with path.open("wb") as file:
            file.write(lost)
            file.flush()
            os.fsync(file.fileno())
        if is_torn:
            _log.info("an incomplete write is skipped: file=%s bytes=%d", path, len(lost))
            return
        self.damages += 1
        self.quarantined_bytes += len(lost)
        _log.error(
            "damaged bytes of the outbox are set aside, the messages in them are not sent: file=%s bytes=%d",
            path,
            len(lost),
        )

    # ---- progress

    def _load_progress(self, reader: _Reader, segment: Segment) -> None:
        reader.done_descriptor = os.open(segment.done_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        missing = 2 * _SLOT.size - os.fstat(reader.done_descriptor).st_size
        if missing > 0:
            # Its space is allocated before anything is sent: otherwise a full disk would cause the same messages to be sent for ever.
            os.pwrite(reader.done_descriptor, bytes(missing), 2 * _SLOT.size - missing)
        reader.sequence, reader.offset, reader.index = read_progress(reader.done_descriptor)
        reached = self._reached
        place = (reached.offset, reached.index) if reached is not None and reached.segment == segment else (0, 0)
        if place > (reader.offset, reader.index):
            reader.offset, reader.index = place
            self._write_progress(reader)

    def _write_progress(self, reader: _Reader) -> None:
        reader.sequence += 1
        checked = struct.pack(">QQI", reader.sequence, reader.offset, reader.index)
        slot = checked + struct.pack(">I", zlib.crc32(checked))
        os.pwrite(reader.done_descriptor, slot, (reader.sequence % 2) * _SLOT.size)
        if self._sync_progress:
            os.fdatasync(reader.done_descriptor)


def read_progress(descriptor: int) -> tuple[int, int, int]:
    """Sequence, offset and index of the newer of two slots; zeros if none is valid, which repeats the whole file."""
    data = os.pread(descriptor, 2 * _SLOT.size, 0)
    best = (0, 0, 0)
    for at in range(0, len(data) - _SLOT.size + 1, _SLOT.size):
        sequence, offset, index, checksum = _SLOT.unpack_from(data, at)
        if zlib.crc32(data[at : at + _SLOT.size - 4]) == checksum:
            best = max(best, (sequence, offset, index))
    return best


def waiting(folder: Folder, on_damage: Callable[[], None] = lambda: None) -> Iterator[tuple[Segment, Record, int]]:
    """Each waiting record, and how many of its messages are done; changes nothing.

    Args:
        folder: of the outbox.
        on_damage: called for each damaged range that contains more than an interrupted write, and no valid record.
    """
    for segment in folder.segments():
        offset, index = 0, 0
        with suppress(FileNotFoundError), segment.done_path.open("rb") as file:
            _, offset, index = read_progress(file.fileno())
        try:
            with segment.path.open("rb") as file:
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:
            continue
        at = 0
        while at >= 0:
            found = read_record(data, at, offset)
            if isinstance(found, Record):
                if found.payloads:
                    yield segment, found, index
                at, index = found.end - offset, 0
            else:
                next_at = find_record(data, at + 1)
                if next_at >= 0 or not isinstance(found, int):
                    on_damage()
                at, index = next_at, 0
            if at >= len(data):
                break


def oldest_ms(folder: Folder) -> int:
    """Wall time at which the oldest record that waits was written; 0 if none waits. It reads only the first record of each file."""
    found = 0
    for segment in folder.segments():
        try:
            with segment.path.open("rb") as file:
                offset = 0
                with suppress(FileNotFoundError), segment.done_path.open("rb") as done:
                    _, offset, _ = read_progress(done.fileno())
                record = read_record(os.pread(file.fileno(), _READ_BYTES, offset), 0, offset)
                if isinstance(record, Record) and not record.payloads:  # a note about the file
                    record = read_record(os.pread(file.fileno(), _READ_BYTES, record.end), 0, record.end)
        except FileNotFoundError:
            continue
        if isinstance(record, Record):
            found = min(found or record.written_ms, record.written_ms)
    return found
