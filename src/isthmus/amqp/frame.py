"""Frames, and the fast path for runs of equal-shaped transfer frames (spec 2.3, 2.7.5).

What it is: protocol headers, frame building, and `Shape`: all transfers of a link differ only in size, delivery id, tag
and payload, so after one has been parsed in full, those that follow are parsed with one struct call each. What it is not:
state; `Link` and `AmqpSession` keep that.

Invariants:
    I1. `Shape.scan` accepts a frame only if the general parser would give the same delivery.
    I2. Frames built by `TransferWriter` are read by the general parser as sent.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from isthmus.amqp import codec
from isthmus.amqp.codec import CodecError, value_end
from isthmus.amqp.performative import Composite
from isthmus.amqp.types import UInt

__all__ = ["AMQP_HEADER", "EMPTY_FRAME", "MASK32", "SASL_HEADER", "Shape", "TransferWriter", "accepted_frame", "frame"]

AMQP_HEADER = b"AMQP\0\1\0\0"
SASL_HEADER = b"AMQP\3\1\0\0"
EMPTY_FRAME = b"\0\0\0\x08\x02\0\0\0"
MASK32 = 0xFFFFFFFF

_FRAME_HEAD = struct.Struct(">IBBH")


def frame(channel: int, body: Composite | bytes, kind: int = 0) -> bytes:
    """One frame; `kind` 0 is AMQP, 1 is SASL."""
    raw = body if isinstance(body, bytes) else body.encode()
    return _FRAME_HEAD.pack(8 + len(raw), 2, kind, channel) + raw


_ACCEPTED = struct.Struct(">I2sH6ssBIBI6s")


def accepted_frame(channel: int, role: bool, first: int, last: int) -> bytes:
    """disposition(role, first, last, settled=true, state=accepted), the frame sent most often."""
    return _ACCEPTED.pack(
        _ACCEPTED.size,
        b"\x02\0",
        channel,
        b"\0S\x15\xc0\x12\x06",
        b"\x41" if role else b"\x42",
        0x70,
        first,
        0x70,
        last,
        b"\x41\0S\x24\x45\x42",
    )


class Shape:
    """How one peer writes the transfers of one link: constant bytes around size, delivery id and tag.

    `learn` gives None for frames that vary in other places (short delivery ids, delivery state, continuation).
    """

    __slots__ = ("head", "middle", "size", "tail", "unpack")

    def __init__(self, head: bytes, middle: bytes, tag_length: int, tail: bytes) -> None:
        layout = struct.Struct(f">I{len(head)}sI2s{tag_length}s{len(tail)}s")
        self.head = head
        self.middle = middle
        self.tail = tail
        self.size = layout.size
        self.unpack = layout.unpack_from

    @classmethod
    def learn(cls, buffer: bytes, at: int, payload: int) -> Shape | None:
        """The shape of the transfer frame at `at`, whose payload starts at `payload`."""
        try:
            field = at + 14 if buffer[at + 11] == 0xC0 else at + 20
            delivery_id = value_end(buffer, field)
            tag = value_end(buffer, delivery_id)
            tail = value_end(buffer, tag)
        except CodecError:
            return None
        if buffer[delivery_id] != 0x70 or buffer[tag] != 0xA0 or not 0 < buffer[tag + 1] <= 32 or tail > payload:
            return None
        return cls(buffer[at + 4 : delivery_id + 1], buffer[tag : tag + 2], buffer[tag + 1], buffer[tail:payload])

    def scan(
        self, buffer: bytes, at: int, end: int, limit: int, expected: int, tags: list[bytes], payloads: list[bytes]
    ) -> int:
        """Takes frames of this shape with consecutive delivery ids from `expected` on; where it stopped.

        Args:
            buffer: what arrived.
            at: start of the first frame.
            end: end of what arrived.
            limit: largest frame allowed, in bytes.
            expected: delivery id that the first frame must have.
            tags: tags are appended here.
            payloads: payloads are appended here.
        """
        unpack, head, middle, tail, fixed = self.unpack, self.head, self.middle, self.tail, self.size
        add_tag, add_payload = tags.append, payloads.append
        last = end - fixed
        while at <= last:
            size, frame_head, delivery_id, tag_head, tag, frame_tail = unpack(buffer, at)
            after = at + size
            if (
                frame_head != head
                or delivery_id != expected
                or frame_tail != tail
                or tag_head != middle
                or after > end
                or not fixed <= size <= limit
            ):
                break
            add_payload(buffer[at + fixed : after])
            add_tag(tag)
            expected = (expected + 1) & MASK32
            at = after
        return at


class TransferWriter:
    """Builds the transfer frames of one outgoing link."""

    __slots__ = ("_cache", "_handle", "channel")

    def __init__(self, channel: int, handle: int) -> None:
        self.channel = channel
        self._handle = codec.encode(UInt(handle))
        self._cache: dict[tuple[int, int, bool], tuple[struct.Struct, bytes, bytes, bytes]] = {}

    def _template(
        self, tag_length: int, message_format: int, settled: bool
    ) -> tuple[struct.Struct, bytes, bytes, bytes]:
        key = (tag_length, message_format, settled)
        made = self._cache.get(key)
        if made is None:
            tail = (b"\x43" if message_format == 0 else b"\x70" + message_format.to_bytes(4, "big")) + (
                b"\x41" if settled else b"\x42"
            ) + b"\x42\x40\x40\x42\x42\x42"  # fmt: skip
            length = len(self._handle) + 5 + 2 + tag_length + len(tail)
            head = (
                b"\x02\0"
                + self.channel.to_bytes(2, "big")
                + b"\0S\x14\xc0"
                + bytes((length + 1, 11))
                + self._handle
                + b"\x70"
            )
            layout = struct.Struct(f">I{len(head)}sI2s{tag_length}s{len(tail)}s")
            made = self._cache[key] = (layout, head, bytes((0xA0, tag_length)), tail)
        return made

    def whole(
        self, payloads: Sequence[bytes], tags: Sequence[bytes], first_id: int, message_format: int, settled: bool
    ) -> bytes:
        """One frame for each payload; all tags have the same length and every frame fits the peer's limit."""
        layout, head, middle, tail = self._template(len(tags[0]), message_format, settled)
        pack, fixed = layout.pack, layout.size
        out: list[bytes] = []
        add = out.append
        delivery_id = first_id
        for tag, payload in zip(tags, payloads, strict=True):
            add(pack(fixed + len(payload), head, delivery_id & MASK32, middle, tag, tail))
            add(payload)
            delivery_id += 1
        return b"".join(out)

    def overhead(self, tag_length: int) -> int:
        """The greatest number of bytes of a frame besides its payload."""
        return 41 + tag_length

    def split(
        self,
        payload: bytes,
        tag: bytes,
        delivery_id: int,
        message_format: int,
        settled: bool,
        limit: int,
        *,
        more: bool = False,
    ) -> list[bytes]:
        """The frames, each at most `limit` bytes, of a payload that may be too large for one.

        Args:
            payload: of a delivery, or a part of it.
            tag: the delivery's.
            delivery_id: likewise.
            message_format: likewise.
            settled: likewise.
            limit: the largest frame that the peer takes.
            more: whether further parts of the delivery follow.
        """
        room = limit - self.overhead(len(tag))
        last = max(0, len(payload) - 1) // room * room
        view = memoryview(payload)
        return [
            self._piece(view[at : at + room], tag, delivery_id, message_format, settled, more or at < last)
            for at in range(0, last + 1, room)
        ]

    def _piece(
        self, payload: memoryview, tag: bytes, delivery_id: int, message_format: int, settled: bool, more: bool
    ) -> bytes:
        fields = [
            self._handle,
            b"\x70" + delivery_id.to_bytes(4, "big"),
            codec.encode(tag),
            codec.encode(UInt(message_format)),
            b"\x41" if settled else b"\x42",
            b"\x41" if more else b"\x42",
            b"\x40",
            b"\x40",
            b"\x42",
            b"\x42",
            b"\x42",
        ]
        performative = b"\0S\x14" + codec.encode_list(fields)
        head = _FRAME_HEAD.pack(8 + len(performative) + len(payload), 2, 0, self.channel)
        return b"".join((head, performative, payload))
