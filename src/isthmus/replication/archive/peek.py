"""Reading an archive like an entity: its messages by the sequence numbers of their source.

What it is: the reader for `isthmus verify` and `isthmus replay`: it returns the rows of the table, and the messages in the spool that are not in
the table yet. What it is not: a writer. Memory grows by 24 bytes a row, and by the files that are being read.

Invariants:
    I1. A message that was acknowledged to the source is found, in the spool or in the table, also while batches are committed.
    I2. Each row is returned: a row that is there twice is returned twice.
    I3. A message of another entity that the task has read into the same table is not returned: it may have the same number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from isthmus.connectors.servicebus.head import FRAGMENT_BITS
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.reader import SpoolMissingError, SpoolReader
from isthmus.connectors.spool.row import restore
from isthmus.errors import EntityNotFoundError
from isthmus.replication.archive.folder import ArchiveError, ArchiveFolder
from isthmus.replication.archive.query import archive_columns
from isthmus.topology.planning.finding import OWN

__all__ = ["ArchivePeek", "rows_of"]

_LOCATION = [
    "spool",
    "spool_number",
    "sequence_number",
    "sequence_epoch",
    "source_namespace",
    "source",
    "enqueued_time",
]
_RESTORED = ["spool_number", "envelope", "body", "body_type", "digest"]
_FILES_CACHED = 8
_HOUR = re.compile(r"date=(?P<date>\d{4}-\d\d-\d\d)/hour=(?P<hour>\d{1,2})/")
_NONE = np.empty(0, np.int64)
_MS = pa.timestamp("ms", tz="UTC")

_Numbers = np.ndarray[Any, Any]


class _Found(NamedTuple):
    """Messages of one namespace and epoch: their numbers, enqueued times, files (-1 for the spool) and positions there."""

    namespace: str
    epoch: int
    sequences: _Numbers
    enqueued_ms: _Numbers
    files_of: _Numbers
    at: _Numbers


class ArchivePeek:
    """A peek (`isthmus.replication.verification.audit.passage.Peek`) at an archive.

    Args:
        table: its folder.
        spool: folder of its spool.
        entered: the queue or topic whose messages are returned; empty: all.

    Raises:
        EntityNotFoundError: there is no archive.
    """

    def __init__(self, table: Path, spool: Path, entered: str = "") -> None:
        self._entered = entered.lower()
        self._folder = ArchiveFolder(table, archive_columns())
        self._spool = SpoolReader(spool)
        if not table.exists() and not self._spool.identity:
            raise EntityNotFoundError(str(table))
        self._load = lru_cache(_FILES_CACHED)(self._load_file)
        self._files: list[Path] = []
        self._messages: list[bytes] = []  # of the spool
        # For each message its number, its file, -1 for the spool, and its position there.
        self._sequences = self._files_of = self._at = _NONE

    def __call__(self, from_sequence: int, count: int) -> Sequence[bytes]:
        """Messages from a sequence number on, `count` at most; more only if several have the last number."""
        if not len(self._sequences) or self._sequences[-1] < from_sequence:
            self._refresh()  # more may have arrived
        start = int(np.searchsorted(self._sequences, from_sequence))
        stop = min(start + count, len(self._sequences))
        if start < stop:
            stop = int(np.searchsorted(self._sequences, self._sequences[stop - 1], "right"))
        return [self._message(int(self._files_of[row]), int(self._at[row])) for row in range(start, stop)]

    def _message(self, file: int, at: int) -> bytes:
        if file < 0:
            return self._messages[at]
        try:
            return restore(self._load(file)[at])
        except ValueError as error:  # its digest does not match
            raise ArchiveError(f"{self._files[file]}: {error}") from None

    def _refresh(self) -> None:
        """Find the existing messages: watermark, then spool, then table. A record that is committed meanwhile is in both; it counts once."""
        identity = self._spool.identity
        waiting = self._waiting(identity)
        taken = np.asarray([number for number, _ in waiting], np.int64)
        found: list[_Found] = []
        self._messages = [record.message for _, record in waiting]
        for number, (_, record) in enumerate(waiting):
            if not self._is_meant(record.key.rpartition(" ")[0]):
                continue
            one, ms = (np.asarray([each], np.int64) for each in (record.sequence, record.enqueued_ms))
            namespace = record.key.rpartition(" ")[2]
            found.append(_Found(namespace, record.epoch, one, ms, np.asarray([-1]), np.asarray([number])))
        self._load.cache_clear()
        self._files = self._folder.files()
        for index, file in enumerate(self._files):
            table = _read(self._folder.moved(file), _LOCATION)
            sequences = table.column("sequence_number").fill_null(-1).to_numpy()
            epochs = table.column("sequence_epoch").to_numpy()
            times = table.column("enqueued_time").cast(_MS, safe=False).cast(pa.int64()).fill_null(0).to_numpy()
            is_own = np.asarray(table.column("spool").to_pylist(), object) == identity
            is_taken = is_own & np.isin(table.column("spool_number").to_numpy(), taken)
            namespaces = np.asarray(table.column("source_namespace").to_pylist(), object)
            sources = table.column("source").to_pylist()
            meant = {each for each in set(sources) if self._is_meant(each)}
            is_meant = np.asarray([each in meant for each in sources], bool)
            for namespace in set(namespaces):
                for epoch in np.unique(epochs[namespaces == namespace]):
                    rows = np.flatnonzero(
                        (namespaces == namespace) & (epochs == epoch) & (sequences >= 0) & ~is_taken & is_meant
                    )
                    if not len(rows):
                        continue
                    file_of = np.full(len(rows), index)
                    found.append(_Found(namespace, int(epoch), sequences[rows], times[rows], file_of, rows))
        self._sort(found)

    def _is_meant(self, source: str) -> bool:
        """Whether messages of an alias and entity are returned: by the entity, since aliases may be renamed. A mailbox does not name its topic."""
        entity = (source or "").partition("/")[2].partition("/Subscriptions/")[0].lower()
        return not self._entered or entity == self._entered or entity.startswith(OWN)

    def _waiting(self, identity: str) -> list[tuple[int, Record]]:
        """The messages in the spool that are not in the table, by number; segments that are deleted meanwhile are in the table."""
        while True:
            self._folder.refresh()
            mark = self._folder.watermark(identity)
            first = self._spool.first()
            try:
                return [
                    (block.first + at, record)
                    for part in self._spool.ranges(first, self._spool.last(), 64 << 20)
                    for block, records in self._spool.blocks(part)
                    for at, record in enumerate(records)
                    if block.first + at >= mark and record.sequence >= 0
                ]
            except SpoolMissingError:
                if self._spool.first().number <= first.number:
                    raise

    def _sort(self, found: Sequence[_Found]) -> None:
        """Keep the messages of each namespace's present entity: one that was created again knows only the numbers since then."""
        columns = {name: [_NONE] for name in ("sequences", "files_of", "at")}
        for namespace in {each.namespace for each in found}:
            mine = [each for each in found if each.namespace == namespace]
            for each, rows in zip(mine, _present(mine), strict=True):
                for name, column in columns.items():
                    column.append(getattr(each, name)[rows])
        sequences, files_of, at = (np.concatenate(column) for column in columns.values())
        order = np.argsort(sequences, kind="stable")
        self._sequences, self._files_of, self._at = sequences[order], files_of[order], at[order]

    def _load_file(self, index: int) -> list[dict[str, Any]]:
        file = self._folder.moved(self._files[index])
        rows: list[dict[str, Any]] = _read(file, _RESTORED).to_pylist()
        return rows


def _present(found: Sequence[_Found]) -> list[_Numbers]:
    """Which messages of a namespace belong to its present entity, for each part.

    Each partition has its own epochs: one that had no message before starts with the first, and one that has had none since then still has
    none. So a message of another epoch than the last counts if it is of the last epoch of its partition, and its time is nearer to the certainly
    present messages than to the certainly former ones.
    """
    last = max(each.epoch for each in found)
    if all(each.epoch == last for each in found):
        return [np.full(len(each.sequences), True) for each in found]
    own: dict[int, int] = {}
    for each in found:
        for partition in np.unique(each.sequences >> FRAGMENT_BITS):
            own[int(partition)] = max(each.epoch, own.get(int(partition), 0))
    is_last: list[_Numbers] = []
    for each in found:
        partitions, of = np.unique(each.sequences >> FRAGMENT_BITS, return_inverse=True)
        is_last.append(np.asarray([own[int(number)] == each.epoch for number in partitions], bool)[of])
    former = [each.enqueued_ms[~rows] for each, rows in zip(found, is_last, strict=True) if not rows.all()]
    ended_ms = max((int(each.max()) for each in former), default=0)
    began_ms = min(int(each.enqueued_ms.min()) for each in found if each.epoch == last)
    return [
        rows & ((2 * each.enqueued_ms > ended_ms + began_ms) | (each.epoch == last))
        for each, rows in zip(found, is_last, strict=True)
    ]


def rows_of(table: Path, after: datetime | None = None, before: datetime | None = None) -> Iterator[dict[str, Any]]:
    """The rows of an archive in the order of their reception.

    Args:
        table: its folder.
        after: skip hours that end before this time.
        before: skip hours that begin at or after this time.

    Raises:
        ArchiveError: a file of it cannot be read.
    """
    folder = ArchiveFolder(table, archive_columns())
    batches: dict[str, list[Path]] = {}
    for file in folder.files():
        if _overlaps(file, after, before):
            batches.setdefault(file.name.partition("-")[0], []).append(file)
    for _, files in sorted(batches.items()):
        # Reading takes as long as the caller: a batch that was noted when reading began is moved meanwhile.
        read = pa.concat_tables([_read(folder.moved(file)) for file in files])
        for batch in read.sort_by("spool_number").to_batches(max_chunksize=1000):
            yield from batch.to_pylist()


def _read(file: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        return pq.read_table(file, columns=columns, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(f"{file} cannot be read: {error}") from None


def _overlaps(file: Path, after: datetime | None, before: datetime | None) -> bool:
    """Whether a file may have rows of a time; a file whose folder has no time may."""
    named = _HOUR.search(str(file))
    if named is None or named["date"] == "0001-01-01":
        return True
    begin = datetime.fromisoformat(f"{named['date']}T{int(named['hour']):02d}:00:00+00:00")
    return not (after is not None and begin + timedelta(hours=1) <= after) and not (
        before is not None and begin >= before
    )
