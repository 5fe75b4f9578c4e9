"""A reader of a topic under random faults, by seed: deliveries, reported losses, and commits.

W1. A reader delivers no record twice that was not released, and none beyond the credit; records of a partition are in order.
W2. No offset is committed beyond an existing record without outcome that this reader has delivered.
W3. Records reported as lost were removed, and a reader reports them once.
W4. In the end every existing record was delivered and settled, and each that the retention removed unread, or that was removed after its
    release, was reported: by a later reader, too, if it was noted with the offset.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from isthmus.bridge.port import PARTITION_SHIFT, SourceLost
from isthmus.connectors.kafka.cluster import TopicView
from isthmus.connectors.kafka.consumer import committer, consumer, offset_note
from isthmus.connectors.kafka.consumer.consumer import ConsumerThread
from isthmus.connectors.kafka.option import read_source

QUICK = 60
STEPS, LAST_ROUNDS = 150, 80
PARTITIONS = (0, 1)
_REPORTED = re.compile(r"partition (\d+): records (\d+) to (\d+)")


class Record:
    """What a consumer gives."""

    def __init__(self, partition: int, offset: int) -> None:
        self._position = partition, offset

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return self._position[0]

    def offset(self) -> int:
        return self._position[1]

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


class Log:
    """A partition."""

    def __init__(self) -> None:
        self.there: set[int] = set()
        self.low = self.high = 0

    def first(self, offset: int) -> int:
        """The first record from an offset on; the end where there is none. An offset that does not exist is reset."""
        begin = offset if self.low <= offset <= self.high else self.low
        return min((each for each in self.there if each >= begin), default=self.high)


class Cluster:
    """A topic and the offsets of one group."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.logs = {number: Log() for number in PARTITIONS}
        self.committed = dict.fromkeys(PARTITIONS, 0)  # as `apply` begins a group
        self.notes = dict.fromkeys(PARTITIONS, "")
        self.is_flaky = True

    def may_fail(self) -> None:
        if self.is_flaky and self.chance.random() < 0.1:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


class Client:
    """A consumer of confluent-kafka."""

    def __init__(self, cluster: Cluster, settings: dict[str, Any], on_commit: Any) -> None:
        self._cluster = cluster
        self._reported = settings["on_commit"]
        self._on_commit = on_commit
        self._positions: dict[int, int] = {}
        self._wanted: set[int] = set()
        self._answers: list[tuple[dict[int, int], bool]] = []
        self._callbacks: dict[str, Any] = {}

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self._callbacks = callbacks

    def rebalance(self, wanted: Iterable[int]) -> None:
        """The group gives it these partitions, at its next call."""
        self._wanted = set(wanted)

    def _serve(self) -> None:
        revoked, fresh = set(self._positions) - self._wanted, self._wanted - set(self._positions)
        if revoked:
            self._callbacks["on_revoke"](self, [TopicPartition("t", each) for each in revoked])
        for each in revoked:
            del self._positions[each]
        if fresh:
            for each in fresh:
                self._positions[each] = self._cluster.committed.get(each, 0)
            self._callbacks["on_assign"](self, [TopicPartition("t", each) for each in fresh])
        answers, self._answers = self._answers, []
        for offsets, is_taken in answers:
            error = None if is_taken else KafkaError(KafkaError._TIMED_OUT)
            self._reported(error, [TopicPartition("t", number, offset) for number, offset in offsets.items()])

    def poll(self, timeout: float) -> None:
        self._serve()

    def consume(self, count: int, timeout: float) -> list[Record]:
        self._serve()
        found: list[Record] = []
        for number in sorted(self._positions, key=lambda each: self._cluster.chance.random()):
            log = self._cluster.logs[number]
            while len(found) < count:
                at = log.first(self._positions[number])
                if at >= log.high:
                    break
                found.append(Record(number, at))
                self._positions[number] = at + 1
        return found

    def seek(self, topic_partition: TopicPartition) -> None:
        if topic_partition.partition in self._positions:
            self._positions[topic_partition.partition] = topic_partition.offset

    def pause(self, topic_partitions: object) -> None:
        pass

    def resume(self, topic_partitions: object) -> None:
        pass

    def commit(self, *, offsets: Sequence[TopicPartition], asynchronous: bool) -> Sequence[TopicPartition]:
        made = {each.partition: each.offset for each in offsets}
        if not asynchronous:
            self._cluster.may_fail()
        is_taken = not asynchronous or not self._cluster.is_flaky or self._cluster.chance.random() > 0.2
        if is_taken:
            self._on_commit(made)
            self._cluster.committed |= made
            self._cluster.notes |= {each.partition: each.metadata or "" for each in offsets}
        if asynchronous:
            self._answers.append((made, is_taken))
        return offsets

    def committed(self, topic_partitions: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        self._cluster.may_fail()
        numbers = [each.partition for each in topic_partitions]
        return [
            TopicPartition("t", number, self._cluster.committed.get(number, -1001), self._cluster.notes.get(number))
            for number in numbers
        ]

    def get_watermark_offsets(self, topic_partition: TopicPartition, timeout: float) -> tuple[int, int]:
        self._cluster.may_fail()
        log = self._cluster.logs[topic_partition.partition]
        return log.low, log.high

    def close(self) -> None:
        self._wanted = set()
        self._serve()


class World:
    """A topic, its readers one after the other, and what became of each record."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self.chance = random.Random(seed)
        self.caplog = caplog
        self.now = 1000.0
        self.cluster = Cluster(self.chance)
        self.done: set[int] = set()
        self.read: set[int] = set()  # given by any reader
        self.lost: set[int] = set()
        self.retired: set[int] = set()  # removed by the retention before they were read
        self.returned_gone: set[int] = set()  # removed after they had been given back to a reader that was still there
        self.left: set[int] = set()  # under way when their reader ended, and not noted
        self.noted: set[int] = set()  # given back to a reader that has ended, noted, and not given since
        self.compacted: set[int] = set()
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(consumer, "time", clock)
        monkeypatch.setattr(committer, "time", clock)
        monkeypatch.setattr(consumer, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(consumer, "describe_topic", lambda options, topic: TopicView("c", len(PARTITIONS)))
        monkeypatch.setattr(consumer, "Consumer", self._client)
        self.begin()

    def _client(self, settings: dict[str, Any]) -> Client:
        made = Client(self.cluster, settings, self.on_commit)
        made.rebalance(PARTITIONS)
        return made

    def begin(self) -> None:
        """Another reader."""
        self.out: set[int] = set()  # taken, and neither settled nor given back
        self.settled: set[int] = set()  # by this reader
        self.back: set[int] = set()  # given back and not given again
        self.seen: dict[int, int] = {}  # by partition, the highest that came
        self.reported: set[int] = set()
        self.credit = 0
        options = read_source({"bootstrap_servers": "a", "topic": "t", "group": "g"})
        self.thread = ConsumerThread(options, self.wake, only_present=False)
        self.thread._wants_open = True

    def wake(self) -> None:
        self.thread._wants_open = True  # its owner opens it again at once

    @property
    def client(self) -> Client | None:
        found: Client | None = self.thread._consumer
        return found

    # ---- what happens

    def publish(self) -> None:
        log = self.cluster.logs[self.chance.choice(PARTITIONS)]
        for _ in range(self.chance.randint(1, 8)):
            if self.chance.random() < 0.15:
                log.high += 1  # the mark of a transaction
            log.there.add(log.high)
            log.high += 1

    def retain(self) -> None:
        number = self.chance.choice(PARTITIONS)
        log = self.cluster.logs[number]
        log.low = self.chance.randint(log.low, log.high)
        revoked = {number << PARTITION_SHIFT | each for each in log.there if each < log.low}
        log.there = {each for each in log.there if each >= log.low}
        self._removed(revoked)
        self.retired |= revoked - self.read

    def compact(self) -> None:
        number = self.chance.choice(PARTITIONS)
        log = self.cluster.logs[number]
        for each in [each for each in log.there if each < log.high - 1 and self.chance.random() < 0.15]:
            log.there.discard(each)
            self._removed({number << PARTITION_SHIFT | each})
            self.compacted.add(number << PARTITION_SHIFT | each)

    def _removed(self, revoked: set[int]) -> None:
        queued = {position for batch in self.thread._delivered.queue._batches for position in batch.positions}
        self.returned_gone |= (revoked & (self.back | self.noted)) - queued

    def take(self) -> None:
        self.thread.grant(self.chance.randint(0, 12))
        credit = self.thread._delivered.queue.credit
        reported, batches = self.thread.take()
        for event in reported:
            if isinstance(event, SourceLost):
                self.on_report(event.text)
        count = 0
        for batch in batches:
            for position in batch.positions:
                count += 1
                assert position not in self.out, "W1"
                assert position not in self.settled, "W1"
                partition = position >> PARTITION_SHIFT
                assert position > self.seen.get(partition, -1) or position in self.back, "W1"
                self.seen[partition] = max(position, self.seen.get(partition, -1))
                self.back.discard(position)
                self.noted.discard(position)
                self.out.add(position)
                self.read.add(position)
        assert count <= credit, "W1"

    def settle(self) -> None:
        for position in sorted(self.out):
            if self.chance.random() < 0.6:
                self.thread.settle(position, position)
                self.out.discard(position)
                if self.is_assigned(position):
                    self.settled.add(position)
                self.done.add(position)

    def give_back(self) -> None:
        for position in sorted(self.out):
            if self.chance.random() < 0.3:
                self.thread.release(position, position)
                self.out.discard(position)
                self.back.add(position)
                log = self.cluster.logs[position >> PARTITION_SHIFT]
                if position & ((1 << PARTITION_SHIFT) - 1) not in log.there and self.is_assigned(position):
                    self.returned_gone.add(position)

    def is_assigned(self, position: int) -> bool:
        return position >> PARTITION_SHIFT in self.thread._delivered.account.partitions

    def rebalance(self) -> None:
        if self.client is not None:
            self.client.rebalance(each for each in PARTITIONS if self.chance.random() < 0.6)

    def join(self) -> None:
        if self.client is not None:
            self.client.rebalance(PARTITIONS)

    def step(self) -> None:
        before = set(self.thread._delivered.account.partitions)
        self.thread._step()
        after = set(self.thread._delivered.account.partitions)
        for number in before - after:
            self.handed_over(number)

    def handed_over(self, number: int) -> None:
        """What was under way comes to the next reader of the partition, this one or another."""
        own = {each for each in self.out | self.settled | self.back if each >> PARTITION_SHIFT == number}
        self.leave(own, [number])
        for each in (self.out, self.settled, self.back):
            each.difference_update(own)
        self.seen.pop(number, None)

    def leave(self, own: set[int], numbers: Sequence[int] = PARTITIONS) -> None:
        """What was under way of these comes to another reader; it knows only what is noted."""
        again = {each for each in self.noted if each >> PARTITION_SHIFT in numbers}  # may be read again, and not taken
        own = again | own & (self.out | self.back)
        noted = {
            number << PARTITION_SHIFT | offset
            for number, note in self.cluster.notes.items()
            for first, stop in offset_note.read(note).returned
            for offset in range(first, stop)
        }
        self.left |= own - noted | own & self.out
        self.noted = (self.noted - own) | (own & noted - self.out)

    def wait(self) -> None:
        self.now += self.chance.choice([0.1, 0.6, 3, 12])

    def kill(self) -> None:
        self.leave(self.out | self.back)
        for event in self.thread._state_events:
            if isinstance(event, SourceLost):
                self.on_report(event.text)
        self.begin()

    def close(self) -> None:
        self.thread.stop()
        self.thread._close_consumer()
        for event in self.thread._state_events:
            if isinstance(event, SourceLost):
                self.on_report(event.text)
        for logged in self.caplog.messages:
            self.on_report(logged)
        self.caplog.clear()
        self.leave(self.out | self.back)
        self.begin()

    # ---- what is reported

    def on_report(self, text: str) -> None:
        for partition, first, last in _REPORTED.findall(text):
            log = self.cluster.logs[int(partition)]
            for offset in range(int(first), int(last) + 1):
                assert offset not in log.there, f"W3: {text}"
                position = int(partition) << PARTITION_SHIFT | offset
                assert position not in self.reported, f"W3: {text}"
                self.reported.add(position)
        self.lost |= self.reported

    def on_commit(self, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            for position in self.out | self.back:
                at = position & ((1 << PARTITION_SHIFT) - 1)
                if position >> PARTITION_SHIFT == partition and at in self.cluster.logs[partition].there:
                    assert at >= offset, "W2"

    def finish(self) -> None:
        self.cluster.is_flaky = False
        for log in (
            self.cluster.logs.values()
        ):  # what is removed up to the end of a partition is reported with its next record
            log.there.add(log.high)
            log.high += 1
        self.join()
        for _ in range(LAST_ROUNDS):
            self.now += 11
            self.step()
            self.join()
            self.thread.grant(100)
            self.take()
            for position in sorted(self.out):
                self.thread.settle(position, position)
                if self.is_assigned(position):
                    self.settled.add(position)
                self.done.add(position)
            self.out.clear()
        self.close()
        there = {number << PARTITION_SHIFT | each for number, log in self.cluster.logs.items() for each in log.there}
        assert there <= self.done, f"W4: {sorted(there - self.done)}"
        unreported = self.retired - self.read - self.lost
        assert not unreported, f"W4: {sorted(unreported)}"
        # The next reader cannot know that what compaction removed had been read, where it was not noted.
        unreported = self.returned_gone - self.done - self.lost - (self.left & self.compacted)
        assert not unreported, f"W4: {sorted(unreported)}"


@pytest.mark.parametrize("seed", range(QUICK))
def test_reader_in_a_world_of_faults(
    seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    world = World(seed, monkeypatch, caplog)
    acts = [
        *[world.publish] * 4,
        *[world.step] * 12,
        *[world.take] * 6,
        *[world.settle] * 4,
        *[world.give_back] * 2,
        *[world.wait] * 2,
        *[world.join] * 2,
        world.retain,
        world.compact,
        world.rebalance,
    ]
    for _ in range(STEPS):
        world.chance.choice(acts)()
        if world.chance.random() < 0.02:
            world.chance.choice([world.kill, world.close])()
    world.finish()
