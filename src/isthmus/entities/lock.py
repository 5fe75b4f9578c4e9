"""Locks of one queue: who may settle which delivered message, and until when."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Acquired"]


class Acquired:
    """Messages taken by one call of ``acquire``.

    Attributes:
        tags: lock tokens of 16 bytes, in the order of the messages; also the delivery tags.
        payloads: encoded messages, ready for the wire.
        sequences: their sequence numbers, ascending.
        locked_until_ms: wall time; 0 where the messages were deleted instead of locked.
    """

    __slots__ = ("locked_until_ms", "payloads", "sequences", "tags")

    def __init__(
        self, tags: list[bytes], payloads: list[bytes], sequences: Sequence[int], locked_until_ms: int
    ) -> None:
        self.tags = tags
        self.payloads = payloads
        self.sequences = sequences
        self.locked_until_ms = locked_until_ms
