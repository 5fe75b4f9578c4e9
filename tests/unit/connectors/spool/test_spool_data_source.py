"""isthmus.connectors.spool.source: the calls of Spark at the driver, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadLimit

from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.folder import SpoolFolder
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.connectors.spool.source import SpoolDataSource
from isthmus.connectors.spool.writer import SpoolWriter


def write_segments(path: Path, count: int) -> None:
    """Segments of one message each."""
    writer = SpoolWriter(path, segment_bytes=1).open()
    for number in range(count):
        writer.append([Record("ewr/q id", number, 1, b"m")])
        writer.sync()
    writer.close()


@pytest.mark.parametrize("rows", ["archive", "message", "timed"])
@pytest.mark.parametrize("releases", [False, True])
def test_i2_only_the_query_that_a_spool_is_for_deletes_what_it_has_read(
    tmp_path: Path, rows: str, *, releases: bool
) -> None:
    """The query of a reader who was curious deleted segments that the table of the task did not have, and nothing was said."""
    write_segments(tmp_path, 3)
    options = {"path": str(tmp_path), "rows": rows} | ({"releases": "true"} if releases else {})
    source = SpoolDataSource(options)
    reader = source.streamReader(None)  # type: ignore[arg-type]  # it reads no schema
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadLimit())
    assert end["number"] == 3
    reader.commit(end)
    assert SpoolFolder(tmp_path).numbers() == ([2] if releases else [0, 1, 2])
    assert (SpoolReader(tmp_path).taken() is None) == (rows != "timed" or not releases)
