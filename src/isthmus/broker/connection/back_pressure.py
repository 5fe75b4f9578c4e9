"""When one connection is read no further: its client is ahead of the disk.

What it is: the bytes of one connection that wait for the disk, and the pause and resumption of reading. What it is not: the
socket. Spec: docs/explanation/protocol.md, Connection.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.broker.large import LargeDesk
from isthmus.broker.net.wire import Wire

__all__ = ["BackPressure"]

# Bytes of one connection that may wait for the disk before it is read no further.
_HIGH_BYTES = 32 << 20
_LOW_BYTES = 8 << 20
# The same of large messages: others wait for the disk behind what they leave to be synced. All connections together may
# have more, but with more than that each only what one read brings.
_LARGE_HIGH_BYTES = 1 << 20
_LARGE_LOW_BYTES = 256 << 10
_LARGE_TOGETHER_BYTES = 64 << 20


def _nothing() -> None:
    """Nobody is told."""


class BackPressure:
    """The back-pressure of one connection.

    Args:
        wire: the stream to the client.
        desk: where large messages of all connections come from and go to.
        touch: has what was written sent at the end of the turn.

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
        """The connection has ended: what still becomes durable concerns nobody."""
        self.is_gone = True
        self._touch = _nothing

    @property
    def is_paused(self) -> bool:
        """Whether the client is not read now."""
        return self._paused

    def account(self, size_bytes: int) -> None:
        """Bytes began or ceased to wait for the disk; a client that is ahead of the disk is read no further."""
        self.waiting_bytes += size_bytes
        if self._paused or self.waiting_bytes > _HIGH_BYTES:
            self._regulate()
        if size_bytes <= 0:
            self._touch()

    def account_large(self, size_bytes: int) -> None:
        """As `account`, of bytes of large messages."""
        self._large_bytes += size_bytes
        self._regulate()

    def _regulate(self) -> None:
        """Read on, or read no further."""
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
