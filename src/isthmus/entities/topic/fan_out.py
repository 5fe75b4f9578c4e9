"""How much a topic may copy to its subscriptions before other work is done.

What it is: the budget of one slice of work (`CopyBudget`), and the topics with more messages to copy than fitted into theirs (`FanOut`). What
it is not: the copying, or the storage of waiting messages (`topic`). See docs/explanation/store.md.

A copy, or the evaluation of a rule on a message, is one unit. Without a budget one envelope to a topic with many subscriptions or
rules would block all clients of a namespace, and its copies would be in memory together.

Invariants:
    I1. All copies in one commit at the senders' request are within one budget, however many topics, forwarding ones
        included, take part; so is each slice in which a waiting topic continues, and a commit has `SLICES` of these.
    I2. Topics that wait get their slices in rotation.
    I3. A topic whose messages cannot be read is logged and skipped for a while, longer each time; the others continue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from isthmus.entities.queue.window import Pair
from isthmus.entities.record.record import Parts
from isthmus.errors import StoreError

__all__ = ["SENT_UNITS", "SLICE_UNITS", "FanOut", "CopyBudget"]

_log = logging.getLogger(__name__)

# The most copies at senders' request in one commit: some 40 ms of work. Further messages wait in the topic.
SENT_UNITS = 16_384
SENT_BYTES = 16 << 20
SENT_SECONDS = 0.04
# The most copies of waiting messages in one slice: some 10 ms. Rules may be slow, hence the time: after it
# no further message or subscription is begun.
SLICE_UNITS = 4_096
SLICE_BYTES = 8 << 20
SLICE_SECONDS = 0.01
# Slices whose copies one commit may contain: with a slow disk, each must not wait for a sync of its own.
SLICES = 8
_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0


class CopyBudget:
    """The copies that may still be made.

    Args:
        units: copies and evaluations of rules.
        size_bytes: of copies.
        seconds: of work.
        now: monotonic seconds.

    Attributes:
        units: left.
        size_bytes: left.
        seconds: left.
    """

    __slots__ = ("_began_at", "_now", "seconds", "size_bytes", "units")

    def __init__(self, units: int, size_bytes: int, seconds: float, now: Callable[[], float]) -> None:
        self.units = units
        self.size_bytes = size_bytes
        self.seconds = seconds
        self._now = now
        self._began_at = now()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be begun."""
        return self.units <= 0 or self.size_bytes <= 0 or self.seconds <= 0

    def fitting(self, messages: Sequence[Parts], at: int, copies: int, cost: int, units: int) -> tuple[int, int]:
        """How many messages fit, with all their copies, and the bytes of these.

        Args:
            messages: in order.
            at: the index of the first.
            copies: of each message.
            cost: of each message, in units.
            units: the limit of units, within the budget.
        """
        count = min(len(messages) - at, min(self.units, units) // cost)
        size_bytes = copies * sum(len(messages[index].rest) for index in range(at, at + count))
        while count and size_bytes > self.size_bytes:
            dropped = count - count // 2
            count -= dropped
            size_bytes -= copies * sum(len(messages[index].rest) for index in range(at + count, at + count + dropped))
        return count, size_bytes

    def begin(self) -> None:
        """Work begins."""
        self._began_at = self._now()

    def spend(self, units: int, size_bytes: int) -> None:
        """Subtract the work since `begin`, or since the last call of this."""
        self.units -= units
        self.size_bytes -= size_bytes
        now = self._now()
        self.seconds -= now - self._began_at
        self._began_at = now


class WaitingTopic(Protocol):
    """A topic with messages to be copied."""

    @property
    def path(self) -> str:
        """Canonical name."""
        ...

    @property
    def head(self) -> int:
        """Number of the first message that waits."""
        ...

    @property
    def has_waiting(self) -> bool:
        """Whether messages wait to be copied."""
        ...

    def read_waiting(self, budget: CopyBudget) -> list[Pair]:
        """The first messages that wait."""
        ...

    def go_on(self, pairs: Sequence[Pair], budget: CopyBudget) -> None:
        """Copy waiting messages, as far as the budget allows."""
        ...


class FanOut:
    """The budget of one engine's commits, and the topics that wait.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._waiting: dict[WaitingTopic, None] = {}
        # Topics that could not be read: until when they are skipped, and for how long.
        self._paused: dict[WaitingTopic, tuple[float, float]] = {}
        self._sent: CopyBudget | None = None
        self._is_stopped = False
        self._slices = 0

    @property
    def sent(self) -> CopyBudget:
        """The copies that senders may still request in the commit that is being staged."""
        if self._sent is None:
            self._sent = CopyBudget(SENT_UNITS, SENT_BYTES, SENT_SECONDS, self._now)
        return self._sent

    def begin(self) -> None:
        """Another commit is being staged from now on."""
        self._sent = None
        self._slices = 0

    @property
    def is_waiting(self) -> bool:
        """Whether any topic has copies to make."""
        return bool(self._waiting) and not self._is_stopped

    def stop(self) -> None:
        """Leave waiting messages for the next start."""
        self._is_stopped = True

    def add(self, topic: WaitingTopic) -> None:
        """A topic has messages to be copied."""
        self._waiting[topic] = None

    def discard(self, topic: WaitingTopic) -> None:
        """A topic has none any more."""
        self._waiting.pop(topic, None)
        self._paused.pop(topic, None)

    def go_on(self) -> bool:
        """Let the next topic copy for one slice; returns whether any did, and another slice may follow.

        Raises:
            StoreError: the store refused.
        """
        if self._slices >= SLICES:
            return False
        for topic in list(self._waiting):
            del self._waiting[topic]
            if topic.has_waiting:
                self._waiting[topic] = None
                budget = CopyBudget(SLICE_UNITS, SLICE_BYTES, SLICE_SECONDS, self._now)
                pairs = self._read(topic, budget)
                if pairs:
                    topic.go_on(pairs, budget)
                    self._slices += 1
                    return self._slices < SLICES
            else:
                self._paused.pop(topic, None)
        return False

    def _read(self, topic: WaitingTopic, budget: CopyBudget) -> list[Pair]:
        """The messages that a topic may copy now."""
        until, pause_seconds = self._paused.get(topic, (0.0, 0.0))
        now = self._now()
        if now < until:
            return []
        try:
            pairs = topic.read_waiting(budget)
        except StoreError as error:
            pause_seconds = min(max(_PAUSE_SECONDS, 2 * pause_seconds), _LONGEST_PAUSE_SECONDS)
            self._paused[topic] = now + pause_seconds, pause_seconds
            _log.error(
                "waiting messages of a topic cannot be read: topic=%r sequence=%d reason=%s; retried in %g s",
                topic.path, topic.head, error, pause_seconds,
            )  # fmt: skip
            return []
        self._paused.pop(topic, None)
        return pairs
