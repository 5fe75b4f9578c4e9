"""A journal in three copies: written to all, acknowledged when two have it on disk, read from one.

What it is: `isthmus.entities.Journal` over three `Member`s: which of them are in service, which one is read, and when a sync is
complete. What it is not: a copy (`member`), the repair of one (`repair`), the choice at the start (`election`).
Over 400 lines: the effects of a start, a write, a sync, a read and a failure on the one state are read together.

Invariants:
    I1. `sync` returns when two serving copies have everything on disk that was written before the call.
    I2. The copy that is read has every batch that `write` has taken, whether or not it is on disk.
    I3. A copy that fails is out of service before the call that detected the failure returns; the call itself succeeds as long
        as two copies are left.
    I4. A sequence is used once in an epoch, also where its write failed.
    I5. A scan whose copy fails continues at another one, behind the last key that it returned. Changes written
        since it began may be seen from there on, which `Journal` I3 otherwise excludes.
    I6. With fewer than two serving copies reads continue, and writes are refused.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from isthmus.entities.storage.journal import Batch, Journal
from isthmus.errors import StoreError
from isthmus.store.zone.change import Position, ZoneBatch, log_key, log_sequence
from isthmus.store.zone.election import Candidate, elect, next_epoch
from isthmus.store.zone.member import Member
from isthmus.store.zone.note import Note
from isthmus.store.zone.repair import Repair
from isthmus.store.zone.resilver import checkpoint_to, position_of
from isthmus.store.zone.scan import ZonedScan
from isthmus.store.zone.status import COPIES, MAJORITY, ZoneState, ZoneStatus

__all__ = ["ZonedJournal"]

_log = logging.getLogger(__name__)

# If a sync of the copy that is read takes longer than this, another one is read, so that no write waits for that disk.
_SLOW_SECONDS = 0.25
# A copy whose disk takes longer than this, or is behind the others' by more than that, is excluded.
_LAG_SECONDS = 5.0
_LAG_BYTES = 64 << 20
# The most bytes of touched keys that are kept for returning copies.
_LOG_BYTES = 16 << 20
_LOG_STEP_BYTES = 1 << 20
# A copy under repair makes the log grow; beyond this its repair starts again.
_LOG_LIMIT_BYTES = 512 << 20
_CLOSE_SECONDS = 10.0
# A copy that fails within this time after its return waits before it is retried.
_FLAPPING_SECONDS = 10.0
# All keys of entities are below it.
_RESERVED = b"\xff"
_REPLACE_BYTES = 4 << 20


class ZonedJournal:
    """A journal in three folders.

    Args:
        folders: three, each for this journal alone; created if absent.
        share: as for `RocksJournal`.
        may_found: whether a new, empty journal is created where all folders are empty.
        lag_seconds: the longest time for one sync of a copy; a slower copy is excluded.

    Attributes:
        unsynced_bytes: as for `Journal`.

    Raises:
        StoreError: fewer than two copies can be read; or a folder is another namespace's.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        *,
        share: int = 1,
        may_found: bool = True,
        lag_seconds: float = _LAG_SECONDS,
    ) -> None:
        if len(folders) != COPIES or len({folder.absolute() for folder in folders}) != COPIES:
            raise StoreError(f"A store in zones has {COPIES} different folders; there are {len(folders)}.")
        self.unsynced_bytes = 0
        self.changed = threading.Condition()
        self.members = [Member(index, folder, share, self.changed, self.drop) for index, folder in enumerate(folders)]
        self.set_name = ""
        self.epoch = 0
        self.sequence = 0
        self._lag_seconds = lag_seconds
        self._leader: Member | None = None
        self._failed = ""
        self._is_closed = False
        # Rows of touched keys: sequence and bytes, the oldest first.
        self._rows: deque[tuple[int, int]] = deque()
        self._row_bytes = 0
        self._pins = 0
        self._repair = Repair(self)
        try:
            self._start(may_found)
        except BaseException:
            for member in self.members:
                member.shut()
            raise
        for member in self.members:
            member.start()
        self._repair.start()

    # ---- start, and return after all copies failed

    def _start(self, may_found: bool) -> None:
        for member in self.members:
            try:
                member.open()
            except StoreError as error:
                member.reason = str(error)
        notes = [note for member in self.members if (note := member.read_note()) is not None]
        names = {note.set_name for note in notes}
        for name in sorted(names):
            if len(names) == 1 or sum(note.set_name == name for note in notes) >= MAJORITY:
                self.set_name = name
        if len(names) > 1 and not self.set_name:
            raise StoreError(
                "The copies of the store belong to different namespaces: "
                + ", ".join(f"'{member.folder}'" for member in self.members)
                + "; name the three folders of one."
            )
        candidates = self._candidates()
        if may_found and self._is_new(candidates):
            self._found()
            candidates = self._candidates()
        self._take_lead(candidates)

    def _is_new(self, candidates: Sequence[Candidate]) -> bool:
        """Whether nothing was ever acknowledged: each folder is empty, or was left empty by a killed start."""
        empty = Position(0, 0)
        known = [each.vote for each in candidates if each.vote is not None]
        if len(known) >= MAJORITY or any(vote != empty for vote in known):
            return False
        return all(
            member.is_unused() or candidate.vote == empty
            for member, candidate in zip(self.members, candidates, strict=True)
        )

    def _found(self) -> None:
        """Create a new set of copies."""
        self.set_name = secrets.token_hex(16)
        for member in self.members:
            member.shut()
            member.reason = ""
            try:
                member.write_note(Note(self.set_name))
                member.open(create=True)
            except StoreError as error:
                member.shut()
                member.reason = str(error)

    def _candidates(self) -> list[Candidate]:
        return [member.candidate(self.set_name) for member in self.members]

    def _take_lead(self, candidates: Sequence[Candidate]) -> None:
        """Serve from the newest copy, with at least one other that has the same contents.

        Raises:
            StoreError: there are not two.
        """
        chosen = elect(candidates)
        if chosen is None:
            raise StoreError(self._too_few(candidates))
        leader = self.members[chosen]
        epoch = next_epoch(candidates)
        promised = [member for member in self.members if candidates[member.index].vote is not None]
        if sum(self._promise(member, epoch) for member in promised) < MAJORITY:
            raise StoreError(self._too_few(candidates))
        position = candidates[chosen].position
        assert position is not None
        self.epoch, self.sequence = epoch, position.sequence
        self._load_rows(leader)
        leader.opened().sync()
        self._put_in_service(leader)
        self._leader = leader
        # Copies with the same contents serve immediately; of the others as many as are needed, the newest first.
        rest = sorted(
            (each for each in candidates if each.copy != chosen), key=lambda each: each.position or (), reverse=True
        )
        for each in rest:
            member = self.members[each.copy]
            if each.position == position:
                with suppress(StoreError):
                    member.opened().sync()
                    self._put_in_service(member)
        for each in rest:
            if self.serving_count < MAJORITY:
                self._repair.try_return(self.members[each.copy])
        if self.serving_count < MAJORITY:
            leader.state = ZoneState.DOWN
            raise StoreError(self._too_few(candidates))
        for member in self.members:
            if member.state != ZoneState.SERVING:
                _log.error("zone %d is not in service: reason=%s", member.index + 1, member.reason or "it is behind")

    def _promise(self, member: Member, epoch: int) -> bool:
        note = member.read_note()
        if note is None:
            return False
        try:
            member.write_note(note._replace(promise=epoch))
        except StoreError as error:
            member.reason = str(error)
            return False
        return True

    def _put_in_service(self, member: Member) -> None:
        member.applied = member.synced = member.wanted = self.sequence
        member.state, member.reason, member.must_copy = ZoneState.SERVING, "", False

    def _load_rows(self, leader: Member) -> None:
        rows = leader.opened().scan(log_key(0), log_key((1 << 64) - 1))
        self._rows = deque((log_sequence(key), len(row)) for key, row in rows)
        self._row_bytes = sum(size for _, size in self._rows)

    def _too_few(self, candidates: Sequence[Candidate]) -> str:
        reasons = "; ".join(
            f"'{member.folder}': {member.reason or ('it is behind' if candidate.vote else 'there is no copy')}"
            for member, candidate in zip(self.members, candidates, strict=True)
        )
        return (
            f"Of the {COPIES} copies of the store {MAJORITY} are needed, so that nothing that was acknowledged is missing. "
            f"{reasons}. Bring another copy back, or replace an unreadable folder by a copy of a readable one."
        )

    # ---- reads

    def get(self, key: bytes) -> bytes | None:
        while True:
            member = self._read_member()
            try:
                return member.opened().get(key)
            except StoreError as error:
                self.unreadable(member, error)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        while True:
            member = self._read_member()
            try:
                return member.opened().get_many(keys)
            except StoreError as error:
                self.unreadable(member, error)

    def scan(self, first: bytes, end: bytes, *, read_ahead: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return ZonedScan(self, first, end, read_ahead)

    def _read_member(self) -> Member:
        if self._is_closed or self._leader is None:
            raise StoreError("The store is closed.")
        return self._leader

    def open_scan(
        self, first: bytes, end: bytes, read_ahead: bool, scan: ZonedScan
    ) -> tuple[Member, Iterator[tuple[bytes, bytes]]]:
        """A scan of the copy that is read now, and that copy."""
        while True:
            member = self._read_member()
            try:
                found = member.opened().scan(first, end, read_ahead=read_ahead)
            except StoreError as error:
                self.unreadable(member, error)
                continue
            member.scans.add(scan)
            return member, found

    def unreadable(self, member: Member, error: StoreError) -> None:
        """A copy could not be read: read another one from now on.

        Raises:
            StoreError: there is no other.
        """
        with self.changed:
            if self._is_closed:
                raise error
            if member is self._leader:
                if not any(each.state is ZoneState.SERVING for each in self.members if each is not member):
                    raise error
                self.drop(member, str(error), is_damaged=True)
            if member is self._leader:
                raise error

    # ---- writes

    def batch(self) -> Batch:
        return ZoneBatch()

    def write(self, batch: Batch) -> None:
        if not isinstance(batch, ZoneBatch):
            raise TypeError("a batch is written to the journal that made it")
        with self.changed:
            self._read_member()
            if self._failed:
                raise StoreError(f"The store in zones takes no writes: {self._failed}")
            self._leave_slow()
            self.sequence += 1
            size_bytes = batch.size_bytes
            self._trim(batch)
            row_bytes = batch.seal(Position(self.epoch, self.sequence))
            self._rows.append((self.sequence, row_bytes))
            self._row_bytes += row_bytes
            self.unsynced_bytes += size_bytes
            self._write_leader(batch)
            for member in self.members:
                if member is not self._leader and member.is_fed:
                    behind_bytes = member.pending_bytes  # before this batch, which may be large
                    member.feed(self.sequence, batch.changes, size_bytes)
                    is_spare = member.state is not ZoneState.SERVING or self.serving_count > MAJORITY
                    if behind_bytes > _LAG_BYTES and is_spare:
                        self.drop(member, f"it lags: {behind_bytes >> 20} MiB are not on its disk")

    def _write_leader(self, batch: ZoneBatch) -> None:
        while self.serving_count >= MAJORITY:
            leader = self._leader
            assert leader is not None
            try:
                leader.write(self.sequence, batch.changes)
            except StoreError as error:
                self.drop(leader, str(error))
            else:
                return
        raise self._fail()

    def _leave_slow(self) -> None:
        leader = self._leader
        assert leader is not None
        if leader.overdue_seconds(time.monotonic()) > _SLOW_SECONDS:
            others = [each for each in self.members if each.state is ZoneState.SERVING and each.busy_since is None]
            if others:
                self._promote(others)

    def _trim(self, batch: ZoneBatch) -> None:
        """Limit the bytes of the rows of touched keys."""
        limit = _LOG_LIMIT_BYTES if self._pins else _LOG_BYTES
        if self._row_bytes <= limit + _LOG_STEP_BYTES or not self._rows:
            return
        while self._row_bytes > limit and len(self._rows) > 1:
            self._row_bytes -= self._rows.popleft()[1]
        # From the very first: rows that a refused batch was to remove still exist, and must not outlive later ones. A
        # copy would be repaired from such a row on, without the keys of the removed rows.
        batch.delete_range(log_key(0), log_key(self._rows[0][0]))

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        """Within, rows of touched keys are not removed."""
        with self.changed:
            self._pins += 1
        try:
            yield
        finally:
            with self.changed:
                self._pins -= 1

    def sync(self) -> None:
        self.unsynced_bytes = 0
        with self.changed:
            # Not `sequence`: the last one may be that of a write that failed everywhere.
            through = self._read_member().applied
            self._want(through)
            self.changed.wait_for(
                lambda: self._synced_count(through) >= MAJORITY or self.serving_count < MAJORITY or self._is_closed
            )
            if self._synced_count(through) < MAJORITY:
                raise self._fail()

    def wait_all_synced(self, through: int, seconds: float) -> bool:
        """Whether every serving copy has a batch on disk within so many seconds."""
        with self.changed:
            self._want(through)
            return self.changed.wait_for(lambda: self._synced_count(through) == self.serving_count, seconds)

    def _want(self, through: int) -> None:
        for member in self.members:
            if member.is_fed:
                member.wanted = max(member.wanted, through)
        self.changed.notify_all()

    def _synced_count(self, through: int) -> int:
        return sum(member.state is ZoneState.SERVING and member.synced >= through for member in self.members)

    @property
    def serving_count(self) -> int:
        """How many copies are in service."""
        return sum(member.state is ZoneState.SERVING for member in self.members)

    @property
    def leader(self) -> Member:
        """The copy that is read.

        Raises:
            StoreError: the store is closed.
        """
        return self._read_member()

    def _fail(self) -> StoreError:
        reasons = "; ".join(f"zone {each.index + 1}: {each.reason}" for each in self.members if each.reason)
        self._failed = f"{self.serving_count} of {COPIES} copies are in service, and {MAJORITY} are needed ({reasons})"
        return StoreError(f"The store in zones takes no writes: {self._failed}")

    # ---- copies that fail

    def drop(self, member: Member, reason: str, *, is_damaged: bool = False) -> None:
        """Take a copy out of service."""
        with self.changed:
            if self._is_closed:
                return
            member.must_copy = member.must_copy or is_damaged
            if member.state in (ZoneState.SERVING, ZoneState.JOINING):
                member.state, member.reason = ZoneState.DOWN, reason
                member.drops += 1
                now = time.monotonic()
                if now - member.back_at > _FLAPPING_SECONDS:
                    member.retry_seconds = member.retry_at = 0.0
                else:
                    member.put_off(now)
                member.forget_pending()
                _log.error("zone %d is out of service: folder='%s' reason=%s", member.index + 1, member.folder, reason)
            if member is self._leader:
                others = [each for each in self.members if each.state is ZoneState.SERVING]
                if others:
                    self._promote(others)
            if member is not self._leader:
                for scan in list(member.scans):
                    scan.detach()
            self._repair.wake()
            self.changed.notify_all()

    def _promote(self, others: Sequence[Member]) -> None:
        """Read another copy from now on."""
        before = self._leader
        for member in sorted(others, key=lambda each: each.applied, reverse=True):
            try:
                member.drain()
            except StoreError as error:
                self.drop(member, str(error))
                continue
            self._leader = member
            _log.warning(
                "zone %d is read now, no longer zone %d",
                member.index + 1,
                before.index + 1 if before is not None else 0,
            )
            return

    def replace_leader(self, member: Member) -> None:
        """Read a copy that has returned if the one that is read is out of service, with all others."""
        with self.changed:
            if self._leader is not None and self._leader.state is not ZoneState.SERVING:
                self._promote([member])

    def drop_lagging(self, now: float) -> None:
        """Take copies out of service whose disks do not respond, as long as two others are left."""
        with self.changed:
            for member in self.members:
                seconds = member.overdue_seconds(now)
                if member.is_fed and seconds > self._lag_seconds and self.serving_count > MAJORITY:
                    self.drop(member, f"it lags: its disk has not answered for {seconds:.1f} s")

    def reopen(self) -> None:
        with self.changed:
            if self._is_closed:
                raise StoreError("The store is closed.")
            if self.serving_count == 0:
                self._revive()
            elif self.serving_count < MAJORITY:
                self._reopen_last()
            if self.serving_count >= MAJORITY:
                self._failed = ""
            else:
                self._repair.wake()

    def _reopen_last(self) -> None:
        """Reopen the last copy if it takes no sync after a failed one: while it is alone nothing is written to it, which
        would show that, and no whole copy of it could be made for the others.

        Raises:
            StoreError: not even reads work.
        """
        last = self._read_member()
        journal = last.opened()
        if last.state is not ZoneState.SERVING or not journal.failure or last.busy_since is not None:
            return
        if last.synced < last.applied:
            return  # it would lose that; its own thread detects the failure, and all start again
        journal.reopen()
        if position_of(journal).sequence != last.applied:
            self.drop(last, "it lost what was on its disk", is_damaged=True)

    def _revive(self) -> None:
        """All copies have failed: start again with their contents, as at a start; copies that cannot be opened are left for reads.

        Raises:
            StoreError: not even reads work.
        """
        # A copy under repair belongs to its repair, and its contents cannot be relied on.
        # One whose thread is working may still write earlier batches.
        usable = [member.state is ZoneState.DOWN and member.busy_since is None for member in self.members]
        for member in self.members:
            if not usable[member.index]:
                continue
            try:
                if member.journal is None:
                    member.open()
                else:
                    member.journal.reopen()
            except StoreError as error:
                member.reason = str(error)
        ready = [
            usable[member.index] and member.journal is not None and not member.journal.failure
            for member in self.members
        ]
        for member in self.members:
            if member.journal is not None and member.journal.failure:
                member.reason = member.journal.failure
        if sum(ready) < MAJORITY:
            return
        candidates = [
            each if usable[each.copy] else Candidate(each.copy, None, None, each.promise) for each in self._candidates()
        ]
        chosen = elect(candidates)
        if chosen is None or not ready[chosen]:
            return
        try:
            self._take_lead(candidates)
        except StoreError as error:
            _log.warning("the copies cannot be reopened yet: reason=%s", error)

    # ---- copies of the journal, statistics, end

    def replace(self, source: Journal) -> None:
        """Take the contents of another store, and nothing else; durable on return.

        Raises:
            StoreError: the other store cannot be read, or this one not be written.
        """
        batch = self.batch()
        batch.delete_range(b"", _RESERVED)
        self.write(batch)
        batch = ZoneBatch()
        for key, value in source.scan(b"", _RESERVED, read_ahead=True):
            batch.put(key, value)
            if batch.size_bytes >= _REPLACE_BYTES:
                self.write(batch)
                self.sync()
                batch = ZoneBatch()
        self.write(batch)
        self.sync()

    def checkpoint(self, folder: Path) -> None:
        member = self._read_member()
        checkpoint_to(member.opened(), member.folder / "back-up", folder)

    def statistics(self) -> dict[str, int]:
        leader = self._leader
        journal = leader.journal if leader is not None else None
        return journal.statistics() if journal is not None else {"size_bytes": 0}

    def zones(self) -> list[ZoneStatus]:
        """The status of each copy."""
        now = time.monotonic()
        return [member.status(now) for member in self.members]

    def close(self) -> None:
        if self._is_closed:
            return
        failure: StoreError | None = None
        if self.serving_count >= MAJORITY:
            try:
                self.sync()
                # So that the next start finds all copies with the same contents.
                self.wait_all_synced(self._read_member().applied, _CLOSE_SECONDS)
            except StoreError as error:
                failure = error
        self._repair.stop()
        with self.changed:
            self._is_closed = True
            self.changed.notify_all()
        for member in self.members:
            if member.stop(_CLOSE_SECONDS):
                member.shut()
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """Stop without a sync, like a kill; for tests."""
        self._repair.stop()
        with self.changed:
            self._is_closed = True
            self.changed.notify_all()
        for member in self.members:
            member.stop(_CLOSE_SECONDS)
