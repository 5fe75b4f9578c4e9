"""The producer of one write.

What it is: records passed to an idempotent producer, and the wait for their acknowledgements. Calls block. What it is not: the records
(`row`).
Specification: librdkafka documentation ("Idempotent Producer").

Invariants:
    I1. After `finish` every record that was sent is acknowledged; otherwise `send` or `finish` has raised.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from isthmus.connectors.kafka.cluster import ONE_BY_ONE, describe_topic, error_of, settings
from isthmus.connectors.kafka.spark.option import WriteOptions
from isthmus.errors import ConnectionLostError, InvalidArgumentError

__all__ = ["Writing"]

_WAIT_SECONDS = 0.1
# Longer than a record may wait: by then librdkafka has reported each.
_GRACE_SECONDS = 10.0


class Writing:
    """Writes to one topic.

    Args:
        options: of the write.

    Raises:
        EntityNotFoundError: the topic does not exist.
        IsthmusError: no answer, or a refusal.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._failed: KafkaError | None = None
        view = describe_topic(options, options.topic)
        self._partitions = view.partitions
        try:
            self._producer = Producer(
                {
                    "linger.ms": 5,
                    "message.max.bytes": min(max(view.message_bytes, 1000), 1_000_000_000),
                    **settings(options),
                    **ONE_BY_ONE,
                    "acks": "all",
                    "message.timeout.ms": round(options.timeout_seconds * 1000),
                    "partitioner": "murmur2_random",
                }
            )
        except KafkaException as error:
            raise error_of(error.args[0], options.topic, options.bootstrap_servers) from None

    def send(self, record: dict[str, Any]) -> None:
        """Queues a record; waits while the producer's queue is full.

        Raises:
            IsthmusError: this record, or an earlier one, cannot be written.
        """
        if not -1 <= record.get("partition", -1) < self._partitions:
            raise InvalidArgumentError(
                f"topic '{self._options.topic}' has {self._partitions} partitions; column 'partition' contains {record['partition']}"
            )
        while True:
            self._check()
            try:
                self._producer.produce(self._options.topic, on_delivery=self._delivered, **record)
            except BufferError:
                self._producer.poll(_WAIT_SECONDS)
                continue
            except KafkaException as error:
                raise error_of(error.args[0], self._options.topic, self._options.bootstrap_servers) from None
            self._producer.poll(0)
            return

    def finish(self) -> None:
        """Waits for all acknowledgements.

        Raises:
            IsthmusError: a record was not acknowledged.
        """
        left = self._producer.flush(self._options.timeout_seconds + _GRACE_SECONDS)
        self._check()
        if left:
            raise ConnectionLostError(f"topic '{self._options.topic}': {left} records were not acknowledged")

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None and message.offset() is None:
            error = KafkaError(KafkaError._TIMED_OUT, "no offset was returned")
        self._failed = self._failed or error

    def _check(self) -> None:
        if self._failed is not None:
            raise error_of(self._failed, self._options.topic, self._options.bootstrap_servers)
