"""A check of a copy's files from outside: files removed, replaced or overwritten while the store has them open.

What it is: names, sizes, times and first bytes of files, compared with those of the check before. RocksDB keeps its files
open and detects none of that until it opens or reads them again, which for a copy that serves no reads is never. What it is
not: a check of all bytes (`RocksJournal.verified`).

Invariants:
    I1. RocksDB's own changes of its files are not reported: tables never change once they are live, logs and manifests only
        grow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["FileWatch"]

_HEAD_BYTES = 64


class _Seen(NamedTuple):
    inode: int
    size: int
    modified_ns: int
    head: bytes


class FileWatch:
    """The files of one store.

    Args:
        folder: the store's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables: dict[str, _Seen] = {}
        self._logs: dict[str, _Seen] = {}

    def check(self, tables: Callable[[], Sequence[str]]) -> str:
        """The fault of the files; empty where there is none.

        Args:
            tables: returns the names of the store's live tables.

        Raises:
            OSError: the files cannot be checked now, which is no evidence of damage.
        """
        try:
            current = (self._folder / "CURRENT").read_text(encoding="ascii").strip()
            if not (self._folder / current).is_file():
                return f"CURRENT names '{current[:40]}', which does not exist"
            return self._check_tables(tables) or self._check_logs()
        except UnicodeDecodeError:
            return "CURRENT is damaged"
        except FileNotFoundError as error:
            return f"'{Path(str(error.filename)).name}' is missing"

    def _check_tables(self, tables: Callable[[], Sequence[str]]) -> str:
        before, self._tables = self._tables, {}
        for name in tables():
            try:
                seen = _seen(self._folder / name, 0)
            except FileNotFoundError:
                if name in tables():
                    return f"table {name} is missing"
                continue  # merged into others meanwhile
            if before.get(name, seen) != seen:
                return f"table {name} was changed from outside"
            self._tables[name] = seen
        return ""

    def _check_logs(self) -> str:
        before, self._logs = self._logs, {}
        for name in os.listdir(self._folder):
            if not (name.endswith(".log") or name.startswith("MANIFEST-")):
                continue
            try:
                now = _seen(self._folder / name, _HEAD_BYTES)
            except FileNotFoundError:  # RocksDB removes them itself
                continue
            old = before.get(name)
            if old is not None and (old.inode != now.inode or now.size < old.size or not now.head.startswith(old.head)):
                return f"{name} was changed from outside"
            self._logs[name] = now
        return ""


def _seen(path: Path, head_bytes: int) -> _Seen:
    head = b""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if head_bytes:
            head = file.read(min(head_bytes, found.st_size))
    return _Seen(found.st_ino, found.st_size, found.st_mtime_ns, head)
