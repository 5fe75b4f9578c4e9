"""The canaries of one route: when the next is sent, and the age of those that have arrived.

What it is: a pure machine that takes sent and arrived canaries, with the time of each, and returns how old the newest message at the target
is. What it is not: the sending (`isthmus.supervisor.watch.canary_watch`).

Invariants:
    I1. The age is that of the newest canary that has arrived; one that was only sent, or acknowledged, does not count.
    I2. One canary is in flight at a time, so that an unreachable target does not get many of them later; after `GIVEN_UP` intervals
        another one is sent, or once the last one has expired: that one cannot arrive any more, and the route is late until one does.
    I3. A canary is late after `LATE_INTERVALS` intervals, and not before `LATE_SECONDS`.
"""

from __future__ import annotations

import math

__all__ = ["LIFE_SECONDS", "Canary"]

LATE_INTERVALS = 2
LATE_SECONDS = 15.0
GIVEN_UP = 20
LIFE_SECONDS = 600.0


class Canary:
    """The canaries of one route.

    Args:
        interval_seconds: from one canary to the next.
    """

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._number = 0
        self._in_flight: dict[int, float] = {}  # sent after the newest that has arrived: number and time
        self._newest_sent_at = -math.inf
        self._last_sent_at = -math.inf
        self.latency_seconds: float | None = None

    def due_at(self) -> float:
        """When to send the next one."""
        wait = self._interval_seconds
        if self._in_flight:
            wait = max(wait, min(GIVEN_UP * wait, LIFE_SECONDS))
        return self._last_sent_at + wait

    def send(self, now: float) -> int:
        """One is sent; returns its number."""
        self._number += 1
        self._in_flight[self._number] = self._last_sent_at = now
        return self._number

    def arrived(self, number: int, now: float) -> None:
        """One has arrived at the target; those before it no longer count."""
        sent_at = self._in_flight.get(number)
        if sent_at is None:
            return
        self._in_flight = {each: at for each, at in self._in_flight.items() if each > number}
        self._newest_sent_at = sent_at
        self.latency_seconds = now - sent_at

    def failed(self, number: int) -> None:
        """One could not be sent."""
        self._in_flight.pop(number, None)

    def age_seconds(self, now: float) -> float | None:
        """Seconds since the newest arrived canary was sent; None before the first."""
        return now - self._newest_sent_at if self._newest_sent_at > -math.inf else None

    def late_seconds(self, now: float) -> float:
        """How long ago the oldest overdue canary was sent; 0 if none is late."""
        if not self._in_flight:
            return 0.0
        waited = now - min(self._in_flight.values())
        return waited if waited > max(LATE_SECONDS, LATE_INTERVALS * self._interval_seconds) else 0.0
