"""The sink's connection to the reader of its lease.

What it is: finding the reader, reporting the settlement of messages, and the reader's frames about claims. Settlements of all routes are
sent together (`isthmus.bridge.delivery.settle_account`). `NoReader` replaces it where nothing is settled by this sink. What it is not: the
frames about routes, which the host carries out (`sender`).

Invariants:
    I1. Nothing blocks, except `finish`, for a limited time.
    I2. Settlements of a route are sent before its failure, and before the end.
    I3. A claim that was never confirmed, or has expired, allows nothing.
"""

from __future__ import annotations

import math
import os
import select
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.bridge.deadlines import Deadlines
from isthmus.bridge.delivery.settle_account import SettleAccount
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.frame import Kind, pack_json, pack_numbers, unpack_json
from isthmus.bridge.host.channel import Channel, dial
from isthmus.bridge.host.sender.error import RowRefusedError
from isthmus.errors import IsthmusError

__all__ = ["NoReader", "ReaderLink"]

DIAL_SECONDS, LONGEST_DIAL_SECONDS = 0.02, 0.5
FINISH_SECONDS = 5.0


class ReaderLink:
    """The connection of one task.

    Args:
        path: where the reader listens.

    Attributes:
        account: settlements that are not sent yet.
        has_stopped: whether the reader sent STOPPED.
    """

    def __init__(self, path: Path) -> None:
        self.account = SettleAccount()
        self.has_stopped = False
        self._path = path
        self._channel: Channel | None = None
        self._dial_at = -math.inf
        self._dial_delay = DIAL_SECONDS
        self._frames: deque[tuple[int, bytes]] = deque()
        self._fences: dict[str, float] = {}
        self._fence_ends: Deadlines[str] = Deadlines()

    # ---- the connection

    @property
    def is_connected(self) -> bool:
        """Whether a reader was found."""
        return self._channel is not None

    @property
    def is_gone(self) -> bool:
        """Whether the reader disconnected without STOPPED."""
        return self._channel is not None and self._channel.closed and not self.has_stopped

    def connect(self, now: float) -> None:
        """Tries to connect to the reader, if it is not connected and a try is due."""
        if self._channel is None and now >= self._dial_at:
            self._channel = dial(self._path)
            self._dial_at = now + self._dial_delay
            self._dial_delay = min(LONGEST_DIAL_SECONDS, self._dial_delay * 1.5)
            if self._channel is not None:
                self._channel.send(Kind.HELLO, pack_json({"process": os.getpid()}))
                self._channel.flush()

    def descriptors(self) -> Sequence[tuple[int, int]]:
        """What to poll."""
        channel = self._channel
        return () if channel is None or channel.closed else ((channel.fileno(), channel.interest()),)

    def deadline(self) -> float:
        """When `connect`, `flush` or `ended_claims` is due even without frames."""
        if self._channel is None:
            return min(self._dial_at, self._fence_ends.next())
        return min(self.account.deadline(), self._fence_ends.next())

    def receive(self) -> Sequence[tuple[int, bytes]]:
        """The reader's frames, in order; fences and the end of the lease are noted here.

        Raises:
            ChannelError: the bytes are not frames.
        """
        self._read()
        frames, self._frames = self._frames, deque()
        return frames

    def _read(self) -> None:
        if self._channel is None or self._channel.closed:
            return
        for kind, payload in self._channel.receive():
            if kind == Kind.FENCE:
                fields = unpack_json(payload)
                self._fences[fields["claim"]] = until = fields["until_ns"] / 1e9
                self._fence_ends.set(fields["claim"], until)
            elif kind == Kind.STOPPED:
                self.has_stopped = True
            else:
                self._frames.append((kind, payload))

    # ---- claims

    def may_send(self, claim: str) -> bool:
        """Whether a claim is confirmed now."""
        if time.monotonic() < self._fences.get(claim, -math.inf):
            return True
        self._read()  # while the loop was busy, newer fences of the reader were not read
        return time.monotonic() < self._fences.get(claim, -math.inf)

    def ended_claims(self, now: float) -> list[str]:
        """Claims that expired since the last call."""
        if self._fence_ends.next() > now:
            return []
        self._read()
        ended = []
        for claim in self._fence_ends.due(now):
            if now < self._fences[claim]:
                self._fence_ends.set(claim, self._fences[claim])
            else:
                ended.append(claim)
        return ended

    # ---- reports

    def ready(self, handle: int) -> None:
        """The target of a route is open."""
        self._send(Kind.READY, pack_numbers(handle))

    def settle(self, handle: int, positions: Sequence[int]) -> None:
        """The target has acknowledged these positions."""
        self.account.settle(handle, positions)

    def dispose(self, handle: int, position: int | None, disposition: Disposition, route: str) -> None:
        """A message gets another disposition at its source."""
        if position is None:
            raise RowRefusedError(route, *disposition)
        self.account.dispose(handle, position, disposition)

    def pause(self, handle: int, text: str) -> None:
        """A target accepts nothing."""
        self._send(Kind.PAUSE, pack_json({"handle": handle, "text": text}))

    def resume(self, handle: int) -> None:
        """A target accepts messages again."""
        self._send(Kind.RESUME, pack_numbers(handle))

    def failed(self, handle: int, error: IsthmusError, is_fatal: bool) -> None:
        """A route cannot continue."""
        self._send_settlements(time.monotonic())
        self._send(Kind.FAILED, pack_json({"handle": handle, "error": str(error), "is_fatal": is_fatal}))

    def statistics(self, counts: Mapping[str, Any]) -> None:
        """Sends counts, which also show that the sink is alive."""
        self._send(Kind.STATS, pack_json(counts))

    def flush(self, now: float) -> None:
        """Sends due settlements and writes as much as the socket takes."""
        channel = self._channel
        if channel is None:
            return
        if self.account.deadline() <= now or (channel.has_queued() and self.account.has_unsent):
            self._send_settlements(now)
        if channel.has_queued():
            channel.flush()

    def end(self, error: IsthmusError | None, *, died: bool = False) -> None:
        """Sends END, or the error, and closes; waits a limited time until it is written."""
        now = time.monotonic()
        self._dial_at = -math.inf
        self.connect(now)
        channel = self._channel
        if channel is None:
            return
        self._send_settlements(now)
        channel.send(Kind.END) if error is None else channel.send(
            Kind.ERROR, pack_json({"error": str(error), "died": died})
        )
        channel.flush()
        poll = select.poll()
        poll.register(channel, select.POLLOUT)
        while channel.has_queued() and not channel.closed and time.monotonic() < now + FINISH_SECONDS:
            poll.poll(100)
            channel.flush()
        channel.close()

    def _send_settlements(self, now: float) -> None:
        if self._channel is not None and self.account.has_unsent:
            for kind, payload in self.account.take(now):
                self._channel.send(kind, payload)

    def _send(self, kind: int, payload: bytes = b"") -> None:
        if self._channel is not None:
            self._channel.send(kind, payload)


class NoReader:
    """The reports of handles where nothing is settled by this sink: a row that cannot be sent, or a route that fails, is an error.

    Args:
        dispose: handles a row that is not sent, by its position, or raises; None: it is an error, except for rows that are left
            out.

    Attributes:
        error: why the write fails; None where it does not.
    """

    def __init__(self, dispose: Callable[[int | None, Disposition], None] | None = None) -> None:
        self.error: IsthmusError | None = None
        self._dispose = dispose

    def ready(self, handle: int) -> None:
        """Not used: there is no reader."""

    def settle(self, handle: int, positions: Sequence[int]) -> None:
        """Nothing is settled."""

    def dispose(self, handle: int, position: int | None, disposition: Disposition, route: str) -> None:
        """A row that is not sent."""
        if self._dispose is not None:
            self._dispose(position, disposition)
        elif disposition.kind != "complete" and self.error is None:
            self.error = RowRefusedError(route, *disposition)

    def pause(self, handle: int, text: str) -> None:
        """Not used: there is no reader."""

    def resume(self, handle: int) -> None:
        """Not used: there is no reader."""

    def failed(self, handle: int, error: IsthmusError, is_fatal: bool) -> None:
        """The write fails."""
        self.error = self.error or error

    def may_send(self, claim: str) -> bool:
        """No claim is held for a plain write."""
        return True
