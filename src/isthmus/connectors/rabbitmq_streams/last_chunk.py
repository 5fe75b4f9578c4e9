"""What a look at the last chunk of a stream finds.

What it is: the last message of a stream, from what its consumer gives at `x-stream-offset: last`, pure: the whole chunk, of which the end is
told by the answer to a question that was asked behind its first message. What it is not: the consumer (`source`).
Specification: RabbitMQ documentation, "Streams and Superstreams" (consuming).

Invariants:
    I1. Nothing that came within `EMPTY_SECONDS` of a stream of which the broker counts no message is an empty stream; where it counts
        messages, one waits for the first.
"""

from __future__ import annotations

import math

from isthmus.connectors.rabbitmq.port.stream import EMPTY_SECONDS

__all__ = ["LastChunk"]


class LastChunk:
    """One look.

    Attributes:
        found: offset and digest of the last message; offset -1: there is none; None: it is not known yet.
        empty_at: monotonic time at which the stream is taken for empty; infinite where it is not going to be.
    """

    def __init__(self) -> None:
        self.found: tuple[int, str] | None = None
        self.empty_at = math.inf
        self._seen: tuple[int, str] = (-1, "")
        self._count = -1  # messages of the stream, as the broker says; -1: it has not said it
        self._is_asking = False

    def declared(self, count: int) -> None:
        """The broker has told how many messages there are; the second time, what came before is the whole of the chunk."""
        if self._count < 0:
            self._count = count
        else:
            self.found = self._seen

    def began(self, now: float) -> None:
        """The consumer is there."""
        if not self._count:
            self.empty_at = now + EMPTY_SECONDS

    def saw(self, offset: int, digest: str) -> bool:
        """A message came; whether the broker is to be asked again how many there are."""
        if offset > self._seen[0]:
            self._seen = offset, digest
        asks, self._is_asking = not self._is_asking, True
        self._count = max(self._count, 0)
        return asks

    def look(self, now: float) -> None:
        """Time has passed."""
        if self.found is None and now >= self.empty_at and self._seen[0] < 0:
            self.found = self._seen
        if self.found is not None:
            self.empty_at = math.inf
