"""The part of an archive's query that does not need Spark: one commit for each batch, however often Spark repeats it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from harness.fixture.archive_filling import receive
from isthmus.amqp import section, types
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.connectors.spool.row import ARCHIVE_SCHEMA, batch_of
from isthmus.errors import ConfigError
from isthmus.replication.archive.folder import ArchiveError
from isthmus.replication.archive.query import ArchiveQuery, ArchiveSettings, check_archive
from isthmus.replication.archive.start import archive_settings, check_archives
from isthmus.topology.model import TABLE, Endpoint, Route, RouteOptions, TableOptions


class Rows:
    """What the query asks of a DataFrame."""

    def __init__(self, table: pa.Table, kept: Any = None) -> None:
        self._table = table if kept is None else table.filter(kept)
        self.spool = pc.field("spool")
        self.spool_number = pc.field("spool_number")

    def where(self, condition: Any) -> Rows:
        return Rows(self._table, condition)

    @property
    def write(self) -> Rows:
        return self

    def partitionBy(self, *names: str) -> Rows:  # noqa: N802 - Spark's name
        assert names == ("date", "hour")
        return self

    def option(self, *_: str) -> Rows:
        return self

    def parquet(self, path: str) -> None:
        folder = Path(path.removeprefix("file://"))
        (folder / "_temporary").mkdir(parents=True)
        (folder / "_SUCCESS").touch()
        for number in range(0, max(1, self._table.num_rows), 2):
            place = folder / "date=2023-11-14" / "hour=22"
            place.mkdir(parents=True, exist_ok=True)
            part = self._table.slice(number, 2).drop_columns(["date", "hour"])
            pq.write_table(part, place / f"part-{number}.parquet")
            (place / f".part-{number}.parquet.crc").touch()


def record(number: int) -> Record:
    message = section.encode_message(b"x", annotations={"x-opt-sequence-number": types.Long(number)})
    return Record("ewr/q 01", number, 1_700_000_000_000 + number, message)


def batch(spool: Path) -> Rows:
    reader = SpoolReader(spool)
    batches = [
        batch_of("archive", reader.identity, block.first, block.written_ms, records)
        for part in reader.ranges(reader.first(), reader.last(), 1 << 40)
        for block, records in reader.blocks(part)
    ]
    return Rows(pa.Table.from_batches(batches, ARCHIVE_SCHEMA))


def numbers(table: Path) -> list[int]:
    files = table.glob("date=*/hour=*/*.parquet")
    return sorted(number for file in files for number in pq.ParquetFile(file).read()["sequence_number"].to_pylist())


@pytest.fixture
def settings(tmp_path: Path) -> ArchiveSettings:
    return ArchiveSettings(table=tmp_path / "lake", spool=tmp_path / "spool", checkpoint=str(tmp_path / "checkpoint"))


def opened(settings: ArchiveSettings) -> ArchiveQuery:
    query = ArchiveQuery(None, settings)  # type: ignore[arg-type]  # what is called here needs no Spark
    query._folder.open()
    return query


def test_i1_a_batch_that_is_repeated_is_written_once(settings: ArchiveSettings) -> None:
    receive(settings.spool, [record(number) for number in range(1, 6)])
    query = opened(settings)
    for _ in range(2):
        query._take(batch(settings.spool), 0)  # type: ignore[arg-type]
    assert numbers(settings.table) == [1, 2, 3, 4, 5]
    # Without its checkpoint Spark begins again with everything that is in the spool.
    receive(settings.spool, [record(number) for number in range(6, 9)])
    query._take(batch(settings.spool), 0)  # type: ignore[arg-type]
    assert numbers(settings.table) == list(range(1, 9))
    assert query._folder.total == 8
    assert query.has_all()
    query.stop()


class Spark:
    """A session that refuses the first setting."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_the_spool_is_there_before_it_is_read(settings: ArchiveSettings, tmp_path: Path) -> None:
    """Spark asks for a repeated batch before the route has made the spool, where that was deleted."""
    with pytest.raises(RuntimeError, match="conf"):
        ArchiveQuery(Spark(), settings).start()  # type: ignore[arg-type]  # as far as the session
    assert SpoolFolder(settings.spool).identity()
    (tmp_path / "file").touch()
    refused = replace(settings, spool=tmp_path / "file" / "spool")
    with pytest.raises(ArchiveError, match="cannot be made: "):
        ArchiveQuery(Spark(), refused).start()  # type: ignore[arg-type]  # not as far as the session


def test_i2_what_hinders_it_is_reported(settings: ArchiveSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    receive(settings.spool, [record(1)])
    query = opened(settings)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Rows, "parquet", full)
    with pytest.raises(OSError, match="No space"):
        query._take(batch(settings.spool), 0)  # type: ignore[arg-type]
    assert query.failure() == f"archive {settings.table}: it cannot be written: No space left on device"
    query.stop()


def test_what_keeps_an_archive_from_being_written_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.csv").touch()

    def route(name: str, table: Path, spool: Path) -> Route:
        options = RouteOptions(table=TableOptions(spool=str(spool)))
        ends = {"source": Endpoint("a", "q"), "targets": (Endpoint(TABLE, str(table)),)}
        return Route(name=name, task=name, pattern="archive", options=options, **ends)  # type: ignore[arg-type]

    good = route("good", tmp_path / "lake", tmp_path / "lake" / "spool")
    check_archives([good])
    assert not (tmp_path / "lake").exists()
    bad = [route("one", tmp_path / "other", tmp_path / "s"), route("two", tmp_path / "l", tmp_path / "file" / "s")]
    with pytest.raises(ConfigError) as caught:
        check_archives([good, *bad])
    assert [fault.message.partition(":")[0] for fault in caught.value.faults] == ["task one", "task two"]
    with pytest.raises(ArchiveError, match="cannot be a spool"):
        check_archive(archive_settings(bad[1]))


def test_what_was_read_of_a_former_spool_is_nothing_of_the_present_one(settings: ArchiveSettings) -> None:
    """A run with an end ended before what had come was in the table: the last batch of the spool that was at the path before had a higher number."""
    receive(settings.spool, [record(number) for number in range(1, 6)])
    query = opened(settings)
    identity = SpoolReader(settings.spool).identity
    for spool, has_all in (("former", False), (identity, True)):
        offset = json.dumps({"spool": spool, "segment": 0, "position": 900, "number": 9})
        progress = SimpleNamespace(sources=[SimpleNamespace(endOffset=offset)])
        query._query = SimpleNamespace(lastProgress=progress)  # type: ignore[assignment]  # what it is asked here
        assert query.has_all() is has_all
    query._folder.close()


def test_rows_of_a_spool_that_is_away_for_a_moment_are_not_left_out(settings: ArchiveSettings) -> None:
    """The batch was committed without them, and their segments were deleted."""
    receive(settings.spool, [record(number) for number in range(1, 4)])
    query, rows = opened(settings), batch(settings.spool)
    settings.spool.rename(settings.spool.with_name("away"))
    with pytest.raises(SpoolError, match="is not there"):
        query._take(rows, 0)  # type: ignore[arg-type]
    assert "is not there" in query.failure()
    settings.spool.with_name("away").rename(settings.spool)
    query._take(rows, 0)  # type: ignore[arg-type]
    assert numbers(settings.table) == [1, 2, 3]
    query.stop()
