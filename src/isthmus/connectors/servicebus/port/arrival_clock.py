"""The broker's clock and lock duration, from the deliveries of a source.

What it is: reads annotations of some deliveries for `SourceClock`, and derives the lock duration. What it is not: a clock.

Invariants:
    I1. The work is independent of the message rate.
    I2. Locks are renewed by the shorter of the configured and the observed duration, and others' locks waited for by the longer: clocks
        may differ.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from isthmus.bridge.lease.source_clock import SourceClock
from isthmus.connectors.servicebus.message.lock_duration import lock_duration_of
from isthmus.connectors.servicebus.message.sequence import broker_times_of

__all__ = ["ArrivalClock"]

# The broker's clock is read from a delivery at most this often.
CLOCK_SECONDS = 0.1
# A message that arrives on a link with credit for so long, after a while without messages, was enqueued just now.
AWAITED_CREDIT_SECONDS = 1.0
AWAITED_GAP_SECONDS = 0.05
LOCK_SECONDS_UNKNOWN = 30.0


class ArrivalClock:
    """The clock of one source.

    Args:
        lock_seconds: the configured lock duration; 0: not configured.

    Attributes:
        lock_seconds: the lock duration, as configured or observed.
        longest_seconds: the longest lock duration of other receivers.
    """

    def __init__(self, lock_seconds: float) -> None:
        self.lock_seconds = lock_seconds or LOCK_SECONDS_UNKNOWN
        self.longest_seconds = self.lock_seconds
        self._configured_seconds = lock_seconds
        self._clock = SourceClock(lock_seconds)
        self._read_at = -math.inf
        self._credit_since = math.inf
        self._came_at = 0.0

    @property
    def renewal_seconds(self) -> float:
        """The lock duration for renewals; no long one of unknown origin, which a slow clock would make too short."""
        return self.lock_seconds if self._configured_seconds else min(self.lock_seconds, LOCK_SECONDS_UNKNOWN)

    @property
    def offset_ms(self) -> int | None:
        """The broker's wall time minus monotonic time; None while unknown."""
        return self._clock.offset_ms

    def wall_ms(self, now: float) -> int:
        """The broker's wall time; this machine's before the first message."""
        wall_ms = self._clock.wall_ms(now)
        return _wall_ms() if wall_ms is None else wall_ms

    def credit(self, credit: int, now: float) -> None:
        """Sets the link's present credit."""
        if not credit:
            self._credit_since = math.inf
        elif self._credit_since == math.inf:
            self._credit_since = now

    def learn(self, message: bytes) -> None:
        """Reads the lock duration from the first delivery of a link."""
        found = lock_duration_of(message, self._configured_seconds)
        if found is not None:
            self.lock_seconds, self.longest_seconds = found

    def read(self, payloads: Sequence[bytes], now: float) -> None:
        """Reads the broker's clock from deliveries."""
        awaited = now - self._credit_since >= AWAITED_CREDIT_SECONDS and now - self._came_at >= AWAITED_GAP_SECONDS
        self._came_at = now
        if now - self._read_at < CLOCK_SECONDS and not awaited:
            return
        self._read_at = now
        enqueued_ms, locked_until_ms = broker_times_of(payloads[0] if awaited else payloads[-1])
        self._clock.seen(now, _wall_ms(), enqueued_ms, locked_until_ms, awaited=awaited)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
