"""The messages of micro-batches, from their receipt to their settlement, as files.

What it is: the folder that the driver and the workers of one query share. A worker receives a batch once and writes it
here; every evaluation of the batch reads these files, and the driver settles the messages that they list. The folder outlives the
processes: after a restart Spark repeats the batch that it had not committed, with the same messages. What it is not: a
queue, or a store that survives the loss of the machine; when files are missing, the messages are received again once
their locks have expired.

Files; BATCH is the number of the batch, READER that of its partition:
    owner                  locked (flock) by the driver that uses the folder
    entity                 the entity of the batches' messages
    settled                number of the last batch that is settled
    guard                  its modification time: since when locks of a dead reader may exist
    BATCH-READER.lock      locked by the worker that receives
    BATCH-READER.payloads  encoded messages, one after another
    BATCH-READER.index     their list; its rename completes the batch
    BATCH-READER.taken     Spark has read every row of it at least once
    BATCH-READER.late      messages that Spark has committed, but that could not be settled: (sequence number, enqueued)

Invariants:
    I1. A batch's content is written once: while an index exists, no worker receives for this batch.
    I2. An index that is damaged, or whose payloads are, is never read; `is_torn` distinguishes it from a missing one.
    I3. One driver at a time uses a folder.
    I4. Nothing is received for a batch that is settled, and messages received too late are never settled: an attempt of a
        task may outlive its batch.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import shutil
import struct
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.connectors.servicebus.batch.error import BatchLockError
from isthmus.connectors.servicebus.batch.file_system import lock_fault, mount_table
from isthmus.whole_file import is_there

__all__ = ["BatchStore", "Index", "Writer", "new_name"]

# The age of folders whose query is unlikely to be restarted; message bodies should not remain on disk.
ABANDONED_SECONDS = 7 * 86_400.0
OWNER_SECONDS = 20.0
# Magic, messages, checksums of the entries and of the payloads, bytes of the payloads, time of the locks in ms.
_HEAD = struct.Struct("<8sIIIqq")
_MAGIC = b"isthmus1"
_CHECK_BYTES = 1 << 20
_ENTRY = np.dtype([("sequence", "<i8"), ("nbytes", "<u4"), ("token", "V16")])
_LATE = np.dtype([("sequence", "<i8"), ("enqueued_ms", "<i8")])
_FOLDER = re.compile(r"batches-[0-9a-f]{32}")
_NAME = re.compile(r"([0-9]+)-([0-9]+)\.(index|late|payloads)")


@dataclass(frozen=True, slots=True)
class Index:
    """The messages that a batch's reader received.

    Attributes:
        batch: number of the batch.
        reader: number of its partition.
        sequences: sequence numbers, int64.
        sizes: bytes of each encoded message.
        tokens: lock tokens of 16 bytes, one after another.
        lock_ms: lock duration, counted from the receipt.
    """

    batch: int
    reader: int
    sequences: Any
    sizes: Any
    tokens: bytes
    lock_ms: int

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.sequences)

    def token_list(self) -> list[bytes]:
        """The lock tokens."""
        return [self.tokens[at : at + 16] for at in range(0, len(self.tokens), 16)]


class Writer:
    """Writes the messages that one reader receives for one batch; they have no effect before `complete`."""

    def __init__(self, store: BatchStore, batch: int, reader: int) -> None:
        self._store, self._batch, self._reader = store, batch, reader
        self._file = store.path(batch, reader, "payloads").open("wb")
        self._entries: list[Any] = []
        self._checksum = 0
        self.count = 0
        self.nbytes = 0

    def add(self, sequences: Sequence[int], tokens: Sequence[bytes], payloads: Sequence[bytes]) -> None:
        """Appends messages, in their order."""
        entries = np.empty(len(payloads), _ENTRY)
        entries["sequence"] = sequences
        entries["nbytes"] = np.fromiter(map(len, payloads), np.uint32, len(payloads))
        entries["token"] = np.frombuffer(b"".join(tokens), "V16")
        data = b"".join(payloads)
        self._file.write(data)
        self._checksum = zlib.crc32(data, self._checksum)
        self._entries.append(entries)
        self.count += len(payloads)
        self.nbytes += len(data)

    def complete(self, lock_ms: int) -> Index:
        """Makes the messages the batch's content."""
        self._file.close()
        entries = np.concatenate(self._entries) if self._entries else np.empty(0, _ENTRY)
        data = entries.tobytes()
        head = _HEAD.pack(_MAGIC, len(entries), zlib.crc32(data), self._checksum, self.nbytes, lock_ms)
        target = self._store.path(self._batch, self._reader, "index")
        part = target.with_suffix(".part")
        with part.open("wb") as file:
            file.write(head + data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
        # The name must survive a power failure: without it other messages would be received for this batch.
        folder = os.open(self._store.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return _index_of(self._batch, self._reader, entries, lock_ms)

    def close(self) -> None:
        """Discards the messages, unless it is complete."""
        self._file.close()


class BatchStore:
    """The batches of one query.

    Args:
        folder: the folder of this query alone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._owner: int | None = None

    # ---- driver

    def claim(self) -> bool:
        """Creates the folder and locks it for this process; False if another process has it locked.

        Raises:
            BatchLockError: locks of files in the folder do not exclude other machines.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fault = lock_fault(self.folder.resolve(), mount_table())
        if fault:
            raise BatchLockError(str(self.folder), fault)
        _sweep(self.folder)
        limit = time.monotonic() + OWNER_SECONDS
        while self._owner is None:
            fd = self._open_owner()
            try:
                while not _locked(fd):  # the driver of the previous run may just be ending
                    if time.monotonic() > limit:
                        os.close(fd)
                        return False
                    time.sleep(0.1)
            except OSError as error:
                os.close(fd)
                raise BatchLockError(str(self.folder), error.strerror or str(error)) from error
            if _is_file(fd, self.folder / "owner"):
                self._owner = fd
            else:  # it has ended, and removed the folder with this file
                os.close(fd)
        self.guard()
        return True

    def _open_owner(self) -> int:
        while True:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # it was removed in between
                return os.open(self.folder / "owner", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def entity(self, path: str) -> str:
        """The entity of the batches' messages: the path of an earlier run with remaining batches, otherwise this path, which is noted."""
        file = self.folder / "entity"
        if self.listed("index") or self.listed("late"):
            with contextlib.suppress(FileNotFoundError):
                if found := file.read_text(encoding="utf-8"):
                    return found
        part = self.folder / "entity.part"
        part.write_text(path, encoding="utf-8")
        part.replace(file)
        return path

    def is_known(self) -> bool:
        """Whether an earlier run has used the folder; one that ended before it had noted the entity has not."""
        return is_there(self.folder / "entity") or bool(self.listed("index"))

    def listed(self, kind: str) -> list[tuple[int, int]]:
        """Batch and reader of all files of a kind (`index`, `late` or `payloads`), in order."""
        found = [_NAME.fullmatch(entry.name) for entry in self.folder.iterdir()]
        return sorted((int(match[1]), int(match[2])) for match in found if match is not None and match[3] == kind)

    def remove(self, batch: int, reader: int) -> None:
        """Removes a batch's messages: they are settled, or will be received again. Late ones are kept."""
        # The index is deleted first: messages without index are received again.
        for kind in ("index", "payloads", "taken", "lock"):
            self.path(batch, reader, kind).unlink(missing_ok=True)

    def set_settled(self, batch: int) -> None:
        """Batches up to this one are settled."""
        if batch != self.settled():
            part = self.folder / "settled.part"
            part.write_text(str(batch))
            part.replace(self.folder / "settled")

    def add_late(self, batch: int, reader: int, messages: Sequence[tuple[int, int]]) -> None:
        """Notes messages that Spark has committed but that could not be settled: (sequence number, enqueued in ms)."""
        target = self.path(batch, reader, "late")
        part = target.with_name(target.name + ".part")
        part.write_bytes(np.array(list(messages), _LATE).tobytes())
        part.replace(target)

    def remove_late(self, batch: int, reader: int) -> None:
        """Removes the note: the messages are no longer in the entity."""
        self.path(batch, reader, "late").unlink(missing_ok=True)

    def close(self) -> None:
        """Unlocks the folder, and removes it where none of its files is needed any more."""
        if self._owner is None:
            return
        if not self.listed("index") and not self.listed("late"):
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._owner)
        self._owner = None

    # ---- workers

    def exists(self) -> bool:
        """Whether this machine has access to the folder."""
        return (self.folder / "owner").exists()

    @contextlib.contextmanager
    def receiving(self, batch: int, reader: int) -> Iterator[None]:
        """A lock while a worker receives; another attempt of the same task waits for it."""
        fd = os.open(self.path(batch, reader, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def writer(self, batch: int, reader: int) -> Writer:
        """A writer for the messages to receive. An attempt that died before this one has left locks behind."""
        if is_there(self.path(batch, reader, "payloads")):
            self.guard()
        self.path(batch, reader, "taken").unlink(missing_ok=True)
        return Writer(self, batch, reader)

    def mark_taken(self, batch: int, reader: int) -> None:
        """Notes that Spark has read every row."""
        self.path(batch, reader, "taken").touch()

    # ---- both

    def path(self, batch: int, reader: int, kind: str) -> Path:
        """The path of a file."""
        return self.folder / f"{batch}-{reader}.{kind}"

    def guard(self) -> None:
        """Notes that locks of a dead reader may exist from now on."""
        (self.folder / "guard").touch()

    def guarded_seconds(self) -> float:
        """How long ago such locks may have been created."""
        try:
            return max(0.0, time.time() - (self.folder / "guard").stat().st_mtime)
        except FileNotFoundError:
            return 0.0

    def was_taken(self, batch: int, reader: int) -> bool:
        """Whether Spark has read every row, in this run or an earlier one."""
        return is_there(self.path(batch, reader, "taken"))

    def settled(self) -> int:
        """Number of the last batch that is settled."""
        try:
            return int((self.folder / "settled").read_text())
        except (FileNotFoundError, ValueError):
            return -1

    def index(self, batch: int, reader: int, *, checked: bool = False) -> Index | None:
        """The received messages; None while there are none.

        Args:
            batch: the batch's number.
            reader: the partition's number.
            checked: verify the payloads' checksum, too.
        """
        try:
            data = self.path(batch, reader, "index").read_bytes()
            size = self.path(batch, reader, "payloads").stat().st_size
        except FileNotFoundError:
            return None
        if len(data) < _HEAD.size:
            return None
        magic, count, checksum, payloads_checksum, nbytes, lock_ms = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        if magic != _MAGIC or len(body) != count * _ENTRY.itemsize or zlib.crc32(body) != checksum or size != nbytes:
            return None
        if checked and self._payloads_checksum(batch, reader) != payloads_checksum:
            return None
        return _index_of(batch, reader, np.frombuffer(body, _ENTRY), lock_ms)

    def is_torn(self, batch: int, reader: int) -> bool:
        """Whether messages were received whose files are unreadable now."""
        return is_there(self.path(batch, reader, "index")) and self.index(batch, reader, checked=True) is None

    def _payloads_checksum(self, batch: int, reader: int) -> int:
        checksum = 0
        with self.path(batch, reader, "payloads").open("rb") as file:
            while data := file.read(_CHECK_BYTES):
                checksum = zlib.crc32(data, checksum)
        return checksum

    @contextlib.contextmanager
    def payloads(self, batch: int, reader: int) -> Iterator[bytes | mmap.mmap]:
        """The encoded messages, one after another."""
        with self.path(batch, reader, "payloads").open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                yield b""
                return
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                yield mapped

    def late(self, batch: int, reader: int) -> list[tuple[int, int]]:
        """The messages noted by `add_late`."""
        try:
            data = self.path(batch, reader, "late").read_bytes()
        except FileNotFoundError:
            return []
        return [(int(one), int(other)) for one, other in np.frombuffer(data, _LATE).tolist()]

    def all_late(self) -> dict[int, int]:
        """Sequence number and time of all late messages."""
        return dict(message for batch, reader in self.listed("late") for message in self.late(batch, reader))


def new_name() -> str:
    """A name for a query's folder."""
    return f"batches-{uuid.uuid4().hex}"


def _index_of(batch: int, reader: int, entries: Any, lock_ms: int) -> Index:
    return Index(batch, reader, entries["sequence"], entries["nbytes"], entries["token"].tobytes(), lock_ms)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_file(fd: int, path: Path) -> bool:
    """Whether the path still names an open file."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), path.stat())
    return False


def _sweep(own: Path) -> None:
    """Removes folders beside this one whose query has not run for long."""
    for folder in own.parent.iterdir():
        with contextlib.suppress(OSError):
            if folder == own or _FOLDER.fullmatch(folder.name) is None:
                continue
            if time.time() - folder.stat().st_mtime < ABANDONED_SECONDS:
                continue
            fd = os.open(folder / "owner", os.O_RDWR | os.O_CLOEXEC)
            try:
                if _locked(fd):
                    shutil.rmtree(folder)
            finally:
                os.close(fd)
