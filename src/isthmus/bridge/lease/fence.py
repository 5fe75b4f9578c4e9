"""The fence of a lease: it may act for a task only as long as the driver's claim of the task is confirmed.

What it is: the reader asks the driver, over the control channel, for how long the claim is still held; each answer moves the
fence on. Without an answer (the driver is frozen, dead or cut off) the fence closes by itself: the reader grants no credit and
hands nothing on, the sink sends nothing, and the route's opening ends. What it is not: the claim, which the driver holds
(`isthmus.supervisor.claim.claim`); nor I/O, nor a clock.

Why two leases are never active at once. All times are of monotonic clocks, and only durations are sent between processes,
so that clocks need not agree; they only need to run at the same rate.
    C  the claim's lock duration at its broker (15 s), R its renewal interval (C / 3), A the interval of asking (1 s),
    M  the margin (3 s).
    1. At r the driver asks the broker to renew the claim, and the broker grants it. The lock lasts for C from a time not
       before r: no other run gets the claim before r + C.
    2. At q the lease asks; at a, not before q, the driver answers with s = r + C - a.
    3. The fence closes at q + s - M. Since q <= a, that is at r + C - M at the latest: M before any other run can
       hold the claim. An answer that was delayed, in the driver, in transit or in the lease, still counts from q.
    4. At the fence reader and sink stop by themselves, each by its own clock. M covers the operations that they began
       before: one write that was checked before the fence, and the wake-up of a loop, which is 1 s late at most.
A running driver renews every R and is asked every A, so that the fence is at least C - R - A - M = 6 s ahead: a renewal may
be late by as much.
M does not cover a process that is stopped between its check of the fence and the following write, and resumes after more
than M; its one write is then subject to the target's duplicate detection, and its messages' locks have expired.

Invariants:
    I1. The fence never closes later than the answered time after the question, minus the margin.
    I2. An answer to a question that was never asked, or that was answered already, has no effect.
    I3. Where a claim is required, the fence is closed until the first answer; where none is, it is always open.
"""

from __future__ import annotations

import math

__all__ = ["ASK_SECONDS", "CONFIRM_SECONDS", "MARGIN_SECONDS", "Fence"]

ASK_SECONDS = 1.0
MARGIN_SECONDS = 3.0
# How long the first answer may take: a driver that starts many routes at once is busy.
CONFIRM_SECONDS = 15.0


class Fence:
    """The fence of one lease.

    Args:
        required: whether a claim is needed at all.
        now: when the lease begins, monotonic seconds.

    Attributes:
        until: when it closes; infinite where no claim is required.
    """

    def __init__(self, required: bool, now: float) -> None:
        self.required = required
        self.until = -math.inf if required else math.inf
        self._confirm_by = now + CONFIRM_SECONDS
        self._asked: dict[int, float] = {}
        self._number = 0
        self._ask_at = now

    def is_open(self, now: float) -> bool:
        """Whether the lease may act."""
        return now < self.until

    def has_failed(self, now: float) -> bool:
        """Whether it has closed, or was not opened in time."""
        return now >= (self.until if self.until > -math.inf else self._confirm_by)

    def deadline(self, now: float) -> float:
        """When to ask or check again, without an answer."""
        if not self.required:
            return math.inf
        ends = self.until if self.until > -math.inf else self._confirm_by
        return min(self._ask_at, ends) if ends > now else self._ask_at

    def ask(self, now: float) -> int:
        """The number of the question to send now; 0: none is due."""
        if not self.required or now < self._ask_at:
            return 0
        self._ask_at = now + ASK_SECONDS
        self._number += 1
        self._asked[self._number] = now
        return self._number

    def answer(self, number: int, held_seconds: float) -> bool:
        """The driver answered question `number`: the claim is held for so long from then. Returns whether the fence moved."""
        asked_at = self._asked.get(number)
        if asked_at is None:
            return False
        self._asked = {each: at for each, at in self._asked.items() if each > number}
        until = asked_at + held_seconds - MARGIN_SECONDS
        if until <= max(self.until, asked_at):
            return False
        self.until = until
        return True
