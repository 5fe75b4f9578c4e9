"""isthmus.connectors.kafka.group: the election of a coordinator is waited for, and only readable records wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from isthmus.connectors.kafka import group
from isthmus.connectors.kafka.cluster import KafkaFailureError, TopicView
from isthmus.connectors.kafka.group import Waiting
from isthmus.errors import ConnectionLostError, EntityNotFoundError, UnauthorizedError


class Consumer:
    """Answers once it has refused so often."""

    refusals: int
    code: int

    def __init__(self, settings: Any) -> None:
        self.asked = 0

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self.asked += 1
        if self.asked <= self.refusals:
            raise KafkaException(KafkaError(self.code))
        return [TopicPartition(each.topic, each.partition, 7 if each.partition else -1001) for each in places]

    def close(self) -> None:
        pass


@pytest.mark.parametrize("code", [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_coordinator_that_is_being_chosen_is_waited_for(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(group, "Consumer", Consumer)
    monkeypatch.setattr(group, "describe_topic", lambda *_: TopicView("c", 2))
    monkeypatch.setattr(group, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(Consumer, "code", code, raising=False)
    monkeypatch.setattr(Consumer, "refusals", 2, raising=False)
    offsets = group.GroupOffsets({"bootstrap_servers": "a"})
    assert offsets.committed("g", "t") == {1: 7}
    monkeypatch.setattr(group, "COORDINATOR_SECONDS", 0.0)
    monkeypatch.setattr(Consumer, "refusals", 1 << 30, raising=False)
    with pytest.raises(ConnectionLostError):
        offsets.committed("g", "t")


def test_offsets_that_a_cluster_does_not_report_are_not_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """`apply` would begin the group at the end, and pass over all that waits."""

    def committed(consumer: Consumer, places: list[TopicPartition], timeout: float) -> list[Any]:
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        return [SimpleNamespace(partition=each.partition, offset=-1001, error=error) for each in places]

    monkeypatch.setattr(group, "Consumer", Consumer)
    monkeypatch.setattr(Consumer, "committed", committed)
    monkeypatch.setattr(group, "describe_topic", lambda *_: TopicView("c", 2))
    with pytest.raises(UnauthorizedError):
        group.GroupOffsets({"bootstrap_servers": "a"}).committed("g", "t")


class Edges(Consumer):
    """Of partitions that end at 9."""

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        return 2, 9

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(each.topic, each.partition, 9, leader_epoch=3) for each in places]


class Client:
    """An administration that answers so; the future of a group contains no error of a partition."""

    answers: ClassVar[list[list[int | None]]] = []
    asked: ClassVar[list[list[int]]] = []
    epochs: ClassVar[set[int | None]] = set()

    def __init__(self, *_: Any) -> None:
        self.admin = self

    def alter_consumer_group_offsets(self, wanted: list[Any], request_timeout: float) -> dict[str, Any]:
        places = wanted[0].topic_partitions
        self.asked.append([each.offset for each in places])
        self.epochs.update(each.leader_epoch for each in places)
        for each, code in zip(places, self.answers.pop(0), strict=True):
            each.error = None if code is None else KafkaError(code)
        return {"g": SimpleNamespace(topic_partitions=places)}

    def result(self, answer: Any) -> Any:
        return answer


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    monkeypatch.setattr(group, "Consumer", Edges)
    monkeypatch.setattr(group, "describe_topic", lambda *_: TopicView("c", 2))
    monkeypatch.setattr(group, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(group, "ClusterClient", Client)
    monkeypatch.setattr(group, "ConsumerGroupTopicPartitions", lambda _, places: SimpleNamespace(topic_partitions=[
        SimpleNamespace(offset=each.offset, partition=each.partition, leader_epoch=each.leader_epoch, error=None)
        for each in places
    ]))  # fmt: skip
    monkeypatch.setattr(Client, "asked", [])
    monkeypatch.setattr(Client, "epochs", set())
    return Client


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        (KafkaError.UNKNOWN_MEMBER_ID, KafkaFailureError, "group 'g' has a reader"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, UnauthorizedError, "AUTHORIZATION"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, EntityNotFoundError, "t"),
    ],
)
def test_i4_an_offset_that_the_cluster_does_not_take_is_reported(
    client: type[Client], code: int, error: type[Exception], text: str
) -> None:
    """`apply` reported that it was done, and the route began with the first record, whatever `start` said."""
    client.answers = [[None, code]]
    with pytest.raises(error, match=text):
        group.GroupOffsets({"bootstrap_servers": "a"}).begin("g", "t", from_end=True)


def test_i4_a_group_with_a_reader_begins_with_the_first_records_by_itself(client: type[Client]) -> None:
    """A partition without an offset is read from there: that it cannot be set is no reason to refuse."""
    client.answers = [[KafkaError.UNKNOWN_MEMBER_ID] * 2, [KafkaError.TOPIC_AUTHORIZATION_FAILED] * 2]
    offsets = group.GroupOffsets({"bootstrap_servers": "a"})
    offsets.begin("g", "t", from_end=False)
    assert client.asked == [[2, 2]]
    with pytest.raises(UnauthorizedError):
        offsets.begin("g", "t", from_end=False)


def test_i4_offsets_wait_for_a_coordinator(client: type[Client]) -> None:
    away = KafkaError.NOT_COORDINATOR
    client.answers = [[away, away], [None, None]]
    group.GroupOffsets({"bootstrap_servers": "a"}).begin("g", "t", from_end=True)
    assert client.asked == [[9, 9], [9, 9]]
    assert client.epochs == {3}, "else no reader could tell that the log was truncated before it began"


class Found:
    """What a consumer gives: a record, or the end of its partition."""

    def __init__(self, offset: int, *, is_end: bool = False) -> None:
        self._offset, self._is_end = offset, is_end

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self._is_end else None

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000 + self._offset


class Partitions(Consumer):
    """By partition what the group has committed, where records exist, and where offsets end."""

    committed_offsets: dict[int, int]
    records: dict[int, list[int] | None]
    ends: dict[int, int]

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition(each.topic, each.partition, self.committed_offsets[each.partition]) for each in places]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, self.ends[place.partition]

    def assign(self, places: list[TopicPartition]) -> None:
        (self.place,) = places

    def consume(self, count: int, timeout: float) -> list[Found]:
        records = self.records[self.place.partition]
        if records is None:
            return []
        behind = [Found(each) for each in records if each >= self.place.offset]
        return [*behind, Found(self.ends[self.place.partition], is_end=True)][:count]


@pytest.mark.parametrize(
    ("committed", "records", "end", "waiting"),
    [
        (5, [3, 4], 6, Waiting()),  # the mark of a transaction is the last
        (5, [3, 4, 8, 9], 11, Waiting(3, 1008)),
        (5, [3, 4], 5, Waiting()),
        (5, None, 11, Waiting(6)),  # it does not report it
    ],
)
def test_i3_what_waits_begins_with_a_record(
    monkeypatch: pytest.MonkeyPatch, committed: int, records: list[int] | None, end: int, waiting: Waiting
) -> None:
    monkeypatch.setattr(group, "Consumer", Partitions)
    monkeypatch.setattr(group, "describe_topic", lambda *_: TopicView("c", 1))
    monkeypatch.setattr(Partitions, "committed_offsets", {0: committed}, raising=False)
    monkeypatch.setattr(Partitions, "records", {0: records}, raising=False)
    monkeypatch.setattr(Partitions, "ends", {0: end}, raising=False)
    assert group.GroupOffsets({"bootstrap_servers": "a"}).waiting("g", "t") == waiting
