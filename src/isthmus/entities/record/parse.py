"""Parsing of a sender's encoded message.

What it is: a walk over the sections that decodes nothing twice: the part before the properties
is looked up by its bytes. Spec: docs/explanation/protocol.md, Sending, Message; AMQP 1.0 part 3.2.

Invariants:
    I1. Nothing of the sender's message changes except header.ttl (cut to the entity's) and reserved annotations (dropped).
    I2. Sections are written in the standard's order, in whatever order they arrived.
    I3. Bytes that are not a message raise InvalidMessageError; `split` raises nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from isthmus.amqp import codec, section
from isthmus.amqp.codec import value_end
from isthmus.entities.error import InvalidMessageError
from isthmus.entities.record.copy import KeyReader
from isthmus.entities.record.copy_layout import CopyLayout
from isthmus.entities.record.record import Head, Parts
from isthmus.entities.storage.blob import Large, Payload
from isthmus.message.duplicate_key import KEY_BYTES
from isthmus.message.name import FIRST_ENQUEUED_TIME

__all__ = ["HeadCache", "normalised_header", "split", "split_many", "split_mixed", "split_packed"]

_RESERVED = frozenset(
    (
        "x-opt-locked-until",
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        FIRST_ENQUEUED_TIME,
    )
)
_MALFORMED = (IndexError, codec.CodecError, ValueError)
_new = tuple.__new__  # as a named tuple's own constructor calls, in half the time
_SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
_REMEMBERED = 1000
_REMEMBERED_BYTES = 512
# Lists in less usual encodings than a one-byte size: with a four-byte size, and empty.
_LISTS = (0xD0, 0x45)
# How many layouts of copies are learned in one envelope at most: each takes as long as two copies.
_LEARNS = 8
# Descriptor, code and size of a section whose size has four bytes.
_WIDE = struct.Struct(">4sI")


def normalised_header(header: section.Header, default_ttl_ms: int, flags: bytes) -> tuple[bytes, int]:
    """The stored header section, and the effective time to live in ms (0: without end).

    Args:
        header: as the sender has it.
        default_ttl_ms: the entity's; 0 is without end.
        flags: encoded durable and priority.
    """
    ttl_ms = header.ttl_ms
    if default_ttl_ms and (ttl_ms is None or ttl_ms > default_ttl_ms):
        ttl_ms = default_ttl_ms
    # A header can express 49 days at most; a longer default still ends the message's life, without being in the header.
    encoded = b"\x40" if ttl_ms is None or ttl_ms > 0xFFFFFFFF else b"\x70" + ttl_ms.to_bytes(4, "big")
    fields = flags + encoded + b"\x42\x70\0\0\0\0"
    return b"\0Sp\xc0%c\x05" % (len(fields) + 1) + fields, 0 if ttl_ms is None else max(1, ttl_ms)


def _is_in(value: object, most: int) -> bool:
    """Whether a field has a number from 0 to `most`; its type is the sender's choice."""
    return isinstance(value, int) and 0 <= value <= most


class HeadCache:
    """Heads of one entity by the bytes that senders send; there are few different ones.

    Args:
        default_ttl_ms: the entity's default time to live; 0 is without end.

    Attributes:
        known: heads by their bytes as sent; emptied when it has grown too large.
    """

    __slots__ = ("_capped", "_default_ttl_ms", "known")

    def __init__(self, default_ttl_ms: int) -> None:
        self._default_ttl_ms = default_ttl_ms
        self._capped: dict[Head, Head] = {}
        self.known: dict[bytes, Head] = {}

    def read(self, raw: bytes) -> Head:
        """The head for header, delivery annotations and message annotations as sent, any of them absent.

        Raises:
            CodecError: a section is malformed.
        """
        found = section.locate(raw)
        header, ttl_ms = self._header(raw, found.header)
        pairs = []
        due_ms = 0
        for key, value, after in section.map_items(raw, found.message_annotations):
            name = codec.decode(raw, key)[0]
            if not isinstance(name, str):
                raise codec.CodecError("an annotation's key is not a symbol")
            if name in _RESERVED:
                continue
            text = name.encode()
            if len(text) > 255:
                raise codec.CodecError("an annotation's key is longer than 255 bytes")
            if name == _SCHEDULED_TIME and raw[value] != 0x40:
                due_ms = codec.decode(raw, value)[0]
                if not isinstance(due_ms, int):
                    raise codec.CodecError(f"{_SCHEDULED_TIME} is not a timestamp")
            pairs.append(b"\xa3%c" % len(text) + text + raw[value:after])
        start, end = found.delivery_annotations
        head = Head(header, ttl_ms, raw[start:end], b"".join(pairs), len(pairs), due_ms)
        if not due_ms and len(raw) <= _REMEMBERED_BYTES:
            if len(self.known) >= _REMEMBERED:
                self.known.clear()
            self.known[raw] = head
        return head

    def _header(self, raw: bytes, bounds: tuple[int, int]) -> tuple[bytes, int]:
        if not bounds[1]:
            return normalised_header(section.Header(), self._default_ttl_ms, b"\x41\x40")
        header = section.decode_header(raw, bounds)
        if not _is_in(header.priority, 0xFF) or not (header.ttl_ms is None or _is_in(header.ttl_ms, 0xFFFFFFFF)):
            raise codec.CodecError("the header's fields have the wrong types")
        flags = (b"\x41" if header.durable else b"\x42") + b"\x50%c" % header.priority
        return normalised_header(header, self._default_ttl_ms, flags)

    def capped(self, head: Head) -> Head:
        """A head from elsewhere with this entity's default time to live applied."""
        if not self._default_ttl_ms or 0 < head.ttl_ms <= self._default_ttl_ms:
            return head
        known = self._capped.get(head)
        if known is None:
            header, ttl_ms = self._header(head.header, (0, len(head.header)))
            known = head.replace(header=header, ttl_ms=ttl_ms)
            if len(self._capped) >= _REMEMBERED:
                self._capped.clear()
            self._capped[head] = known
        return known


def split_many(messages: Sequence[bytes], heads: HeadCache) -> list[Parts]:
    """Parse encoded messages.

    Raises:
        InvalidMessageError: one of them is not a message.
    """
    taken: list[Parts] = []
    for message in messages:
        try:
            parts = _split(message, heads)
        except _MALFORMED:
            parts = None
        taken.append(parts or split(message, heads))
    return taken


def split_packed(
    data: bytes, bounds: Sequence[tuple[int, int]], heads: HeadCache, keys: KeyReader | None = None
) -> list[Parts]:
    """As `split_many` for messages that are in `data`; those with the head of the one before are read without copying.

    Args:
        data: bytes that contain the messages.
        bounds: start and end of each.
        heads: the entity's.
        keys: reads their duplicate keys, where they are copies.

    Raises:
        InvalidMessageError: one of them is not a message.
    """
    taken: list[Parts] = []
    add, read = taken.append, _WIDE.unpack_from
    raw, head = b"", None
    key_at = None if keys is None else keys.key
    layout: CopyLayout | None = None
    sizes, learns = (0, 0), _LEARNS
    for start, stop in bounds:
        if layout is not None:
            parts = layout.read(data, start, stop)
            if parts is not None:
                add(parts)
                continue
            layout = None
        at = rest = start + len(raw)
        # Bytes read behind `stop` belong to another message: then the sections do not end there.
        if head is not None and stop - at > 16 and data.startswith(raw, start) and data[at : at + 4] == b"\0Ss\xc0":
            after = at + 8 + data[at + 7] if data[at + 6] == 0xA1 and data[at + 5] else 0
            at += 5 + data[at + 4]
            if 0 < after <= at and at + 8 <= stop:
                own = at
                kind, size = read(data, at)
                if kind == b"\0St\xd1" and at + size + 16 <= stop:
                    at += 8 + size
                    kind, size = read(data, at)
                own_end = at
                size = 3 + size if kind == b"\0Su\xb0" else data[at + 4] if kind == b"\0Su\xa0" else -at
                if at + 5 + size == stop:
                    key = b"" if key_at is None else key_at(data, own, own_end)
                    if len(key) != KEY_BYTES:  # a key of that length is of a message that a pair moved
                        add(_new(Parts, (head, data[rest:stop], data[rest + 6 : after], None, key)))
                        if keys is not None and learns:
                            # Two in a row: where lengths differ from copy to copy, no time is lost.
                            if sizes == (own - start, own_end - own):
                                layout = CopyLayout.of(data, start, rest, own, own_end, head, keys)
                                learns -= 1
                            sizes = (own - start, own_end - own)
                        continue
        message = data[start:stop]
        parts = split_many((message,), heads)[0]
        raw = message[: len(message) - len(parts.rest)]
        head = heads.known.get(raw) if message.endswith(parts.rest) else None
        add(parts if keys is None else keys.with_keys((parts,))[0])
    return taken


def split_mixed(messages: Sequence[Payload], heads: HeadCache) -> list[Parts]:
    """As `split_many`, where some messages are large."""
    return [
        split_many([message], heads)[0] if isinstance(message, bytes) else _split_front(message, heads)
        for message in messages
    ]


def _split_front(message: Large, heads: HeadCache) -> Parts:
    """Parse a large message; its body was checked before."""
    try:
        parts = split(message.front, heads) if message.front else Parts(heads.read(b""), b"")
    except _MALFORMED as error:
        raise InvalidMessageError(f"the payload is not an AMQP message: {error}") from None
    return parts._replace(blob=message.blob)


def split(message: bytes, heads: HeadCache) -> Parts:
    """Parse an encoded message.

    Raises:
        InvalidMessageError: the bytes are not a message.
    """
    try:
        parts = _split(message, heads)
        if parts is None:
            found = section.locate(message)
            parts = _split(b"".join([message[start:end] for start, end in found]), heads)
    except _MALFORMED as error:
        raise InvalidMessageError(f"the payload is not an AMQP message: {error}") from None
    if parts is None:
        raise InvalidMessageError("the payload is not an AMQP message")
    return parts


def _split(b: bytes, heads: HeadCache) -> Parts | None:
    """`split` for sections in the standard's order; None if they are not. One-byte sizes are read without a call."""
    end = len(b)
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
    head = heads.known.get(raw) or heads.read(raw)
    rest = at
    message_id = b""
    if kind == b"\0Ss":
        if b[at + 3] == 0xC0:
            field, present = at + 6, b[at + 5]
            at += 5 + b[at + 4]
        elif b[at + 3] in _LISTS:
            field, present = at + 12, b[at + 3] == 0xD0 and b[at + 8 : at + 12] != b"\0\0\0\0"
            at = value_end(b, at + 3)
        else:
            return None
        if present and b[field] != 0x40:
            after = field + 2 + b[field + 1] if b[field] == 0xA1 else value_end(b, field)
            if after > at:
                return None
            message_id = b[field:after]
        kind = b[at : at + 3]
    if kind == b"\0St":
        if b[at + 3] == 0xC1:
            at += 5 + b[at + 4]
        elif b[at + 3] == 0xD1:
            at = at + 8 + int.from_bytes(b[at + 4 : at + 8], "big")
        else:
            return None
        kind = b[at : at + 3]
    if kind == b"\0Su":  # the usual body: one data section
        at = at + 8 + int.from_bytes(b[at + 4 : at + 8], "big") if b[at + 3] == 0xB0 else value_end(b, at + 3)
    if not end or (at != end and not _ends_well(b, at, end)):
        return None
    return _new(Parts, (head, b[rest:], message_id, None, b""))


def _ends_well(b: bytes, at: int, end: int) -> bool:
    """Whether body sections, then at most one footer, fill the message from `at` to `end`."""
    footer = False
    while at < end:
        if b[at] or b[at + 1] != 0x53 or footer or not 0x75 <= b[at + 2] <= 0x78:
            return False
        footer = b[at + 2] == 0x78
        at = value_end(b, at + 3)
    return at == end
