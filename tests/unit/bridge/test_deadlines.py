"""Times by key."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from isthmus.bridge.deadlines import Deadlines


def test_a_later_time_changes_nothing_until_the_key_came_out() -> None:
    deadlines: Deadlines[int] = Deadlines()
    deadlines.set(1, 5.0)
    deadlines.set(1, 9.0)
    deadlines.set(2, 7.0)
    assert deadlines.next() == 5.0
    assert deadlines.due(6.0) == [1]
    assert deadlines.next() == 7.0
    deadlines.set(1, 9.0)
    deadlines.forget(2)
    assert deadlines.next() == 9.0
    assert deadlines.due(9.0) == [1]
    assert deadlines.next() == math.inf


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50), st.sampled_from(["set", "forget", "due"]))))
def test_each_key_comes_out_at_its_earliest_time(steps: list[tuple[int, int, str]]) -> None:  # I1, I2
    deadlines: Deadlines[int] = Deadlines()
    expected: dict[int, int] = {}
    for key, at, what in steps:
        if what == "set":
            deadlines.set(key, at)
            expected[key] = min(at, expected.get(key, at))
        elif what == "forget":
            deadlines.forget(key)
            expected.pop(key, None)
        else:
            due = [each for each, its in expected.items() if its <= at]
            assert sorted(deadlines.due(at)) == sorted(due)
            for each in due:
                del expected[each]
        assert deadlines.next() == min(expected.values(), default=math.inf)


def test_keys_need_not_be_comparable() -> None:
    first, second = object(), object()
    deadlines: Deadlines[object] = Deadlines()
    deadlines.set(first, 1.0)
    deadlines.set(second, 1.0)
    assert deadlines.due(1.0) == [first, second]


def test_a_key_that_is_never_due_is_not_kept() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", math.inf)
    assert deadlines.next() == math.inf
    assert deadlines.due(1e9) == []
