"""Bringing a copy to the contents of another one.

What it is: a copy of the whole store, and a copy of the keys that one of the two has touched since their last common batch. What
it is not: the decision which copy is right (`election`), or the time at which it serves again (`repair`).

Invariants:
    I1. Copies share no bytes on disk: files are copied, never linked.
    I2. After `copy_touched` with all keys touched since the last common batch, by either, and `finish`, both have the same contents.
    I3. A target has the row of a batch only if it has the values of its keys: a repair that is aborted at any instant is resumed
        at a batch that both really have.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

from isthmus.entities.storage.journal import Journal
from isthmus.errors import StoreError
from isthmus.store.private_folder import make_private
from isthmus.store.zone.change import (
    POSITION_KEY,
    Position,
    Touched,
    epoch_of,
    log_key,
    log_sequence,
    unpack_position,
)
from isthmus.whole_file import sync_folder

__all__ = [
    "checkpoint_to",
    "common_sequence",
    "copy_rows",
    "copy_touched",
    "copy_whole",
    "finish",
    "position_of",
    "touched_after",
]

_LAST = (1 << 64) - 1
_KEYS_AT_ONCE = 500
_COPY_BYTES = 1 << 20


def position_of(journal: Journal) -> Position:
    """The position of a copy."""
    return unpack_position(journal.get(POSITION_KEY))


def common_sequence(source: Journal, target: Journal) -> int | None:
    """The last batch that both have, with rows; None if the rows do not reach back to one.

    An epoch has one writer, so that the same sequence of the same epoch is the same batch, and so are all before it.
    """
    rows = [(log_sequence(key), epoch_of(row)) for key, row in target.scan(log_key(0), log_key(_LAST))]
    for sequence, epoch in reversed(rows):
        row = source.get(log_key(sequence))
        if row is not None and epoch_of(row) == epoch:
            return sequence
    return None


def touched_after(journal: Journal, sequence: int, into: Touched) -> None:
    """Add the keys touched by a copy's batches after a sequence.

    Raises:
        StoreError: a row cannot be read, or is removed already.
    """
    for _, row in journal.scan(log_key(sequence + 1), log_key(_LAST)):
        try:
            into.add(row)
        except ValueError as error:
            raise StoreError(f"The copy is damaged: {error}") from None
    # Only now: rows are removed from the oldest on, also while others are written and these are read.
    if sequence and journal.get(log_key(sequence)) is None:
        raise StoreError("More was changed meanwhile than is recorded.")


def copy_touched(source: Journal, target: Journal, touched: Touched) -> None:
    """Copy the source's values of touched keys to the target; not synced."""
    for first, end in touched.ranges:
        _replace_range(source, target, first, end)
    for keys in _groups(sorted(touched.keys)):
        batch = target.batch()
        for key, value in zip(keys, source.get_many(keys), strict=True):
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        target.write(batch)


def copy_rows(source: Journal, target: Journal, after: int, last: int) -> None:
    """Copy the source's rows of touched keys, once the target has their values; not synced.

    Args:
        source: the newer one.
        target: the other.
        after: the rows after this sequence,
        last: and up to this one.
    """
    _replace_range(source, target, log_key(after + 1), log_key(last + 1))


def finish(source: Journal, target: Journal, after: int) -> None:
    """Copy the last rows and the position: both have the same contents then; not synced."""
    _replace_range(source, target, log_key(after + 1), log_key(_LAST))
    oldest = next(iter(source.scan(log_key(0), log_key(_LAST))), None)
    batch = target.batch()
    batch.delete_range(log_key(0), oldest[0] if oldest is not None else log_key(_LAST))
    position = source.get(POSITION_KEY)
    if position is not None:
        batch.put(POSITION_KEY, position)
    target.write(batch)


def _replace_range(source: Journal, target: Journal, first: bytes, end: bytes) -> None:
    batch = target.batch()
    batch.delete_range(first, end)
    target.write(batch)
    for pairs in _groups(source.scan(first, end)):
        _put(target, pairs)


_T = TypeVar("_T")


def _groups(items: Iterable[_T]) -> Iterator[tuple[_T, ...]]:
    left = iter(items)
    while group := tuple(islice(left, _KEYS_AT_ONCE)):
        yield group


def _put(target: Journal, pairs: Iterable[tuple[bytes, bytes]]) -> None:
    batch = target.batch()
    for key, value in pairs:
        batch.put(key, value)
    target.write(batch)


def copy_whole(source: Journal, scratch: Path, folder: Path) -> None:
    """Copy a store in use.

    Args:
        source: the store.
        scratch: a folder beside the source, on its disk, that is not needed.
        folder: the target; replaced.

    Raises:
        StoreError: a disk refused.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            source.checkpoint(scratch)
            make_private(folder)
            for file in sorted(scratch.iterdir()):
                _copy_file(file, folder / file.name)
            sync_folder(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"The copy '{folder}' could not be written: {error.strerror or error}") from error


def checkpoint_to(source: Journal, scratch: Path, folder: Path) -> None:
    """A checkpoint that may be on another disk. RocksDB would copy across disks itself, but blocks the interpreter meanwhile.

    Raises:
        StoreError: a disk refused.
    """
    try:
        is_near = os.stat(scratch.parent).st_dev == os.stat(folder.parent).st_dev
    except OSError as error:
        raise StoreError(f"'{folder}' could not be written: {error.strerror or error}") from error
    if is_near:
        source.checkpoint(folder)
    else:
        copy_whole(source, scratch, folder)


def _copy_file(source: Path, target: Path) -> None:
    # Not `shutil.copyfile`: where a file system can, it may share the bytes.
    with (
        source.open("rb") as reading,
        os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as writing,
    ):
        while data := reading.read(_COPY_BYTES):
            writing.write(data)
        writing.flush()
        os.fsync(writing.fileno())
