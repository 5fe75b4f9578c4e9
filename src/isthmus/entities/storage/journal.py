"""The store as the entities use it: an ordered map of bytes to bytes with atomic batches.

What it is: the protocol that `isthmus.store` implements twice, on RocksDB and in memory.
What it is not: durability at `write`; that is the result of `sync`.

Invariants (checked by testing.store_conformance):
    I1. A batch is written whole or not at all, also across a kill.
    I2. After a kill the store has a prefix of the batches written, and at least all written before the last `sync`.
    I3. A scan yields ascending keys and sees the store as it was when the scan was created.
    I4. One process at a time has a data folder open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

__all__ = ["Batch", "Journal"]


class Batch(Protocol):
    """Changes for one atomic write; later ones override earlier ones."""

    def put(self, key: bytes, value: bytes, /) -> None:
        """Set a key."""
        ...

    def delete(self, key: bytes, /) -> None:
        """Remove a key; no error if absent."""
        ...

    def delete_range(self, first: bytes, end: bytes, /) -> None:
        """Remove all keys with ``first <= key < end``."""
        ...


class Journal(Protocol):
    """A durable ordered map. Only `sync` and `checkpoint` may be called from another thread than the owner's.

    Attributes:
        unsynced_bytes: about how many bytes were written since the last `sync` began.
    """

    unsynced_bytes: int

    def get(self, key: bytes) -> bytes | None:
        """The key's value, None if absent."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of the keys, in their order."""
        ...

    def scan(self, first: bytes, end: bytes, *, read_ahead: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values with ``first <= key < end``; `read_ahead` for long reads in order.

        A scan that has raised yields nothing more.
        """
        ...

    def batch(self) -> Batch:
        """A new, empty batch."""
        ...

    def write(self, batch: Batch) -> None:
        """Apply a batch; visible to reads immediately, durable after the next `sync`. The batch must not be used again.

        Raises:
            StoreError: nothing of the batch was applied; the store accepts no more writes until a successful `reopen`
                repairs it.
        """
        ...

    def sync(self) -> None:
        """Make everything written so far durable. Blocks on the disk without blocking the interpreter.

        Raises:
            StoreError: what was written since the last `sync` may or may not survive.
        """
        ...

    def reopen(self) -> None:
        """Continue after a failure: with the batches written before it, some of which may not have been synced.

        No earlier scan may be open. If the disk has no room yet, reads work and `write` keeps refusing; a later
        call tries again.

        Raises:
            StoreError: the store cannot even be read.
        """
        ...

    def checkpoint(self, folder: Path) -> None:
        """Put a copy of everything written before the call into a folder that does not exist yet; durable on return.

        Raises:
            StoreError: the copy failed; its remains are unusable.
        """
        ...

    def statistics(self) -> dict[str, int]:
        """At least `size_bytes`: the store's size on its disk."""
        ...

    def close(self) -> None:
        """Write everything out for a fast start, and release the folder; no error if closed already."""
        ...
