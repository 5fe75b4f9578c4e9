"""isthmus.connectors.spool.source: the calls of Spark at the driver, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadLimit

from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder
from isthmus.connectors.spool.reader import SpoolMissingError, SpoolReader
from isthmus.connectors.spool.source import SpoolDataSource, SpoolStreamReader
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


def stream_of(path: Path, rows: str, *, releases: bool) -> SpoolStreamReader:
    options = {"path": str(path), "rows": rows} | ({"releases": "true"} if releases else {})
    reader = SpoolDataSource(options).streamReader(None)  # type: ignore[arg-type]  # it reads no schema
    assert isinstance(reader, SpoolStreamReader)
    return reader


@pytest.mark.parametrize("rows", ["archive", "timed"])
def test_i3_a_repeated_batch_of_a_spool_that_is_not_there_is_not_empty(tmp_path: Path, rows: str) -> None:
    """A folder that was mounted late: Spark committed the batch without rows, and its messages were in no table, nor read again."""
    spool, away = tmp_path / "spool", tmp_path / "away"
    write_segments(spool, 3)
    reader = stream_of(spool, rows, releases=True)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadLimit())
    spool.rename(away)
    with pytest.raises(SpoolError, match="is not there"):
        stream_of(spool, rows, releases=True).partitions(start, end)
    away.rename(spool)
    assert stream_of(spool, rows, releases=True).partitions(start, end)


@pytest.mark.parametrize("rows", ["message", "timed"])
def test_i4_a_query_that_another_one_overtakes_says_which_records_it_has_not_read(tmp_path: Path, rows: str) -> None:
    """It skipped them, and nothing was said."""
    write_segments(tmp_path, 4)
    slow = stream_of(tmp_path, rows, releases=False)
    start = slow.initialOffset()
    reader = SpoolReader(tmp_path)
    reader.release(reader.at(1))
    with pytest.raises(SpoolMissingError, match="the records from 0 up to 1 were deleted before this query read them"):
        slow.latestOffset(start, ReadLimit())
    following = start | reader.at(1)._asdict()
    assert slow.latestOffset(following, ReadLimit())["number"] == 4
    end = slow.latestOffset(following, ReadLimit())
    reader.release(reader.at(3))
    with pytest.raises(SpoolMissingError, match="the records from 1 up to 3 were deleted"):
        slow.partitions(following, end)


def test_i4_the_query_that_a_spool_is_for_goes_on_behind_what_it_has_deleted(tmp_path: Path) -> None:
    """Its checkpoint may be older, after a power failure."""
    write_segments(tmp_path, 4)
    own = stream_of(tmp_path, "archive", releases=True)
    start = own.initialOffset()
    end = own.latestOffset(start, ReadLimit())
    reader = SpoolReader(tmp_path)
    reader.release(reader.at(2))
    assert len(own.partitions(start, end)) == 2


@pytest.mark.parametrize("rows", ["message", "timed"])
def test_i3_a_spool_that_is_away_for_a_moment_is_not_read_again(tmp_path: Path, rows: str) -> None:
    """Spark committed an empty batch of no spool, and then one of another spool: the first segment was read again."""
    spool, away = tmp_path / "spool", tmp_path / "away"
    reader = stream_of(spool, rows, releases=False)
    assert reader.latestOffset(reader.initialOffset(), ReadLimit())["number"] == 0  # it was not made yet
    write_segments(spool, 3)
    end = reader.latestOffset(reader.initialOffset(), ReadLimit())
    spool.rename(away)
    with pytest.raises(SpoolError, match="is not there"):
        reader.latestOffset(end, ReadLimit())
    away.rename(spool)
    assert reader.latestOffset(end, ReadLimit()) == end


def test_i3_rows_are_of_a_spool_that_is_there(tmp_path: Path) -> None:
    """Rows of no spool were in no table: its query takes only those of the spool at the path."""
    write_segments(tmp_path, 1)
    reader = stream_of(tmp_path, "archive", releases=True)
    start = reader.initialOffset()
    (part,) = reader.partitions(start, reader.latestOffset(start, ReadLimit()))
    (tmp_path / "id").rename(tmp_path / "away")
    with pytest.raises(SpoolError, match="is not there"):
        list(reader.read(part))
    (tmp_path / "away").rename(tmp_path / "id")
    assert [batch.num_rows for batch in reader.read(part)] == [1]
