"""A record of a consumer as the message of a route.

What it is: record, key and MessageId according to the source's options, then the mapping. What it is not: the mapping (`mapping`), or the
consumer.
"""

from __future__ import annotations

from typing import Any, Self

from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.kafka.mapping.mapping import Record, to_message
from isthmus.connectors.kafka.mapping.message_id import MessageIds
from isthmus.connectors.kafka.option import SourceOptions

__all__ = ["RecordReader"]

_NO_TIMESTAMP = 0


class RecordReader:
    """Reads the records of one topic.

    Args:
        topic: its name.
        gives_ids: whether messages without MessageId get one made of their position.
        names_partition: whether records without key get one that names their partition.
    """

    def __init__(self, topic: str, *, gives_ids: bool, names_partition: bool) -> None:
        self._ids = MessageIds(topic) if gives_ids else None
        self._names_partition = names_partition

    @classmethod
    def of(cls, options: SourceOptions) -> Self:
        """A reader with a source's options."""
        return cls(
            options.topic,
            gives_ids=options.message_ids == "offset",
            names_partition=options.keyless == "partition",
        )

    def read(self, found: Any, *, with_headers: bool = True) -> tuple[int, bytes]:
        """Position and message of a record of confluent-kafka.

        Raises:
            Exception: the client cannot read its headers: the name of one is not UTF-8 text.
        """
        partition = found.partition()
        position = partition << PARTITION_SHIFT | found.offset()
        kind, timestamp_ms = found.timestamp()
        key = found.key()
        if key is None and self._names_partition:
            key = b"partition-%d" % partition
        record = Record(
            found.value(),
            key,
            (found.headers() or ()) if with_headers else (),
            timestamp_ms if kind != _NO_TIMESTAMP else None,
            partition,
        )
        message = to_message(record, position)
        return position, message if self._ids is None else self._ids.add(message, position)
