"""Until when a lease may act for a task: as long as the driver's claim of the task is known to be held, and no longer.

What it is: the reader asks the driver, over the control channel, for how long the claim is still held; each answer moves the
fence on. When no answer comes (the driver is frozen, dead or cut off) the fence closes by itself: the reader grants no credit
and hands nothing on, the sink sends nothing, and the route's opening ends. What it is not: the claim, which the driver keeps
(`isthmus.supervisor.claim.claim`); it asks nobody and reads no clock.

Why two leases are never active at once. All times are of monotonic clocks, and only durations pass between processes, so
that no two clocks need agree; they need to run at the same rate.
    C  the claim's lock duration at its broker (15 s), R its renewal interval (C / 3), A the interval of asking (1 s),
    M  the margin (3 s).
    1. At r the driver asks the broker to renew the claim, and the broker grants it. The lock holds from a moment not before r
       for C: nobody else gets the claim before r + C.
    2. At q the lease asks; at a, not before q, the driver answers with s = r + C - a.
    3. The fence closes at q + s - M. Since q <= a, that is at r + C - M at the latest: M before anybody else can
       hold the claim. An answer that was held up, in the driver, on its way or in the lease, still counts from q.
    4. At the fence reader and sink stop by themselves, each by its own clock. What is left of M is for what they began
       before: one write of what was checked before the fence, and the wake-up of a loop, which comes 1 s late at most.
A driver that lives renews every R and is asked every A, so that the fence is at least C - R - A - M = 6 s ahead: a renewal
may come late by as much.
What M does not cover is a process that is stopped between its look at the fence and the write that follows, and goes on
later than M; its one write then meets the target's duplicate detection, and its messages' locks have expired.

Invariants:
    I1. The fence never closes later than the answered time after the asking, less the margin.
    I2. An answer to a question that was never asked, or that was answered, moves nothing.
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
        """When to ask or look again, if nothing comes."""
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
        """The driver answered question `number`: the claim is held for so long from then. Whether the fence moved."""
        asked_at = self._asked.get(number)
        if asked_at is None:
            return False
        self._asked = {each: at for each, at in self._asked.items() if each > number}
        until = asked_at + held_seconds - MARGIN_SECONDS
        if until <= max(self.until, asked_at):
            return False
        self.until = until
        return True
