"""The start of a store: the remains of a kill or a power cut are recovered, damage is refused.

What it is: a check of the write-ahead logs, then RocksDB's own recovery in the mode `kTolerateCorruptedTailRecords`, which
verifies every checksum and refuses a mismatch. RocksDB's default, `kPointInTimeRecovery`, ends at the first fault
and silently drops everything behind it, synced or not. What it is not: a repair.
Spec: RocksDB's wiki, "WAL Recovery Modes".

Invariants:
    I1. Only the end of the newest log may be torn, by a kill or a power cut during an unsynced write. It is
        cut off before RocksDB reads it, and the cut is synced.
    I2. A log that is older than the manifest needs is left to RocksDB to remove, whatever it contains: a kill may leave one, with a gap
        behind it.
    I3. Damage with an intact record behind it, a torn log before the newest, a gap between logs, and a damaged or missing
        table are refused, and the files are left as they are.
    I4. A log that was in use and is needed, and is missing, is damage: RocksDB would start without it.
    I5. Bytes that are cut off to test whether RocksDB opens the store then are kept beside the log until that is known, also over a kill.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import rocksdict

from isthmus.errors import StoreError
from isthmus.store.log_in_use import log_files, log_number, missing_log
from isthmus.store.log_walk import LogWalk, missed_record, walk
from isthmus.store.manifest import oldest_log
from isthmus.whole_file import write_file

__all__ = ["damaged", "lock_folder", "open_database"]

_CUT = ".cut"
_OFFSET_BYTES = 8


def lock_folder(folder: Path) -> int:
    """Lock a store's folder for this journal alone; returns the descriptor whose closing unlocks it.

    RocksDB's own lock comes too late: logs are checked before, and a log during a write seems torn. RocksDB's lock is tested
    all the same, since another release may have the folder open.

    Raises:
        StoreError: the folder is locked, or cannot be opened.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(folder, f"{error.strerror}: '{folder}'") from error
    try:
        _try_lock(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), folder)
        with suppress(FileNotFoundError), (folder / "LOCK").open("r+b") as opened:
            _try_lock(lambda: fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB), folder)
    except OSError as error:
        os.close(descriptor)
        raise _unusable(folder, f"{error.strerror}: '{error.filename}'") from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _try_lock(lock: Callable[[], None], folder: Path) -> None:
    try:
        lock()
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise _in_use(folder) from error
        # On a file system without such locks, RocksDB's remains.


def _in_use(folder: Path) -> StoreError:
    return StoreError(f"The data folder '{folder}' is in use by another process; stop it or choose another folder.")


def open_database(folder: Path, options: Any) -> Any:
    """Open the store in a folder.

    Args:
        folder: locked by the caller.
        options: of RocksDB; the recovery mode is set here.

    Raises:
        StoreError: another process has the folder open, or the store is damaged or cannot be read.
    """
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    newest = _check_logs(folder)
    cut = b""
    while True:
        try:
            database = rocksdict.Rdict(str(folder), options)
        except Exception as error:
            text = str(error)
            if "While lock file" in text or "lock hold by" in text:
                raise _in_use(folder) from error
            # A whole record with a wrong checksum: torn, if nothing intact is behind it.
            removed = _cut_last(newest, cut) if newest is not None and text.startswith("Corruption: ") else b""
            if not removed:
                text += _restore_cut(newest, cut)
                raise damaged(folder, text) if "Corruption" in text else _unusable(folder, text) from error
            cut = removed + cut
        else:
            if newest is not None and cut:
                _forget_cut(newest)
            return database


def damaged(folder: Path, reason: str) -> StoreError:
    """The error for a store with damaged files."""
    return StoreError(
        f"The store in '{folder}' is damaged: {reason}. Restore a back-up; check the disk before you use it again."
    )


def _unusable(folder: Path, reason: str) -> StoreError:
    return StoreError(f"The store in '{folder}' cannot be opened: {reason}")


def _check_logs(folder: Path) -> Path | None:
    """Check that the logs follow each other, and cut a torn end off; returns the newest one that is not empty."""
    try:
        _restore_kept(folder)
        logs = sorted(log_files(folder), key=log_number)
        oldest = oldest_log(folder) if len(logs) > 1 else 0
        logs = [file for file in logs if log_number(file) >= oldest]
        missing = missing_log(folder)
        walks = [(file, walked) for file in logs if (walked := _walk(file)).size]
    except OSError as error:
        raise _unusable(folder, f"{error.strerror or error}: '{error.filename}'") from error
    if missing:
        raise damaged(folder, f"log {missing} is missing, to which the last messages were written")
    while walks and walks[-1][1].first is None and not walks[-1][1].damage:
        _cut(walks.pop()[0], 0)  # it has only a torn first record
    for index, (file, walked) in enumerate(walks):
        is_newest = index == len(walks) - 1
        reason = walked.damage
        if not reason and walked.is_torn and not is_newest:
            reason = f"it ends within a record at byte {walked.end}"
        elif not reason and index and walked.first is not None and walked.first != walks[index - 1][1].next:
            reason = f"it begins with sequence number {walked.first}, where {walks[index - 1][1].next} has to follow"
        if reason:
            raise damaged(folder, f"log {file.name}: {reason}")
    if not walks:
        return None
    newest, walked = walks[-1]
    if walked.is_torn:
        _cut(newest, walked.end)
    return newest


def _walk(file: Path) -> LogWalk:
    # Read, not mapped: a failed read of the disk must be an error, not the end of the process.
    return walk(file.read_bytes())


def _cut_last(file: Path, behind: bytes) -> bytes:
    """Cut the last record off if its bytes are damaged; returns the removed bytes. `behind` was removed before."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise _unusable(file.parent, f"{error.strerror or error}: '{file}'") from error
    walked = walk(data)
    if not walked.last or all(fragment.is_intact(data) for fragment in walked.last):
        return b""
    if missed_record(data, walked) is not None:  # its length is wrong, and the walk has skipped others
        return b""
    start = walked.last[0].at
    with suppress(OSError):  # without room for it, a kill now loses the cut bytes: the store starts all the same
        write_file(_kept(file), start.to_bytes(_OFFSET_BYTES, "big") + data[start:] + behind)
    _cut(file, start)
    return data[start:]


def _restore_cut(file: Path | None, cut: bytes) -> str:
    """Undo `_cut_last`: the damage began before it. Returns an addition to the error where the disk refuses that; else empty."""
    if file is None or not cut:
        return ""
    try:
        with file.open("ab") as opened:
            opened.write(cut)
            opened.flush()
            os.fsync(opened.fileno())
    except OSError as error:
        return f"; the damaged end of log {file.name} was cut off, and could not be put back: {error.strerror or error}"
    _forget_cut(file)
    return ""


def _restore_kept(folder: Path) -> None:
    """Undo `_cut_last` of a process that was killed then. If RocksDB has opened the store since, there is a newer log.

    Raises:
        OSError: the disk refuses.
    """
    for kept in list(folder.glob(f"*.log{_CUT}")):
        log, data = kept.with_name(kept.name.removesuffix(_CUT)), kept.read_bytes()
        start, cut = int.from_bytes(data[:_OFFSET_BYTES], "big"), data[_OFFSET_BYTES:]
        if log == max(log_files(folder), key=log_number, default=None) and start <= log.stat().st_size <= start + len(
            cut
        ):
            with log.open("r+b") as opened:
                opened.seek(start)
                opened.write(cut)
                opened.flush()
                os.fsync(opened.fileno())
        kept.unlink(missing_ok=True)


def _kept(file: Path) -> Path:
    """The file for the end of a log that was cut off: its offset, and its bytes."""
    return file.with_name(file.name + _CUT)


def _forget_cut(file: Path) -> None:
    with suppress(OSError):  # then the next start removes it
        _kept(file).unlink(missing_ok=True)


def _cut(file: Path, size: int) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unusable(file.parent, f"{error.strerror}: '{file}'") from error
