"""When a source that is read once has given all that was in its queue.

What it is: the decision, of the queue's own count at the first opening and of what came since. What it is not: a request: the source asks
the queue when `is_due` says so. RabbitMQ tells of no message when it came; so as many are given as were there. It counts no message that
it holds for a connection, be it one that is lost, as long as it has not noticed that: a count is not believed until then.

Invariants:
    I1. No more messages are given than was in the queue at the first count that is believed, and before that, however often the
        connection is lost.
    I2. It ends: what others have taken of them is not waited for once the queue is empty.
    I3. A count that leaves out what the broker holds for a lost connection is not the end.
"""

from __future__ import annotations

import math

__all__ = ["QUIET_SECONDS", "Present"]

# A queue that gives nothing for so long is asked whether it is empty.
QUIET_SECONDS = 0.5


class Present:
    """The account of one source.

    Attributes:
        quiet_at: when it is to be looked whether anything is left; infinite where nothing is waited for.
        count_at: when the queue is to be asked for the first count again; infinite where it has told, or was not asked.
        is_asking: whether the queue was asked.
    """

    def __init__(self) -> None:
        self.quiet_at = self.count_at = math.inf
        self.is_asking = False
        self._left: int | None = None  # None: the queue has not told yet
        self._has_told = False
        self._late: list[int] = []  # tags

    @property
    def is_over(self) -> bool:
        """Whether all that was there has come."""
        return self._left == 0

    def channel_begins(self) -> None:
        """What was asked over an earlier channel is not answered."""
        self.is_asking = False
        self.quiet_at = self.count_at = math.inf
        self._late.clear()

    def counted(self, messages: int, now: float, *, is_idle: bool, held_until: float = -math.inf) -> None:
        """The queue told how many messages are ready.

        Args:
            messages: so many.
            now: monotonic seconds.
            is_idle: whether the source has none of them.
            held_until: until when the broker may hold some for a connection that is lost (I3).
        """
        self.count_at = math.inf
        if now < held_until:
            self.count_at = held_until if self._left is None else math.inf
        elif self._left is None:
            self._left = messages
        elif self.is_asking and not messages and is_idle:
            self._left = 0  # somebody else had the rest
        self.is_asking = False
        self.moved(now)

    def moved(self, now: float) -> None:
        """Something came, or may come: the queue is not quiet."""
        self.quiet_at = now + QUIET_SECONDS

    def came(self, tag: int, now: float) -> bool:
        """A message came that is not known; whether it is one of those that were there."""
        if self.is_over:
            self._late.append(tag)
            return False
        self.moved(now)
        if self._left is not None:
            self._left -= 1
        return True

    def gone_back(self, messages: int) -> None:
        """The channel is gone; so many messages that came were not given to anybody: they come again."""
        self._late.clear()
        self.is_asking = False
        if self._left is not None:
            self._left += messages

    def leave(self) -> list[int]:
        """The tags of what came too late, which is given back."""
        late, self._late = self._late, []
        return late

    def is_at_end(self, now: float, *, is_waiting: bool) -> bool:
        """Whether the end is to be told now, which is once.

        Args:
            now: monotonic seconds.
            is_waiting: whether messages of an earlier channel may come again, whose acknowledgement is due.
        """
        if self._has_told or not self.is_over or (is_waiting and now < self.quiet_at):
            return False
        self._has_told = True
        self.quiet_at = math.inf
        return True

    @property
    def due_at(self) -> float:
        """When `is_due` is to be asked."""
        return min(self.quiet_at, self.count_at)

    def is_due(self, now: float, *, can_ask: bool) -> bool:
        """Whether the queue is to be asked now; `can_ask`: whether its answer could be the end."""
        if self._has_told or now < self.due_at:
            return False
        if self.is_asking:
            self.moved(now)
            return False
        if now >= self.count_at:
            self.count_at = math.inf
            self.is_asking = True
            return True
        self.moved(now)
        self.is_asking = can_ask
        return can_ask
