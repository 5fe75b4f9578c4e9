"""isthmus.connectors.kafka.source and consumer: credit, settlement, release; without a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Drained, Exhausted, SourceLost, SourceOpened
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.kafka import dead_letter
from isthmus.connectors.kafka.cluster import TopicView, consumer_settings
from isthmus.connectors.kafka.consumer import consumer
from isthmus.connectors.kafka.consumer.consumer import ConsumerThread
from isthmus.connectors.kafka.consumer.present import Present
from isthmus.connectors.kafka.mapping.mapping import to_record
from isthmus.connectors.kafka.option import read_source
from isthmus.connectors.kafka.source import KafkaSource
from isthmus.errors import ConnectionLostError, EntityNotFoundError, UnauthorizedError

OPTIONS = {"bootstrap_servers": "a", "topic": "t", "group": "g"}


class Message:
    """What a consumer gives."""

    def __init__(self, offset: int, partition: int = 0, epoch: int | None = None) -> None:
        self._place = partition, offset
        self._epoch = epoch

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"%d" % self._place[1]

    def headers(self) -> None:
        return None

    def leader_epoch(self) -> int | None:
        return self._epoch


class Unreadable(Message):
    """confluent-kafka of 2.16 raises this where the name of a header is no UTF-8 text."""

    def headers(self) -> None:
        raise SystemError("returned a result with an exception set")


class Undecodable(Message):
    """What librdkafka gives instead of a batch."""

    def error(self) -> KafkaError:  # type: ignore[override]
        return KafkaError(KafkaError._BAD_COMPRESSION, "Decompression (codec 0x1) of message at 1 of 90 bytes failed")


class Consumer:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.seeks: list[tuple[int, int]] = []
        self.commits: list[dict[int, int]] = []
        self.epochs: list[int | None] = []
        self.failures: list[KafkaError] = []
        self.on_poll: Callable[[], None] | None = None

    def seek(self, where: Any) -> None:
        self.seeks.append((where.partition, where.offset))
        self.epochs.append(where.leader_epoch)

    def commit(self, *, offsets: list[Any], asynchronous: bool) -> list[Any]:
        self.commits.append({each.partition: each.offset for each in offsets})
        self.epochs += [each.leader_epoch for each in offsets]
        if self.failures:
            raise KafkaException(self.failures.pop())
        return offsets

    def committed(self, places: list[Any], timeout: float) -> list[Any]:
        return places

    def poll(self, timeout: float) -> None:
        if self.on_poll is not None:
            self.on_poll()

    def close(self) -> None:
        pass


class Rig:
    """A source whose thread is not started: the test runs its iterations."""

    def __init__(self, *, only_present: bool = False, **options: str) -> None:
        self.pool = EndPool()
        made: list[Any] = []

        def make(*arguments: Any, **settings: Any) -> Any:
            made.append(ConsumerThread(*arguments, **settings))
            return made[0]

        read = read_source({**OPTIONS, **options})
        self.source = KafkaSource(self.pool, 1, read, only_present=only_present, thread=make)
        self.thread = made[0]
        self.thread._delivered.account.assign([0, 1])
        self.consumer = self.thread._consumer = Consumer()

    def read(self, *offsets: int, partition: int = 0, epoch: int | None = None) -> None:
        self.thread._take_in([Message(offset, partition, epoch) for offset in offsets])

    def poll(self) -> list[Any]:
        return list(self.source.poll(0.0))

    def positions(self) -> list[int]:
        return [position for each in self.poll() if isinstance(each, Arrived) for position in each.positions]

    def commits(self) -> dict[int, int]:
        """What would be committed now, and is confirmed at once."""
        thread = self.thread
        found: dict[int, int] = thread._commits.unconfirmed()
        thread._commits.answered(found, (), 0.0)
        return found


@pytest.fixture
def rig() -> Any:
    made = Rig()
    yield made
    made.source.close()
    made.pool.close()


def test_nothing_is_given_beyond_the_credit(rig: Rig) -> None:
    """I1."""
    rig.read(*range(10))
    assert rig.poll() == []
    rig.source.grant(4)
    assert rig.positions() == [0, 1, 2, 3]
    rig.source.grant(100)
    assert rig.positions() == [4, 5, 6, 7, 8, 9]


def test_after_a_drain_nothing_comes_before_the_next_grant(rig: Rig) -> None:
    rig.source.grant(10)
    rig.read(0, 1)
    rig.source.drain()
    assert rig.poll() == [Drained()]
    rig.read(2)
    assert rig.poll() == []
    rig.source.grant(10)
    assert rig.positions() == [0, 1, 2]


def test_offsets_are_committed_after_settlement_only(rig: Rig) -> None:
    """I2."""
    rig.source.grant(10)
    rig.read(*range(5))
    rig.poll()
    assert rig.commits() == {0: 0}
    rig.source.settle(1, 4)
    assert rig.commits() == {}
    rig.source.settle(0, 0)
    assert rig.commits() == {0: 5}


def test_what_is_given_back_comes_again_in_order(rig: Rig) -> None:
    """I2 of the consumer."""
    rig.source.grant(4)
    rig.read(*range(6))
    rig.read(0, 1, partition=1)
    rig.poll()
    rig.source.settle(3, 3)
    rig.source.release(1, 2)
    rig.read(6)  # was in transit
    rig.thread._go_back(rig.consumer)
    assert rig.consumer.seeks == [(0, 1)]
    rig.read(*range(1, 8))
    rig.source.grant(100)
    assert sorted(rig.positions()) == [1, 2, 4, 5, 6, 7, 1 << 48, 1 << 48 | 1]
    rig.source.settle(0, 7)
    assert rig.commits() == {0: 8, 1: 0}


def test_a_topic_that_was_made_again_is_read_from_where_it_begins(rig: Rig) -> None:
    """I5 of the consumer."""
    rig.source.grant(1_000)
    rig.read(*range(700))
    rig.read(0, 1, partition=1)
    rig.poll()
    rig.source.settle(0, 698)
    rig.source.settle(1 << 48, 1 << 48)
    rig.read(0, 1, 2)  # the cluster had no record 700: librdkafka begins with the first
    assert rig.consumer.commits == [{0: 0}], (
        "the other partition is made again, too, or is committed by the next opening"
    )
    rig.read(3)
    text, is_fatal = rig.thread._fault.take()
    assert is_fatal, "what was under way names other records now"
    assert "partition 0: offsets begin again at 0" in text
    assert rig.positions() == []
    rig.source.settle(699, 699)
    rig.thread._close_consumer()
    assert len(rig.consumer.commits) == 1, "an offset of the topic before must not be committed"


def test_of_revoked_partitions_nothing_is_given_or_committed(rig: Rig) -> None:
    """`assignment`, I1."""
    rig.source.grant(1)
    rig.read(0, 1)
    rig.read(0, partition=1)
    assert rig.positions() == [0]
    rig.source.settle(0, 0)
    rig.thread._assignment.revoked(rig.consumer, [TopicPartition("t", 0)])
    assert rig.consumer.commits == [{0: 1}]
    rig.source.grant(10)
    assert rig.positions() == [1 << 48]
    rig.source.settle(0, 1)
    assert rig.commits() == {1: 0}


def test_a_log_without_a_dead_letter_topic_blocks_and_says_so(rig: Rig) -> None:
    rig.source.grant(10)
    rig.read(0, 1)
    rig.poll()
    rig.source.settle(1, 1, Disposition("dead-letter", "TooLarge", "5 MB"))
    assert rig.poll() == []  # what is under way is settled first
    rig.source.settle(0, 0)
    reported = rig.poll()
    assert [type(each) for each in reported] == [SourceLost]
    assert reported[0].is_fatal
    assert "offset 1" in reported[0].text
    assert "dead_letter_topic" in reported[0].text
    assert rig.commits() == {0: 1}


class Stored:
    """A record that the cluster has stored; `offset` None: librdkafka concludes it from a later one."""

    def __init__(self, offset: int | None = 0) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset


def test_what_is_set_aside_is_settled_after_the_acknowledgement() -> None:
    rig = Rig(dead_letter_topic="d")
    sent: list[dict[str, Any]] = []

    class Producer:
        def produce(self, topic: str, **record: Any) -> None:
            sent.append({"topic": topic, **record})

        def poll(self, timeout: float) -> None:
            pass

        def flush(self, timeout: float) -> None:
            pass

    rig.thread._delivered.dead._producer = Producer()
    rig.source.grant(10)
    rig.read(0, 1)
    payloads = [payload for each in rig.poll() for payload in each.payloads]
    rig.source.settle(0, 0)
    rig.source.settle(1, 1, Disposition("dead-letter", "Odd", "very"))
    rig.thread._serve_dead()
    assert rig.commits() == {0: 1}
    assert sent[0]["topic"] == "d"
    assert sent[0]["value"] == to_record(payloads[1]).value
    sent[0]["on_delivery"](None, Stored(offset=None))
    with pytest.raises(ConnectionLostError, match="no offset"):
        rig.thread._serve_dead()
    rig.thread._serve_dead()
    assert rig.commits() == {}, "a later record tells nothing of this one"
    sent[1]["on_delivery"](None, Stored())
    rig.thread._serve_dead()
    assert rig.commits() == {0: 2}
    rig.source.close()
    rig.pool.close()


def test_i4_what_was_set_aside_of_a_topic_that_was_made_again_settles_no_record_of_the_next() -> None:
    """`dead_letter`. Its position is that of another record, whose offset was committed though it had no outcome."""
    rig = Rig(dead_letter_topic="d")
    sent: list[Any] = []
    producer = SimpleNamespace(
        produce=lambda topic, **record: sent.append(record["on_delivery"]), poll=lambda _: None, flush=lambda _: None
    )
    rig.thread._delivered.dead._producer = producer
    rig.source.grant(10)
    rig.read(0, 1)
    rig.poll()
    for number in (0, 1):
        rig.source.settle(number, number, Disposition("dead-letter", "Odd", "very"))
        if not number:
            rig.thread._serve_dead()  # the other one waits
    rig.read(0)
    rig.thread._serve_dead()
    rig.thread._delivered.account.assign([0])  # the next consumer
    rig.read(0, 1)
    assert rig.positions() == [0, 1]
    for on_delivery in sent:
        on_delivery(None, Stored())
    assert len(sent) == 2, "their copies are sent all the same"
    rig.thread._serve_dead()
    assert rig.commits() == {0: 0}
    rig.source.close()
    rig.pool.close()


def test_what_is_set_aside_just_before_the_end_is_sent_and_committed() -> None:
    """Otherwise each run that ends there sets it aside again."""
    rig = Rig(dead_letter_topic="d")

    class Producer:
        def __init__(self) -> None:
            self.under_way: list[Any] = []

        def produce(self, topic: str, **record: Any) -> None:
            self.under_way.append(record["on_delivery"])

        def poll(self, timeout: float) -> None:
            pass

        def flush(self, timeout: float) -> None:
            while self.under_way:
                self.under_way.pop()(None, Stored())

    rig.thread._delivered.dead._producer = Producer()
    rig.source.grant(10)
    rig.read(0)
    rig.poll()
    rig.source.settle(0, 0, Disposition("dead-letter", "Odd", "very"))
    rig.source.close()
    rig.thread._close_consumer()
    assert rig.consumer.commits == [{0: 1}]
    rig.pool.close()


def test_i3_a_dead_letter_topic_that_refuses_is_reported_and_gets_the_record_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(dead_letter_topic="d")
    dead = rig.thread._delivered.dead
    assert dead is not None
    made: list[Any] = []

    class Producer:
        def __init__(self, settings: Any = None) -> None:
            made.append(self)
            self.sent: list[Any] = []
            self.error: KafkaError | None = None

        def produce(self, topic: str, **record: Any) -> None:
            if self.error is not None:
                raise KafkaException(self.error)
            self.sent.append(record["on_delivery"])

        def poll(self, timeout: float) -> None:
            pass

        def flush(self, timeout: float) -> None:
            pass

    monkeypatch.setattr(dead_letter, "Producer", Producer)
    rig.source.grant(10)
    rig.read(0, 1, 2)
    rig.poll()
    rig.source.settle(0, 2, Disposition("dead-letter", "Odd", "very"))
    rig.thread._serve_dead()
    refused, *others = made[0].sent
    refused(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), None)
    others[0](None, Stored())
    with pytest.raises(UnauthorizedError, match="topic 'd'"):
        rig.thread._serve_dead()
    made[0].error = KafkaError(KafkaError._FATAL)
    with pytest.raises(ConnectionLostError, match="topic 'd'"):
        rig.thread._serve_dead()
    rig.thread._serve_dead()
    others[1](None, Stored())
    assert len(made) == 2
    (again,) = made[1].sent
    again(None, Stored())
    rig.thread._serve_dead()
    assert rig.commits() == {0: 3}
    rig.source.close()
    rig.pool.close()


def test_a_record_whose_headers_cannot_be_read_costs_no_other(rig: Rig) -> None:
    rig.source.grant(100)
    rig.thread._take_in([Message(0), Unreadable(1), Message(2), Message(0, 1)])
    assert rig.positions() == [0, 1 << 48]
    rig.source.settle(0, 0)
    assert rig.commits() == {0: 1, 1: 0}
    text, is_fatal = rig.thread._fault.take()
    assert "partition 0, offset 1: the headers cannot be read" in text
    assert is_fatal
    rig.thread._go_back(rig.consumer)
    assert rig.consumer.seeks == [(0, 1)]


def test_a_record_whose_headers_cannot_be_read_is_set_aside_where_there_is_a_place() -> None:
    rig = Rig(dead_letter_topic="dead")
    rig.source.grant(100)
    rig.thread._take_in([Message(0), Unreadable(1), Message(2)])
    assert rig.positions() == [0, 2]
    dead = rig.thread._delivered.dead
    assert dead is not None
    [(position, disposition, payload, _)] = dead._waiting
    assert (position, disposition.reason, to_record(payload).value) == (1, "Unreadable", b"1")
    for offset in (0, 2):
        rig.source.settle(offset, offset)
    assert rig.commits() == {0: 1}
    rig.thread.settle(1, 1)  # the topic has acknowledged it
    assert rig.commits() == {0: 3}
    rig.source.close()
    rig.pool.close()


class End(Message):
    """The end of a partition."""

    def error(self) -> KafkaError:  # type: ignore[override]
        return KafkaError(KafkaError._PARTITION_EOF)


@pytest.fixture
def present(rig: Rig) -> Rig:
    """A source for the records that exist: three in one partition, none in the other."""
    existing = rig.thread._delivered.present = Present()
    existing.ends = {0: 3, 1: 0}
    rig.source.grant(100)
    return rig


def test_i8_a_record_that_cannot_be_read_is_not_the_end(present: Rig) -> None:
    """The run ended in good order, with the last record unread."""
    present.thread._take_in([End(0, 1), Message(0), Message(1), Unreadable(2), End(3)])
    events = present.poll()
    assert Exhausted() not in events
    assert [each.positions for each in events if isinstance(each, Arrived)] == [[0, 1]]
    text, is_fatal = present.thread._fault.take() or ("", False)
    assert "offset 2: the headers cannot be read" in text
    assert is_fatal


def test_i8_released_records_are_delivered_again_before_the_end(present: Rig) -> None:
    """Those that were untaken are read again with them: the run ended without both."""
    present.source.grant(1)
    present.thread._take_in([End(0, 1), Message(0), Message(1), Message(2), End(3)])
    assert present.positions() == [0]
    present.source.settle(0, 0, Disposition("abandon"))
    assert Exhausted() not in present.poll()
    present.thread._go_back(present.consumer)
    present.source.grant(100)
    assert Exhausted() not in present.poll()
    present.read(0, 1, 2)
    assert present.positions() == [0, 1, 2]
    present.source.settle(0, 2)
    assert present.poll() == [Exhausted()]
    assert Exhausted() not in present.poll(), "it is reported once"


def test_i8_what_another_consumer_reads_again_is_delivered_before_the_end(present: Rig) -> None:
    """The position of the next consumer is that of the group: untaken records are read again."""
    present.source.grant(2)
    present.thread._take_in([End(0, 1), Message(0), Message(1), Message(2), End(3)])
    assert present.positions() == [0, 1]
    present.thread._fault.spend(ConnectionLostError("fenced"))
    present.thread._discard()
    present.thread._delivered.account.assign([0, 1])
    present.source.grant(100)
    present.thread._take_in([End(0, 1), Message(0)])
    assert Exhausted() not in present.poll()
    present.thread._take_in([Message(1), Message(2), End(3)])
    present.poll()
    present.source.settle(0, 2)
    assert present.poll()[-1] == Exhausted()


def test_i8_what_was_settled_while_the_cluster_was_away_is_committed_before_the_end(present: Rig) -> None:
    """The run ended in good order as soon as the cluster was back. If the group had given the reader up, the next run moved all of it again."""
    thread = present.thread
    present.thread._take_in([End(0, 1), Message(0), Message(1), Message(2), End(3)])
    assert present.positions() == [0, 1, 2]
    thread._report(SourceLost("all brokers are down"))
    present.source.settle(0, 2)
    assert [type(each) for each in present.poll()] == [SourceLost]
    thread._report(SourceOpened())
    assert [type(each) for each in present.poll()] == [SourceOpened]
    commits = thread._commits.begin(time.monotonic() + 1)
    assert Exhausted() not in present.poll()
    thread._commits.answered(commits, (0,), time.monotonic())
    assert Exhausted() not in present.poll()
    thread._commits.answered(thread._commits.begin(time.monotonic() + 1), (), 0.0)
    assert present.poll() == [Exhausted()]


def test_i8_the_end_of_what_the_group_gives_again_is_that_of_the_next_member(present: Rig) -> None:
    """As above: it has no offsets of these records to commit any more."""
    thread = present.thread
    present.thread._take_in([End(0, 1), Message(0), Message(1), Message(2), End(3)])
    present.poll()
    thread._report(SourceLost("all brokers are down"))
    present.source.settle(0, 2)
    thread._report(SourceOpened())
    present.poll()
    thread._assignment._forget([0, 1])
    thread._commits.begin(time.monotonic() + 1)
    assert Exhausted() not in present.poll()
    thread._delivered.account.assign([0, 1])
    present.source.grant(10)
    present.thread._take_in([End(0, 1), Message(0), Message(1), Message(2), End(3)])
    assert present.positions() == [0, 1, 2]
    present.source.settle(0, 2)
    thread._commits.answered(thread._commits.begin(time.monotonic() + 1), (), 0.0)
    assert present.poll() == [Exhausted()]


def test_i8_the_end_waits_for_the_records_that_are_set_aside() -> None:
    """Where the dead-letter topic refuses one, a run ended in good order, and the record was read again by the next."""
    rig = Rig(dead_letter_topic="aside", only_present=True)
    existing = rig.thread._delivered.present
    assert existing is not None
    existing.ends = {0: 2, 1: 0}
    rig.source.grant(10)
    rig.thread._take_in([End(0, 1), Message(0), Message(1), End(2)])
    assert Exhausted() not in rig.poll()
    rig.source.settle(1, 1, Disposition("dead-letter", "Bad", "it is"))
    rig.pool.service({}, 0.0)
    rig.source.settle(0, 0)
    assert rig.pool.service({}, 0.0) == [1], "it is polled"
    assert Exhausted() not in rig.poll()
    rig.thread.settle(1, 1)  # the topic has acknowledged it
    assert rig.poll() == [Exhausted()]
    rig.source.close()
    rig.pool.close()


def test_a_batch_that_cannot_be_decoded_is_told_and_not_passed_over(rig: Rig) -> None:
    """The route said nothing, and was stuck there; or the client went on with what came behind."""
    rig.source.grant(100)
    rig.thread._take_in([Message(0), Undecodable(1), Message(5), Message(0, 1)])
    assert rig.positions() == [0, 1 << 48]
    rig.source.settle(0, 0)
    assert rig.commits() == {0: 1, 1: 0}
    text, is_fatal = rig.thread._fault.take() or ("", False)
    assert "topic 't', partition 0, offset 1: Decompression (codec 0x1) of message at 1 of 90 bytes failed" in text
    assert is_fatal
    assert rig.thread._fault.is_spent, "its position may be behind the batch"


def test_of_a_batch_that_cannot_be_decoded_the_first_error_is_told(rig: Rig) -> None:
    """The client reports what follows with offsets that do not exist: to set the group's offset behind one of them would skip records."""

    class Invented(Message):
        def error(self) -> KafkaError:  # type: ignore[override]
            return KafkaError(KafkaError._NOT_IMPLEMENTED, "Unsupported Message(Set) MagicByte 120")

    rig.source.grant(100)
    rig.thread._take_in([Message(0), Undecodable(1), Invented(0x7878787878787878), Message(5)])
    text, _ = rig.thread._fault.take() or ("", False)
    assert "partition 0, offset 1: Decompression" in text
    assert "MagicByte" not in text


def test_an_error_of_a_partition_is_told_though_it_may_pass(rig: Rig) -> None:
    """Else a partition that cannot be read, e.g. because the broker's remote storage fails, stands still without a word."""

    class Failed(Message):
        def error(self) -> KafkaError:  # type: ignore[override]
            return KafkaError(KafkaError.UNKNOWN, "Fetch from broker 1 failed: Broker: Unknown broker error")

    rig.thread._take_in([Failed(-1001, -1)])
    assert rig.thread._fault.take() is None
    rig.thread._take_in([Failed(-1001, 1)])
    text, is_fatal = rig.thread._fault.take() or ("", True)
    assert "Fetch from broker 1 failed" in text
    assert not is_fatal
    assert not rig.thread._fault.is_spent


def test_after_close_nothing_is_told(rig: Rig) -> None:
    """I3."""
    rig.source.grant(10)
    rig.read(0)
    rig.source.close()
    assert rig.poll() == []


def test_the_last_commit_waits_for_an_answer_and_is_repeated(rig: Rig) -> None:
    """I4 of the consumer: a commit under way could overtake the last one, and a connection that breaks is no reason to give up."""
    rig.source.grant(10)
    rig.read(*range(5))
    rig.poll()
    rig.source.settle(0, 2)
    rig.thread._commits._due = 1.0
    rig.thread._committer.commit(rig.consumer)
    rig.thread._committer.commit(rig.consumer)
    assert rig.consumer.commits == [{0: 3}]
    rig.source.settle(3, 4)

    def answer() -> None:
        assert rig.consumer.commits == [{0: 3}]
        rig.thread._committer.answered(KafkaError(KafkaError._TRANSPORT), [TopicPartition("t", 0, 3)])
        rig.consumer.on_poll = None

    rig.consumer.on_poll = answer
    rig.consumer.failures = [KafkaError(KafkaError._TRANSPORT)]
    rig.thread._close_consumer()
    assert rig.consumer.commits == [{0: 3}, {0: 5}, {0: 5}]


def test_i6_a_gap_is_looked_at(rig: Rig) -> None:
    rig.source.grant(10)
    rig.read(0, 1, 5)
    rig.consumer.get_watermark_offsets = lambda place, timeout: (4, 9)  # type: ignore[attr-defined]
    assert "records 2 to 3 were removed" in rig.thread._removed.query(rig.consumer, 1.0)
    rig.source.release(0, 1)
    rig.thread._go_back(rig.consumer)
    rig.read(0, 1, 5, 6)
    assert rig.thread._removed.query(rig.consumer, 100.0) == "", "what is read again has no gap"


def test_i6_what_was_given_back_and_does_not_come_again_is_reported(rig: Rig) -> None:
    """Nothing else records that it existed."""
    rig.source.grant(10)
    rig.read(0, 1, 2, 3)
    rig.poll()
    rig.consumer.get_watermark_offsets = lambda place, timeout: (2, 9)  # type: ignore[attr-defined]
    rig.source.settle(0, 0)
    rig.source.release(1, 3)
    rig.thread._go_back(rig.consumer)
    rig.read(2, 5)
    reported = rig.thread._removed.query(rig.consumer, 1.0)
    assert "partition 0: records 1 to 1 were removed by the retention" in reported
    assert "partition 0: records 3 to 3 were released, and compaction" in reported
    assert rig.thread._delivered.account.to_commit() == {0: 2}


def test_what_was_given_back_and_was_removed_delays_no_commit(rig: Rig) -> None:
    """What is behind it was settled before: no settlement makes a commit due."""
    rig.source.grant(10)
    rig.read(0, 1, 2)
    rig.poll()
    rig.source.settle(0, 0)
    rig.source.settle(2, 2)
    rig.thread._commits.begin(time.monotonic() + 10)
    rig.thread._commits.answered({0: 1}, (), 0.0)
    rig.source.release(1, 1)
    rig.thread._go_back(rig.consumer)
    rig.read(2)
    assert rig.thread._commits.begin(time.monotonic()) == {0: 3}


def test_i6_what_was_given_back_and_is_removed_is_reported_at_the_end_of_a_reader(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.source.grant(10)
    rig.read(0, 1, 2)
    rig.poll()
    rig.consumer.get_watermark_offsets = lambda place, timeout: (9, 9)  # type: ignore[attr-defined]
    rig.source.release(0, 2)
    rig.thread._go_back(rig.consumer)
    rig.thread._close_consumer()
    assert "records 0 to 2 were removed by the retention" in caplog.text


def test_i6_a_loss_is_reported_beside_another_reason(rig: Rig) -> None:
    rig.source.grant(10)
    rig.read(0, 1, 5)
    rig.consumer.get_watermark_offsets = lambda place, timeout: (5, 9)  # type: ignore[attr-defined]

    def fail(count: int, timeout: float) -> list[Message]:
        rig.thread._fault.lose(ConnectionLostError("all brokers are down"))
        return []

    rig.consumer.consume = fail  # type: ignore[attr-defined]
    reported: list[Any] = []

    def report(event: Any) -> None:
        reported.append(event)
        rig.thread._wants_open = True  # its owner opens it again at once

    rig.thread._report = report
    rig.thread._step()
    assert len(reported) == 1
    assert "all brokers are down" in reported[0].text
    assert "records 2 to 4 were removed" in reported[0].text


def _begins(rig: Rig, offsets: dict[int, int]) -> list[tuple[int, int]]:
    """What is assigned is noted in the list; the group's offsets are `offsets`, and partitions end at 70."""
    rig.source.grant(10)
    rig.thread._delivered.account.revoke([0, 1])
    rig.thread._assignment.partitions = 2
    assigned: list[tuple[int, int]] = []
    rig.consumer.committed = lambda places, timeout: [  # type: ignore[method-assign]
        TopicPartition("t", each.partition, offsets.get(each.partition, -1001)) for each in places
    ]
    rig.consumer.get_watermark_offsets = lambda place, timeout: (0, 70)  # type: ignore[attr-defined]
    rig.consumer.offsets_for_times = lambda places, timeout: [  # type: ignore[attr-defined]
        TopicPartition("t", each.partition, 70, leader_epoch=4) for each in places
    ]
    rig.consumer.incremental_assign = lambda places: assigned.extend(  # type: ignore[attr-defined]
        (each.partition, each.offset) for each in places
    )
    return assigned


def test_latest_begins_at_the_end_once_and_only_where_the_group_has_no_offset() -> None:
    """`assignment`, I2. A partition that was added was read from its end by the next reader; what had come before it was passed over."""
    rig = Rig(start="latest")
    assigned = _begins(rig, {0: 5})
    rig.thread._assignment.assigned(rig.consumer, [TopicPartition("t", number) for number in range(3)])
    assert assigned == [(0, -1001), (1, -1001), (2, -1001)], "where the group is, and at the first record"
    assert rig.consumer.commits == []
    rig.read(5, partition=0)
    rig.read(0, partition=1)
    rig.read(0, partition=2)
    assert len(rig.positions()) == 3
    rig.source.close()
    rig.pool.close()


def test_latest_reads_nothing_before_the_begin_is_committed() -> None:
    """`assignment`, I2 and I3. A reader that was killed before had the next one begin behind what came meanwhile."""
    rig = Rig(start="latest")
    assigned = _begins(rig, {})
    rig.consumer.failures.append(KafkaError(KafkaError._WAIT_COORD))
    rig.thread._assignment.assigned(rig.consumer, [TopicPartition("t", number) for number in range(2)])
    assert assigned == []
    assert rig.thread._fault.is_spent, "another consumer is assigned them"
    assert rig.thread._fault.take() is not None
    rig.read(70)
    assert rig.positions() == []
    rig.thread._fault.is_spent = False
    rig.thread._assignment.assigned(rig.consumer, [TopicPartition("t", number) for number in range(2)])
    assert rig.consumer.commits == [{0: 70, 1: 70}, {0: 70, 1: 70}]
    assert rig.consumer.epochs == [4, 4, 4, 4], "else nobody could tell that the log was truncated before anything came"
    assert assigned == [(0, 70), (1, 70)]
    rig.read(70)
    assert rig.positions() == [70]
    rig.source.close()
    rig.pool.close()


def test_latest_reads_nothing_while_it_is_not_known_where_the_group_is() -> None:
    """`assignment`, I3."""
    rig = Rig(start="latest")
    rig.source.grant(10)
    rig.thread._delivered.account.revoke([0, 1])

    def away(places: object, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    rig.consumer.committed = away  # type: ignore[method-assign, assignment]
    rig.thread._assignment.assigned(rig.consumer, [TopicPartition("t", 0)])
    rig.read(0)
    assert rig.positions() == []
    assert rig.thread._fault.take() is not None
    assert rig.thread._fault.is_spent, "another consumer is assigned them"
    rig.source.close()
    rig.pool.close()


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_i5_where_a_topic_begins_again_is_committed_before_it_is_read_again(start: str) -> None:
    """Where it could not be committed at once, the next consumer began at the former offset, or with `latest` at the end."""
    rig = Rig(start=start)
    rig.source.grant(10)
    assigned = _begins(rig, {0: 5, 1: 5})
    rig.thread._delivered.account.assign([0, 1])
    rig.read(7)
    failed = KafkaError(KafkaError._WAIT_COORD)
    rig.consumer.failures += [failed, failed]
    rig.read(0)
    assert rig.thread._fault.is_spent
    rig.thread._delivered.account.revoke([0, 1])
    rig.thread._assignment.assigned(rig.consumer, [TopicPartition("t", 1)])  # another reader may have the other one
    rig.thread._fault.is_spent = False
    rig.thread._assignment.assigned(rig.consumer, [TopicPartition("t", 0)])
    assert rig.thread._fault.is_spent, "it is not read before"
    assert assigned == ([(1, -1001)] if start == "latest" else [])
    for _ in range(2):
        rig.thread._fault.is_spent = False
        rig.thread._assignment.assigned(rig.consumer, [TopicPartition("t", 0)])
        assert not rig.thread._fault.is_spent
    assert rig.consumer.commits == [{0: 0}, {0: 0}, {0: 0}], "once it is committed it is not any more"
    rig.source.close()
    rig.pool.close()


def test_i5_a_topic_that_was_made_again_is_known_by_its_id(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it had more records by then than were read of the one before, as many were passed over."""
    views = [TopicView("c", 2, topic_id="first"), TopicView("c", 2, topic_id="second")]
    monkeypatch.setattr(consumer, "describe_topic", lambda *_: views[0])
    rig.source.grant(10)
    rig.thread._connect()
    rig.read(0, 1)
    rig.read(0, 1, partition=1)
    assert len(rig.positions()) == 4
    rig.source.settle(0, 1)
    rig.thread._connect()
    assert rig.commits() == {0: 2, 1: 0}, "it is the same"
    rig.source.settle(1 << 48, (1 << 48) + 1)
    del views[0]
    rig.thread._connect()
    assert rig.consumer.commits == [{0: 0, 1: 0}]
    text, _ = rig.thread._fault.take() or ("", False)
    assert "the topic was created again" in text
    assert rig.thread._fault.is_spent, "another consumer reads it"
    rig.read(2)
    assert rig.positions() == []


def test_i5_what_the_offsets_of_one_partition_show_holds_for_all_of_the_topic(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was settled of the others was committed: offsets of records that are not there any more."""
    views = [TopicView("c", 2, topic_id="first"), TopicView("c", 2, topic_id="second")]
    monkeypatch.setattr(consumer, "describe_topic", lambda *_: views[0])
    monkeypatch.setattr(consumer, "Consumer", lambda _: Subscriber())
    rig.source.grant(10)
    rig.thread._connect()
    rig.read(3)
    rig.read(7, partition=1)
    assert len(rig.positions()) == 2
    rig.source.settle(1 << 48, (1 << 48) + 7)
    rig.read(0)
    assert rig.thread._fault.take() is not None
    del views[0]
    rig.thread._connect()
    assert rig.consumer.commits == [{0: 0}, {1: 0}]
    assert rig.thread._fault.take() is None, "it is reported once"


def test_i5_a_topic_that_was_made_again_is_noticed_while_it_is_read(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka reads on after the offset of the one before, and reports nothing."""
    views = [TopicView("c", 2, topic_id="first"), TopicView("c", 2, topic_id="second")]
    monkeypatch.setattr(consumer, "describe_topic", lambda *_: views[0])
    rig.source.grant(10)
    rig.thread._connect()
    del views[0]
    rig.thread._check_topic(1e12)
    assert rig.thread._fault.take() is None, "nothing has come, which costs nothing"
    rig.read(0)
    rig.thread._check_topic(0.0)
    assert rig.thread._fault.take() is None, "it is not time"
    rig.thread._check_topic(1e12)
    assert rig.consumer.commits == [{0: 0, 1: 0}]
    assert rig.thread._fault.take() is not None


def test_i5_a_look_without_an_answer_says_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "describe_topic", lambda *_: TopicView("c", 2, topic_id="first"))
    rig.source.grant(10)
    rig.thread._connect()
    rig.read(0)

    def away(*_: Any) -> None:
        raise ConnectionLostError("no answer")

    monkeypatch.setattr(consumer, "describe_topic", away)
    rig.thread._check_topic(1e12)
    assert rig.thread._fault.take() is None


def test_i5_an_offset_of_a_topic_that_was_made_again_is_known_by_its_note(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that was killed before it noticed has committed offsets of the one before."""
    monkeypatch.setattr(consumer, "describe_topic", lambda *_: TopicView("c", 2, topic_id="second"))
    rig.source.grant(10)
    rig.thread._connect()
    rig.thread._removed.assigned([0, 1])
    rig.consumer.committed = lambda places, timeout: [  # type: ignore[method-assign]
        TopicPartition("t", 0, 700, "isthmus topic c:first"),
        TopicPartition("t", 1, 3, "isthmus topic c:second"),
    ]
    rig.consumer.get_watermark_offsets = lambda place, timeout: (0, 900)  # type: ignore[attr-defined]
    rig.read(700)
    assert rig.positions() == [700]
    rig.source.settle(700, 700)
    assert rig.thread._removed.query(rig.consumer, 0.0) == ""
    rig.thread._check_topic(0.0)
    assert rig.consumer.commits == [{0: 0}]
    assert rig.thread._fault.take() is not None
    rig.thread._close_consumer()
    assert len(rig.consumer.commits) == 1


class Subscriber(Consumer):
    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        pass


def test_i5_of_a_topic_that_is_not_there_nothing_is_committed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one of its name may be there by then, and a reader after this one would begin in its middle."""
    rig.source.grant(10)
    for number in (0, 1):
        rig.read(0, 1, partition=number)
        rig.source.settle(number << 48, (number << 48) + 1)
    assert len(rig.positions()) == 4

    def unavailable(*_: Any) -> None:
        raise EntityNotFoundError("t at a")

    monkeypatch.setattr(consumer, "describe_topic", unavailable)
    rig.thread._wants_open = True
    rig.thread._report = lambda _: setattr(rig.thread, "_stops", True)  # type: ignore[method-assign]
    rig.thread._step()
    rig.thread._assignment.revoked(rig.consumer, [TopicPartition("t", 1)])
    rig.thread._close_consumer()
    assert rig.consumer.commits == []


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_an_offset_that_does_not_exist_any_more_is_followed_by_the_first_that_does(start: str) -> None:
    """With `latest` of librdkafka all that is left would be passed over, without an error."""
    options = read_source({**OPTIONS, "start": start})
    assert consumer_settings(options, tells_ends=False)["auto.offset.reset"] == "earliest"


def _sought(rig: Rig, *group: TopicPartition, end: int = 900, epoch: int = 6) -> list[tuple[int, int, int | None]]:
    """What is assigned where the group is there, and partitions end so: partition, offset and leader epoch."""
    rig.source.grant(1_000)
    rig.thread._delivered.account.revoke([0, 1])
    rig.consumer.committed = lambda places, timeout: list(group)  # type: ignore[method-assign]
    rig.consumer.get_watermark_offsets = lambda place, timeout: (0, end)  # type: ignore[attr-defined]
    rig.consumer.offsets_for_times = lambda places, timeout: [  # type: ignore[attr-defined]
        TopicPartition("t", each.partition, end, leader_epoch=epoch) for each in places
    ]
    assigned: list[tuple[int, int, int | None]] = []
    rig.consumer.incremental_assign = lambda places: assigned.extend(  # type: ignore[attr-defined]
        (each.partition, each.offset, each.leader_epoch) for each in places
    )
    rig.thread._assignment.assigned(rig.consumer, [TopicPartition("t", each.partition) for each in group])
    return assigned


def test_an_offset_is_committed_with_its_leader_epoch(rig: Rig) -> None:
    """`committer`, I3. Without it nobody could tell later that a log was truncated before it, and has other records there."""
    rig.source.grant(10)
    rig.read(0, 1, epoch=3)
    rig.read(2, 3, epoch=5)
    rig.read(0, partition=1)  # the broker reports none
    rig.poll()
    rig.source.settle(0, 3)
    rig.source.settle(1 << 48, 1 << 48)
    rig.thread._commits._due = 1.0
    rig.thread._committer.commit(rig.consumer)
    assert rig.consumer.commits == [{0: 4, 1: 1}]
    assert rig.consumer.epochs == [5, None]
    rig.source.release(0, 3)
    assert rig.consumer.seeks == []


def test_records_that_are_read_again_are_sought_with_the_highest_epoch(rig: Rig) -> None:
    """With that of an earlier record the log would seem to end before the offset that is committed next."""
    rig.source.grant(10)
    rig.read(0, 1, epoch=3)
    rig.read(2, 3, epoch=5)
    rig.poll()
    rig.source.release(1, 1)
    rig.thread._go_back(rig.consumer)
    assert (rig.consumer.seeks, rig.consumer.epochs) == ([(0, 1)], [5])
    rig.read(1, epoch=3)
    rig.poll()
    rig.source.settle(0, 3)
    rig.thread._committer.commit_now(rig.consumer, rig.thread._commits.unconfirmed())
    assert (rig.consumer.commits, rig.consumer.epochs) == ([{0: 4}], [5, 5])


def test_i4_of_the_assignment_a_log_that_was_truncated_and_has_grown_again_is_read_from_there(rig: Rig) -> None:
    """What was between was never read: the offset is there, and librdkafka does not compare the epochs where a partition is assigned."""
    group = TopicPartition("t", 0, 100, leader_epoch=5), TopicPartition("t", 1, 7), TopicPartition("t", 2, -1001)
    assert _sought(rig, *group) == [(0, 100, None), (1, -1001, None), (2, -1001, None)]
    assert (rig.consumer.seeks, rig.consumer.epochs) == ([(0, 100)], [5])
    assert rig.thread._removed.query(rig.consumer, 0.0) == ""
    rig.read(80, 81, epoch=6)  # librdkafka begins where the epochs differ
    assert rig.positions() == [80, 81]
    reported = rig.thread._removed.take_rereads()
    assert "partition 0: the group's position was 100, and the log ended before it: reading begins at 80" in reported
    rig.source.settle(80, 81)
    assert rig.commits() == {0: 82}


def test_i4_of_the_assignment_a_shorter_log_is_not_read_from_its_begin(rig: Rig) -> None:
    """librdkafka fetches as soon as a partition is assigned. Behind the end that resets it, and all of the log was moved again."""
    assert _sought(rig, TopicPartition("t", 0, 100, leader_epoch=5), end=80) == [(0, 80, None)]
    assert (rig.consumer.seeks, rig.consumer.epochs) == ([(0, 100)], [5])


def test_i4_of_the_assignment_where_the_leader_is_the_same_nothing_is_compared(rig: Rig) -> None:
    assert _sought(rig, TopicPartition("t", 0, 100, leader_epoch=5), epoch=5) == []
    assert rig.consumer.seeks == []


def test_i4_of_the_assignment_the_epoch_of_another_topic_is_not_compared(rig: Rig) -> None:
    """A topic that was mirrored to another cluster with its group has other epochs; all of it would be moved again."""
    rig.thread._delivered.topic = "mirror:two"
    assert _sought(rig, TopicPartition("t", 0, 100, "isthmus topic cluster:one", 5)) == []
    assert rig.consumer.seeks == []
    assert _sought(rig, TopicPartition("t", 0, 100, "isthmus topic mirror:two", 5)) == [(0, 100, None)]
    assert (rig.consumer.seeks, rig.consumer.epochs) == ([(0, 100)], [5])


def test_i4_of_the_assignment_nothing_is_read_while_the_position_is_not_known(rig: Rig) -> None:
    assert _sought(rig) == []

    def away(places: object, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    rig.consumer.committed = away  # type: ignore[method-assign, assignment]
    rig.thread._assignment.assigned(rig.consumer, [TopicPartition("t", 0)])
    assert rig.thread._fault.is_spent, "another consumer is assigned it"
    rig.read(0)
    assert rig.positions() == []


def test_i5_a_record_of_a_later_epoch_before_those_that_were_read_shows_that_the_log_was_truncated(rig: Rig) -> None:
    """It was taken for one that was settled, and passed over, where the log was truncated while records were to be read again."""
    rig.source.grant(1_000)
    rig.read(*range(100), epoch=5)
    rig.poll()
    rig.source.settle(0, 59)
    rig.source.settle(61, 99)
    rig.source.release(60, 60)
    rig.thread._go_back(rig.consumer)
    rig.read(*range(60, 80), epoch=5)
    assert rig.positions() == [60]
    rig.source.settle(60, 60)
    rig.read(*range(80, 120), epoch=6)
    assert rig.positions() == []
    assert rig.consumer.commits == [{0: 80}]
    text, _ = rig.thread._fault.take() or ("", False)
    assert "partition 0: offsets begin again at 80; the topic was created again, or its log was truncated" in text
