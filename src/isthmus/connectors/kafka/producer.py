"""The thread that waits for a cluster's answers to a target's records.

What it is: the description of the topic, the producer of one connection, and its answers until they are taken. What it is not: the port
(`target`). The loop's thread passes records to the producer, and never waits for it.
Specification: librdkafka documentation ("Idempotent Producer").

librdkafka repeats a record by itself, in order and without duplicates, as long as this thread runs; it never gives one up:
the target does (`stall_seconds`), for all of them together, so that none overtakes another.

Invariants:
    I1. Each accepted record has one answer, except after `stop`, or where the connection is lost.
    I2. After `stop` nothing is reported, and records in the producer's queue are not sent.
    I3. A record is reported as stored only where the cluster returned its offset; a conclusion of librdkafka from a later one is not trusted.
    I4. The first record to a partition is stored before another one is sent there (`partition_opening`).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.kafka.cluster import TopicView, describe_topic, error_of, may_pass, refusal_of, settings
from isthmus.connectors.kafka.mapping.mapping import Record
from isthmus.connectors.kafka.option import TargetOptions
from isthmus.connectors.kafka.partition_opening import PartitionOpenings
from isthmus.errors import IsthmusError

__all__ = ["Answer", "ProducerThread"]

POLL_SECONDS = 1.0


class Answer(NamedTuple):
    """A record that was refused, by its number in the order of sending."""

    number: int
    refusal: Refusal


class ProducerThread(threading.Thread):
    """One connection of a target.

    Args:
        options: of the target.
        wake: called when there are results.

    Attributes:
        view: the cluster's description of the topic; None before it has answered.
        lost: why the connection is unusable.
        trouble: librdkafka's last error about its connections.
    """

    def __init__(self, options: TargetOptions, wake: Callable[[], None]) -> None:
        super().__init__(name=f"kafka-{options.topic}", daemon=True)
        self.view: TopicView | None = None
        self.lost: Refusal | None = None
        self.trouble = ""
        self._options = options
        self._wake = wake
        self._accepted: deque[int] = deque()
        self._refused: deque[Answer] = deque()
        self._producer: Any = None
        self._lock = threading.Lock()
        self._openings: PartitionOpenings[tuple[int, Record]] | None = None  # None: each partition has stored a record
        self._stops = False

    # ---- for the loop's thread

    def send(self, number: int, record: Record, partition: int) -> None:
        """Queues a record; `partition` -1: the key decides. Only after `view` is set."""
        if self._openings is not None:
            with self._lock:
                if self._has_sent_first(number, record, partition):
                    return
        self._produce(number, record, partition)

    def _has_sent_first(self, number: int, record: Record, partition: int) -> bool:
        """Sends a record, or queues it after the first to its partition; False where each partition has stored one."""
        openings = self._openings
        if openings is None:
            return False
        if partition < 0:
            partition = openings.partition_for(record.key)
        if openings.admits(partition, (number, record)) and not self._produce(number, record, partition):
            self._answered(partition, is_stored=False)
        return True

    def _produce(self, number: int, record: Record, partition: int) -> bool:
        """Passes a record to the producer; returns whether it was accepted, otherwise it is refused."""
        try:
            self._producer.produce(
                self._options.topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers) if record.headers else None,
                partition=partition,
                timestamp=record.timestamp_ms or 0,
                on_delivery=partial(self._delivered, number),
            )
            return True
        except BufferError:
            self._refuse(number, Refusal(RefusalKind.BLOCKED, "", "the producer's queue is full"))
        except KafkaException as error:
            found: KafkaError = error.args[0]
            if found.code() == KafkaError.MSG_SIZE_TOO_LARGE and self.view is not None:
                text = f"topic '{self._options.topic}' accepts records of {self.view.message_bytes} bytes at most"
                self._refuse(number, Refusal(RefusalKind.MESSAGE, found.name(), text, "MessageTooLarge"))
            else:
                self._refuse(number, refusal_of(found, self._options.topic))
        except (TypeError, ValueError) as error:  # e.g. the name of a header is not text
            self._refuse(
                number, Refusal(RefusalKind.MESSAGE, "", f"it cannot be converted to a record: {error}", "Malformed")
            )
        return False

    def take(self) -> tuple[list[int], list[Answer]]:
        """The numbers of the records that were accepted, and refusals."""
        accepted = [self._accepted.popleft() for _ in range(len(self._accepted))]
        return accepted, [self._refused.popleft() for _ in range(len(self._refused))]

    def refuse(self, number: int, refusal: Refusal) -> None:
        """A record could not be created."""
        self._refuse(number, refusal)

    def stop(self) -> None:
        """Ends it; unanswered records are dropped."""
        with (
            self._lock
        ):  # records that wait for their partition's first one are sent before the queue is emptied, or not at all
            self._stops = True
        producer = self._producer  # the thread removes it as soon as it has seen `_stops`
        if producer is not None:
            with contextlib.suppress(KafkaException):
                producer.purge(in_queue=True, in_flight=True, blocking=False)

    def _refuse(self, number: int, refusal: Refusal) -> None:
        self._refused.append(Answer(number, refusal))
        self._wake()

    # ---- the thread

    def run(self) -> None:
        """Connects, and serves answers until it is stopped."""
        try:
            view = describe_topic(self._options, self._options.topic)
            producer = Producer(self._settings(view))
        except IsthmusError as error:
            self._lose(Refusal(RefusalKind.UNKNOWN if may_pass(error) else RefusalKind.FATAL, error.code, str(error)))
            return
        except KafkaException as error:
            self._lose(_lasting(error_of(error.args[0], self._options.topic)))
            return
        except Exception as error:  # noqa: BLE001 - the owner must be told of any error
            self._lose(Refusal(RefusalKind.UNKNOWN, "", f"{type(error).__name__}: {error}"))
            return
        self._openings = PartitionOpenings(view.partitions)
        self._producer, self.view = producer, view
        self._wake()
        while not self._stops:
            self._poll(producer, POLL_SECONDS)
        self._poll(producer, 0)
        self._producer = None  # its threads end with it, here

    def _poll(self, producer: Any, seconds: float) -> None:
        """Takes answers. An exception of a callback is raised here, and an answer may be missing then (I1): the connection is unusable."""
        try:
            if producer.poll(seconds):
                self._wake()
        except Exception as error:  # noqa: BLE001 - as above; the thread continues until the owner has closed the producer
            if not self._stops:
                self._lose(Refusal(RefusalKind.UNKNOWN, "", f"{type(error).__name__}: {error}"))

    def _settings(self, view: TopicView) -> dict[str, Any]:
        limit = min(max(view.message_bytes, 1000), 1_000_000_000)
        return {
            "linger.ms": 1,
            "batch.size": min(limit, 1_000_000),
            "message.max.bytes": limit,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            **settings(self._options),
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": 0,
            "partitioner": "murmur2_random",  # the same as in `partition_opening`
            "error_cb": self._on_error,
        }

    def _delivered(self, number: int, error: KafkaError | None, message: Any) -> None:
        is_stored = error is None and message.offset() is not None
        if is_stored:
            self._accepted.append(number)
        elif not self._stops:
            self._refused.append(
                Answer(number, _unnamed(message) if error is None else refusal_of(error, self._options.topic))
            )
        if self._openings is not None:
            with self._lock:
                if not self._stops:
                    self._answered(message.partition(), is_stored=is_stored)

    def _answered(self, partition: int, *, is_stored: bool) -> None:
        """Sends the records that waited for an answer of the partition, under the lock: new ones follow them."""
        openings = self._openings
        if openings is None:
            return
        waiting = openings.answered(partition, is_stored=is_stored)
        for number, record in waiting:
            if not self._produce(number, record, partition) and not is_stored:
                waiting += openings.answered(partition, is_stored=False)
        if openings.is_over:
            self._openings = None

    def _on_error(self, error: KafkaError) -> None:
        made = error_of(error, self._options.topic, self._options.bootstrap_servers)
        self.trouble = str(made)
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._lose(Refusal(RefusalKind.UNKNOWN, error.name(), f"the producer has failed: {made}"))
        elif not made.retryable:
            self._lose(_lasting(made))

    def _lose(self, refusal: Refusal) -> None:
        self.lost = self.lost or refusal
        self._wake()


def _unnamed(message: Any) -> Refusal:
    """The refusal of a record that librdkafka reports as stored because a later one was."""
    text = f"topic '{message.topic()}', partition {message.partition()}: the cluster stored a later record, and returned no offset of this one"
    return Refusal(RefusalKind.UNKNOWN, "", text)


def _lasting(error: IsthmusError) -> Refusal:
    return Refusal(RefusalKind.FATAL, error.code, str(error))
