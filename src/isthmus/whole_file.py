"""Small files that are replaced whole, and folders whose names are on disk.

What it is: the one way in which state, keys, notes and certificates are written. What it is not: the store.

Invariants:
    I1. The file is created with its mode; no wider one is ever seen.
    I2. Interrupted at any instant, by a power cut too, the old content or the new one is there.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["make_folder", "sync_folder", "write_file"]


def write_file(path: Path, content: bytes, *, mode: int = 0o600, suffix: str = ".new") -> None:
    """Replace a file at once; it is on disk then.

    Args:
        path: the file.
        content: what it holds then.
        mode: its permissions.
        suffix: of the file that is written first; where several processes replace one file, each needs its own.

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
    """Make a folder and those above it that are missing; their names are on disk then, or a power cut takes what is synced in them, too.

    Args:
        path: the folder; it may exist.
        mode: permissions of those that are made.

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


def sync_folder(path: Path) -> None:
    """Put the names in a folder on disk.

    Raises:
        OSError: the disk refuses.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
