"""The lock of a run on its state folder.

What it is: a lock of a file in the state folder, which contains the checkpoints and the status of one run: of two runs that share them,
e.g. one with `--task flights` and one with `--task gates`, each stops the other's queries and overwrites the other's status.
What it is not: the claim of a task (`isthmus.supervisor.claim.claim`), which keeps runs on other machines out.

Invariants:
    I1. One run at a time locks a folder; the folder of a run that was killed is free.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from isthmus.errors import InvalidArgumentError, IsthmusError
from isthmus.topology.file.name import state_folder

__all__ = ["FolderInUseError", "former_folders", "locked_folder", "usable_folder"]

FILE = "run.lock"
# The files of a state folder that matter to the next run.
_KEPT = ("paused.json", "session-states", "spool-places.json", "spools")


class FolderInUseError(IsthmusError):
    """Another run uses the state folder."""

    code = "state-folder-in-use"

    def __init__(self, folder: str = "") -> None:
        super().__init__("", folder=folder)

    def text(self) -> str:
        return (
            f"another run keeps its checkpoints and its status in {self.attributes.get('folder')}; stop it, or give this one a folder "
            "of its own with --state, which `isthmus status`, `pause` and `resume` then need, too"
        )


def usable_folder(folder: Path) -> TextIO:
    """The lock file in a state folder, open; both are created if absent.

    Raises:
        InvalidArgumentError: the folder is not writable.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return (folder / FILE).open("w")
    except OSError as error:
        text = f"the state folder {folder} cannot be used: {error.strerror or error}; name another one with --state"
        raise InvalidArgumentError(text) from None


def former_folders(folder: Path, file: str) -> list[Path]:
    """Other non-empty state folders whose federation file does not exist any more: the file may have been renamed.

    Args:
        folder: the state folder of a run; where it is not the default one of a file, the result is empty.
        file: the federation file.
    """
    own = state_folder(file)
    if folder.absolute() != own:
        return []
    stems = {each.stem for each in own.parent.parent.iterdir() if each.is_file()}
    others = (each.parent for each in own.parent.glob(f"*/{FILE}") if each.parent.name not in stems)
    return sorted(each for each in others if any((each / name).exists() for name in _KEPT))


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Locks the folder against other runs.

    Args:
        folder: the state folder; created if absent.

    Raises:
        FolderInUseError: another run uses it.
        InvalidArgumentError: the folder is not writable.
    """
    with usable_folder(folder) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUseError(str(folder)) from None
        yield
