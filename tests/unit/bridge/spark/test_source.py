"""What Spark asks of the data source at the driver."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

import isthmus.bridge.spark.source as source_module
from isthmus.bridge.host.reader.item import LeaseEnd, LeaseFailedError, LeaseName, Rows
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.bridge.spark.arrow_batch import ARROW_BATCH_SETTING
from isthmus.bridge.spark.column import DDL, is_own
from isthmus.bridge.spark.option import ReadOptions
from isthmus.bridge.spark.row import SCHEMA
from isthmus.bridge.spark.source import IsthmusDataSource, LeaseReader, SlotPartition
from isthmus.errors import ConfigError, InvalidArgumentError
from pyspark_isthmus import DefaultSource

OWN = from_arrow_schema(SCHEMA)


def routes(count: int) -> tuple[RouteSpec, ...]:
    return tuple(
        RouteSpec(name=f"r{n}", source=End("servicebus", "ewr"), target=End("servicebus", "jfk")) for n in range(count)
    )


def test_spark_finds_it_by_its_package() -> None:
    assert issubclass(DefaultSource, DataSource)
    assert DefaultSource.name() == "isthmus"


def test_a_micro_batch_is_a_lease_and_a_partition_a_slot() -> None:
    reader = LeaseReader(ReadOptions(routes=routes(5), slots=2))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert (start, end) == ({"lease": 0}, {"lease": 1})
    assert reader.partitions(end, end) == []
    parts: Any = reader.partitions(start, end)
    assert [(part.lease, part.slot, [route.name for route in part.routes]) for part in parts] == [
        (1, 0, ["r0", "r2", "r4"]),
        (1, 1, ["r1", "r3"]),
    ]
    pickle.loads(pickle.dumps((reader, parts)))
    reader.stop()


def test_a_foreign_schema_is_refused_i2() -> None:
    wrong = StructType([StructField("route", StringType())])
    with pytest.raises(InvalidArgumentError, match=r"remove \.schema\(\.\.\.\)"):
        IsthmusDataSource({"routes": "[]"}).streamReader(wrong)


def test_wrong_options_are_refused_when_the_query_is_planned() -> None:
    with pytest.raises(ConfigError, match="neither control nor routes"):
        IsthmusDataSource({}).streamReader(OWN)


def test_a_batch_read_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="readStream"):
        IsthmusDataSource({}).reader(OWN)


# ---- the worker's side


class Host:
    """A reader whose items are known beforehand."""

    made: Host

    def __init__(self, **reported: Any) -> None:
        self.reported = reported
        self.calls: list[Any] = []
        self.items: list[Any] = [Rows(1, range(3), [b"m"] * 3), LeaseEnd(None)]
        Host.made = self

    def start(self) -> None:
        self.calls.append("start")

    def take(self, until: float) -> Any:
        item = self.items.pop(0)
        if isinstance(item, BaseException):
            raise item
        return item

    def note_flush(self, number: int, rows: dict[int, int]) -> None:
        self.calls.append((number, dict(rows)))

    def stop(self, why: str) -> None:
        self.calls.append(why)

    def join(self, seconds: float) -> None:
        self.calls.append("join")


@pytest.fixture(name="settings")
def _settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> dict[str, str]:
    settings = {ARROW_BATCH_SETTING: "131072"}
    monkeypatch.setattr("isthmus.bridge.host.reader.reader.ReaderHost", Host)
    monkeypatch.setattr(source_module, "task_channel", lambda: tmp_path / "channel")
    monkeypatch.setattr("isthmus.bridge.spark.worker.setting", settings.get)
    monkeypatch.setattr("sys.setswitchinterval", lambda _: None)
    return settings


READER = LeaseReader(ReadOptions(query="q", routes=routes(1), lease_seconds=60.0))
PARTITION = SlotPartition(7, 0, routes(1))


def test_a_lease_is_read_until_it_ends(settings: dict[str, str]) -> None:
    batches = list(READER.read(PARTITION))
    assert sum(batch.num_rows for batch in batches if 1 in batch["route"].to_pylist()) == 5
    host = Host.made
    assert host.reported["lease"] == LeaseName("q", 7, 0)
    assert host.reported["routes"] == routes(1)
    assert (host.reported["control"], host.reported["lease_seconds"]) == (None, 60.0)
    assert host.calls == ["start", (0, {}), (1, {1: 3}), "the reader was closed", "join"]


def test_a_reader_that_is_closed_stops_its_host_i3(settings: dict[str, str]) -> None:
    batches = READER.read(PARTITION)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert Host.made.calls[-2:] == ["the reader was closed", "join"]


def test_a_failed_lease_stops_its_host_i3(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    batches = READER.read(PARTITION)
    next(batches)
    Host.made.items = [LeaseEnd(LeaseFailedError("query 'q'", "gone"))]
    with pytest.raises(LeaseFailedError, match="gone"):
        list(batches)
    assert Host.made.calls[-2:] == ["the reader was closed", "join"]


def test_a_session_with_speculation_is_refused_i2(settings: dict[str, str]) -> None:
    settings["spark.speculation"] = "TRUE"
    with pytest.raises(InvalidArgumentError, match=r"spark\.speculation is true"):
        READER.read(PARTITION)


def test_a_session_that_would_keep_messages_back_is_refused_i2(settings: dict[str, str]) -> None:
    settings[ARROW_BATCH_SETTING] = "64m"
    with pytest.raises(InvalidArgumentError, match="Spark would hold messages back"):
        next(iter(READER.read(PARTITION)))


def test_position_has_the_type_of_the_schema() -> None:
    assert OWN["position"].dataType == LongType()


def test_planning_loads_neither_numpy_nor_arrow() -> None:
    """Spark plans in four Python processes, and each would hold them."""
    program = (
        "import sys, pyspark_isthmus; print([name for name in ('numpy', 'pyarrow', 'pandas') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_planned_schema_is_that_of_the_batches() -> None:
    own = from_arrow_schema(SCHEMA)
    assert is_own(own)
    assert ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in own.fields) == DDL
    assert not is_own(StructType([*own.fields, StructField("more", LongType())]))
    assert not is_own(StructType([StructField(each.name, each.dataType, False) for each in own.fields]))
