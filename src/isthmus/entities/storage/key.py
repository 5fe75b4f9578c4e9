"""The keys of a namespace in its store.

What it is: one byte of table, then big-endian numbers, so that the store's byte order is the numeric order. Every queue,
subscription, topic and dead-letter queue has a number that is never used again; its messages are together in sequence
order. See docs/explanation/store.md.
"""

from __future__ import annotations

import struct

__all__ = [
    "ARRIVED",
    "CATALOG",
    "COUNTER",
    "DEFERRED",
    "DETECTION",
    "DOOMED",
    "DUE",
    "DUPLICATE_KEY",
    "ENTITY_TABLES",
    "ERAS",
    "EXPIRY",
    "FORMAT",
    "IDENTITY",
    "KEY_RUN",
    "LANE",
    "LEAVING",
    "MESSAGE",
    "REFERENCE",
    "SCHEDULED",
    "SESSION",
    "SOURCE_MARK",
    "STATE",
    "UNREADABLE",
    "after",
    "arrived_key",
    "detection_generation",
    "detection_key",
    "doomed_key",
    "eras_key",
    "lane_key",
    "leaving_key",
    "message_key",
    "message_span",
    "numbered_span",
    "pack_timed",
    "session_key",
    "state_key",
    "unpack_leaving",
    "unpack_message",
    "unpack_timed",
]

FORMAT = b"\x00format"
COUNTER = b"\x00counter"
IDENTITY = b"\x00identity"
DOOMED = b"\x00doomed"
CATALOG, STATE = 0x01, 0x02
MESSAGE, DEFERRED, SCHEDULED, UNREADABLE = 0x10, 0x11, 0x12, 0x13
DUE, EXPIRY = 0x20, 0x21
DETECTION, DUPLICATE_KEY, SOURCE_MARK, KEY_RUN, ERAS = 0x30, 0x31, 0x32, 0x33, 0x34
SESSION = 0x40
REFERENCE = 0x50
LEAVING, LANE, ARRIVED = 0x80, 0x81, 0x82
# The tables of an entity's number, besides its row and its sessions.
ENTITY_TABLES = (MESSAGE, DEFERRED, SCHEDULED, UNREADABLE, DETECTION, DUPLICATE_KEY, SOURCE_MARK, KEY_RUN, ERAS)

_MESSAGE = struct.Struct(">BIQ")
_TIMED = struct.Struct(">BQIQ")
_NUMBERED = struct.Struct(">BI")
_DETECTION = struct.Struct(">BIQ")
_LANE = struct.Struct(">BH")
_LEAVING = struct.Struct(">BHQ")

message_key = _MESSAGE.pack  # (table, entity number, sequence number)
pack_timed = _TIMED.pack  # (table, wall ms or bucket, entity number, sequence number)


def unpack_message(key: bytes) -> int:
    """The sequence number in a message's key."""
    return int.from_bytes(key[5:13], "big")


def unpack_timed(key: bytes) -> tuple[int, int, int]:
    """(wall ms or bucket, entity number, sequence number) of an index's key."""
    _, at, number, sequence = _TIMED.unpack(key)
    return at, number, sequence


def message_span(table: int, number: int, first: int, last: int) -> tuple[bytes, bytes]:
    """The half-open range of keys of sequence numbers first..last."""
    return _MESSAGE.pack(table, number, first), after(_MESSAGE.pack(table, number, last))


def numbered_span(table: int, number: int) -> tuple[bytes, bytes]:
    """The half-open range of all keys of one entity in one table."""
    return _NUMBERED.pack(table, number), after(_NUMBERED.pack(table, number))


def state_key(number: int) -> bytes:
    """The key of an entity's cursors and counts."""
    return _NUMBERED.pack(STATE, number)


def session_key(number: int, session_id: str) -> bytes:
    """The key of an entity's session."""
    return _NUMBERED.pack(SESSION, number) + session_id.encode()


def detection_key(table: int, number: int, generation: int) -> bytes:
    """The key prefix of one generation of seen message ids, or of duplicate keys."""
    return _DETECTION.pack(table, number, generation)


def detection_generation(key: bytes) -> int:
    """The generation in such a key."""
    return int.from_bytes(key[5:13], "big")


def eras_key(number: int, table: int) -> bytes:
    """The key of the row with the former and current lengths of generations."""
    return _NUMBERED.pack(ERAS, number) + bytes((table,))


def doomed_key(number: int) -> bytes:
    """The key of the record that a deleted partitioned entity has rows left in its stores."""
    return DOOMED + number.to_bytes(4, "big")


def leaving_key(to: int, position: int) -> bytes:
    """The key of a message in the line to another store: the store's index among all, and the position in the line."""
    return _LEAVING.pack(LEAVING, to, position)


def unpack_leaving(key: bytes) -> tuple[int, int]:
    """(other store, position in the line) of such a key."""
    _, to, position = _LEAVING.unpack(key)
    return to, position


def lane_key(to: int) -> bytes:
    """The key of the last position in the line to another store."""
    return _LANE.pack(LANE, to)


def arrived_key(source: int) -> bytes:
    """The key of the position up to which another store's line has arrived here."""
    return _LANE.pack(ARRIVED, source)


def after(key: bytes) -> bytes:
    """The least key of the same length that is greater; no key used here is all ones."""
    return (int.from_bytes(key, "big") + 1).to_bytes(len(key), "big")
