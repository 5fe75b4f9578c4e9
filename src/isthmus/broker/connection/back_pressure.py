"""Back-pressure: reading of a connection stops while its client is ahead of the disk.

What it is: the bytes of one connection that wait for the disk, and the pause and resumption of reading. What it is not: the
socket. Spec: docs/explanation/protocol.md, Connection.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.broker.large import LargeDesk
from isthmus.broker.net.wire import Wire

__all__ = ["BackPressure"]

# Bytes of one connection that may wait for the disk before reading stops.
_HIGH_BYTES = 32 << 20
_LOW_BYTES = 8 << 20
# The same for large messages: syncs of other messages wait behind their unsynced bytes. All connections together may have
# more, but beyond that each connection only the bytes of one read.
_LARGE_HIGH_BYTES = 1 << 20
_LARGE_LOW_BYTES = 256 << 10
_LARGE_TOGETHER_BYTES = 64 << 20


def _nothing() -> None:
    """Nobody is told."""


class BackPressure:
    """The back-pressure of one connection.

    Args:
        wire: the stream to the client.
        desk: handles the large messages of all connections.
        touch: schedules a flush at the end of the loop's iteration.

    Attributes:
        waiting_bytes: that wait for the disk, without those of large messages.
        is_gone: whether the stream has ended.
    """

    __slots__ = ("_desk", "_large_bytes", "_paused", "_touch", "_wire", "is_gone", "waiting_bytes")

    def __init__(self, wire: Wire, desk: Callable[[], LargeDesk], touch: Callable[[], None]) -> None:
        self._wire = wire
        self._desk = desk
        self._touch = touch
        self._large_bytes = 0
        self._paused = False
        self.waiting_bytes = 0
        self.is_gone = False

    def release(self) -> None:
        """The connection has ended: later commits have no effect on it."""
        self.is_gone = True
        self._touch = _nothing

    @property
    def is_paused(self) -> bool:
        """Whether reading is paused."""
        return self._paused

    def account(self, size_bytes: int) -> None:
        """Counts bytes that began or ceased to wait for the disk; pauses reading where there are too many."""
        self.waiting_bytes += size_bytes
        if self._paused or self.waiting_bytes > _HIGH_BYTES:
            self._regulate()
        if size_bytes <= 0:
            self._touch()

    def account_large(self, size_bytes: int) -> None:
        """As `account`, for bytes of large messages."""
        self._large_bytes += size_bytes
        self._regulate()

    def _regulate(self) -> None:
        """Resumes or pauses reading."""
        waiting, large = self.waiting_bytes, self._large_bytes
        if (
            waiting > _HIGH_BYTES
            or large > _LARGE_HIGH_BYTES
            or (large and self._desk().waiting_bytes > _LARGE_TOGETHER_BYTES)
        ):
            if not self._paused:
                self._paused = True
                self._wire.pause_reading()
        elif self._paused and waiting < _LOW_BYTES and large < _LARGE_LOW_BYTES:
            self._paused = False
            if not self.is_gone:
                self._wire.resume_reading()
