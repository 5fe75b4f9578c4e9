"""The account of a drill: acknowledged messages, handled messages, and the RPO and RTO that follow.

What it is: pure; it takes events with their times. What it is not: the application that is simulated
(`isthmus.demo.drill.application`), or the loss of a member (`isthmus.demo.drill.drill`).

Invariants:
    I1. A message counts as sent only once a namespace has acknowledged it, and as lost if a consumer that should handle it did not.
    I2. A consumer handles a message once, by its MessageId, however often it comes; further deliveries are counted as suppressed.
    I3. Counts of one consumer are not mixed with those of another: with all-active each member's consumer handles every message.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DrillAccount", "DrillReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    """The result of a drill.

    Attributes:
        sent: messages that a namespace has acknowledged.
        rpo_messages: of those that the lost member had acknowledged before its loss, how many no consumer had handled elsewhere when it
            returned. They are late, not lost: see `lost`.
        rto_seconds: from the loss until a message that was published after it was handled; None where that never happened.
        handled: messages handled at least once by every consumer that should.
        handled_twice: handled more than once by one consumer.
        suppressed: delivered to a consumer again, which recognised them by their MessageId.
        lost: sent, and at the end not handled by every consumer that should.
    """

    sent: int
    rpo_messages: int
    rto_seconds: float | None
    handled: int
    handled_twice: int
    suppressed: int
    lost: int


class DrillAccount:
    """The events so far; used by several threads.

    Args:
        consumers: names; each should handle every message.
    """

    def __init__(self, consumers: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._sent: dict[str, tuple[str, float]] = {}  # by MessageId: the member that acknowledged it first, and when
        self._handled: dict[str, Counter[str]] = {name: Counter() for name in consumers}
        self._suppressed = 0
        self._lost_member = ""
        self._lost_at = math.inf
        self._first: dict[str, dict[str, float]] = {name: {} for name in consumers}  # when each was handled first
        self._missing: int | None = None
        self._survivors: tuple[str, ...] = ()

    def sent(self, message_id: str, member: str, now: float) -> None:
        """A namespace has acknowledged a message."""
        with self._lock:
            self._sent.setdefault(message_id, (member, now))

    def is_new(self, consumer: str, message_id: str) -> bool:
        """Whether a consumer has not handled a message before; one that it has is counted as suppressed."""
        with self._lock:
            if not self._handled[consumer][message_id]:
                return True
            self._suppressed += 1
            return False

    def handled(self, consumer: str, message_id: str, now: float) -> None:
        """A consumer has handled a message."""
        with self._lock:
            self._handled[consumer][message_id] += 1
            self._first[consumer].setdefault(message_id, now)

    def last_sent(self, member: str) -> float:
        """When a member last acknowledged a message; minus infinity where it never did."""
        with self._lock:
            return max((at for by, at in self._sent.values() if by == member), default=-math.inf)

    def lost(self, member: str, survivors: Sequence[str], at: float) -> None:
        """A member was lost at this time; `survivors` are the consumers that continue without it."""
        with self._lock:
            self._lost_member, self._lost_at, self._survivors = member, at, tuple(survivors)

    def _recovered_at(self) -> float:
        """When a survivor first handled a message that was acknowledged after the loss; infinity where none has."""
        return min(
            (
                max(at, sent_at)
                for name in self._survivors
                for message_id, at in self._first[name].items()
                if at > self._lost_at and (sent_at := self._sent.get(message_id, ("", -math.inf))[1]) > self._lost_at
            ),
            default=math.inf,
        )

    def missing(self) -> int:
        """How many messages that the lost member had acknowledged are not handled elsewhere, while it is away."""
        with self._lock:
            return sum(
                not all(self._handled[name][message_id] for name in self._survivors)
                for message_id, (member, _) in self._sent.items()
                if member == self._lost_member
            )

    def returns(self) -> int:
        """The member is about to return: messages missing now count as RPO."""
        self._missing = self.missing()
        return self._missing

    def unhandled(self, member: str = "") -> int:
        """How many messages, or of those that one member acknowledged, a consumer has not handled yet."""
        with self._lock:
            return sum(
                not all(handled[message_id] for handled in self._handled.values())
                for message_id, (by, _) in self._sent.items()
                if member in ("", by)
            )

    def progress(self) -> int:
        """A number that rises with every message that is handled or delivered again."""
        with self._lock:
            return sum(handled.total() for handled in self._handled.values()) + self._suppressed

    def report(self) -> DrillReport:
        """The result."""
        with self._lock:
            whole = [each for each in self._sent if all(handled[each] for handled in self._handled.values())]
            twice = {each for handled in self._handled.values() for each, count in handled.items() if count > 1}
            recovered_at = self._recovered_at()
            return DrillReport(
                sent=len(self._sent),
                rpo_messages=self._missing or 0,
                rto_seconds=None if recovered_at == math.inf else round(recovered_at - self._lost_at, 3),
                handled=len(whole),
                handled_twice=len(twice),
                suppressed=self._suppressed,
                lost=len(self._sent) - len(whole),
            )
