"""The folder of a spool: its files and their names.

What it is: the paths of the files, the writing of each such that a crash leaves the old or the new content, and the errors of a spool. What
it is not: the writing of segments (`writer`), or their reading (`reader`). docs/explanation/spool.md.

    id                      identity of the spool, created once
    lock                    locked by the process that writes
    segments/NUMBER.seg     blocks; NUMBER is that of the segment's first record in the spool
    durable                 the synced length of the last segment, for readers
    seen                    the received messages, up to the last segment (`seen`)
    released                number of the first record whose segment is not deleted
    quarantine/             segments with damaged bytes, and a note about each
    origin                  identity of the namespace that the messages were read from, of a spool that a route reads
    taken                   the lowest record that the route which reads it has not settled, and of which spool
    reading                 locked by the process that reads it for a route
    refused/                messages that this route set aside, with reasons (`refused`)
    note                    the note of the last batch of the query that writes it (`noted`)

Invariants:
    I1. `durable` is written after the bytes that it covers are on disk.
    I2. `released` is on disk before a segment is deleted.
"""

from __future__ import annotations

import os
import struct
import uuid
import zlib
from pathlib import Path
from typing import NamedTuple

from isthmus.errors import IsthmusError
from isthmus.whole_file import make_folder, write_file

__all__ = ["Durable", "SpoolError", "SpoolFolder", "SpoolInUseError", "missing"]

_DURABLE = struct.Struct(">qqq")
_TAKEN = struct.Struct(">q32s")
_SUFFIX = ".seg"
_DIGITS = 20


class SpoolError(IsthmusError):
    """A spool cannot be written or read."""

    code = "spool"
    retryable = True


class SpoolInUseError(SpoolError):
    """Another process writes the spool."""

    code = "spool-in-use"


def missing(what: str) -> SpoolError:
    """The error of a spool, or of its table, that was made before and is not there."""
    return SpoolError(
        f"{what} is missing; is its file system not mounted? If it was deleted, `isthmus run --new-spools` makes another one, and what was in it "
        "is lost"
    )


class Durable(NamedTuple):
    """The synced part of a spool: the last segment, its bytes, and the number of the next record."""

    segment: int
    position: int
    number: int


class SpoolFolder:
    """The files of a spool.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.segments = path / "segments"
        self.quarantine = path / "quarantine"
        self.lock = path / "lock"

    def make(self) -> None:
        """Creates missing folders and files.

        Raises:
            OSError: they cannot be created.
        """
        make_folder(self.segments)
        if not self.identity():  # `exists` may be false for any error, and the spool would be another one
            write_file(self.path / "id", uuid.uuid4().hex.encode())

    def require(self) -> None:
        """Checks that the spool has been made.

        Raises:
            SpoolError: it is missing.
            OSError: that is not known.
        """
        if not self.identity():
            raise missing(f"spool {self.path}")

    def identity(self) -> str:
        """The spool's identity; empty where it has not been created."""
        try:
            return (self.path / "id").read_text(encoding="ascii")
        except FileNotFoundError:
            return ""

    def segment(self, number: int) -> Path:
        """The file of the segment that begins with a record."""
        return self.segments / f"{number:0{_DIGITS}d}{_SUFFIX}"

    def numbers(self) -> list[int]:
        """The segments that exist, by the number of their first record, ascending."""
        try:
            names = os.listdir(self.segments)
        except FileNotFoundError:
            return []
        return sorted(int(name[:_DIGITS]) for name in names if name.endswith(_SUFFIX) and name[:_DIGITS].isdigit())

    def durable(self) -> Durable | None:
        """The synced part of the last segment; None where unknown."""
        try:
            data = (self.path / "durable").read_bytes()
        except FileNotFoundError:
            return None
        if len(data) != _DURABLE.size + 4 or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "big"):
            return None
        return Durable(*_DURABLE.unpack(data[:-4]))

    def open_durable(self) -> int:
        """A descriptor for `write_durable`."""
        return os.open(self.path / "durable", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @staticmethod
    def write_durable(descriptor: int, durable: Durable) -> None:
        """Publishes the synced part for readers. The file is not synced: an older one only makes readers wait."""
        data = _DURABLE.pack(*durable)
        os.pwrite(descriptor, data + zlib.crc32(data).to_bytes(4, "big"), 0)

    def origin(self) -> str | None:
        """Identity of the namespace that the messages were read from; None where no writer has written it."""
        try:
            return (self.path / "origin").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write_origin(self, identity: str) -> None:
        """Publishes where messages were read from."""
        if self.origin() != identity:
            write_file(self.path / "origin", identity.encode())

    def taken(self) -> int | None:
        """The lowest record that the route which reads this spool has not settled; None where unknown."""
        try:
            data = (self.path / "taken").read_bytes()
        except FileNotFoundError:
            return None
        if len(data) != _TAKEN.size + 4 or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "big"):
            return None
        number, spool = _TAKEN.unpack(data[:-4])
        return int(number) if spool == self.identity().encode() else None

    def open_taken(self) -> int:
        """A descriptor for `write_taken`."""
        return os.open(self.path / "taken", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @staticmethod
    def write_taken(descriptor: int, identity: str, number: int) -> None:
        """Writes the lowest unsettled record. The file is not synced: an older one only makes the route send messages again."""
        data = _TAKEN.pack(number, identity.encode())
        os.pwrite(descriptor, data + zlib.crc32(data).to_bytes(4, "big"), 0)

    def released(self) -> int:
        """Number of the first record that may still be needed."""
        try:
            return int((self.path / "released").read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0

    def write_released(self, number: int) -> None:
        """Publishes that no record before this one is needed."""
        write_file(self.path / "released", str(number).encode())
