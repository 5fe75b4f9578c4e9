"""The thread that reads a topic: its consumer, its queue, and the offsets that it commits.

What it is: the one place where the consumer is used, and what the loop's thread asks of it under a lock: credit, settlement, return. It
reads no more than was granted. What it is not: the port (`source`), the account (`offset`).
Over 400 lines: reading, hand-over of partitions and commit run in one thread under one lock.
Specification: librdkafka documentation ("Consumer groups", "At-least-once processing").

A commit, in order: the target has acknowledged; the owner settles; the account tells up to where nothing is outstanding; that offset is
committed, at most every `COMMIT_SECONDS`, before partitions are handed over, and at the end.

Invariants:
    I1. An offset is committed only when every record below it that this reader delivered is settled.
    I2. What is read again after a return is given in the order of its partition.
    I3. Of partitions that were handed over nothing is given or committed any more.
    I4. With `only_present` nothing is given that came after the first opening.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Exhausted, SourceLost, SourceOpened
from isthmus.connectors.kafka.cluster import consumer_settings, error_of, look_at
from isthmus.connectors.kafka.dead_letter import DeadLetterTopic
from isthmus.connectors.kafka.offset import OffsetAccount
from isthmus.connectors.kafka.option import SourceOptions
from isthmus.connectors.kafka.present import Present
from isthmus.connectors.kafka.read_queue import Batch, ReadQueue
from isthmus.connectors.kafka.record_reader import RecordReader
from isthmus.errors import ConnectionLostError, IsthmusError

__all__ = ["ConsumerThread"]

COMMIT_SECONDS = 0.5
# How long one wait for a record lasts at most: so late a commit, or a return, may be carried out.
POLL_SECONDS = 0.25
# A consumer that has no credit fetches no more after so long.
PAUSE_SECONDS = 1.0
LOOK_SECONDS = 10.0
BATCH = 500
BATCH_BYTES = 4 << 20
# Errors that come so soon after a connection is made are of the time before.
STALE_SECONDS = 2.0
# After these a consumer of librdkafka does nothing any more. Its error callback tells a fatal error by this code, without `fatal()`.
_FENCED = {KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED, KafkaError._FATAL}

Told = SourceOpened | SourceLost | Exhausted


class ConsumerThread(threading.Thread):
    """Reads a topic as a member of a consumer group.

    Args:
        options: of the source.
        wake: called when there is something to take.
        only_present: give only what stood when it was opened first.
    """

    def __init__(self, options: SourceOptions, wake: Callable[[], None], *, only_present: bool) -> None:
        super().__init__(name=f"kafka-{options.topic}", daemon=True)
        self._options = options
        self._wake = wake
        self._is_due = threading.Condition()  # guards all that follows up to the consumer
        self._queue = ReadQueue()
        self._told: deque[Told] = deque()
        self._account = OffsetAccount()
        self._rewind: set[int] = set()
        self._commit_at = 0.0
        self._wants_open = self._stops = False
        self._reader = RecordReader.of(options)
        self._dead = DeadLetterTopic(options) if options.dead_letter_topic else None
        self._consumer: Any = None
        self._lost_text: tuple[str, bool] | None = None
        self._connected_at = 0.0
        self._is_spent = False
        self._paused: set[int] = set()
        self._idle_since = 0.0
        self._record_bytes = 1024
        self._present = Present() if only_present else None

    # ---- for the loop's thread

    def open(self) -> None:
        """Connects, or looks whether the cluster is there again."""
        with self._is_due:
            self._wants_open = True
            self._is_due.notify()
        if self.ident is None:
            self.start()

    def grant(self, credit: int) -> None:
        """So many records more may be taken."""
        with self._is_due:
            self._queue.credit = credit
            self._is_due.notify()

    def take(self) -> tuple[list[Told], list[Batch]]:
        """What is to be told, and records within the credit."""
        with self._is_due:
            batches = self._queue.take()
            if self._dead is not None:
                for batch in batches:
                    self._dead.keep(batch.positions, batch.payloads)
            # The end of what stood is told once all of it is taken.
            waits = self._queue.count > 0
            told = [each for each in self._told if not (waits and isinstance(each, Exhausted))]
            self._told = deque(each for each in self._told if waits and isinstance(each, Exhausted))
            if batches:
                self._is_due.notify()
        return told, batches

    @property
    def outstanding(self) -> int:
        """Records taken and neither settled nor given back."""
        with self._is_due:
            return self._account.outstanding - self._queue.count

    def settle(self, first: int, last: int) -> None:
        """Completes what was taken."""
        with self._is_due:
            if self._account.settle(first, last) and not self._commit_at:
                self._commit_at = time.monotonic() + COMMIT_SECONDS
            if self._dead is not None:
                self._dead.forget(first, last)

    def set_aside(self, first: int, last: int, disposition: Disposition) -> bool:
        """Sends what was taken to the dead-letter topic, and completes it then; False where there is none."""
        with self._is_due:
            if self._dead is None:
                return False
            self._dead.add(first, last, disposition)
            self._is_due.notify()
        return True

    def give_back(self, first: int, last: int) -> None:
        """What was taken is read again, and what was read of its partitions and not taken yet, too."""
        with self._is_due:
            partitions = self._account.give_back(first, last)
            self._rewind.update(partitions)
            self._remove_queued(partitions)
            if self._dead is not None:
                self._dead.forget(first, last)
            self._is_due.notify()

    def stop(self) -> None:
        """Commits what is settled, leaves the group, and ends."""
        with self._is_due:
            self._stops = True
            self._queue.credit = 0
            self._is_due.notify()

    def _remove_queued(self, partitions: Sequence[int]) -> None:
        for position in self._queue.remove(partitions):
            self._account.give_back(position, position)

    # ---- the thread

    def run(self) -> None:
        """Reads until it is stopped."""
        try:
            while not self._stops:
                self._turn()
        finally:
            self._close_consumer()

    def _turn(self) -> None:
        with self._is_due:
            while not self._wants_open and self._consumer is None and not self._stops:
                self._is_due.wait()
            wants_open, self._wants_open = self._wants_open, False
        if self._stops:
            return
        try:
            if wants_open:
                self._connect()
            self._read()
            self._commit()
            if self._dead is not None:
                self._serve_dead(self._dead)
        except KafkaException as error:
            self._lose(error_of(error.args[0], self._options.topic))
        except IsthmusError as error:
            self._lose(error)
        except Exception as error:  # noqa: BLE001 - the owner has to know, whatever it is, or the route stands still
            self._lose(ConnectionLostError(f"topic '{self._options.topic}': {type(error).__name__}: {error}"))
        if self._lost_text is not None:
            text, is_fatal = self._lost_text
            self._lost_text = None
            self._tell(SourceLost(text, is_fatal))
            with self._is_due:
                while not self._wants_open and not self._stops:
                    self._is_due.wait()

    def _tell(self, told: Told) -> None:
        with self._is_due:
            self._told.append(told)
        self._wake()

    def _lose(self, error: IsthmusError) -> None:
        if self._lost_text is None or not error.retryable:
            self._lost_text = str(error), not error.retryable

    # ---- connecting

    def _connect(self) -> None:
        options = self._options
        view = look_at(options, options.topic)
        if self._dead is not None:
            look_at(options, options.dead_letter_topic)
        if self._is_spent:
            self._discard()
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    **consumer_settings(options, tells_ends=self._present is not None),
                    "on_commit": self._committed,
                    "error_cb": self._heard,
                }
            )
            if self._present is not None and self._present.ends is None:
                self._present.ends = {
                    number: self._consumer.get_watermark_offsets(
                        TopicPartition(options.topic, number), timeout=LOOK_SECONDS
                    )[1]
                    for number in range(view.partitions)
                }
            self._consumer.subscribe(
                [options.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost_partitions
            )
        self._lost_text = None
        self._connected_at = time.monotonic()
        self._tell(SourceOpened(view.cluster_id))

    def _heard(self, error: KafkaError) -> None:
        """What librdkafka tells beside the records; it goes on by itself, but the owner has to know."""
        made = error_of(error, self._options.topic, self._options.bootstrap_servers)
        if error.fatal() or error.code() in _FENCED:
            self._is_spent = True
            self._lose(ConnectionLostError(f"the consumer is spent: {made}"))
            return
        is_stale = time.monotonic() <= self._connected_at + STALE_SECONDS
        if not made.retryable or (error.code() == KafkaError._ALL_BROKERS_DOWN and not is_stale):
            self._lose(made)

    def _discard(self) -> None:
        """A consumer that was shut out of its group, or has failed for good, is not used again."""
        consumer, self._consumer, self._is_spent = self._consumer, None, False
        self._forget(list(self._account.partitions))
        with contextlib.suppress(KafkaException, RuntimeError):
            consumer.close()

    # ---- reading

    def _read(self) -> None:
        consumer = self._consumer
        if consumer is None:
            return
        self._go_back(consumer)
        with self._is_due:
            room = self._queue.room
            if room <= 0 and not self._paused and self._idle_since:
                self._is_due.wait(POLL_SECONDS)
                room = self._queue.room
        now = time.monotonic()
        if room > 0:
            self._idle_since = 0.0
            self._resume(consumer)
            messages = consumer.consume(1, POLL_SECONDS)
            if messages and room > 1:
                more = min(room - 1, BATCH, max(1, BATCH_BYTES // self._record_bytes))
                messages += consumer.consume(more, 0)
        elif not self._idle_since:
            self._idle_since = now
            return
        elif now - self._idle_since < PAUSE_SECONDS:
            return
        else:  # what is paused gives no records; hand-overs of partitions and commits are served all the same
            self._pause(consumer)
            messages = consumer.consume(1, 0)
            if not messages:
                with self._is_due:
                    if self._queue.room <= 0 and not self._stops and not self._rewind:
                        self._is_due.wait(POLL_SECONDS)
        if messages:
            self._take_in(messages)

    def _take_in(self, messages: Sequence[Any]) -> None:
        positions: list[int] = []
        payloads: list[bytes] = []
        account = self._account
        present = self._present
        with self._is_due:
            for message in messages:
                error = message.error()
                if error is not None:
                    self._on_error(error, message)
                    continue
                partition, offset = message.partition(), message.offset()
                found = account.partitions.get(partition)
                if found is None or partition in self._rewind:
                    continue
                if present is not None and not present.belongs(partition, offset):
                    continue
                if not found.is_new(offset):
                    continue
                found.deliver(offset)
                position, payload = self._reader.read(message)
                positions.append(position)
                payloads.append(payload)
            if positions:
                self._queue.put(Batch(positions, payloads))
                self._record_bytes = max(1, sum(map(len, payloads)) // len(payloads))
        if positions:
            self._wake()
        if present is not None and present.is_over(account.partitions):
            present.is_told = True
            self._tell(Exhausted())

    def _on_error(self, error: KafkaError, message: Any) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            partition, offset = message.partition(), message.offset()
            if self._present is not None:
                self._present.reached(partition, offset)
        else:
            self._heard(error)

    def _go_back(self, consumer: Any) -> None:
        """Reads again from where something was given back."""
        with self._is_due:
            starts = {}
            for partition in self._rewind:
                found = self._account.partitions.get(partition)
                if found is not None and found.returned:
                    starts[partition] = found.rewind()
        for partition, offset in starts.items():
            consumer.seek(TopicPartition(self._options.topic, partition, offset))
        with self._is_due:
            # What was given back meanwhile lies behind: the next turn goes there.
            self._rewind -= {
                partition
                for partition in self._rewind
                if (found := self._account.partitions.get(partition)) is None
                or not found.returned
                or found.returned.first()[0] >= starts.get(partition, 1 << 62)
            }

    def _pause(self, consumer: Any) -> None:
        fresh = self._account.partitions.keys() - self._paused
        if fresh:
            consumer.pause([TopicPartition(self._options.topic, number) for number in fresh])
            self._paused |= fresh

    def _resume(self, consumer: Any) -> None:
        if self._paused:
            known = self._paused & self._account.partitions.keys()
            self._paused = set()
            if known:
                consumer.resume([TopicPartition(self._options.topic, number) for number in known])

    # ---- partitions

    def _assigned(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        with self._is_due:
            self._account.assign(each.partition for each in partitions)

    def _revoked(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        numbers = [each.partition for each in partitions]
        with self._is_due:
            commits = self._account.commits(numbers)
            paused = self._paused.intersection(numbers)
        if commits:
            with contextlib.suppress(KafkaException):  # they come again to their new reader
                consumer.commit(offsets=self._offsets(commits), asynchronous=False)
        if paused:  # librdkafka may remember it until they come back
            with contextlib.suppress(KafkaException):
                consumer.resume([TopicPartition(self._options.topic, number) for number in paused])
        self._forget(numbers)

    def _lost_partitions(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        """The group took this reader for dead, e.g. while the cluster was away. A consumer that joins again after that may be assigned
        its partitions and give no record, for good: it is not used again.
        """
        self._forget([each.partition for each in partitions])
        self._is_spent = True
        self._lose(ConnectionLostError(f"topic '{self._options.topic}': the group took the reader for dead"))

    def _forget(self, numbers: Sequence[int]) -> None:
        with self._is_due:
            self._remove_queued(numbers)
            self._account.revoke(numbers)
            self._rewind.difference_update(numbers)
            self._paused.difference_update(numbers)

    # ---- committing

    def _offsets(self, commits: dict[int, int]) -> list[TopicPartition]:
        return [TopicPartition(self._options.topic, number, offset) for number, offset in commits.items()]

    def _commit(self) -> None:
        if not 0 < self._commit_at <= time.monotonic() or self._consumer is None:
            return
        with self._is_due:
            self._commit_at = 0.0
            commits = self._account.commits()
        if commits:
            self._consumer.commit(offsets=self._offsets(commits), asynchronous=True)

    def _committed(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        failed = [each.partition for each in partitions if error is not None or each.error is not None]
        if failed:
            with self._is_due:
                self._account.not_committed(failed)
                self._commit_at = self._commit_at or time.monotonic() + COMMIT_SECONDS

    def _serve_dead(self, dead: DeadLetterTopic) -> None:
        for position in dead.serve(self._is_due):
            self.settle(position, position)

    def _close_consumer(self) -> None:
        consumer = self._consumer
        with contextlib.suppress(KafkaException, RuntimeError, IsthmusError):
            if self._dead is not None:
                self._dead.finish()
                self._serve_dead(self._dead)
        if consumer is None:
            return
        with contextlib.suppress(KafkaException, RuntimeError):
            with self._is_due:
                commits = self._account.commits()
            if commits:
                consumer.commit(offsets=self._offsets(commits), asynchronous=False)
        with contextlib.suppress(KafkaException, RuntimeError):
            consumer.close()
        self._consumer = None
