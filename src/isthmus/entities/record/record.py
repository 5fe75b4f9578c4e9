"""The stored form of a message: ready for the wire except for one slot.

What it is: at acceptance the sender's header is normalised and the broker's annotations are put before the
sender's own; everything behind them is unchanged. Delivery writes locked-until into its slot: two slices and a
join. What it is not: the parsing of a sender's bytes (`parse`), or the changes by abandon and dead-letter (`amend`).
Spec: docs/explanation/protocol.md, Settlement, Message; AMQP 1.0 part 3.2.

A record is::

    expires_at_ms u64 | hops 3 bits, large 1 bit, slot 28 bits | rest u32    internal, 16 bytes; slot and rest are
        offsets into the record, hops is how often it was forwarded
    header section, with delivery-count in its last four bytes
    delivery annotations, if the sender set any
    message annotations: locked-until (its 8 bytes at `slot`), sequence number, enqueued time,
        [enqueue-sequence-number], then the sender's
    properties, application properties, body, footer  from `rest` on, as sent

Instead of a large message's body and footer there are 16 bytes that refer to them (see `blob`)::

    number u64 | size u64

Most messages of a sender begin alike, so the part before the properties is a `Head`, created once and shared by them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from isthmus.amqp import CodecError, section
from isthmus.entities.storage.blob import Blob, Large, Payload

__all__ = [
    "ANNOTATIONS_BYTES",
    "BLOB_BYTES",
    "ENQUEUE_SEQUENCE",
    "OVERHEAD_BYTES",
    "PREFIX",
    "PREFIX_BYTES",
    "SLOT_BITS",
    "SLOT_IN_ANNOTATIONS",
    "SLOT_MASK",
    "Head",
    "Parts",
    "build",
    "build_many",
    "deleted_payload",
    "expires_at_ms",
    "locked_payloads",
    "plain_payload",
    "rest_of",
    "size_of",
]

# Encoded symbol, then the code of its value. Lengths: 20 + 9, 23 + 9, 21 + 9, 31 + 9.
LOCKED_UNTIL = b"\xa3\x12x-opt-locked-until"
SEQUENCE = b"\xa3\x15x-opt-sequence-number"
ENQUEUED_TIME = b"\xa3\x13x-opt-enqueued-time"
ENQUEUE_SEQUENCE = b"\xa3\x1dx-opt-enqueue-sequence-number"
MESSAGE_STATE = b"\xa3\x13x-opt-message-state"

PREFIX = struct.Struct(">QII")
PREFIX_BYTES = PREFIX.size
# Forwarded messages keep their number of hops above the offset of the slot; no header grows to a quarter of a gigabyte.
SLOT_BITS = 29
SLOT_MASK = (1 << (SLOT_BITS - 1)) - 1
_LARGE = 1 << (SLOT_BITS - 1)
_BLOB = struct.Struct(">QQ")
BLOB_BYTES = _BLOB.size
_OFFSETS = struct.Struct(">II")
# Locked-until 29, sequence number 32, enqueued time 30.
ANNOTATIONS_BYTES = 91
# The bytes of every record besides its sender's: internal prefix, header of least size, head of the annotations
# section, the broker's annotations. A quota does not count them, like the service's.
OVERHEAD_BYTES = PREFIX_BYTES + 15 + 12 + ANNOTATIONS_BYTES
# From the start of the annotations section to the eight bytes of locked-until: section head 12, symbol 20, code 1.
SLOT_IN_ANNOTATIONS = 33
_LOCKED_UNTIL_BYTES = 29
# The header section's size is in its fifth byte, and its content ends so many bytes after that.
_HEADER_SIZE = PREFIX_BYTES + 4
_HEADER_END = PREFIX_BYTES + 5
_DELIVERY_ANNOTATIONS = 0x71
_TOKEN_NAME = b"x-opt-lock-token"
# A delivery-annotations section of one pair, up to the uuid's sixteen bytes; and an empty one.
_LOCK_TOKEN = b"\0Sq\xc1\x24\x02\xa3\x10" + _TOKEN_NAME + b"\x98"
_NO_ANNOTATIONS = b"\0Sq\xc1\x01\0"
_ENQUEUE_SEQUENCE_BYTES = 40


class Head:
    """The part of a message before its properties, without the numbers that the entity sets.

    Attributes:
        header: normalised header section, delivery-count in its last four bytes.
        ttl_ms: effective time to live; 0 is without end.
        delivery_annotations: the sender's section, or empty.
        annotations: the sender's message annotations, encoded pairs.
        annotation_count: how many pairs.
        due_ms: wall time for which the sender scheduled the message; 0 is now.
    """

    __slots__ = (
        "_local",
        "_moved",
        "annotation_count",
        "annotations",
        "delivery_annotations",
        "due_ms",
        "header",
        "ttl_ms",
    )

    def __init__(
        self,
        header: bytes,
        ttl_ms: int,
        delivery_annotations: bytes = b"",
        annotations: bytes = b"",
        annotation_count: int = 0,
        due_ms: int = 0,
    ) -> None:
        self.header = header
        self.ttl_ms = ttl_ms
        self.delivery_annotations = delivery_annotations
        self.annotations = annotations
        self.annotation_count = annotation_count
        self.due_ms = due_ms
        self._local: tuple[bytes, bytes, bytes] | None = None
        self._moved: tuple[bytes, bytes, bytes] | None = None

    def pieces(self, *, moved: bool) -> tuple[bytes, bytes, bytes]:
        """The record's bytes after expires-at and before the number, between number and time, and after the time.

        Args:
            moved: whether the message has an enqueue-sequence-number; its eight bytes follow the third piece, and
                then the sender's annotations.
        """
        known = self._moved if moved else self._local
        if known is None:
            known = self._make(moved)
            if moved:
                self._moved = known
            else:
                self._local = known
        return known

    def _make(self, moved: bool) -> tuple[bytes, bytes, bytes]:
        size = ANNOTATIONS_BYTES + len(self.annotations) + (_ENQUEUE_SEQUENCE_BYTES if moved else 0)
        count = self.annotation_count + (4 if moved else 3)
        at = PREFIX_BYTES + len(self.header) + len(self.delivery_annotations)
        before = b"".join(
            (
                _OFFSETS.pack(at + SLOT_IN_ANNOTATIONS, at + 12 + size),
                self.header,
                self.delivery_annotations,
                b"\0Sr\xd1" + _OFFSETS.pack(size + 4, 2 * count),
                LOCKED_UNTIL + b"\x83" + bytes(8) + SEQUENCE + b"\x81",
            )
        )
        return before, ENQUEUED_TIME + b"\x83", ENQUEUE_SEQUENCE + b"\x81" if moved else self.annotations

    def replace(
        self,
        *,
        header: bytes | None = None,
        ttl_ms: int | None = None,
        annotations: bytes | None = None,
        annotation_count: int | None = None,
    ) -> Head:
        """A head with some parts changed."""
        return Head(
            self.header if header is None else header,
            self.ttl_ms if ttl_ms is None else ttl_ms,
            self.delivery_annotations,
            self.annotations if annotations is None else annotations,
            self.annotation_count if annotation_count is None else annotation_count,
            self.due_ms,
        )


class Parts(NamedTuple):
    """A parsed message; `build` makes a record of it under a sequence number.

    Attributes:
        head: the part before the properties.
        rest: everything from the properties on, as sent; of a large message without body and footer.
        message_id: encoded message-id.
        blob: a large message's body and footer.
        duplicate_key: by which a route's copy is compared instead of its message-id; empty for all other messages.
    """

    head: Head
    rest: bytes
    message_id: bytes = b""
    blob: Blob | None = None
    duplicate_key: bytes = b""


def size_of(parts: Parts) -> int:
    """The size of a message where sizes are limited."""
    size = len(parts.rest) + len(parts.head.annotations) + len(parts.head.header)
    return size if parts.blob is None else size + parts.blob.size_bytes


def _with_hops(before: bytes, hops: int) -> bytes:
    """The first piece of `Head.pieces` with the number of hops in its first bits."""
    return bytes((before[0] | hops << (SLOT_BITS - 24),)) + before[1:] if hops else before


def build(
    parts: Parts,
    sequence: int,
    enqueued_ms: int,
    expires_ms: int,
    enqueue_sequence: int | None = None,
    hops: int = 0,
) -> bytes:
    """The record of one message.

    Args:
        parts: the message.
        sequence: its number in the entity that stores it.
        enqueued_ms: wall time.
        expires_ms: wall time after which the message is not delivered; 0 is never.
        enqueue_sequence: sequence number where the message first entered, if elsewhere.
        hops: how often it was forwarded, at most 7.
    """
    head = parts.head
    before, between, behind = head.pieces(moved=enqueue_sequence is not None)
    if enqueue_sequence is not None:
        behind += enqueue_sequence.to_bytes(8, "big") + head.annotations
    before, reference = _with_hops(before, hops), b""
    if parts.blob is not None:
        before = bytes((before[0] | _LARGE >> 24,)) + before[1:]
        reference = _BLOB.pack(parts.blob.number, parts.blob.size_bytes)
    return b"".join(
        (
            expires_ms.to_bytes(8, "big"),
            before,
            sequence.to_bytes(8, "big"),
            between,
            enqueued_ms.to_bytes(8, "big"),
            behind,
            parts.rest,
            reference,
        )
    )


def build_many(
    messages: Sequence[Parts],
    first: int,
    enqueued_ms: int,
    prefix: bytes,
    origins: Sequence[int] | None = None,
    hops: int = 0,
) -> tuple[list[tuple[bytes, bytes]], int, list[tuple[int, Blob]]]:
    """Keys and records of messages accepted together, numbered from `first`, the records' size, and the bodies that some
    refer to, by sequence number.

    Args:
        messages: in order; each expires its own time to live after `enqueued_ms`.
        first: sequence number of the first.
        enqueued_ms: wall time.
        prefix: of the keys, before the sequence number.
        origins: per message the sequence number where it first entered, if elsewhere.
        hops: how often each was forwarded, at most 7.
    """
    pairs: list[tuple[bytes, bytes]] = []
    add, join = pairs.append, b"".join
    enqueued = enqueued_ms.to_bytes(8, "big")
    moved = origins is not None
    last: Head | None = None
    front = back = own = b""
    size = 0
    blobs: list[tuple[int, Blob]] = []
    for sequence, (head, rest, _, blob, _) in enumerate(messages, first):
        if head is not last:
            last = head
            before, between, behind = head.pieces(moved=moved)
            front = (enqueued_ms + head.ttl_ms if head.ttl_ms else 0).to_bytes(8, "big") + _with_hops(before, hops)
            back = between + enqueued + behind
            own = head.annotations
        number = sequence.to_bytes(8, "big")
        if blob is not None:
            blobs.append((sequence, blob))
            expires_ms = enqueued_ms + head.ttl_ms if head.ttl_ms else 0
            origin = None if origins is None else origins[sequence - first]
            record = build(messages[sequence - first], sequence, enqueued_ms, expires_ms, origin, hops)
        elif origins is None:
            record = join((front, number, back, rest))
        else:
            record = join((front, number, back, origins[sequence - first].to_bytes(8, "big"), own, rest))
        size += len(record)
        add((prefix + number, record))
    return pairs, size, blobs


def expires_at_ms(record: bytes) -> int:
    """Wall time after which a stored message is not delivered; 0 is never."""
    return int.from_bytes(record[:8], "big")


def rest_of(record: bytes, rest: int) -> tuple[bytes, Blob | None]:
    """The bytes of a record from an offset on: as sent, or up to the body with the reference to it."""
    if not record[8] & _LARGE >> 24:
        return record[rest:], None
    return record[rest:-BLOB_BYTES], Blob(*_BLOB.unpack(record[-BLOB_BYTES:]))


def locked_payloads(pairs: Sequence[tuple[bytes, bytes]], locked_until: bytes, random: bytes) -> list[Payload]:
    """Payloads of stored messages that are delivered locked, with their lock tokens among the delivery annotations.

    Args:
        pairs: keys and records.
        locked_until: eight bytes, big-endian wall ms.
        random: the first half of their lock tokens; the other is the sequence number, as in their keys.
    """
    payloads: list[Payload] = []
    add, join = payloads.append, b"".join
    # A delivery tag is a .NET GUID, whose first three fields have the other byte order than in an AMQP uuid.
    front = _LOCK_TOKEN + random[3::-1] + random[5:3:-1] + random[7:5:-1]
    known = b""
    slot = end = 0
    for key, record in pairs:
        offset = record[8:12]
        header_end = _HEADER_END + record[_HEADER_SIZE]
        if record[header_end + 2] == _DELIVERY_ANNOTATIONS:
            known = b""
            slot = int.from_bytes(offset, "big") & SLOT_MASK
            add(_with_token_beside(record, header_end, slot, locked_until, front[6:] + key[5:]))
            continue
        if offset != known:
            known = offset
            slot = int.from_bytes(offset, "big") & SLOT_MASK
            end = slot + 8
            if offset[0] & _LARGE >> 24:
                known = b""
                rest, blob = rest_of(record, end)
                assert blob is not None
                sections = (record[16:header_end], front, key[5:], record[header_end:slot], locked_until, rest)
                add(Large(join(sections), blob))
                continue
        add(join((record[16:header_end], front, key[5:], record[header_end:slot], locked_until, record[end:])))
    return payloads


def _with_token_beside(record: bytes, header_end: int, slot: int, locked_until: bytes, token: bytes) -> Payload:
    """The payload of a locked message whose sender set delivery annotations, with the pair `token` added to them."""
    start = slot - SLOT_IN_ANNOTATIONS
    try:
        items = section.map_items(record, (header_end, start))
    except CodecError:  # the sender's own cannot be read: they stay, and the token is in the delivery tag
        annotations = record[header_end:start]
    else:
        own = [record[key:after] for key, value, after in items if record[key + 2 : value] != _TOKEN_NAME]
        pairs = b"".join((*own, token))
        annotations = b"\0Sq\xd1" + _OFFSETS.pack(len(pairs) + 4, 2 * len(own) + 2) + pairs
    rest, blob = rest_of(record, slot + 8)
    front = b"".join((record[PREFIX_BYTES:header_end], annotations, record[start:slot], locked_until, rest))
    return front if blob is None else Large(front, blob)


def deleted_payload(record: bytes) -> Payload:
    """The payload of a stored message in receive-and-delete: no lock token is among its delivery annotations."""
    payload = plain_payload(record)
    end = _HEADER_END + record[_HEADER_SIZE]
    if record[end + 2] == _DELIVERY_ANNOTATIONS:
        return payload
    end -= PREFIX_BYTES
    if isinstance(payload, bytes):
        return payload[:end] + _NO_ANNOTATIONS + payload[end:]
    return Large(payload.front[:end] + _NO_ANNOTATIONS + payload.front[end:], payload.blob)


def plain_payload(record: bytes, state: int = 0, locked_until: bytes | None = None) -> Payload:
    """The payload of a stored message in less frequent cases: without locked-until, or with its state named.

    Args:
        record: as stored.
        state: 0 active (not named), 1 deferred, 2 scheduled.
        locked_until: eight bytes; None leaves the annotation out.
    """
    _, slot, rest = PREFIX.unpack_from(record)
    start = (slot & SLOT_MASK) - SLOT_IN_ANNOTATIONS
    size, count = _OFFSETS.unpack_from(record, start + 4)
    extra = MESSAGE_STATE + b"\x71" + state.to_bytes(4, "big") if state else b""
    kept = record[start + 12 : rest]
    if locked_until is None:
        kept = kept[_LOCKED_UNTIL_BYTES:]
        size -= _LOCKED_UNTIL_BYTES
        count -= 2
    else:
        kept = kept[:21] + locked_until + kept[29:]
    counts = _OFFSETS.pack(size + len(extra), count + (2 if state else 0))
    behind, blob = rest_of(record, rest)
    front = b"".join((record[PREFIX_BYTES:start], b"\0Sr\xd1", counts, kept, extra, behind))
    return front if blob is None else Large(front, blob)
