"""isthmus.connectors.kafka.spark.offset: the end of the next batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.connectors.kafka.spark.offset import from_spark, next_offsets, to_spark

OFFSETS = st.dictionaries(st.integers(0, 5), st.integers(0, 1000))


@pytest.mark.parametrize(
    ("start", "ends", "most", "expected"),
    [
        ({0: 5}, {0: 5}, 10, {0: 5}),
        ({0: 5}, {0: 9}, 10, {0: 9}),
        ({0: 0, 1: 0}, {0: 100, 1: 100}, 10, {0: 5, 1: 5}),
        ({0: 0, 1: 0}, {0: 2, 1: 100}, 10, {0: 2, 1: 8}),
        ({0: 7}, {0: 7, 1: 3}, 10, {0: 7, 1: 3}),  # a partition was added
        ({0: 7}, {0: 3}, 10, {0: 7}),  # the topic was made again: the reader reports it before
        ({0: 0, 1: 0, 2: 0}, {0: 9, 1: 9, 2: 9}, 1, {0: 1, 1: 0, 2: 0}),
    ],
)
def test_the_next_batch(start: dict[int, int], ends: dict[int, int], most: int, expected: dict[int, int]) -> None:
    assert next_offsets(start, ends, most) == expected


@given(OFFSETS, OFFSETS, st.integers(1, 500))
def test_a_batch_keeps_its_limit_and_continues_until_all_is_read(
    start: dict[int, int], ends: dict[int, int], most: int
) -> None:
    """I1, I2."""
    at = {number: start.get(number, 0) for number in {*start, *ends}}
    while (after := next_offsets(at, ends, most)) != at:
        assert all(after[number] >= at[number] for number in at)
        assert 0 < sum(after[number] - at[number] for number in at) <= most
        at = after
    assert at == {number: max(start.get(number, 0), ends.get(number, 0)) for number in at}


@given(OFFSETS)
def test_a_checkpoint_keeps_offsets(offsets: dict[int, int]) -> None:
    assert from_spark(to_spark(offsets)) == offsets
