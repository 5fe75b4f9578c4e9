"""How far a route has read a spool."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.connectors.spool.cursor import Cursor


def test_what_is_settled_from_the_beginning_raises_the_mark() -> None:
    cursor = Cursor(5)
    assert [cursor.deliver(number) for number in (5, 6, 7)] == [True] * 3
    cursor.settle(6, 6)
    assert cursor.low == 5
    cursor.settle(5, 5)
    assert cursor.low == 7
    assert cursor.outstanding == 1


def test_numbers_that_are_missing_count_as_settled() -> None:
    cursor = Cursor()
    cursor.deliver(0)
    cursor.deliver(4)
    cursor.settle(0, 0)
    assert cursor.low == 4


def test_what_is_given_back_is_given_again_and_nothing_else() -> None:
    cursor = Cursor()
    for number in range(4):
        cursor.deliver(number)
    cursor.settle(2, 2)
    assert cursor.release(1, 2)
    assert cursor.following == 1
    assert [number for number in range(1, 5) if cursor.deliver(number)] == [1, 4]


def test_what_was_not_given_is_neither_settled_nor_given_back() -> None:
    cursor = Cursor()
    cursor.deliver(0)
    assert cursor.settle(0, 9) == 1
    assert cursor.low == 1
    assert not cursor.release(0, 9)


@given(st.lists(st.tuples(st.sampled_from("settle back read".split()), st.integers(0, 12), st.integers(0, 4))))
def test_the_mark_is_the_lowest_that_is_not_settled(steps: list[tuple[str, int, int]]) -> None:
    cursor = Cursor()
    settled: set[int] = set()
    out: set[int] = set()
    for kind, first, more in steps:
        span = set(range(first, first + more + 1))
        if kind == "read":
            number = cursor.following
            assert cursor.deliver(number) == (number not in out | settled)
            if number not in settled:
                out.add(number)
        elif kind == "settle":
            cursor.settle(first, first + more)
            settled |= span & out
            out -= span
        else:
            cursor.release(first, first + more)
            out -= span
        assert cursor.low == next(number for number in range(1000) if number not in settled)
        assert cursor.outstanding == len(out)
