"""When a source that is read once has delivered all existing messages of its queue.

What it is: the decision, from the queue's own count at the first opening and the messages received since. What it is not: a request: the
source queries the queue when `is_due` says so. RabbitMQ reports no enqueued times; so as many messages are delivered as there were. It does
not count messages that it keeps for a connection, even a lost one, until it has detected the loss: a count is not trusted until then.

Invariants:
    I1. No more messages are delivered than were in the queue at the first count that is trusted, and before that, however often the
        connection is lost.
    I2. It ends: messages that other consumers have are not waited for once the queue is empty.
    I3. A count without the messages that the broker keeps for a lost connection does not mark the end.
    I4. Messages that return with their channel, or were released, are existing ones when they are redelivered: also those that were set aside, and
        whose copy is not confirmed. While only released ones are left, another message is a later one, unless it may keep them from arriving.
"""

from __future__ import annotations

import math

from isthmus.connectors.rabbitmq.port.delivered import Again

__all__ = ["QUIET_SECONDS", "Present"]

# A queue that delivers nothing for so long is queried whether it is empty.
QUIET_SECONDS = 0.5


class Present:
    """The account of one source.

    Args:
        most_late: later messages that may be kept while a released one returns; they use up the prefetch.

    Attributes:
        quiet_at: when to query whether any message is left; infinite where none is waited for.
        count_at: when to query the first count again; infinite where it is known, or was not requested.
        is_asking: whether a query is in progress.
    """

    def __init__(self, most_late: int = 0) -> None:
        self._most_late = most_late
        self.quiet_at = self.count_at = math.inf
        self.is_asking = False
        self._left: int | None = None  # None: not counted yet
        self._returning = 0  # of these, released ones
        self._has_reported = False
        self._late: list[int] = []  # tags

    @property
    def is_over(self) -> bool:
        """Whether all existing messages have arrived."""
        return self._left == 0

    def channel_begins(self) -> None:
        """Queries over an earlier channel are not answered."""
        self.is_asking = False
        self.quiet_at = self.count_at = math.inf
        self._late.clear()

    def counted(self, messages: int, now: float, *, is_idle: bool, kept_until: float = -math.inf) -> None:
        """The queue's number of ready messages.

        Args:
            messages: the count.
            now: monotonic seconds.
            is_idle: whether the source has none of them.
            kept_until: until when the broker may keep some for a lost connection (I3).
        """
        self.count_at = math.inf
        if now < kept_until:
            self.count_at = kept_until if self._left is None else math.inf
        elif self._left is None:
            self._left = messages
        elif self.is_asking and not messages and is_idle:
            self._left = self._returning = 0  # other consumers had the rest
        self.is_asking = False
        self.moved(now)

    def moved(self, now: float) -> None:
        """A message arrived, or may arrive: the queue is not idle."""
        self.quiet_at = now + QUIET_SECONDS

    def came(self, tag: int, now: float, again: Again = "") -> bool:
        """An unknown message arrived; returns whether it is one of the existing ones. `again`: where it is redelivered, what became of it before."""
        if again == "settled":  # it was counted when it arrived first
            self.moved(now)
            return True
        only_returning = self._left is not None and self._left <= self._returning
        if self.is_over or (only_returning and not again and len(self._late) < self._most_late):
            self._late.append(tag)
            return False
        self.moved(now)
        if self._left is not None:
            self._left -= 1
            self._returning = max(0, min(self._left, self._returning - (again == "released")))
        return True

    def gone_back(self, messages: int) -> None:
        """The channel is closed; so many of its messages are redelivered as unknown ones, later ones included."""
        if self._left is not None:
            self._left += messages - len(self._late)
        self._late.clear()
        self.is_asking = False

    def released(self, messages: int) -> None:
        """So many received messages are released: they are redelivered as such, and are not later ones."""
        if self._left is not None:
            self._left += messages
            self._returning += messages

    def leave(self) -> list[int]:
        """The tags of later messages, which are released."""
        late, self._late = self._late, []
        return late

    def is_at_end(self, now: float, *, is_waiting: bool) -> bool:
        """Whether the end has to be reported now, which happens once.

        Args:
            now: monotonic seconds.
            is_waiting: whether messages of an earlier channel may be redelivered, which have to be acknowledged.
        """
        if self._has_reported or not self.is_over or (is_waiting and now < self.quiet_at):
            return False
        self._has_reported = True
        self.quiet_at = math.inf
        return True

    @property
    def due_at(self) -> float:
        """When to call `is_due`."""
        return min(self.quiet_at, self.count_at)

    def is_due(self, now: float, *, can_ask: bool) -> bool:
        """Whether to query the queue now; `can_ask`: whether its answer could be the end."""
        if self._has_reported or now < self.due_at:
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
