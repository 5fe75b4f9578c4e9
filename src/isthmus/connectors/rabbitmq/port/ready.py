"""Messages received beyond the credit, which wait until there is credit again.

What it is: a queue of positions and payloads, and its bytes. What it is not: the credit.

Credit. Quorum queues do not allow changing a consumer's prefetch, so the prefetch is constant, and messages beyond the credit are kept here
until there is credit again, or return with the connection. If they exceed `KEPT_BYTES`, reading stops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from isthmus.bridge.port import Arrived

__all__ = ["Ready"]

KEPT_BYTES = 4 << 20


class Ready:
    """The messages of one channel.

    Attributes:
        nbytes: size of the payloads.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._messages: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        """Whether no more should be read."""
        return self.nbytes > KEPT_BYTES

    def __iter__(self) -> Iterator[int]:
        """The positions."""
        return (position for position, _ in self._messages)

    def add(self, position: int, payload: bytes) -> None:
        """A message arrived."""
        self._messages.append((position, payload))
        self.nbytes += len(payload)

    def take(self, count: int) -> Arrived:
        """The first messages, so many at most; there must be at least one."""
        waiting = self._messages
        if count >= len(waiting):
            parts = list(waiting)
            waiting.clear()
            self.nbytes = 0
        else:
            parts = [waiting.popleft() for _ in range(count)]
            self.nbytes -= sum(len(payload) for _, payload in parts)
        positions, payloads = zip(*parts, strict=True)
        run = range(positions[0], positions[-1] + 1)
        return Arrived(run if len(run) == len(positions) else positions, payloads)  # they ascend

    def clear(self) -> None:
        """The messages return with the channel."""
        self._messages.clear()
        self.nbytes = 0
