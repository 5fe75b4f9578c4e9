"""The frequent form of a message that is made of a record, encoded and decoded in one step.

What it is: records with a value, a timestamp, a key that is ASCII text or none, and headers of different names whose values are short
text; and the copy of such a message, which has a generated MessageId. All others take the general path (`mapping`), with equal results. What
it is not: another mapping.

Invariants:
    I1. A message that deviates from this form in any byte is not read here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from isthmus.connectors.kafka.mapping.record import (
    AMQP_HEADER,
    HEADERS_PROPERTY,
    KAFKA_PARTITION,
    KEY_CHARACTERS,
    KEY_PROPERTY,
    PARTITION_KEY,
    Header,
    Record,
)

__all__ = ["from_frequent", "to_frequent"]


def _symbol(name: str) -> bytes:
    return b"\xa3%c%b" % (len(name), name.encode())


_SEQUENCE = _symbol("x-opt-sequence-number") + b"\x81"
_TIME = _symbol("x-opt-enqueued-time") + b"\x83"
_PARTITION = _symbol(KAFKA_PARTITION) + b"\x71"
_KEY = _symbol(PARTITION_KEY) + b"\xa1"
_NUMBERS_SIZE = len(_SEQUENCE) + 8 + len(_TIME) + 8 + len(_PARTITION) + 4
_MAP_SIZE_AT = 4
_U32 = struct.Struct(">I")
_MAP32 = struct.Struct(">4sII")
_NO_NAMES = frozenset((AMQP_HEADER, KEY_PROPERTY, HEADERS_PROPERTY))
_MESSAGE_ID = "amqp-message-id"
# The note of `mapping` that a MessageId, a string, has a header.
_NOTE_OF_COPY: Header = (AMQP_HEADER, b'{"properties":{"message-id":""}}')
MADE_ID_CHARACTERS = 40
"""The length of a MessageId from `isthmus.message.made_message_id`."""


class Layout:
    """The beginning of the frequent form, for one length of keys; -1: no key."""

    def __init__(self, key_length: int) -> None:
        keyed = key_length >= 0
        key_size = len(_KEY) + 1 + key_length if keyed else 0
        front = b"\0Sr\xc1%c%c" % (1 + _NUMBERS_SIZE + key_size, 8 if keyed else 6)
        properties = 9 + 9 + (2 + key_length if keyed else 0)
        middle = b"\0Ss\xc0%c%c" % (1 + properties, 11 if keyed else 10) + b"\x40" * 9 + b"\x83"
        key = _KEY + b"%c" % key_length if keyed else b""
        group = b"\xa1%c" % key_length if keyed else b""
        length = max(key_length, 0)
        self.constants = (front + _SEQUENCE, _TIME, _PARTITION, key, middle, group)
        sizes = [len(each) for each in self.constants]
        self.struct = struct.Struct(
            f">{sizes[0]}sq{sizes[1]}sq{sizes[2]}si{sizes[3]}s{length}s{sizes[4]}sq{sizes[5]}s{length}s"
        )
        self.map_size = front[_MAP_SIZE_AT]


LAYOUTS = {length: Layout(length) for length in (-1, *range(1, KEY_CHARACTERS + 1))}
_BY_MAP_SIZE = {layout.map_size: layout for layout in LAYOUTS.values()}


def _headers(headers: Sequence[Header]) -> bytes | None:
    """Headers as a section; None where they are not of the frequent form."""
    parts: list[bytes] = []
    names: set[str] = set()
    for name, raw in headers:
        if name in _NO_NAMES or name in names:
            return None
        names.add(name)
        key = name.encode()
        if len(key) > 255 or raw is None or len(raw) > 255:
            return None
        try:
            raw.decode()
        except UnicodeDecodeError:
            return None
        parts.append(b"\xa1%c%b\xa1%c%b" % (len(key), key, len(raw), raw))
    joined = b"".join(parts)
    return _MAP32.pack(b"\0St\xd1", len(joined) + 4, 2 * len(parts)) + joined


def _record(message: bytes, layout: Layout) -> Record | None:
    """The record of a message in the frequent form; None for other messages."""
    a, _, b, _, c, partition, d, key, e, timestamp_ms, f, group = layout.struct.unpack_from(message)
    if (a, b, c, d, e, f) != layout.constants or key != group or timestamp_ms < 0 or not key.isascii():
        return None
    headers: list[Header] = []
    at = _read_headers(message, layout.struct.size, headers, _NO_NAMES)
    if at < 0:
        return None
    return Record(message[at:], key if d else None, headers, timestamp_ms, partition)


class CopyLayout:
    """The beginning of the copy of a message in the frequent form, for one length of keys; -1: no key."""

    def __init__(self, key_length: int) -> None:
        keyed = key_length >= 0
        length = max(key_length, 0)
        size = 4 + len(_PARTITION) + 4 + (len(_KEY) + 1 + length if keyed else 0)
        front = _MAP32.pack(b"\0Sr\xd1", size, 4 if keyed else 2) + _PARTITION
        key = _KEY + b"%c" % length if keyed else b""
        properties = 1 + 2 + MADE_ID_CHARACTERS + 8 + 9 + (2 + length if keyed else 0)
        middle = b"\0Ss\xc0%c%c\xa1%c" % (properties, 11 if keyed else 10, MADE_ID_CHARACTERS)
        time = b"\x40" * 8 + b"\x83"
        group = b"\xa1%c" % length if keyed else b""
        self.constants = (front, key, middle, time, group)
        sizes = [len(each) for each in self.constants]
        self.struct = struct.Struct(
            f">{sizes[0]}si{sizes[1]}s{length}s{sizes[2]}s{MADE_ID_CHARACTERS}s{sizes[3]}sq{sizes[4]}s{length}s"
        )
        self.map_size = size


_COPIES = {layout.map_size: layout for layout in map(CopyLayout, LAYOUTS)}


def _record_of_copy(message: bytes, layout: CopyLayout) -> Record | None:
    """The record of a copy of a message in the frequent form, with a MessageId that a route generated; None for other messages."""
    a, partition, b, key, c, made, d, timestamp_ms, e, group = layout.struct.unpack_from(message)
    if (
        (a, b, c, d, e) != layout.constants
        or key != group
        or timestamp_ms < 0
        or not key.isascii()
        or not made.isascii()
    ):
        return None
    headers: list[Header] = [(_MESSAGE_ID, made)]
    at = _read_headers(message, layout.struct.size, headers, _NO_NAMES)
    if at < 0:
        return None
    headers.append(_NOTE_OF_COPY)
    return Record(message[at:], key if b else None, headers, timestamp_ms, partition)


def _read_headers(message: bytes, at: int, headers: list[Header], reserved: frozenset[str]) -> int:
    """Reads application properties that are short texts; returns the offset of the contents of the one data section, -1: another form."""
    if message[at : at + 4] == b"\0St\xd1":
        stop = at + 8 + _U32.unpack_from(message, at + 4)[0]
        at += 12
        count = len(headers)
        while at < stop:
            value_at = at + 2 + message[at + 1]
            after = value_at + 2 + message[value_at + 1]
            if message[at] != 0xA1 or message[value_at] != 0xA1:
                return -1
            headers.append((message[at + 2 : value_at].decode(), message[value_at + 2 : after]))
            at = after
        names = {name for name, _ in headers}
        if at != stop or len(names) != len(headers) or (len(headers) > count and names & reserved):
            return -1
    if message[at : at + 4] != b"\0Su\xb0" or at + 8 + _U32.unpack_from(message, at + 4)[0] != len(message):
        return -1
    return at + 8


def to_frequent(record: Record, position: int) -> bytes | None:
    """The message of a record; None where the frequent form does not apply."""
    value, key, headers, timestamp_ms, partition = record
    layout = LAYOUTS.get(-1 if key is None else len(key))
    if layout is None or value is None or timestamp_ms is None or partition is None:
        return None
    shown = _headers(headers) if headers else b""
    if shown is None or (key is not None and not key.isascii()):
        return None
    a, b, c, d, e, f = layout.constants
    k = key or b""
    front = layout.struct.pack(a, position, b, timestamp_ms, c, partition, d, k, e, timestamp_ms, f, k)
    return b"%b%b\0Su\xb0%b%b" % (front, shown, _U32.pack(len(value)), value)


def from_frequent(message: bytes) -> Record | None:
    """The record of a message; None where the frequent form does not apply."""
    if len(message) <= _MAP_SIZE_AT + 4 or message[2] != 0x72:
        return None
    if message[3] == 0xD1:
        copied = _COPIES.get(_U32.unpack_from(message, _MAP_SIZE_AT)[0])
        if copied is None or len(message) < copied.struct.size + 8:
            return None
        return _record_of_copy(message, copied)
    layout = _BY_MAP_SIZE.get(message[_MAP_SIZE_AT])
    if layout is None or len(message) < layout.struct.size + 8:
        return None
    return _record(message, layout)
