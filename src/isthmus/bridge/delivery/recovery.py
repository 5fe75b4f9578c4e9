"""The state of a delivery machine that resends messages.

What it is: the state between a refusal or a lost connection and the moment at which everything that was sent again has its
outcome. It goes through rounds: `settling` waits for the outcomes of what is in flight, then nothing is sent until
`retry_at`, then the messages without outcome are sent again; a refusal begins the next round. What it is not: the choice of
messages (`delivery`).

Invariants:
    I1. A round that a refusal began waits longer than the one before, up to a limit, until something is accepted.
    I2. `took_at` is when the target last accepted a message, or bytes of one arrived there, or when the recovery began.
    I3. It is not overdue while the outcome of a message that was sent moments ago is missing: the target may accept it, and the next opening
        would send it again.
    I4. No time-out passes while the target reports that it accepts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from isthmus.bridge.index_set import IndexSet
from isthmus.bridge.refusal import Refusal, RefusalKind

__all__ = ["Recovery"]

# How long an outcome may take.
OUTCOME_SECONDS = 5.0
# A message that may be refused individually is tried this often, because the messages after it wait.
UNCLEAR_RETRY_SECONDS = 1.0


class Recovery:
    """The recovery of one target.

    Args:
        delay_seconds: how long to wait before attempt n, from 0.

    Attributes:
        is_active: whether anything was refused or lost and has no outcome yet.
        trouble: why; None where only envelopes are split.
        settling: whether it waits for the outcomes of deliveries in flight.
        opening: whether a connection is being made.
        retry_at: before this nothing is sent.
        took_at: when the target last accepted a message, or bytes of one arrived there (I2).
        sent_at: when a message was resent or tried last.
        stopped: why the target accepts nothing, as it reported; empty: it has not.
        probe: the message that is tried ahead of a refused one.
        candidates: messages to try in that way.
        last_probe: the last one tried.
        is_searching: whether the message at the front counts as refused individually as soon as another message is accepted.
    """

    def __init__(self, delay_seconds: Callable[[int], float]) -> None:
        self.is_active = False
        self.trouble: Refusal | None = None
        self.settling = False
        self.opening = True
        self.retry_at = -math.inf
        self.took_at = -math.inf
        self.sent_at = -math.inf
        self.stopped = ""
        self.probe: int | None = None
        self.candidates: list[int] = []
        self.last_probe = -1
        self.is_searching = False
        self._delay_seconds = delay_seconds
        self._attempts = 0
        self._delayed = False

    def begin(self, now: float, trouble: Refusal | None) -> None:
        """A message was refused, or, without trouble, has to be sent again in another form."""
        if not self.is_active:
            self.is_active = True
            self.took_at = now
        if trouble is not None:
            self.trouble = trouble
            self._delayed = True
        self.settling = True

    def settled(self, now: float) -> None:
        """Nothing is in flight any more: the next attempt may follow."""
        self.settling = False
        self.retry_at = now
        if self._delayed and self.trouble is not None:
            self._delayed = False
            delay = self._delay_seconds(self._attempts)
            self._attempts += 1
            if self.trouble.kind in (RefusalKind.UNCLEAR, RefusalKind.MESSAGE):
                delay = min(delay, UNCLEAR_RETRY_SECONDS)
            self.retry_at = now + delay

    def hurry(self) -> None:
        """The next attempt need not wait: its result will be new information."""
        self._delayed = False
        self.retry_at = -math.inf

    def search_others(self, again: IndexSet, front: int, unsent: int, end: int) -> None:
        """The message at the front is refused: the candidates are one that is sent again anyway, and the next that was never sent.

        Args:
            again: the messages to send again.
            front: the first message without an outcome.
            unsent: the first that was never sent.
            end: after the last message.
        """
        waiting = again.above(max(front, self.last_probe))
        if waiting is None:
            waiting = again.above(front)
        self.candidates = [] if waiting is None else [waiting]
        if unsent < end:
            self.candidates.append(unsent)

    def try_unsent(self, unsent: int, end: int) -> None:
        """Many may be refused in a row: while an accepted one is missing, the next that was never sent is tried without delay."""
        if self.is_searching and not self.candidates and unsent < end:
            self.candidates.append(unsent)

    def end_search(self) -> None:
        """Another was accepted, or the message at the front is finished: nothing is tried ahead of resent messages any more."""
        self.is_searching = False
        self.candidates.clear()

    def lost(self, now: float, trouble: Refusal) -> None:
        """The connection is lost."""
        self.begin(now, trouble)
        self.settled(now)
        self.opening = self.is_searching = False
        self.stopped = ""
        self.probe = None
        self.candidates.clear()

    def took(self, now: float) -> None:
        """The target accepted a message."""
        self.took_at = now
        self._attempts = 0

    def progressed(self, now: float) -> None:
        """The target still receives what was sent."""
        self.took_at = max(self.took_at, now)

    def stop(self, reason: str, now: float) -> None:
        """The target reports that it accepts nothing, and why; empty: that it does again, from when the time counts (I4)."""
        self.stopped = reason
        self.progressed(now)

    @property
    def may_pause(self) -> bool:
        """Whether the source may have to be paused."""
        return self.is_active or bool(self.stopped)

    def deadline(self, now: float, timeout_seconds: float, *, is_awaited: bool) -> float:
        """When something is due even without events, while it is active; arguments as for `overdue`."""
        due = self._overdue_at(timeout_seconds, is_awaited)
        return min(due, self.retry_at) if not self.settling and self.retry_at > now else due

    def overdue(self, now: float, timeout_seconds: float, *, is_awaited: bool) -> Refusal | None:
        """The error with which the machine fails, where the target has accepted nothing for so long.

        Args:
            now: monotonic seconds.
            timeout_seconds: how long the target may accept nothing.
            is_awaited: whether an outcome is missing.
        """
        if now <= self._overdue_at(timeout_seconds, is_awaited):
            return None
        return self.trouble or Refusal(RefusalKind.UNKNOWN, "", "no outcome came")

    def _overdue_at(self, timeout_seconds: float, is_awaited: bool) -> float:
        if self.stopped:
            return math.inf
        due = self.took_at + timeout_seconds
        return max(due, self.sent_at + min(OUTCOME_SECONDS, timeout_seconds)) if is_awaited else due

    def end(self) -> None:
        """All resent messages have their outcome."""
        self.is_active = self._delayed = self.is_searching = False
        self.trouble = None
        self._attempts = 0
        self.candidates.clear()
        self.last_probe = -1
