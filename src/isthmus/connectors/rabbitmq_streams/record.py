"""A record of a stream: its offset, its digest, and its message.

What it is: parsing RabbitMQ's deliveries from a stream. Specification: RabbitMQ documentation, "Streams and Superstreams" (consuming): the header
`x-stream-offset` of each message. What it is not: the mapping of messages (`isthmus.connectors.rabbitmq.mapping`).

Invariants:
    I1. The digest of a record is the same each time that it is read; it excludes the headers, to which brokers add their own.
    I2. Two messages that come under one offset have different MessageIds, if these are made here, unless their digests are equal.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, NamedTuple

from isthmus.amqp.codec import CodecError
from isthmus.connectors.kafka.mapping.message_id import MESSAGE_ID_CHARACTERS
from isthmus.connectors.rabbitmq.mapping.mapping import to_message
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table, wire
from isthmus.connectors.rabbitmq.protocol.connection import Content
from isthmus.connectors.rabbitmq.protocol.property import Record

__all__ = ["OFFSET_HEADER", "StreamEvent", "StreamReader", "delivered", "digest_of", "offset_of"]

OFFSET_HEADER = "x-stream-offset"
_DIGEST_BYTES = 12
_SHORT_BYTES = 255
_ID_DIGITS = 8
_TAG = struct.Struct(">Q?")


class StreamEvent(NamedTuple):
    """A record as a message: its number in the stream, its digest, and the message."""

    sequence: int
    offset: str
    message: bytes


class StreamReader:
    """Reads the records of one stream.

    Args:
        stream: its name.
        gives_ids: whether messages without MessageId get one made of their offset and digest.
    """

    def __init__(self, stream: str, *, gives_ids: bool = False) -> None:
        self._stream, self._gives_ids = stream, gives_ids

    def read(self, partition: int, payload: tuple[int, Record]) -> StreamEvent:
        """The message of a record.

        Raises:
            CodecError: it is not a record.
        """
        offset, record = payload
        try:
            digest = digest_of(record)
            if self._gives_ids:
                found = props.read(record.properties)
                if not found.message_id:
                    named = found._replace(message_id=_made_id(self._stream, offset, digest))
                    record = record._replace(properties=props.write(named))
            return StreamEvent(offset, digest, to_message(record, offset))
        except (table.TableError, IndexError, KeyError, ValueError, struct.error) as error:
            raise CodecError(f"the record at offset {offset} cannot be read: {error}") from None


def _made_id(stream: str, offset: int, digest: str) -> bytes:
    """The MessageId of the message at an offset; a long stream's name is truncated. The digest keeps a target that detects duplicates from
    dropping the messages of a stream that was created again, or has lost its end: it gives their offsets to others.
    """
    suffix = f"/{offset}-{digest[:_ID_DIGITS]}"
    name = stream[: MESSAGE_ID_CHARACTERS - len(suffix)].encode()[: _SHORT_BYTES - len(suffix)]
    return name.decode(errors="ignore").encode() + suffix.encode()


def delivered(content: Content) -> tuple[int, Record]:
    """The delivery tag and the record of a `basic.deliver`."""
    arguments, properties, body = content
    at = 1 + arguments[0]  # after the consumer tag
    tag: int = _TAG.unpack_from(arguments, at)[0]
    exchange, at = wire.short_at(arguments, at + _TAG.size)
    return tag, Record(body, properties, exchange, wire.short_at(arguments, at)[0])


def offset_of(record: Record) -> int | None:
    """The offset of a delivered record; None: it has none."""
    for name, kind, raw in props.read(record.properties).headers:
        if name == OFFSET_HEADER:
            value: Any = table.value_of(kind, raw)
            return int(value) if isinstance(value, int) else None
    return None


def digest_of(record: Record) -> str:
    """The digest that distinguishes a record from another one at the same offset."""
    found = props.read(record.properties)
    made = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in (record.exchange, record.routing_key, found.message_id, found.correlation_id, found.timestamp):
        text = repr(part).encode()
        made.update(b"%d:%b" % (len(text), text))
    made.update(record.body)
    return made.hexdigest()
