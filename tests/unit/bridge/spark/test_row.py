"""Batches made of messages of many routes."""

from __future__ import annotations

from array import array

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from isthmus.bridge.spark.column import DDL
from isthmus.bridge.spark.row import FEW_ROWS, FILLER_ROUTE, FLUSH_ROUTE, SCHEMA, Run, batch_of, flush_batch


def run(handle: int, first: int, count: int) -> Run:
    return handle, range(first, first + count), [b"%d/%d" % (handle, n) for n in range(first, first + count)]


def rows(batch: pa.RecordBatch) -> list[tuple[bytes, int, int]]:
    batch.validate(full=True)
    return [(row["message"], row["route"], row["position"]) for row in batch.to_pylist()]


@pytest.mark.parametrize("count", [1, FEW_ROWS // 2, FEW_ROWS, 1000])
def test_messages_of_several_routes_become_rows_in_order_i2(count: int) -> None:
    batch = batch_of([run(3, 10, count), run(1, 500, count), run(3, 10 + count, 1)])
    assert batch.schema == SCHEMA
    assert rows(batch) == [
        *((b"3/%d" % n, 3, n) for n in range(10, 10 + count)),
        *((b"1/%d" % n, 1, n) for n in range(500, 500 + count)),
        (b"3/%d" % (10 + count), 3, 10 + count),
    ]


@pytest.mark.parametrize("count", [2, 100])
def test_positions_may_be_any_sequence(count: int) -> None:
    high = [(7 << 48) + 2 * n for n in range(count)]
    payloads = [b"m"] * count
    batch = batch_of([(1, high, payloads), (2, tuple(high), payloads), (3, array("q", high), payloads)])
    assert batch.column("position").to_pylist() == high * 3


@pytest.mark.parametrize("count", [1, 100])
def test_flush_rows_come_after_the_messages_i1(count: int) -> None:
    batch = batch_of([run(1, 1, count)], 5, b"p" * 70)
    assert rows(batch)[count:] == [(b"p" * 70, FLUSH_ROUTE, 5), (b"", FILLER_ROUTE, 0)]


def test_a_flush_needs_no_messages() -> None:
    assert rows(flush_batch(0, b"p")) == [(b"p", FLUSH_ROUTE, 0), (b"", FILLER_ROUTE, 0)]


def test_the_schema_is_the_one_declared_to_spark() -> None:
    fields = [field.simpleString().replace(":", " ") for field in from_arrow_schema(SCHEMA).fields]
    assert ", ".join(fields) == DDL
