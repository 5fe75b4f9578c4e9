"""Reading a producer's encoded event, and writing it as consumers get it.

What it is: a walk over the sections that finds the end of the producer's annotations, and the writing of the broker's own
before them. Most events of a producer begin alike, so the bytes before the properties are parsed once and
cached. What it is not: storage (`block`, `partition`).
Spec: docs/explanation/protocol.md, Message, Event Hubs; AMQP 1.0 part 3.2.

An event is written as::

    header, delivery annotations, as sent
    message annotations: sequence number, offset, enqueued time, then the producer's
    properties, application properties, body, footer, as sent

Invariants:
    I1. Nothing of the producer's event changes except the broker's own three annotations, which it cannot set.
    I2. Sections are written in the standard's order, in whatever order they arrived.
    I3. Bytes that are not a message raise InvalidMessageError; `EventReader.read` raises nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from isthmus.amqp import codec, section
from isthmus.amqp.codec import value_end
from isthmus.entities.error import InvalidMessageError

__all__ = ["Event", "EventHead", "EventReader", "partition_key_of", "write_events"]

_SEQUENCE = b"\xa3\x15x-opt-sequence-number\x81"
_OFFSET = b"\xa3\x0cx-opt-offset\xa1"
_ENQUEUED_TIME = b"\xa3\x13x-opt-enqueued-time\x83"
_RESERVED = frozenset(("x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time"))
_PARTITION_KEY = "x-opt-partition-key"
PARTITION_KEY_CHARACTERS = 128
# Count field 4; keys, codes and eight bytes each of number and time; key, code and length byte of the offset.
_FIXED_BYTES = 4 + len(_SEQUENCE) + 8 + len(_OFFSET) + 1 + len(_ENQUEUED_TIME) + 8
_SIZES = struct.Struct(">II")
_MALFORMED = (IndexError, codec.CodecError, ValueError)
_REMEMBERED = 1000
_REMEMBERED_BYTES = 512


class EventHead:
    """The part of an event before its properties, without the values that the partition sets.

    Attributes:
        front: header and delivery annotations, as sent.
        annotations: the producer's message annotations, encoded pairs.
        count: how many pairs.
        partition_key: as text; None where the producer set none.
    """

    __slots__ = ("annotations", "count", "front", "partition_key")

    def __init__(self, front: bytes, annotations: bytes, count: int, partition_key: str | None) -> None:
        self.front = front
        self.annotations = annotations
        self.count = count
        self.partition_key = partition_key


Event = tuple[EventHead, bytes]  # the head, and everything from the properties on


class EventReader:
    """Parses encoded events; caches the heads that producers use."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, EventHead] = {}

    def read(self, payloads: Sequence[bytes]) -> list[Event]:
        """Parse encoded events.

        Raises:
            InvalidMessageError: one of them is not a message.
        """
        taken = []
        for payload in payloads:
            try:
                event = self._split(payload)
                if event is None:
                    found = section.locate(payload)
                    event = self._split(b"".join([payload[start:end] for start, end in found]))
            except _MALFORMED as error:
                raise InvalidMessageError(f"the payload is not an AMQP message: {error}") from None
            if event is None:
                raise InvalidMessageError("the payload is not an AMQP message")
            taken.append(event)
        return taken

    def _split(self, b: bytes) -> Event | None:
        """The event, if its sections are in the standard's order. One-byte sizes are read without a call."""
        at = 0
        kind = b[:3]
        if kind == b"\0Sp":
            at = 5 + b[4] if b[3] == 0xC0 else value_end(b, 3)
            kind = b[at : at + 3]
        if kind == b"\0Sq":
            at = value_end(b, at + 3)
            kind = b[at : at + 3]
        if kind == b"\0Sr":
            at = at + 5 + b[at + 4] if b[at + 3] == 0xC1 else value_end(b, at + 3)
            kind = b[at : at + 3]
        raw = b[:at]
        head = self._known.get(raw) or self._head(raw)
        rest = at
        if kind == b"\0Ss":
            at = at + 5 + b[at + 4] if b[at + 3] == 0xC0 else value_end(b, at + 3)
            kind = b[at : at + 3]
        if kind == b"\0St":
            at = at + 5 + b[at + 4] if b[at + 3] == 0xC1 else value_end(b, at + 3)
            kind = b[at : at + 3]
        if kind == b"\0Su":  # the usual body: one data section
            at = at + 8 + int.from_bytes(b[at + 4 : at + 8], "big") if b[at + 3] == 0xB0 else value_end(b, at + 3)
        if not b or (at != len(b) and not _ends_well(b, at)):
            return None
        return head, b[rest:]

    def _head(self, raw: bytes) -> EventHead:
        found = section.locate(raw)
        pairs = []
        partition_key = None
        for key, value, after in section.map_items(raw, found.message_annotations):
            name = codec.decode(raw, key)[0]
            if not isinstance(name, str):
                raise codec.CodecError("an annotation's key is not a symbol")
            if name in _RESERVED:
                continue
            if name == _PARTITION_KEY:
                partition_key = _text(codec.decode(raw, value)[0])
            pairs.append(raw[key:after])
        front = b"".join(raw[start:end] for start, end in (found.header, found.delivery_annotations))
        head = EventHead(front, b"".join(pairs), len(pairs), partition_key)
        if len(raw) <= _REMEMBERED_BYTES:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[raw] = head
        return head


def partition_key_of(payload: bytes) -> str | None:
    """The partition key in the message annotations of a batch's envelope; None where there is none.

    Raises:
        InvalidMessageError: the annotations are malformed.
    """
    at = 0
    try:
        for code in (b"\0Sp", b"\0Sq"):
            if payload[at : at + 3] == code:
                at = value_end(payload, at + 3)
        if payload[at : at + 3] != b"\0Sr":
            return None
        end = value_end(payload, at + 3)
        return _text(section.decode_map(payload, (at, end)).get(_PARTITION_KEY))
    except (*_MALFORMED, TypeError) as error:
        raise InvalidMessageError(f"the envelope's annotations are malformed: {error}") from None


def write_events(events: Sequence[Event], first: int, offset: int, enqueued_ms: int) -> list[bytes]:
    """Events as consumers get them, numbered from `first`; each one's offset is the end of the one before."""
    written: list[bytes] = []
    add, join = written.append, b"".join
    time = _ENQUEUED_TIME + enqueued_ms.to_bytes(8, "big")
    last: EventHead | None = None
    width = 0
    front = middle = back = b""
    for sequence, (head, rest) in enumerate(events, first):
        digits = b"%d" % offset
        if head is not last or len(digits) != width:
            last, width = head, len(digits)
            sizes = _SIZES.pack(_FIXED_BYTES + width + len(head.annotations), 2 * (3 + head.count))
            front = head.front + b"\0Sr\xd1" + sizes + _SEQUENCE
            middle = _OFFSET + bytes((width,))
            back = time + head.annotations
        event = join((front, sequence.to_bytes(8, "big"), middle, digits, back, rest))
        offset += len(event)
        add(event)
    return written


def _text(value: object) -> str | None:
    """A partition key as text.

    Raises:
        InvalidMessageError: it is longer than the service allows; hashing it would take long, too.
    """
    if value is None:
        return None
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if len(text) > PARTITION_KEY_CHARACTERS:
        raise InvalidMessageError(
            f"the partition key has {len(text)} characters; the limit is {PARTITION_KEY_CHARACTERS}"
        )
    return text


def _ends_well(b: bytes, at: int) -> bool:
    """Whether body sections, then at most one footer, fill the message from `at` on."""
    footer = False
    while at < len(b):
        if b[at] or b[at + 1] != 0x53 or footer or not 0x75 <= b[at + 2] <= 0x78:
            return False
        footer = b[at + 2] == 0x78
        at = value_end(b, at + 3)
    return at == len(b)
