"""Back-up: a copy of the data folder, made while the namespace runs.

What it is: the store's checkpoint, the bodies of large messages, the keys and the certificate in a folder that `isthmus
namespace serve --data` can use directly. What it is not: a copy on another disk; the operator moves it there.

Invariants:
    I1. A folder with the back-up's name is complete and on disk; an interrupted back-up has another name.
    I2. Keys keep their file mode: a file that only the owner could read stays so in the copy.
    I3. The next back-up in the same folder removes the remains of a killed one, but not the folder that another process fills.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from isthmus.entities import BlobFiles, Journal
from isthmus.errors import InvalidArgumentError, StoreError
from isthmus.store import BlobFolder, RocksJournal, make_private

__all__ = ["FRAGMENTS_FOLDER", "LARGE_FOLDER", "PARTIAL", "back_up", "back_up_stopped", "copy_folder", "locked"]

# Of the bodies of large messages, in the data folder.
LARGE_FOLDER = "large"
# Of the data folder: a store for each number below it.
FRAGMENTS_FOLDER = "fragments"
PARTIAL = ".partial"
"""The suffix, after a dot and eight hexadecimal digits, of the name of a folder that is not complete yet; it can be removed."""
_LEFT = re.compile(r".+\.[0-9a-f]{8}\.partial")
_PARTS = frozenset({"store", FRAGMENTS_FOLDER, LARGE_FOLDER, "keys.json", "certificate"})
# Another process may see a folder between its creation and its lock.
_LEFT_SECONDS = 60.0


def back_up(
    store: Journal,
    blobs: BlobFiles | None,
    data: Path,
    folder: Path,
    fragments: Mapping[str, Journal] | None = None,
) -> None:
    """Copies a namespace that is open in this process; blocks, and may run in another thread than its loop.

    Args:
        store: the open store.
        blobs: the bodies of its large messages; None if it takes none.
        data: the data folder.
        folder: what to make; its parents are made as well.
        fragments: the open stores of partitioned entities, by the names of their folders.

    Raises:
        InvalidArgumentError: the folder exists already, or cannot be created.
        StoreError: the disk refused; no folder of that name remains.
    """
    with _made_whole(folder, parent_mode=0o700) as partial:
        # The catalog is copied last: an entity that was created after a fragment's copy is empty in the back-up, and no stored
        # message lies where a later entity would find it.
        if fragments:
            make_private(partial / FRAGMENTS_FOLDER)
            for name, journal in fragments.items():
                journal.checkpoint(partial / FRAGMENTS_FOLDER / name)
            _sync(partial / FRAGMENTS_FOLDER)
        with nullcontext() if blobs is None else blobs.kept():
            store.checkpoint(partial / "store")
            if blobs is not None:
                blobs.copy_to(partial / LARGE_FOLDER)
        _copy_small_files(data, partial)


def back_up_stopped(data: Path, folder: Path) -> None:
    """Copy a namespace that no process serves.

    Raises:
        StoreError: a process has it open, or there is no store, or the disk refused.
        InvalidArgumentError: as for `back_up`.
    """
    if not (data / "store" / "CURRENT").exists():
        raise StoreError(f"There is no namespace in '{data}': name its data folder.")
    with ExitStack() as stack:
        store = RocksJournal(data / "store")
        stack.callback(store.close)
        fragments: dict[str, Journal] = {}
        for each in sorted((data / FRAGMENTS_FOLDER).glob("*")):
            journal = fragments[each.name] = RocksJournal(each)
            stack.callback(journal.close)
        back_up(store, BlobFolder(data / LARGE_FOLDER), data, folder, fragments)


def copy_folder(source: Path, target: Path) -> None:
    """Moves a back-up to its target folder, perhaps on another disk: by links where that is possible, else by copies.

    Raises:
        InvalidArgumentError: the target is there already, or cannot be made.
        StoreError: the disk refused; no folder of that name remains.
    """
    with _made_whole(target) as partial:
        shutil.copytree(source, partial, copy_function=_link_or_copy, dirs_exist_ok=True)
        for folder in (partial, *(each for each in partial.rglob("*") if each.is_dir())):
            _sync(folder)


@contextmanager
def _made_whole(folder: Path, *, parent_mode: int = 0o777) -> Iterator[Path]:
    """A folder next to `folder` to fill; it gets that name once it is filled, and is removed if it is not.

    Raises:
        InvalidArgumentError: the folder exists already, or cannot be created.
        StoreError: the disk refused; no folder of that name remains.
    """
    # A name of its own: two back-ups to the same target at a time must not fill, or remove, the same folder.
    partial = folder.with_name(f"{folder.name}.{os.urandom(4).hex()}{PARTIAL}")
    if folder.exists():
        raise InvalidArgumentError(f"'{folder}' is there already; name a folder that is not")
    try:
        folder.parent.mkdir(mode=parent_mode, parents=True, exist_ok=True)
        make_private(partial)
    except StoreError as error:
        raise InvalidArgumentError(str(error)) from None
    except OSError as error:
        raise InvalidArgumentError(f"'{folder}' cannot be made: {error.strerror}") from None
    try:
        with locked(partial):
            _remove_left(folder.parent)
            yield partial
            partial.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        raise StoreError(f"The back-up '{folder}' could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder, so that no other process takes it for the remains of a killed back-up; the lock ends with this process.

    Raises:
        BlockingIOError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _remove_left(parent: Path) -> None:
    """Removes the remains of killed back-ups in a folder; a remnant that cannot be removed stays."""
    found: list[Path] = []
    with suppress(OSError):  # a folder that may be written to and not read
        found = [each for each in parent.iterdir() if _LEFT.fullmatch(each.name)]
    for each in found:
        with suppress(OSError):
            if each.is_symlink() or not each.is_dir():
                continue
            is_old = time.time() - each.stat().st_mtime > _LEFT_SECONDS
            if is_old and {part.name for part in each.iterdir()} <= _PARTS:
                with locked(each):
                    shutil.rmtree(each, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    # The source is removed afterwards, so that a link is a move.
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
        _sync(Path(target))


def _copy_small_files(data: Path, target: Path) -> None:
    """Keys and certificate."""
    for source in (data / "keys.json", *sorted((data / "certificate").glob("*"))):
        if not source.is_file():
            continue
        copy = target / source.relative_to(data)
        copy.parent.mkdir(mode=0o700, exist_ok=True)
        mode = source.stat().st_mode & 0o777
        with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(source.read_bytes())
            file.flush()
            os.fsync(file.fileno())
    with suppress(FileNotFoundError):
        _sync(target / "certificate")
    _sync(target)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
