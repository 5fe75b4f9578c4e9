"""A reader's connection to the sink of its task.

What it is: the socket on which the reader listens for its sink, and the channel to it. Frames that are sent before the sink has
connected wait. What it is not: the meaning of frames for a route (`reader.routes`).

Invariants:
    I1. The sink is the first connection that sends HELLO; one that closes before was only a check for a listener.
    I2. Frames are sent in the order in which they were given, whether the sink had connected by then or not.
    I3. Nothing blocks.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.bridge.frame import Kind, unpack_json
from isthmus.bridge.host.channel import Channel, ChannelError, Listening, listen

__all__ = ["SinkLine"]


class SinkLine:
    """The connection of one lease.

    Args:
        path: where to listen.

    Attributes:
        has_come: whether the sink has sent HELLO.
        is_gone: whether it has disconnected since.
        has_ended: whether it has sent END or ERROR, so that its disconnection is expected.
        process: its process id; 0 until it has connected.
        received_at: when a frame of it arrived last, monotonic seconds.
    """

    def __init__(self, path: Path) -> None:
        self.has_come = False
        self.is_gone = False
        self.has_ended = False
        self.process = 0
        self.received_at = 0.0
        self._listener: Listening | None = listen(path)
        self._strangers: dict[int, Channel] = {}
        self._channel: Channel | None = None
        self._waiting: list[tuple[int, bytes]] = []

    @property
    def has_queued(self) -> bool:
        """Whether frames wait to be written to the sink."""
        channel = self._channel
        return channel is not None and not channel.closed and channel.has_queued()

    def descriptors(self) -> list[tuple[int, int]]:
        """What to poll."""
        found = [(fd, stranger.interest()) for fd, stranger in self._strangers.items()]
        if self._listener is not None:
            found.append((self._listener.fileno(), select.POLLIN))
        if self._channel is not None and not self._channel.closed:
            found.append((self._channel.fileno(), self._channel.interest()))
        return found

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Queues a frame."""
        if self._channel is None:
            self._waiting.append((kind, payload))
        elif not self._channel.closed:
            self._channel.send(kind, payload)

    def flush(self) -> None:
        """Writes as much as the socket takes."""
        if self._channel is not None and not self._channel.closed:
            self._channel.flush()

    def receive(self, ready: Mapping[int, int], now: float) -> list[tuple[int, bytes]]:
        """The received frames.

        Raises:
            ChannelError: the sink sent bytes that are not frames.
        """
        if self._listener is not None and self._listener.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                stranger = Channel(self._listener.accept()[0])
                self._strangers[stranger.fileno()] = stranger
        received: list[tuple[int, bytes]] = []
        for fd in [fd for fd in self._strangers if fd in ready]:
            received += self._greeted(fd, now)
        channel = self._channel
        if channel is not None and not channel.closed and channel.fileno() in ready:
            received += channel.receive()
            self.received_at = now
        if any(kind in {Kind.END, Kind.ERROR} for kind, _ in received):
            self.has_ended = True
        if channel is not None and channel.closed:
            self.is_gone = True
        return received

    def _greeted(self, fd: int, now: float) -> list[tuple[int, bytes]]:
        stranger = self._strangers[fd]
        try:
            received = stranger.receive()
        except ChannelError:
            received, stranger.closed = [], True
        is_sink = bool(received) and received[0][0] == Kind.HELLO and self._channel is None
        if not is_sink:
            if stranger.closed or received:
                del self._strangers[fd]
                stranger.close()
            return []
        del self._strangers[fd]
        fields: dict[str, Any] = unpack_json(received[0][1])
        self.has_come, self.process = True, int(fields.get("process", 0))
        self._channel, self.received_at = stranger, now
        self.is_gone = stranger.closed
        waiting, self._waiting = self._waiting, []
        for kind, payload in waiting:
            stranger.send(kind, payload)
        return received[1:]

    def close(self) -> None:
        """Closes everything and removes the address."""
        for channel in (*self._strangers.values(), *((self._channel,) if self._channel is not None else ())):
            channel.close()
        if self._listener is not None:
            self._listener.discard()
            self._listener = None
