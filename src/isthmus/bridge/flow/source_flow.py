"""Flow control of one route's source.

What it is: the unused credit, and the next request to the source: a grant, or a drain. What it is not:
the window itself (`credit_window`), or the reasons for a pause (`lease`).

Bytes. Credit counts messages. Where they turn out larger than expected and fill the limit, the rest of the credit is taken back.
Messages that come meanwhile are kept up to twice the limit; then they are released, with all that follow until the source has no
credit left, so that the order is kept.

Invariants:
    I1. Messages in flight and credit together never exceed the present window, except until the answer to a drain after it was
        narrowed.
    I2. After a drain nothing is granted before its answer.
    I3. Bytes in flight do not exceed twice the route's limit, except by one message: alone, or admitted besides refused ones.
    I4. Credit never exceeds the route's present rate limit; where the rate falls, the excess is taken back.
"""

from __future__ import annotations

import math

from isthmus.bridge.flow.byte_budget import ByteBudget
from isthmus.bridge.flow.credit_window import CreditWindow
from isthmus.bridge.flow.rate_limit import RateLimit
from isthmus.bridge.lease.event import Drain, Effect, Grant
from isthmus.bridge.lease.unsettled import UnsettledMap

__all__ = ["SourceFlow"]

# A source that does not answer a drain for so long is opened again.
DRAIN_LIMIT_SECONDS = 30.0


class SourceFlow:
    """The credit of one route's source.

    Args:
        messages: that may be in flight at most.
        nbytes: their bytes; one message alone may be larger.
        budget: of all routes of the process.
        rate: the route's rate limit; None: no limit.

    Attributes:
        window: how many messages may be in flight.
        rate: the route's rate limit.
        rate_due: when the rate allows more credit, or changes; infinite where nothing waits for that.
        left: the unused credit.
        is_draining: whether the answer to a drain is missing.
        drain_by: when that answer is overdue; infinite where none is missing.
    """

    def __init__(self, messages: int, nbytes: int, budget: ByteBudget, rate: RateLimit | None = None) -> None:
        self.window = CreditWindow(messages, nbytes)
        self.rate = rate or RateLimit()
        self.rate_due = math.inf
        self.left = 0
        self.is_draining = False
        self.drain_by = math.inf
        self._nbytes = nbytes
        self._budget = budget
        self._is_returning = False
        self._admits_one = False  # beyond the bytes

    @property
    def is_quiet(self) -> bool:
        """Whether no more messages come before credit is granted."""
        return not self.left and not self.is_draining

    def reset(self) -> None:
        """The connection is lost, and its credit with it."""
        self.left = 0
        self.drain_by = self.rate_due = math.inf
        self.is_draining = self._is_returning = self._admits_one = False

    def admit_another(self, unsettled: UnsettledMap) -> bool:
        """Admits one message besides those that their target refuses, to be tried ahead of them; returns whether the window grew."""
        has_room = unsettled.outstanding == 1 or unsettled.outstanding_bytes < 2 * self._nbytes
        has_room = has_room and self._budget.used < 2 * self._budget.nbytes
        self._admits_one = self._admits_one or (self.is_quiet and has_room)
        return self.window.admit_another(unsettled.outstanding)

    def drained(self) -> None:
        """The source answered a drain."""
        self.reset()

    def take(self, count: int, nbytes: int, unsettled: UnsettledMap) -> bool:
        """Messages came; returns whether there is room, or they have to be released."""
        self.left = max(0, self.left - count)
        self.rate.took(count)
        if self._is_returning:
            return False
        alone = count == 1 and (not unsettled.outstanding or self._admits_one)
        self._admits_one = False
        over = unsettled.outstanding_bytes + nbytes > 2 * self._nbytes
        over = over or self._budget.used + nbytes > 2 * self._budget.nbytes
        self._is_returning = over and not alone and bool(unsettled.outstanding)
        return not self._is_returning

    def drain(self, now: float, effects: list[Effect]) -> None:
        """Takes the credit back."""
        self.rate_due = math.inf
        if self.left and not self.is_draining:
            self.is_draining = True
            self.drain_by = now + DRAIN_LIMIT_SECONDS
            effects.append(Drain())

    def refill(self, unsettled: UnsettledMap, now: float, effects: list[Effect]) -> None:
        """Grants as much credit as there is room."""
        self.rate_due = math.inf
        allowed = self.rate.credit(now)
        if self.is_draining:
            return
        window, outstanding, nbytes = self.window, unsettled.outstanding, unsettled.outstanding_bytes
        window.nbytes = min(self._nbytes, self._budget.share)
        is_full = window.is_full(outstanding, nbytes, 0) and not self._admits_one
        if outstanding + self.left > window.limit or is_full or self._is_returning:
            self.drain(now, effects)
            self._is_returning = self._is_returning and self.is_draining
            return
        wanted = window.credit(outstanding, nbytes)
        if self._admits_one:
            wanted = max(wanted, min(1, window.limit - outstanding))
        if allowed < wanted:
            # More messages than the rate allows may have come while credit was taken back: then the number of tokens is negative.
            wanted = max(0, int(allowed))
            if self.left > wanted:
                self.drain(now, effects)
                return
            self.rate_due = self.rate.due(self.left + self.rate.step)
            if wanted - self.left < self.rate.step:
                return
        else:
            self.rate_due = self.rate.changes_at
            if not window.is_worth_granting(wanted, self.left):
                return
        self.left = wanted
        effects.append(Grant(wanted))
