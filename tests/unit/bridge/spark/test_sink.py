"""What Spark asks of the data source to write."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from isthmus.bridge.spark.row import SCHEMA, batch_of
from isthmus.bridge.spark.sink import StreamWriter
from isthmus.bridge.spark.source import IsthmusDataSource
from isthmus.errors import ConfigError, InvalidArgumentError

OWN = from_arrow_schema(SCHEMA)


def planned(schema: StructType, **options: str) -> StreamWriter:
    return IsthmusDataSource(options).streamWriter(schema, overwrite=False)


def test_rows_as_they_were_read_can_be_written() -> None:
    pickle.loads(pickle.dumps(planned(OWN, checkpointlocation="/x")))


def test_steps_may_add_dispositions_in_any_order() -> None:
    marks = [StructField(name, StringType()) for name in ("disposition", "reason", "description")]
    planned(StructType([*marks, *reversed(OWN.fields)]))


def test_what_cannot_be_written_is_reported_at_once_i3() -> None:
    kept = [field for field in OWN.fields if field.name == "message"]
    schema = StructType([*kept, StructField("position", IntegerType()), StructField("gate", StringType())])
    with pytest.raises(ConfigError) as caught:
        planned(schema, entity="x")
    text = str(caught.value)
    assert "have lost their column 'route'" in text
    assert "column 'position' is int; cast it to bigint" in text
    assert "nothing is written from column 'gate'" in text
    assert "has no option 'entity'; write one of columns, steps" in text


def test_overwriting_and_batch_writes_are_refused_i3() -> None:
    source = IsthmusDataSource({})
    with pytest.raises(InvalidArgumentError, match="append"):
        source.streamWriter(OWN, overwrite=True)
    with pytest.raises(InvalidArgumentError, match="writeStream"):
        source.writer(OWN, overwrite=False)


class Host:
    made: Host
    finish_error: Exception | None = None

    def __init__(self, **reported: Any) -> None:
        self.calls: list[Any] = []
        Host.made = self

    def start(self) -> None:
        self.calls.append("start")

    def hand_over(
        self,
        handle: int,
        positions: Any,
        data: bytes,
        offsets: Any,
        disposed: Any = (),
        diverted: Any = (),
        *,
        is_last: bool = True,
    ) -> None:
        self.calls.append((handle, list(positions)))

    def flush(self, number: int) -> None:
        self.calls.append(number)

    def finish(self) -> None:
        self.calls.append("finish")
        if self.finish_error is not None:
            raise self.finish_error

    def abort(self, error: BaseException) -> None:
        self.calls.append(error)


@pytest.fixture(name="_host")
def _fake_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.bridge.host.sender.sender.SenderHost", Host)
    monkeypatch.setattr("sys.setswitchinterval", lambda _: None)


BATCH = batch_of([(4, [1, 2], [b"a", b"b"])], 1, b"p")


@pytest.mark.usefixtures("_host")
def test_a_lease_is_written_until_it_is_finished_i1_i2() -> None:
    StreamWriter().write(iter([BATCH, BATCH]))
    assert Host.made.calls == ["start", (4, [1, 2]), 1, (4, [1, 2]), 1, "finish"]


@pytest.mark.usefixtures("_host")
def test_whatever_goes_wrong_aborts_it_i1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "finish_error", InvalidArgumentError("end of input without STOPPED"))
    with pytest.raises(InvalidArgumentError, match="STOPPED"):
        StreamWriter().write(iter([BATCH]))
    assert str(Host.made.calls[-1]) == "end of input without STOPPED"

    broken = pa.RecordBatch.from_pydict({"message": [b"a"], "route": [None], "position": [1]})
    with pytest.raises(InvalidArgumentError, match="'route' holds null"):
        StreamWriter().write(iter([broken]))
    assert isinstance(Host.made.calls[-1], InvalidArgumentError)
    assert "finish" not in Host.made.calls
