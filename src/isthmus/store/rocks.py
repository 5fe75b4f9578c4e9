"""The journal on RocksDB: a write-ahead log for durability, an ordered table for reading back.

What it is: options measured for a broker's load (written once, read once in order, deleted from the front) and the
translation of errors. What it is not: the keys (`isthmus.entities.storage.key`).

Invariants:
    I1. `write` does not sync; `sync` does, with the interpreter released, so that it may run in a thread.
    I2. Memory is bounded: memtables, the block cache with index and filter blocks, nothing per message.
    I3. What a start must replay is bounded by the memtables' size, whatever the backlog.
    I4. A checkpoint has everything written before it, and blocks neither the interpreter nor a writer for long.
    I5. A read returns the written value or raises a StoreError: it neither omits unreadable rows, nor fails in
        another way while the store is not open. A later `reopen` may open it, whatever scans have not ended
        (`isthmus.store.open_scans`).
    I6. Folder and files are accessible to their owner alone.
    I7. Synced changes are kept even if the log in use is removed, unless the process ends before the next
        sync.
    I8. Once a write or a sync has failed, also one of a checkpoint, every sync fails until a `reopen`.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import rocksdict

from isthmus.entities.storage.journal import Batch
from isthmus.errors import StoreError
from isthmus.store.log_in_use import LogInUse
from isthmus.store.open_files import open_files_limit
from isthmus.store.open_scans import OpenScan, OpenScans
from isthmus.store.private_folder import make_private, narrow_files
from isthmus.store.recovery import damaged, lock_folder, open_database

__all__ = ["RocksJournal"]

_log = logging.getLogger(__name__)

# Log bytes are replayed at some 200 MB/s: with at most this much in memtables a start after a kill stays below 2 s.
_MEMTABLE_BYTES = 64 << 20
_MEMTABLES = 4
_CACHE_BYTES = 32 << 20
_READ_AHEAD_BYTES = 1 << 20
_BLOCK_BYTES = 32 << 10
_VERIFIED_BYTES = 256 << 10
_MEMTABLE_FILTER_SHARE = 0.02
# Free space that a start needs beyond the size of its log.
_SPARE_BYTES = 8 << 20


class RocksJournal:
    """A journal in a folder of its own.

    Args:
        folder: created if absent, for this user alone.
        share: it uses this fraction of the memory of a store: one of so many.

    Raises:
        StoreError: another process has the folder open, it is another user's and open to others, or it contains no usable
            store.
    """

    def __init__(self, folder: Path, *, share: int = 1) -> None:
        self._folder = folder
        self._share = share
        self._database: Any = None
        self._scans = OpenScans()
        self.unsynced_bytes = 0
        self._failed = ""
        # A database is neither closed nor reopened during a checkpoint or a sync in another thread.
        self._use = threading.Condition()
        self._users = 0
        self._log_sync = threading.Lock()
        make_private(folder)
        self._lock = lock_folder(folder)
        try:
            self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> None:
        self._database = open_database(self._folder, _options(self._share))
        self._failed = ""
        narrow_files(self._folder)
        self._log = LogInUse(self._folder)

    def _read(self) -> Any:
        """The database.

        Raises:
            StoreError: there is none since it was closed, or could not be reopened.
        """
        if self._database is None:
            raise StoreError(
                f"The store in '{self._folder}' is {self._failed and 'not open: '}{self._failed or 'closed'}."
            )
        return self._database

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._database.get(key)
        except Exception as error:
            raise self._unread(error) from error
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            values: list[bytes | None] = self._database.get(list(keys))
        except Exception as error:
            raise self._unread(error) from error
        return values

    def _unread(self, error: Exception) -> StoreError:
        try:
            self._read()
        except StoreError as closed:
            return closed
        text = str(error)
        if "Corruption" in text:
            return damaged(self._folder, text)
        return StoreError(f"The store in '{self._folder}' could not be read: {text}")

    def scan(self, first: bytes, end: bytes, *, read_ahead: bool = False) -> Iterator[tuple[bytes, bytes]]:
        options = rocksdict.ReadOptions()
        options.set_iterate_upper_bound(end)
        if read_ahead:
            options.set_readahead_size(_READ_AHEAD_BYTES)
        return self._scan(self._read(), options, first)

    def _scan(self, database: Any, options: Any, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        pairs = database.iter(options)
        pairs.seek(first)
        return self._pairs(self._scans.begin(pairs), options)

    def _pairs(self, scan: OpenScan, options: Any) -> Iterator[tuple[bytes, bytes]]:
        # While it is suspended, and in the traceback of an error, no variable of this frame has the iterator. The frame keeps
        # the options alive: RocksDB reads the upper bound from them, even if another thread closes the store meanwhile.
        pairs: Any = None
        try:
            pairs = self._of(scan)
            while (key := pairs.key()) is not None:
                value = pairs.value()
                pairs = None
                yield key, value
                pairs = self._of(scan)
                pairs.next()
            # A block that cannot be read ends the pairs like the last key does. Only these pairs distinguish the two: in
            # another read the disk may return the block.
            pairs.status()
        except StoreError:
            raise
        except Exception as error:
            raise self._unread(error) from error
        finally:
            pairs = None
            scan.close()
            del options

    def _of(self, scan: OpenScan) -> Any:
        """The iterator of a scan.

        Raises:
            StoreError: the store was reopened or closed since the scan began.
        """
        pairs = scan.pairs
        if pairs is None:
            self._read()
            raise StoreError(f"The store in '{self._folder}' was opened again during a scan.")
        return pairs

    def batch(self) -> Batch:
        batch: Batch = rocksdict.WriteBatch(raw_mode=True)
        return batch

    def write(self, batch: Batch) -> None:
        if self._failed:
            raise StoreError(f"The store in '{self._folder}' takes no writes: {self._failed}")
        self.unsynced_bytes += batch.size_in_bytes()  # type: ignore[attr-defined]
        database = self._read()
        try:
            database.write(batch)
        except Exception as error:
            self._failed = str(error)
            raise StoreError(f"The store in '{self._folder}' refused a write: {error}") from error

    def sync(self) -> None:
        self.unsynced_bytes = 0
        with self._in_use():
            database = self._read()
            try:
                self._sync_log(database)
                if self._log.is_missing():
                    self._save(database)
            except Exception as error:
                self._failed = str(error)
                raise StoreError(f"The store in '{self._folder}' could not be synced: {error}") from error

    def _sync_log(self, database: Any) -> None:
        """Sync the log.

        A disk reports a failed write once, to the first sync, and not to later ones: the data on it
        then differs from the written data (I8).

        Raises:
            StoreError: a write or a sync has failed before.
        """
        with self._log_sync:
            if self._failed:
                raise StoreError(self._failed)
            try:
                database.flush_wal(True)
            except Exception as error:
                self._failed = str(error)
                raise

    def _save(self, database: Any) -> None:
        """The log was removed while in use: its contents are still in memory."""
        _log.error(
            "log of the store was removed while it was in use: file='%s'; its contents are written to a table now, and a "
            "new one is begun", self._log.path,
        )  # fmt: skip
        database.flush()
        self._log = LogInUse(self._folder)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._use:
            self._users += 1
        try:
            yield
        finally:
            with self._use:
                self._users -= 1
                self._use.notify_all()

    def reopen(self) -> None:
        # After a failed write RocksDB takes no more; only a new start helps, and that needs space for the log's
        # contents. On a full disk the old database stays: it can be read, and writes are still refused.
        with self._use:
            reason = (
                "a back-up or a sync is in progress" if self._users else self._lack_of_files() or self._lack_of_room()
            )
            if not reason:
                self._renew()
            elif self._database is None:
                raise StoreError(f"The store in '{self._folder}' cannot be reopened: {reason}")
            else:
                self._failed = self._failed or reason

    def _lack_of_files(self) -> str:
        """Without the file that names all others an empty store would be made instead of this one."""
        try:
            (self._folder / "CURRENT").stat()
        except OSError as error:
            return f"'{self._folder / 'CURRENT'}': {error.strerror or error}"
        return ""

    def _lack_of_room(self) -> str:
        try:
            log_bytes = sum(file.stat().st_size for file in self._folder.glob("*.log"))
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            return error.strerror or str(error)
        return "the disk is full" if free < log_bytes + _SPARE_BYTES else ""

    def _renew(self) -> None:
        self._scans.close_all()
        with suppress(Exception):  # a failed database raises again when it is closed; the lock is released all the same
            self._database.close()
        self._database = None
        try:
            self._open()
        except StoreError as error:
            self._failed = str(error)
            raise

    @property
    def failure(self) -> str:
        """Why the store takes no writes; empty where it does."""
        return self._failed if self._database is not None else self._failed or "it is closed"

    def tables(self) -> list[str]:
        """Names of the files that contain the tables in use."""
        return [file["name"].lstrip("/") for file in self._read().live_files()]

    def verified(self) -> Iterator[int]:
        """Read everything from the disk, and verify every checksum; yields the bytes read, from time to time.

        Raises:
            StoreError: a file is damaged.
        """
        options = rocksdict.ReadOptions()
        options.fill_cache(False)  # type: ignore[call-arg]
        options.set_verify_checksums(True)
        options.set_readahead_size(_READ_AHEAD_BYTES)
        size = 0
        for key, value in self._scan(self._read(), options, b""):
            size += len(key) + len(value)
            if size >= _VERIFIED_BYTES:
                yield size
                size = 0
        yield size

    def checkpoint(self, folder: Path) -> None:
        with self._in_use():
            database = self._read()
            try:
                # Only a flush releases the interpreter; a checkpoint after it has little left to do.
                self._sync_log(database)
                database.flush()
                rocksdict.Checkpoint(database).create_checkpoint(str(folder))
                folder.chmod(0o700)
                narrow_files(folder)
                for file in (*folder.iterdir(), folder, folder.parent):
                    _sync(file)
            except Exception as error:
                raise StoreError(f"The store in '{self._folder}' could not be copied to '{folder}': {error}") from error

    def statistics(self) -> dict[str, int]:
        size = 0
        with suppress(OSError), os.scandir(self._folder) as files:  # files appear and disappear meanwhile
            size = sum(file.stat().st_size for file in files)
        return {"size_bytes": size}

    def close(self) -> None:
        with self._use:
            self._use.wait_for(lambda: not self._users)
            try:
                self._close()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _close(self) -> None:
        self._scans.close_all()
        if self._database is None:
            return
        try:
            if not self._failed:
                self._database.flush_wal(True)
                with suppress(Exception):  # the log has everything: without space for tables the next start is slower
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
    # Ids and keys of duplicate detection are looked up and rarely exist: without a filter each memtable is searched for each.
    options.set_memtable_prefix_bloom_ratio(_MEMTABLE_FILTER_SHARE)
    options.set_memtable_whole_key_filtering(True)
    return options
