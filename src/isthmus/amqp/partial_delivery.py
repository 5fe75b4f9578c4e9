"""A delivery whose last frame has not come yet (spec 2.6.14).

What it is: its parts and their account, pure. What it is not: the frames (`frame`), or the limit of what may be held (`connection`).

Invariants:
    I1. Small pieces take no more memory than is counted.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PartialDelivery"]

# Pieces of a delivery smaller than this are joined, so many at a time.
_SMALL_BYTES = 4096
_SMALL_PIECES = 256


class PartialDelivery:
    """A delivery whose last frame has not come yet.

    Attributes:
        size_bytes: of all that has come.
        held_bytes: of that, what has not been reported yet.
        is_reported: whether parts of it have been.
    """

    __slots__ = (
        "_small",
        "delivery_id",
        "held_bytes",
        "is_reported",
        "message_format",
        "parts",
        "settled",
        "size_bytes",
        "state",
        "tag",
    )

    def __init__(self, delivery_id: int, tag: bytes, message_format: int, settled: bool, state: Any) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = settled
        self.state = state
        self.parts: list[bytes] = []
        self.size_bytes = 0
        self.held_bytes = 0
        self.is_reported = False
        self._small = 0

    def add(self, payload: bytes) -> None:
        """Adds the next piece; small pieces are joined, because each takes more memory than is counted."""
        if not payload:
            return
        self.parts.append(payload)
        self.size_bytes += len(payload)
        self._small = self._small + 1 if len(payload) < _SMALL_BYTES else 0
        if self._small == _SMALL_PIECES:
            self.parts[-_SMALL_PIECES:] = [b"".join(self.parts[-_SMALL_PIECES:])]
            self._small = 0
