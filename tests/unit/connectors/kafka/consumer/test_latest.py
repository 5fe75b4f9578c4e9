"""isthmus.connectors.kafka.consumer.latest: the start of a group at the latest records; without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from isthmus.connectors.kafka.consumer.latest import begin_group, positions_of, seek_all

ENDS = {0: 50, 1: 70, 2: 9}


class Consumer:
    """Of a group whose offsets are `offsets`."""

    def __init__(self, offsets: dict[int, int]) -> None:
        self.offsets = offsets
        self.refused: KafkaError | None = None

    def committed(self, topic_partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        found = [
            TopicPartition("t", each.partition, self.offsets.get(each.partition, -1001)) for each in topic_partitions
        ]
        if self.refused is not None:
            raise KafkaException(self.refused)
        return found

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition("t", each.partition, ENDS[each.partition], leader_epoch=3) for each in places]


def begin(consumer: Consumer, partitions: list[int], known: int, **settings: Any) -> dict[int, int]:
    def commit(_: Consumer, offsets: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        consumer.offsets |= offsets
        assert set(epochs.values()) == {3}

    return begin_group(consumer, "t", partitions, known, settings.pop("commit", commit), **settings)


def test_i1_a_group_that_is_nowhere_begins_at_the_ends_of_all_partitions() -> None:
    """One of two readers that begin at once would count its partitions as added since."""
    consumer = Consumer({})
    assert begin(consumer, [0, 2], 3) == {0: 50, 2: 9}
    assert consumer.offsets == ENDS


def test_i2_a_partition_that_was_added_without_a_reader_is_read_from_its_first_record() -> None:
    """What had been sent to it before the next reader came was passed over."""
    consumer = Consumer({0: 5, 1: 6})
    assert begin(consumer, [0, 1, 2], 3) == {}
    assert begin(consumer, [2], 3) == {}, "also where another reader has the others"
    assert consumer.offsets == {0: 5, 1: 6}


def test_i2_so_is_one_that_was_added_since_the_topic_was_opened() -> None:
    assert begin(Consumer({}), [0, 1, 2], 2) == {0: 50, 1: 70}


def test_i3_where_the_ends_cannot_be_committed_nothing_begins() -> None:
    def refuse(_: Consumer, offsets: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        raise KafkaException(KafkaError(KafkaError._WAIT_COORD))

    with pytest.raises(KafkaException):
        begin(Consumer({}), [0, 1], 2, commit=refuse)


def test_the_other_readers_wait_for_the_one_that_begins() -> None:
    consumer = Consumer({})
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            consumer.offsets = {0: 50, 1: 70}

    assert begin(consumer, [1], 2, sleep=sleep) == {}, "it reads from what was committed"
    assert len(waits) == 3


@pytest.mark.parametrize("is_stopped", [False, True])
def test_they_wait_for_a_while_and_not_for_a_reader_that_ends(is_stopped: bool) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(KafkaException, match="partition 0 has not committed"):
        begin(Consumer({}), [1], 2, stops=lambda: is_stopped, clock=lambda: now[0], sleep=sleep)
    assert (now[0] >= 10.0) is not is_stopped


def test_i1_nothing_begins_where_it_is_not_known_whether_the_group_has_begun() -> None:
    consumer = Consumer({})
    consumer.refused = KafkaError(KafkaError._TIMED_OUT)
    with pytest.raises(KafkaException):
        begin(consumer, [0], 1)
    assert consumer.offsets == {}


@pytest.mark.parametrize("code", [KafkaError._STATE, KafkaError._UNKNOWN_PARTITION])
def test_a_partition_whose_reading_has_not_begun_is_sought_again(code: int) -> None:
    sought: list[tuple[int, int, int | None]] = []
    failures = [KafkaError(code), KafkaError(code)]
    waits: list[float] = []

    class Beginning:
        def seek(self, place: TopicPartition) -> None:
            if place.partition == 1 and failures:
                raise KafkaException(failures.pop())
            sought.append((place.partition, place.offset, place.leader_epoch))

    places = [TopicPartition("t", number, 5 + number, leader_epoch=3) for number in (0, 1)]
    if code == KafkaError._STATE:
        seek_all(Beginning(), places, sleep=waits.append)
        assert sought == [(0, 5, 3), (1, 6, 3)]
        assert len(waits) == 2
        failures.append(KafkaError(code))
        with pytest.raises(KafkaException):
            seek_all(Beginning(), places, lambda: True, sleep=waits.append)
    else:
        with pytest.raises(KafkaException):
            seek_all(Beginning(), places, sleep=waits.append)
        assert not waits


@pytest.mark.parametrize("code", [KafkaError.NOT_COORDINATOR, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_a_coordinator_that_is_being_elected_is_waited_for(code: int) -> None:
    """librdkafka does not: the reader would leave its group, and join it again."""
    consumer, waits = Consumer({0: 5}), list[float]()
    consumer.refused = KafkaError(code)

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            consumer.refused = None

    if code == KafkaError.NOT_COORDINATOR:
        assert [each.offset for each in positions_of(consumer, "t", [0, 1], sleep=sleep)] == [5, -1001]
        assert len(waits) == 2
    else:
        with pytest.raises(KafkaException):
            positions_of(consumer, "t", [0], sleep=sleep)
        assert not waits
