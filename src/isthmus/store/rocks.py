"""The journal on RocksDB: a write-ahead log for durability, an ordered table for reading back.

What it is: options measured for a broker's load (written once, read once in order, deleted from the front) and the
translation of errors. What it is not: a layout of keys (`isthmus.entities.key`).

Invariants:
    I1. `write` does not sync; `sync` does, with the interpreter released, so that it may run in a thread.
    I2. Memory is bounded: memtables, the block cache with index and filter blocks, nothing per message.
    I3. What a start must replay is bounded by the memtables' size, whatever the backlog.
    I4. A checkpoint has everything written before it, and holds neither the interpreter nor a writer for long.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Self

import rocksdict

from isthmus.entities.journal import Batch
from isthmus.errors import StoreError
from isthmus.store.open_files import open_files_limit

__all__ = ["RocksJournal"]

# Log bytes are replayed at some 200 MB/s: with at most this much in memtables a start after a kill stays below 2 s.
_MEMTABLE_BYTES = 64 << 20
_MEMTABLES = 4
_CACHE_BYTES = 32 << 20
_READ_AHEAD_BYTES = 1 << 20
_BLOCK_BYTES = 32 << 10
# Room that a start needs beyond what its log holds.
_SPARE_BYTES = 8 << 20


class _Scan(chain[tuple[bytes, bytes]]):
    """An iterator that keeps its options alive: RocksDB reads the upper bound from them as long as it goes on.

    A subclass of `chain`, so that each step stays in C.
    """

    __slots__ = ("options",)
    options: object

    def __new__(cls, pairs: Iterator[tuple[bytes, bytes]], options: object) -> Self:
        scan = super().__new__(cls, pairs)
        scan.options = options
        return scan


class RocksJournal:
    """A journal in a folder of its own.

    Args:
        folder: made if absent.
        share: it takes this fraction of the memory of a store: one of so many.

    Raises:
        StoreError: another process has the folder open, or it holds no usable store.
    """

    def __init__(self, folder: Path, *, share: int = 1) -> None:
        self._folder = folder
        self._share = share
        self._database: Any = None
        self.unsynced_bytes = 0
        self._failed = ""
        # A database is neither closed nor opened anew below a checkpoint under way.
        self._copying = threading.Lock()
        self._open()

    def _open(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._database = rocksdict.Rdict(str(self._folder), _options(self._share))
            self._failed = ""
        except Exception as error:
            text = str(error)
            if "lock" in text.lower():
                raise StoreError(
                    f"The data folder '{self._folder}' is in use by another process; stop it or choose another folder."
                ) from error
            raise StoreError(f"The store in '{self._folder}' cannot be opened: {text}") from error

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._database.get(key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = self._database.get(list(keys))
        return values

    def scan(self, first: bytes, end: bytes, *, read_ahead: bool = False) -> Iterator[tuple[bytes, bytes]]:
        options = rocksdict.ReadOptions()
        options.set_iterate_upper_bound(end)
        if read_ahead:
            options.set_readahead_size(_READ_AHEAD_BYTES)
        return _Scan(self._database.items(from_key=first, read_opt=options), options)

    def batch(self) -> Batch:
        batch: Batch = rocksdict.WriteBatch(raw_mode=True)
        return batch

    def write(self, batch: Batch) -> None:
        if self._failed:
            raise StoreError(f"The store in '{self._folder}' takes no writes: {self._failed}")
        self.unsynced_bytes += batch.size_in_bytes()  # type: ignore[attr-defined]
        try:
            self._database.write(batch)
        except Exception as error:
            self._failed = str(error)
            raise StoreError(f"The store in '{self._folder}' refused a write: {error}") from error

    def sync(self) -> None:
        self.unsynced_bytes = 0
        try:
            self._database.flush_wal(True)
        except Exception as error:
            self._failed = str(error)
            raise StoreError(f"The store in '{self._folder}' could not be synced: {error}") from error

    def reopen(self) -> None:
        # After a failed write RocksDB takes no more; only a new start helps, and that needs room for what the log
        # holds. On a disk that is still full the old one stays: it can be read, and writes go on being refused.
        log_bytes = sum(file.stat().st_size for file in self._folder.glob("*.log"))
        if shutil.disk_usage(self._folder).free < log_bytes + _SPARE_BYTES:
            self._failed = self._failed or "the disk is full"
            return
        if not self._copying.acquire(blocking=False):
            self._failed = self._failed or "a back-up is under way"
            return
        try:
            self._renew()
        finally:
            self._copying.release()

    def _renew(self) -> None:
        with suppress(Exception):  # a database that failed says so again when it is closed; the lock goes all the same
            self._database.close()
        self._database = None
        self._open()

    def checkpoint(self, folder: Path) -> None:
        with self._copying:
            if self._database is None:
                raise StoreError(f"The store in '{self._folder}' is closed.")
            try:
                # Only a flush lets the interpreter go; a checkpoint after it finds little left to do.
                self._database.flush_wal(True)
                self._database.flush()
                rocksdict.Checkpoint(self._database).create_checkpoint(str(folder))
                for file in (*folder.iterdir(), folder, folder.parent):
                    _sync(file)
            except Exception as error:
                raise StoreError(f"The store in '{self._folder}' could not be copied to '{folder}': {error}") from error

    def statistics(self) -> dict[str, int]:
        size = 0
        with suppress(OSError):  # files come and go meanwhile
            size = sum(file.stat().st_size for file in os.scandir(self._folder))
        return {"size_bytes": size}

    def close(self) -> None:
        with self._copying:
            self._close()

    def _close(self) -> None:
        if self._database is None:
            return
        try:
            if not self._failed:
                self._database.flush_wal(True)
                with suppress(Exception):  # the log has everything: without room for tables the next start is slower
                    self._database.flush()
            self._database.close()
        except Exception as error:
            raise StoreError(f"The store in '{self._folder}' could not be closed: {error}") from error
        finally:
            self._database = None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _options(share: int) -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_write_buffer_size(_MEMTABLE_BYTES // share)
    options.set_max_write_buffer_number(_MEMTABLES)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(4)
    options.set_max_open_files(open_files_limit())
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_size(_BLOCK_BYTES)
    blocks.set_block_cache(rocksdict.Cache(_CACHE_BYTES // share))
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    return options
