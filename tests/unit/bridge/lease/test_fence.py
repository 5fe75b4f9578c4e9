"""A lease ends before another run can hold its task's claim."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from isthmus.bridge.lease.fence import ASK_SECONDS, CONFIRM_SECONDS, MARGIN_SECONDS, Fence
from isthmus.topology.claim import CLAIM_LOCK_MS

CLAIM_SECONDS = CLAIM_LOCK_MS / 1000


def test_i3_without_a_claim_it_is_always_open_and_asks_nothing() -> None:
    fence = Fence(False, 100.0)
    assert fence.is_open(1e9)
    assert not fence.has_failed(1e9)
    assert fence.ask(100.0) == 0
    assert fence.deadline(0.0) == math.inf


def test_i3_with_a_claim_it_is_closed_until_the_first_answer() -> None:
    fence = Fence(True, 100.0)
    assert not fence.is_open(100.0)
    number = fence.ask(100.0)
    assert not fence.is_open(100.0)
    assert fence.answer(number, CLAIM_SECONDS)
    assert fence.is_open(100.0)


def test_i3_a_driver_that_never_answers_fails_the_lease() -> None:
    fence = Fence(True, 100.0)
    fence.ask(100.0)
    assert not fence.has_failed(100.0 + CONFIRM_SECONDS - 0.1)
    assert fence.has_failed(100.0 + CONFIRM_SECONDS)


def test_a_driver_that_does_not_hold_the_claim_opens_nothing() -> None:
    fence = Fence(True, 0.0)
    assert not fence.answer(fence.ask(0.0), 0.0)
    assert not fence.answer(fence.ask(ASK_SECONDS), MARGIN_SECONDS - 2.0)
    assert not fence.is_open(0.0)


def test_i1_an_answer_that_comes_late_counts_from_the_asking() -> None:
    fence = Fence(True, 0.0)
    number = fence.ask(0.0)
    # The driver answered, was frozen for a minute, and wrote then.
    fence.answer(number, 12.0)
    assert fence.until == 12.0 - MARGIN_SECONDS
    assert fence.has_failed(60.0)


def test_i2_an_answer_to_no_question_moves_nothing() -> None:
    fence = Fence(True, 0.0)
    assert not fence.answer(1, 1000.0)
    first, second = fence.ask(0.0), fence.ask(ASK_SECONDS)
    assert fence.answer(second, 10.0)
    assert not fence.answer(first, 1000.0)
    assert not fence.answer(second, 1000.0)
    assert fence.until == ASK_SECONDS + 10.0 - MARGIN_SECONDS


def test_it_asks_once_an_interval_and_says_when_to_look_again() -> None:
    fence = Fence(True, 0.0)
    assert fence.deadline(0.0) == 0.0
    number = fence.ask(0.0)
    assert fence.ask(ASK_SECONDS / 2) == 0
    fence.answer(number, 3.5)
    assert fence.deadline(0.1) == 0.5
    assert fence.deadline(0.5) == ASK_SECONDS
    assert fence.ask(ASK_SECONDS) == number + 1


def test_i1_an_early_answer_never_takes_time_back() -> None:
    fence = Fence(True, 0.0)
    fence.answer(fence.ask(0.0), 14.0)
    assert not fence.answer(fence.ask(ASK_SECONDS), 5.0)
    assert fence.until == 14.0 - MARGIN_SECONDS


delays = st.floats(0.0, 40.0)


@given(st.lists(st.tuples(delays, delays, delays, delays), max_size=30))
def test_i1_it_closes_before_the_claim_can_be_another_runs(steps: list[tuple[float, float, float, float]]) -> None:
    """Whatever is delayed: renewals in the driver, requests in transit, answers in the driver or in transit."""
    fence = Fence(True, 0.0)
    renewed_at = 0.0
    now = 0.0
    for idle, to_driver, to_renewal, back in steps:
        now += idle
        number = fence.ask(now)
        answered_at = now + to_driver
        renewed_at = max(renewed_at, min(answered_at, now + to_renewal - 10.0))
        if number:
            fence.answer(number, renewed_at + CLAIM_SECONDS - answered_at)
        now = answered_at + back
        assert fence.until <= renewed_at + CLAIM_SECONDS - MARGIN_SECONDS


def test_a_driver_that_lives_keeps_it_open() -> None:
    fence = Fence(True, 0.0)
    renewed_at = 0.0
    for tick in range(600):
        now = tick / 10
        if now - renewed_at >= CLAIM_SECONDS / 3:
            renewed_at = now
        number = fence.ask(now)
        if number:
            fence.answer(number, renewed_at + CLAIM_SECONDS - now)
        assert fence.until - now >= CLAIM_SECONDS - CLAIM_SECONDS / 3 - ASK_SECONDS - MARGIN_SECONDS - 0.1
