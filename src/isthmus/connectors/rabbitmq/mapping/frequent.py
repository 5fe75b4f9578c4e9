"""The frequent forms of both kinds of message, encoded and decoded in one step.

What it is: properties with headers that are short texts, integers and truth values, persistent, with neither expiration nor user-id nor app-id; and
the message of AMQP 1.0 that is made of such, with any provenance that a route has added. All others take the general path (`mapping`,
`outward`), with equal results. What it is not: another mapping.

Invariants:
    I1. A message that deviates from this form in any byte is not read here: the result is None.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from isthmus.amqp import section
from isthmus.amqp.codec import value_end
from isthmus.connectors.rabbitmq.mapping.name import (
    AMQP_HEADER,
    BROKER_HEADERS,
    EXCHANGE,
    NOTE_PROPERTY,
    ROUTING_HEADERS,
    ROUTING_KEY,
)
from isthmus.connectors.rabbitmq.protocol.property import Record
from isthmus.message.name import BROKER_ANNOTATIONS

__all__ = ["NUMBERS_BYTES", "SEQUENCE", "TIME", "sections_of", "to_frequent"]

SEQUENCE = b"\xa3\x15x-opt-sequence-number\x81"
TIME = b"\xa3\x13x-opt-enqueued-time\x83"
NUMBERS_BYTES = len(SEQUENCE) + 8 + len(TIME) + 8
_U32_AT = struct.Struct(">I").unpack_from
_U32 = struct.Struct(">I").pack
_I64 = struct.Struct(">q")
_I64_AT, _I64_PACK = _I64.unpack_from, _I64.pack
_U64 = struct.Struct(">Q").pack
_MAP32 = struct.Struct(">4sII").pack
_RESERVED = frozenset(each.encode() for each in (AMQP_HEADER, NOTE_PROPERTY, *BROKER_HEADERS, *ROUTING_HEADERS))
# content-type, content-encoding, headers, delivery-mode, priority, correlation-id, reply-to, message-id, timestamp, type
_KNOWN_FLAGS = 0xFEE0
_PERSISTENT_FLAG = 0x1000
_DELIVERY_COUNT, _ZERO = b"x-delivery-count", bytes(8)
_NULL = b"\x40"
_HEADER = b"\0Sp\xc0\x02\x01\x41"


def sections_of(raw: bytes) -> tuple[bytes, bytes] | None:
    """The sections made of encoded properties: the header, and the sections of properties and application properties."""
    flags = raw[0] << 8 | raw[1]
    if flags & ~_KNOWN_FLAGS or not flags & _PERSISTENT_FLAG:
        return None
    at = 2
    content_type = content_encoding = _NULL
    if flags & 0x8000:
        stop = at + 1 + raw[at]
        if not raw[at + 1 : stop].isascii():
            return None
        content_type = b"\xa3" + raw[at:stop]
        at = stop
    if flags & 0x4000:
        stop = at + 1 + raw[at]
        if not raw[at + 1 : stop].isascii():
            return None
        content_encoding = b"\xa3" + raw[at:stop]
        at = stop
    own = b""
    if flags & 0x2000:
        stop = at + 4 + _U32_AT(raw, at)[0]
        made = _own(raw, at + 4, stop)
        if made is None:
            return None
        own, at = made, stop
    if raw[at] != 2:
        return None
    at += 1
    header = _HEADER
    if flags & 0x0800:
        priority = raw[at]
        if priority == 4:
            return None
        header = b"\0Sp\xc0\x04\x02\x41\x50%c" % priority
        at += 1
    correlation_id = reply_to = message_id = created = subject = _NULL
    if flags & 0x0400:
        stop = at + 1 + raw[at]
        if not raw[at + 1 : stop].isascii():
            return None
        correlation_id = b"\xa1" + raw[at:stop]
        at = stop
    if flags & 0x0200:
        stop = at + 1 + raw[at]
        if not raw[at + 1 : stop].isascii():
            return None
        reply_to = b"\xa1" + raw[at:stop]
        at = stop
    if flags & 0x0080:
        stop = at + 1 + raw[at]
        if not raw[at + 1 : stop].isascii():
            return None
        message_id = b"\xa1" + raw[at:stop]
        at = stop
    if flags & 0x0040:
        seconds = int.from_bytes(raw[at : at + 8], "big")
        if seconds > 1 << 40:
            return None
        created = b"\x83" + _I64_PACK(seconds * 1000)
        at += 8
    if flags & 0x0020:
        stop = at + 1 + raw[at]
        if not raw[at + 1 : stop].isascii():
            return None
        subject = b"\xa1" + raw[at:stop]
        at = stop
    if at != len(raw):
        return None
    fields = (
        message_id,
        _NULL,
        _NULL,
        subject,
        reply_to,
        correlation_id,
        content_type,
        content_encoding,
        _NULL,
        created,
    )
    count = 10
    while count and fields[count - 1] is _NULL:
        count -= 1
    if not count:
        return header, own
    joined = b"".join(fields[:count])
    if len(joined) < 255:
        return header, b"\0Ss\xc0%c%c%b%b" % (len(joined) + 1, count, joined, own)
    return header, b"\0Ss\xd0%b%b%b%b" % (_U32(len(joined) + 4), _U32(count), joined, own)


def _own(raw: bytes, at: int, stop: int) -> bytes | None:
    """The application properties of a table."""
    parts = []
    names = set()
    while at < stop:
        begin = at + 1 + raw[at]
        name = raw[at + 1 : begin]
        kind = raw[begin]
        value = begin + 1
        if name == _DELIVERY_COUNT and kind == 0x6C and raw[value : value + 8] == _ZERO:
            at = value + 8  # quorum queues before RabbitMQ 3.12 write it at the first delivery, too
            continue
        names.add(name)
        if kind == 0x53:  # S
            size = _U32_AT(raw, value)[0]
            end = value + 4 + size
            text = raw[value + 4 : end]
            if size > 255 or not text.isascii():
                return None
            parts.append(b"\xa1%b\xa1%c%b" % (raw[at:begin], size, text))
        elif kind == 0x6C:  # l
            end = value + 8
            number = _I64_AT(raw, value)[0]
            if -128 <= number < 128:
                parts.append(b"\xa1%b\x55%c" % (raw[at:begin], number & 255))
            else:
                parts.append(b"\xa1%b\x81%b" % (raw[at:begin], raw[value:end]))
        elif kind == 0x49:  # I
            end = value + 4
            number = int.from_bytes(raw[value:end], "big", signed=True)
            if -128 <= number < 128:
                parts.append(b"\xa1%b\x54%c" % (raw[at:begin], number & 255))
            else:
                parts.append(b"\xa1%b\x71%b" % (raw[at:begin], raw[value:end]))
        elif kind == 0x74 and raw[value] < 2:  # t
            end = value + 1
            parts.append(b"\xa1%b%c" % (raw[at:begin], 0x41 if raw[value] else 0x42))
        else:
            return None
        if not name.isascii():
            return None
        at = end
    if at != stop or len(names) != len(parts) or names & _RESERVED:
        return None
    if not parts:
        return b""
    joined = b"".join(parts)
    if len(joined) < 255:
        return b"\0St\xc1%c%c%b" % (len(joined) + 1, 2 * len(parts), joined)
    return _MAP32(b"\0St\xd1", len(joined) + 4, 2 * len(parts)) + joined


# ---- the reverse direction


def to_frequent(message: bytes) -> Record | None:
    """The record of a message in this form."""
    at = 0
    priority = b""
    if message[:4] == b"\0Sp\xc0":
        at = 5 + message[4]
        found = _priority(message[:at])
        if found is None:
            return None
        priority = found
    exchange = routing_key = ""
    has_routing = False
    if message[at : at + 3] == b"\0Sr":
        if message[at + 3] == 0xD1:
            stop = at + 8 + _U32_AT(message, at + 4)[0]
            numbers = at + 12
        elif message[at + 3] == 0xC1:
            stop = at + 5 + message[at + 4]
            numbers = at + 6
        else:
            return None
        after = numbers + len(SEQUENCE) + 8
        if message.startswith(SEQUENCE, numbers) and message.startswith(TIME, after):
            routing = _routing(message[numbers + NUMBERS_BYTES : stop])
        elif stop - at <= 1024:
            routing = _routing(message[numbers:stop])
        else:
            return None
        if routing is None:
            return None
        exchange, routing_key = routing
        has_routing = True
        at = stop
    flags = _PERSISTENT_FLAG
    content_type = content_encoding = correlation_id = reply_to = message_id = timestamp = subject = b""
    if message[at : at + 3] == b"\0Ss":
        if message[at + 3] == 0xC0:
            stop, count, at = at + 5 + message[at + 4], message[at + 5], at + 6
        else:
            return None
        if count > 10:
            return None
        for index in range(count):
            code = message[at]
            if code == 0x40:
                at += 1
                continue
            end = at + 2 + message[at + 1]
            if code == 0xA1:
                text = message[at + 1 : end]
                if index == 0:
                    message_id = text
                    flags |= 0x80
                elif index == 3:
                    subject = text
                    flags |= 0x20
                elif index == 4:
                    reply_to = text
                    flags |= 0x200
                elif index == 5:
                    correlation_id = text
                    flags |= 0x400
                else:
                    return None
            elif code == 0xA3 and index == 6:
                content_type = message[at + 1 : end]
                flags |= 0x8000
            elif code == 0xA3 and index == 7:
                content_encoding = message[at + 1 : end]
                flags |= 0x4000
            elif code == 0x83 and index == 9:
                end = at + 9
                created_ms = _I64_AT(message, at + 1)[0]
                if created_ms < 0 or created_ms % 1000:
                    return None
                timestamp = _U64(created_ms // 1000)
                flags |= 0x40
            else:
                return None
            at = end
        if at != stop:
            return None
    table = b""
    if message[at : at + 3] == b"\0St":
        if message[at + 3] == 0xD1:
            stop, begin = at + 8 + _U32_AT(message, at + 4)[0], at + 12
        elif message[at + 3] == 0xC1:
            stop, begin = at + 5 + message[at + 4], at + 6
        else:
            return None
        made = _table(message, begin, stop)
        if made is None:
            return None
        if made:
            table = _U32(len(made)) + made
            flags |= 0x2000
        at = stop
    kind = message[at : at + 4]
    if kind == b"\0Su\xb0":
        body = at + 8
        size = _U32_AT(message, at + 4)[0]
    elif kind == b"\0Su\xa0":
        body = at + 5
        size = message[at + 4]
    else:
        return None
    if body + size != len(message):
        return None
    if priority:
        flags |= 0x800
    if not has_routing and subject:
        return None
    properties = b"%c%c%b%b%b\x02%b%b%b%b%b%b" % (
        flags >> 8,
        flags & 255,
        content_type,
        content_encoding,
        table,
        priority,
        correlation_id,
        reply_to,
        message_id,
        timestamp,
        subject,
    )
    return Record(message[body:], properties, exchange, routing_key)


@lru_cache(64)
def _priority(raw: bytes) -> bytes | None:
    """The priority of a header without a time to live; empty: none."""
    header = section.decode_header(raw, (0, len(raw)))
    if header.ttl_ms is not None:
        return None
    return b"" if header.priority == 4 else bytes((header.priority,))


@lru_cache(512)
def _routing(pairs: bytes) -> tuple[str, str] | None:
    """Exchange and routing key of annotations with both, and no others but a broker's."""
    raw = b"\0Sr\xd1" + struct.pack(">II", len(pairs) + 4, _count(pairs)) + pairs
    found = section.decode_map(raw, (0, len(raw)))
    exchange, routing_key = found.pop(EXCHANGE, None), found.pop(ROUTING_KEY, None)
    if not isinstance(exchange, str) or not isinstance(routing_key, str) or set(found) - BROKER_ANNOTATIONS:
        return None
    if len(exchange.encode()) > 255 or len(routing_key.encode()) > 255:
        return None
    return exchange, routing_key


def _count(pairs: bytes) -> int:
    at = count = 0
    while at < len(pairs):
        at = value_end(pairs, at)
        count += 1
    return count


def _table(raw: bytes, at: int, stop: int) -> bytes | None:
    """The fields made of application properties."""
    parts = []
    while at < stop:
        if raw[at] != 0xA1:
            return None
        begin = at + 2 + raw[at + 1]
        name = raw[at + 1 : begin]
        if name[1:] in _RESERVED:
            return None
        code = raw[begin]
        if code == 0xA1:
            end = begin + 2 + raw[begin + 1]
            parts.append(b"%bS\0\0\0%b" % (name, raw[begin + 1 : end]))
        elif code == 0x55:
            end = begin + 2
            number = raw[begin + 1]
            parts.append(b"%bl%b" % (name, _I64_PACK(number - 256 if number > 127 else number)))
        elif code == 0x81:
            end = begin + 9
            parts.append(b"%bl%b" % (name, raw[begin + 1 : end]))
        elif code == 0x54:
            end = begin + 2
            number = raw[begin + 1]
            parts.append(b"%bI%b%c" % (name, b"\xff\xff\xff" if number > 127 else b"\0\0\0", number))
        elif code == 0x71:
            end = begin + 5
            parts.append(b"%bI%b" % (name, raw[begin + 1 : end]))
        elif code in (0x41, 0x42):
            end = begin + 1
            parts.append(b"%bt%c" % (name, code == 0x41))
        else:
            return None
        at = end
    return b"".join(parts) if at == stop else None
