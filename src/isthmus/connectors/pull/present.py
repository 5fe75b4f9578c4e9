"""When a source that is read once has delivered all existing messages.

What it is: the decision, from the messages received and the system's count of the rest. What it is not: a request.

Invariants:
    I1. No message that was enqueued after the first opening is delivered.
    I2. It ends: messages that other receivers have locked are waited for as long as the locks last, and no longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from isthmus.connectors.pull.puller import Lease, Pulled

__all__ = ["LOCK_SECONDS", "Present"]

# How long to wait for the lock of a reader that died.
LOCK_SECONDS = 300.0


class Present:
    """The account of one source.

    Attributes:
        is_over: whether all existing messages were delivered.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._opened_ms = 0
        self._later: dict[str, Lease] = {}
        self._since = math.inf

    def opened(self, now_ms: int) -> None:
        """The source is connected, at this wall time of its system."""
        self._opened_ms = self._opened_ms or now_ms

    def split(self, pulled: Sequence[Pulled]) -> list[Pulled]:
        """The messages that existed. Systems report whole seconds: messages of the same second count as existing. Later ones stay locked
        until the end: if they were released at once, they would be delivered again at once.
        """
        limit = (self._opened_ms // 1000 + 1) * 1000
        self._later.update((each.lease.name, each.lease) for each in pulled if each.enqueued_ms >= limit)
        return [each for each in pulled if each.enqueued_ms < limit]

    def leave(self) -> list[Lease]:
        """The later messages, which have to be released."""
        later = list(self._later.values())
        self._later.clear()
        return later

    def polled(self, waiting: int | None, locked: int, now: float) -> bool:
        """No existing message was received, with so many locked; returns whether there are no more.

        Args:
            waiting: messages in the system, as far as it reports them.
            locked: how many of them this source has locked.
            now: monotonic seconds.
        """
        self._since = min(self._since, now)
        left = 0 if waiting is None else waiting - locked - len(self._later)
        self.is_over = left <= 0 or now >= self._since + LOCK_SECONDS
        return self.is_over
