"""Routes of a process share a bound of bytes."""

from __future__ import annotations

from isthmus.bridge.flow.byte_budget import ByteBudget


def test_a_busy_route_among_idle_ones_may_have_half() -> None:
    budget = ByteBudget(1000, 10)
    while budget.used < budget.share:
        budget.used += 1
    assert budget.used == 500


def test_i1_a_route_has_something_however_much_the_others_use() -> None:
    budget = ByteBudget(1000, 10)
    budget.used = 5000
    assert budget.share == 10
