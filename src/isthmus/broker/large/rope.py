"""An encoded value that is not in memory as a whole: replies that contain large messages.

What it is: segments, each bytes or the body of a large message, and the encoding of maps and lists that contain them. What
it is not: a general encoder (`isthmus.amqp.codec`).
Spec: AMQP 1.0 part 1.6.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from isthmus.amqp import codec
from isthmus.entities import Blob, Large

__all__ = ["Rope", "Segment", "encode_rope"]

Segment = bytes | Blob


class Rope:
    """Bytes in segments.

    Attributes:
        segments: in order.
        memory_bytes: of those that are in memory.
    """

    __slots__ = ("_size_bytes", "memory_bytes", "segments")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self.segments = tuple(segments)
        self.memory_bytes = sum(len(each) for each in self.segments if isinstance(each, bytes))
        self._size_bytes = self.memory_bytes + sum(each.size_bytes for each in self.segments if isinstance(each, Blob))

    def __len__(self) -> int:
        return self._size_bytes


def encode_rope(value: Any) -> Rope | None:
    """A value of maps, lists and payloads, encoded; None if no large message is among them.

    Raises:
        CodecError: as `codec.encode`.
    """
    if isinstance(value, Large):
        return Rope([b"\xb0" + len(value).to_bytes(4, "big") + value.front, value.blob])
    if isinstance(value, dict):
        items = [each for pair in value.items() for each in pair]
        return _compound(b"\xd1", items)
    if isinstance(value, list):
        return _compound(b"\xd0", value)
    return None


def _compound(code: bytes, items: list[Any]) -> Rope | None:
    ropes = [encode_rope(each) for each in items]
    if not any(ropes):
        return None
    parts = [rope or Rope([codec.encode(each)]) for rope, each in zip(ropes, items, strict=True)]
    size = sum(map(len, parts)) + 4
    head = code + size.to_bytes(4, "big") + len(items).to_bytes(4, "big")
    return Rope([head, *(segment for part in parts for segment in part.segments)])
