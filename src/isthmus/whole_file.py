"""Small files that are replaced as a whole, and folders whose names are durable.

What it is: the common functions that write state, keys, notes and certificates, and look for them. What it is not: the store.

Invariants:
    I1. The file is created with its mode; it never has a wider one.
    I2. After an interruption at any instant, also by a power cut, the file has the old content or the new one.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_there", "make_folder", "sync_folder", "write_file"]


def write_file(path: Path, content: bytes, *, mode: int = 0o600, suffix: str = ".new") -> None:
    """Replace a file atomically; it is durable on return.

    Args:
        path: the file.
        content: its new content.
        mode: its permissions.
        suffix: of the temporary file; where several processes replace one file, each needs its own.

    Raises:
        OSError: the folder or the disk refuses. The old content is kept, unless only the folder could not be synced: then the file has the
            new one, which a power cut may take.
    """
    fresh = path.with_name(path.name + suffix)
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent)


def make_folder(path: Path, mode: int = 0o700) -> None:
    """Make a folder and its missing parents, with durable names: without that, a power cut loses the files synced in them, too.

    Args:
        path: the folder; it may exist.
        mode: permissions of the folders that are made.

    Raises:
        OSError: it cannot be made.
    """
    missing = []
    at = path
    while not at.is_dir() and at != at.parent:
        missing.append(at)
        at = at.parent
    for each in reversed(missing):
        each.mkdir(mode=mode, exist_ok=True)
        sync_folder(each.parent)


def is_there(path: Path) -> bool:
    """Whether a file or folder exists. `Path.exists` may be false for any error.

    Raises:
        OSError: that is not known.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable.

    Raises:
        OSError: the disk refuses.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
