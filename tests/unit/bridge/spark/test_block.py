"""Many messages in one row."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from isthmus.bridge.spark.block import block_of, runs_of
from isthmus.bridge.spark.row import Run


def taken(cell: bytes) -> list[tuple[Any, ...]]:
    return [
        (handle, positions, [data[first:last] for first, last in pairwise(offsets)])
        for handle, positions, data, offsets in runs_of(pa.py_buffer(cell))
    ]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    payloads = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=12))
    first = draw(st.integers(0, 2**62))
    positions = draw(
        st.just(range(first, first + len(payloads)))
        | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=len(payloads), max_size=len(payloads))
    )
    return draw(st.integers(1, 2**31 - 1)), positions, payloads


@given(st.lists(runs(), max_size=5))
def test_what_goes_into_a_block_comes_out_of_it_i1(given_runs: list[Run]) -> None:
    assert taken(block_of(given_runs)) == [tuple(run) for run in given_runs]


def test_positions_below_zero_are_reported_one_by_one_i1() -> None:
    run = (3, range(-2, 1), [b"a", b"", b"c"])
    assert taken(block_of([run])) == [(3, [-2, -1, 0], [b"a", b"", b"c"])]


def test_a_block_is_as_large_as_it_has_to_be() -> None:
    run = (3, range(4, 6), [b"a", b"b"])
    assert len(block_of([run], bytes(1000))) == 1000
    assert taken(block_of([run], bytes(1000))) == taken(block_of([run])) == [run]
    assert taken(block_of([], bytes(10))) == []
    assert block_of([run], bytes(10)) == block_of([run])
