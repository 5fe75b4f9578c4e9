"""The memory limit of a plain write.

What it is: the account of rows between Spark's thread, which waits while they are many, and the loop that sends them. What it is
not: the window of a route; with a reader that window limits the rows, and without one only this does.

Invariants:
    I1. `add` returns at once while less than `limit` waits, so that rows of any size are accepted.
    I2. Each number is written by one thread only.
"""

from __future__ import annotations

import threading

__all__ = ["SenderRoom"]

LIMIT_BYTES = 32 << 20


class SenderRoom:
    """The account of one write.

    Args:
        limit: bytes that may wait before more is added.
    """

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._added = 0
        self._taken = 0
        self._is_open = True

    def add(self, nbytes: int) -> None:
        """For Spark's thread: waits until there is room, or the loop has ended."""
        if self._added - self._taken >= self._limit:
            with self._changed:
                self._changed.wait_for(lambda: self._added - self._taken < self._limit or not self._is_open)
        self._added += nbytes

    def took(self, nbytes: int) -> None:
        """For the loop: sets the number of bytes taken in all."""
        if nbytes != self._taken:
            with self._changed:
                self._taken = nbytes
                self._changed.notify_all()

    def close(self) -> None:
        """For the loop: it has ended."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
