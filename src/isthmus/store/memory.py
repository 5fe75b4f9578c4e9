"""A journal in memory, for tests and for namespaces that need not be durable.

What it is: a dict with an ordered list of keys; unsynced writes can be lost on purpose (`crash`).
What it is not: fast with many deletions in the middle, or durable.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from pathlib import Path

from isthmus.entities.storage.journal import Batch
from isthmus.errors import StoreError

__all__ = ["MemoryBatch", "MemoryJournal"]

_PUT, _DELETE, _DELETE_RANGE = range(3)


class MemoryBatch:
    """Changes in the order they were made."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes: list[tuple[int, bytes, bytes]] = []

    def put(self, key: bytes, value: bytes, /) -> None:
        self.changes.append((_PUT, key, value))

    def delete(self, key: bytes, /) -> None:
        self.changes.append((_DELETE, key, b""))

    def delete_range(self, first: bytes, end: bytes, /) -> None:
        self.changes.append((_DELETE_RANGE, first, end))


class _Table:
    """An ordered map."""

    __slots__ = ("keys", "values")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: dict[bytes, bytes] = {}

    def apply(self, batch: MemoryBatch) -> None:
        keys, values = self.keys, self.values
        for kind, key, value in batch.changes:
            if kind == _PUT:
                if key not in values:
                    if keys and key < keys[-1]:
                        insort(keys, key)
                    else:
                        keys.append(key)
                values[key] = value
            elif kind == _DELETE:
                if values.pop(key, None) is not None:
                    del keys[bisect_left(keys, key)]
            else:
                low, high = bisect_left(keys, key), bisect_left(keys, value)
                for deleted in keys[low:high]:
                    del values[deleted]
                del keys[low:high]


class MemoryJournal:
    """A journal without a disk.

    Attributes:
        fail_writes: an error that `write` raises from now on; None for none. Also `fail_syncs`. For tests of a
            full disk.
    """

    def __init__(self) -> None:
        self.fail_writes: Exception | None = None
        self.fail_syncs: Exception | None = None
        self.unsynced_bytes = 0
        self._table = _Table()
        self._synced = _Table()
        self._unsynced: list[MemoryBatch] = []
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        self._check()
        return self._table.values.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check()
        values = self._table.values
        return [values.get(key) for key in keys]

    def scan(self, first: bytes, end: bytes, *, read_ahead: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._check()
        keys, values = self._table.keys, self._table.values
        low, high = bisect_left(keys, first), bisect_left(keys, end)
        return iter([(key, values[key]) for key in keys[low:high]])

    def batch(self) -> MemoryBatch:
        return MemoryBatch()

    def write(self, batch: Batch) -> None:
        self._check()
        if not isinstance(batch, MemoryBatch):
            raise TypeError("a batch is written to the journal that made it")
        if self.fail_writes is not None:
            raise StoreError(f"the store refused a write: {self.fail_writes}")
        self._table.apply(batch)
        self._unsynced.append(batch)
        self.unsynced_bytes += sum(len(key) + len(value) for _, key, value in batch.changes)

    def sync(self) -> None:
        self._check()
        if self.fail_syncs is not None:
            raise StoreError(f"the store could not be synced: {self.fail_syncs}")
        pending, self._unsynced = self._unsynced, []
        self.unsynced_bytes = 0
        for batch in pending:
            self._synced.apply(batch)

    def crash(self, keep: int = 0) -> None:
        """Lose the writes since the last sync, except for the first `keep` batches, as a power cut may."""
        for batch in self._unsynced[:keep]:
            self._synced.apply(batch)
        self._unsynced = []
        self._table = _Table()
        self._table.keys = list(self._synced.keys)
        self._table.values = dict(self._synced.values)

    @property
    def unsynced_count(self) -> int:
        """How many batches `crash` would lose."""
        return len(self._unsynced)

    def reopen(self) -> None:
        self.crash()
        self._closed = False

    def checkpoint(self, folder: Path) -> None:
        raise StoreError("a store in memory has no back-up")

    def statistics(self) -> dict[str, int]:
        return {"size_bytes": sum(map(len, self._table.keys)) + sum(map(len, self._table.values.values()))}

    def close(self) -> None:
        if not self._closed:
            self.sync()
            self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")
