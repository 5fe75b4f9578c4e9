"""One of the three copies: its store, its note, and the thread that waits for its disk.

What it is: changes taken in order, written, and synced on request. What it is not: the decision whether the copy is in
service (`journal`), or its repair (`repair`).

Invariants:
    I1. Changes are written in the order in which they were fed, each once.
    I2. `synced` names a batch only after it and all before it are on this disk.
    I3. A disk that does not respond delays only this copy's own thread.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from isthmus.entities.storage.journal import Journal
from isthmus.errors import StoreError
from isthmus.store.private_folder import make_private
from isthmus.store.rocks import RocksJournal
from isthmus.store.zone.change import DELETE, PUT, Change, Position
from isthmus.store.zone.election import Candidate
from isthmus.store.zone.note import Note, NoteError, read_note, write_note
from isthmus.store.zone.resilver import position_of
from isthmus.store.zone.status import ZoneState, ZoneStatus

__all__ = ["Member", "write_changes"]

_log = logging.getLogger(__name__)

_DATABASE = "db"
_ROOM_BYTES = 16 << 20
_FIRST_RETRY_SECONDS = 0.5
_LAST_RETRY_SECONDS = 60.0


def write_changes(journal: Journal, changes: Sequence[Change]) -> None:
    """Write changes as one batch.

    Raises:
        StoreError: the store refused.
    """
    batch = journal.batch()
    put, delete, delete_range = batch.put, batch.delete, batch.delete_range
    for kind, key, value in changes:
        if kind == PUT:
            put(key, value)
        elif kind == DELETE:
            delete(key)
        else:
            delete_range(key, value)
    journal.write(batch)


class Member:
    """One copy.

    Args:
        index: from 0 on.
        folder: of this copy alone.
        share: as for `RocksJournal`.
        changed: condition over the state of all copies of the set; its lock guards every attribute below.
        on_failure: called, without the lock, after an error in this copy's own thread.

    Attributes:
        journal: None while the copy is not open.
        state: whether it is in service.
        reason: why it is not.
        applied: sequence of the last batch in its store.
        synced: sequence of the last batch on its disk.
        wanted: sequence up to which a sync is requested.
        pending: fed, and not in the store yet.
        busy_since: monotonic seconds; None while its thread is idle.
        must_copy: its contents cannot be relied on, whatever its position is.
    """

    def __init__(
        self,
        index: int,
        folder: Path,
        share: int,
        changed: threading.Condition,
        on_failure: Callable[[Member, str], None],
    ) -> None:
        self.index = index
        self.folder = folder
        self.journal: RocksJournal | None = None
        self.state = ZoneState.DOWN
        self.reason = ""
        self.applied = self.synced = self.wanted = 0
        self.pending: deque[tuple[int, list[Change], int]] = deque()
        self._fed_bytes = self._drained_bytes = 0
        self.busy_since: float | None = None
        self.must_copy = False
        self.drops = self.resilvers = 0
        self.retry_at = self.back_at = 0.0
        self.retry_seconds = 0.0
        self.scans: weakref.WeakSet[Any] = weakref.WeakSet()
        self._share = share
        self._changed = changed
        self._on_failure = on_failure
        self._feed = threading.Lock()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    # ---- contents of the folder

    @property
    def database(self) -> Path:
        """Folder of the store."""
        return self.folder / _DATABASE

    @property
    def fresh(self) -> Path:
        """Folder of a store that is being copied here."""
        return self.folder / "db.new"

    def check_room(self) -> None:
        """Check that the disk has more free space than the next write needs.

        Raises:
            StoreError: it has not, or cannot be read.
        """
        try:
            make_private(self.folder)
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            raise StoreError(f"'{self.folder}' cannot be read: {error.strerror or error}") from error
        if free < _ROOM_BYTES:
            raise StoreError(
                f"The disk of '{self.folder}' has {free >> 20} MiB left, and {_ROOM_BYTES >> 20} are needed."
            )

    def put_off(self, now: float) -> None:
        """Retry it less and less often, as long as it fails soon after its return."""
        self.retry_seconds = min(max(2 * self.retry_seconds, _FIRST_RETRY_SECONDS), _LAST_RETRY_SECONDS)
        self.retry_at = now + self.retry_seconds

    def read_note(self) -> Note | None:
        """The note; None if there is none, or it is damaged, or cannot be read."""
        try:
            return read_note(self.folder)
        except (NoteError, OSError) as error:
            self.reason = self.reason or str(error)
            return None

    def write_note(self, note: Note) -> None:
        """Replace the note.

        Raises:
            StoreError: the disk refuses.
        """
        try:
            make_private(self.folder)
            write_note(self.folder, note)
        except OSError as error:
            raise StoreError(f"'{self.folder}' cannot be written: {error.strerror or error}") from error

    def is_unused(self) -> bool:
        """Whether no store was ever created here, or none that was finished."""
        try:
            names = {path.name for path in self.database.iterdir()}
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return "CURRENT" not in names and not any(name.endswith((".sst", ".log")) for name in names)

    def open(self, *, create: bool = False) -> None:
        """Open the store.

        Raises:
            StoreError: it does not exist, is damaged, or cannot be read.
        """
        try:
            is_there = create or (self.database / "CURRENT").exists()
        except OSError as error:
            raise StoreError(f"'{self.database}' cannot be read: {error.strerror or error}") from error
        if not is_there:
            raise StoreError(f"There is no store in '{self.database}'.")
        make_private(self.folder)
        for left in (self.folder / "checkpoint", self.folder / "back-up", self.fresh):  # of an aborted copy
            shutil.rmtree(left, ignore_errors=True)
        self.journal = RocksJournal(self.database, share=self._share)

    def opened(self) -> RocksJournal:
        """The open store.

        Raises:
            StoreError: it is not open.
        """
        if self.journal is None:
            raise StoreError(f"The copy in '{self.folder}' is not open: {self.reason or 'closed'}")
        return self.journal

    def shut(self) -> None:
        """Close the store, if it is open; open scans are closed first."""
        for scan in list(self.scans):
            scan.detach()
        journal, self.journal = self.journal, None
        if journal is not None:
            with suppress(StoreError):  # it failed, and raises again
                journal.close()

    def candidate(self, set_name: str) -> Candidate:
        """The candidate of this copy at an election; opens nothing.

        Args:
            set_name: of the set that it has to belong to.
        """
        note = self.read_note()
        if note is None or note.set_name != set_name:
            return Candidate(self.index, None, None)
        if note.repair is not None:
            return Candidate(self.index, note.repair, None, note.promise)
        position: Position | None = None
        if self.journal is not None and not self.must_copy:
            try:
                position = position_of(self.journal)
            except StoreError as error:
                self.reason = str(error)
        return Candidate(self.index, position, position, note.promise)

    # ---- changes

    @property
    def is_fed(self) -> bool:
        """Whether every change is fed to it."""
        return self.state in (ZoneState.SERVING, ZoneState.JOINING)

    def write(self, sequence: int, changes: list[Change]) -> None:
        """Write changes now.

        Raises:
            StoreError: the store refused.
        """
        with self._feed:
            write_changes(self.opened(), changes)
            self.applied = sequence

    def feed(self, sequence: int, changes: list[Change], size_bytes: int) -> None:
        """Take changes, which are written before the next sync."""
        self.pending.append((sequence, changes, size_bytes))
        self._fed_bytes += size_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes that were fed and are not in the store yet."""
        return self._fed_bytes - self._drained_bytes

    def drain(self) -> None:
        """Write the changes that were fed.

        Raises:
            StoreError: the store refused.
        """
        with self._feed:
            journal = self.opened()
            pending = self.pending  # replaced by another one when the copy is dropped
            while pending:
                sequence, changes, size_bytes = pending[0]
                write_changes(journal, changes)
                self.applied = sequence
                pending.popleft()
                self._drained_bytes += size_bytes

    def forget_pending(self) -> None:
        """Drop the changes that were fed: the copy is out of service."""
        self.pending = deque()
        self._fed_bytes = self._drained_bytes = 0

    # ---- the thread

    def start(self) -> None:
        """Start the thread, if it does not run."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"isthmus-zone-{self.index + 1}", daemon=True)
            self._thread.start()

    def stop(self, seconds: float) -> bool:
        """End the thread; returns whether it has ended within so many seconds."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or (self.is_fed and self.wanted > self.synced))
                if self._is_closing:
                    return
                self.busy_since = time.monotonic()
            reason = ""
            through = self.synced
            try:
                self.drain()
                through = self.applied
                self.opened().sync()
            except StoreError as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001 - after any error, this copy is out of service
                _log.exception("a fault at zone %d", self.index + 1)
                reason = type(error).__name__
            with self._changed:
                self.busy_since = None
                if not reason:
                    self.synced = max(self.synced, through)
                self._changed.notify_all()
            if reason:
                self._on_failure(self, reason)

    def overdue_seconds(self, now: float) -> float:
        """How long its disk has been busy with one sync."""
        since = self.busy_since
        return 0.0 if since is None else now - since

    def status(self, now: float) -> ZoneStatus:
        """The status for health and metrics."""
        return ZoneStatus(
            self.index + 1, self.state, self.reason, self.overdue_seconds(now), self.drops, self.resilvers
        )
