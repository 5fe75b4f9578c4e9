"""isthmus.connectors.kafka.consumer.consumer: calls of the client that fail. See test_consumer_model for the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from isthmus.bridge.port import Exhausted
from isthmus.connectors.kafka.cluster import TopicView
from isthmus.connectors.kafka.consumer import consumer
from isthmus.connectors.kafka.consumer.consumer import ConsumerThread
from isthmus.connectors.kafka.option import read_source


class Record:
    """What a consumer gives."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"

    def headers(self) -> None:
        return None

    def leader_epoch(self) -> None:
        return None


class End(Record):
    """The end of the partition."""

    def error(self) -> KafkaError:  # type: ignore[override]
        return KafkaError(KafkaError._PARTITION_EOF)


class Client:
    """A consumer of a partition with ten records, whose calls fail where the test says so."""

    committed_offset = 0

    def __init__(self, fails_at: set[int]) -> None:
        self._fails_at = fails_at
        self._position = -1
        self._calls = 0
        self._callbacks: dict[str, Any] = {}
        self.is_closed = False

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self._callbacks = callbacks

    def consume(self, count: int, timeout: float) -> list[Record]:
        if not self._callbacks:
            return []
        if self._position < 0:
            self._position = Client.committed_offset
            self._callbacks["on_assign"](self, [TopicPartition("t", 0)])
        begin, self._position = self._position, min(self._position + count, 10)
        self._calls += 1
        if self._calls in self._fails_at:  # a callback failed: what was read is dropped by confluent-kafka
            raise KafkaException(KafkaError(KafkaError._STATE))
        return [Record(offset) for offset in range(begin, self._position)]

    def commit(self, *, offsets: Sequence[TopicPartition], asynchronous: bool) -> Sequence[TopicPartition]:
        Client.committed_offset = offsets[0].offset
        return offsets

    def committed(self, topic_partitions: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [TopicPartition("t", each.partition, Client.committed_offset) for each in topic_partitions]

    def get_watermark_offsets(self, topic_partition: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, 10

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("fails_at", [{2}, {3}])
def test_i7_records_of_a_call_that_failed_are_read_again(monkeypatch: pytest.MonkeyPatch, fails_at: set[int]) -> None:
    """The call for the first record has returned it, or the call itself has dropped some: the client's position is behind them."""
    monkeypatch.setattr(Client, "committed_offset", 0)
    clients: list[Client] = []

    def make(settings: object) -> Client:
        clients.append(Client(set() if clients else fails_at))
        return clients[-1]

    monkeypatch.setattr(consumer, "Consumer", make)
    monkeypatch.setattr(consumer, "describe_topic", lambda options, topic: TopicView("c", 1))

    def wake() -> None:
        thread._wants_open = True  # its owner opens it again at once

    options = read_source({"bootstrap_servers": "a", "topic": "t", "group": "g"})
    thread = ConsumerThread(options, wake, only_present=False)
    wake()
    came: list[int] = []
    for _ in range(6):
        thread.grant(4)
        thread._step()
        for batch in thread.take()[1]:
            came += batch.positions
            thread.settle(batch.positions[0], batch.positions[-1])
    assert came == list(range(10))
    assert [each.is_closed for each in clients] == [True, False]


def test_a_run_for_what_exists_ends_though_the_topic_is_made_again_with_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the ends of the topic before, which are never reached."""
    monkeypatch.setattr(Client, "committed_offset", 6)
    ends = [10]

    class Shorter(Client):
        def offsets_for_times(self, places: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
            return [TopicPartition("t", each.partition, ends[0]) for each in places]

        def consume(self, count: int, timeout: float) -> list[Record]:
            found = super().consume(count, timeout)
            if ends[0] == 10 and self._position == 8:  # the topic is made again, with four records
                ends[0], self._position = 4, 4
                return [Record(offset) for offset in range(4)]
            return [each for each in found if each.offset() < ends[0]] or [End(ends[0])]

    monkeypatch.setattr(consumer, "Consumer", lambda settings: Shorter(set()))
    monkeypatch.setattr(consumer, "describe_topic", lambda options, topic: TopicView("c", 1))

    def wake() -> None:
        thread._wants_open = True

    options = read_source({"bootstrap_servers": "a", "topic": "t", "group": "g"})
    thread = ConsumerThread(options, wake, only_present=True)
    wake()
    came: list[int] = []
    heard: list[object] = []
    for _ in range(12):
        thread.grant(1)
        thread._step()
        reported, batches = thread.take()
        heard += reported
        for batch in batches:
            came += batch.positions
            thread.settle(batch.positions[0], batch.positions[-1])
    assert came == [6, 0, 1, 2, 3]
    thread._commits.answered(thread._commits.begin(math.inf), (), 0.0)  # the cluster confirms what is settled
    assert Exhausted() in [*heard, *thread.take()[0]]


def test_a_consumer_that_could_not_subscribe_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of a partition without a leader are not known. The next opening succeeded, and nothing was ever read."""
    monkeypatch.setattr(Client, "committed_offset", 0)
    clients: list[Client] = []
    failures = [KafkaError(KafkaError.LEADER_NOT_AVAILABLE)]

    class Leaderless(Client):
        def offsets_for_times(self, places: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
            if failures:
                raise KafkaException(failures.pop())
            return [TopicPartition("t", each.partition, 10) for each in places]

    def make(settings: object) -> Client:
        clients.append(Leaderless(set()))
        return clients[-1]

    monkeypatch.setattr(consumer, "Consumer", make)
    monkeypatch.setattr(consumer, "describe_topic", lambda options, topic: TopicView("c", 1))

    def wake() -> None:
        thread._wants_open = True  # its owner opens it again at once

    options = read_source({"bootstrap_servers": "a", "topic": "t", "group": "g"})
    thread = ConsumerThread(options, wake, only_present=True)
    wake()
    came: list[int] = []
    for _ in range(4):
        thread.grant(20)
        thread._step()
        came += [position for batch in thread.take()[1] for position in batch.positions]
    assert came == list(range(10))
    assert [each.is_closed for each in clients] == [True, False]
