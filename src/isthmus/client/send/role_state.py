"""The active namespace, kept over restarts.

What it is: one small file, replaced as a whole. What it is not: an agreement between processes; each has its own file, or
processes share a file in which the last swap counts.

Invariants:
    I1. After a crash at any instant the file contains the old or the new state, never a part.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path

from isthmus.client.send.replication import Side
from isthmus.errors import StoreError
from isthmus.whole_file import write_file

__all__ = ["RoleState"]

_log = logging.getLogger(__name__)


class RoleState:
    """The file with the roles of one sender or receiver.

    Args:
        path: the file; its folder must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def load(self) -> Side:
        """The active side; the primary if the file is missing or invalid; the latter is logged."""
        try:
            return Side(json.loads(self._path.read_text(encoding="utf-8"))["active"])
        except FileNotFoundError:
            return Side.PRIMARY
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("roles cannot be read, the primary is taken as active: file=%s error=%s", self._path, error)
            return Side.PRIMARY

    def save(self, active: Side) -> None:
        """Replace the file, and wait until it is on disk.

        Raises:
            StoreError: the disk refused.
        """
        try:
            # Several senders of a process may share the file.
            suffix = f".{os.getpid()}-{threading.get_ident()}.new"
            write_file(self._path, json.dumps({"active": active.value}).encode(), suffix=suffix)
        except OSError as error:
            raise StoreError(
                f"the roles cannot be written to {self._path}: {error.strerror}; free or repair the disk"
            ) from error
