"""How many messages, and how many bytes, a tool lets be in transit.

What it is: two windows that follow the network: the credit of a receiver, and the bytes that a sender has queued. The lock of a message begins when the namespace
sends it, and a request for its renewal waits behind what was queued before: on a slow network both have to stay small. What it is not:
a rate limit; a fast network is used fully.

Invariants:
    I1. What is in transit takes the network a few seconds, unless one message alone takes longer.
    I2. Received messages that are in transit fit into memory.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Pace", "Window"]

_SECONDS = 4.0
_LEAST_BYTES = 256 << 10
_MEMORY_BYTES = 8 << 20
_MOST_QUEUED_BYTES = 64 << 20
_QUICK_SECONDS = 1.0


class Window:
    """The credit of a receiver.

    Args:
        most: the most messages.
        first: how many before any has come.

    Attributes:
        size: how many messages may be in transit.
    """

    def __init__(self, most: int, first: int) -> None:
        self.size = min(most, first)
        self._most = most
        self._bytes = self._seconds = 0.0

    def carried(self, size_bytes: int, seconds: float) -> None:
        """So many bytes came within a wait; waits in which none came say nothing."""
        if not size_bytes:
            return
        if self._seconds > _SECONDS:  # the latest seconds count
            self._bytes, self._seconds = self._bytes / 2, self._seconds / 2
        self._bytes += size_bytes
        self._seconds += seconds

    def learn(self, payloads: Sequence[bytes]) -> None:
        """Messages came; sets the size."""
        mean = sum(map(len, payloads)) // len(payloads) + 1
        carried = self._bytes / self._seconds * _SECONDS if self._seconds else 0.0
        fits = min(_MEMORY_BYTES, max(_LEAST_BYTES, int(carried)))
        self.size = max(1, min(self._most, fits // mean))


class Pace:
    """The bytes that a sender may queue on its connection."""

    def __init__(self) -> None:
        self._room = _LEAST_BYTES
        self._full_at: float | None = None

    def fitting(self, payloads: Sequence[bytes], queued: int, now: float) -> int:
        """How many of the next messages may be queued; of those that never fit, one at a time.

        Args:
            payloads: encoded messages.
            queued: bytes that have not arrived at the remote machine.
            now: monotonic seconds.
        """
        free = self._free(queued, now)
        count = size = 0
        for payload in payloads:
            size += len(payload)
            if size > free and (count or queued):
                break
            count += 1
        return count

    def _free(self, queued: int, now: float) -> int:
        """How many bytes more may be queued."""
        if queued >= self._room:
            self._full_at = now if self._full_at is None else self._full_at
            return 0
        if self._full_at is not None and queued <= self._room // 2:
            seconds, self._full_at = now - self._full_at, None
            if seconds < _QUICK_SECONDS:
                self._room = min(2 * self._room, _MOST_QUEUED_BYTES)
            elif seconds > _SECONDS:
                self._room = max(self._room // 2, _LEAST_BYTES)
        return self._room - queued
