"""The Spark query that writes a spool into an archive.

What it is: one streaming query in micro-batches, each of which becomes one commit of the archive's folder. What it is not: the spool, the
commit (`folder`), or the route that fills the spool. docs/explanation/spool.md.

Invariants:
    I1. A batch that Spark repeats is written once: rows below the archive's watermark are skipped.
    I2. Its failure text is written for operators, and does not change after it has ended.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.connectors.spool.backlog import spool_backlog
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.errors import IsthmusError
from isthmus.replication.archive.folder import ArchiveError, ArchiveFolder, files_of
from isthmus.replication.query.query_failure import cause_of
from isthmus.replication.query.route_progress import SpoolView
from isthmus.replication.spark.gone import SparkGoneError, calling_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["ArchiveQuery", "ArchiveSettings", "archive_columns", "check_archive"]

FORMAT = "isthmus_spool"
COMPRESSION = "zstd"
# Spark's default, INT96, cannot represent times after the year 2262.
_TIMESTAMPS = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """The paths of an archive's query.

    Attributes:
        table: the archive's folder.
        spool: the spool's folder.
        checkpoint: checkpoint of the query; a path, or a URI that Spark can write.
        batch_seconds: interval between the starts of two batches.
    """

    table: Path
    spool: Path
    checkpoint: str
    batch_seconds: float = 60.0


def check_archive(settings: ArchiveSettings) -> None:
    """Check whether an archive can be written, without changing anything.

    Raises:
        ArchiveError: its folder, or that of its spool, cannot be written, or contains something else.
    """
    ArchiveFolder(settings.table, archive_columns()).check()
    at = settings.spool
    while not at.exists():
        at = at.parent
    if not at.is_dir() or not os.access(at, os.W_OK | os.X_OK):
        raise ArchiveError(f"{settings.spool} cannot be a spool: {at} is no folder that this user can write")


@cache
def archive_columns() -> dict[str, str]:
    """The columns of an archive, by name, with Spark's types."""
    from isthmus.connectors.spool.row import ARCHIVE_SCHEMA

    return {field.name: str(field.type) for field in ARCHIVE_SCHEMA}


class ArchiveQuery:
    """A query from a spool to an archive.

    Args:
        spark: the session.
        settings: the paths.
    """

    def __init__(self, spark: SparkSession, settings: ArchiveSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._folder = ArchiveFolder(settings.table, archive_columns())
        self._query: StreamingQuery | None = None
        self._error = ""

    def start(self) -> ArchiveQuery:
        """Lock the archive and start.

        Raises:
            ArchiveError: the archive cannot be written.
            SparkGoneError: Spark has ended.
        """
        self._folder.open()
        try:
            self._make_spool()
            with calling_spark():
                self._spark.conf.set(*_TIMESTAMPS)
                rows = self._spark.readStream.format(FORMAT).options(
                    path=str(self._settings.spool), rows="archive", releases="true"
                )
                self._query = (
                    rows.load()
                    .writeStream.foreachBatch(self._take)
                    .option("checkpointLocation", self._settings.checkpoint)
                    .trigger(processingTime=f"{self._settings.batch_seconds:g} seconds")
                    .start()
                )
        except BaseException:
            self._folder.close()
            raise
        return self

    def _make_spool(self) -> None:
        """Make the spool where it is missing: the query reads it before its route has made it, and refuses to repeat a batch of a spool that is not
        there. A batch of another spool is empty: the rows of that one which the table lacks are read again once it is back.
        """
        try:
            SpoolFolder(self._settings.spool).make()
        except OSError as error:
            raise ArchiveError(f"spool {self._settings.spool} cannot be made: {error.strerror or error}") from error

    def is_active(self) -> bool:
        """Whether the query runs.

        Raises:
            SparkGoneError: Spark has ended.
        """
        if self._query is None:
            return False
        with calling_spark():
            return bool(self._query.isActive)

    def failure(self) -> str:
        """Why the query ended; empty if it runs or was stopped.

        Raises:
            SparkGoneError: Spark has ended.
        """
        if not self._error and self._query is not None:
            with calling_spark():
                error = None if self._query.isActive else self._query.exception()
            self._error = cause_of(str(error)) if error is not None else ""
        return f"archive {self._settings.table}: {self._error}" if self._error else ""

    def has_all(self) -> bool:
        """Whether everything in the spool has been committed.

        Raises:
            SparkGoneError: Spark has ended.
        """
        spool = SpoolReader(self._settings.spool)
        end = spool.last().number
        return self._folder.watermark(spool.identity) >= end or self._read_until(spool.identity) >= end

    def view(self) -> SpoolView:
        """The messages in the spool that are not in the table."""
        reader = SpoolReader(self._settings.spool)
        found = spool_backlog(self._settings.spool, self._folder.watermark(reader.identity))
        return SpoolView(waiting=found.messages, size_bytes=found.size_bytes, oldest_ms=found.oldest_ms)

    def stop(self) -> None:
        """Stop the query; blocks until a running batch has been given up, which the next start repeats."""
        if self._query is not None:
            with suppress(SparkGoneError), calling_spark():
                self._query.stop()
        self._folder.close()

    def _read_until(self, spool: str) -> int:
        """The record of a spool up to which the last committed batch has read: damaged bytes have no rows."""
        assert self._query is not None
        with calling_spark():
            progress = self._query.lastProgress
        with suppress(AttributeError, KeyError, IndexError, TypeError, ValueError):
            offset = progress.sources[0].endOffset  # type: ignore[union-attr]
            found = json.loads(offset) if isinstance(offset, str) else offset
            return int(found["number"]) if found["spool"] == spool else 0
        return 0

    def _take(self, rows: DataFrame, batch: int) -> None:
        """Write one micro-batch; called on a thread of Spark's."""
        try:
            self._write(rows)
        except IsthmusError as error:
            self._error = str(error)
            raise
        except OSError as error:
            self._error = f"it cannot be written: {error.strerror or error}"
            raise

    def _write(self, rows: DataFrame) -> None:
        spool = SpoolReader(self._settings.spool).identity
        if not spool:  # its rows would be left out
            raise SpoolError(f"spool {self._settings.spool} is not there: mount its folder, or restore it")
        fresh = rows.where((rows.spool == spool) & (rows.spool_number >= self._folder.watermark(spool)))
        staging = self._folder.staging()
        fresh.write.partitionBy("date", "hour").option("compression", COMPRESSION).parquet(
            f"file://{staging.absolute()}"
        )
        count, start, stop = 0, 1 << 62, 0
        for file in list(files_of(staging)):
            rows_of_file, first, last = _numbers_of(file)
            if not rows_of_file:
                file.unlink()
                continue
            count, start, stop = count + rows_of_file, min(start, first), max(stop, last + 1)
        if count:
            self._folder.commit(spool, start, stop, count)


def _numbers_of(file: Path) -> tuple[int, int, int]:
    """The number of rows of a file, and the lowest and the highest of their numbers in the spool."""
    import pyarrow.compute as pc
    from pyarrow.parquet import read_table

    numbers = read_table(file, columns=["spool_number"], partitioning=None).column(0)
    if not len(numbers):
        return 0, 0, 0
    edges = pc.min_max(numbers)
    return len(numbers), edges["min"].as_py(), edges["max"].as_py()
