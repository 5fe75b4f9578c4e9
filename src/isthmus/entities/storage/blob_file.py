"""The storage of large messages' bodies: files, behind three protocols.

What it is: the contract of a folder of bodies, and of a body that is written or read. What it is not: the files
(`isthmus.store.blob`), or the choice of those needed (`blob`). See docs/explanation/store.md.
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
        """Write the data through to the disk, and wait for it; this makes nothing durable.

        Raises:
            StoreError: the disk refused.
        """
        ...

    def sync(self) -> None:
        """Make everything written durable, with its name.

        Raises:
            StoreError: the disk refused.
        """
        ...

    def close(self) -> None:
        """Close the file; the written data stays."""
        ...


class BlobReader(Protocol):
    """A body being read."""

    def read(self, offset: int, size: int) -> bytes:
        """So many bytes from an offset on; blocks.

        Raises:
            StoreError: they do not exist.
        """
        ...

    def close(self) -> None:
        """Close the file."""
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
        """Read a body; raises StoreError if it does not exist."""
        ...

    def remove(self, number: int) -> None:
        """Remove a body; no error if it does not exist."""
        ...

    def kept(self) -> AbstractContextManager[None]:
        """Within, no body is removed: bodies that a copy of the store refers to can be copied after it."""
        ...

    def copy_to(self, folder: Path) -> None:
        """Put all bodies into a folder that does not exist yet; durable on return. Raises OSError."""
        ...
