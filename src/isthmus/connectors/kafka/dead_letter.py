"""The topic for messages that are set aside at a Kafka source.

What it is: the records of such messages, with the reason in headers, and which of them the cluster has acknowledged. What it is not:
the commit: the offset of a record that is set aside is committed after its acknowledgement (`consumer`).

Invariants:
    I1. A position is reported as done only after the cluster has acknowledged its record.
    I2. Messages are kept only while they are neither settled nor released.
    I3. A refusal of the topic is reported, and the record is sent again afterwards.
    I4. Positions of a partition that was created again are not reported any more: they name other records.
    I5. `is_full` stops the source while many records are not acknowledged (`copy_limit`).
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

from confluent_kafka import KafkaError, KafkaException, Producer

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.amqp.copy_limit import is_full
from isthmus.connectors.kafka.cluster import ONE_BY_ONE, error_of, settings
from isthmus.connectors.kafka.mapping.mapping import to_record
from isthmus.connectors.kafka.mapping.record import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_PLACE, DEAD_LETTER_REASON
from isthmus.connectors.kafka.option import SourceOptions

__all__ = ["DeadLetterTopic"]

FINISH_SECONDS = 3.0
# The maximum of librdkafka's setting.
LARGEST_BYTES = 1_000_000_000


class _Aside(NamedTuple):
    """A message to set aside; `remakes`: how often its partition had been created again by then."""

    position: int
    disposition: Disposition
    payload: bytes
    remakes: int


class DeadLetterTopic:
    """The producer, created when it is first needed. `keep`, `forget` and `add` are called under the lock passed to `serve`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._kept: dict[int, bytes] = {}
        self._waiting: deque[_Aside] = deque()
        self._remakes: Counter[int] = Counter()
        self._done: list[int] = []
        self._added = self._added_bytes = 0
        self._stored = self._stored_bytes = 0  # of those that were added; counted by the thread that calls `serve`
        self._in_flight = 0
        self._producer: Any = None
        self._failed: KafkaError | None = None

    def keep(self, positions: Sequence[int], payloads: Sequence[bytes]) -> None:
        """Messages were delivered."""
        self._kept.update(zip(positions, payloads, strict=True))

    def forget(self, first: int, last: int) -> None:
        """Messages were settled or released."""
        if last - first < len(self._kept):
            for position in range(first, last + 1):
                self._kept.pop(position, None)
        else:
            for position in [each for each in self._kept if first <= each <= last]:
                del self._kept[position]

    def add(self, first: int, last: int, disposition: Disposition) -> None:
        """Messages are to be set aside."""
        for position in sorted(each for each in self._kept if first <= each <= last):
            remakes = self._remakes[position >> PARTITION_SHIFT]
            payload = self._kept.pop(position)
            self._waiting.append(_Aside(position, disposition, payload, remakes))
            self._added += 1
            self._added_bytes += len(payload)

    @property
    def is_full(self) -> bool:
        """Whether so many records are not acknowledged that the source must deliver nothing more."""
        return is_full(self._added - self._stored, self._added_bytes - self._stored_bytes)

    def disown(self, partitions: Collection[int]) -> None:
        """Partitions were created again (I4); their messages are sent nevertheless."""
        for number in partitions:
            self._remakes[number] += 1
        for position in [each for each in self._kept if each >> PARTITION_SHIFT in partitions]:
            del self._kept[position]

    def serve(self, lock: threading.Condition) -> list[int]:
        """Sends waiting messages; returns the positions that are done.

        Raises:
            IsthmusError: the topic refuses a record; unstored records are sent again by the next call.
        """
        if self._producer is not None and self._in_flight:
            self._producer.poll(0)
        failed, self._failed = self._failed, None
        if failed is not None:
            self._refused(failed)
        with lock:
            waiting, self._waiting = self._waiting, deque()
        try:
            while waiting and self._send(waiting[0]):
                waiting.popleft()
        finally:
            with lock:
                self._waiting.extendleft(reversed(waiting))
        done, self._done = self._done, []
        return done

    def _refused(self, error: KafkaError) -> NoReturn:
        if error.fatal() or error.code() == KafkaError._FATAL:  # it accepts nothing any more
            self.finish()
            self._producer = None
        raise error_of(error, self._options.dead_letter_topic)

    def finish(self) -> None:
        """Waits for acknowledgements, for a while."""
        if self._producer is not None:
            self._producer.flush(FINISH_SECONDS)

    def _send(self, aside: _Aside) -> bool:
        """Sends a record; returns whether there is room for it."""
        if self._producer is None:
            # The topic decides what is too large; librdkafka's own limit is below the size that a source may read.
            limits = {"message.max.bytes": LARGEST_BYTES}
            self._producer = Producer({**limits, **settings(self._options), **ONE_BY_ONE})
        position, disposition = aside.position, aside.disposition
        record = to_record(aside.payload)
        origin = f"{self._options.topic}/{position >> PARTITION_SHIFT}/{position & (1 << PARTITION_SHIFT) - 1}"
        reasons = (
            (DEAD_LETTER_REASON, disposition.reason),
            (DEAD_LETTER_DESCRIPTION, disposition.description),
            (DEAD_LETTER_PLACE, origin),
        )
        self._in_flight += 1
        try:
            self._producer.produce(
                self._options.dead_letter_topic,
                value=record.value,
                key=record.key,
                headers=[*record.headers, *((name, text.encode()) for name, text in reasons)],
                timestamp=record.timestamp_ms or 0,
                on_delivery=partial(self._delivered, aside),
            )
        except BufferError:
            self._in_flight -= 1
            return False
        except KafkaException as error:
            self._in_flight -= 1
            self._refused(error.args[0])
        return True

    def _delivered(self, aside: _Aside, error: KafkaError | None, message: Any) -> None:
        self._in_flight -= 1
        if error is None and message.offset() is not None:
            self._stored += 1
            self._stored_bytes += len(aside.payload)
            if aside.remakes == self._remakes[aside.position >> PARTITION_SHIFT]:
                self._done.append(aside.position)
        else:
            self._failed = self._failed or error or KafkaError(KafkaError._TIMED_OUT, "no offset was returned")
            self._waiting.append(aside)
