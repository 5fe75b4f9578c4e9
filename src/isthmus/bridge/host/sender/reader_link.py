"""The sink's connection to the reader of its lease.

What it is: finding the reader, telling it what becomes of messages, and what it says about claims. Settlements of all routes are told
together (`isthmus.bridge.delivery.settle_account`). `NoReader` takes its part where nothing is settled by this sink. What it is not: the frames
about routes, which the host carries out (`sender`).

Invariants:
    I1. Nothing blocks, except `finish`, for a limited time.
    I2. What was settled of a route is told before that it failed, and before the end.
    I3. A claim that was never confirmed, or whose time is over, allows nothing.
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
        account: what is settled and not told.
        has_stopped: whether the reader said that the lease ended in good order.
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
        """Whether the reader went away without saying that the lease is over."""
        return self._channel is not None and self._channel.closed and not self.has_stopped

    def connect(self, now: float) -> None:
        """Looks for the reader, if it has not been found and it is time to."""
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
        """When `connect`, `flush` or `ended_claims` is due though nothing comes."""
        if self._channel is None:
            return min(self._dial_at, self._fence_ends.next())
        return min(self.account.deadline(), self._fence_ends.next())

    def receive(self) -> Sequence[tuple[int, bytes]]:
        """What the reader said, in order; fences and the end of the lease are noted here.

        Raises:
            ChannelError: the bytes are no frames.
        """
        self._read()
        frames, self._frames = self._frames, deque()
        return frames

    def _read(self) -> None:
        if self._channel is None or self._channel.closed:
            return
        for kind, payload in self._channel.receive():
            if kind == Kind.FENCE:
                told = unpack_json(payload)
                self._fences[told["claim"]] = until = told["until_ns"] / 1e9
                self._fence_ends.set(told["claim"], until)
            elif kind == Kind.STOPPED:
                self.has_stopped = True
            else:
                self._frames.append((kind, payload))

    # ---- claims

    def may_send(self, claim: str) -> bool:
        """Whether a claim is known to be held now."""
        if time.monotonic() < self._fences.get(claim, -math.inf):
            return True
        self._read()  # while the loop was busy elsewhere nobody heard how far the fence has moved
        return time.monotonic() < self._fences.get(claim, -math.inf)

    def ended_claims(self, now: float) -> list[str]:
        """Claims whose time is over since this was asked last."""
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

    # ---- telling

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
        """A target takes nothing."""
        self._send(Kind.PAUSE, pack_json({"handle": handle, "text": text}))

    def resume(self, handle: int) -> None:
        """A target takes messages again."""
        self._send(Kind.RESUME, pack_numbers(handle))

    def failed(self, handle: int, error: IsthmusError, is_fatal: bool) -> None:
        """A route cannot go on."""
        self._tell(time.monotonic())
        self._send(Kind.FAILED, pack_json({"handle": handle, "error": str(error), "is_fatal": is_fatal}))

    def statistics(self, told: Mapping[str, Any]) -> None:
        """Counts, and that the sink lives."""
        self._send(Kind.STATS, pack_json(told))

    def flush(self, now: float) -> None:
        """Tells what is due and writes what the socket takes."""
        channel = self._channel
        if channel is None:
            return
        if self.account.deadline() <= now or (channel.has_queued() and self.account.has_untold):
            self._tell(now)
        if channel.has_queued():
            channel.flush()

    def end(self, error: IsthmusError | None, *, died: bool = False) -> None:
        """Tells the reader that everything is done, or why it is not, and closes; waits until it is written, but not for long."""
        now = time.monotonic()
        self._dial_at = -math.inf
        self.connect(now)
        channel = self._channel
        if channel is None:
            return
        self._tell(now)
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

    def _tell(self, now: float) -> None:
        if self._channel is not None and self.account.has_untold:
            for kind, payload in self.account.take(now):
                self._channel.send(kind, payload)

    def _send(self, kind: int, payload: bytes = b"") -> None:
        if self._channel is not None:
            self._channel.send(kind, payload)


class NoReader:
    """What a handle tells where nothing is settled by this sink: a row that cannot be sent, or a route that fails, is an error.

    Args:
        dispose: what becomes of a row that is not sent, by its position, and raises where nothing can; None: it is an error, but for
            rows that are to be left out.

    Attributes:
        error: why the write fails; None where nothing is wrong.
    """

    def __init__(self, dispose: Callable[[int | None, Disposition], None] | None = None) -> None:
        self.error: IsthmusError | None = None
        self._dispose = dispose

    def ready(self, handle: int) -> None:
        """Nobody waits for it."""

    def settle(self, handle: int, positions: Sequence[int]) -> None:
        """Nothing is settled."""

    def dispose(self, handle: int, position: int | None, disposition: Disposition, route: str) -> None:
        """A row that is not sent."""
        if self._dispose is not None:
            self._dispose(position, disposition)
        elif disposition.kind != "complete" and self.error is None:
            self.error = RowRefusedError(route, *disposition)

    def pause(self, handle: int, text: str) -> None:
        """Nobody waits for it."""

    def resume(self, handle: int) -> None:
        """Nobody waits for it."""

    def failed(self, handle: int, error: IsthmusError, is_fatal: bool) -> None:
        """The write fails."""
        self.error = self.error or error

    def may_send(self, claim: str) -> bool:
        """No claim is held for a plain write."""
        return True
