"""The reading of the last chunk of a stream.

What it is: the last message of a stream, from a consumer at `x-stream-offset: last`, pure: the whole chunk, whose end is
marked by the answer to a request that was sent after its first message. What it is not: the consumer (`source`).
Specification: RabbitMQ documentation, "Streams and Superstreams" (consuming).

Invariants:
    I1. A stream without messages within `EMPTY_SECONDS` is empty if the broker counts none; if it counts
        some, the first is waited for.
"""

from __future__ import annotations

import math

from isthmus.connectors.rabbitmq.port.stream import EMPTY_SECONDS

__all__ = ["LastChunk"]


class LastChunk:
    """One reading of the last chunk.

    Attributes:
        found: offset and digest of the last message; offset -1: there is none; None: not known yet.
        empty_at: monotonic time at which the stream counts as empty; infinite if it cannot.
    """

    def __init__(self) -> None:
        self.found: tuple[int, str] | None = None
        self.empty_at = math.inf
        self._seen: tuple[int, str] = (-1, "")
        self._count = -1  # the broker's count of messages; -1: unknown
        self._is_asking = False

    def declared(self, count: int) -> None:
        """The broker returned its count of messages; the second time, the messages before it are the whole chunk."""
        if self._count < 0:
            self._count = count
        else:
            self.found = self._seen

    def began(self, now: float) -> None:
        """The consumer has started."""
        if not self._count:
            self.empty_at = now + EMPTY_SECONDS

    def saw(self, offset: int, digest: str) -> bool:
        """A message arrived; returns whether to request the count again."""
        if offset > self._seen[0]:
            self._seen = offset, digest
        asks, self._is_asking = not self._is_asking, True
        self._count = max(self._count, 0)
        return asks

    def look(self, now: float) -> None:
        """The time has advanced."""
        if self.found is None and now >= self.empty_at and self._seen[0] < 0:
            self.found = self._seen
        if self.found is not None:
            self.empty_at = math.inf
