"""Folders that only their owner may use, whatever the umask.

What it is: a folder made with mode 0700, or changed to it. What it is not: a mode for files that RocksDB makes while it
runs; the process that serves a namespace sets its umask.

Invariants:
    I1. Others cannot read anything in the folder: a folder that belongs to another user and is open to more than
        its owner is refused.
    I2. A folder that others share on purpose (sticky, as /tmp is) is never narrowed.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from isthmus.errors import StoreError

__all__ = ["make_private", "narrow_files"]

_OTHERS = 0o077


def make_private(folder: Path) -> bool:
    """Make a folder for this user alone; returns whether it existed and was open to others.

    Raises:
        StoreError: it cannot be made, or belongs to another user and others may use it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreError(f"The folder '{folder}' cannot be made: {error.strerror}") from error
    try:
        found = folder.stat()
    except OSError as error:
        raise StoreError(f"The folder '{folder}' cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(f"The folder '{folder}' cannot be made: there is a file of that name")
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o700 == 0o700 and not mode & _OTHERS:
        return False
    if found.st_uid != os.geteuid() or mode & stat.S_ISVTX:
        if not mode & _OTHERS:
            return False
        raise StoreError(
            f"The folder '{folder}' (mode {mode:04o}, user {found.st_uid}) can be used by others, and messages would be "
            f"open to them: name a folder inside it that is not there yet, or make it mode 0700 and user {os.geteuid()}'s"
        )
    try:
        folder.chmod(0o700)
    except OSError as error:
        raise StoreError(f"The folder '{folder}' cannot be changed to mode 0700: {error.strerror}") from error
    return bool(mode & _OTHERS)


def narrow_files(folder: Path) -> None:
    """Change the files of a folder to mode 0600; those of other users, which cannot be changed, are left.

    Raises:
        StoreError: the folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # RocksDB removes files itself
                    if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mode & _OTHERS:
                        Path(entry.path).chmod(0o600)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"The files in '{folder}' cannot be changed to mode 0600: {error.strerror}") from error
