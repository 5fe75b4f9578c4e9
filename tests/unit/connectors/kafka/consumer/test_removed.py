"""isthmus.connectors.kafka.consumer.removed"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from isthmus.connectors.kafka.consumer.removed import (
    AGAIN_SECONDS,
    MOST_RANGES,
    SPACING_SECONDS,
    RemovedRecords,
)


class Refused(NamedTuple):
    """What a coordinator answers for one partition."""

    partition: int
    error: KafkaError
    offset: int = -1001


class Consumer:
    """Partitions of which the group has committed an offset, and where they begin."""

    def __init__(self, committed: dict[int, int], low: dict[int, int]) -> None:
        self.offsets, self.low = committed, low
        self.looks = 0
        self.is_away = False
        self.error: KafkaError | None = None

    def committed(self, topic_partitions: list[Any], timeout: float) -> list[Any]:
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if self.error is not None:
            return [Refused(each.partition, self.error) for each in topic_partitions]
        return [TopicPartition(each.topic, each.partition, self.offsets[each.partition]) for each in topic_partitions]

    def get_watermark_offsets(self, topic_partition: Any, timeout: float) -> tuple[int, int]:
        self.looks += 1
        return self.low[topic_partition.partition], 1000


def test_i1_what_was_removed_before_the_assignment_is_reported_once() -> None:
    removed, consumer = RemovedRecords("t"), Consumer({0: 5, 1: 7, 2: -1001}, {0: 20, 1: 7, 2: 30})
    removed.assigned([0, 1, 2])
    reported = removed.query(consumer, 0.0)
    assert (
        reported
        == "topic 't', partition 0: records 5 to 19 were removed by the retention before they were read, and are lost"
    )
    assert removed.query(consumer, 100.0) == ""
    removed.assigned([0])
    assert removed.query(consumer, 101.0) == ""


@pytest.mark.parametrize("is_early", [False, True])
def test_i6_a_log_that_ends_before_the_position_of_its_group_is_reported_once(is_early: bool) -> None:
    """librdkafka begins at its start, and all that is left of it was moved again without a report."""
    removed, consumer = RemovedRecords("t"), Consumer({0: 500, 1: 7}, {0: 0, 1: 7})
    removed.assigned([0, 1])
    if is_early:
        removed.first(0, 0)
    assert removed.query(consumer, 0.0) == ""
    if not is_early:
        removed.first(0, 0)
    removed.first(1, 7)
    assert "partition 0: the group's position was 500, and the log ended before it: reading begins at 0" in (
        reported := removed.take_rereads()
    )
    assert "partition 1" not in reported
    assert removed.take_rereads() == ""
    assert removed.query(consumer, 100.0) == ""


def test_i6_what_is_known_to_be_another_topic_is_not_reported_as_well() -> None:
    removed, consumer = RemovedRecords("t"), Consumer({0: 500}, {0: 0})
    removed.assigned([0])
    removed.first(0, 0)
    removed.query(consumer, 0.0)
    removed.begins_again([0])
    assert removed.take_rereads() == ""


def test_what_was_removed_while_it_was_read_is_reported_and_a_gap_of_compaction_is_not() -> None:
    removed, consumer = RemovedRecords("t"), Consumer({}, {0: 20, 1: 3})
    removed.gap(0, 8, 25)
    removed.gap(0, 30, 40)
    removed.gap(1, 8, 10)
    assert "partition 0: records 8 to 19 were" in removed.query(consumer, 0.0)
    removed.gap(1, 20, 30)
    looks = consumer.looks
    assert removed.query(consumer, SPACING_SECONDS / 2) == ""
    assert consumer.looks == looks, "a compacted topic has gaps all the time"


def test_i2_i4_a_look_without_an_answer_is_taken_again_and_nothing_is_committed_before() -> None:
    removed, consumer = RemovedRecords("t"), Consumer({0: 5}, {0: 20})
    consumer.is_away = True
    removed.assigned([0])
    assert removed.query(consumer, 0.0) == ""
    assert removed.is_asking
    consumer.is_away = False
    consumer.error = KafkaError(KafkaError.NOT_COORDINATOR)
    assert removed.query(consumer, AGAIN_SECONDS) == ""
    assert removed.asks(0)
    consumer.error = None
    assert "records 5 to 19" in removed.query(consumer, 2 * AGAIN_SECONDS)
    assert not removed.is_asking


def test_what_came_before_the_look_is_not_reported_though_it_was_removed_since() -> None:
    removed, consumer = RemovedRecords("t"), Consumer({0: 5}, {0: 20})
    removed.assigned([0])
    removed.first(0, 15)
    assert "records 5 to 14" in removed.query(consumer, 0.0)


def test_what_is_removed_behind_the_first_look_and_before_the_first_record_is_reported() -> None:
    """The target takes nothing meanwhile, so that nothing is read."""
    removed, consumer = RemovedRecords("t"), Consumer({0: 5}, {0: 8})
    removed.assigned([0])
    assert "records 5 to 7" in removed.query(consumer, 0.0)
    consumer.low[0] = 20
    removed.first(0, 22)
    assert "records 8 to 19 were" in removed.query(consumer, SPACING_SECONDS)
    removed.first(0, 23)
    assert removed.query(consumer, 2 * SPACING_SECONDS) == ""


def test_i3_each_gap_between_two_looks_is_reported() -> None:
    removed, consumer = RemovedRecords("t"), Consumer({}, {0: 1_000_000})
    removed.gap(0, 3, 4)
    assert "records 3 to 3 were" in removed.query(consumer, 0.0)
    removed.gap(0, 10, 15)
    removed.gap(0, 30, 40)
    reported = removed.query(consumer, SPACING_SECONDS)
    assert "partition 0: records 10 to 14, partition 0: records 30 to 39 were" in reported
    for at in range(MOST_RANGES):
        removed.gap(0, 100 + 2 * at, 101 + 2 * at)
    reported = removed.query(consumer, SPACING_SECONDS + 1)
    assert "records 138 to 138 and 9980 more ranges were removed" in reported


def test_what_was_given_back_and_was_removed_is_reported_whatever_removed_it() -> None:
    removed, consumer = RemovedRecords("t"), Consumer({}, {0: 5})
    removed.gap(0, 2, 7, is_return=True)
    removed.gap(0, 9, 11)
    reported = removed.query(consumer, 0.0)
    assert "records 2 to 4 were removed by the retention before they were read, and are lost" in reported
    assert (
        "partition 0: records 5 to 6 were released, and compaction removed them before they were read again" in reported
    )
    removed.gap(0, 5, 8, is_return=True)
    assert "records 7 to 7 were released" in removed.query(consumer, SPACING_SECONDS), "I1"
    removed.begins_again([0])
    removed.gap(0, 5, 8, is_return=True)
    assert "records 5 to 7" in removed.query(consumer, 2 * SPACING_SECONDS)


def test_i3_a_gap_is_reported_where_its_partition_is_handed_over_or_the_reader_ends() -> None:
    """The offset behind it is committed then, and its next reader begins there."""
    removed, consumer = RemovedRecords("t"), Consumer({}, {0: 20})
    removed.gap(0, 30, 35)
    assert removed.query(consumer, 0.0) == ""
    removed.gap(0, 5, 8)
    removed.forget([0])
    assert removed.query(consumer, SPACING_SECONDS / 2) == ""
    assert "records 5 to 7" in removed.last_query(consumer)


def test_of_partitions_that_are_somebody_elses_the_group_is_not_asked() -> None:
    removed, consumer = RemovedRecords("t"), Consumer({0: 5}, {0: 20})
    removed.assigned([0])
    removed.forget([0])
    assert removed.query(consumer, 0.0) == ""
    assert consumer.looks == 0


def test_i4_nothing_is_committed_behind_a_gap_before_the_look_at_it() -> None:
    """A kill would leave it unreported: the next reader begins after it."""
    removed, consumer = RemovedRecords("t"), Consumer({}, {0: 20, 1: 20})
    assert removed.query(consumer, 0.0) == ""
    removed.gap(0, 30, 35)
    assert "records 30 to 34" not in removed.query(consumer, 0.0)
    removed.gap(1, 8, 25)
    assert set(removed.unlooked) == {1}
    assert removed.asks(1)
    assert "records 8 to 19" in removed.query_partitions(consumer, [0, 1])
    assert not removed.unlooked


def test_looks_take_a_twentieth_of_the_time_where_the_cluster_is_far() -> None:
    times = iter([0.0, 0.5])
    removed, consumer = RemovedRecords("t", lambda: next(times)), Consumer({}, {0: 0})
    removed.gap(0, 1, 2)
    removed.query(consumer, 0.0)
    removed.gap(0, 3, 4)
    removed.query(consumer, 9.9)
    assert consumer.looks == 1


def test_i4_at_the_end_what_is_lost_is_reported_before_a_commit_and_what_is_not_known_is_not_committed() -> None:
    removed, consumer = RemovedRecords("t"), Consumer({1: 5}, {0: 20, 1: 0})
    removed.gap(0, 8, 25)
    removed.assigned([1])
    reported: list[str] = []
    consumer.is_away = True
    assert removed.last_ask(consumer, reported.append) == {1}
    assert "records 8 to 19" in reported[0]
    removed.gap(0, 30, 40)
    consumer.get_watermark_offsets = _no_answer  # type: ignore[method-assign]
    assert removed.last_ask(consumer, reported.append) == {0, 1}


def _no_answer(topic_partition: Any, timeout: float) -> tuple[int, int]:
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
