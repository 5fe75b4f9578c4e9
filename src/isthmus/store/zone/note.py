"""The note beside each copy: what is recorded of the copy apart from its contents.

What it is: a small file, replaced whole and synced. What it is not: a row of the copy's own store: it is read where that
cannot be opened.

Invariants:
    I1. A damaged note is distinguished from a missing one.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import NamedTuple

from isthmus.store.zone.change import Position
from isthmus.whole_file import write_file

__all__ = ["Note", "NoteError", "read_note", "write_note"]

_NAME = "zone.json"


class NoteError(Exception):
    """A note exists and cannot be read."""


class Note(NamedTuple):
    """What is recorded of a copy.

    Attributes:
        set_name: of the three copies that belong together.
        promise: the highest epoch that the copy has promised; a lower one must not write.
        repair: while the copy is being brought up to date: the position that the others had when that began. Its contents
            then cannot be relied on, but it knows that history went on to there.
        began: the epoch in which that began; the position is of an earlier one until something is written in it.
    """

    set_name: str
    promise: int = 0
    repair: Position | None = None
    began: int = 0


def read_note(folder: Path) -> Note | None:
    """The note of a copy; None if there is none.

    Raises:
        NoteError: it is damaged.
        OSError: the disk refuses.
    """
    try:
        content = (folder / _NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        body, _, check = content.rpartition(b"\n")
        if int(check, 16) != zlib.crc32(body):
            raise ValueError
        document = json.loads(body)
        repair = Position(*map(int, document["repair"])) if document["repair"] else None
        began = document.get("began", repair.epoch if repair is not None else 0)
        return Note(str(document["set"]), int(document["promise"]), repair, int(began))
    except (ValueError, KeyError, TypeError):
        raise NoteError(f"'{folder / _NAME}' is damaged") from None


def write_note(folder: Path, note: Note) -> None:
    """Replace the note; it is durable on return.

    Raises:
        OSError: the disk refuses.
    """
    document = {"set": note.set_name, "promise": note.promise, "repair": note.repair, "began": note.began}
    body = json.dumps(document).encode()
    write_file(folder / _NAME, body + b"\n%08x" % zlib.crc32(body))
