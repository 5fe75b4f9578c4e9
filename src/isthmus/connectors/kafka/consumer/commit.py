"""The decisions which offsets are committed when, and the cluster's answers.

What it is: the decisions of one consumer, pure: events and the time in, offsets to commit out. What it is not: the account of
settled records (`offset`), or the call (`consumer`).
Specification: Apache Kafka documentation, "Distribution: Consumer Offset Tracking". A group keeps the offset of the commit that its
coordinator stored last, not the highest. librdkafka repeats a commit whose connection was lost, after later ones.

Invariants:
    I1. While a commit has no answer no other one is made, so that no older one arrives later.
    I2. Unconfirmed offsets are committed again.
    I3. No offset of a revoked partition is committed.
    I4. An offset is committed again where its note has changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from isthmus.connectors.kafka.consumer.offset import OffsetAccount

__all__ = ["ANSWER_SECONDS", "COMMIT_SECONDS", "Commits"]

COMMIT_SECONDS = 0.5
# After so long a commit gets no answer: librdkafka gives up a request after `socket.timeout.ms`, one minute.
ANSWER_SECONDS = 90.0
_AT_ONCE = 1e-9  # above 0, which means that nothing is due
_NO_LIMITS: Mapping[int, int] = {}


class Commits:
    """The commits of one consumer.

    Args:
        account: the account of settled records.
        seconds: the interval of commits.
        note: the note of a partition's offset.
    """

    def __init__(
        self, account: OffsetAccount, seconds: float = COMMIT_SECONDS, note: Callable[[int], str] = lambda _: ""
    ) -> None:
        self._account = account
        self._seconds = seconds
        self._note = note
        self._confirmed: dict[int, int] = {}
        self._noted: dict[int, str] = {}  # the notes of these offsets
        self._asked_notes: dict[tuple[int, int], str] = {}  # the notes of pending commits, by partition and offset
        self._outstanding: dict[int, int] = {}
        self._limited: dict[int, int] = {}  # partitions whose last commit was limited
        self._since = 0.0
        self._due = 0.0  # 0: nothing was settled

    @property
    def is_outstanding(self) -> bool:
        """Whether a commit has no answer yet."""
        return bool(self._outstanding)

    @property
    def is_idle(self) -> bool:
        """Whether the cluster has confirmed the offsets of all settled records, as far as they can be committed."""
        return not (self._due or self._outstanding or self._limited)

    def settled(self, now: float) -> None:
        """Records were settled."""
        self._due = self._due or now + self._seconds

    def unblock(self) -> None:
        """A limit of a commit no longer exists."""
        self._due = _AT_ONCE

    @property
    def due(self) -> float:
        """When `begin` has work, unless a commit is pending; infinite where nothing was settled."""
        return self._due or math.inf

    def begin(self, now: float, limits: Mapping[int, int] = _NO_LIMITS) -> dict[int, int]:
        """The offsets to commit now, by partition, none beyond its limit; empty: none is due."""
        if any(number not in limits for number in self._limited):
            self.unblock()
        elif any(limits[number] > limit for number, limit in self._limited.items()):
            self.settled(now)
        if not 0 < self._due <= now or (self._outstanding and now < self._since + ANSWER_SECONDS):
            return {}
        self._due = 0.0
        found = self.unconfirmed()
        self._limited = {
            number: limits[number] for number, offset in found.items() if limits.get(number, offset) < offset
        }
        self._outstanding = self.unconfirmed(limits=limits) if self._limited else found
        self._since = now
        return dict(self._outstanding)

    def unconfirmed(
        self, partitions: Iterable[int] | None = None, limits: Mapping[int, int] = _NO_LIMITS
    ) -> dict[int, int]:
        """The unconfirmed offsets, by partition, none beyond its limit."""
        found = self._account.to_commit(partitions)
        if limits:
            found = {number: min(offset, limits.get(number, offset)) for number, offset in found.items()}
        return {number: offset for number, offset in found.items() if self._is_news(number, offset)}

    def _is_news(self, number: int, offset: int) -> bool:
        confirmed = self._confirmed.get(number, -1)
        return offset > confirmed or (0 <= offset == confirmed and self._note(number) != self._noted.get(number, ""))

    def notes(self, commits: Mapping[int, int]) -> dict[int, str]:
        """The notes of the offsets of a commit made now."""
        notes = {number: self._note(number) for number in commits}
        self._asked_notes |= {(number, commits[number]): note for number, note in notes.items()}
        return notes

    def epochs(self, commits: Mapping[int, int]) -> dict[int, int]:
        """The leader epochs of the offsets of a commit; -1: unknown."""
        found = ((number, self._account.partitions.get(number)) for number in commits)
        return {number: -1 if each is None else each.epoch for number, each in found}

    def answered(self, offsets: Mapping[int, int], failed: Iterable[int], now: float) -> None:
        """The cluster answered a commit of these offsets; it refused those of the partitions in `failed`."""
        refused = set(failed)
        if self._outstanding and offsets.items() >= self._outstanding.items():
            self._outstanding = {}
        for number, offset in offsets.items():
            note = self._asked_notes.pop((number, offset), "")
            if number in refused:
                self.settled(now)
            elif number in self._account.partitions:
                if offset < self._confirmed.get(number, -1):  # an answer to a commit that had been given up
                    self.settled(now)
                self._confirmed[number], self._noted[number] = offset, note

    def failed(self, now: float) -> None:
        """The commit from `begin` could not be made."""
        self._outstanding = {}
        self.settled(now)

    def forget(self, partitions: Iterable[int]) -> None:
        """Partitions are revoked."""
        for number in partitions:
            self._confirmed.pop(number, None)
            self._noted.pop(number, None)
            self._outstanding.pop(number, None)
            self._limited.pop(number, None)

    def reset(self) -> None:
        """The consumer is not used any more: no answer follows."""
        self._confirmed.clear()
        self._noted.clear()
        self._asked_notes.clear()
        self._outstanding.clear()
