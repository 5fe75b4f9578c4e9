"""The lock duration of a source, from its deliveries."""

from __future__ import annotations

import time

import pytest

from isthmus.amqp import section, types
from isthmus.connectors.servicebus.port.arrival_clock import LOCK_SECONDS_UNKNOWN, ArrivalClock


def locked_for(seconds: float) -> bytes:
    until_ms = int((time.time() + seconds) * 1000)
    return section.encode_message(b"x", annotations={"x-opt-locked-until": types.Timestamp(until_ms)})


@pytest.mark.parametrize("skew_seconds", [-50, 0, 120])
def test_clocks_that_are_apart_shorten_no_guard_and_lengthen_no_renewal_i2(skew_seconds: int) -> None:
    """Renewed before a lock of 60 s ends, and guarded until those of a dead reader have ended."""
    clock = ArrivalClock(60.0)
    clock.learn(locked_for(60 + skew_seconds))
    assert clock.lock_seconds <= 60.0
    assert clock.longest_seconds >= 60.0


def test_what_is_not_reported_is_learned_from_a_delivery() -> None:
    clock = ArrivalClock(0.0)
    assert clock.lock_seconds == LOCK_SECONDS_UNKNOWN
    clock.learn(locked_for(90))
    assert 80 < clock.lock_seconds <= 90
    clock.learn(section.encode_message(b"x"))
    assert 80 < clock.lock_seconds <= 90


@pytest.mark.parametrize("lock_seconds", [10, 30, 90])
def test_a_clock_that_is_behind_lengthens_no_renewal_where_nothing_is_reported_i2(lock_seconds: int) -> None:
    clock = ArrivalClock(0.0)
    clock.learn(locked_for(lock_seconds + 3600))
    assert clock.renewal_seconds / 3 <= lock_seconds
    clock = ArrivalClock(0.0)
    clock.learn(locked_for(lock_seconds - 3600))
    assert clock.renewal_seconds <= lock_seconds


@pytest.mark.parametrize("ahead_seconds", [-3600, -20, 0, 20, 3600])
def test_clocks_that_are_apart_shorten_no_guard_where_nothing_is_reported_i2(ahead_seconds: int) -> None:
    broker_ms = int((time.time() - ahead_seconds) * 1000)
    reported = {
        "x-opt-enqueued-time": types.Timestamp(broker_ms - 30_000),
        "x-opt-locked-until": types.Timestamp(broker_ms + 60_000),
    }
    clock = ArrivalClock(0.0)
    clock.learn(section.encode_message(b"x", annotations=reported))
    assert clock.longest_seconds >= 60
