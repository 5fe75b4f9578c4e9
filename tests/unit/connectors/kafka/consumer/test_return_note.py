"""isthmus.connectors.kafka.consumer.return_note"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.bridge.index_set import IndexSet
from isthmus.connectors.kafka.consumer.return_note import MOST_RANGES, read, write

OFFSETS = st.integers(0, (1 << 48) - 2)


@given(st.lists(OFFSETS, max_size=60))
def test_what_is_written_is_read(offsets: list[int]) -> None:
    ranges = IndexSet()
    for offset in offsets:
        ranges.add(offset, offset + 1)
    assert list(read(write(ranges))) == list(ranges)
    assert list(read(write(ranges) + "\0")) == list(ranges), "librdkafka sends the end of the text, too"


def test_i1_a_note_is_no_longer_than_a_broker_takes() -> None:
    largest = (1 << 48) - 2 * MOST_RANGES - 2
    note = write([(largest + 2 * at, largest + 2 * at + 1) for at in range(2 * MOST_RANGES)])
    assert len(note) < 4096
    assert len(read(note)) == MOST_RANGES


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "isthmus returned",
        "isthmus returned 5",
        "isthmus returned 5-x",
        "AgAD",
        "isthmus returned 5-7 " + "9" * 5000,
    ],
)
def test_i2_what_others_note_says_nothing(text: str | None) -> None:
    assert list(read(text)) == []


def test_i2_a_range_that_ends_before_it_begins_is_none() -> None:
    assert list(read("isthmus returned 7-5 8-9")) == [(8, 10)]
