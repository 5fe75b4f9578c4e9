"""What was read of one member, and what its numbering shows of messages that are no longer there.

What it is: the account of one audited subscription. A subscription numbers its messages without gaps (Microsoft Learn,
"Message sequencing and timestamps"), so that numbers which are absent are messages that were taken out: consumed, expired
or deleted. What it is not: the reading of messages (`isthmus.replication.verification.audit.audit`).

Invariants:
    I1. What is absent before the first message that exists, and between two that exist, is counted. What was taken out
        after the last one cannot be seen; a subscription that applications consume is therefore never proof of a loss. From one that
        no application consumes, no more messages can have been taken out than are absent.
    I2. Only the time to live of the subscription explains what is absent before the first message, and only where that
        is at least half that old, and no message with a shorter time to live of its own was read: otherwise what
        is absent may have expired before a route moved it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isthmus.connectors.servicebus.head import FRAGMENT_BITS

__all__ = ["Numbering", "Reading"]

_LOW = (1 << FRAGMENT_BITS) - 1


class Numbering:
    """The sequence numbers that were read in an entity, in order; a partitioned entity numbers each fragment.

    Args:
        is_log: whether they are offsets, which begin with 0 and have gaps for other reasons.
    """

    def __init__(self, *, is_log: bool = False) -> None:
        self._is_log = is_log
        self._fragments: dict[int, tuple[int, int, int]] = {}  # first, last, count

    def add(self, sequence: int) -> None:
        """A message was read."""
        fragment, number = sequence >> FRAGMENT_BITS, sequence & _LOW
        first, last, count = self._fragments.get(fragment, (number, number, 0))
        self._fragments[fragment] = (min(first, number), max(last, number), count + 1)

    def reaches(self, sequence: int) -> bool:
        """Whether a message with this or a higher number was read in its fragment."""
        first, _, _ = self._fragments.get(sequence >> FRAGMENT_BITS, (_LOW + 1, 0, 0))
        return first <= sequence & _LOW

    def is_new(self, sequence: int) -> bool:
        """Whether no message of its fragment was read."""
        return sequence >> FRAGMENT_BITS not in self._fragments

    @property
    def before(self) -> int:
        """How many are absent before the first."""
        least = 0 if self._is_log else 1
        return sum(max(0, first - least) for first, _, _ in self._fragments.values())

    @property
    def between(self) -> int:
        """How many are absent between the first and the last."""
        if self._is_log:
            return 0
        return sum(max(0, last - first + 1 - count) for first, last, count in self._fragments.values())


@dataclass(frozen=True, slots=True)
class Reading:
    """One audited subscription as it was read.

    Attributes:
        member: alias of the namespace.
        entity: the subscription's path.
        messages: how many there were.
        absent_before: how many were taken out before the first that exists.
        absent_between: how many were taken out between the first and the last.
        first_enqueued_ms: wall time at which the first that exists was enqueued; 0 where none exists.
        shared: whether applications consume it.
        ttl_ms: the time to live that it gives its messages; 0 for none, or not known.
        short_lived: whether a message with a shorter time to live was read.
        read_ms: wall time of the reading.
        is_log: whether it is a log, e.g. a topic of Kafka: what its retention has removed is no longer compared.
        is_emptied: whether its retention has left nothing of a partition, so that the age of what it removed there is not known.
    """

    member: str
    entity: str
    messages: int = 0
    absent_before: int = 0
    absent_between: int = 0
    first_enqueued_ms: int = 0
    shared: bool = False
    ttl_ms: int = 0
    short_lived: bool = False
    read_ms: int = 0
    is_log: bool = False
    is_emptied: bool = False

    @property
    def has_aged(self) -> bool:
        """Whether its time to live explains what is absent before the first message."""
        age_ms = self.read_ms - self.first_enqueued_ms
        return 0 < self.ttl_ms <= 2 * age_ms and not self.short_lived and not self.shared

    @property
    def doubt(self) -> str:
        """Why the reading does not show all that entered; empty where it does."""
        aged = self.has_aged or self.is_log
        absent = self.absent_between + (0 if aged else self.absent_before)
        if not absent:
            return ""
        why = "applications consume it" if self.shared else "expired, or consumed by someone"
        gone = "1 message is no longer there" if absent == 1 else f"{absent:,} messages are no longer there"
        return f"{gone} in {self.entity} at {self.member} ({why})"

    @property
    def most_taken(self) -> int | None:
        """How many copies may have been here and been taken out; None: any number (I1)."""
        return None if self.shared or self.is_emptied else self.absent_before + self.absent_between

    def may_have_held(self, entered_ms: int, drift_ms: int) -> bool:
        """Whether a copy of a message that entered another member at this time may have been here and been taken out."""
        if self.shared or self.absent_between or self.is_emptied:
            return True
        is_unknown = not self.first_enqueued_ms
        return self.absent_before > 0 and (is_unknown or entered_ms <= self.first_enqueued_ms + drift_ms)

    def to_dict(self) -> dict[str, Any]:
        """The reading as plain values."""
        return {name: getattr(self, name) for name in self.__slots__} | {"doubt": self.doubt}
