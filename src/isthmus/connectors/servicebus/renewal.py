"""The renewal of the locks of what is under way.

What it is: how old the locks of a lease's deliveries are, and the requests that renew those that have used up a third of
their time. What it is not: the account of what is outstanding (`ledger`); it waits for nothing.

Invariants:
    I1. While a renewal is under way no other is asked for.
    I2. A lock that is lost is no fault of the lease: its message comes again. Nor is a source that is busy: what it did not
        renew is asked for again while the lock lasts.
"""

from __future__ import annotations

from collections import deque

from isthmus.connectors.servicebus.disposition import TOKEN_CHUNK
from isthmus.connectors.servicebus.ledger import Ledger
from isthmus.errors import LockLostError
from isthmus.transport import Management, Reply

__all__ = ["Renewal"]

# What a busy source did not renew is due again after this part of the lock.
RETRIES_PER_LOCK = 10


class Renewal:
    """Renews the locks of one link's deliveries.

    Args:
        ledger: what is outstanding.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ages: deque[tuple[float, int]] = deque()  # when locked, and the delivery id behind the last
        self._replies: list[Reply] = []

    def arrived(self, now: float, behind: int) -> None:
        """Deliveries up to the one before `behind` came just now, locked."""
        self._ages.append((now, behind))

    def turn(self, now: float, lock_seconds: float, management: Management) -> None:
        """Asks for what is due.

        Raises:
            IsthmusError: the source refused for good, and for another reason than a lost lock.
        """
        faults = [reply.error for reply in self._replies if reply.error is not None]
        self._replies = [reply for reply in self._replies if not reply.done]
        horizon = now - lock_seconds / 3
        for fault in faults:
            if isinstance(fault, LockLostError):
                continue
            if not fault.retryable:
                raise fault
            if self._ages:
                self._ages[0] = (horizon + lock_seconds / RETRIES_PER_LOCK, self._ages[0][1])
        if self._replies or not self._ages or self._ages[0][0] > horizon:
            return
        through = 0
        while self._ages and self._ages[0][0] <= horizon:
            through = self._ages.popleft()[1]
        old = [span for span in self._ledger.spans() if span.delivery_id < through]
        tokens = [token for span in old for token in span.tokens[: through - span.delivery_id]]
        for start in range(0, len(tokens), TOKEN_CHUNK):
            self._replies.append(management.start_renew(tokens[start : start + TOKEN_CHUNK]))
        if tokens:
            self._ages.appendleft((now, through))
