"""Ranges of integers against Python's own sets."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from isthmus.bridge.index_set import IndexSet

CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 10)), max_size=40)


@given(CHANGES, st.integers(-1, 50))
def test_it_holds_what_a_set_holds_in_ranges_that_do_not_touch_i1(
    changes: list[tuple[bool, int, int]], index: int
) -> None:
    made, model = IndexSet(), set[int]()
    for adds, start, size in changes:
        if adds:
            made.add(start, start + size)
            model |= set(range(start, start + size))
        else:
            made.remove(start, start + size)
            model -= set(range(start, start + size))
        ranges = list(made)
        assert [n for start, stop in ranges for n in range(start, stop)] == sorted(model)
        assert all(before[1] < after[0] for before, after in pairwise(ranges))
        assert (made.count, bool(made)) == (len(model), bool(model))
        if model:
            assert made.first() == ranges[0]
    assert (index in made) == (index in model)
    assert made.above(index) == min((n for n in model if n > index), default=None)
    made.clear()
    assert (list(made), made.count) == ([], 0)
