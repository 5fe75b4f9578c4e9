"""What is left of a message's time to live is reckoned by its broker's clock, whatever this machine's says."""

from __future__ import annotations

import pytest

from isthmus.bridge.lease.source_clock import PERIOD_SECONDS, SourceClock, bounded_ms

BROKER_MS = 1_700_000_000_000  # the broker's wall time at monotonic 0
LOCK_MS = 30_000
SKEWS_MS = (-60_000, 0, 60_000)


def broker_ms(now: float) -> int:
    return BROKER_MS + int(now * 1000)


def deliver(
    clock: SourceClock,
    now: float,
    *,
    age_ms: int,
    skew_ms: int = 0,
    lock_ms: int = LOCK_MS,
    way_ms: int = 0,
    awaited: bool = False,
) -> None:
    """A delivery that was sent `way_ms` ago, of a message that had been enqueued `age_ms` before."""
    sent_ms = broker_ms(now) - way_ms
    locked_until_ms = sent_ms + lock_ms if lock_ms else 0
    clock.seen(now, broker_ms(now) + skew_ms, sent_ms - age_ms, locked_until_ms, awaited=awaited)


@pytest.mark.parametrize("skew_ms", SKEWS_MS)
@pytest.mark.parametrize("age_ms", [0, 3_600_000])
def test_i1_with_a_known_lock_duration_the_brokers_time_is_known_from_the_first_delivery(
    skew_ms: int, age_ms: int
) -> None:
    clock = SourceClock(LOCK_MS / 1000)
    assert clock.wall_ms(0.0) is None
    deliver(clock, 5.0, age_ms=age_ms, skew_ms=skew_ms, way_ms=40)
    assert clock.wall_ms(5.0) == broker_ms(5.0) - 40
    assert clock.wall_ms(95.0) == broker_ms(95.0) - 40


def test_i1_the_fastest_delivery_counts() -> None:
    clock = SourceClock(LOCK_MS / 1000)
    for now, way_ms in ((1.0, 900), (2.0, 15), (3.0, 400)):
        deliver(clock, now, age_ms=0, way_ms=way_ms)
    assert clock.wall_ms(4.0) == broker_ms(4.0) - 15


def test_i2_a_step_of_this_machines_clock_during_a_lease_changes_nothing() -> None:
    clock = SourceClock(LOCK_MS / 1000)
    deliver(clock, 1.0, age_ms=0)
    for now, skew_ms in ((2.0, 60_000), (3.0, -3_600_000), (4.0, 0)):
        deliver(clock, now, age_ms=0, skew_ms=skew_ms)
        assert clock.wall_ms(now) == broker_ms(now)


@pytest.mark.parametrize("skew_ms", SKEWS_MS)
@pytest.mark.parametrize("lock_ms", [0, LOCK_MS])
def test_a_message_that_was_waited_for_shows_the_time_where_no_lock_duration_is_known(
    skew_ms: int, lock_ms: int
) -> None:
    """As with receive-and-delete, where nothing is locked at all."""
    clock = SourceClock()
    deliver(clock, 1.0, age_ms=0, skew_ms=skew_ms, lock_ms=lock_ms, way_ms=20, awaited=True)
    assert abs((clock.wall_ms(1.0) or 0) - broker_ms(1.0)) <= 20
    deliver(clock, 2.0, age_ms=500_000, skew_ms=skew_ms, lock_ms=lock_ms, way_ms=20)
    assert abs((clock.wall_ms(2.0) or 0) - broker_ms(2.0)) <= 20
    assert clock.lock_seconds == lock_ms / 1000


@pytest.mark.parametrize("lock_ms", [0, LOCK_MS])
def test_i2_without_anything_exact_this_machines_clock_counts_within_bounds(lock_ms: int) -> None:
    right, slow, fast = SourceClock(), SourceClock(), SourceClock()
    for clock, skew_ms in ((right, 0), (slow, -60_000), (fast, 60_000)):
        deliver(clock, 1.0, age_ms=9_000, skew_ms=skew_ms, lock_ms=lock_ms)
    assert right.wall_ms(1.0) == broker_ms(1.0)
    assert slow.wall_ms(1.0) == broker_ms(1.0) - 9_000
    assert fast.wall_ms(1.0) == broker_ms(1.0) + (25_000 if lock_ms else 60_000)


def test_i2_a_corrected_clock_is_believed_where_nothing_else_is_known() -> None:
    clock = SourceClock()
    deliver(clock, 1.0, age_ms=50_000, skew_ms=20_000)
    deliver(clock, 2.0, age_ms=50_000, skew_ms=0)
    assert clock.wall_ms(2.0) == broker_ms(2.0)


def test_i3_a_step_of_the_brokers_clock_is_followed() -> None:
    clock = SourceClock(LOCK_MS / 1000)
    deliver(clock, 1.0, age_ms=0)
    clock.seen(2.0, 0, broker_ms(2.0) + 10_000, broker_ms(2.0) + 10_000 + LOCK_MS)
    assert clock.wall_ms(2.0) == broker_ms(2.0) + 10_000
    for step in range(1, 9):
        deliver(clock, 2.0 + step * PERIOD_SECONDS / 4, age_ms=0)
    now = 2.0 + 2 * PERIOD_SECONDS + 1.0
    deliver(clock, now, age_ms=0)
    assert clock.wall_ms(now) == broker_ms(now)


def test_an_idle_link_keeps_what_it_knows() -> None:
    clock = SourceClock(LOCK_MS / 1000)
    deliver(clock, 1.0, age_ms=0)
    deliver(clock, 1.0 + 10 * PERIOD_SECONDS, age_ms=0, way_ms=5_000)  # delayed in transit
    now = 2.0 + 10 * PERIOD_SECONDS
    assert clock.wall_ms(now) == broker_ms(now)


@pytest.mark.parametrize(("told_ms", "lock_ms"), [(60_000, 30_000), (30_000, 300_000)])
def test_i4_a_changed_lock_duration_is_found_out(told_ms: int, lock_ms: int) -> None:
    clock = SourceClock(told_ms / 1000)
    deliver(clock, 1.0, age_ms=0, lock_ms=lock_ms, awaited=True)
    assert clock.lock_seconds == lock_ms / 1000
    assert clock.wall_ms(1.0) == broker_ms(1.0)


def test_a_broker_whose_clock_goes_back_does_not_spoil_the_lock_duration() -> None:
    clock = SourceClock(LOCK_MS / 1000)
    clock.seen(1.0, 0, broker_ms(1.0) + 60_000, broker_ms(1.0) + LOCK_MS)
    assert clock.lock_seconds == LOCK_MS / 1000


def test_bounds_of_one_locked_message() -> None:
    assert bounded_ms(100, 50, 90) == 90
    assert bounded_ms(10, 50, 90) == 50
    assert bounded_ms(70, 50, 90) == 70
    assert bounded_ms(70, 50, 0) == 70
    assert bounded_ms(70, 0, 0) == 70
