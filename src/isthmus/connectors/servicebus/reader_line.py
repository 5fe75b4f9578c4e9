"""A sink's line to the reader of its task.

What it is: the sink's end of the control channel: finding the reader, settling over it, and telling when. What is settled is
told several at a time, unless the source may be waiting for it. What it is not: the channel's frames (`channel`), or what is
settled when (`isthmus.bridge.delivery`).

Invariants:
    I1. Nothing blocks.
    I2. A source whose window is nearly full is told at once; otherwise nothing waits longer than `TELL_SECONDS`.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.servicebus import channel as frames
from isthmus.connectors.servicebus.channel import Channel, dial
from isthmus.errors import IsthmusError

__all__ = ["ReaderLine"]

# What is settled is told so far apart, several together: the source then writes it to its disk at once, and what arrives
# there meanwhile waits less.
TELL_SECONDS = 0.032
# Unless there is so much of it that it is written together anyhow.
TELL_MESSAGES = 50


class ReaderLine:
    """The line of one task.

    Args:
        path: where the reader listens; None: nothing is settled by this sink.

    Attributes:
        channel: the open channel; None while there is none.
        source_ended: whether the reader said that the lease ended in good order.
        tell_at: when what is queued leaves.
        handed: rows that the source holds locks for and that came here.
        fence: when the claim may be another run's, as the reader tells it (`isthmus.bridge.fence`).
        source_offset_ms: the wall time of the source's broker minus monotonic time; None until the reader told it.
    """

    def __init__(self, path: Path | None) -> None:
        self.channel: Channel | None = None
        self.source_ended = False
        self.tell_at = 0.0
        self.handed = 0
        self.fence = math.inf
        self.source_offset_ms: int | None = None
        self._path = path
        self._greeted = False
        self._settled = self._told = 0
        self._source_waits = sys.maxsize  # with so many of them not told of, the source may be waiting

    @property
    def is_sought(self) -> bool:
        """Whether there is to be a reader, and none has been found."""
        return self.channel is None and self._path is not None

    @property
    def is_gone(self) -> bool:
        """Whether the reader went without the word that all is well."""
        return self.channel is not None and self.channel.closed and not self.source_ended

    @property
    def is_source_waiting(self) -> bool:
        """Whether the source may wait for what is settled."""
        return self.handed - self._told >= self._source_waits

    def dial(self, greets: bool) -> None:
        """Looks for the reader, and greets it once if the target stands."""
        if self.channel is None and self._path is not None:
            self.channel = dial(self._path)
        if self.channel is not None and greets and not self._greeted:
            self._greeted = True
            self.channel.send(frames.HELLO, str(os.getpid()).encode())
            self.channel.flush()

    def receive(self) -> None:
        """Takes in what the reader said."""
        if self.channel is None:
            return
        for kind, payload in self.channel.receive():
            if kind == frames.STOPPED:
                self.source_ended = True
            elif kind == frames.WINDOW:
                self._source_waits = max(1, frames.unpacked(payload) * 3 // 4)
            elif kind == frames.FENCE:
                self.fence = frames.unpacked(payload) / 1e9
            elif kind == frames.CLOCK:
                self.source_offset_ms = frames.unpacked(payload)

    # ---- telling

    def settle(self, positions: Sequence[int]) -> None:
        """Completes messages at the source."""
        self._settled += len(positions)
        if self.channel is not None:
            self.channel.settle_all(positions)

    def dispose(self, position: int, disposition: Disposition) -> None:
        """Settles a message otherwise than as taken by the target; the reader counts it apart, also where it is completed."""
        self._settled += 1
        if self.channel is None:
            return
        item = {
            "first": position,
            "last": position,
            "disposition": disposition.kind,
            "reason": disposition.reason,
            "description": disposition.description,
        }
        self.channel.send(frames.DISPOSE, json.dumps([item]).encode())

    def flushed(self, number: int, counts: Mapping[str, int]) -> None:
        """Everything before a flush row is settled; with the counts, since a lease that has the last such answer ends."""
        self._send(frames.FLUSHED, frames.pack_flushed(number, counts))

    def hold(self, text: str) -> None:
        """The target takes nothing: give no more."""
        self._send(frames.HOLD, json.dumps({"error": text}).encode())

    def resume(self) -> None:
        """The target takes messages again."""
        self._send(frames.RESUME)

    def tell(self, statistics: dict[str, Any]) -> None:
        """Counters, and that the sink lives."""
        self._send(frames.STATS, json.dumps(statistics).encode())

    def end(self) -> None:
        """The input has ended, and everything that came is settled."""
        self._send(frames.END)
        if self.channel is not None:
            self.channel.flush()

    def fail(self, error: IsthmusError, *, died: bool = False) -> None:
        """The sink failed; `died`: a step of the query did, or the worker of one was killed."""
        if self.channel is not None and not self.channel.closed:
            told = {"error": str(error), "retryable": error.retryable, "died": died}
            self._send(frames.ERROR, json.dumps(told).encode())
            self.channel.flush()

    def _send(self, kind: int, payload: bytes = b"") -> None:
        if self.channel is not None:
            self.channel.send(kind, payload)

    def push(self, now: float) -> bool:
        """Writes what is due; whether something is left for `tell_at`."""
        channel = self.channel
        if channel is None or not channel.has_queued():
            return False
        if now < self.tell_at and self._settled - self._told < TELL_MESSAGES and not self.is_source_waiting:
            return True
        channel.flush()
        self._told = self._settled
        self.tell_at = now + TELL_SECONDS
        return False

    def close(self) -> None:
        """Closes this end."""
        if self.channel is not None:
            self.channel.close()
