"""Random bytes without a system call for each few.

What it is: bytes of `os.urandom`, fetched some thousands at a time: a call took 19 us, and a lock token needs 8 bytes. What it
is not: a generator of its own, thread-safe, or for a process that forks.
"""

from __future__ import annotations

import os

__all__ = ["RandomPool"]

_POOL_BYTES = 4096


class RandomPool:
    """Hands out random bytes, each once."""

    def __init__(self) -> None:
        self._pool = b""
        self._at = 0

    def __call__(self, count: int) -> bytes:
        """So many bytes, unpredictable to others."""
        end = self._at + count
        if end > len(self._pool):
            self._pool = os.urandom(max(count, _POOL_BYTES))
            self._at, end = 0, count
        start, self._at = self._at, end
        return self._pool[start:end]
