"""isthmus.connectors.kafka.consumer.removed"""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from isthmus.connectors.kafka.consumer.removed import SPACING_SECONDS, RemovedRecords


class Consumer:
    """Partitions of which the group has committed an offset, and where they begin."""

    def __init__(self, committed: dict[int, int], low: dict[int, int]) -> None:
        self.offsets, self.low = committed, low
        self.looks = 0
        self.is_away = False

    def committed(self, places: list[Any], timeout: float) -> list[Any]:
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [TopicPartition(each.topic, each.partition, self.offsets[each.partition]) for each in places]

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        self.looks += 1
        return self.low[place.partition], 1000


def test_i1_what_was_removed_before_the_assignment_is_told_once() -> None:
    removed, consumer = RemovedRecords("t"), Consumer({0: 5, 1: 7, 2: -1001}, {0: 20, 1: 7, 2: 30})
    removed.assigned([0, 1, 2])
    told = removed.look(consumer, 0.0)
    assert (
        told
        == "topic 't', partition 0: records 5 to 19 were removed by the retention before they were read, and are lost"
    )
    assert removed.look(consumer, 100.0) == ""
    removed.assigned([0])
    assert removed.look(consumer, 101.0) == ""


def test_what_was_removed_while_it_was_read_is_told_and_a_gap_of_compaction_is_not() -> None:
    removed, consumer = RemovedRecords("t"), Consumer({}, {0: 20, 1: 3})
    removed.gap(0, 8, 25)
    removed.gap(0, 30, 40)
    removed.gap(1, 8, 10)
    assert "partition 0: records 8 to 19 were" in removed.look(consumer, 0.0)
    removed.gap(1, 20, 30)
    looks = consumer.looks
    assert removed.look(consumer, SPACING_SECONDS / 2) == ""
    assert consumer.looks == looks, "a compacted topic has gaps all the time"


def test_i2_a_look_without_an_answer_is_taken_again() -> None:
    removed, consumer = RemovedRecords("t"), Consumer({0: 5}, {0: 20})
    consumer.is_away = True
    removed.assigned([0])
    assert removed.look(consumer, 0.0) == ""
    consumer.is_away = False
    assert "records 5 to 19" in removed.look(consumer, SPACING_SECONDS)


def test_of_partitions_that_are_somebody_elses_nothing_is_told() -> None:
    removed, consumer = RemovedRecords("t"), Consumer({0: 5}, {0: 20})
    removed.assigned([0])
    removed.gap(1, 5, 8)
    removed.forget([0, 1])
    assert removed.look(consumer, 0.0) == ""
    assert consumer.looks == 0
