"""The lock duration of an entity, from one of its deliveries.

What it is: bounds of the lock duration, by this machine's clock and by the broker's alone. What it is not: the duration in the entity's
description.
Spec: Microsoft Learn, "Message transfers, locks, and settlement": a delivery is locked until the broker's now plus the entity's lock
duration, 5 minutes at most.

Invariants:
    I1. No lock of the entity lasts longer than `longest_seconds`, however far apart the clocks are, unless another duration was given.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from isthmus.connectors.servicebus.message.sequence import broker_times_of

__all__ = ["LockDuration", "lock_duration_of"]

LONGEST_SECONDS = 300.0


class LockDuration(NamedTuple):
    """The bounds: for renewals, and for waiting for others' locks."""

    shortest_seconds: float
    longest_seconds: float


def lock_duration_of(message: bytes, configured_seconds: float) -> LockDuration | None:
    """The bounds from a delivery that has just arrived; None where it is not locked.

    Args:
        message: as it was delivered.
        configured_seconds: the configured duration; 0: none.
    """
    enqueued_ms, locked_until_ms = broker_times_of(message)
    if not locked_until_ms:
        return None
    seen = min(LONGEST_SECONDS, max(1.0, locked_until_ms / 1000 - time.time()))
    if configured_seconds:
        return LockDuration(min(seen, configured_seconds), max(seen, configured_seconds))
    # It was sent after it was enqueued: both by the broker's clock.
    since_enqueued = (locked_until_ms - enqueued_ms) / 1000 if enqueued_ms else LONGEST_SECONDS
    return LockDuration(seen, max(seen, min(LONGEST_SECONDS, since_enqueued)))
