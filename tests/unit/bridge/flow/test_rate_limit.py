"""What a rate lets come, by the time alone."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from isthmus.bridge.flow.rate_limit import RateLimit
from isthmus.bridge.route_spec import End, RouteSpec

HOUR = 3600.0


def test_a_rate_is_kept_by_one_reader_whatever_the_order() -> None:
    spec = RouteSpec(name="r", source=End("fake", "a"), target=End("fake", "b"), ordered=False)
    assert spec.is_spread
    assert not replace(spec, rate="5/s").is_spread


def arrivals(limit: RateLimit, start: float, seconds: float, *, step: float = 0.01) -> list[tuple[float, int]]:
    """Everything that may come does, at once."""
    found = []
    for tick in range(round(seconds / step)):
        now = start + tick * step
        count = limit.credit(now)
        if count:
            assert count < math.inf
            limit.took(int(count))
            found.append((now, int(count)))
    return found


@pytest.mark.parametrize("text", ["7/s", "500/s", "600/m", "0.5/s", "90/h"])
def test_i1_no_span_brings_more_than_the_rate_and_one_second_of_it(text: str) -> None:
    limit = RateLimit(text)
    choose = random.Random(7)
    now, came = 0.0, []
    for _ in range(4000):
        now += choose.random() * 0.2 + (choose.random() < 0.01) * 30
        count = int(limit.credit(now)) if choose.random() < 0.7 else 0
        limit.took(count)
        came.append((now, count))
    rate = limit.per_second
    for first in range(0, len(came), 37):
        total = 0
        for at, count in came[first:]:
            total += count
            assert total <= rate * (at - came[first][0]) + max(1.0, rate) + 1e-6


def test_the_rate_is_reached_to_the_message() -> None:
    total = sum(count for _, count in arrivals(RateLimit("500/s"), 0.0, 10.0))
    assert total == pytest.approx(500 * 10 + 500, abs=6)  # the bucket was full


def test_what_one_second_brings_waits_for_an_idle_route() -> None:
    limit = RateLimit("100/s")
    assert limit.credit(0.0) == 100
    assert limit.credit(1000.0) == 100
    limit.took(100)
    assert limit.credit(1000.0) == 0
    assert limit.due(1) == pytest.approx(1000.01)
    assert limit.credit(1000.011) == 1


def test_i2_without_a_rate_nothing_is_limited() -> None:
    limit = RateLimit()
    assert (limit.credit(5.0), limit.per_second, limit.text) == (math.inf, math.inf, "")
    limit.took(10**9)
    assert limit.credit(6.0) == math.inf
    assert limit.due(10) == math.inf


def test_the_hour_of_the_day_decides() -> None:
    # Monotonic time begins at 07:59:58 UTC.
    limit = RateLimit("2/s 08:00-18:00, 100/s 18:00-24:00".replace("24:00", "00:00"), 7 * HOUR + 59 * 60 + 58)
    assert limit.credit(0.0) == math.inf
    assert limit.text == ""
    assert limit.due(1) == 2.0
    assert limit.credit(2.0) == 2
    assert limit.text == "2/s until 18:00 UTC"
    limit.took(2)
    assert sum(count for _, count in arrivals(limit, 2.0, 10.0)) == pytest.approx(20, abs=1)
    evening = 2.0 + 10 * HOUR
    assert limit.credit(evening) == 2  # what the bucket contained; it fills at the new rate
    assert limit.per_second == 100
    assert limit.text == "100/s until 00:00 UTC"
    assert limit.credit(evening + 6 * HOUR) == math.inf


def test_nothing_comes_at_a_rate_of_nothing() -> None:
    limit = RateLimit("0/s 22:00-06:00, 10/s", 23 * HOUR)
    assert limit.credit(0.0) == 0
    assert limit.text == "0/s until 06:00 UTC"
    assert limit.due(1) == 7 * HOUR
    assert limit.credit(7 * HOUR - 1) == 0
    assert limit.credit(7 * HOUR) == 0
    assert limit.credit(7 * HOUR + 0.5) == 5
