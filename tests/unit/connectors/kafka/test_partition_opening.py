"""isthmus.connectors.kafka.partition_opening: one record at a time, until the first has been stored."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.connectors.kafka.partition_opening import PartitionOpenings

PARTITIONS = 3


def test_i1_what_comes_before_the_first_is_stored_waits() -> None:
    openings: PartitionOpenings[str] = PartitionOpenings(2)
    assert openings.admits(0, "a")
    assert not openings.admits(0, "b")
    assert openings.admits(1, "c"), "another partition has its own first record"
    assert openings.answered(0, is_stored=True) == ["b"]
    assert openings.admits(0, "d")
    assert not openings.is_over
    assert openings.answered(1, is_stored=True) == []
    assert openings.is_over


def test_i1_a_first_record_that_is_refused_lets_one_more_go() -> None:
    openings: PartitionOpenings[str] = PartitionOpenings(1)
    assert openings.admits(0, "a")
    assert not openings.admits(0, "b")
    assert not openings.admits(0, "c")
    assert openings.answered(0, is_stored=False) == ["b"]
    assert not openings.admits(0, "d")
    assert openings.answered(0, is_stored=True) == ["c", "d"]
    assert openings.answered(0, is_stored=False) == [], "later refusals are none of its business"


def test_a_record_without_a_key_goes_anywhere() -> None:
    openings: PartitionOpenings[str] = PartitionOpenings(PARTITIONS)
    assert {openings.partition_for(None) for _ in range(200)} == set(range(PARTITIONS))
    assert len({openings.partition_for(b"key") for _ in range(20)}) == 1


@given(st.lists(st.tuples(st.sampled_from(["send", "stored", "refused"]), st.integers(0, PARTITIONS - 1))))
def test_nothing_is_kept_back_overtaken_or_sent_twice(steps: list[tuple[str, int]]) -> None:
    openings: PartitionOpenings[int] = PartitionOpenings(PARTITIONS)
    came: dict[int, list[int]] = {each: [] for each in range(PARTITIONS)}
    sent: dict[int, list[int]] = {each: [] for each in range(PARTITIONS)}
    stored = dict.fromkeys(range(PARTITIONS), 0)
    answered = dict.fromkeys(range(PARTITIONS), 0)
    for number, (what, partition) in enumerate(steps):
        if what == "send":
            came[partition].append(number)
            if openings.admits(partition, number):
                sent[partition].append(number)
        elif answered[partition] < len(sent[partition]):
            answered[partition] += 1
            stored[partition] += what == "stored"
            sent[partition] += openings.answered(partition, is_stored=what == "stored")
        for each in range(PARTITIONS):
            assert sent[each] == came[each][: len(sent[each])]
            if stored[each]:
                assert sent[each] == came[each]
            else:
                assert len(sent[each]) - answered[each] == min(1, len(came[each]) - answered[each])
    assert openings.is_over == all(stored.values())
