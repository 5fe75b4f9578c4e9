"""The thread that reads a topic: its consumer, and the offsets that it commits.

What it is: the only code that uses the consumer, and the requests of the loop's thread, under a lock: credit, settlement, release.
What it is not: the port (`source`), the unsettled records (`delivered`), the decisions what to commit (`commit`, `committer`), the assignment
of partitions (`assignment`), the reasons for which the source is lost (`fault`).
Specification: librdkafka documentation ("Consumer groups", "At-least-once processing").

A commit, in order: the target has acknowledged; the owner settles; the account gives the offset below which nothing is outstanding; that offset is
committed, at most every `COMMIT_SECONDS`, before partitions are revoked, and at the end.

Invariants:
    I1. An offset is committed only when every record below it that this reader delivered is settled.
    I2. Records that are read again after a release are delivered in the order of their partition.
    I3. With `only_present` no record is delivered that was written after the first opening.
    I4. The last commit is repeated until the cluster has confirmed it, for `CLOSE_SECONDS`.
    I5. A topic that was created again, or truncated, is read from its start by the next consumer, after the records in flight were released.
        That it was created again is also detected by its id, when it already has as many records as were read: at each opening, once a minute
        while records arrive, and from the note of the group's offset. Of a topic that no longer exists nothing is committed: it would be
        an offset of the next topic of that name.
    I6. Records that the retention removed unread, and records that were removed after their release, are reported once, with their range (`removed`).
    I7. Records of a failed call are read again, by the next consumer.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Exhausted, SourceLost, SourceOpened
from isthmus.connectors.kafka.cluster import TopicView, consumer_settings, describe_topic, error_of
from isthmus.connectors.kafka.consumer.assignment import Assignment
from isthmus.connectors.kafka.consumer.commit import Commits
from isthmus.connectors.kafka.consumer.committer import Committer
from isthmus.connectors.kafka.consumer.delivered import Delivered
from isthmus.connectors.kafka.consumer.failure import began_again, cannot_be_decoded, cannot_be_read
from isthmus.connectors.kafka.consumer.fault import ConsumerFault
from isthmus.connectors.kafka.consumer.latest import ends_of_all
from isthmus.connectors.kafka.consumer.offset_note import is_another
from isthmus.connectors.kafka.consumer.partition_pause import PartitionPause
from isthmus.connectors.kafka.consumer.read_queue import Batch
from isthmus.connectors.kafka.consumer.removed import RemovedRecords
from isthmus.connectors.kafka.option import SourceOptions
from isthmus.errors import ConnectionLostError, IsthmusError

__all__ = ["ConsumerThread"]

# How long one wait for a record lasts at most: a commit, or a release, may be delayed by it.
POLL_SECONDS = 0.25
BATCH = 500
BATCH_BYTES = 4 << 20
# How long a topic that was created again may stay undetected: librdkafka continues to read, and reports nothing.
TOPIC_SECONDS = 60.0
# Shorter than a pool waits for its threads.
CLOSE_SECONDS = 4.0

StateEvent = SourceOpened | SourceLost | Exhausted


class ConsumerThread(threading.Thread):
    """Reads a topic as a member of a consumer group.

    Args:
        options: of the source.
        wake: called when there are results.
        only_present: deliver only records that existed when it was first opened.
    """

    def __init__(self, options: SourceOptions, wake: Callable[[], None], *, only_present: bool) -> None:
        super().__init__(name=f"kafka-{options.topic}", daemon=True)
        self._options = options
        self._wake = wake
        self._is_due = threading.Condition()  # guards all that follows up to the consumer
        self._removed = RemovedRecords(options.topic)
        self._delivered = Delivered(options, only_present=only_present, removed=self._removed)
        self._commits = Commits(self._delivered.account, note=self._delivered.note)
        self._committer = Committer(options.topic, self._commits, self._is_due)
        self._state_events: deque[StateEvent] = deque()
        self._wants_open = self._stops = self._is_lost = self._was_lost = False
        self._consumer: Any = None
        self._known = ""  # the topic that is read, in the form of `offset_note`; empty: unknown
        self._check_due = math.inf  # when to check that it is the same; infinite while nothing has arrived since
        self._pause = PartitionPause(options.topic)
        self._fault = ConsumerFault(options.topic, options.bootstrap_servers, lambda: self._stops)
        self._assignment = Assignment(
            options,
            self._delivered,
            self._commits,
            self._committer,
            self._removed,
            self._pause,
            self._fault,
            self._is_due,
            lambda: self._stops,
        )

    # ---- for the loop's thread

    def open(self) -> None:
        """Connects, or checks whether the cluster is reachable again."""
        with self._is_due:
            self._wants_open = True
            self._is_due.notify()
        if self.ident is None:
            self.start()

    def grant(self, credit: int) -> None:
        """Raises the credit by so many records."""
        with self._is_due:
            self._delivered.queue.credit = credit
            self._is_due.notify()

    def take(self) -> tuple[list[StateEvent], list[Batch]]:
        """The events to report, and records within the credit."""
        with self._is_due:
            batches = self._delivered.take()
            state_events = list(self._state_events)
            self._state_events.clear()
            # After a loss the group may have another reader, or this one as another member: what was not committed is read again.
            if not self._is_lost and (not self._was_lost or self._commits.is_idle) and self._delivered.is_over():
                state_events.append(Exhausted())
            if batches:
                self._is_due.notify()
        return state_events, batches

    @property
    def outstanding(self) -> int:
        """Records taken and neither settled nor released."""
        with self._is_due:
            return self._delivered.outstanding

    def settle(self, first: int, last: int) -> None:
        """Completes taken records."""
        with self._is_due:
            if self._delivered.settle(first, last):
                self._commits.settled(time.monotonic())

    def set_aside(self, first: int, last: int, disposition: Disposition) -> bool:
        """Sends taken records to the dead-letter topic, and then completes them; False where there is none."""
        with self._is_due:
            self._is_due.notify()
            return self._delivered.set_aside(first, last, disposition)

    def release(self, first: int, last: int) -> None:
        """Reads taken records again, and the untaken ones of their partitions, too."""
        with self._is_due:
            self._delivered.release(first, last)
            self._commits.unblock()  # it is noted: a reader after a kill needs it
            self._is_due.notify()

    def stop(self) -> None:
        """Commits the settled records, leaves the group, and ends."""
        with self._is_due:
            self._stops = True
            self._delivered.queue.credit = 0
            self._is_due.notify()

    # ---- the thread

    def run(self) -> None:
        """Reads until it is stopped."""
        try:
            while not self._stops:
                self._step()
        finally:
            self._close_consumer()

    def _step(self) -> None:
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
            if self._consumer is not None:
                text = self._removed.query(self._consumer, time.monotonic())
                self._check_topic(time.monotonic())
                rereads = self._removed.take_rereads()
                self._fault.lose_removed(rereads)
                if text or rereads:
                    self._fault.lose_removed(text)  # committed once it is taken
                elif not self._removed.is_asking and not self._fault.is_absent:
                    self._committer.commit(self._consumer, self._removed.unlooked)
            self._serve_dead()
            present = self._delivered.present
            if self._was_lost and present is not None and not present.is_reported:
                self._wake()  # the end may be reported
        except KafkaException as error:
            self._fault.lose(error_of(error.args[0], self._options.topic))
        except IsthmusError as error:
            self._fault.lose(error)
        except Exception as error:  # noqa: BLE001 - the owner must be told of any error, or the route stalls
            self._fault.lose(ConnectionLostError(f"topic '{self._options.topic}': {type(error).__name__}: {error}"))
        if (lost := self._fault.take()) is not None:
            self._report(SourceLost(*lost))
            with self._is_due:
                while not self._wants_open and not self._stops:
                    self._is_due.wait()

    def _report(self, event: StateEvent) -> None:
        with self._is_due:
            self._state_events.append(event)
            self._is_lost = isinstance(event, SourceLost)
            self._was_lost |= self._is_lost
        self._wake()

    # ---- connecting

    def _connect(self) -> None:
        options = self._options
        view = describe_topic(options, options.topic)
        if options.dead_letter_topic:
            describe_topic(options, options.dead_letter_topic)
        self._assignment.partitions = self._assignment.partitions or view.partitions
        if self._is_another(view):
            return
        self._fault.is_absent = False
        if self._fault.is_spent:
            self._discard()
        if self._consumer is None:
            self._consumer = self._subscribed(view.partitions)
        self._fault.connected(time.monotonic())
        self._report(SourceOpened(view.cluster_id))

    def _subscribed(self, partitions: int) -> Any:
        """A new consumer. One that could not subscribe is not kept: it would count as connected, and read nothing."""
        topic, present, given = self._options.topic, self._delivered.present, self._assignment
        made = Consumer(
            {
                **consumer_settings(self._options, tells_ends=present is not None),
                "on_commit": self._committer.answered,
                "error_cb": self._on_error,
            }
        )
        try:
            if present is not None and present.ends is None:
                present.ends = ends_of_all(made, topic, range(partitions)).offsets
            made.subscribe([topic], on_assign=given.assigned, on_revoke=given.revoked, on_lost=given.lost)
        except Exception:
            made.close()
            raise
        return made

    def _is_another(self, view: TopicView) -> bool:
        """Whether the topic was made again since it was looked at, and that has to be told."""
        topic = view.identity
        before, self._known = self._known, topic or self._known
        is_told = self._fault.is_spent  # by the offsets of another partition
        starts: dict[int, int] = {}
        if is_another(before, topic):
            with self._is_due:
                starts = dict.fromkeys(self._delivered.account.partitions, 0)
        if starts:
            self._begin_again(starts)
        self._delivered.topic = topic
        return bool(starts) and not is_told

    def _check_topic(self, now: float) -> None:
        """Checks whether the topic is the one that was read, by this reader or the previous one. Without an answer nothing changes."""
        if others := self._removed.take_others(self._known):
            self._begin_again(dict.fromkeys(others, 0))
        if now >= self._check_due and not self._fault.is_useless:
            self._check_due = math.inf
            with contextlib.suppress(ConnectionLostError):
                self._is_another(describe_topic(self._options, self._options.topic))

    def _on_error(self, error: KafkaError) -> None:
        self._fault.on_error(error, time.monotonic())

    def _discard(self) -> None:
        """A consumer that was excluded from its group, or has failed permanently, is not used again."""
        consumer, self._consumer, self._fault.is_spent = self._consumer, None, False
        self._assignment.revoke_all(consumer)
        with self._is_due:
            self._commits.reset()
        with contextlib.suppress(KafkaException, RuntimeError):
            consumer.close()

    # ---- reading

    def _read(self) -> None:
        consumer = self._consumer
        if consumer is None:
            return
        self._go_back(consumer)
        with self._is_due:
            room = self._delivered.queue.room
            if room <= 0 and self._pause.waits:
                self._is_due.wait(POLL_SECONDS)
                room = self._delivered.queue.room
        if room > 0:
            self._pause.resume(consumer, self._delivered.account.partitions)
            messages = self._consume(1, POLL_SECONDS)
            if messages and room > 1:
                more = min(room - 1, BATCH, max(1, BATCH_BYTES // self._delivered.record_bytes))
                messages += self._consume(more, 0)
        elif not self._pause.pause(consumer, self._delivered.account.partitions, time.monotonic()):
            return
        else:  # paused partitions deliver no records; revocations and commits are served nevertheless
            messages = self._consume(1, 0)
            if not messages:
                with self._is_due:
                    if self._delivered.queue.room <= 0 and not self._stops and not self._delivered.rewind:
                        self._is_due.wait(POLL_SECONDS)
        if messages:
            self._take_in(messages)

    def _consume(self, count: int, seconds: float) -> list[Any]:
        try:
            return list(self._consumer.consume(count, seconds))
        except Exception:
            self._fault.spend()  # its position may be after records that were not delivered (I7)
            raise

    def _take_in(self, messages: Sequence[Any]) -> None:
        with self._is_due:
            is_more, errors = self._delivered.put(messages)
            again = dict(self._delivered.begun_again)
            unreadable, self._delivered.unreadable = self._delivered.unreadable, ""
            undecodable, self._delivered.undecodable = self._delivered.undecodable, ""
            if self._delivered.is_unblocked:
                self._delivered.is_unblocked = False
                self._commits.unblock()
        for error, is_of_partition in errors:
            self._fault.on_error(error, time.monotonic(), is_of_partition=is_of_partition)
        if again:
            self._begin_again(again)
        if is_more:
            self._check_due = min(self._check_due, time.monotonic() + TOPIC_SECONDS)
        if unreadable:
            self._fault.lose(cannot_be_read(self._options.topic, unreadable))
        if undecodable:
            self._fault.spend(cannot_be_decoded(self._options.topic, undecodable))
        if is_more or self._delivered.present is not None:  # the end may be reported
            self._wake()

    def _begin_again(self, starts: dict[int, int]) -> None:
        """The offsets of partitions begin again (I5): the next consumer reads from there."""
        with self._is_due:
            self._delivered.begin_again(starts)
            self._commits.forget(starts)
        self._removed.begins_again(starts)
        self._committer.begins_again(self._consumer, starts)
        self._fault.spend(began_again(self._options.topic, starts))

    def _go_back(self, consumer: Any) -> None:
        """Reads again from the first released record."""
        with self._is_due:
            starts = self._delivered.starts()
            # With these librdkafka recognises that the log was truncated meanwhile.
            epochs = self._commits.epochs(starts)
        for partition, offset in starts.items():
            consumer.seek(TopicPartition(self._options.topic, partition, offset, leader_epoch=epochs[partition]))
        with self._is_due:
            self._delivered.went_back(starts)

    def _serve_dead(self) -> None:
        if self._delivered.dead is not None:
            done = self._delivered.dead.serve(self._is_due)
            for position in done:
                self.settle(position, position)
            if done:
                self._wake()  # more may be taken

    # ---- the end

    def _close_consumer(self) -> None:
        consumer, self._consumer, self._stops = self._consumer, None, True
        deadline = time.monotonic() + CLOSE_SECONDS
        with contextlib.suppress(KafkaException, RuntimeError, IsthmusError):
            if self._delivered.dead is not None:
                self._serve_dead()  # sends the last messages that were set aside
                self._delivered.dead.finish()
                self._serve_dead()
        if consumer is None:
            return
        with contextlib.suppress(KafkaException, RuntimeError):
            unplaced = self._removed.last_ask(consumer, self._fault.lose_removed)
            unplaced |= self._removed.take_others(self._known)
            self._committer.commit_last(consumer, deadline, lambda: self._fault.is_useless, unplaced)
        with self._is_due:
            self._delivered.note_awaited()
        with contextlib.suppress(RuntimeError):
            if time.monotonic() < deadline:
                self._fault.lose_removed(self._removed.last_query(consumer))
        with contextlib.suppress(KafkaException, RuntimeError):
            consumer.close()
