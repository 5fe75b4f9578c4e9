"""The frames and methods of AMQP 0-9-1, as far as the connector writes them, and the parsing of their fields.

What it is: bytes, without a connection. What it is not: a complete codec: transactions, `basic.get` and methods that only a server sends are
missing. Specification: AMQP 0-9-1, 2.3.5 (frames) and 4.2; class and method numbers from its machine-readable part; RabbitMQ's extensions
`confirm.select`, `basic.nack`, `connection.blocked` and `consumer cancel notification`.
"""

from __future__ import annotations

import struct

from isthmus.amqp.types import Int
from isthmus.connectors.rabbitmq.protocol import table

__all__ = [
    "BASIC",
    "BODY",
    "FRAME_END",
    "HEADER",
    "HEARTBEAT",
    "HEARTBEAT_FRAME",
    "METHOD",
    "PROTOCOL_HEADER",
    "M",
    "content_frames",
    "largest_body",
    "long_text",
    "method",
    "publish_method",
    "read_close",
    "short",
    "short_at",
]

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END = b"\xce"
PROTOCOL_HEADER = b"AMQP\0\0\x09\x01"
HEARTBEAT_FRAME = b"\x08\0\0\0\0\0\0\xce"
BASIC = 60
SHORT_BYTES = 255
_HEAD = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQ")
# The size of a frame's header and end.
_OVERHEAD = 8


class M:
    """Methods: class number, then method number, in four bytes."""

    CONNECTION_START = 10, 10
    CONNECTION_START_OK = 10, 11
    CONNECTION_SECURE = 10, 20
    CONNECTION_TUNE = 10, 30
    CONNECTION_TUNE_OK = 10, 31
    CONNECTION_OPEN = 10, 40
    CONNECTION_OPEN_OK = 10, 41
    CONNECTION_CLOSE = 10, 50
    CONNECTION_CLOSE_OK = 10, 51
    CONNECTION_BLOCKED = 10, 60
    CONNECTION_UNBLOCKED = 10, 61
    CHANNEL_OPEN = 20, 10
    CHANNEL_OPEN_OK = 20, 11
    CHANNEL_CLOSE = 20, 40
    CHANNEL_CLOSE_OK = 20, 41
    EXCHANGE_DECLARE = 40, 10
    EXCHANGE_DECLARE_OK = 40, 11
    QUEUE_DECLARE = 50, 10
    QUEUE_DECLARE_OK = 50, 11
    BASIC_QOS = 60, 10
    BASIC_QOS_OK = 60, 11
    BASIC_CONSUME = 60, 20
    BASIC_CONSUME_OK = 60, 21
    BASIC_CANCEL = 60, 30
    BASIC_CANCEL_OK = 60, 31
    BASIC_PUBLISH = 60, 40
    BASIC_RETURN = 60, 50
    BASIC_DELIVER = 60, 60
    BASIC_ACK = 60, 80
    BASIC_REJECT = 60, 90
    BASIC_NACK = 60, 120
    CONFIRM_SELECT = 85, 10
    CONFIRM_SELECT_OK = 85, 11


_PASSIVE = 1
_EXCLUSIVE = 4


def short(text: str) -> bytes:
    """A short string.

    Raises:
        ValueError: it has more than 255 bytes.
    """
    raw = text.encode()
    if len(raw) > SHORT_BYTES:
        raise ValueError(f"'{text[:40]}…' has {len(raw)} bytes; AMQP 0-9-1 allows {SHORT_BYTES}")
    return b"%c%b" % (len(raw), raw)


def long_text(raw: bytes) -> bytes:
    """A long string."""
    return struct.pack(">I", len(raw)) + raw


def short_at(raw: bytes, at: int) -> tuple[str, int]:
    """The short string that begins at `at`, and its end."""
    stop = at + 1 + raw[at]
    return raw[at + 1 : stop].decode(errors="replace"), stop


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """A frame."""
    return b"%b%b\xce" % (_HEAD.pack(kind, channel, len(payload)), payload)


def method(channel: int, which: tuple[int, int], arguments: bytes = b"") -> bytes:
    """A method in its frame."""
    return frame(METHOD, channel, struct.pack(">HH", *which) + arguments)


def publish_method(channel: int, exchange: str, routing_key: str) -> bytes:
    """`basic.publish`, mandatory."""
    return method(channel, M.BASIC_PUBLISH, b"\0\0" + short(exchange) + short(routing_key) + b"\1")


def largest_body(frame_bytes: int) -> int:
    """The largest body in one frame."""
    return frame_bytes - _OVERHEAD


def content_frames(channel: int, properties: bytes, body: bytes, frame_bytes: int) -> list[bytes]:
    """Header and body of a content; `properties` with their flags, `frame_bytes` as negotiated."""
    size = len(body)
    head = _HEAD.pack(HEADER, channel, 12 + len(properties))
    parts = [b"%b%b%b\xce" % (head, _CONTENT.pack(BASIC, 0, size), properties)]
    largest = largest_body(frame_bytes)
    if size <= largest:
        if size:
            parts += (_HEAD.pack(BODY, channel, size), body, FRAME_END)
        return parts
    for at in range(0, size, largest):
        piece = body[at : at + largest]
        parts += (_HEAD.pack(BODY, channel, len(piece)), piece, FRAME_END)
    return parts


def declare_passive(channel: int, queue: str) -> bytes:
    """Queries whether a queue exists, and its number of messages."""
    return method(channel, M.QUEUE_DECLARE, b"\0\0" + short(queue) + bytes((_PASSIVE,)) + b"\0\0\0\0")


def declare_exchange_passive(channel: int, exchange: str) -> bytes:
    """Queries whether an exchange exists."""
    arguments = b"\0\0" + short(exchange) + short("direct") + bytes((_PASSIVE,)) + b"\0\0\0\0"
    return method(channel, M.EXCHANGE_DECLARE, arguments)


def qos(channel: int, count: int) -> bytes:
    """Sets how many unacknowledged messages each later consumer may have."""
    return method(channel, M.BASIC_QOS, struct.pack(">IHB", 0, count, 0))


def consume(channel: int, queue: str, tag: str, *, exclusive: bool) -> bytes:
    """Starts to consume, with acknowledgements and the default priority, which a stream refuses: it would deliver only later messages."""
    fields = table.encode([("x-priority", *table.field_of(Int(0)))])
    flags = _EXCLUSIVE if exclusive else 0
    return method(channel, M.BASIC_CONSUME, b"\0\0" + short(queue) + short(tag) + bytes((flags,)) + fields)


def consume_stream(channel: int, queue: str, tag: str, offset: int | str) -> bytes:
    """Starts to read a stream from an offset on, or from its chunk `last`."""
    fields = table.encode([("x-stream-offset", *table.field_of(offset))])
    return method(channel, M.BASIC_CONSUME, b"\0\0" + short(queue) + short(tag) + b"\0" + fields)


def cancel(channel: int, tag: str) -> bytes:
    """Stops consuming."""
    return method(channel, M.BASIC_CANCEL, short(tag) + b"\0")


def ack(channel: int, tag: int, multiple: bool) -> bytes:
    """Acknowledges a delivery, or all up to it."""
    return _ACK.pack(METHOD, channel, 13, 60, 80, tag, multiple, 0xCE)


def reject(channel: int, tag: int, *, requeue: bool) -> bytes:
    """Rejects a delivery."""
    return _ACK.pack(METHOD, channel, 13, 60, 90, tag, requeue, 0xCE)


def requeue(channel: int, tag: int) -> bytes:
    """Requeues a delivery. `basic.reject` would do so, too, but count as a failed delivery in quorum queues of RabbitMQ 4.3 and later."""
    return _ACK.pack(METHOD, channel, 13, 60, 120, tag, 2, 0xCE)


_ACK = struct.Struct(">BHIHHQBB")


def close_method(channel: int) -> bytes:
    """`connection.close` on channel 0, else `channel.close`."""
    which = M.CHANNEL_CLOSE if channel else M.CONNECTION_CLOSE
    return method(channel, which, struct.pack(">H", 200) + short("") + b"\0\0\0\0")


def read_close(arguments: bytes) -> tuple[int, str]:
    """Reply code and reply text of a close or a return."""
    return int(struct.unpack_from(">H", arguments)[0]), short_at(arguments, 2)[0]
