"""A body in three copies while it is written or read.

What it is: writing to every serving folder, and reading from any that has the written bytes. What it is not: the choice of serving folders, and
the handling of one that fails (`blob`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from isthmus.entities.storage.blob_file import BlobWriter
from isthmus.errors import StoreError
from isthmus.store.zone.body_folder import BLOCK_BYTES, BodyFolder, Sums, read_block
from isthmus.store.zone.status import MAJORITY
from isthmus.whole_file import write_file

if TYPE_CHECKING:
    from isthmus.store.zone.blob import ZonedBlobs

__all__ = ["BodyReader", "BodyWriter"]


class BodyWriter:
    """See `isthmus.entities.BlobWriter`."""

    def __init__(self, blobs: ZonedBlobs, number: int, writers: dict[BodyFolder, BlobWriter]) -> None:
        self._blobs = blobs
        self._number = number
        self._writers = writers
        self._missed: set[BodyFolder] = set()  # they missed a part; they may serve again meanwhile (I4)
        self._size = 0
        self._blocks: list[int] = []
        self._crc = 0

    def check(self) -> None:
        if sum(not folder.reason and folder not in self._missed for folder in self._writers) < MAJORITY:
            raise self._blobs.too_few()

    def write(self, parts: Sequence[bytes]) -> None:
        for part in parts:
            self._add(part)
        self._each(lambda _, writer: writer.write(parts))

    def _add(self, part: bytes) -> None:
        view = memoryview(part)
        while view:
            room = BLOCK_BYTES - self._size % BLOCK_BYTES
            piece = view[:room]
            self._crc = zlib.crc32(piece, self._crc)
            self._size += len(piece)
            view = view[room:]
            if self._size % BLOCK_BYTES == 0:
                self._blocks.append(self._crc)
                self._crc = 0

    def settle(self) -> None:
        self._each(lambda _, writer: writer.settle())

    def sync(self) -> None:
        blocks = [*self._blocks, self._crc] if self._size % BLOCK_BYTES else self._blocks
        content = Sums(self._size, tuple(blocks)).pack()

        def finish(folder: BodyFolder, writer: BlobWriter) -> None:
            writer.sync()
            write_file(folder.sums_path(self._number), content)

        self._each(finish)

    def _each(self, run: Callable[[BodyFolder, BlobWriter], None]) -> None:
        for folder, writer in self._writers.items():
            # A folder that was out of service in between may have lost its part; it lacks the body until that is copied.
            if folder.reason or self._number in folder.lacks:
                self._missed.add(folder)
            if folder in self._missed:
                continue
            try:
                run(folder, writer)
            except (StoreError, OSError) as error:
                self._missed.add(folder)
                self._blobs.drop(folder, str(error))
        self.check()

    def close(self) -> None:
        for writer in self._writers.values():
            with suppress(OSError, StoreError):
                writer.close()
        self._blobs.written(self._number)


class BodyReader:
    """See `isthmus.entities.BlobReader`.

    A body without checksums never ended, or is damaged: it is not returned.

    Attributes:
        sums: of the body.
        size_bytes: of the body.
    """

    def __init__(self, blobs: ZonedBlobs, number: int, folders: Sequence[BodyFolder]) -> None:
        self._blobs = blobs
        self._number = number
        self._folders = [folder for folder in folders if number not in folder.lacks]
        errors: list[str] = []
        for folder in self._folders:
            try:
                folder.bodies.open(number).close()
            except StoreError as error:
                errors.append(str(error))
        if len(errors) == len(self._folders):
            raise StoreError(errors[0] if errors else "No zone has the bodies of large messages.")
        found = next((sums for folder in self._folders if (sums := folder.sums(number)) is not None), None)
        if found is None:
            raise StoreError(f"The body {number:016x} has no checksums that can be read.")
        self.sums: Sums = found
        self.size_bytes = found.size_bytes

    def read(self, offset: int, size: int) -> bytes:
        if not size:
            return self._any(lambda folder: folder.bodies.open(self._number).read(offset, size))
        first, last = offset // BLOCK_BYTES, (offset + size - 1) // BLOCK_BYTES
        if last >= len(self.sums.blocks):
            raise StoreError(f"The body {self._number:016x} ends before byte {offset + size}.")
        data = b"".join(map(self._block, range(first, last + 1)))
        start = offset - first * BLOCK_BYTES
        if len(data) < start + size:
            raise StoreError(f"The body {self._number:016x} ends before byte {offset + size}.")
        return data[start : start + size]

    def _block(self, block: int) -> bytes:
        return self._any(lambda folder: read_block(folder, self._number, self.sums, block))

    def _any(self, read: Callable[[BodyFolder], bytes]) -> bytes:
        failure: StoreError | None = None
        failed: list[BodyFolder] = []
        for folder in self._folders:
            try:
                data = read(folder)
            except StoreError as error:
                failure = failure or error
                failed.append(folder)
                continue
            for each in failed:  # another folder had it
                self._blobs.drop(each, str(failure))
                self._folders.remove(each)
            return data
        raise failure or StoreError("No zone has the bodies of large messages.")

    def close(self) -> None:
        """Nothing is open between two reads."""
