"""The start of reading a spool for windows; without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.option import read_options
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.connectors.spool.timed_reader import TimedPartition, TimedStreamReader
from isthmus.connectors.spool.writer import SpoolWriter


def reader(path: Path, **options: str) -> TimedStreamReader:
    return TimedStreamReader(read_options({"path": str(path), "rows": "timed", "releases": "true", **options}))


def write(path: Path, count: int) -> None:
    writer = SpoolWriter(path).open()
    writer.append([Record("ewr/q id", -1, 1, b"m") for _ in range(count)])
    writer.sync()
    writer.close()


def blocks(path: Path, *counts: int) -> None:
    """Blocks of one segment."""
    writer = SpoolWriter(path).open()
    for count in counts:
        writer.append([Record("ewr/q id", -1, 1, b"m") for _ in range(count)])
        writer.sync()
    writer.close()


def all_batches(found: TimedStreamReader, start: dict[str, Any]) -> list[int]:
    """The numbers of the messages of all batches."""
    numbers: list[int] = []
    while (following := batch(found, start))[0]["number"] != start["number"]:
        start, more = following
        numbers += more
    return numbers


def batch(found: TimedStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Offset behind the next batch, and the numbers of its messages."""
    end = found.latestOffset(start, ReadLimit())
    (part,) = found.partitions(start, end)
    assert isinstance(part, TimedPartition)
    rows = [row for each in found.read(part) for row in each.to_pylist()]
    found.commit(end)
    return end, [row["spool_number"] for row in rows if row["kind"] == 0]


def test_i3_a_spool_that_is_read_again_after_another_is_read_from_where_it_was(tmp_path: Path) -> None:
    """The state of windows has what was read before: it would count twice."""
    first, second = reader(tmp_path / "first"), reader(tmp_path / "second")
    write(tmp_path / "first", 3)
    write(tmp_path / "second", 2)
    end, numbers = batch(first, first.initialOffset())
    assert numbers == [0, 1, 2]
    end, numbers = batch(second, end)
    assert numbers == [0, 1]
    write(tmp_path / "first", 2)
    end, numbers = batch(first, end)
    assert numbers == [3, 4]
    write(tmp_path / "first", 1)
    assert batch(first, end)[1] == [5]


def test_i3_a_query_without_checkpoint_begins_amid_a_segment(tmp_path: Path) -> None:
    """Its first batch ended before what had been taken, and the next one began there: it was counted twice."""
    blocks(tmp_path, 3, 3, 3)
    SpoolReader(tmp_path).take(7)
    found = reader(tmp_path, batch_bytes="1")
    assert all_batches(found, found.initialOffset()) == [7, 8]


def test_i3_what_a_route_without_the_query_has_sent_is_not_read(tmp_path: Path) -> None:
    """The step was taken out of the file, while the spool stayed, and put back: the checkpoint is of the time before."""
    blocks(tmp_path, 3)
    end, _ = batch(first := reader(tmp_path), first.initialOffset())
    blocks(tmp_path, 3, 3, 3)
    identity = SpoolReader(tmp_path).identity
    found = reader(tmp_path, batch_bytes="1", past=f"{identity} 7")
    assert all_batches(found, end) == [7, 8, 9, 10, 11]
    assert all_batches(reader(tmp_path, past="another 7"), end) == list(range(3, 12))


def test_i3_a_repeated_batch_of_what_was_sent_without_the_query_leaves_that_taken(
    tmp_path: Path,
) -> None:
    """Killed during a batch, the query repeats it; with a lower number a route without the query would send messages again."""
    blocks(tmp_path, 3, 3, 3)
    first = reader(tmp_path, batch_bytes="1")
    start = first.initialOffset()
    end = first.latestOffset(start, ReadLimit())
    assert end["number"] == 3
    SpoolReader(tmp_path).take(7)
    found = reader(tmp_path, batch_bytes="1", past=f"{SpoolReader(tmp_path).identity} 7")
    (part,) = found.partitions(start, end)
    assert isinstance(part, TimedPartition)
    assert [row["kind"] for each in found.read(part) for row in each.to_pylist()] == [1]
    found.commit(end)
    assert SpoolReader(tmp_path).taken() == 7
    assert all_batches(found, end) == [7, 8]
    assert SpoolReader(tmp_path).taken() == 9
