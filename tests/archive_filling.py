"""What the query of an archive does, without Spark: rows of a spool into the table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.connectors.spool.row import ARCHIVE_SCHEMA, batch_of
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.replication.archive.folder import ArchiveFolder
from isthmus.replication.archive.query import archive_columns


def receive(spool: Path, records: list[Record]) -> None:
    writer = SpoolWriter(spool).open()
    writer.append(records)
    writer.sync()
    writer.close()


def move(spool: Path, table: Path) -> int:
    """Commit what is in the spool and not in the table; how many rows."""
    folder = ArchiveFolder(table, archive_columns()).open()
    reader = SpoolReader(spool)
    mark = folder.watermark(reader.identity)
    batches = [
        batch_of("archive", reader.identity, block.first, block.written_ms, records)
        for part in reader.ranges(reader.first(), reader.last(), 1 << 40)
        for block, records in reader.blocks(part)
        if block.first >= mark
    ]
    if not batches:
        folder.close()
        return 0
    rows = pa.Table.from_batches(batches, ARCHIVE_SCHEMA)
    staging = folder.staging()
    for date, hour in sorted(set(zip(rows.column("date").to_pylist(), rows.column("hour").to_pylist(), strict=True))):
        of_hour = rows.filter((pa.compute.field("date") == date) & (pa.compute.field("hour") == hour))
        folder_of_hour = staging / f"date={date}" / f"hour={hour}"
        folder_of_hour.mkdir(parents=True)
        pq.write_table(of_hour.drop_columns(["date", "hour"]), folder_of_hour / "x.parquet")
    numbers = rows.column("spool_number").to_pylist()
    folder.commit(reader.identity, min(numbers), max(numbers) + 1, rows.num_rows)
    folder.close()
    return rows.num_rows
