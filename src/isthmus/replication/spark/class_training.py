"""Writes the archive of Spark's classes: starts Spark, runs the operations of routes and steps, and lets the virtual machine write its classes.

What it is: the implementation of `isthmus prepare`. A process does it once, since it has one Spark. The archive contains the classes that
were loaded until the end; the queries here represent every kind that isthmus starts: a lease (a Python source and a Python sink, in Arrow
batches), steps with and without a shuffle, tables.

Invariants:
    I1. Only the archive's folder and a temporary folder are written.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from isthmus.replication.spark.class_archive import ClassArchive, ClassArchiveError
from isthmus.replication.spark_session import create_spark_session

__all__ = ["write_archive"]

SCHEMA = "number bigint, time timestamp, message binary"
ROWS = 100
_EXIT_TIMEOUT_SECONDS = 180.0


def write_archive(archive: ClassArchive) -> None:
    """Start Spark in this process, use it, end it, and install the archive.

    Raises:
        ClassArchiveError: the archive could not be written.
    """
    try:
        archive.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClassArchiveError(str(archive.file), error.strerror or str(error)) from error
    written = archive.folder / f"spark.{os.getpid()}.jsa"
    try:
        with tempfile.TemporaryDirectory(prefix="isthmus-") as folder:
            session = create_spark_session(
                "isthmus prepare", routes=1, work_directory=Path(folder), java=archive.java, archive_file=written
            )
            _use(session, Path(folder))
            if status := _end(session):
                raise ClassArchiveError(str(archive.file), f"Java ended with status {status}")
        archive.install(written)
        archive.remove_others()
    finally:
        written.unlink(missing_ok=True)


class _Source(DataSource):
    """Rows of numbers, and a sink that drops its rows."""

    @classmethod
    def name(cls) -> str:
        return "isthmus_training"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> _Reader:  # noqa: N802 - Spark's name
        return _Reader()

    def streamWriter(self, schema: StructType, overwrite: bool) -> _Writer:  # noqa: N802 - Spark's name
        return _Writer()


class _Reader(DataSourceStreamReader):
    """One batch of rows."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"row": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"row": ROWS}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["row"], end["row"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        numbers = range(*partition.value)
        times = pa.array([number * 1_000_000 for number in numbers], pa.timestamp("us", tz="UTC"))
        yield pa.RecordBatch.from_arrays(
            [pa.array(numbers, pa.int64()), times, pa.array([b"message"] * len(numbers))], ["number", "time", "message"]
        )


class _Writer(DataSourceStreamArrowWriter):
    """Drops rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        pass


def _use(session: SparkSession, folder: Path) -> None:
    session.dataSource.register(_Source)
    rows = session.readStream.format("isthmus_training").load()
    # A lease, and steps without a shuffle.
    mapped = rows.mapInArrow(lambda batches: batches, SCHEMA).where("number >= 0")
    _run(mapped, "isthmus_training", folder, "lease")
    # Steps with a shuffle, and a table.
    windows = (
        rows.withWatermark("time", "1 second").groupBy(F.window("time", "10 seconds")).agg(F.count("*").alias("count"))
    )
    _run(windows.select("window.start", "count"), "parquet", folder, "windows")
    _run(rows.withWatermark("time", "1 second").dropDuplicatesWithinWatermark(["number"]), "parquet", folder, "rows")
    session.read.parquet(str(folder / "rows-data")).orderBy("number").selectExpr("sum(number)").collect()


def _run(rows: DataFrame, form: str, folder: Path, name: str) -> None:
    writer = rows.writeStream.format(form).option("checkpointLocation", str(folder / name)).trigger(availableNow=True)
    query = writer.start(str(folder / f"{name}-data"))
    query.awaitTermination()


def _end(session: SparkSession) -> int:
    """Ends the virtual machine, which then writes the archive. Returns its exit status: after a full disk a partial file may be left."""
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    machine = gateway.proc
    machine.stdin.close()
    return int(machine.wait(timeout=_EXIT_TIMEOUT_SECONDS))
