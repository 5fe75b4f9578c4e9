"""What makes a consumer lose its source: errors of librdkafka that end it, and offsets that begin again."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError

from isthmus.connectors.kafka.cluster import KafkaFailureError

__all__ = ["began_again", "cannot_be_read", "is_final"]

# After these a consumer of librdkafka does nothing any more. Its error callback tells a fatal error by this code, without `fatal()`.
_FENCED = {KafkaError.FENCED_INSTANCE_ID, KafkaError._FENCED, KafkaError._FATAL}


def is_final(error: KafkaError) -> bool:
    """Whether the consumer that tells of an error does nothing any more."""
    return bool(error.fatal()) or error.code() in _FENCED


def cannot_be_read(topic: str, what: str) -> KafkaFailureError:
    """A record that stops its route, since there is nowhere to set it aside."""
    hint = "name a dead_letter_topic at the source, or have its producer write another"
    return KafkaFailureError(f"topic '{topic}', {what}; {hint}")


def began_again(topic: str, starts: Mapping[int, int]) -> KafkaFailureError:
    """Offsets of partitions began again at these."""
    partition, offset = next(iter(starts.items()))
    return KafkaFailureError(
        f"topic '{topic}', partition {partition}: offsets begin again at {offset}; the topic was made again, or its log was truncated. "
        "What is there is read from there"
    )
