"""isthmus.connectors.kafka.producer: when a record is sent, and when it is reported as stored."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from isthmus.bridge.refusal import RefusalKind
from isthmus.connectors.kafka import producer as producer_module
from isthmus.connectors.kafka.cluster import TopicView
from isthmus.connectors.kafka.mapping.mapping import Record
from isthmus.connectors.kafka.option import read_target
from isthmus.connectors.kafka.partition_opening import PartitionOpenings
from isthmus.connectors.kafka.producer import ProducerThread

OPTIONS = read_target({"topic": "t", "bootstrap_servers": "127.0.0.1:1"})


class Stored:
    """What librdkafka reports of a record; `offset` None: it concludes that it is stored."""

    def __init__(self, partition: int, offset: int | None) -> None:
        self._partition, self._offset = partition, offset

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int | None:
        return self._offset


class FakeProducer:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, int, Callable[[KafkaError | None, Any], None]]] = []
        self.is_full = False

    def produce(self, topic: str, *, value: bytes, partition: int, on_delivery: Any, **_: Any) -> None:
        if self.is_full:
            raise BufferError
        self.sent.append((value, partition, on_delivery))

    @property
    def values(self) -> list[bytes]:
        return [value for value, _, _ in self.sent]

    def answer(self, at: int, *, offset: int | None = 0, error: KafkaError | None = None) -> None:
        _, partition, callback = self.sent[at]
        callback(error, Stored(partition, offset))


@pytest.fixture
def rig() -> tuple[ProducerThread, FakeProducer]:
    """A thread that does not run, and its producer."""
    thread, producer = ProducerThread(OPTIONS, lambda: None), FakeProducer()
    thread._producer = producer
    thread._openings = PartitionOpenings(2)
    return thread, producer


def record(value: str, key: bytes | None = None) -> Record:
    return Record(value.encode(), key, (), None, None)


def test_i4_nothing_goes_behind_the_first_record_to_a_partition(rig: tuple[ProducerThread, FakeProducer]) -> None:
    thread, producer = rig
    for ordinal in range(3):
        thread.send(ordinal, record(f"{ordinal}"), 0)
    thread.send(3, record("other"), 1)
    assert producer.values == [b"0", b"other"]
    producer.answer(0)
    assert producer.values == [b"0", b"other", b"1", b"2"]
    thread.send(4, record("4"), 0)
    assert producer.values[-1] == b"4"
    producer.answer(1)
    assert thread._openings is None, "nothing is looked up any more"
    thread.send(5, record("5", b"k"), -1)
    assert producer.sent[-1][1] == -1, "the producer chooses the partition then"


def test_i4_records_that_their_keys_place_wait_in_their_partition(rig: tuple[ProducerThread, FakeProducer]) -> None:
    thread, producer = rig
    for ordinal in range(5):
        thread.send(ordinal, record(f"{ordinal}", b"same"), -1)
    assert producer.values == [b"0"]
    assert producer.sent[0][1] in (0, 1)
    producer.answer(0)
    assert producer.values == [b"0", b"1", b"2", b"3", b"4"]
    assert len({partition for _, partition, _ in producer.sent}) == 1


def test_i3_a_record_without_an_offset_is_not_reported_as_stored(rig: tuple[ProducerThread, FakeProducer]) -> None:
    thread, producer = rig
    thread.send(0, record("0"), 0)
    producer.answer(0, offset=None)
    accepted, refused = thread.take()
    assert accepted == []
    assert [(each.number, each.refusal and each.refusal.kind) for each in refused] == [(0, RefusalKind.UNKNOWN)]
    assert thread._openings is not None
    thread.send(1, record("1"), 0)
    producer.answer(1, offset=7)
    assert thread.take() == ([1], [])


def test_i1_each_record_has_an_answer_though_the_first_is_refused(rig: tuple[ProducerThread, FakeProducer]) -> None:
    thread, producer = rig
    for ordinal in range(3):
        thread.send(ordinal, record(f"{ordinal}"), 0)
    producer.answer(0, offset=None, error=KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    assert producer.values == [b"0", b"1"]
    producer.is_full = True
    producer.answer(1, offset=None, error=KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    accepted, refused = thread.take()
    assert accepted == []
    assert [each.number for each in refused] == [0, 1, 2]
    producer.is_full = False
    thread.send(3, record("3"), 0)
    assert producer.values[-1] == b"3"


def test_i1_a_first_record_that_the_producer_does_not_take_delays_none(
    rig: tuple[ProducerThread, FakeProducer],
) -> None:
    thread, producer = rig
    producer.is_full = True
    thread.send(0, record("0"), 0)
    producer.is_full = False
    thread.send(1, record("1"), 0)
    assert producer.values == [b"1"]
    assert [each.number for each in thread.take()[1]] == [0]


class StopsFirst:
    """A lock that another thread has until the producer is stopped."""

    def __init__(self, thread: ProducerThread) -> None:
        self._thread = thread

    def __enter__(self) -> None:
        self._thread._stops = True

    def __exit__(self, *_: object) -> None:
        """Nothing is released."""


def test_i2_what_waits_is_not_sent_after_a_stop(rig: tuple[ProducerThread, FakeProducer]) -> None:
    """Its connection is replaced by then: it would be stored among, or behind, what the next one sends."""
    thread, producer = rig
    for ordinal in range(3):
        thread.send(ordinal, record(f"{ordinal}"), 0)
    thread._lock = StopsFirst(thread)  # type: ignore[assignment]
    producer.answer(0)
    assert producer.values == [b"0"]


def test_i2_the_queue_is_emptied_behind_what_was_being_sent(rig: tuple[ProducerThread, FakeProducer]) -> None:
    thread, producer = rig
    purged: list[int] = []
    producer.purge = lambda **_: purged.append(len(producer.sent))  # type: ignore[attr-defined]
    for ordinal in range(3):
        thread.send(ordinal, record(f"{ordinal}"), 0)
    stopping = threading.Thread(target=thread.stop)
    produce = producer.produce

    def slow(*args: Any, **more: Any) -> None:
        if not stopping.ident:
            stopping.start()
            stopping.join(0.05)  # as long as a stop takes that does not wait
        produce(*args, **more)

    producer.produce = slow  # type: ignore[method-assign]
    producer.answer(0)
    stopping.join()
    assert purged == [3]


class Ending(ProducerThread):
    """Its thread ends while it is being stopped: it has removed the producer when that is looked up once more."""

    looks = 0

    @property
    def _producer(self) -> Any:
        self.looks += 1
        return self.made if self.looks == 1 else None

    @_producer.setter
    def _producer(self, made: Any) -> None:
        self.made = made


def test_a_thread_that_ends_while_it_is_stopped_is_no_error() -> None:
    """The loop of all routes of the process would end with it."""
    thread, producer = Ending(OPTIONS, lambda: None), FakeProducer()
    purged: list[bool] = []
    producer.purge = lambda **_: purged.append(True)  # type: ignore[attr-defined]
    thread.made = producer
    thread.stop()
    assert purged == [True]


class RaisingProducer(FakeProducer):
    """Raises from a callback, as librdkafka's Python client does out of `poll`; the one behind stops the thread."""

    def __init__(self, thread: ProducerThread) -> None:
        super().__init__()
        self.thread = thread
        self.polled: list[float] = []

    def poll(self, seconds: float) -> int:
        self.polled.append(seconds)
        if len(self.polled) != 2:
            raise ValueError("a callback failed")
        self.thread.send(0, record("late"), 0)  # it was not reported to the owner yet
        self.thread._stops = True
        return 0


def test_an_exception_in_a_callback_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner would wait for `stall_seconds` for answers that are not taken any more."""
    woken: list[bool] = []
    thread = ProducerThread(OPTIONS, lambda: woken.append(thread.lost is not None))
    producer = RaisingProducer(thread)
    monkeypatch.setattr(producer_module, "describe_topic", lambda *_: TopicView("c", 2, 1_000_000))
    monkeypatch.setattr(producer_module, "Producer", lambda _: producer)
    thread.run()
    assert thread.lost is not None
    assert thread.lost.kind is RefusalKind.UNKNOWN
    assert thread.lost.description == "ValueError: a callback failed"
    assert woken == [False, True]
    assert producer.values == [b"late"]
    assert len(producer.polled) == 3
    assert thread._producer is None
