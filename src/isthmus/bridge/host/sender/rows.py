"""Rows that wait for their target.

What it is: a queue of parts of Spark's batches, in order, which joins small ones: copies are made and handed over a part at a time.
What it is not: the messages that the delivery machine has (`isthmus.bridge.delivery.outbox`).

Invariants:
    I1. Rows are taken in the order in which they were added.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from isthmus.bridge.delivery_event import Disposition

__all__ = ["Part", "WaitingRows"]

# Parts are joined while they have fewer rows and bytes together.
JOINED_ROWS = 500
JOINED_BYTES = 1 << 20


class Part(NamedTuple):
    """Rows of one route that came together; see `SenderHost.hand_over`."""

    positions: Sequence[int] | None
    data: bytes
    offsets: Sequence[int]
    disposed: Sequence[tuple[int, Disposition]] = ()
    clock_offset_ms: int | None = None
    diverted: Sequence[tuple[int, Disposition, bytes]] = ()

    @property
    def messages(self) -> int:
        """The number of rows to send."""
        return max(0, len(self.offsets) - 1)

    @property
    def rows(self) -> int:
        """All rows."""
        return self.messages + len(self.disposed) + len(self.diverted)


class WaitingRows:
    """The queue of one route.

    Attributes:
        nbytes: of the waiting rows.
    """

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, part: Part) -> None:
        """Rows came."""
        self._parts.append(part)
        self.nbytes += len(part.data)

    def take(self) -> Part:
        """The first rows; there must be some."""
        first = self._parts.popleft()
        self.nbytes -= len(first.data)
        if not self._parts or not self._joins(first, self._parts[0]):
            return first
        parts, rows, size = [first], first.messages, len(first.data)
        while self._parts and self._joins(first, self._parts[0]):
            following = self._parts[0]
            rows, size = rows + following.messages, size + len(following.data)
            if rows > JOINED_ROWS or size > JOINED_BYTES:
                break
            parts.append(self._parts.popleft())
            self.nbytes -= len(following.data)
        return _joined(parts) if len(parts) > 1 else first

    @staticmethod
    def _joins(first: Part, following: Part) -> bool:
        return (
            not first.disposed
            and not following.disposed
            and (first.positions is None) == (following.positions is None)
            and first.clock_offset_ms == following.clock_offset_ms
        )


def _joined(parts: list[Part]) -> Part:
    offsets = [0]
    for part in parts:
        base = offsets[-1]
        offsets += [base + offset for offset in part.offsets[1:]] if base else part.offsets[1:]
    positions = [part.positions for part in parts if part.positions is not None]
    data = b"".join([part.data for part in parts])
    return Part(_concatenated(positions) if positions else None, data, offsets, (), parts[0].clock_offset_ms)


def _concatenated(sequences: list[Sequence[int]]) -> Sequence[int]:
    if all(isinstance(each, range) and each.step == 1 and each for each in sequences):
        follow = all(before[-1] + 1 == behind[0] for before, behind in pairwise(sequences))
        if follow:
            return range(sequences[0][0], sequences[-1][-1] + 1)
    return list(chain.from_iterable(sequences))
