"""Changes of a stored message: by abandon, dead-letter, activation, forwarding and rule actions.

What it is: the slow path beside `record`: a record is parsed, changed in one part, and built again. The body and
every unchanged value keep their encoding. Spec: docs/explanation/protocol.md, Settlement, Message, Rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from isthmus.amqp import codec, section
from isthmus.amqp.types import Symbol, Timestamp
from isthmus.entities.record.record import (
    ANNOTATIONS_BYTES,
    ENQUEUE_SEQUENCE,
    PREFIX,
    PREFIX_BYTES,
    SLOT_BITS,
    SLOT_IN_ANNOTATIONS,
    SLOT_MASK,
    Head,
    Parts,
    build,
    expires_at_ms,
    rest_of,
)
from isthmus.message.name import FIRST_ENQUEUED_TIME

__all__ = [
    "Stored",
    "annotation_of",
    "annotations_section",
    "as_dead_letters",
    "as_new",
    "as_passed",
    "check_encodable",
    "delivery_count",
    "merged",
    "message_id_of",
    "take_apart",
    "with_annotation",
    "with_delivery_count",
    "with_fields",
    "with_message_id",
    "with_properties",
]


class Stored(NamedTuple):
    """A parsed record.

    Attributes:
        enqueue_sequence: number under which the message first entered, None if that was here.
        hops: how often it was forwarded.
    """

    parts: Parts
    sequence: int
    enqueued_ms: int
    enqueue_sequence: int | None
    hops: int = 0

    @property
    def origin(self) -> int:
        """Sequence number under which the message first entered, here or elsewhere."""
        return self.sequence if self.enqueue_sequence is None else self.enqueue_sequence


def delivery_count(record: bytes) -> int:
    """How many deliveries of a stored message failed."""
    end = PREFIX_BYTES + 5 + record[PREFIX_BYTES + 4]
    return int.from_bytes(record[end - 4 : end], "big")


def with_delivery_count(record: bytes, count: int) -> bytes:
    """The record with another delivery count."""
    end = PREFIX_BYTES + 5 + record[PREFIX_BYTES + 4]
    return record[: end - 4] + min(count, 0xFFFFFFFF).to_bytes(4, "big") + record[end:]


def enqueued_ms_of(record: bytes) -> int:
    """The wall time at which a stored message was enqueued, without parsing the rest."""
    _, slot, _ = PREFIX.unpack_from(record)
    at = (slot & SLOT_MASK) - SLOT_IN_ANNOTATIONS + 95
    return int.from_bytes(record[at : at + 8], "big")


def take_apart(record: bytes) -> Stored:
    """The parts of a stored message, with its header as stored (delivery count included)."""
    _, slot, rest = PREFIX.unpack_from(record)
    hops, slot = slot >> SLOT_BITS, slot & SLOT_MASK
    start = slot - SLOT_IN_ANNOTATIONS
    header_end = PREFIX_BYTES + 5 + record[PREFIX_BYTES + 4]
    header = record[PREFIX_BYTES:header_end]
    count = int.from_bytes(record[start + 8 : start + 12], "big") // 2 - 3
    # Fixed offsets: see record.ANNOTATIONS.
    sequence = int.from_bytes(record[start + 65 : start + 73], "big")
    enqueued_ms = int.from_bytes(record[start + 95 : start + 103], "big")
    own = start + 12 + ANNOTATIONS_BYTES
    enqueue_sequence = None
    if record[own : own + 31] == ENQUEUE_SEQUENCE:
        enqueue_sequence = int.from_bytes(record[own + 32 : own + 40], "big")
        own += 40
        count -= 1
    ttl_ms = section.decode_header(header, (0, len(header))).ttl_ms or 0
    delivery = record[header_end:start]
    head = Head(header, ttl_ms, delivery, record[own:rest], count)
    own_rest, blob = rest_of(record, rest)
    return Stored(Parts(head, own_rest, b"", blob), sequence, enqueued_ms, enqueue_sequence, hops)


def annotation_of(parts: Parts, name: str) -> Any:
    """The sender's message annotation of that name; None if there is none that can be read."""
    content = annotations_section(parts.head)
    for key, value, _ in section.map_items(content, (0, len(content))):
        if codec.decode(content, key)[0] == name:
            try:
                return codec.decode(content, value)[0]
            except codec.CodecError:
                return None
    return None


def with_annotation(parts: Parts, name: str, value: Any) -> Parts:
    """The message with one message annotation set; `value` None removes it."""
    key = b"\xa3%c" % len(name) + name.encode()
    content = annotations_section(parts.head)
    pairs = [
        content[start:after]
        for start, middle, after in section.map_items(content, (0, len(content)))
        if content[start:middle] != key
    ]
    if value is not None:
        pairs.append(key + codec.encode(value))
    return parts._replace(head=parts.head.replace(annotations=b"".join(pairs), annotation_count=len(pairs)))


def annotations_section(head: Head) -> bytes:
    """The sender's message annotations as a section of their own."""
    pairs = head.annotations
    return b"\0Sr\xd1" + (len(pairs) + 4).to_bytes(4, "big") + (2 * head.annotation_count).to_bytes(4, "big") + pairs


def with_properties(rest: bytes, properties: Mapping[str, Any], removed: Iterable[str] = ()) -> bytes:
    """A message's bytes from the properties on, with application properties set and removed.

    Names are compared exactly; a property keeps its position when its value changes. Application properties that cannot be
    read stay unchanged, and nothing is set: whatever a sender wrote, its message can be dead-lettered.
    """
    found = section.locate(rest)
    start, end = found.application_properties
    if not end:
        start = end = found.properties[1]
    try:
        items = [
            (str(codec.decode(rest, key)[0]), key, value, after)
            for key, value, after in section.map_items(rest, found.application_properties)
        ]
    except codec.CodecError:
        return rest
    left = {str(name): codec.encode(value) for name, value in properties.items()}
    removed = set(removed)
    pairs: list[bytes] = []
    for name, key, value, after in items:
        if name in left:
            pairs += (rest[key:value], left.pop(name))
        elif name not in removed:
            pairs += (rest[key:value], rest[value:after])
    for name, encoded in left.items():
        pairs += (codec.encode(name), encoded)
    encoded_map = b"\0St" + codec.encode_map(pairs) if pairs else b""
    return rest[:start] + encoded_map + rest[end:]


def with_fields(rest: bytes, fields: Mapping[str, Any]) -> bytes:
    """A message's bytes from the properties on, with fields of the properties section set (None clears).

    Args:
        rest: a record's rest.
        fields: named as in `amqp.section.PROPERTY_NAMES`.
    """
    start, end = section.locate(rest).properties
    values: list[bytes] = []
    if end:
        at = start + 3
        code = rest[at]
        count = 0 if code == 0x45 else rest[at + 2] if code == 0xC0 else int.from_bytes(rest[at + 5 : at + 9], "big")
        at += 3 if code == 0xC0 else 9
        for _ in range(count):
            after = codec.value_end(rest, at)
            values.append(rest[at:after])
            at = after
    for name, value in fields.items():
        index = section.PROPERTY_NAMES.index(name)
        values.extend([b"\x40"] * (index + 1 - len(values)))
        if name in ("content_type", "content_encoding") and value is not None:
            value = Symbol(value)  # noqa: PLW2901 - the standard's type for these two
        values[index] = codec.encode(value)
    return rest[:start] + b"\0Ss" + codec.encode_list(values) + rest[end:]


def as_new(parts: Parts) -> Parts:
    """The message with its delivery count at zero: at the target, no delivery has failed yet."""
    header = parts.head.header
    if header.endswith(bytes(4)):
        return parts
    return parts._replace(head=parts.head.replace(header=header[:-4] + bytes(4)))


def as_passed(stored: Stored) -> Parts:
    """A dead letter as it is forwarded: new at the target, and with the time at which it was first enqueued, which it loses there.
    A deadline may be relative to the time at which the message was sent.
    """
    known = annotation_of(stored.parts, FIRST_ENQUEUED_TIME)
    # A value of another type is the sender's own, which an earlier release has stored.
    first = known if type(known) is Timestamp else Timestamp(stored.enqueued_ms)
    return as_new(with_annotation(stored.parts, FIRST_ENQUEUED_TIME, first))


def message_id_of(parts: Parts) -> bytes:
    """The encoded message-id, also of parts from a record; empty if there is none."""
    if parts.message_id:
        return parts.message_id
    rest = parts.rest
    start, end = section.locate(rest).properties
    if not end or rest[start + 3] == 0x45:
        return b""
    field = start + (6 if rest[start + 3] == 0xC0 else 12)
    return b"" if field >= end or rest[field] == 0x40 else rest[field : codec.value_end(rest, field)]


def with_message_id(parts: Parts, message_id: str) -> Parts:
    """The message with a message-id."""
    head, rest, _, blob, duplicate_key = parts
    encoded = codec.encode(message_id)
    if rest[:3] == b"\0Ss" or len(encoded) > 250:
        rest = with_fields(rest, {"message_id": message_id})
    else:  # a message that has only a body, of which an envelope may contain very many
        rest = b"\0Ss\xc0%c\x01" % (len(encoded) + 1) + encoded + rest
    return Parts(head, rest, encoded, blob, duplicate_key)


def as_dead_letters(
    messages: Sequence[Stored],
    source: str,
    reason: str | None,
    description: str | None,
    properties: Mapping[str, Any] | None,
) -> list[Stored]:
    """Stored messages as dead letters of a source, with reason, description and changed properties."""
    added = dict(properties or {})
    if reason is not None:
        added["DeadLetterReason"] = reason
    if description is not None:
        added["DeadLetterErrorDescription"] = description
    letters = []
    for stored in messages:
        parts = with_annotation(stored.parts, "x-opt-deadletter-source", source)
        if added:
            parts = parts._replace(rest=with_properties(parts.rest, added))
        letters.append(stored._replace(parts=parts))
    return letters


def check_encodable(properties: Mapping[str, Any] | None) -> None:
    """Refuse properties to modify that cannot be encoded, before anything is staged for them.

    Raises:
        CodecError: one has a value without an AMQP type.
    """
    for value in (properties or {}).values():
        codec.encode(value)


def merged(record: bytes, sequence: int, properties: Mapping[str, Any] | None) -> bytes:
    """The record with properties to modify merged into its application properties."""
    if not properties:
        return record
    stored = take_apart(record)
    parts = stored.parts._replace(rest=with_properties(stored.parts.rest, properties))
    return build(parts, sequence, stored.enqueued_ms, expires_at_ms(record), stored.enqueue_sequence, stored.hops)
