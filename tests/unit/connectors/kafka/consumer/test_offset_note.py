"""isthmus.connectors.kafka.consumer.offset_note"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.bridge.index_set import IndexSet
from isthmus.connectors.kafka.consumer.offset_note import MOST_RANGES, OffsetNote, is_another, read, write

OFFSETS = st.integers(0, (1 << 48) - 2)


@given(st.lists(OFFSETS, max_size=60))
def test_what_is_written_is_read(offsets: list[int]) -> None:
    ranges = IndexSet()
    for offset in offsets:
        ranges.add(offset, offset + 1)
    assert list(read(write(ranges)).returned) == list(ranges)
    assert list(read(write(ranges) + "\0").returned) == list(ranges), "librdkafka sends the end of the text, too"


def test_i1_a_note_is_no_longer_than_a_broker_takes() -> None:
    largest = (1 << 48) - 2 * MOST_RANGES - 2
    note = write([(largest + 2 * at, largest + 2 * at + 1) for at in range(2 * MOST_RANGES)], "x" * 200)
    assert len(note) < 4096
    assert len(read(note).returned) == MOST_RANGES


def test_a_note_names_the_topic_that_the_offset_is_of() -> None:
    assert write([], "c:ab/+_-9") == "isthmus topic c:ab/+_-9"
    assert read("isthmus topic c:ab/+_-9") == OffsetNote("c:ab/+_-9", [])
    assert read(write([(8, 10)], "ab")) == OffsetNote("ab", [(8, 10)])
    assert write([]) == ""


@pytest.mark.parametrize(
    ("before", "topic", "expected"),
    [
        ("c:one", "c:other", True),
        ("c:one", "c:one", False),
        ("", "c:one", False),
        ("c:one", "c:", False),
        ("d:one", "c:other", False),
    ],
)
def test_a_topic_of_the_same_cluster_with_another_id_is_another(before: str, topic: str, expected: bool) -> None:
    assert is_another(before, topic) is expected


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
    assert read(text) == OffsetNote()


def test_i2_a_range_that_ends_before_it_begins_is_none() -> None:
    assert list(read("isthmus returned 7-5 8-9").returned) == [(8, 10)]
