"""Runs of sequence numbers against Python's sets."""

from hypothesis import given
from hypothesis import strategies as st

from isthmus.entities.queue.run import RunSet, runs_of

SPANS = st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda pair: (pair[0], pair[0] + pair[1]))
STEPS = st.lists(st.tuples(st.sampled_from(["add", "discard", "take"]), SPANS, st.integers(1, 5)), max_size=30)


@given(STEPS)
def test_a_run_set_is_a_set(steps: list[tuple[str, tuple[int, int], int]]) -> None:
    """I1: disjoint, ascending, never touching."""
    runs, model = RunSet(), set[int]()
    for kind, (first, last), limit in steps:
        if kind == "add":
            runs.add(first, last)
            model |= set(range(first, last + 1))
        elif kind == "discard":
            runs.discard(first, last)
            model -= set(range(first, last + 1))
        elif model:
            taken = range(*runs.take(limit))
            numbers = [*taken, taken.stop]
            assert numbers == sorted(model)[: len(numbers)]
            assert len(numbers) <= limit
            model -= set(numbers)
        assert [number for first, last in runs for number in range(first, last + 1)] == sorted(model)
        assert list(runs) == runs_of(sorted(model))
        assert runs.count() == len(model)
        assert bool(runs) == bool(model)
        assert runs.first == min(model, default=None)
        assert all((number in runs) == (number in model) for number in range(52))


def test_runs_of_nothing_and_of_ranges() -> None:
    assert runs_of([]) == []
    assert runs_of(range(3, 9)) == [(3, 8)]
    assert runs_of([1, 2, 4, 7, 8]) == [(1, 2), (4, 4), (7, 8)]


def test_clear() -> None:
    runs = RunSet()
    runs.add(1, 3)
    runs.clear()
    assert not runs
