"""How far a delivery machine is in sending again.

What it is: the state between a refusal or a lost connection and the moment at which everything that was sent again has its
outcome. It goes through rounds: `settling` waits for the outcomes of what is in flight, then nothing is sent until
`retry_at`, then what has no outcome is sent again; a refusal begins the next round. What it is not: what is sent (`delivery`).

Invariants:
    I1. A round that a refusal began waits longer than the one before, up to a limit, until something is accepted.
    I2. `took_at` is when the target last took something, or when the recovery began.
    I3. It is not overdue while the outcome of what was sent moments ago is missing: the target may accept that, and it would be sent again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from isthmus.bridge.index_set import IndexSet
from isthmus.bridge.refusal import Refusal, RefusalKind

__all__ = ["Recovery"]

# So long an outcome may take.
OUTCOME_SECONDS = 5.0
# A message that may be refused for itself is tried so often: what is behind it waits.
UNCLEAR_RETRY_SECONDS = 1.0


class Recovery:
    """The sending again of one target.

    Args:
        delay_seconds: how long to wait before attempt n, from 0.

    Attributes:
        is_active: whether anything was refused or lost and has no outcome yet.
        trouble: why; None where only envelopes are taken apart.
        settling: whether outcomes of what is in flight are waited for.
        opening: whether a connection is being made.
        retry_at: before this nothing is sent.
        took_at: when the target took something last.
        sent_at: when something was sent again, or tried, last.
        probe: the message that is tried ahead of a refused one.
        candidates: messages to try in that way.
        last_probe: the last one tried.
        is_searching: whether, for the message at the front to be found refused for itself, only another that is accepted is missing.
    """

    def __init__(self, delay_seconds: Callable[[int], float]) -> None:
        self.is_active = False
        self.trouble: Refusal | None = None
        self.settling = False
        self.opening = True
        self.retry_at = -math.inf
        self.took_at = -math.inf
        self.sent_at = -math.inf
        self.probe: int | None = None
        self.candidates: list[int] = []
        self.last_probe = -1
        self.is_searching = False
        self._delay_seconds = delay_seconds
        self._attempts = 0
        self._delayed = False

    def begin(self, now: float, trouble: Refusal | None) -> None:
        """Something was refused, or, without trouble, has to be sent again in another way."""
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
        """The next attempt need not wait: it will tell something new."""
        self._delayed = False
        self.retry_at = -math.inf

    def look_for_others(self, again: IndexSet, front: int, unsent: int, end: int) -> None:
        """The message at the front is refused: the candidates are one that is sent again anyway, and the next that was never sent.

        Args:
            again: what is to be sent again.
            front: the first message without an outcome.
            unsent: the first that was never sent.
            end: behind the last message.
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
        """Another was accepted, or the message at the front is done with: nothing is to be tried ahead of what is sent again."""
        self.is_searching = False
        self.candidates.clear()

    def lost(self, now: float, trouble: Refusal) -> None:
        """The connection is gone."""
        self.begin(now, trouble)
        self.settled(now)
        self.opening = self.is_searching = False
        self.probe = None
        self.candidates.clear()

    def took(self, now: float) -> None:
        """The target accepted something."""
        self.took_at = now
        self._attempts = 0

    def deadline(self, now: float, timeout_seconds: float, *, is_awaited: bool) -> float:
        """When something is due though nothing happens, while it is active; arguments as for `overdue`."""
        due = self._overdue_at(timeout_seconds, is_awaited)
        return min(due, self.retry_at) if not self.settling and self.retry_at > now else due

    def overdue(self, now: float, timeout_seconds: float, *, is_awaited: bool) -> Refusal | None:
        """What the machine fails for, where the target has taken nothing for so long.

        Args:
            now: monotonic seconds.
            timeout_seconds: the target may take nothing for so long.
            is_awaited: whether an outcome is missing.
        """
        if now <= self._overdue_at(timeout_seconds, is_awaited):
            return None
        return self.trouble or Refusal(RefusalKind.UNKNOWN, "", "no outcome came")

    def _overdue_at(self, timeout_seconds: float, is_awaited: bool) -> float:
        due = self.took_at + timeout_seconds
        return max(due, self.sent_at + min(OUTCOME_SECONDS, timeout_seconds)) if is_awaited else due

    def end(self) -> None:
        """Everything that was sent again has its outcome."""
        self.is_active = self._delayed = self.is_searching = False
        self.trouble = None
        self._attempts = 0
        self.candidates.clear()
        self.last_probe = -1
