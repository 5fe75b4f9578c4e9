"""The repair of copies that are out of service, and the checks of those in service.

What it is: one thread for each journal that checks files and disks of serving copies, and brings the others up to date
while the namespace continues. What it is not: the copying (`resilver`), or the choice of serving copies (`journal`).

Invariants:
    I1. A copy under repair is marked in its note, on disk, before the first change; it serves again only after all
        its contents are on disk, and the note too.
    I2. A copy under repair counts for nothing, and gets changes only from its last step on.
    I3. A copy of another namespace is never written over.
    I4. The contents of a copy are removed before another is whole only if two others have everything on disk.
    I5. A copy that was under repair when the others started again in another epoch, in this process or a later one, is copied
        whole: it may have values of batches that they have lost, without a row of their keys.
"""

from __future__ import annotations

import errno
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from isthmus.errors import StoreError
from isthmus.store.zone.change import Position, Touched
from isthmus.store.zone.member import Member
from isthmus.store.zone.note import Note, NoteError, read_note
from isthmus.store.zone.resilver import (
    common_sequence,
    copy_rows,
    copy_touched,
    copy_whole,
    finish,
    position_of,
    touched_after,
)
from isthmus.store.zone.status import MAJORITY, ZoneState
from isthmus.store.zone.watch import FileWatch
from isthmus.whole_file import sync_folder

if TYPE_CHECKING:
    from isthmus.store.zone.journal import ZonedJournal

__all__ = ["Repair"]

_log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
# The most keys that are copied while writes wait.
_LAST_KEYS = 2_000
_SYNC_SECONDS = 10.0
# The time in which all of a copy is read once, and the bytes of one read.
_VERIFY_SECONDS = 3600.0
_VERIFY_REST_SECONDS = 0.02
# Errors of this process or this machine, not of a disk.
_OWN_LACKS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class _StoppedError(Exception):
    """The journal closes."""


class Repair:
    """The thread.

    Args:
        journal: that has the copies.
    """

    def __init__(self, journal: ZonedJournal) -> None:
        self._journal = journal
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._watches: dict[Member, FileWatch] = {}
        self._verifying: dict[Member, Iterator[int]] = {}
        # What the others had on disk when the repair of a copy began.
        self._bases: dict[Member, Position] = {}
        self._verified_at = {member: time.monotonic() for member in journal.members}

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="isthmus-zone-repair", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Check the copies soon."""
        self._woken.set()

    def stop(self) -> None:
        """End; a copy under repair is left as marked in its note."""
        self._stopping.set()
        self._woken.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_SYNC_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.wait(_CHECK_SECONDS if not self._verifying else _VERIFY_REST_SECONDS)
            self._woken.clear()
            if self._stopping.is_set():
                return
            try:
                self._check_all()
            except _StoppedError:
                return
            except Exception:  # noqa: BLE001 - after any error, the next check follows
                _log.exception("a fault in the check of the zones")
                time.sleep(_CHECK_SECONDS)

    def _check_all(self) -> None:
        journal = self._journal
        journal.drop_lagging(time.monotonic())
        for member in journal.members:
            if member.state is ZoneState.SERVING:
                self._check_member(member)
        for member in journal.members:
            now = time.monotonic()
            if member.state is ZoneState.DOWN and journal.serving_count and now >= member.retry_at:
                self.try_return(member)

    # ---- copies in service

    def _check_member(self, member: Member) -> None:
        opened = member.journal
        if opened is None:
            return
        watch = self._watches.get(member)
        if watch is None:
            watch = self._watches[member] = FileWatch(member.database)
        reason = ""
        is_damaged = True
        try:
            reason = watch.check(opened.tables) or (
                "" if read_note(member.folder) is not None else "its note is missing"
            )
            if not reason:
                self._verify(member)
        except (StoreError, NoteError) as error:
            reason = str(error)
        except OSError as error:
            # The last one is read all the same, and the others are repaired from it.
            if error.errno in _OWN_LACKS or self._journal.serving_count == 1:
                return
            # Not damage: if it affects all copies together, each must be in service again when it can be checked.
            reason, is_damaged = error.strerror or str(error), False
        if reason and member.journal is opened and member.state is ZoneState.SERVING:
            self._journal.drop(member, reason, is_damaged=is_damaged)

    def _verify(self, member: Member) -> None:
        """Continue to read a copy from its beginning to its end."""
        opened = member.journal
        if opened is None:
            return
        if member not in self._verifying:
            if time.monotonic() - self._verified_at[member] < _VERIFY_SECONDS or self._verifying:
                return
            self._verifying[member] = opened.verified()
        try:
            if next(self._verifying[member], None) is not None:
                return
        except StoreError:
            del self._verifying[member]
            raise
        del self._verifying[member]
        self._verified_at[member] = time.monotonic()

    # ---- copies out of service

    def try_return(self, member: Member) -> None:
        """Bring a copy up to date and into service; if that fails, its reason says why."""
        journal = self._journal
        if member.busy_since is not None:
            member.put_off(time.monotonic())
            return
        self._watches.pop(member, None)
        self._verifying.pop(member, None)
        self._bases.pop(member, None)
        began = time.monotonic()
        before = member.reason
        with journal.changed:
            if member.state is not ZoneState.DOWN:  # another thread repairs it, or has done so
                return
            member.state = ZoneState.RESILVERING
            epoch = journal.epoch
        try:
            with journal.pinned():
                kind = self._bring_back(member, epoch)
        except _StoppedError:
            raise
        except StoreError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - a copy that is left as under repair would never be retried
            _log.exception("a fault while zone %d is repaired", member.index + 1)
            reason = f"{type(error).__name__}: {error}"
        else:
            reason = ""
        if reason:
            self._failed(member, epoch, reason)
            if reason != before:
                _log.warning("zone %d is not repaired yet: reason=%s", member.index + 1, reason)
            return
        seconds = time.monotonic() - began
        self._verified_at[member] = time.monotonic()
        _log.warning(
            "zone %d is in service: folder='%s' by=%s seconds=%.3f", member.index + 1, member.folder, kind, seconds
        )

    def _failed(self, member: Member, epoch: int, reason: str) -> None:
        journal = self._journal
        with journal.changed:
            is_new_epoch = journal.epoch != epoch
            member.state = ZoneState.DOWN
            member.forget_pending()
            member.reason = reason
            member.must_copy = member.must_copy or is_new_epoch  # I5
            member.put_off(time.monotonic())
        base = self._bases.get(member)
        note = member.read_note() if is_new_epoch and base is not None else None
        if note is not None and note.repair is None:
            # It was reported whole for a moment.
            with suppress(StoreError):
                member.write_note(note._replace(repair=base, began=epoch))

    def _bring_back(self, member: Member, epoch: int) -> str:
        """How it was done."""
        journal = self._journal
        with journal.changed:
            leader = journal.leader
            if leader is member:
                raise StoreError("it is the last copy that can be read")
            # With its own epoch: if it were the present one, no copy would have as much until something is written.
            base = self._bases[member] = position_of(leader.opened())
        # The position in the note must be on disk somewhere: a start waits for it.
        if not journal.wait_all_synced(base.sequence, _SYNC_SECONDS) or leader.state is not ZoneState.SERVING:
            raise StoreError("the disks of the other zones have not responded yet")
        is_safe = journal.serving_count >= MAJORITY
        member.shut()
        member.check_room()
        note = member.read_note()
        if note is not None and note.set_name != journal.set_name:
            raise StoreError(
                f"'{member.folder}' contains a copy of another namespace; name another folder, or empty it"
            )
        if note is None or (note.repair is not None and note.began != epoch):  # I5
            member.must_copy = True
        member.write_note(Note(journal.set_name, epoch, base, epoch))  # I1
        common: int | None = None
        if not member.must_copy:
            try:
                member.open()
                common = common_sequence(leader.opened(), member.opened())
            except StoreError:
                common = None
        kind = "the changes that it missed"
        if common is None:
            kind = "a whole copy"
            self._copy_whole(leader, member, is_safe)
            common = position_of(member.opened()).sequence
        self._catch_up(member, common, epoch)
        member.opened().sync()
        self._check(epoch)
        member.write_note(Note(journal.set_name, epoch))
        with journal.changed:
            self._check(epoch)
            if member.state is not ZoneState.JOINING:
                raise StoreError(member.reason or "it failed again")
            member.state, member.reason, member.must_copy = ZoneState.SERVING, "", False
            member.resilvers += 1
            member.back_at = time.monotonic()
            journal.replace_leader(member)
            journal.changed.notify_all()
        return kind

    def _copy_whole(self, leader: Member, member: Member, is_safe: bool) -> None:
        member.shut()
        fresh = member.fresh
        try:
            shutil.rmtree(fresh, ignore_errors=True)
            if is_safe:  # I4: space for the new one
                shutil.rmtree(member.database, ignore_errors=True)
            copy_whole(leader.opened(), leader.folder / "checkpoint", fresh)
            shutil.rmtree(member.database, ignore_errors=True)
            fresh.rename(member.database)
            sync_folder(member.folder)
        except OSError as error:
            raise StoreError(f"'{member.folder}' cannot be written: {error.strerror or error}") from error
        finally:
            with suppress(OSError):
                shutil.rmtree(fresh, ignore_errors=True)
        member.open()

    def _catch_up(self, member: Member, common: int, epoch: int) -> None:
        """Copy the keys touched since the common batch, until so few are left that writes can wait for them."""
        journal = self._journal
        touched = Touched()
        touched_after(member.opened(), common, touched)
        after = common
        while True:
            self._check(epoch)
            leader = journal.leader
            reached = position_of(leader.opened()).sequence
            touched_after(leader.opened(), after, touched)
            if len(touched) <= _LAST_KEYS:
                break
            copy_touched(leader.opened(), member.opened(), touched)
            copy_rows(leader.opened(), member.opened(), after, reached)
            touched, after = Touched(), reached
        with journal.changed:
            self._check(epoch)
            leader = journal.leader
            touched_after(leader.opened(), after, touched)
            copy_touched(leader.opened(), member.opened(), touched)
            finish(leader.opened(), member.opened(), after)
            member.forget_pending()
            member.applied = leader.applied
            member.synced = member.wanted = common
            member.state = ZoneState.JOINING

    def _check(self, epoch: int) -> None:
        if self._stopping.is_set():
            raise _StoppedError
        if self._journal.epoch != epoch:
            raise StoreError("the other zones have started a new epoch meanwhile")
