"""The front of an encoded message: header, delivery annotations and message annotations.

What it is: `FrontReader` converts the front of a message as its broker delivers it into the front of the copy, and reads the
broker's annotations; `Front` is the layout of the last message's front, so that later ones with the same layout need not be
parsed. What it is not: the sender's sections after it (`message_copy`, `message_rewriter`).
Specification: OASIS AMQP 1.0, 3.2.1 to 3.2.3; Microsoft Learn, "AMQP 1.0 in Azure Service Bus and Event Hubs protocol guide".

Invariants:
    I1. The broker's annotations and the lock token are dropped; the sender's are kept byte for byte, except a PartitionKey that the
        policy sets.
    I2. Where the policy limits TimeToLive, the copy's header ends in four bytes of TimeToLive, with or without one in the original.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from isthmus.amqp import codec, section
from isthmus.amqp.codec import value_end
from isthmus.connectors.servicebus.message.sequence import ONLY_LOCK_TOKEN
from isthmus.message import name as names
from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.lifetime import TTL_LIMIT_MS
from isthmus.message.provenance import encoded

__all__ = ["MAP32", "U32", "Front", "FrontReader", "Head", "annotations_of", "with_partition_key"]

MAP32 = struct.Struct(">4sII").pack
U32 = struct.Struct(">I")
_I64 = struct.Struct(">q").unpack_from
_CACHE_LIMIT = 4096
# Longer fronts are not learned: the layout would cost more than it saves.
_FRONT_BYTES = 0xFFFF

_BROKER_ANNOTATIONS = frozenset(name.encode() for name in names.BROKER_ANNOTATIONS)
_SEQUENCE, _TOPIC_SEQUENCE, _ENQUEUED, _FIRST_ENQUEUED, _SOURCE = (
    names.SEQUENCE_NUMBER.encode(),
    names.ENQUEUE_SEQUENCE.encode(),
    names.ENQUEUED_TIME.encode(),
    names.FIRST_ENQUEUED_TIME.encode(),
    names.DEAD_LETTER_SOURCE.encode(),
)
_LOCK_TOKEN = names.LOCK_TOKEN.encode()
_PARTITION_KEY = names.PARTITION_KEY.encode()
_PARTITION_KEY_SYMBOL = b"\xa3%c%b" % (len(_PARTITION_KEY), _PARTITION_KEY)


class Head(NamedTuple):
    """The front of one message.

    Attributes:
        header: the copy's.
        delivery: its delivery annotations.
        annotations: its message annotations, encoded pairs.
        ttl_ms: the original's TimeToLive; 0: none.
        end: the end of the front.
        sequence: sequence number of the topic, otherwise of the entity; 0 where the message has none.
        enqueued_ms: when it was enqueued; 0 where unknown.
        first_ms: when it first entered the namespace, on a forwarded dead letter; 0 where unknown.
        dead_letter_source: encoded; empty where there is none.
        partition_key: encoded; empty where there is none.
    """

    header: bytes
    delivery: bytes
    annotations: tuple[bytes, ...]
    ttl_ms: int
    end: int
    sequence: int
    enqueued_ms: int
    first_ms: int
    dead_letter_source: bytes
    partition_key: bytes


class Slot(NamedTuple):
    """A variable field within a front.

    Attributes:
        start: offset from the message's beginning.
        size: in bytes.
        name: name of the annotation.
        out_at: offset in the copy; -1: a number of the broker, which is dropped.
    """

    start: int
    size: int
    name: bytes
    out_at: int


class Front:
    """The layout of a message up to its properties: constant bytes and variable fields, alternating.

    Variable fields are the broker's 8-byte numbers and, of the sender's annotations, short texts and numbers of a fixed size: the latter are
    in the copy, too.

    Attributes:
        size: its length.
        layout: in `struct` notation.
        unpack: splits it into constants (even indexes) and variable fields (odd indexes).
        constants: the constants at the even indexes.
        identity: index of the sequence number, or of the topic's where there is one.
        enqueued: index of the enqueued time.
        is_constant: whether the copy begins with `out`, with any variable fields.
        out: the beginning of the copy, without variable fields.
    """

    __slots__ = (
        "_kept",
        "_last",
        "_last_kept",
        "_most_ms",
        "_ttl_at",
        "_ttl_ms",
        "constants",
        "enqueued",
        "identity",
        "is_constant",
        "layout",
        "out",
        "size",
        "unpack",
    )

    def __init__(self, raw: bytes, slots: Sequence[Slot], out: bytes, ttl_ms: int, ttl_at: int, most_ms: int) -> None:
        layout, at = ">", 0
        indexes: dict[bytes, int] = {}
        self._kept: list[tuple[int, int, int]] = []
        self._last_kept: list[bytes] | None = None
        self._last = b""
        for number, (start, size, name, out_at) in enumerate(slots):
            layout += f"{start - at}s" + ("q" if out_at < 0 else f"{size}s")
            indexes[name] = 2 * number + 1
            at = start + size
            if out_at >= 0:
                self._kept.append((out_at, out_at + size, 2 * number + 1))
        self.layout = layout + f"{len(raw) - at}s"
        made = struct.Struct(self.layout)
        self.size = made.size
        self.unpack = made.unpack_from
        self.constants = made.unpack(raw)[0::2]
        self.identity = indexes.get(_TOPIC_SEQUENCE) or indexes[_SEQUENCE]
        self.enqueued = indexes[_ENQUEUED]
        self.is_constant = not ttl_ms and not self._kept
        self.out = out
        self._ttl_ms = ttl_ms
        self._ttl_at = ttl_at
        self._most_ms = most_ms

    def begin(self, fields: tuple[Any, ...], now_ms: int) -> bytes:
        """The beginning of the copy of a message that was split into `fields`."""
        pieces, at, out = [], 0, self.out
        kept = [fields[index] for _, _, index in self._kept]
        if not self._ttl_ms and kept == self._last_kept:
            return self._last
        if self._ttl_ms:
            enqueued_ms = fields[self.enqueued] or now_ms  # 0: unknown
            left = min(max(1, self._ttl_ms - max(0, now_ms - enqueued_ms)), self._most_ms)
            pieces += [out[: self._ttl_at], U32.pack(left)]
            at = self._ttl_at + 4
        for start, stop, index in self._kept:
            pieces += [out[at:start], fields[index]]
            at = stop
        pieces.append(out[at:])
        self._last_kept, self._last = kept, b"".join(pieces)
        return self._last


class FrontReader:
    """Reads fronts for one route.

    Args:
        policy: the route's.
    """

    def __init__(self, policy: CopyPolicy) -> None:
        self._most_ms = min(policy.ttl_ceiling_ms or TTL_LIMIT_MS, TTL_LIMIT_MS)
        self._has_ceiling = bool(policy.ttl_ceiling_ms)
        self.is_timed = bool(policy.ttl_ceiling_ms or policy.deadline_ms)
        self._headers: dict[bytes, tuple[bytes, int]] = {}

    def read(self, b: bytes, start: int, end: int) -> Head:
        """The front of a message that begins at `start`; `ttl_ms` is the original's."""
        p = start
        raw = delivery = source = partition_key = b""
        if b[p + 2] == 0x70:
            p = value_end(b, start + 3)
            raw = b[start:p]
        known = self._headers.get(raw)
        header, ttl_ms = known if known is not None else self._learn_header(raw)
        if p < end and b[p + 2] == 0x71:
            e = value_end(b, p + 3)
            delivery = _delivery_annotations(b, p, e)
            p = e
        sequence = topic_sequence = enqueued_ms = first_ms = 0
        kept: list[bytes] = []
        if p < end and b[p + 2] == 0x72:
            e = value_end(b, p + 3)
            for key, value, after in section.map_items(b, (p, e)):
                name = b[key + (2 if b[key] in (0xA3, 0xA1) else 5) : value]
                if name not in _BROKER_ANNOTATIONS:
                    kept.append(b[key:after])
                    if name == _PARTITION_KEY:
                        partition_key = b[value:after]
                elif name == _SEQUENCE:
                    sequence = _integer(b, value)
                elif name == _TOPIC_SEQUENCE:
                    topic_sequence = _integer(b, value)
                elif name == _ENQUEUED:
                    enqueued_ms = _integer(b, value)
                elif name == _FIRST_ENQUEUED:
                    first_ms = _integer(b, value)
                elif name == _SOURCE:
                    source = b[value:after]
            p = e
        return Head(
            header,
            delivery,
            tuple(kept),
            ttl_ms,
            p,
            topic_sequence or sequence,
            enqueued_ms,
            first_ms,
            source,
            partition_key,
        )

    def learn(self, b: bytes, start: int, end: int) -> Front | None:
        """The layout of this message's header and annotations, for later messages; None where it cannot be learned."""
        head = self.read(b, start, end)
        if head.delivery or head.end - start > _FRONT_BYTES:
            return None
        slots: list[Slot] = []
        token = value_end(b, start + 3) if b[start + 2] == 0x70 else start
        if b.startswith(ONLY_LOCK_TOKEN, token):  # different in each message: two numbers that are never read
            token += len(ONLY_LOCK_TOKEN) - start
            slots += [Slot(token, 8, b"token", -1), Slot(token + 8, 8, b"token's end", -1)]
        header = head.header
        if self._has_ceiling and not head.ttl_ms:
            header = header[:-4] + U32.pack(self._most_ms)
        annotations = annotations_of(head.annotations)
        out_at = len(header) + len(annotations) - sum(map(len, head.annotations))
        for key, value, after in section.map_items(b, section.locate(b, start, end).message_annotations):
            name = b[key + (2 if b[key] in (0xA3, 0xA1) else 5) : value]
            if name not in _BROKER_ANNOTATIONS:
                size = _kept_size(b, value, after)
                if size:
                    slots.append(Slot(after - size - start, size, name, out_at + after - size - key))
                out_at += after - key
                continue
            if name == _SOURCE:
                continue  # a text, the same for all dead letters of an entity
            if b[value] not in (0x81, 0x83) or b[key] != 0xA3:
                return None
            slots.append(Slot(after - 8 - start, 8, name, -1))
        names_found = {slot.name for slot in slots}
        if _SEQUENCE not in names_found or _ENQUEUED not in names_found:
            return None
        raw, out = b[start : head.end], header + annotations
        return Front(raw, slots, out, head.ttl_ms, len(header) - 4, self._most_ms)

    def _learn_header(self, raw: bytes) -> tuple[bytes, int]:
        """The header without the source's delivery count, and its TimeToLive in ms (0: none) in its last 4 bytes."""
        if not raw and not self.is_timed:
            return b"", 0
        header = section.decode_header(raw, (0, len(raw)))
        fields = [b"\x41" if header.durable else b"\x42", b"\x50" + bytes((header.priority,))]
        ttl_ms = header.ttl_ms or 0
        if ttl_ms > TTL_LIMIT_MS:
            ttl_ms = 0
        if ttl_ms or self.is_timed:
            fields.append(b"\x70" + U32.pack(ttl_ms))
        made = (b"\0Sp" + codec.encode_list(fields), ttl_ms)
        if len(self._headers) >= _CACHE_LIMIT:
            self._headers.clear()
        self._headers[raw] = made
        return made


def _kept_size(b: bytes, value: int, after: int) -> int:
    """The size of an annotation's value that may differ from message to message: of texts and of numbers in four or eight bytes."""
    code = b[value]
    return after - value - 2 if code == 0xA1 else after - value - 1 if code in (0x70, 0x71, 0x80, 0x81, 0x83) else 0


def annotations_of(pairs: tuple[bytes, ...]) -> bytes:
    """The section of message annotations; empty where there are none."""
    if not pairs:
        return b""
    joined = b"".join(pairs)
    return MAP32(b"\0Sr\xd1", len(joined) + 4, 2 * len(pairs)) + joined


def with_partition_key(pairs: tuple[bytes, ...], partition_key: str) -> tuple[bytes, ...]:
    """Encoded message annotations with another PartitionKey."""
    others = tuple(pair for pair in pairs if not pair.startswith(_PARTITION_KEY_SYMBOL))
    return (*others, _PARTITION_KEY_SYMBOL + encoded(partition_key))


def _integer(b: bytes, at: int) -> int:
    code = b[at]
    if code in (0x81, 0x83, 0x80):
        number: int = _I64(b, at + 1)[0]
        return number
    found, _ = codec.decode(b, at)
    return found if isinstance(found, int) else 0


def _delivery_annotations(b: bytes, start: int, end: int) -> bytes:
    """The sender's delivery annotations, without the broker's lock token."""
    if b.startswith(ONLY_LOCK_TOKEN, start) and end - start == len(ONLY_LOCK_TOKEN) + 16:
        return b""  # the usual case of a locked message
    items = section.map_items(b, (start, end))
    kept = [b[key:after] for key, value, after in items if b[key + 2 : value] != _LOCK_TOKEN]
    if not kept:
        return b""
    joined = b"".join(kept)
    return MAP32(b"\0Sq\xd1", len(joined) + 4, 2 * len(kept)) + joined
