"""Rows that a step removed are known by counts."""

from __future__ import annotations

from isthmus.bridge.lease.row_account import RowAccount
from isthmus.bridge.lease.unsettled import UnsettledMap


def account(*parts: list[int]) -> tuple[RowAccount, UnsettledMap]:
    rows, unsettled = RowAccount(), UnsettledMap()
    for part in parts:
        rows.handed_on(part)
        unsettled.add(part, [1] * len(part))
    return rows, unsettled


def test_i1_what_was_removed_is_known_when_all_else_is_settled() -> None:
    rows, unsettled = account([1, 2], [9, 5])
    rows.flushed(4, 2)
    assert rows.removed(unsettled) == []
    unsettled.settle(1, 1)
    assert rows.removed(unsettled) == []
    unsettled.settle(9, 9)
    assert rows.removed(unsettled) == [(2, 2), (5, 5)]


def test_what_came_behind_the_flush_row_is_left_alone() -> None:
    rows, unsettled = account([1], [2])
    rows.flushed(1, 0)
    assert rows.removed(unsettled) == [(1, 1)]


def test_a_flush_row_between_rows_that_were_handed_on_together_decides_nothing() -> None:
    rows, unsettled = account([1, 2, 3])
    rows.flushed(2, 1)
    unsettled.settle(1, 1)
    assert rows.removed(unsettled) == []
    rows.flushed(3, 2)
    unsettled.settle(3, 3)
    assert rows.removed(unsettled) == [(2, 2)]


def test_an_older_flush_row_changes_nothing() -> None:
    rows, unsettled = account([1], [2])
    rows.flushed(2, 2)
    rows.flushed(1, 0)
    assert rows.removed(unsettled) == []
