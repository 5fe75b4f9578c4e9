"""A reader's line to the sink of its task.

What it is: the socket on which the reader listens for its sink, and the channel to it. What is to be told before the sink has come
waits. What it is not: what the frames mean for a route (`reader.routes`).

Invariants:
    I1. The sink is who says HELLO first; who closes before that only looked whether anybody listens.
    I2. Frames are sent in the order in which they were given, whether the sink had come by then or not.
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
    """The line of one lease.

    Args:
        path: where to listen.

    Attributes:
        has_come: whether the sink has said HELLO.
        is_gone: whether it has gone since.
        has_ended: whether it said END or ERROR, so that its going is no surprise.
        process: its process id; 0 until it has come.
        heard_at: when something came of it last, monotonic seconds.
    """

    def __init__(self, path: Path) -> None:
        self.has_come = False
        self.is_gone = False
        self.has_ended = False
        self.process = 0
        self.heard_at = 0.0
        self._listener: Listening | None = listen(path)
        self._strangers: dict[int, Channel] = {}
        self._channel: Channel | None = None
        self._waiting: list[tuple[int, bytes]] = []

    @property
    def has_queued(self) -> bool:
        """Whether the sink has not taken yet what it is to be told."""
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
        """Writes what the socket takes."""
        if self._channel is not None and not self._channel.closed:
            self._channel.flush()

    def receive(self, ready: Mapping[int, int], now: float) -> list[tuple[int, bytes]]:
        """The frames that have come.

        Raises:
            ChannelError: the sink sent what is no frame.
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
            self.heard_at = now
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
        told: dict[str, Any] = unpack_json(received[0][1])
        self.has_come, self.process = True, int(told.get("process", 0))
        self._channel, self.heard_at = stranger, now
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
