"""RocksDB's manifest: the write-ahead logs that a start replays.

What it is: the number of the oldest log that is needed, read from the manifest that `CURRENT` names. What it is not: a parser
of the other edits, or a check of checksums; RocksDB reads the manifest itself, and refuses a damaged one.
Spec: RocksDB's wiki, "MANIFEST", and `db/version_edit.h`. An edit is pairs of a tag (varint32) and a value; numbers are
before the tables that an edit adds or removes.

Invariants:
    I1. A number is returned only if an edit contains it: an edit that cannot be parsed makes no log obsolete.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isthmus.store.log_walk import records

__all__ = ["oldest_log"]

_COMPARATOR, _LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _PREVIOUS_LOG = 1, 2, 3, 4, 9
_OLDEST_LOG, _MAX_COLUMN_FAMILY, _DATABASE_ID = 10, 203, 8193
_TEXTS = (_COMPARATOR, _DATABASE_ID)
_NUMBERS = (_LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _PREVIOUS_LOG, _OLDEST_LOG, _MAX_COLUMN_FAMILY)


def oldest_log(folder: Path) -> int:
    """The number of the oldest log whose changes are not in tables; 0 where it is unknown.

    Raises:
        OSError: the manifest exists and cannot be read.
    """
    try:
        name = (folder / "CURRENT").read_text(encoding="ascii").strip()
        data = (folder / name).read_bytes()
    except (FileNotFoundError, IsADirectoryError, ValueError):  # zeros or bytes outside of ASCII are not a name
        return 0
    return max((value for edit in records(data) for tag, value in _numbers(edit) if tag == _OLDEST_LOG), default=0)


def _numbers(edit: bytes) -> Iterator[tuple[int, int]]:
    """Tags and numbers of an edit, up to the first tag with another type of value."""
    at = 0
    try:
        while at < len(edit):
            tag, at = _varint(edit, at)
            value, at = _varint(edit, at)
            if tag in _TEXTS:
                at += value
            elif tag in _NUMBERS:
                yield tag, value
            else:
                return
    except IndexError:
        return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
