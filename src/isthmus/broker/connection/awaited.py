"""The bytes of a connection that its client waits for: outcomes, replies, and messages that were deleted for it.

What it is: whether such bytes are still in the socket's buffer, which ends with the process. What it is not: the buffer.

Invariants:
    I1. Bytes behind the last of these do not count: a client that reads no further messages holds up no stop.
"""

from __future__ import annotations

from isthmus.broker.net.wire import Wire

__all__ = ["AwaitedBytes"]


class AwaitedBytes:
    """The awaited bytes of one connection.

    Args:
        wire: the stream to the client.
    """

    __slots__ = ("_awaited_bytes", "_is_queued", "_wire", "_written_bytes")

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._written_bytes = 0
        self._awaited_bytes = 0  # of these, up to the last awaited one
        self._is_queued = False

    def add(self) -> None:
        """An outcome, a reply or a deleted message was queued; it is in the bytes that are written next."""
        self._is_queued = True

    def wrote(self, size_bytes: int) -> None:
        """Everything queued was written to the stream."""
        self._written_bytes += size_bytes
        if self._is_queued:
            self._awaited_bytes, self._is_queued = self._written_bytes, False

    @property
    def are_unsent(self) -> bool:
        """Whether some are still in the socket's buffer."""
        return self._written_bytes - self._wire.unsent_bytes < self._awaited_bytes
