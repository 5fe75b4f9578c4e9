"""One folder of bodies of large messages, with their checksums and its marks of the other two.

What it is: files. What it is not: the decision which folder is read or written (`blob`).

Invariants:
    I1. A block is returned as it was written, or not at all.
    I2. A folder whose files were removed or overwritten has no readable mark, even if a mark was written since:
        a mark names the folder's identity, a file of its own that is written only when the folder becomes whole.
"""

from __future__ import annotations

import json
import secrets
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from isthmus.errors import StoreError
from isthmus.store.blob import BlobFolder
from isthmus.store.private_folder import make_private
from isthmus.store.zone.status import COPIES
from isthmus.whole_file import write_file

__all__ = ["BLOCK_BYTES", "BodyFolder", "Sums", "read_block"]

BLOCK_BYTES = 256 << 10
_SIZE = struct.Struct(">Q")
_SUM = struct.Struct(">I")
_MARK = "zone"
_IDENTITY = "zone.id"


class Sums(NamedTuple):
    """The checksums of one body: its size, and a checksum for each block."""

    size_bytes: int
    blocks: tuple[int, ...]

    def pack(self) -> bytes:
        """The contents of the file beside the body."""
        body = _SIZE.pack(self.size_bytes) + b"".join(map(_SUM.pack, self.blocks))
        return body + _SUM.pack(zlib.crc32(body))

    @staticmethod
    def unpack(content: bytes) -> Sums | None:
        """The checksums in a file; None if it is damaged."""
        body, check = content[:-4], content[-4:]
        if len(body) < _SIZE.size or len(body) % 4 or _SUM.pack(zlib.crc32(body)) != check:
            return None
        return Sums(_SIZE.unpack_from(body)[0], tuple(each[0] for each in _SUM.iter_unpack(body[_SIZE.size :])))


class Mark(NamedTuple):
    """The state of all folders, as one of them records it.

    Attributes:
        version: the highest one is valid.
        stale: folders that are not to be read before they are brought up to date.
        has_whole: whether any folder has every body; else those that are not stale lack some.
    """

    version: int
    stale: list[int]
    has_whole: bool


class BodyFolder:
    """One copy of all bodies.

    Args:
        index: from 0 on.
        path: the folder.
        set_name: of the set that it belongs to.

    Attributes:
        reason: why it is out of service; empty while it is in service.
        lacks: numbers of bodies that began while it was out of service, and have not been copied here yet.
        may_lack: whether it may lack bodies with unknown numbers: it was marked as lacking before a start.
        identity: the contents of the identity file, as far as this process knows.
    """

    def __init__(self, index: int, path: Path, set_name: str = "") -> None:
        self.index = index
        self.path = path
        self.set_name = set_name
        self.bodies = BlobFolder(path)
        self.reason = ""
        self.lacks: set[int] = set()
        self.may_lack = False
        self.identity = ""

    def read_mark(self) -> Mark | None:
        """The folder's mark; None if it cannot be read, is of another set, or of files that are missing (I2)."""
        try:
            document = self._read_document()
            if self._is_foreign(document) or self._read_identity() != document.get("identity", ""):
                return None
            stale = {int(each) for each in document["stale"]}
            lacking = {int(each) for each in document.get("lacking", ())}
            # A folder that lacks bodies counts as a stale one, as long as another has them.
            has_whole = len(stale | lacking) < COPIES
            return Mark(int(document["version"]), sorted(stale | lacking if has_whole else stale), has_whole)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def check_set(self) -> None:
        """Check that it is not of another set.

        Raises:
            StoreError: it is.
        """
        with suppress(OSError, ValueError, TypeError):
            if self._is_foreign(self._read_document()):
                raise StoreError(
                    f"'{self.path}' contains bodies of large messages of another namespace; name another folder, or empty it"
                )

    def _read_document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.path / _MARK).read_bytes())
        return document

    def _is_foreign(self, document: dict[str, Any]) -> bool:
        return "set" in document and document["set"] != self.set_name

    def _read_identity(self) -> str:
        try:
            return (self.path / _IDENTITY).read_text(encoding="ascii")
        except FileNotFoundError:
            return ""

    def identify(self) -> None:
        """Take the identity that the folder's mark names, or give it a new one; raises OSError or StoreError.

        A new one only where no mark can be read: a kill before the next mark is written must leave the present one valid.
        """
        known = self.read_mark() is not None and self._read_identity()
        if known:
            self.identity = known
            return
        make_private(self.path)
        self.identity = secrets.token_hex(16)
        write_file(self.path / _IDENTITY, self.identity.encode())

    def write_mark(self, version: int, stale: Sequence[int], lacking: Sequence[int] = ()) -> None:
        """Write which folders are stale, and which serve and lack bodies; raises OSError or StoreError where the disk refuses."""
        document = {
            "set": self.set_name,
            "identity": self.identity,
            "version": version,
            "stale": list(stale),
            "lacking": list(lacking),
        }
        make_private(self.path)
        write_file(self.path / _MARK, json.dumps(document).encode())

    def sums(self, number: int) -> Sums | None:
        """The checksums of a body; None if there are none, or they cannot be read."""
        try:
            return Sums.unpack(self.sums_path(number).read_bytes())
        except OSError:
            return None

    def sums_path(self, number: int) -> Path:
        """The path of a body's checksums."""
        return self.path / f"{number:016x}.sums"

    def has(self, number: int) -> bool:
        """Whether a body exists, whole or not."""
        try:
            return self.bodies.path_of(number).exists()
        except OSError:
            return False

    def clear(self, number: int) -> None:
        """Remove a former body of a number, without waiting for a back-up: none includes it."""
        with suppress(OSError):  # a file that stays makes the creation of the new one fail
            self.sums_path(number).unlink(missing_ok=True)
            self.bodies.path_of(number).unlink(missing_ok=True)

    def forget(self, number: int) -> None:
        """Remove a body and its checksums; no error if they do not exist."""
        with suppress(OSError):
            self.sums_path(number).unlink(missing_ok=True)
        self.bodies.remove(number)


def read_block(folder: BodyFolder, number: int, sums: Sums, block: int) -> bytes:
    """A block of a body.

    Raises:
        StoreError: it does not exist, or is damaged.
    """
    start = block * BLOCK_BYTES
    data = folder.bodies.open(number).read(start, min(BLOCK_BYTES, sums.size_bytes - start))
    if zlib.crc32(data) != sums.blocks[block]:
        raise StoreError(f"The body '{folder.path}/{number:016x}' is damaged at byte {start}.")
    return data
