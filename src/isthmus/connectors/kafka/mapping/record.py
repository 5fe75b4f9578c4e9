"""A Kafka record, and the names of the headers and properties that the mapping adds (`mapping`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = [
    "AMQP_HEADER",
    "DEAD_LETTER_DESCRIPTION",
    "DEAD_LETTER_PLACE",
    "DEAD_LETTER_REASON",
    "HEADERS_PROPERTY",
    "KAFKA_PARTITION",
    "KEY_CHARACTERS",
    "KEY_PROPERTY",
    "PARTITION_KEY",
    "Header",
    "Record",
]

DEAD_LETTER_REASON = "isthmus-dead-letter-reason"
DEAD_LETTER_DESCRIPTION = "isthmus-dead-letter-description"
DEAD_LETTER_PLACE = "isthmus-dead-letter-source"
AMQP_HEADER = "isthmus-amqp"
KEY_PROPERTY = "isthmus-kafka-key"
HEADERS_PROPERTY = "isthmus-kafka-headers"
KAFKA_PARTITION = "x-opt-kafka-partition"
PARTITION_KEY = "x-opt-partition-key"
# Azure Service Bus: the limit of a PartitionKey and of a SessionId.
KEY_CHARACTERS = 128

Header = tuple[str, bytes | None]


class Record(NamedTuple):
    """A record.

    Attributes:
        value: None for a tombstone.
        key: None where there is none.
        headers: in their order; names may repeat.
        timestamp_ms: None where there is none.
        partition: the partition from which it was read; None where it was not read.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    timestamp_ms: int | None = None
    partition: int | None = None
