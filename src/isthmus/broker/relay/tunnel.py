"""Two WebSockets joined: a requester's and the one by which a listener accepted it.

What it is: every frame of one side sent to the other as it arrives, pings, pongs and close frames included. What it is not:
finding a listener (`gate`).
Spec: Microsoft Learn, "Azure Relay Hybrid Connections protocol" (accepting the socket): all activity is relayed without
interpretation.

Invariants:
    I1. Each side gets all frames of the other, in order and with the same boundaries.
    I2. A side that does not read stops the other: at most the buffers of one socket are used.
    I3. When one side is gone the other is closed: with the status of the first side's close frame, or 1001 without one.
    I4. A side that reads nothing for `STALL_SECONDS` after the other has left is ended.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.broker.relay.frame import BINARY, CLOSE, TEXT, Piece
from isthmus.broker.relay.socket import GOING_AWAY, RelaySocket

__all__ = ["STALL_SECONDS", "Tunnel"]

# The kernel takes more waiting bytes only once about 300 kB of its buffer are free, which takes a slow reader minutes.
STALL_SECONDS = 600.0


class Tunnel:
    """A requester's WebSocket and a listener's.

    Args:
        requester: the requester's socket.
        listener: the socket by which the listener accepted it.
        on_over: called once both are gone.

    Attributes:
        relayed_bytes: payload of data frames, both ways.
    """

    def __init__(
        self, requester: RelaySocket, listener: RelaySocket, on_over: Callable[[Tunnel], None] = lambda tunnel: None
    ) -> None:
        self.relayed_bytes = 0
        self._ends = (
            _End(self, requester, listener, "The listener is gone."),
            _End(self, listener, requester, "The requester is gone."),
        )
        self._open = 2
        self._on_over = on_over
        # The requester's side first: frames that the listener has sent already are written to it.
        requester.start(self._ends[0])
        listener.start(self._ends[1])

    @property
    def is_over(self) -> bool:
        """Whether both sides are gone."""
        return not self._open

    def close(self, status: int, reason: str) -> None:
        """Ends both sides."""
        for end in self._ends:
            end.mine.close(status, reason)

    def tick(self, now: float) -> None:
        """Ends the tunnel if only a side that does not read is left.

        Args:
            now: monotonic seconds.
        """
        if any(end.is_stuck(now) for end in self._ends):
            for end in self._ends:
                end.mine.abort()

    def lost(self, end: _End) -> None:
        """One of the sides is gone."""
        self._open -= 1
        self._ends[0 if end is self._ends[1] else 1].farewell()
        if not self._open:
            self._on_over(self)


class _End:
    """The frames from one of the two.

    Attributes:
        has_said_close: whether a close frame has arrived.
    """

    def __init__(self, tunnel: Tunnel, mine: RelaySocket, other: RelaySocket, farewell: str) -> None:
        self.mine = mine
        self.has_said_close = False
        self._tunnel = tunnel
        self._other = other
        self._farewell = farewell
        # The unsent bytes when they last changed, and the time of that check.
        self._unsent = 0
        self._moved_at = 0.0

    def is_stuck(self, now: float) -> bool:
        """Whether this side has read nothing for long, and the other one, which is not read meanwhile, has left."""
        unsent = self.mine.unsent_bytes
        if self.mine.is_writable or unsent != self._unsent or not self._other.has_left:
            self._unsent, self._moved_at = unsent, now
            return False
        return now - self._moved_at > STALL_SECONDS

    def on_piece(self, piece: Piece) -> None:
        if piece.opcode != CLOSE:
            if piece.kind in (TEXT, BINARY):
                self._tunnel.relayed_bytes += len(piece.data)
            self._other.forward(piece)
            return
        self.has_said_close = True
        if self.mine.is_closing:  # this is the answer to the other side's close frame, if that waits for one
            self.mine.finish()
            if not self._other.is_closing:
                self._other.finish(piece.data)
        elif self._other.is_closing:
            self.mine.finish(piece.data)
        else:
            self._other.send_close(piece.data)

    def on_lost(self) -> None:
        self._tunnel.lost(self)

    def farewell(self) -> None:
        """The other side is gone."""
        if self.has_said_close:
            self.mine.finish(GOING_AWAY.to_bytes(2, "big"))
        else:
            self.mine.close(GOING_AWAY, self._farewell)

    def on_writable(self, is_writable: bool) -> None:
        if is_writable:
            self._other.resume_reading()
        else:
            self._other.pause_reading()
