"""The idle times of entities, for AutoDeleteOnIdle.

What it is: the start of idle times, and the last use of an entity; pure. What it is not: the deletion (`engine`).
Spec: docs/explanation/protocol.md, Administration.

Invariants:
    I1. Nothing is idle for longer than the engine runs, nor since before the wall clock was set, nor since before receivers
        could reach it again.
"""

from __future__ import annotations

from isthmus.clock import Clock, monotonic_ms
from isthmus.entities.catalog.catalog import Entry
from isthmus.entities.port import Entity

__all__ = ["IdleTime", "last_use_ms"]

# By how much the wall clock may drift from the monotonic one between two checks: a slew stays far below.
_STEP_MS = 1_000


class IdleTime:
    """The start of idle times.

    Args:
        clock: wall and monotonic time.
    """

    __slots__ = ("_clock", "_from_ms", "_wall_lead_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._from_ms = monotonic_ms(clock)
        self._wall_lead_ms = clock.wall_ms() - self._from_ms

    def restart(self) -> None:
        """Restart all idle times: receivers could not reach the entities until now."""
        self._from_ms = monotonic_ms(self._clock)

    def since_ms(self, now_ms: int) -> int:
        """The longest time for which anything may count as idle at a wall time.

        A step of the wall clock makes the last uses incomparable with now: idle times restart.
        """
        steady = monotonic_ms(self._clock)
        before, self._wall_lead_ms = self._wall_lead_ms, now_ms - steady
        if abs(self._wall_lead_ms - before) > _STEP_MS:
            self._from_ms = steady
        return steady - self._from_ms


def last_use_ms(entry: Entry, member: Entity, now_ms: int) -> int:
    """When an entity was last used; now, while a receiver waits or messages are scheduled, or its stores cannot be read."""
    if not member.is_whole:
        return now_ms
    source = member.source
    parts: list[Entity] = [member]
    if source is not None and source.dead_letters is not None:
        parts.append(source.dead_letters)
    if member.scheduled_count or any(part.source is not None and part.source.has_listeners for part in parts):
        return now_ms
    return max(entry.created_at_ms, entry.updated_at_ms, *(part.accessed_at_ms for part in parts))
