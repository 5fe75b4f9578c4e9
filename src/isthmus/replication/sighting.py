"""What a look at a running route shows."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Sighting"]


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a look at a running route showed.

    Attributes:
        moved: messages settled at the source since the route started in this process.
        waiting: messages before it; None where nobody could tell.
        oldest_age_seconds: for how long the oldest of them has waited; None where nobody could tell, 0 where none waits.
        processes: ids of the processes that work for the route now, as far as known.
    """

    moved: int = 0
    waiting: int | None = None
    oldest_age_seconds: float | None = None
    processes: tuple[int, ...] = ()
