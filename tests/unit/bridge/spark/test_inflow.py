"""Batches taken apart into runs of one route."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.spark.block import block_of
from isthmus.bridge.spark.inflow import Inflow
from isthmus.bridge.spark.row import BLOCK_ROUTE, FEW_ROWS, NO_FLUSH, batch_of
from isthmus.errors import InvalidArgumentError


class Sink:
    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.woken = 0

    def hand_over(
        self,
        handle: int,
        positions: Sequence[int],
        data: bytes,
        offsets: list[int],
        disposed: Sequence[tuple[int, Disposition]] = (),
        diverted: Sequence[tuple[int, Disposition, bytes]] = (),
        *,
        is_last: bool = True,
    ) -> None:
        self.woken += is_last
        assert isinstance(data, bytes)
        messages = [data[first:last] for first, last in pairwise(offsets)]
        assert offsets[0] == 0
        assert offsets[-1] == len(data)
        self.calls.append((handle, positions, messages, *disposed, *diverted))

    def flush(self, number: int) -> None:
        self.calls.append(("flush", number))


def taken(*batches: pa.RecordBatch) -> list[Any]:
    sink = Sink()
    inflow = Inflow(sink)
    for batch in batches:
        inflow.take(batch)
    return sink.calls


def table(routes: list[Any], positions: list[Any], messages: list[Any] | None = None, **more: Any) -> pa.RecordBatch:
    messages = [b"m%d" % (n or 0) for n in positions] if messages is None else messages
    columns = {"message": pa.array(messages, pa.binary()), "route": pa.array(routes, pa.int32())}
    columns |= {"position": pa.array(positions, pa.int64())}
    columns |= {name: pa.array(values, pa.string()) for name, values in more.items()}
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("count", [3, FEW_ROWS, 1000])
def test_runs_of_routes_and_flush_rows_come_in_their_places_i1(count: int) -> None:
    payloads = [b"%d" % n * (n % 7) for n in range(count)]
    batch = batch_of([(5, range(1, count + 1), payloads), (2, [9, 4, 11], [b"x", b"", b"z"])], 8, b"p" * 100)
    assert taken(batch) == [
        (5, range(1, count + 1), payloads),
        (2, [9, 4, 11], [b"x", b"", b"z"]),
        ("flush", 8),
    ]


def test_a_block_is_handed_over_run_by_run_in_its_place_i1() -> None:
    cell = block_of([(5, range(3, 6), [b"a", b"", b"c"]), (2, [9, 4], [b"x", b"y"])])
    sink = Sink()
    Inflow(sink).take(table([1, BLOCK_ROUTE, 0, BLOCK_ROUTE, 0], [1, NO_FLUSH, 0, 7, 0], [b"m1", cell, b"", cell, b""]))
    assert sink.calls == [
        (1, range(1, 2), [b"m1"]),
        (5, range(3, 6), [b"a", b"", b"c"]),
        (2, [9, 4], [b"x", b"y"]),
        (5, range(3, 6), [b"a", b"", b"c"]),
        (2, [9, 4], [b"x", b"y"]),
        ("flush", 7),
    ]
    assert sink.woken == 1


def test_what_follows_a_flush_row_comes_after_it_i1() -> None:
    assert taken(table([1, -1, 0, 1, -1, -1], [1, 3, 0, 2, 4, 5])) == [
        (1, range(1, 2), [b"m1"]),
        ("flush", 3),
        (1, range(2, 3), [b"m2"]),
        ("flush", 4),
        ("flush", 5),
    ]


@pytest.mark.parametrize("count", [4, 200])
def test_routes_may_alternate_i1(count: int) -> None:
    batch = table([1, 2] * count, [n for n in range(count) for _ in "ab"])
    calls = taken(batch)
    assert [call[0] for call in calls] == [1, 2] * count
    assert [n for call in calls if call[0] == 2 for n in call[1]] == list(range(count))


def test_a_batch_that_is_part_of_a_larger_one_is_taken_as_it_is() -> None:
    whole = batch_of([(1, range(100), [b"%d" % n for n in range(100)])])
    assert taken(whole.slice(40, 3)) == [(1, range(40, 43), [b"40", b"41", b"42"])]
    assert taken(whole.slice(40, 50)) == [(1, range(40, 90), [b"%d" % n for n in range(40, 90)])]
    assert taken(whole.slice(5, 0)) == []


def test_positions_that_leave_gaps_are_a_list() -> None:
    positions = [*range(50), *range(60, 100)]
    assert taken(table([1] * 90, positions))[0][1] == positions


def test_wide_columns_are_taken_too() -> None:
    batch = table([1, 1], [1, 2])
    wide = pa.RecordBatch.from_arrays(
        [batch["message"].cast(pa.large_binary()), batch["route"].cast(pa.int64()), batch["position"]],
        ["message", "route", "position"],
    )
    assert taken(wide) == taken(batch)


def test_rows_with_a_disposition_are_not_sent() -> None:
    batch = table(
        [1, 1, 1, 2, -1],
        [1, 2, 3, 1, 7],
        [b"a", None, b"c", b"d", b"p"],
        disposition=[None, "dead-letter", None, "complete", "dead-letter"],
        reason=[None, "Bad", None, None, "x"],
        description=[None, "no gate", None, None, "x"],
    )
    assert taken(batch) == [
        (1, [1, 3], [b"a", b"c"], (2, Disposition("dead-letter", "Bad", "no gate"))),
        (2, [], [], (1, Disposition("complete"))),
        ("flush", 7),
    ]


def test_diverted_rows_come_with_their_message_and_the_reason() -> None:
    batch = table(
        [1, 1, 1],
        [1, 2, 3],
        [b"a", b"b", b"c"],
        disposition=[None, "divert:jfk/bad", "dead-letter"],
        reason=[None, "ValidationFailed", None],
        description=[None, "step validate: no", None],
    )
    why = Disposition("divert:jfk/bad", "ValidationFailed", "step validate: no")
    assert taken(batch) == [(1, [1], [b"a"], (3, Disposition("dead-letter")), (2, why, b"b"))]


def test_rows_whose_disposition_is_null_are_sent_together() -> None:
    batch = table([1, 1, 2], [1, 2, 1], disposition=[None, None, "defer"])
    assert taken(batch)[0] == (1, range(1, 3), [b"m1", b"m2"])


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (table([1, 1], [1, 2], [b"a", None]), "column 'message' holds null"),
        (table([1, 1], [1, 2], [b"a", None], disposition=["defer", None]), "column 'message' holds null"),
        (table([1, None], [1, 2]), "column 'route' holds null"),
        (table([1, 1], [1, None]), "column 'position' holds null"),
        (table([1, -3], [1, 2]), "column 'route' holds -3, which is no route's handle"),
        (table([1], [1], disposition=["drop"]), "column 'disposition' holds 'drop'; write complete, "),
        (table([1], [1], disposition=["divert"]), "column 'disposition' holds 'divert'; write complete, "),
        (table([1], [1], [None], disposition=["divert:a/b"]), "column 'message' holds null"),
    ],
)
def test_rows_that_nothing_can_be_done_with_fail_the_query_i2(batch: pa.RecordBatch, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        taken(batch)


def test_a_null_in_a_flush_rows_message_is_not_looked_at_i3() -> None:
    assert taken(table([1, -1], [1, 2], [b"a", None])) == [(1, range(1, 2), [b"a"]), ("flush", 2)]


def test_a_sink_is_woken_once_for_each_batch_of_several_routes() -> None:
    sink = Sink()
    Inflow(sink).take(table([1, 2, 3], [1, 1, 1]))
    assert sink.woken == 1


def test_rows_are_made_and_taken_apart_without_pandas() -> None:
    moved = """
import sys
import isthmus.replication.spark.worker_daemon
from isthmus.bridge.spark.block import block_of
from isthmus.bridge.spark.inflow import Inflow
from isthmus.bridge.spark.row import batch_of

class Sink:
    def hand_over(self, *args, **options): pass
    def flush(self, number): pass

for count in (4, 400):
    Inflow(Sink()).take(batch_of(((1, range(count), [b"a"] * count),), 3, b"0").slice(1))
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", moved], check=False).returncode == 0
