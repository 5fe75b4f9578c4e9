"""The account of what was delivered and not settled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.bridge.lease.unsettled import UnsettledMap, runs_of


def test_runs_of_positions_in_any_order() -> None:
    assert runs_of(range(5, 8)) == [(0, 3)]
    assert runs_of([]) == []
    assert runs_of([7]) == [(0, 1)]
    assert runs_of([1, 2, 4, 5, 3]) == [(0, 2), (2, 4), (4, 5)]
    assert runs_of(range(0, 6, 2)) == [(0, 1), (1, 2), (2, 3)]


def test_i1_a_position_is_outstanding_until_the_first_settlement() -> None:
    account = UnsettledMap()
    account.add(range(10, 20), [1] * 10)
    assert account.settle(12, 14) == [(12, 14)]
    assert account.settle(12, 14) == []
    assert account.settle(0, 11) == [(10, 11)]
    assert (account.outstanding, account.settled, account.first) == (5, 5, 15)
    assert account.unknown == 3 + 10
    assert account.clear() == [(15, 19)]
    assert (account.outstanding, account.outstanding_bytes, account.first) == (0, 0, None)


def test_i1_what_came_apart_is_settled_as_one_run() -> None:
    account = UnsettledMap()
    for position in range(1, 5):
        account.add([position], [3])
    assert account.settle(1, 4) == [(1, 4)]


def test_i2_a_position_that_comes_again_counts_once() -> None:
    account = UnsettledMap()
    account.add(range(1, 6), [10] * 5)
    account.add([3], [50])
    assert (account.outstanding, account.outstanding_bytes) == (5, 90)
    assert account.settle(1, 5) == [(1, 5)]
    assert account.outstanding_bytes == 0


def test_i3_positions_of_partitions_need_not_ascend() -> None:
    account = UnsettledMap()
    second = 2 << 48
    account.add(range(second, second + 3), [1] * 3)
    account.add([5, 9, 7], [1] * 3)
    assert account.first == 5
    assert account.settle(0, 100) == [(5, 5), (7, 7), (9, 9)]
    assert account.clear() == [(second, second + 2)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 8)), max_size=40))
def test_i4_it_agrees_with_a_plain_dictionary(steps: list[tuple[bool, int, int]]) -> None:
    account, plain = UnsettledMap(), dict[int, int]()
    for is_added, first, length in steps:
        positions = range(first, first + length + 1)
        if is_added:
            account.add(positions, [7] * len(positions))
            plain |= dict.fromkeys(positions, 7)
        else:
            found = account.settle(first, first + length)
            expected = [each for each in positions if plain.pop(each, 0)]
            assert [each for low, high in found for each in range(low, high + 1)] == expected
        assert account.outstanding == len(plain)
        assert account.outstanding_bytes == sum(plain.values())
        assert account.count(first, first + length) == sum(each in plain for each in positions)
        assert account.first == min(plain, default=None)


def test_i4_bytes_of_a_run_are_shared_and_none_is_left() -> None:
    account = UnsettledMap()
    account.add(range(3), [1, 1, 99])
    account.settle(1, 1)
    account.settle(0, 0)
    account.settle(2, 2)
    assert account.outstanding_bytes == 0
