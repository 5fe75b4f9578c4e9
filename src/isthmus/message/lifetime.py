"""How long a copy lives.

What it is: the pure rule by which a copy's TimeToLive follows from its original's, from its age and from the route's policy.
What it is not: reading these times from a message or writing them, which each connector does in its own form.
Specification: Microsoft Learn, "Message expiration (Time to Live)"; `isthmus.message.copy_policy`.

Invariants:
    I1. A copy whose original has a TimeToLive gets one of at least 1 ms, so that the target expires it; but one whose
        deadline has passed is not made.
    I2. A message that was enqueued in the future, by a clock that was set back, has the age 0.
"""

from __future__ import annotations

from datetime import datetime

from isthmus.message.copy_policy import CopyPolicy

__all__ = ["DEADLINE_PASSED", "TTL_LIMIT_MS", "deadline_text", "life_ms", "milliseconds"]

DEADLINE_PASSED = "DeadlinePassed"
"""The reason of a message that is dead-lettered because its deadline has passed."""

TTL_LIMIT_MS = 0xFFFFFFFE
"""The longest TimeToLive that a header can hold (OASIS AMQP 1.0, 3.2.1); the number above it means none."""


def life_ms(policy: CopyPolicy, *, ttl_ms: int, enqueued_ms: int, first_ms: int, now_ms: int) -> int | None:
    """A copy's TimeToLive in milliseconds; 0: none; None: its deadline has passed, there is to be no copy.

    Args:
        policy: the route's.
        ttl_ms: the original's TimeToLive from its enqueueing on; 0: none.
        enqueued_ms: when the original was enqueued at the source, by the source's clock; 0: unknown.
        first_ms: when it first entered a namespace; 0: unknown.
        now_ms: wall time of the source.
    """
    age_ms = max(0, now_ms - enqueued_ms) if enqueued_ms else 0
    if policy.deadline_ms:
        if first_ms:
            spent_ms = max(0, now_ms - first_ms)
        else:
            spent_ms = age_ms + policy.deadline_spent_ms
        left_ms = policy.deadline_ms - spent_ms
        if left_ms <= 0:
            return None
    else:
        left_ms = max(1, ttl_ms - age_ms) if ttl_ms else 0
    if policy.ttl_ceiling_ms:
        left_ms = min(left_ms, policy.ttl_ceiling_ms) if left_ms else policy.ttl_ceiling_ms
    return min(left_ms, TTL_LIMIT_MS)


def deadline_text(policy: CopyPolicy) -> str:
    """The description of a message that is dead-lettered because its deadline has passed."""
    return f"nothing is left of the {policy.deadline_ms} ms that the message had since it was sent"


def milliseconds(text: str) -> int:
    """The wall time of a hop, as `isthmus.message.iso` wrote it, in milliseconds; 0 where it cannot be read."""
    try:
        return int(text) if text.isdigit() else round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0
