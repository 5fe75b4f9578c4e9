"""What a reader lets its source send, by number, size and success."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.bridge.flow.credit_window import (
    FIRST_MESSAGES,
    LARGEST_PART,
    LEAST_MESSAGES,
    RECENT_MESSAGES,
    WORK_SECONDS,
    CreditWindow,
)

MIB = 1 << 20
READ = MIB


def test_i1_before_a_size_is_known_credit_is_one() -> None:
    window = CreditWindow(16_000, 64 * MIB)
    assert window.credit(0, 0) == 1
    assert window.credit(1, 0) == 1
    assert window.credit(FIRST_MESSAGES, 0) == 0
    window.came(1, 1000, 1000)
    assert window.credit(1, 1000) == FIRST_MESSAGES - 1


def test_the_window_doubles_with_success_and_a_batch_has_all_of_it_at_once() -> None:
    window = CreditWindow(1000, 64 * MIB)
    seen = [window.limit]
    for _ in range(6):
        window.settled(window.limit, 0, 0.0)
        seen.append(window.limit)
    assert seen == [256, 512, 1000, 1000, 1000, 1000, 1000]
    assert CreditWindow(1000, 64 * MIB, grows=False).limit == 1000
    assert CreditWindow(10, 64 * MIB).limit == 10


def test_i5_the_window_grows_only_when_settled_says_so() -> None:
    window = CreditWindow(1000, 64 * MIB)
    assert not window.settled(FIRST_MESSAGES - 1, 0, 0.0)
    assert window.limit == FIRST_MESSAGES
    assert window.settled(1, 0, 0.0)
    assert window.limit == 2 * FIRST_MESSAGES


def test_a_plan_keeps_it_small_until_the_span_is_settled() -> None:
    window = CreditWindow(1000, 64 * MIB)
    window.narrow(8, 64)
    for _ in range(8):
        assert window.limit == 8
        window.settled(8, 0, 0.0)
    assert window.limit == 8
    window.settled(8, 0, 0.0)
    assert window.limit == 16
    window.narrow(0, 0)
    assert window.limit == 16


def _work(window: CreditWindow, per_second: float, seconds: float, start: float = 0.0) -> float:
    """A target that takes so many messages a second, from a source that has more; returns the time."""
    now = start
    while now < start + seconds:
        count = min(window.limit, max(1, int(per_second / 100)))
        now += count / per_second
        window.settled(count, window.limit - count, now)
    return now


@pytest.mark.parametrize("per_second", [1.0, 20.0, 100.0, 1_000.0, 100_000.0])
def test_i6_it_grows_to_what_its_target_takes_in_a_few_seconds(per_second: float) -> None:
    window = CreditWindow(16_000, 64 * MIB)
    _work(window, per_second, 600.0)
    most = max(FIRST_MESSAGES, min(16_000, int(WORK_SECONDS * per_second)))
    assert max(FIRST_MESSAGES, most // 4) <= window.limit <= most


def test_i6_a_target_that_becomes_slow_is_given_fewer_and_gets_them_again_afterwards() -> None:
    window = CreditWindow(16_000, 64 * MIB)
    now = _work(window, 50_000.0, 10.0)
    assert window.limit == 16_000
    now = _work(window, 100.0, 600.0, now)
    assert window.limit <= WORK_SECONDS * 100.0
    _work(window, 50_000.0, 10.0, now)
    assert window.limit == 16_000


def test_i6_time_in_which_no_message_is_in_flight_does_not_count() -> None:
    window = CreditWindow(16_000, 64 * MIB)
    for number in range(6 * FIRST_MESSAGES):
        window.settled(1, 0, 60.0 * number)
    assert window.limit == 4 * FIRST_MESSAGES
    limit, now = window.limit, 1e6
    _work(window, 50_000.0, 1.0, now)
    assert window.limit > limit


def test_i6_of_large_messages_over_a_slow_network_it_holds_few() -> None:
    """64 MiB of them would take a quarter of an hour."""
    window = CreditWindow(16_000, 64 * MIB)
    outstanding, now = 0, 0.0
    for _ in range(80):
        while window.credit(outstanding, outstanding * MIB):
            window.came(1, MIB, MIB)
            outstanding += 1
        outstanding, now = outstanding - 1, now + 16.0
        window.settled(1, outstanding, now)
    assert outstanding <= LEAST_MESSAGES
    for _ in range(100):
        while window.credit(outstanding, outstanding * MIB):
            window.came(1, MIB, MIB)
            outstanding += 1
        outstanding, now = outstanding - 1, now + 0.01
        window.settled(1, outstanding, now)
    assert outstanding >= 60


def test_i6_a_small_window_stays_as_it_is_where_the_target_is_slow() -> None:
    window = CreditWindow(40, 64 * MIB)
    _work(window, 1.0, 600.0)
    assert window.limit == 40


@pytest.mark.parametrize("seconds", [6.0, 12.0, 60.0])
def test_i6_after_a_plan_it_grows_to_what_it_began_with_where_each_outcome_takes_long(seconds: float) -> None:
    """The receiver of a request answers after seconds, or a device: the plan narrowed the window for the rest of the lease."""
    window = CreditWindow(16_000, 64 * MIB)
    window.came(1, 1000, 1000)
    window.narrow(8, 64)
    outstanding, now = 0, 0.0
    due: list[float] = []
    for _ in range(4000):
        while outstanding < window.limit:
            outstanding += 1
            now += 0.001
            due.append(now + seconds)
        outstanding, now = outstanding - 1, max(now, due.pop(0))
        window.settled(1, outstanding, now)
    assert window.limit >= FIRST_MESSAGES


def test_credit_falls_when_messages_grow() -> None:
    window = CreditWindow(16_000, 64 * MIB, grows=False)
    window.came(100, 100 * 1000, 1000)
    assert window.credit(0, 0) == 16_000
    window.came(1, 100 * MIB, 100 * MIB)
    assert window.credit(0, 0) <= 64
    for _ in range(3):
        window.came(RECENT_MESSAGES, RECENT_MESSAGES * 1000, 1000)
    assert window.credit(0, 0) == 16_000


def test_the_maximum_counts_beside_the_mean() -> None:
    window = CreditWindow(16_000, 64 * MIB, grows=False)
    window.came(10_000, 10_000 * 1000 + 10 * MIB, 10 * MIB)
    assert window.message_bytes == 10 * MIB // LARGEST_PART
    assert window.credit(0, 0) == 64 * MIB // (10 * MIB // LARGEST_PART)


def test_i3_one_message_of_any_size_may_come_and_be_read() -> None:
    window = CreditWindow(16_000, MIB)
    window.came(1, 100 * MIB, 100 * MIB)
    assert window.credit(0, 0) == 1
    assert window.credit(1, 100) == 0
    assert not window.is_full(0, 0, 50 * MIB)
    assert window.is_full(1, 100, 50 * MIB)


def test_i4_the_window_in_messages_holds() -> None:
    window = CreditWindow(100, 64 * MIB, grows=False)
    window.came(60, 60, 1)
    assert window.credit(60, 60) == 40
    assert window.credit(100, 100) == 0
    assert window.credit(120, 120) == 0


def test_credit_is_set_anew_by_quarters_of_the_window() -> None:
    window = CreditWindow(1000, 64 * MIB, grows=False)
    assert not window.is_worth_granting(1000, 800)
    assert window.is_worth_granting(1000, 700)
    assert window.is_worth_granting(1, 0)
    assert not window.is_worth_granting(0, 0)
    window.came(10, 10 * MIB, MIB)  # now the window is 64 by size
    assert window.is_worth_granting(40, 20)
    assert not window.is_worth_granting(40, 30)


@given(st.lists(st.sampled_from([200, 1000, 100_000, 3 * MIB, 20 * MIB]), min_size=1, max_size=80), st.integers(0, 99))
def test_i2_nothing_is_read_beyond_the_bound_whatever_the_sizes(sizes: list[int], seed: int) -> None:
    """A peer that sends all it has credit for, in frames; a reader that reads what `is_full` allows; a sink at random."""
    chance = random.Random(seed)
    bound = 8 * MIB
    window = CreditWindow(16_000, bound)
    waiting, pipe = list(sizes), 0
    under_way: list[int] = []
    partial = credit = 0
    while waiting or pipe or under_way:
        wanted = window.credit(len(under_way), sum(under_way))
        if window.is_worth_granting(wanted, credit):
            credit = wanted
        while not window.is_full(len(under_way), sum(under_way), partial) and (credit or pipe) and (waiting or pipe):
            if not pipe:
                pipe = waiting.pop(0)
                credit -= 1
                size = pipe
            part = min(pipe, READ)
            pipe -= part
            partial += part
            alone = not under_way
            assert alone or sum(under_way) + partial < bound + READ
            if not pipe:
                under_way.append(partial)
                window.came(1, size, size)
                partial = 0
        if under_way:
            count = chance.randint(1, len(under_way))
            del under_way[:count]
            window.settled(count, len(under_way), 0.0)
