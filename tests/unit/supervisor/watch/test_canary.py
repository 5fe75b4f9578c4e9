"""The age and lateness of canaries, by the time alone."""

from __future__ import annotations

import math

import pytest

from isthmus.supervisor.watch.canary import GIVEN_UP, LATE_SECONDS, Canary


def test_i1_the_age_is_that_of_the_newest_that_arrived() -> None:
    canary = Canary(30.0)
    assert canary.due_at() == -math.inf
    assert canary.age_seconds(0.0) is None
    first = canary.send(0.0)
    assert canary.age_seconds(1.0) is None
    canary.arrived(first, 1.5)
    assert (canary.latency_seconds, canary.age_seconds(2.0)) == (1.5, 2.0)
    second = canary.send(canary.due_at())
    assert canary.age_seconds(40.0) == 40.0
    canary.arrived(second, 40.0)
    assert (canary.latency_seconds, canary.age_seconds(41.0)) == (10.0, 11.0)


def test_i2_one_is_in_transit_at_a_time() -> None:
    canary = Canary(5.0)
    lost = canary.send(0.0)
    assert canary.due_at() == 5.0 * GIVEN_UP
    second = canary.send(100.0)
    canary.arrived(second, 101.0)
    assert canary.due_at() == 105.0
    canary.arrived(lost, 102.0)  # the newer counts
    assert canary.age_seconds(102.0) == 2.0


@pytest.mark.parametrize(
    ("interval", "seconds"), [(5.0, 100.0), (30.0, 600.0), (60.0, 600.0), (300.0, 600.0), (3600.0, 3600.0)]
)
def test_i2_one_that_has_expired_in_transit_is_followed_by_another(interval: float, seconds: float) -> None:
    """Otherwise a route that was paused or cut off for longer than a canary lives is reported as stalled for 20 intervals."""
    canary = Canary(interval)
    canary.send(0.0)
    assert canary.due_at() == seconds


def test_i3_lateness_counts_from_the_oldest_under_way() -> None:
    canary = Canary(30.0)
    number = canary.send(0.0)
    assert canary.late_seconds(60.0) == 0.0
    assert canary.late_seconds(61.0) == 61.0
    canary.arrived(number, 62.0)
    assert canary.late_seconds(1000.0) == 0.0


def test_i3_a_short_interval_makes_nothing_late_at_once() -> None:
    canary = Canary(1.0)
    canary.send(0.0)
    assert canary.late_seconds(LATE_SECONDS) == 0.0
    assert canary.late_seconds(LATE_SECONDS + 1) > 0


def test_one_that_could_not_be_sent_is_not_waited_for() -> None:
    canary = Canary(10.0)
    number = canary.send(0.0)
    canary.failed(number)
    assert canary.late_seconds(500.0) == 0.0
    assert canary.due_at() == 10.0
    canary.arrived(number, 1.0)
    assert canary.age_seconds(2.0) is None
