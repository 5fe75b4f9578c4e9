"""An outbox in a folder: senders append to it, the drain delivers it, operators inspect it.

What it is: `folder`, `journal` and `backlog` combined, with the limits. See docs/how-to/send-durably.md.

Invariants:
    I1. Nothing is appended beyond the limits of size and age, nor when the disk has less than `min_free_bytes`; the error names
        the limit, and earlier messages stay.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from isthmus.client.outbox.backlog import Backlog, Batch, Position, oldest_ms, read_progress, waiting
from isthmus.client.outbox.folder import Folder, Lock
from isthmus.client.outbox.frame import Record, encode_record, find_record, read_record
from isthmus.client.outbox.journal import Journal
from isthmus.errors import InvalidArgumentError, StoreError
from isthmus.whole_file import write_file

__all__ = [
    "FolderSource",
    "Limits",
    "OutboxFullError",
    "OutboxStatus",
    "Store",
    "claim",
    "entity_of",
    "refused",
    "status",
]

ENTITY_FILE = "entity"

_CHECK_SECONDS = 0.25
_AGE_CHECK_SECONDS = 1.0
_DISK_CHECK_SECONDS = 0.02
_DISK_CHECK_BYTES = 1 << 20


class OutboxFullError(StoreError):
    """The outbox accepts no messages for now.

    Attributes:
        path: its folder.
        reason: the limit that is reached.
    """

    code = "outbox-full"
    retryable = True

    def __init__(self, path: str = "", reason: str = "") -> None:
        super().__init__("", path=path, reason=reason)

    def text(self) -> str:
        a = self.attributes
        return f"the outbox {a.get('path')} takes nothing more: {a.get('reason')}; deliver it (isthmus outbox drain) or raise the limit"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an outbox.

    Attributes:
        max_bytes: of waiting records.
        max_age_seconds: of the oldest message that waits; None for no limit.
        min_free_bytes: free bytes that the disk must keep.
    """

    max_bytes: int = 1 << 30
    max_age_seconds: float | None = None
    min_free_bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """The status of an outbox, for operators.

    Attributes:
        path: its folder.
        messages: that are not delivered.
        bytes: of their records.
        oldest_seconds: how long the oldest has waited.
        streams: senders' streams that have files.
        live: those of them that a process writes now.
        is_draining: whether a process delivers.
        refused: messages that the namespace refused.
        damaged: files in the quarantine that contain more than an interrupted write.
    """

    path: str
    messages: int
    bytes: int
    oldest_seconds: float
    streams: int
    live: int
    is_draining: bool
    refused: int
    damaged: int


class Store:
    """An outbox, as senders use it. Threads may share one.

    Args:
        path: its folder.
        limits: its limits.
    """

    def __init__(self, path: str | os.PathLike[str], limits: Limits | None = None) -> None:
        self.folder = Folder(path)
        self.limits = limits or Limits()
        self._used = 0
        self._checked_at = self._age_checked_at = -_AGE_CHECK_SECONDS
        self._disk_checked_at = -_DISK_CHECK_SECONDS
        self._free = 0
        self._oldest_ms = 0
        self._version = 0
        self._found = frozenset(self.folder.streams())  # by name: the clock may have been set back since
        self._empty_version = -1 if self._found else 0
        self._counting = threading.Lock()
        self.appended = 0
        self.journal = Journal(self.folder, self._check)

    @property
    def is_empty(self) -> bool:
        """Whether all messages that existed at the opening, and all that were appended since, have been delivered."""
        version = self._version
        if self._empty_version != version and not any(
            (segment.stream <= self.journal.stream or segment.stream in self._found)
            and _left(segment.path, segment.done_path) > 0
            for segment in self.folder.segments()
        ):
            self._empty_version = version
        return self._empty_version == self._version

    def append(self, payloads: tuple[bytes, ...]) -> None:
        """Commit encoded messages, all or none; see `Journal.append`.

        Raises:
            OutboxFullError: a limit is reached.
        """
        with self._counting:
            self._version += 1
        self.journal.append(payloads)
        with self._counting:
            self._version += 1  # a reader in between may not have seen it
            self.appended += len(payloads)

    def close(self) -> None:
        """End this process's stream."""
        self.journal.close()

    def _check(self, size: int) -> None:
        now = time.monotonic()
        if now - self._checked_at >= _CHECK_SECONDS:
            self._checked_at = now
            self._used = used_bytes(self.folder)
            if self.limits.max_age_seconds is not None and now - self._age_checked_at >= _AGE_CHECK_SECONDS:
                self._age_checked_at = now
                self._oldest_ms = oldest_ms(self.folder)
        self._used += size
        if self._used > self.limits.max_bytes:
            self._checked_at = -_CHECK_SECONDS
            self._full(f"{self._used} bytes would wait, and max_bytes is {self.limits.max_bytes}")
        if self._oldest_ms and self.limits.max_age_seconds is not None:
            age = time.time() - self._oldest_ms / 1000
            if age > self.limits.max_age_seconds:
                self._full(
                    f"the oldest message has waited {age:.0f} s, and max_age is {self.limits.max_age_seconds:g} s"
                )
        if now - self._disk_checked_at >= _DISK_CHECK_SECONDS or size > _DISK_CHECK_BYTES:
            self._disk_checked_at = now
            stat = os.statvfs(self.folder.path)
            self._free = stat.f_bavail * stat.f_frsize
        self._free -= size
        free = self._free
        if free < self.limits.min_free_bytes:
            self._disk_checked_at = -_DISK_CHECK_SECONDS
            self._full(f"the disk has {free} bytes free, and min_free_bytes is {self.limits.min_free_bytes}")

    def _full(self, reason: str) -> None:
        raise OutboxFullError(str(self.folder.path), reason)


class FolderSource:
    """The waiting messages of a folder, for the drain."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._lock: Lock | None = None
        self._backlog: Backlog | None = None
        self._reached: Position | None = None

    def acquire(self) -> bool:
        self._lock = Lock.take(self._folder.path / "drain.lock")
        if self._lock is None:
            return False
        self._folder.sweep()
        self._backlog = Backlog(self._folder, self._reached)
        return True

    def release(self) -> None:
        if self._backlog is not None:
            self._backlog.close()
            self._backlog = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def next_batch(self, limit_bytes: int, limit_count: int) -> Batch | None:
        assert self._backlog is not None
        return self._backlog.next_batch(limit_bytes, limit_count)

    def done(self, batch: Batch) -> None:
        assert self._backlog is not None
        self._reached = batch.ends[-1]
        self._backlog.done(self._reached)

    def set_aside(self, batch: Batch, reason: str) -> None:
        note = json.dumps({"reason": reason, "set_aside_ms": time.time_ns() // 1_000_000}).encode()
        record = encode_record([note, *batch.payloads], time.time_ns() // 1_000_000)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        # Buffered: a nearly full disk writes a part of one write without an error.
        with os.fdopen(os.open(self._folder.refused_path, flags, 0o600), "ab") as file:
            file.write(record)
            file.flush()
            os.fsync(file.fileno())
        self._folder.sync()  # the file may be new
        self.done(batch)


def entity_of(path: str | os.PathLike[str]) -> str:
    """The queue or topic of an outbox; empty if there is no outbox."""
    try:
        return (Path(path) / ENTITY_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def claim(folder: Folder, entity: str) -> None:
    """Record the entity of an outbox.

    Raises:
        InvalidArgumentError: it is for another entity.
        StoreError: the disk refused.
    """
    path = folder.path
    with folder.changing():  # if two processes start it at the same time, one is the first
        known = entity_of(path)
        if not known:
            try:
                write_file(path / ENTITY_FILE, entity.encode(), suffix=f".{os.getpid()}.new")
            except OSError as error:
                raise StoreError(
                    f"the outbox {path} cannot be written: {error.strerror}; free the disk or name another folder"
                ) from error
            return
    if known != entity:
        raise InvalidArgumentError(
            f"the outbox {path} is for {known!r}, not for {entity!r}; name another folder for each entity"
        )


def used_bytes(folder: Folder) -> int:
    """Bytes of waiting records."""
    return sum(max(0, _left(segment.path, segment.done_path)) for segment in folder.segments())


def _left(path: Path, done_path: Path) -> int:
    """Bytes of a file after the delivered position; a file's note does not count."""
    offset = 0
    with suppress(FileNotFoundError), done_path.open("rb") as file:
        _, offset, _ = read_progress(file.fileno())
    try:
        size = path.stat().st_size
        if not offset:
            with path.open("rb") as file:
                note = read_record(file.read(1 << 16))
            if isinstance(note, Record) and note.note is not None:
                offset = note.end
        return size - offset
    except FileNotFoundError:
        return 0


def refused(folder: Folder, on_damage: Callable[[], None] = lambda: None) -> list[tuple[str, bytes]]:
    """The messages that were set aside, each with its reason.

    Args:
        folder: of the outbox.
        on_damage: called for each damaged range that contains more than an interrupted write.
    """
    try:
        data = folder.refused_path.read_bytes()
    except FileNotFoundError:
        return []
    found: list[tuple[str, bytes]] = []
    at = 0
    while 0 <= at < len(data):
        record = read_record(data, at)
        if isinstance(record, Record):
            note = json.loads(record.payloads[0])
            found += [(str(note.get("reason", "")), payload) for payload in record.payloads[1:]]
            at = record.end
            continue
        next_at = find_record(data, at + 1)
        # An interrupted write is shorter than it says; its message is set aside again, behind it.
        until = next_at if next_at >= 0 else len(data)
        if not isinstance(read_record(data[at:until]), int):
            on_damage()
        at = next_at
    return found


def status(path: str | os.PathLike[str]) -> OutboxStatus:
    """The status of an outbox; changes nothing.

    Raises:
        StoreError: there is no such folder.
    """
    if not Path(path).is_dir():
        raise StoreError(f"there is no outbox at {path}; name the folder that a DurableSender was given")
    folder = Folder(path)
    messages = size = 0
    oldest_ms = 0
    for _, record, index in waiting(folder):
        messages += len(record.payloads) - index
        size += record.end - record.start
        oldest_ms = min(oldest_ms or record.written_ms, record.written_ms)
    streams = folder.streams()
    return OutboxStatus(
        path=str(path),
        messages=messages,
        bytes=size,
        oldest_seconds=max(0.0, time.time() - oldest_ms / 1000) if oldest_ms else 0.0,
        streams=len(streams),
        live=sum(not folder.has_ended(stream) for stream in streams),
        is_draining=folder.is_draining(),
        refused=len(refused(folder)),
        damaged=sum(1 for _ in folder.quarantine_path.glob("*.damaged")),
    )
