"""What keeps the bodies of large messages: files, behind three protocols.

What it is: the contract of a folder of bodies, and of one that is written or read. What it is not: the files
(`isthmus.store.blob`), or which of them are needed (`blob`). See docs/explanation/store.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

__all__ = ["BlobFiles", "BlobReader", "BlobWriter"]


class BlobWriter(Protocol):
    """A body being written. All methods block and are called from one thread at a time."""

    def write(self, parts: Sequence[bytes]) -> None:
        """Append bytes.

        Raises:
            StoreError: the disk refused.
        """
        ...

    def settle(self) -> None:
        """Have the disk take what was written, and wait until it has; this makes nothing durable.

        Raises:
            StoreError: the disk refused.
        """
        ...

    def sync(self) -> None:
        """Make all that was written durable, with its name.

        Raises:
            StoreError: the disk refused.
        """
        ...

    def close(self) -> None:
        """Let go of the file; what was written stays."""
        ...


class BlobReader(Protocol):
    """A body being read."""

    def read(self, offset: int, size: int) -> bytes:
        """So many bytes from an offset on; blocks.

        Raises:
            StoreError: they are not there.
        """
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class BlobFiles(Protocol):
    """Bodies by number. Every method may block, and may be called from any thread."""

    def numbers(self) -> list[int]:
        """Of all bodies, whole or not."""
        ...

    def create(self, number: int) -> BlobWriter:
        """Begin a body; raises StoreError where the disk refuses."""
        ...

    def open(self, number: int) -> BlobReader:
        """Read a body; raises StoreError if it is not there."""
        ...

    def remove(self, number: int) -> None:
        """Remove a body; no error if it is not there."""
        ...

    def kept(self) -> AbstractContextManager[None]:
        """Within, no body is removed: what a copy of the store refers to can be copied after it."""
        ...

    def copy_to(self, folder: Path) -> None:
        """Put all bodies into a folder that is not there yet; durable on return. Raises OSError."""
        ...
