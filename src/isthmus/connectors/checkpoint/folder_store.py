"""Checkpoints in a folder.

What it is: one small file for each partition, `namespace/hub/group/partition.json`, replaced as a whole and synced. A lock file for each
group keeps two processes of one machine from overwriting each other's checkpoints. What it is not: a store for readers on several machines,
unless they share the folder over a file system with locks across machines.

Invariants: I1 and I2 of `checkpoint`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from isthmus.connectors.checkpoint.checkpoint import Checkpoint, CheckpointError, GroupKey
from isthmus.whole_file import make_folder, write_file

__all__ = ["FolderStore"]

_SUFFIX = ".json"


class FolderStore:
    """The store; `folder` is created when it is needed."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def load(self, key: GroupKey) -> dict[int, Checkpoint]:
        """The checkpoints of a group by partition.

        Raises:
            CheckpointError: a file cannot be read, or is not a checkpoint.
        """
        folder = self._of(key)
        found: dict[int, Checkpoint] = {}
        with _errors_of(folder):
            for name in _names_in(folder):
                number = name.removesuffix(_SUFFIX)
                if name.endswith(_SUFFIX) and number.isdecimal():
                    checkpoint = _read(folder / name)
                    if checkpoint is not None:
                        found[int(number)] = checkpoint
        return found

    def write(self, key: GroupKey, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Replaces checkpoints, by partition.

        Raises:
            CheckpointError: a file cannot be written.
        """
        folder = self._of(key)
        with _errors_of(folder):
            make_folder(folder)
            with _locked(folder):
                for partition, checkpoint in checkpoints.items():
                    path = folder / f"{partition}{_SUFFIX}"
                    before = _read(path)
                    if before is not None and before.stays(checkpoint, key.created_ms):
                        continue
                    stored: dict[str, int | str] = {"sequence_number": checkpoint.sequence, "offset": checkpoint.offset}
                    if key.created_ms:
                        stored["created_ms"] = key.created_ms
                    write_file(path, json.dumps(stored).encode())

    def close(self) -> None:
        """Does nothing: no file is open."""

    def _of(self, key: GroupKey) -> Path:
        return self._folder.joinpath(*(_name(each) for each in (key.identity, key.hub.lower(), key.group.lower())))


def _names_in(folder: Path) -> list[str]:
    """The names in a folder; none if it does not exist. `Path.is_dir` may be false for any error."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _name(text: str) -> str:
    """A file name for any text; `.` and `..` are not allowed."""
    return quote(text, safe="$ ").replace(".", "%2E") if text.strip(".") == "" else quote(text, safe="$ ")


def _read(path: Path) -> Checkpoint | None:
    try:
        stored = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        raise CheckpointError(f"{path}: is not a checkpoint; remove it to begin where `start` says") from None
    stored = stored if isinstance(stored, dict) else {}
    sequence, offset, created_ms = stored.get("sequence_number"), stored.get("offset"), stored.get("created_ms", 0)
    if type(sequence) is not int or not isinstance(offset, str) or type(created_ms) is not int:
        raise CheckpointError(f"{path}: is not a checkpoint; remove it to begin where `start` says")
    return Checkpoint(sequence, offset, created_ms=created_ms)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _errors_of(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"checkpoints in {folder}: {error.strerror or error}") from None
