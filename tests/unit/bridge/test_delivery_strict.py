"""A strict delivery machine: the order holds whatever the target refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.world.delivery_bench import BAD, BUSY, ODD, Bench, bench
from isthmus.bridge.refusal import Refusal


def strict(
    verdict: Callable[[int, float], Refusal | None] = lambda number, now: None, takes: int = 50, reported: int = 0
) -> Bench:
    made = bench(verdict, is_strict=True, envelope_messages=reported)
    made.takes = takes
    return made.open()


def test_one_delivery_is_in_flight_with_all_that_wait_i8() -> None:
    made = strict()
    made.hand_over(1)
    made.hand_over(30)
    assert [len(numbers) for _, numbers in made.wire] == [1]
    made.answer()
    assert [len(numbers) for _, numbers in made.wire] == [30]
    made.answer_all()
    assert made.stored == list(range(31))


@pytest.mark.parametrize("reported", [0, 10])
def test_a_target_without_envelopes_gets_one_message_at_a_time_i8(reported: int) -> None:
    """It would accept some messages after one that it refuses."""
    made = strict(takes=0, reported=reported)
    made.hand_over(3)
    assert len(made.wire) == 1
    made.answer()
    assert len(made.wire) == 1
    made.answer_all()
    assert made.stored == [0, 1, 2]


@pytest.mark.parametrize("refusal", [BUSY, ODD], ids=["busy", "unclear"])
def test_nothing_overtakes_a_message_that_is_refused_for_a_while_i8(refusal: Refusal) -> None:
    made = strict(lambda number, now: refusal if number == 10 and now < 25.0 else None)
    made.hand_over(40)
    made.pass_time(24.0)
    assert made.stored == list(range(10))
    assert made.paused_reason
    made.pass_time(20.0)
    assert made.stored == list(range(40))
    assert not made.disposed


def test_a_message_that_is_refused_for_ever_without_a_clear_reason_blocks_i8() -> None:
    made = strict(lambda number, now: ODD if number == 10 else None)
    made.hand_over(40)
    made.pass_time(29.0)
    assert (made.stored, made.disposed) == (list(range(10)), {})
    made.pass_time(60.0)
    assert made.failed is not None
    assert made.stored == list(range(10))


def test_only_the_message_at_fault_is_set_aside_and_those_behind_it_keep_their_order_i8() -> None:
    made = strict(lambda number, now: BAD if number in (0, 7, 8, 39) else None)
    made.hand_over(40)
    made.pass_time(5.0)
    assert sorted(made.disposed) == [0, 7, 8, 39]
    assert made.stored == [number for number in range(40) if number not in made.disposed]


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.integers(0, 59), st.tuples(st.sampled_from([BUSY, ODD, BAD]), st.floats(0.0, 20.0)), max_size=8),
    st.lists(st.sampled_from(["hand over", "answer", "lose", "stored and lost", "wait"]), max_size=30),
    st.sampled_from([0, 7, 50]),
)
def test_first_arrivals_are_in_order_whatever_happens_i8(
    faults: dict[int, tuple[Refusal, float]], steps: list[str], takes: int
) -> None:
    def verdict(number: int, now: float) -> Refusal | None:
        refusal, until = faults.get(number, (BUSY, 0.0))
        return refusal if now < until or refusal is BAD else None

    made = strict(verdict, takes)
    for step in steps:
        assert len(made.wire) <= 1
        if step == "hand over" and made.handed < 50:
            made.hand_over(10)
        elif step == "answer" and made.wire:
            made.answer()
        elif step == "lose":
            made.lose()
        elif step == "stored and lost" and made.wire:
            numbers = made.wire[0][1]
            if all(verdict(number, made.now) is None for number in numbers):
                made.stored += numbers
            made.lose()
        elif step == "wait":
            made.pass_time(1.0)
    made.pass_time(60.0)
    first = list(dict.fromkeys(made.stored))
    assert first == sorted(first)
    assert made.failed or set(first) | set(made.disposed) == set(range(made.handed))
