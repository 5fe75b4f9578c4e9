"""isthmus.connectors.kafka.spark.row: records as rows, and rows as records; and the options of both."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from isthmus.connectors.kafka.spark.option import read_options, write_options
from isthmus.connectors.kafka.spark.row import SCHEMA, check_columns, records_of, rows_of
from isthmus.errors import ConfigError, InvalidArgumentError


class Found:
    """A record as a consumer gives it."""

    def __init__(self, value: bytes | None, key: bytes | None, headers: Any, time: tuple[int, int]) -> None:
        self._reported = value, key, headers, time

    def value(self) -> bytes | None:
        return self._reported[0]

    def key(self) -> bytes | None:
        return self._reported[1]

    def headers(self) -> Any:
        return self._reported[2]

    def timestamp(self) -> tuple[int, int]:
        return self._reported[3]

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 7


def test_what_was_read_can_be_written_again() -> None:
    """I1, I2."""
    headers = [("a", b"1"), ("a", None)]
    rows = rows_of([Found(b"v", b"k", headers, (1, 1_700_000_000_123)), Found(None, None, None, (0, -1))])
    assert rows.schema == SCHEMA
    assert list(records_of(rows)) == [
        {"value": b"v", "key": b"k", "headers": headers, "timestamp": 1_700_000_000_123, "partition": 2},
        {"value": None, "key": None, "partition": 2},
    ]


def test_headers_that_the_client_cannot_read_are_null() -> None:
    """The query failed for their record, again at each start."""

    class Odd(Found):
        def headers(self) -> Any:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    rows = rows_of([Odd(b"v", None, None, (0, -1)), Found(b"w", None, None, (0, -1))])
    assert rows.column("headers").to_pylist() == [None, []]
    assert rows.column("value").to_pylist() == [b"v", b"w"]


def test_text_is_written_as_utf8_and_what_is_absent_is_left_out() -> None:
    rows = pa.RecordBatch.from_pylist([{"value": "é", "offset": 3}])
    assert list(records_of(rows)) == [{"value": "é".encode(), "key": None}]


@pytest.mark.parametrize(
    "row",
    [
        {"value": 1},
        {"value": b"x", "key": 1.5},
        {"value": b"x", "timestamp": "now"},
        {"value": b"x", "timestamp": datetime(2026, 1, 1)},  # noqa: DTZ001 - without a zone, by the worker's
        {"value": b"x", "partition": 1.7},
        {"value": b"x", "headers": ["a"]},
        {"value": b"x", "headers": [{"key": None, "value": b"1"}]},
    ],
)
def test_a_cell_of_another_type_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        list(records_of(pa.RecordBatch.from_pylist([row])))


@pytest.mark.parametrize("ms", [1_793_491_200_123_456, 253_402_300_800_000, -62_135_596_800_001, 0, -1])
def test_a_time_beyond_pythons_is_written_as_it_was_read(ms: int) -> None:
    (record,) = records_of(rows_of([Found(b"v", None, None, (1, ms))]))
    assert record["timestamp"] == ms


@pytest.mark.parametrize("ms", [1_793_491_200_123_456_789, (1 << 63) - 1, -(1 << 63)])
def test_a_time_that_no_column_holds_keeps_no_record_from_being_read(ms: int) -> None:
    rows = rows_of([Found(b"v", None, None, (1, ms)), Found(b"w", None, None, (1, 5))])
    assert [record.get("timestamp") for record in records_of(rows)] == [None, 5]


def test_columns_of_nulls_are_written() -> None:
    rows = pa.RecordBatch.from_pylist(
        [{"value": b"x", "key": None, "timestamp": None, "partition": None, "headers": None}]
    )
    assert list(records_of(rows)) == [{"value": b"x", "key": None}]


def test_columns_of_which_nothing_is_written_are_refused() -> None:
    check_columns(["value", "topic", "offset", "timestamp"])
    with pytest.raises(InvalidArgumentError, match="column 'value'"):
        check_columns(["key"])
    with pytest.raises(ConfigError, match="there are two columns 'key'; drop one of them"):
        check_columns(["value", "key", "key"])
    with pytest.raises(ConfigError, match="write headers"):
        check_columns(["value", "header"])


def test_a_moment_of_another_unit_is_milliseconds() -> None:
    moment = datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
    (record,) = records_of(pa.RecordBatch.from_pylist([{"value": b"", "timestamp": moment}]))
    assert record["timestamp"] == 1_767_225_600_500


def test_options_are_taken_in_any_case_and_what_is_unknown_is_named() -> None:
    read = read_options(
        {"bootstrapServers": "a:1", "TOPIC": "t", "maxRecords": "5", "kafka.fetch.max.bytes": "9", "path": ""}
    )
    assert (read.max_records, read.start, read.missing, read.extra) == (
        5,
        "earliest",
        "fail",
        (("fetch.max.bytes", "9"),),
    )
    with pytest.raises(ConfigError) as raised:
        write_options({"topic": "t", "group": "g", "kafka.acks": "0", "timeout_seconds": "0"})
    assert len(raised.value.faults) == 4
