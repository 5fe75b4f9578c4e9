"""The copied and the due session states of a route, across restarts.

What it is: one file of lines that are appended, each a JSON array, and rewritten when most of them are obsolete. It contains digests
and no states. What it is not: the decisions (`state_copy`).

| line | meaning |
| --- | --- |
| `["of", SOURCE, QUEUE]` | the identity of the source's namespace, and the queue there, which the following lines are about |
| `["to", TARGET, QUEUE]` | the same of the target; if it was another one before, nothing was copied to it and nothing queried |
| `["due", SESSION]` | the state of the session may differ from what was copied |
| `["tried", SESSION, DIGEST]` | the target was requested to set this state; none of the session was copied before |
| `["copied", SESSION, DIGEST]` | this state was copied last, and the session is not due; an empty digest: no state |
| `["looked", MILLISECONDS]` | states that were set before that wall time are known |

Lines are not synced individually: a kill of the process loses none. After a power failure the last ones may be missing; then a state is
copied again.

Invariants:
    I1. Incomplete (after a kill) and unreadable lines are ignored.
    I2. Lines about another source are ignored, and to another target nothing was copied: neither to another namespace nor to another
        queue of the same one. A line without queue, of an earlier release, matches any.
    I3. Lines that the disk refused are written with the next note that it accepts.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from isthmus.errors import StoreError
from isthmus.whole_file import make_folder, write_file

__all__ = ["StateMemory"]

# A file of fewer lines is not rewritten.
FEW_LINES = 2_000


class _Location(NamedTuple):
    """The location of states: the identity of a namespace, and a queue of it; empty where unknown."""

    namespace: str
    queue: str = ""

    @classmethod
    def of(cls, namespace: str, queue: str) -> _Location:
        return cls(namespace, queue.lower())

    @classmethod
    def of_line(cls, line: list[Any]) -> _Location:
        return cls(*map(str, line[1:3]))

    def may_be(self, other: _Location) -> bool:
        """Whether both may be the same, as far as is known."""
        are_alike = self.queue == other.queue or not (self.queue and other.queue)
        return self.namespace == other.namespace and are_alike


class StateMemory:
    """The memory of one route.

    Args:
        path: the file.

    Attributes:
        copied: the digest of the last copied state, by session; only of sessions with a state.
        due: sessions that are due.
        tried: by session, the digests that the target was requested to set since, where nothing was copied before.
        queried_ms: states that were set before that wall time are known; 0: none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._lines = 0
        self._of = _Location("")
        self._to: _Location | None = None
        self._is_mine = False
        self.copied: dict[str, bytes] = {}
        self.due: dict[str, None] = {}
        self.tried: dict[str, set[bytes]] = {}
        self.queried_ms = 0

    def open(self, source: str, queue: str) -> None:
        """Reads the lines about a source, and accepts notes from then on.

        Args:
            source: the identity of its namespace.
            queue: its path there.

        Raises:
            StoreError: the file cannot be read or written.
        """
        self.close()
        self._of = _Location.of(source, queue)
        self._clear()
        try:
            make_folder(self._path.parent)
            for line in self._content().splitlines():
                self._lines += 1
                with contextlib.suppress(ValueError, TypeError, KeyError, IndexError):
                    self._take(json.loads(line))
            self._rewrite()
        except OSError as error:
            raise self._error(error) from None

    def _content(self) -> bytes:
        """The bytes of the file; none if it does not exist. `Path.exists` may be false for any error."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def is_other_target(self, target: str, queue: str) -> bool:
        """Whether the notes are about another target."""
        return self._to is not None and not self._to.may_be(_Location.of(target, queue))

    def note_target(self, target: str, queue: str) -> None:
        """Notes the identity of the target's namespace, and the queue there. If it was another one before, nothing was copied and nothing
        queried.

        Raises:
            StoreError: the file cannot be written; the same applies to all notes.
        """
        location = _Location.of(target, queue)
        if self._to != location:
            self._append(["to", *location])

    def note_due(self, session_id: str) -> None:
        """Notes that a session is due."""
        self._append(["due", session_id])

    def note_tried(self, session_id: str, digest: bytes) -> None:
        """Notes that the target is requested to set a state of a session without a copied one."""
        self._append(["tried", session_id, digest.hex()])

    def note_copied(self, session_id: str, digest: bytes, *, is_due: bool) -> None:
        """Notes the last copied state; and whether the session is still due."""
        self._append(["copied", session_id, digest.hex()])
        if is_due:
            self._append(["due", session_id])

    def note_queried(self, wall_ms: int) -> None:
        """Notes that states set before that time are known."""
        self._append(["looked", wall_ms])

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # ---- lines

    def _take(self, line: Any) -> None:
        kind = line[0]
        if kind == "of":
            self._is_mine = _Location.of_line(line).may_be(self._of)
        elif not self._is_mine:
            return
        elif kind == "to":
            location = _Location.of_line(line)
            if self._to is not None and not self._to.may_be(location):
                self.copied.clear()
                self.tried.clear()
                self.queried_ms = 0
            self._to = location
        elif kind == "due":
            self.due[str(line[1])] = None
        elif kind == "tried":
            self.tried.setdefault(str(line[1]), set()).add(bytes.fromhex(line[2]))
        elif kind == "copied":
            session_id, digest = str(line[1]), bytes.fromhex(line[2])
            self.due.pop(session_id, None)
            self.tried.pop(session_id, None)
            if digest:
                self.copied[session_id] = digest
            else:
                self.copied.pop(session_id, None)
        elif kind == "looked":
            self.queried_ms = int(line[1])

    def _append(self, line: list[Any]) -> None:
        self._take(line)
        self._lines += 1
        text = _text(line)
        try:
            is_long = self._lines > max(FEW_LINES, 4 * (len(self.copied) + len(self.due) + len(self.tried)))
            if is_long or self._descriptor < 0 or os.write(self._descriptor, text) < len(text):
                self._rewrite()
        except OSError as error:
            self.close()  # the next note rewrites the file
            raise self._error(error) from None

    def _rewrite(self) -> None:
        lines: list[list[Any]] = [["of", *self._of], *([] if self._to is None else [["to", *self._to]])]
        lines += [["copied", name, digest.hex()] for name, digest in self.copied.items()]
        lines += [["due", name] for name in self.due]
        lines += [["tried", name, each.hex()] for name, digests in self.tried.items() for each in digests]
        lines += [["looked", self.queried_ms]] if self.queried_ms else []
        self.close()
        write_file(self._path, b"".join(map(_text, lines)))
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._lines, self._is_mine = len(lines), True

    def _clear(self) -> None:
        self.copied.clear()
        self.due.clear()
        self.tried.clear()
        self.queried_ms, self._lines, self._is_mine, self._to = 0, 0, False, None

    def _error(self, error: OSError) -> StoreError:
        return StoreError(f"session states in {self._path}: {error.strerror or error}")


def _text(line: list[Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"
