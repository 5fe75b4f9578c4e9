"""Which link an unsettled delivery was sent on, against a dictionary of ids."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.amqp.delivery_run import DeliveryRuns
from isthmus.amqp.frame import MASK32

A: Any = "a"
B: Any = "b"


def test_an_id_that_is_settled_twice_takes_no_other_with_it_i1() -> None:
    """A client may settle what was settled from this side already."""
    runs = DeliveryRuns()
    runs.add(0, 10, A)
    for each in range(9, 4, -1):
        runs.settle(each, each)
        runs.settle(each, each)
    assert runs.covered(0, 9) == [(0, 4, A)]


def test_a_link_s_deliveries_are_forgotten_with_it() -> None:
    runs = DeliveryRuns()
    for each in range(0, 100, 2):
        runs.add(each, 1, A)
        runs.add(each + 1, 1, B)
    runs.forget(A)
    assert [first for first, _, _ in runs.covered(0, 99)] == list(range(1, 100, 2))
    runs.forget(B)
    assert runs.covered(0, 99) == []


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "settle", "settled before", "forget"]), st.integers(0, 40), st.integers(1, 12)),
    max_size=40,
)


@pytest.mark.parametrize("start", [0, MASK32 - 20])
@given(steps=STEPS)
def test_ids_are_known_until_they_are_settled_i1(start: int, steps: list[tuple[str, int, int]]) -> None:
    runs = DeliveryRuns()
    known: dict[int, str] = {}
    end = start
    for what, place, count in steps:
        if what == "add":
            link = A if place % 2 else B
            runs.add(end & MASK32, count, link)
            known |= dict.fromkeys(range(end, end + count), link)
            end += count
        elif what == "settled before":  # sent settled: these ids are not looked up
            end += count
        elif what == "settle":
            first = start + place
            runs.settle(first & MASK32, (first + count - 1) & MASK32)
            known = {each: link for each, link in known.items() if not first <= each < first + count}
        else:
            detached = A if place % 2 else B
            runs.forget(detached)
            known = {each: link for each, link in known.items() if link != detached}
        found = {
            (first + each) & MASK32: link
            for first, last, link in runs.covered(start & MASK32, (start + 1000) & MASK32)
            for each in range(((last - first) & MASK32) + 1)
        }
        assert found == {each & MASK32: link for each, link in known.items()}


def test_a_range_that_ends_before_it_begins_is_empty() -> None:
    runs = DeliveryRuns()
    runs.add(0, 10, A)
    runs.settle(5, 4)
    assert runs.covered(0, 0xFFFFFFFE) == []
    assert runs.covered(0, 9) == [(0, 9, A)]
