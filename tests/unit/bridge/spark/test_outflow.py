"""Messages in transit into Spark: which rows go together, and when they are pushed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from isthmus.bridge.host.reader.item import LeaseEnd, LeaseFailedError, Rows
from isthmus.bridge.spark.block import BLOCK_BYTES, MOST_BYTES
from isthmus.bridge.spark.inflow import Inflow
from isthmus.bridge.spark.outflow import MAX_BATCH_ROWS, Outflow
from isthmus.bridge.spark.row import BLOCK_ROUTE, FILLER_ROUTE

TIME = "nothing came until the time given"
PADDING_BYTES = 4096
FIRST = [("flush", 0)]


class Script:
    """A source whose items are known beforehand; the clock advances only when it waits."""

    def __init__(self, *items: Any) -> None:
        self.items = list(items)
        self.flushes: list[tuple[int, dict[int, int]]] = []
        self.waits: list[float] = []
        self.now = 0.0

    def take(self, until: float) -> Any:
        item = self.items.pop(0)
        if item == TIME:
            assert until < math.inf, "nothing was left to push"
            self.waits.append(until - self.now)
            self.now = max(self.now, until)
            return None
        return item

    def note_flush(self, number: int, rows: dict[int, int]) -> None:
        self.flushes.append((number, dict(rows)))


class File:
    def __init__(self) -> None:
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1


def rows(handle: int, first: int, count: int = 1, size: int = 10) -> Rows:
    return Rows(handle, range(first, first + count), [b"m" * size] * count)


def batches(script: Script, file: Any = None, flush_ms: float = 1.0) -> list[list[tuple[Any, int]]]:
    """What each batch holds: (handle, position), flush rows as ("flush", number); fillers are left out."""
    out = Outflow(script, flush_ms=flush_ms, padding_bytes=PADDING_BYTES, file=file or File(), clock=lambda: script.now)
    made = []
    for batch in out.batches():
        pairs = zip(batch.column("route").to_pylist(), batch.column("position").to_pylist(), strict=True)
        made.append([("flush" if route < 0 else route, position) for route, position in pairs if route])
    return made


class Taken:
    """What the sink was handed."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def hand_over(self, handle: int, positions: Any, *_: Any, **__: Any) -> None:
        self.calls.append((handle, positions))

    def flush(self, number: int) -> None:
        self.calls.append(("flush", number))


END = LeaseEnd(None)


def test_the_first_batch_is_a_flush_row_that_starts_the_sink() -> None:
    script = Script(END)
    assert batches(script) == [FIRST]
    assert script.flushes == [(0, {})]


def test_a_row_that_comes_alone_is_pushed_at_once_in_the_same_batch_i1_i2() -> None:
    script = Script(rows(1, 7), TIME, END)
    assert batches(script) == [FIRST, [(1, 7), ("flush", 1)]]
    assert script.waits == [-math.inf]
    assert script.flushes[1:] == [(1, {1: 1})]


def test_rows_that_come_soon_after_a_push_wait_for_the_next_together_i1() -> None:
    script = Script(rows(1, 7), TIME, rows(1, 8), rows(2, 1), TIME, END)
    assert batches(script) == [FIRST, [(1, 7), ("flush", 1)], [(1, 8), (2, 1), ("flush", 2)]]
    assert script.waits[1] == pytest.approx(0.0016)
    assert script.flushes[2:] == [(2, {1: 2, 2: 1})]


@pytest.mark.parametrize(("count", "seconds"), [(1, 0.00105), (2, 0.0016), (4, 0.0027), (5, 0.00325), (10, 0.0035)])
def test_where_more_rows_wait_they_wait_up_to_three_times_as_long_i1(count: int, seconds: float) -> None:
    """One message is not delayed by the rhythm that thousands a second need."""
    script = Script(rows(1, 1), TIME, rows(1, 2, count), TIME, END)
    batches(script)
    assert script.waits[1] == pytest.approx(seconds)


def test_rows_of_one_handle_stay_together_and_keep_their_order_i3() -> None:
    script = Script(rows(1, 1), rows(2, 1), rows(1, 2), rows(3, 1), rows(2, 2), rows(1, 3, 2), TIME, END)
    ((*made,),) = batches(script)[1:]
    assert made == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), ("flush", 1)]


def test_many_rows_put_a_flush_off_by_so_long_at_most_i1() -> None:
    script = Script(rows(1, 1), TIME, rows(1, 2, 1000, 1), TIME, END)
    batches(script)
    assert script.waits[1] == pytest.approx(0.023)


def test_what_fills_a_batch_goes_at_once_and_is_flushed_in_its_time_i4() -> None:
    script = Script(rows(1, 1, MAX_BATCH_ROWS, 1), rows(1, 9000), TIME, END)
    filled, rest = batches(script)[1:]
    assert filled == [(1, n) for n in range(1, MAX_BATCH_ROWS + 1)]
    assert rest == [(1, 9000), ("flush", 1)]
    assert script.flushes[1:] == [(1, {1: MAX_BATCH_ROWS + 1})]


def test_a_batch_is_full_by_bytes_too() -> None:
    script = Script(rows(1, 1, 1, PADDING_BYTES), TIME, END)
    assert batches(script)[1:] == [[(1, 1)], [("flush", 1)]]


def test_nothing_is_left_behind_at_the_end_i4() -> None:
    script = Script(rows(1, 1), END)
    assert batches(script)[1:] == [[(1, 1), ("flush", 1)]]


def test_what_the_lease_ended_with_is_raised() -> None:
    with pytest.raises(LeaseFailedError, match="the sink is gone"):
        batches(Script(LeaseEnd(LeaseFailedError("query 'q'", "the sink is gone"))))


def test_messages_of_a_failed_lease_do_not_continue_i5() -> None:
    script = Script(rows(1, 1), LeaseEnd(LeaseFailedError("query 'q'", "the sink is gone")))
    out = Outflow(script, flush_ms=3.0, padding_bytes=PADDING_BYTES, file=File(), clock=lambda: script.now).batches()
    assert next(out)["route"].to_pylist() == [-1, 0]
    with pytest.raises(LeaseFailedError):
        next(out)
    assert script.flushes == [(0, {})]


def test_each_batch_is_flushed_out_of_the_workers_file() -> None:
    file = File()
    made = batches(Script(rows(1, 1), TIME, rows(1, 2, MAX_BATCH_ROWS), TIME, END), file)
    assert file.flushes == len(made)


def test_where_there_is_no_such_file_more_flush_rows_push_with_the_same_number() -> None:
    script = Script(rows(1, 1), TIME, END)
    out = Outflow(script, flush_ms=3.0, padding_bytes=PADDING_BYTES, file=None, clock=lambda: script.now)
    routes = [(batch.column("route").to_pylist(), batch.column("position").to_pylist()) for batch in out.batches()]
    assert routes == [([-1, 0], [0, 0])] * 2 + [([1, -1, 0], [1, 1, 0]), ([-1, 0], [1, 0])]


def packed(script: Script) -> tuple[list[Any], list[list[int]]]:
    """What the sink is handed where batches are blocks, and the routes of the rows."""
    sink, routes = Taken(), []
    out = Outflow(script, flush_ms=3.0, padding_bytes=PADDING_BYTES, file=File(), packs=True, clock=lambda: script.now)
    for batch in out.batches():
        routes.append(batch.column("route").to_pylist())
        if routes[-1] == BLOCK:
            assert len(batch.column("message")[0].as_buffer()) >= PADDING_BYTES
        Inflow(sink).take(batch)
    return sink.calls, routes


BLOCK = [BLOCK_ROUTE, FILLER_ROUTE]


def test_all_messages_of_a_batch_and_its_flush_are_one_row_where_nothing_looks_at_rows_i3_i4() -> None:
    script = Script(rows(1, 1, 9), rows(2, 5), rows(1, 10), TIME, rows(1, 50), TIME, END)
    calls, routes = packed(script)
    assert routes == [BLOCK] * 3
    assert calls == [
        ("flush", 0),
        (1, range(1, 10)),
        (1, range(10, 11)),
        (2, range(5, 6)),
        ("flush", 1),
        (1, range(50, 51)),
        ("flush", 2),
    ]
    assert script.flushes[1:] == [(1, {1: 10, 2: 1}), (2, {1: 11, 2: 1})]


def test_a_full_block_goes_at_once_and_is_flushed_in_its_time_i4() -> None:
    script = Script(rows(1, 1, 4, BLOCK_BYTES // 4), TIME, END)
    calls, routes = packed(script)
    assert routes == [BLOCK] * 3
    assert calls == [("flush", 0), (1, range(1, 5)), ("flush", 1)]


def test_what_is_too_large_for_a_block_goes_as_rows() -> None:
    script = Script(rows(1, 1, 2, MOST_BYTES), TIME, END)
    calls, routes = packed(script)
    assert routes == [BLOCK, [1, 1], BLOCK]
    assert calls == [("flush", 0), (1, range(1, 3)), ("flush", 1)]
