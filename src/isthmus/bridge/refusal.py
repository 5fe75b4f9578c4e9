"""What a target says when it does not take a message, and the account of it.

What it is: refusals as data, whatever the system, and for each message how long it has been refused and whether its target
took others meanwhile, in this opening of its route and in those before it. What it is not: the sending again (`delivery`), or what is
kept from one opening to the next (`refusal_memory`).

A message is refused for itself when it has been refused for `set_aside_seconds` and its target has accepted another message
between its last two refusals. Both conditions are needed: a target that refuses everything says nothing about a message. Where
there is no other message that could be tried and has not been refused as well, it is enough that one that was sent behind it has
been accepted. Where few messages come (`needs_others` False) none is needed.

Invariants:
    I1. A message is found to be refused for itself only by refusals of the kinds MESSAGE and UNCLEAR: a target that is busy,
        full, disabled or away never makes it so.
    I2. A message that comes again in a later opening goes on where it was: how long it has been refused, and what its target accepted
        since. Only in what a target refuses or accepts in this opening is it compared with others (`is_refused`, `has_been_passed`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from isthmus.bridge.refusal_memory import MessageKey, RefusalMemory, RefusalRecord

__all__ = ["OF_THE_MESSAGE", "Refusal", "RefusalAccount", "RefusalKind"]


class RefusalKind(enum.Enum):
    """What a refusal means for the message and for those behind it."""

    MESSAGE = "message"
    """The message is at fault, whenever it is sent: too large, malformed."""
    UNCLEAR = "unclear"
    """The target says neither that the message is at fault nor for how long: an unknown condition, or none."""
    BLOCKED = "blocked"
    """The target takes nothing for now: busy, full, disabled."""
    UNKNOWN = "unknown"
    """Nobody knows whether the target took the message: the connection was lost, or no outcome was told."""
    FATAL = "fatal"
    """Waiting does not help: the entity does not exist, access is refused."""


OF_THE_MESSAGE = (RefusalKind.MESSAGE, RefusalKind.UNCLEAR)
"""The kinds for which it may be the message."""


class Refusal(NamedTuple):
    """A refusal; `reason` is what a message that is set aside for it is dead-lettered with."""

    kind: RefusalKind
    condition: str
    description: str
    reason: str = "RefusedByTarget"

    def __str__(self) -> str:
        return f"{self.condition}: {self.description}" if self.condition else self.description


class RefusalAccount:
    """How long messages have been refused.

    Args:
        set_aside_seconds: how long a message is refused before it may be found to be refused for itself.
        memory: what openings before this one know; None: nothing.
        key_of: by what message `index` is known in other openings; None where by nothing.
        needs_others: whether another message has to be accepted meanwhile.
    """

    def __init__(
        self,
        set_aside_seconds: float,
        memory: RefusalMemory | None = None,
        key_of: Callable[[int], MessageKey | None] = lambda index: None,
        *,
        needs_others: bool = True,
    ) -> None:
        self._set_aside_seconds = set_aside_seconds
        self._needs_others = needs_others
        self._memory = RefusalMemory() if memory is None else memory
        self._key_of = key_of
        self._highest = -1  # the last message that the target accepted
        self._records: dict[int, tuple[RefusalRecord, MessageKey | None]] = {}

    def accept(self, start: int, stop: int, deliveries: int) -> None:
        """Messages start up to stop were accepted, in so many deliveries."""
        self._memory.accepted += deliveries
        self._highest = max(self._highest, stop - 1)
        if self._records:
            self.forget(start, stop)

    def refuse(self, index: int, now: float) -> tuple[bool, bool]:
        """Message `index` was refused: (whether for itself, whether only an accepted other is missing for that)."""
        memory, accepted = self._memory, self._memory.accepted
        record, key = self._records.get(index) or self._recall(index, now)
        again = RefusalRecord(now, accepted, 1)
        if record is not None:
            again = RefusalRecord(record.since, accepted, record.attempts + 1)
        self._records[index] = again, key
        if key is not None:
            memory.keep(key, again, now)
        if record is None:
            return False, False
        old = now - record.since >= self._set_aside_seconds
        others = accepted > record.accepted or not self._needs_others
        return old and others, old and not others

    def _recall(self, index: int, now: float) -> tuple[RefusalRecord | None, MessageKey | None]:
        key = self._key_of(index)
        return (None if key is None else self._memory.recall(key, now)), key

    def is_refused(self, index: int) -> bool:
        """Whether message `index` has been refused in this opening and not accepted since."""
        return index in self._records

    @property
    def refused(self) -> int:
        """How many messages have been refused in this opening and not accepted since."""
        return len(self._records)

    def has_been_passed(self, index: int) -> bool:
        """Whether a message that was sent behind `index` has been accepted."""
        return self._highest > index

    def excuse(self, start: int, stop: int) -> None:
        """The target refused messages start up to stop for a reason of its own: what was noted of them does not count."""
        self._highest = -1
        if self._memory:
            for key in filter(None, map(self._key_of, range(start, stop))):
                self._memory.forget(key)
        self.forget(start, stop)

    def history(self, index: int, now: float) -> str:
        """How often and for how long a message has been refused."""
        record, _ = self._records[index]
        others = " while other messages were accepted" if self._needs_others else ""
        return f"refused {record.attempts} times in {now - record.since:.0f} s{others}"

    def forget(self, start: int, stop: int) -> None:
        """Messages start up to stop are done with."""
        records = self._records
        few = stop - start <= len(records)
        for index in range(start, stop) if few else [at for at in records if start <= at < stop]:
            _, key = records.pop(index, (None, None))
            if key is not None:
                self._memory.forget(key)
