"""The frequent form of a message that is made of a record, written and read at one go.

What it is: records with a value, a timestamp, a key that is ASCII text or none, and headers of different names whose values are short
text. All others take the general way (`mapping`), which gives the same for these. What it is not: another mapping.

Invariants:
    I1. What is not of this form, to the byte, is not read here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from isthmus.amqp import section
from isthmus.connectors.kafka.record import (
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


class Layout:
    """How the frequent form begins, for one length of keys; -1: no key."""

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
    """The record of a message that is of the frequent form; None where it is not."""
    a, _, b, _, c, partition, d, key, e, timestamp_ms, f, group = layout.struct.unpack_from(message)
    if (a, b, c, d, e, f) != layout.constants or key != group or timestamp_ms < 0 or not key.isascii():
        return None
    at, end = layout.struct.size, len(message)
    headers: list[Header] = []
    if message[at : at + 4] == b"\0St\xd1":
        stop = at + 8 + _U32.unpack_from(message, at + 4)[0]
        for name_at, value_at, after in section.map_items(message, (at, stop)):
            if message[name_at] != 0xA1 or message[value_at] != 0xA1:
                return None
            name = message[name_at + 2 : value_at].decode()
            if name in _NO_NAMES:
                return None
            headers.append((name, message[value_at + 2 : after]))
        if len(headers) != len({name for name, _ in headers}):
            return None
        at = stop
    if message[at : at + 4] != b"\0Su\xb0" or at + 8 + _U32.unpack_from(message, at + 4)[0] != end:
        return None
    return Record(message[at + 8 :], key if d else None, headers, timestamp_ms, partition)


def to_frequent(record: Record, position: int) -> bytes | None:
    """The message of a record; None where it is not of this form."""
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
    """The record of a message; None where it is not of this form."""
    if len(message) <= _MAP_SIZE_AT or message[2] != 0x72:
        return None
    layout = _BY_MAP_SIZE.get(message[_MAP_SIZE_AT])
    if layout is None or len(message) < layout.struct.size + 8:
        return None
    return _record(message, layout)
