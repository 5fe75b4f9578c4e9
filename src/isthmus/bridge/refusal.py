"""Refusals of a target, and their account.

What it is: refusals as data, for every system, and for each message how long it has been refused and whether its target accepted
others meanwhile, in this opening of its route and in earlier ones. What it is not: resending (`delivery`), or the state that is kept
from one opening to the next (`refusal_memory`).

A message counts as refused individually when it has been refused for `set_aside_seconds` and its target has accepted another
message between its last two refusals. Both conditions are needed: the refusals of a target that refuses everything are not about
one message. Where all other messages that could be tried have been refused as well, it is enough that one that was sent after it
has been accepted. Where few messages come (`needs_others` False) no other is needed.

Invariants:
    I1. A message counts as refused individually only by refusals of the kinds MESSAGE and UNCLEAR: a target that is busy,
        full, disabled or unreachable is never the reason.
    I2. The state of a message that comes again in a later opening is kept: how long it has been refused, and how many its target has
        accepted since. The comparison with others is limited to this opening (`is_refused`, `has_been_passed`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from isthmus.bridge.refusal_memory import MessageKey, RefusalMemory, RefusalRecord

__all__ = ["OF_THE_MESSAGE", "Refusal", "RefusalAccount", "RefusalKind"]


class RefusalKind(enum.Enum):
    """The meaning of a refusal for the message and for those after it."""

    MESSAGE = "message"
    """The message is the cause, whenever it is sent: too large, malformed."""
    UNCLEAR = "unclear"
    """The cause is unknown: an unknown condition, or none."""
    BLOCKED = "blocked"
    """The target accepts nothing for now: busy, full, disabled."""
    UNKNOWN = "unknown"
    """The outcome is unknown: the connection was lost, or no outcome was sent."""
    FATAL = "fatal"
    """Waiting does not help: the entity does not exist, access is refused."""


OF_THE_MESSAGE = (RefusalKind.MESSAGE, RefusalKind.UNCLEAR)
"""The kinds of which the message may be the cause."""


class Refusal(NamedTuple):
    """A refusal; `reason` is the dead-letter reason of a message that is set aside for it."""

    kind: RefusalKind
    condition: str
    description: str
    reason: str = "RefusedByTarget"

    def __str__(self) -> str:
        return f"{self.condition}: {self.description}" if self.condition else self.description


class RefusalAccount:
    """How long messages have been refused.

    Args:
        set_aside_seconds: how long a message is refused before it may count as refused individually.
        memory: the memory of earlier openings; None: none.
        key_of: the key of message `index` in other openings; None where it has none.
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
        """Message `index` was refused. Returns (whether individually, whether only another accepted message is missing for that)."""
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
        """Whether a message that was sent after `index` has been accepted."""
        return self._highest > index

    def disregard(self, start: int, stop: int) -> None:
        """Forgets the refusals of messages start up to stop: the target refused them for a reason of its own."""
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
        """Messages start up to stop are finished."""
        records = self._records
        few = stop - start <= len(records)
        for index in range(start, stop) if few else [at for at in records if start <= at < stop]:
            _, key = records.pop(index, (None, None))
            if key is not None:
                self._memory.forget(key)
