"""The form in which a message lies in the store: ready for the wire but for one slot.

What it is: at acceptance the sender's header is normalised and the broker's annotations are put in front of the
sender's own; everything behind them is kept to the byte. Delivery fills locked-until into its slot: two slices and a
join. What it is not: the changes that abandon, defer and dead-letter make (`amend`).
Spec: SERVICE-BUS.md W6, W7, W8; AMQP 1.0 part 3.2.

A record is::

    expires_at_ms u64 | slot u32 | rest u32          internal, 16 bytes; slot and rest are offsets into the record
    header section, with delivery-count in its last four bytes
    delivery annotations, if the sender set any
    message annotations: locked-until (its 8 bytes at `slot`), sequence number, enqueued time,
        [enqueue-sequence-number], then the sender's
    properties, application properties, body, footer  from `rest` on, as sent

Invariants:
    I1. Nothing of the sender's is changed but header.ttl (cut to the entity's), reserved annotations (dropped) and an
        absent message-id (made).
    I2. Sections leave in the standard's order whatever order they came in.
    I3. Bytes that are no message raise InvalidMessageError; nothing else comes out of `split`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from isthmus.amqp import codec, section
from isthmus.amqp.codec import value_end
from isthmus.entities.error import InvalidMessageError

__all__ = [
    "ENQUEUE_SEQUENCE",
    "PREFIX_BYTES",
    "HeaderCache",
    "Parts",
    "build",
    "expires_at_ms",
    "locked_payload",
    "plain_payload",
    "split",
]

# Encoded symbol, then the code of its value. Lengths: 20 + 9, 23 + 9, 21 + 9, 31 + 9.
LOCKED_UNTIL = b"\xa3\x12x-opt-locked-until"
SEQUENCE = b"\xa3\x15x-opt-sequence-number"
ENQUEUED_TIME = b"\xa3\x13x-opt-enqueued-time"
ENQUEUE_SEQUENCE = b"\xa3\x1dx-opt-enqueue-sequence-number"
MESSAGE_STATE = b"\xa3\x13x-opt-message-state"
SCHEDULED_TIME = b"\xa3\x1cx-opt-scheduled-enqueue-time"
RESERVED = frozenset((LOCKED_UNTIL, SEQUENCE, ENQUEUED_TIME, ENQUEUE_SEQUENCE, MESSAGE_STATE))

PREFIX = struct.Struct(">QII")
PREFIX_BYTES = PREFIX.size
ANNOTATIONS = struct.Struct(">4sII20sBQ23sBQ21sBQ")
ANNOTATIONS_BYTES = ANNOTATIONS.size - 12
ENQUEUE_SLOT = struct.Struct(">31sBQ")
# From the start of the annotations section to the eight bytes of locked-until: section head 12, symbol 20, code 1.
SLOT_IN_ANNOTATIONS = 33
LOCKED_UNTIL_BYTES = 29
_SLOT = struct.Struct(">I")
_COUNTS = struct.Struct(">II")


class Parts(NamedTuple):
    """A message taken apart for storing; `build` puts it together under a sequence number.

    Attributes:
        header: normalised header section, delivery-count 0.
        ttl_ms: effective time to live; 0 is without end.
        delivery_annotations: the sender's section, or empty.
        annotations: the sender's message annotations, encoded pairs.
        annotation_count: how many pairs.
        rest: everything from the properties on.
        due_ms: wall time for which the sender scheduled the message; 0 is now.
        message_id: encoded message-id.
    """

    header: bytes
    ttl_ms: int
    delivery_annotations: bytes
    annotations: bytes
    annotation_count: int
    rest: bytes
    due_ms: int
    message_id: bytes


class HeaderCache:
    """Normalised headers of one entity by the bytes that senders send; there are few different ones.

    Args:
        default_ttl_ms: the entity's default time to live; 0 is without end.
    """

    __slots__ = ("_default_ttl_ms", "_seen", "absent")

    def __init__(self, default_ttl_ms: int) -> None:
        self._default_ttl_ms = default_ttl_ms
        self._seen: dict[bytes, tuple[bytes, int]] = {}
        self.absent = self._normalise(section.Header(durable=True), b"\x41\x40")

    def get(self, raw: bytes) -> tuple[bytes, int]:
        """(normalised header section, effective time to live in ms or 0) for a sender's header section.

        Raises:
            CodecError: the section is malformed.
        """
        known = self._seen.get(raw)
        if known is None:
            header = section.decode_header(raw, (0, len(raw)))
            fields: tuple[object, object] = (header.priority, header.ttl_ms)
            if not isinstance(fields[0], int) or not isinstance(fields[1], int | None):
                raise codec.CodecError("header fields have the wrong types")
            flags = (b"\x41" if header.durable else b"\x42") + (b"\x50%c" % header.priority)
            known = self._normalise(header, flags)
            if len(self._seen) < 1000:  # ttl may differ in every message: then it is not worth keeping
                self._seen[raw] = known
        return known

    def _normalise(self, header: section.Header, flags: bytes) -> tuple[bytes, int]:
        ttl_ms = header.ttl_ms
        if self._default_ttl_ms and (ttl_ms is None or ttl_ms > self._default_ttl_ms):
            ttl_ms = self._default_ttl_ms
        # A header can say 49 days at most; a longer default still ends the message's life, silently.
        fits = ttl_ms is not None and (header.ttl_ms is not None or ttl_ms <= 0xFFFFFFFF)
        ttl = b"\x70" + ttl_ms.to_bytes(4, "big") if ttl_ms is not None and fits else b"\x40"
        fields = flags + ttl + b"\x42\x70\0\0\0\0"
        effective_ms = 0 if ttl_ms is None else max(1, ttl_ms)
        return b"\0Sp\xc0%c\x05" % (len(fields) + 1) + fields, effective_ms


def split(message: bytes, headers: HeaderCache) -> Parts:
    """Take an encoded message apart.

    Raises:
        InvalidMessageError: the bytes are no message.
    """
    try:
        parts = _split_quick(message, headers)
        if parts is None:
            parts = _split_quick(_in_order(message), headers)
    except (IndexError, codec.CodecError, ValueError) as error:
        raise InvalidMessageError(f"the payload is no AMQP message: {error}") from None
    if parts is None:
        raise InvalidMessageError("the payload is no AMQP message")
    return parts


def _split_quick(b: bytes, headers: HeaderCache) -> Parts | None:
    """`split` for sections in order and keys of annotations as sym8; None: take the slow way."""
    end = len(b)
    at = 0
    if b[0:3] == b"\0Sp":
        at = 5 + b[4] if b[3] == 0xC0 else value_end(b, 3)
        header, ttl_ms = headers.get(b[:at])
    else:
        header, ttl_ms = headers.absent
    kind = b[at : at + 3]
    delivery = annotations = b""
    if kind == b"\0Sq":
        stop = value_end(b, at + 3)
        delivery = b[at:stop]
        at = stop
        kind = b[at : at + 3]
    count = due_ms = 0
    if kind == b"\0Sr":
        code = b[at + 3]
        if code == 0xC1:
            stop, pair, count = at + 5 + b[at + 4], at + 6, b[at + 5] >> 1
        elif code == 0xD1:
            stop, pair = value_end(b, at + 3), at + 12
            count = int.from_bytes(b[at + 8 : at + 12], "big") >> 1
        else:
            return None
        start = pair
        found = 0
        while pair < stop:
            if b[pair] != 0xA3:
                return None
            value = pair + 2 + b[pair + 1]
            width = codec.WIDTH[b[value]]
            after = value + width if 0 < width < 254 else value_end(b, value)
            found += 1
            name = b[pair:value]
            if name in RESERVED:
                annotations += b[start:pair]
                start = after
                count -= 1
            elif name == SCHEDULED_TIME and b[value] != 0x40:
                due_ms = codec.decode(b, value)[0]
                if not isinstance(due_ms, int):
                    return None
            pair = after
        if pair != stop or stop > end:
            return None
        annotations += b[start:stop]
        at = stop
        kind = b[at : at + 3]
    rest = at
    message_id = b""
    if kind == b"\0Ss":
        code = b[at + 3]
        if code == 0xC0:
            stop, field = at + 5 + b[at + 4], at + 6
            present = b[at + 5]
        else:
            stop, field = value_end(b, at + 3), at + 12
            present = code == 0xD0 and int.from_bytes(b[at + 8 : at + 12], "big")
        if present and b[field] != 0x40:
            message_id = b[field : value_end(b, field)]
        at = stop
        kind = b[at : at + 3]
    if kind == b"\0St":
        at = at + 5 + b[at + 4] if b[at + 3] == 0xC1 else value_end(b, at + 3)
        kind = b[at : at + 3]
    if kind == b"\0Su":  # the usual body: one data section
        code = b[at + 3]
        at = at + 8 + int.from_bytes(b[at + 4 : at + 8], "big") if code == 0xB0 else value_end(b, at + 3)
    if at != end and not _ends_well(b, at, end):
        return None
    return Parts(header, ttl_ms, delivery, annotations, count, b[rest:] if rest else b, due_ms, message_id)


def _ends_well(b: bytes, at: int, end: int) -> bool:
    """Whether body sections, then at most one footer, fill the message from `at` to `end`."""
    footer = False
    while at < end:
        if b[at] or b[at + 1] != 0x53 or footer or not 0x75 <= b[at + 2] <= 0x78:
            return False
        footer = b[at + 2] == 0x78
        at = value_end(b, at + 3)
    return at == end


def _in_order(message: bytes) -> bytes:
    """The same message with its sections in the standard's order and annotation keys as sym8.

    Raises:
        CodecError: the bytes are no message.
    """
    found = section.locate(message)
    pieces = []
    for name, (start, stop) in zip(found._fields, found, strict=True):
        if name == "message_annotations" and stop:
            pairs = []
            for key, value, after in section.map_items(message, (start, stop)):
                text = codec.decode(message, key)[0]
                if not isinstance(text, str):
                    raise codec.CodecError("an annotation's key is no symbol")
                raw = text.encode()
                if len(raw) > 255:
                    raise codec.CodecError("an annotation's key is longer than 255 bytes")
                if raw == SCHEDULED_TIME[2:] and not isinstance(codec.decode(message, value)[0], int | None):
                    raise codec.CodecError("x-opt-scheduled-enqueue-time is no timestamp")
                pairs.append(b"\xa3%c" % len(raw) + raw + message[value:after])
            content = b"".join(pairs)
            pieces.append(b"\0Sr\xd1" + _COUNTS.pack(len(content) + 4, 2 * len(pairs)) + content)
        else:
            pieces.append(message[start:stop])
    return b"".join(pieces)


def build(parts: Parts, sequence: int, enqueued_ms: int, expires_ms: int, enqueue_sequence: int | None = None) -> bytes:
    """The record of a message under a sequence number.

    Args:
        parts: the message.
        sequence: in the entity that stores it.
        enqueued_ms: wall time.
        expires_ms: wall time after which the message is not delivered; 0 is never.
        enqueue_sequence: sequence number where the message first entered, if elsewhere.
    """
    header, _, delivery, annotations, count, rest, _, _ = parts
    size = ANNOTATIONS_BYTES + len(annotations)
    at = PREFIX_BYTES + len(header) + len(delivery)
    if enqueue_sequence is not None:
        annotations = ENQUEUE_SLOT.pack(ENQUEUE_SEQUENCE, 0x81, enqueue_sequence) + annotations
        size += 40
        count += 1
    return b"".join(
        (
            PREFIX.pack(expires_ms, at + SLOT_IN_ANNOTATIONS, at + 12 + size),
            header,
            delivery,
            ANNOTATIONS.pack(
                b"\0Sr\xd1",
                size + 4,
                6 + 2 * count,
                LOCKED_UNTIL,
                0x83,
                0,
                SEQUENCE,
                0x81,
                sequence,
                ENQUEUED_TIME,
                0x83,
                enqueued_ms,
            ),
            annotations,
            rest,
        )
    )


def expires_at_ms(record: bytes) -> int:
    """Wall time after which a stored message is not delivered; 0 is never."""
    return int.from_bytes(record[:8], "big")


def locked_payload(record: bytes, locked_until: bytes) -> bytes:
    """A stored message as a locked one leaves; `locked_until` is eight bytes, big-endian wall ms."""
    (slot,) = _SLOT.unpack_from(record, 8)
    return record[PREFIX_BYTES:slot] + locked_until + record[slot + 8 :]


def plain_payload(record: bytes, state: int = 0, locked_until: bytes | None = None) -> bytes:
    """A stored message as it leaves by the ways less used: without locked-until, or with its state named.

    Args:
        record: as stored.
        state: 0 active (not named), 1 deferred, 2 scheduled.
        locked_until: eight bytes; None leaves the annotation out.
    """
    _, slot, rest = PREFIX.unpack_from(record)
    start = slot - SLOT_IN_ANNOTATIONS
    size, count = _COUNTS.unpack_from(record, start + 4)
    extra = MESSAGE_STATE + b"\x71" + state.to_bytes(4, "big") if state else b""
    kept = record[start + 12 : rest]
    if locked_until is None:
        kept = kept[LOCKED_UNTIL_BYTES:]
        size -= LOCKED_UNTIL_BYTES
        count -= 2
    else:
        kept = kept[:21] + locked_until + kept[29:]
    counts = _COUNTS.pack(size + len(extra), count + (2 if state else 0))
    return b"".join((record[PREFIX_BYTES:start], b"\0Sr\xd1", counts, kept, extra, record[rest:]))
