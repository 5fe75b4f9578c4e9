"""Tasks that the operator has paused.

What it is: a file in the state folder of a federation's runs that names the paused tasks, and since when. `isthmus pause` and
`isthmus resume` write it; a run reads it in each iteration, and at its start. docs/how-to/pause-a-task.md. What it is
not: the pausing (`isthmus.supervisor.supervisor`).

Invariants:
    I1. The file is replaced as a whole: a reader gets the state before or after a change.
    I2. A file that cannot be read ends a run before it starts; while it runs, the last contents read are valid.
"""

from __future__ import annotations

import fcntl
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from isthmus.errors import IsthmusError
from isthmus.whole_file import write_file

__all__ = ["FILE", "PauseFile", "PauseFileError"]

log = logging.getLogger(__name__)

FILE = "paused.json"
VERSION = 1


class PauseFileError(IsthmusError):
    """The file cannot be read or written; the text says why."""

    code = "pause-file"


class PauseFile:
    """The paused tasks of a federation.

    Args:
        folder: the state folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._seen: tuple[int, int, int] | None = None  # the file at the last read: inode, time, size
        self._tasks: Mapping[str, str] = {}
        self._fault = ""

    def tasks(self) -> Mapping[str, str]:
        """The paused tasks, each with the time since when it is paused, ISO 8601.

        Raises:
            PauseFileError: the file cannot be read.
        """
        try:
            found = self.path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                self._tasks = self._parsed(self.path.read_bytes())
                self._seen = seen
        except FileNotFoundError:
            self._seen, self._tasks = None, {}
        except OSError as error:
            raise PauseFileError(f"{self.path} cannot be read: {error.strerror or error}") from None
        return self._tasks

    def last_known(self) -> Mapping[str, str]:
        """As `tasks`; if the file cannot be read, the last contents read, and the fault is logged once."""
        fault = ""
        try:
            return self.tasks()
        except PauseFileError as error:
            fault = str(error)
            if fault != self._fault:
                log.warning("%s; the paused tasks stay as they were", fault)
            return self._tasks
        finally:
            self._fault = fault

    def pause(self, task: str) -> bool:
        """Pauses a task; returns whether it was not paused before.

        Raises:
            PauseFileError: the file cannot be read or written.
        """
        with self._changing() as tasks:
            if task in tasks:
                return False
            tasks[task] = datetime.now(UTC).isoformat(timespec="seconds")
            self._replace(tasks)
        return True

    def resume(self, task: str) -> bool:
        """Resumes a task; returns whether it was paused before.

        Raises:
            PauseFileError: the file cannot be read or written.
        """
        with self._changing() as tasks:
            if tasks.pop(task, None) is None:
                return False
            self._replace(tasks)
        return True

    # ---- the file

    def _parsed(self, content: bytes) -> dict[str, str]:
        try:
            document = json.loads(content)
            version, tasks = document["version"], document["tasks"]
            if version != VERSION:
                raise ValueError(f"version {version}, expected {VERSION}")
            return {str(task): str(since) for task, since in tasks.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            hint = "pause the tasks again after you have removed it"
            raise PauseFileError(f"{self.path} does not say which tasks are paused ({error}); {hint}") from None

    @contextmanager
    def _changing(self) -> Iterator[dict[str, str]]:
        """The tasks, locked against other changes."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield dict(self.tasks())
        except OSError as error:
            raise PauseFileError(f"{self.path} cannot be written: {error.strerror or error}") from None

    def _replace(self, tasks: Mapping[str, str]) -> None:
        write_file(self.path, json.dumps({"version": VERSION, "tasks": dict(tasks)}).encode())
