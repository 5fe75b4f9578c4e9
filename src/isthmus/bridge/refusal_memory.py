"""Refused messages of a route's target, kept from one opening to the next.

What it is: for each message that was refused and not accepted since, how long it has been refused and how many deliveries the target had
accepted by then. An opening ends when its target has accepted nothing for a while, and everything is released at the source; the next one may
begin with other messages, which show whether the target accepts any. Without this memory no message would be refused for long enough
in one opening. What it is not: the decision that a message is refused individually (`refusal`), or state beyond the sink's process.

A message is identified by its position together with its content (`isthmus.bridge.lease.content_name`): a source that is created
again gives positions to other messages.

Invariants:
    I1. At most `MOST_RECORDS` messages are remembered of each target; those that were refused longest ago are forgotten first.
    I2. The record of a message is removed when it was not refused for `KEPT_SECONDS`.
    I3. The records of one target do not affect another one.
"""

from __future__ import annotations

from typing import NamedTuple

from isthmus.bridge.route_spec import End, RouteSpec

__all__ = ["KEPT_SECONDS", "MOST_RECORDS", "MessageKey", "RefusalMemories", "RefusalMemory", "RefusalRecord"]

# A route with 128 locked sessions, all of them with refused messages, visits about 10,000 sessions in that time.
KEPT_SECONDS = 3_600.0
MOST_RECORDS = 10_000

MessageKey = tuple[int, int]
"""The position of a message, and its content name."""


class RefusalRecord(NamedTuple):
    """A message that is refused.

    Attributes:
        since: when it was refused first.
        accepted: deliveries that the target had accepted when it was refused last.
        attempts: how often it was refused.
    """

    since: float
    accepted: int
    attempts: int


class RefusalMemory:
    """The memory of one target of a route.

    Attributes:
        accepted: deliveries that the target has accepted, in all openings.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self._records: dict[MessageKey, tuple[float, RefusalRecord]] = {}  # refused longest ago first

    def __bool__(self) -> bool:
        return bool(self._records)

    def recall(self, key: MessageKey, now: float) -> RefusalRecord | None:
        """The record of a message; None where there is none."""
        found = self._records.get(key)
        return None if found is None or now - found[0] >= KEPT_SECONDS else found[1]

    def keep(self, key: MessageKey, record: RefusalRecord, now: float) -> None:
        """A message was refused."""
        records = self._records
        records.pop(key, None)
        records[key] = now, record
        while len(records) > MOST_RECORDS or now - next(iter(records.values()))[0] >= KEPT_SECONDS:
            del records[next(iter(records))]

    def forget(self, key: MessageKey) -> None:
        """Removes the record of a message that is finished, or whose refusals do not count."""
        self._records.pop(key, None)


class RefusalMemories:
    """The memories of one sink, by route and target."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[End, End, RefusalMemory]] = {}

    def of(self, spec: RouteSpec, divert: str = "") -> RefusalMemory:
        """The memory of a route's target, or of the entity that it diverts messages to under a name."""
        key = spec.name, divert
        known = self._known.get(key)
        if known is None or known[:2] != (spec.source, spec.target):
            known = self._known[key] = spec.source, spec.target, RefusalMemory()
        return known[2]

    def closed(self, spec: RouteSpec, divert: str = "") -> None:
        """An opening has ended: a memory without refusals is removed."""
        known = self._known.get((spec.name, divert))
        if known is not None and not known[2]:
            del self._known[spec.name, divert]
