"""The errors by which a source is lost: final errors of librdkafka, and offsets that begin again."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError

from isthmus.connectors.kafka.cluster import KafkaFailureError

__all__ = ["began_again", "cannot_be_decoded", "cannot_be_read", "is_final"]

# After these a consumer of librdkafka stops working. Its error callback reports a fatal error with this code, without `fatal()`.
_FENCED = {KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED, KafkaError._FATAL}


def is_final(error: KafkaError) -> bool:
    """Whether the consumer that reports an error has stopped working."""
    return bool(error.fatal()) or error.code() in _FENCED


def cannot_be_read(topic: str, what: str) -> KafkaFailureError:
    """The error for a record that stops its route, because there is no dead-letter topic."""
    hint = "name a dead_letter_topic at the source, or have its producer write another"
    return KafkaFailureError(f"topic '{topic}', {what}; {hint}")


def cannot_be_decoded(topic: str, what: str) -> KafkaFailureError:
    """The error for a batch of records that the client cannot decode."""
    hint = "restore the broker's log, or set the offset of the group behind these records"
    return KafkaFailureError(f"topic '{topic}', {what}; {hint}")


def began_again(topic: str, starts: Mapping[int, int]) -> KafkaFailureError:
    """The error for partitions whose offsets begin again at these."""
    partition, offset = next(iter(starts.items()))
    return KafkaFailureError(
        f"topic '{topic}', partition {partition}: offsets begin again at {offset}; the topic was created again, or its log was truncated. "
        "Its records are read from there"
    )
