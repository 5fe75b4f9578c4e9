"""The size of messages that were read and wait for the owner's credit.

What it is: their account, pure. What it is not: the messages (`isthmus.connectors.eventhubs.partition.reading`).
"""

from __future__ import annotations

from collections import deque

__all__ = ["KEPT_BYTES", "WaitingBytes"]

KEPT_BYTES = 4 << 20


class WaitingBytes:
    """The waiting bytes of one source."""

    def __init__(self) -> None:
        self._sizes: deque[tuple[int, int]] = deque()  # by offset
        self._nbytes = 0

    @property
    def is_much(self) -> bool:
        """Whether reading must stop."""
        return self._nbytes > KEPT_BYTES

    def add(self, offset: int, nbytes: int) -> None:
        """A message was read."""
        self._sizes.append((offset, nbytes))
        self._nbytes += nbytes

    def taken(self, offset: int) -> None:
        """Messages up to this one were delivered."""
        while self._sizes and self._sizes[0][0] <= offset:
            self._nbytes -= self._sizes.popleft()[1]

    def clear(self) -> None:
        """No messages wait."""
        self._sizes.clear()
        self._nbytes = 0
