"""What was completed at a source that may not have taken it in.

What it is: the positions of a route that its target has acknowledged, and that were completed shortly before the connection to the
source was lost, or while it was away. The source may give them again; they are completed again instead of being sent twice. What it
is not: a duplicate detection: it lives as long as the lease, and knows nothing of messages that were never acknowledged here.

Why no message is taken for another. A position is known only together with the identity of its namespace. Where the entity is made
again, or goes back to an earlier state, positions are given to other messages; those were taken in after the loss, and tell it
(`x-opt-enqueued-time`): later than the message that came last before the loss. With the first of them everything is forgotten. A
message that does not tell is never taken for a known one.

Invariants:
    I1. Nothing is known but positions that were completed within `RECENT_SECONDS` before a loss, or while the source was away.
    I2. What is known is forgotten `KEPT_SECONDS` after the source is back, and when it turns out to be another one.
"""

from __future__ import annotations

import math
from collections import deque

from isthmus.bridge.lease.message_age import enqueued_ms
from isthmus.bridge.lease.unsettled import UnsettledMap

__all__ = ["KEPT_SECONDS", "RECENT_SECONDS", "SettledMemory"]

# So long before a loss is noticed something may have been written that the source did not take in.
RECENT_SECONDS = 10.0
# A lock lasts five minutes at most; then the message comes again.
KEPT_SECONDS = 600.0


class SettledMemory:
    """The memory of one route."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int, int]] = deque()
        self._known = UnsettledMap()
        self._is_away = False
        self._identity = ""
        self._until = math.inf
        self._enqueued_ms = 0  # of the message that came last before a loss

    def completed(self, first: int, last: int, now: float) -> None:
        """The target has acknowledged these positions, and the source was told."""
        if self._is_away:
            self._know(first, last)
            return
        recent = self._recent
        recent.append((now, first, last))
        while recent[0][0] < now - RECENT_SECONDS:
            recent.popleft()

    def lost(self, now: float, newest: bytes) -> None:
        """The connection to the source is gone; `newest` is the message that came last."""
        if newest:
            self._enqueued_ms = max(self._enqueued_ms, enqueued_ms(newest))
        self._is_away, self._until = True, math.inf
        for at, first, last in self._recent:
            if at >= now - RECENT_SECONDS:
                self._know(first, last)
        self._recent.clear()

    def opened(self, identity: str, now: float) -> None:
        """The source is connected."""
        if identity != self._identity:
            self.forget()
        self._identity = identity
        if self._is_away:
            self._is_away, self._until = False, now + KEPT_SECONDS

    def forget(self) -> None:
        """The positions mean nothing any more."""
        self._known = UnsettledMap()
        self._recent.clear()
        self._enqueued_ms = 0

    def is_known(self, first: int, last: int, now: float) -> bool:
        """Whether any of these positions is."""
        if now >= self._until:
            self._until = math.inf
            self._known = UnsettledMap()
        return bool(self._known.outstanding and self._known.within(first, last))

    def is_again(self, position: int, payload: bytes, now: float) -> bool:
        """Whether this message was completed before."""
        if not self.is_known(position, position, now):
            return False
        if 0 < enqueued_ms(payload) <= self._enqueued_ms:
            return True
        self.forget()
        return False

    def _know(self, first: int, last: int) -> None:
        self._known.settle(first, last)
        self._known.add(range(first, last + 1), bytes(last + 1 - first))
