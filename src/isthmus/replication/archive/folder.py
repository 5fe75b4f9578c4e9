"""The folder of an archive: Parquet files that appear together, once.

What it is: the commit of a batch's files. A batch is written into a separate folder, then noted, then its files are moved to the folders
that readers read. What it is not: the writing of Parquet files, which Spark does (`query`). docs/explanation/spool.md, "Exactly once into a table".

    date=2026-11-23/hour=17/00000000000000000042-0000.parquet     visible to readers
    _isthmus/archive.json       the archive's format and columns
    _isthmus/lock               locked by the run that writes
    _isthmus/staging/42/        files of a batch before they are moved
    _isthmus/commits/42.json    the note: the spool, the first and last records, the files
    _isthmus/spool/             the spool, unless the task names another folder

After a kill: before the note is on disk there is a staging folder, which the next start deletes; after it, files that the next start moves.
So a batch is or will be completely in the table, independent of Spark's checkpoint: `watermark` returns which records the table has.

Invariants:
    I1. A record of a spool is in the table once: a batch below the watermark is not committed again.
    I2. A file that readers can see is complete, and its batch has been noted.
    I3. The note is on disk after the files that it names, and before any of them is moved.
    I4. One process commits to an archive at a time.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.errors import IsthmusError
from isthmus.whole_file import is_there, make_folder, sync_folder, write_file

__all__ = ["FORMAT", "ArchiveError", "ArchiveFolder", "Commit", "files_of"]

log = logging.getLogger(__name__)

FORMAT = 1
OWN = "_isthmus"
# The number of notes that are kept: the last one has the watermarks, earlier ones the recent commits.
_KEPT = 100
_DIGITS = 20


class ArchiveError(IsthmusError):
    """An archive cannot be written or read."""

    code = "archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The note of a batch.

    Attributes:
        number: number of the batch in this archive, from 1.
        spool: identity of the spool.
        start: number of its first record.
        stop: number of the record after its last one.
        rows: how many rows it has.
        files: paths of its files, relative to the archive.
        watermarks: by spool, the record after the last one that the table has, including this batch.
        total: rows of all batches.
    """

    number: int
    spool: str
    start: int
    stop: int
    rows: int
    files: tuple[str, ...]
    watermarks: dict[str, int]
    total: int

    def to_json(self) -> str:
        """The note as JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str) -> Commit:
        """The note from the text of `to_json`."""
        content: dict[str, Any] = json.loads(text)
        return cls(**content | {"files": tuple(content["files"])})


class ArchiveFolder:
    """An archive.

    Args:
        path: its folder.
        columns: by name, the types of its rows, as text.
    """

    def __init__(self, path: Path, columns: dict[str, str]) -> None:
        self.path = path
        self._columns = columns
        self._own = path / OWN
        self._commits = self._own / "commits"
        self._staging = self._own / "staging"
        self._lock = -1
        self._last: Commit | None = None

    # ---- beginning

    def check(self) -> None:
        """Check the folder, without changing it.

        Raises:
            ArchiveError: it cannot be written, contains another table, or has other columns.
        """
        at = self.path
        while not at.exists():
            at = at.parent
        if not at.is_dir():
            raise ArchiveError(f"{self.path} cannot be an archive: {at} is no folder")
        if not os.access(at, os.W_OK | os.X_OK):
            raise ArchiveError(f"{self.path} cannot be an archive: {at} cannot be written by this user")
        if not self.path.exists():
            return
        own = self._own / "archive.json"
        if not own.exists():
            strange = next((each.name for each in self.path.iterdir() if each.name != OWN), "")
            if strange:
                raise ArchiveError(
                    f"{self.path} contains {strange} and is no archive; name an empty folder, or one that does not exist"
                )
            return
        try:
            content = json.loads(own.read_text(encoding="utf-8"))
            form, columns = content["format"], dict(content["columns"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArchiveError(f"{own} cannot be read: {error}") from error
        if form != FORMAT:
            raise ArchiveError(f"{self.path} has format {form}, and this release writes {FORMAT}; name another folder")
        for name in {**columns, **self._columns}:
            if columns.get(name) != self._columns.get(name):
                raise ArchiveError(
                    f"{self.path}: column {name} is {columns.get(name, 'absent')} there and {self._columns.get(name, 'absent')} here; name "
                    "another folder"
                )

    def is_made(self) -> bool:
        """Whether there is an archive.

        Raises:
            OSError: that is not known.
        """
        return is_there(self._own / "archive.json")

    def make(self) -> None:
        """Make the archive where it is missing.

        Raises:
            OSError: it cannot be written.
        """
        make_folder(self._commits)
        if not self.is_made():
            text = json.dumps({"format": FORMAT, "columns": self._columns}, indent=1)
            write_file(self._own / "archive.json", text.encode())

    def open(self) -> ArchiveFolder:
        """Lock the archive, and finish or undo a batch that a kill interrupted.

        Raises:
            ArchiveError: see `check`; or another run writes it.
        """
        self.check()
        try:
            self.make()
            self._lock = os.open(self._own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._last = self._read_last()
            if self._last is not None:
                sync_folder(self._commits)  # after a kill or a disk error the note may be in memory only (I3)
                self._move(self._last)
            if self._staging.exists():
                shutil.rmtree(self._staging)
        except BlockingIOError:
            self.close()
            raise ArchiveError(
                f"{self.path} is written by another run; one task writes an archive, in one run"
            ) from None
        except OSError as error:
            self.close()
            raise ArchiveError(f"{self.path} cannot be written: {error.strerror or error}") from error
        except ArchiveError:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Release the archive."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # ---- batches

    @property
    def total(self) -> int:
        """The number of committed rows."""
        last = self._last or self._read_last()
        return last.total if last is not None else 0

    def watermark(self, spool: str) -> int:
        """Number of the first record of a spool that the table does not have."""
        last = self._last or self._read_last()
        return last.watermarks.get(spool, 0) if last is not None else 0

    def refresh(self) -> None:
        """Read the notes again: another process may have committed."""
        if self._lock < 0:
            self._last = None

    def staging(self) -> Path:
        """The folder for the files of the next batch; its former content is deleted."""
        number = self._last.number + 1 if self._last is not None else 1
        folder = self._staging / str(number)
        if folder.exists():
            shutil.rmtree(folder)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        return folder

    def commit(self, spool: str, start: int, stop: int, rows: int) -> Commit:
        """Add the files in the staging folder to the table.

        Raises:
            ArchiveError: the batch is below the watermark.
            OSError: the disk refuses; the batch may have been noted.
        """
        if start < self.watermark(spool):
            raise ArchiveError(f"{self.path}: records {start} to {stop} of spool {spool} are in the table already")
        number = self._last.number + 1 if self._last is not None else 1
        staged = sorted(files_of(self._staging / str(number)))
        for file in staged:
            _sync(file)
        files = [
            str(file.parent.relative_to(self._staging / str(number)) / f"{number:0{_DIGITS}d}-{at:04d}.parquet")
            for at, file in enumerate(staged)
        ]
        for file, name in zip(staged, files, strict=True):
            file.rename(file.with_name(Path(name).name))
        # Also the names of the folders between the archive's and the files': the note depends on all of them.
        for folder in sorted({at for file in staged for at in file.parents if self._own in (at, *at.parents)}):
            sync_folder(folder)
        marks = {**(self._last.watermarks if self._last is not None else {}), spool: stop}
        made = Commit(
            number=number,
            spool=spool,
            start=start,
            stop=stop,
            rows=rows,
            files=tuple(files),
            watermarks=marks,
            total=self.total + rows,
        )
        write_file(self._note(number), made.to_json().encode())
        self._last = made
        self._move(made)
        self._note(number - _KEPT).unlink(missing_ok=True)
        return made

    def files(self) -> list[Path]:
        """The files of the table, including those of a noted batch whose move a kill interrupted.

        Raises:
            ArchiveError: a folder of it cannot be read.
        """
        last = self._last or self._read_last()
        try:
            found = {file for file in files_of(self.path) if _is_of_table(file.relative_to(self.path).parts)}
            if last is not None:
                # After the walk: a file that is moved meanwhile has one of the two paths.
                moved = (self.moved(self._staging / str(last.number) / name) for name in last.files)
                found |= {file for file in moved if is_there(file)}  # a removed file has neither path
        except OSError as error:
            raise ArchiveError(f"{error.filename or self.path} cannot be read: {error.strerror or error}") from error
        return sorted(found)

    def moved(self, file: Path) -> Path:
        """The current path of a file of `files`."""
        if self._staging not in file.parents or is_there(file):
            return file
        return self.path / Path(*file.relative_to(self._staging).parts[1:])

    # ---- notes

    def _note(self, number: int) -> Path:
        return self._commits / f"{number:0{_DIGITS}d}.json"

    def _read_last(self) -> Commit | None:
        try:
            names = [name for name in os.listdir(self._commits) if name.endswith(".json")]
        except FileNotFoundError:
            return None
        if not names:
            return None
        path = self._commits / max(names)
        try:
            return Commit.from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArchiveError(f"{path} cannot be read: {error}") from error

    def _move(self, commit: Commit) -> None:
        """Move the files of a batch to the readers' folders; no effect if that is done."""
        staging = self._staging / str(commit.number)
        folders: set[Path] = set()
        for name in commit.files:
            source, target = staging / name, self.path / name
            # An error must not count as absence: the file would be removed with its staging folder.
            if not is_there(source):
                continue
            make_folder(target.parent, 0o777)
            source.rename(target)
            folders |= {target.parent, target.parent.parent}
        for folder in sorted(folders | {self.path}):
            sync_folder(folder)
        if staging.exists():
            shutil.rmtree(staging)


def _is_of_table(parts: tuple[str, ...]) -> bool:
    """Whether a file has the path of a batch's file, and is not in a foreign folder inside the table's."""
    return len(parts) == 3 and parts[0].startswith("date=") and parts[1].startswith("hour=")


def files_of(folder: Path) -> Iterator[Path]:
    """The Parquet files of a table's or a batch's folder; none if it does not exist.

    Raises:
        OSError: a folder cannot be listed. `os.walk` would leave out what is in it.
    """
    for at, folders, names in os.walk(folder, onerror=_refuse):
        # A foreign folder may be unreadable.
        folders[:] = [each for each in folders if each.startswith(("date=", "hour="))]
        yield from (Path(at) / name for name in names if name.endswith(".parquet") and not name.startswith((".", "_")))


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
