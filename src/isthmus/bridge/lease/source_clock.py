"""An estimate of the clock of a source's broker, from its messages.

What it is: an estimate of the broker's wall time, kept as its offset from this machine's monotonic clock, so that neither a
wrong wall clock here nor a step of it matters. The rest of a message's time to live is computed with it, because the broker
stamped the message by its own clock. What it is not: a clock protocol; it does no I/O and reads no clock.
Spec: Microsoft Learn, "Message expiration (time to live)": a message expires at its enqueued time plus its time to live,
by the broker's clock; "Message transfers, locks, and settlement": a delivery is locked until the broker's now plus the
entity's lock duration.

Information of a delivery at its receipt:
    exact   locked-until minus the lock duration is the broker's time when it sent the message.
    exact   the enqueued time of a message that the link was waiting for: it was enqueued just now.
    bound   the broker's time is not before the enqueued time of any delivery, nor more than the shortest lock duration
            before locked-until, nor less than the longest.
The broker's time is the latest of the exact ones, because each is too early by the transit time of its delivery. Without
any, it is this machine's wall time, moved into the bounds.

Invariants:
    I1. With a known lock duration the estimate is never ahead of the broker's clock, and behind it by no more than the transit
        time of the fastest recent delivery.
    I2. The machine's wall clock is used only while nothing exact is known, and only within the bounds.
    I3. A step of the broker's clock is followed: forwards at once, backwards within two periods.
    I4. A configured lock duration that is longer, or shorter, than a delivery shows is replaced by that of the delivery.
"""

from __future__ import annotations

__all__ = ["PERIOD_SECONDS", "SourceClock", "bounded_ms"]

# The latest sample of this period and the one before is used.
PERIOD_SECONDS = 30.0
# The range of LockDuration in Service Bus.
SHORTEST_LOCK_MS, LONGEST_LOCK_MS = 5_000, 300_000
# A broker's times are in milliseconds, and an awaited message takes a moment to be sent.
FRESH_MS = 1_000


def bounded_ms(wall_ms: int, enqueued_ms: int, locked_until_ms: int) -> int:
    """This machine's wall time, moved into the range of the broker's time that a locked message implies; 0 is unknown."""
    latest = locked_until_ms or wall_ms
    return max(enqueued_ms, min(wall_ms, latest))


class SourceClock:
    """The estimate for one link.

    Args:
        lock_seconds: the entity's configured lock duration; 0: unknown, or nothing is locked.
    """

    def __init__(self, lock_seconds: float = 0.0) -> None:
        self._lock_ms = int(lock_seconds * 1000)
        self._longest_lock_ms = LONGEST_LOCK_MS
        self._exact: list[float | None] = [None, None]  # the latest of this period, and of the one before
        self._period_ends = 0.0
        self._earliest: float | None = None
        self._bounded: float | None = None

    @property
    def lock_seconds(self) -> float:
        """The entity's lock duration; 0 while it is unknown."""
        return self._lock_ms / 1000

    def seen(
        self, now: float, wall_ms: int, enqueued_ms: int, locked_until_ms: int = 0, *, awaited: bool = False
    ) -> None:
        """A delivery came.

        Args:
            now: monotonic seconds.
            wall_ms: this machine's wall time.
            enqueued_ms: when the broker enqueued it; 0: unknown.
            locked_until_ms: until when the broker has locked it; 0: it is not locked.
            awaited: whether the link had credit for a while and nothing came, so that the message has just been enqueued.
        """
        self._next_period(now)
        now_ms = now * 1000
        if locked_until_ms and enqueued_ms:
            self._learn_lock(locked_until_ms - enqueued_ms, awaited)
        if locked_until_ms and self._lock_ms:
            self._add(locked_until_ms - self._lock_ms - now_ms)
        if awaited and enqueued_ms:
            self._add(enqueued_ms - now_ms)
        earliest = max(enqueued_ms, locked_until_ms - self._longest_lock_ms if locked_until_ms else 0) - now_ms
        self._earliest = earliest if self._earliest is None else max(earliest, self._earliest)
        latest = (locked_until_ms - SHORTEST_LOCK_MS if locked_until_ms else wall_ms) - now_ms
        self._bounded = max(self._earliest, min(wall_ms - now_ms, latest))
        if self._exact != [None, None] and enqueued_ms - now_ms > (self.offset_ms or 0):
            self._add(enqueued_ms - now_ms)

    @property
    def offset_ms(self) -> int | None:
        """The broker's wall time minus this machine's monotonic time; None while nothing is known."""
        exact = [each for each in self._exact if each is not None]
        found = max(exact) if exact else self._bounded
        return None if found is None else round(found)

    def wall_ms(self, now: float) -> int | None:
        """The broker's wall time at a monotonic time; None while nothing is known."""
        offset_ms = self.offset_ms
        return None if offset_ms is None else int(now * 1000) + offset_ms

    def _learn_lock(self, shown_ms: int, awaited: bool) -> None:
        """A delivery is locked for the lock duration from when it was sent, which is not before it was enqueued."""
        if shown_ms < SHORTEST_LOCK_MS:
            return  # the broker's clock has gone back
        self._longest_lock_ms = min(self._longest_lock_ms, shown_ms)
        known = self._lock_ms
        if known > shown_ms or (awaited and (not known or shown_ms > known + FRESH_MS)):
            self._lock_ms = shown_ms
            self._exact = [None, None]  # they were computed with another

    def _next_period(self, now: float) -> None:
        if now >= self._period_ends:
            current, before = self._exact
            self._exact = [None, before if current is None else current]  # without new samples the estimate is kept
            self._period_ends = now + PERIOD_SECONDS

    def _add(self, offset_ms: float) -> None:
        latest = self._exact[0]
        self._exact[0] = offset_ms if latest is None else max(latest, offset_ms)
