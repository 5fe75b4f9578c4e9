"""For how long entities have been idle, for AutoDeleteOnIdle.

What it is: since when idleness counts, and when an entity was last used; pure. What it is not: the deletion (`engine`).
Spec: docs/explanation/protocol.md, Administration.

Invariants:
    I1. Nothing is idle for longer than the engine runs, nor than since the wall clock was set, nor than since receivers
        could reach it again.
"""

from __future__ import annotations

from isthmus.clock import Clock, monotonic_ms
from isthmus.entities.catalog.catalog import Entry
from isthmus.entities.port import Entity

__all__ = ["IdleTime", "last_use_ms"]

# By how much the wall clock may leave the monotonic one between two looks: a slew stays far below.
_STEP_MS = 1_000


class IdleTime:
    """Since when idleness counts.

    Args:
        clock: tells wall and monotonic time.
    """

    __slots__ = ("_clock", "_from_ms", "_wall_lead_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._from_ms = monotonic_ms(clock)
        self._wall_lead_ms = clock.wall_ms() - self._from_ms

    def restart(self) -> None:
        """Let nothing count as idle for longer than from now on: receivers could not reach it until now."""
        self._from_ms = monotonic_ms(self._clock)

    def since_ms(self, now_ms: int) -> int:
        """For how long, at most, anything may count as idle at a wall time.

        A step of the wall clock took the last use of everything away from now: idleness counts again.
        """
        steady = monotonic_ms(self._clock)
        before, self._wall_lead_ms = self._wall_lead_ms, now_ms - steady
        if abs(self._wall_lead_ms - before) > _STEP_MS:
            self._from_ms = steady
        return steady - self._from_ms


def last_use_ms(entry: Entry, member: Entity, now_ms: int) -> int:
    """When an entity was last used; now, while a receiver waits or messages are scheduled, or its stores cannot say."""
    if not member.is_whole:
        return now_ms
    source = member.source
    parts: list[Entity] = [member]
    if source is not None and source.dead_letters is not None:
        parts.append(source.dead_letters)
    if member.scheduled_count or any(part.source is not None and part.source.has_listeners for part in parts):
        return now_ms
    return max(entry.created_at_ms, entry.updated_at_ms, *(part.accessed_at_ms for part in parts))
