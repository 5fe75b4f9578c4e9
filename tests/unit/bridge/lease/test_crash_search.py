"""A message that kills its worker is found within a few deaths, and the messages around it are hardly delayed."""

from __future__ import annotations

import pytest

from isthmus.bridge.flow.credit_window import CreditWindow
from isthmus.bridge.lease.crash_search import DEATHS_ALONE, CrashSearch, Plan

FULL = 16_000


class Route:
    """A source whose messages are moved in order, a worker that some of them kill, and what each delivery costs.

    Args:
        count: messages, numbered from 1.
        poison: those that kill.
        restarts: with everything broken, when to stop.
    """

    def __init__(self, count: int, poison: set[int], restarts: int = 50) -> None:
        self.search = CrashSearch()
        self.waiting = list(range(1, count + 1))
        self.poison = poison
        self.deliveries = dict.fromkeys(self.waiting, 0)
        self.set_aside: list[int] = []
        self.deaths = 0
        while self.waiting and self.deaths < restarts:
            self._lease()

    def _lease(self) -> None:
        window = CreditWindow(FULL, 1 << 60)
        plan = self.search.plan()
        window.narrow(plan.window, plan.span)
        if plan.set_aside:
            assert self.waiting[0] == plan.set_aside
            self.set_aside.append(self.waiting.pop(0))
            self.search.set_aside(plan.set_aside)
        while self.waiting:
            batch = self.waiting[: window.limit]
            for each in batch:
                self.deliveries[each] += 1
            killed = [each for each in batch if each in self.poison]
            if killed:
                self.deaths += 1
                self.search.died(window.limit, len(batch), batch[0])
                return
            del self.waiting[: len(batch)]
            self.search.moved(len(batch))
            window.settled(len(batch), len(self.waiting), 0.0)


@pytest.mark.parametrize("position", [1, 2, 63, 64, 65, 1000, 20_000, 39_999, 40_000])
def test_i1_one_that_kills_is_set_aside_and_all_others_move(position: int) -> None:
    route = Route(40_000, {position})
    assert route.set_aside == [position]
    assert not route.waiting
    assert route.deaths <= 3 + DEATHS_ALONE
    assert route.deliveries[position] <= 3 + DEATHS_ALONE
    assert max(count for number, count in route.deliveries.items() if number != position) <= 4


def test_several_that_kill_are_set_aside_one_after_the_other() -> None:
    poison = {10, 11, 700, 5_000}
    route = Route(20_000, poison)
    # 11 comes right after 10: nothing moves between them, so that it could as well be the worker's fault.
    assert route.set_aside[:1] == [10]
    assert route.waiting[0] == 11
    assert Route(20_000, {10, 12, 700, 5_000}).set_aside == [10, 12, 700, 5_000]


def test_i2_where_everything_kills_one_message_is_set_aside_and_no_more() -> None:
    route = Route(1000, set(range(1, 1001)))
    assert route.set_aside == [1]
    assert route.waiting[0] == 2


def test_i3_deaths_by_chance_leave_nothing_behind_once_the_span_has_passed() -> None:
    search = CrashSearch()
    search.died(FULL, 500, 77)
    assert search.plan() == Plan(64, FULL)
    search.moved(FULL - 1)
    assert search.plan() == Plan(64, 1)
    search.moved(1)
    assert search.plan() == Plan()


def test_i3_each_death_within_the_span_narrows_it() -> None:
    search = CrashSearch()
    plans = []
    for window in (FULL, 64, 8):
        search.died(window, 1, 5)
        plans.append(search.plan())
    assert plans == [Plan(64, FULL), Plan(8, 64), Plan(1, 8)]


def test_i1_deaths_over_different_messages_name_none() -> None:
    search = CrashSearch()
    for head in (5, 6, 7, 5):
        search.died(1, 1, head)
        assert search.plan().set_aside == 0
    search.died(1, 1, 5)
    assert search.plan() == Plan(1, 1, 5, DEATHS_ALONE)


def test_a_death_while_nothing_was_under_way_is_no_messages_fault() -> None:
    search = CrashSearch()
    search.died(1, 1, 5)
    search.died(1, 0, 0)
    assert search.plan().set_aside == 0
    assert search.plan().window == 1


def test_one_whose_settlement_was_lost_is_set_aside_again() -> None:
    search = CrashSearch()
    for _ in range(2):
        for _ in range(DEATHS_ALONE):
            search.died(1, 1, 5)
        assert search.plan().set_aside == 5
        search.set_aside(5)


def test_a_route_that_is_stuck_may_set_aside_again_once_something_moved() -> None:
    search = CrashSearch()
    for _ in range(DEATHS_ALONE):
        search.died(1, 1, 5)
    search.set_aside(5)
    for _ in range(DEATHS_ALONE):
        search.died(1, 1, 6)
    assert search.plan().set_aside == 0
    search.moved(1)
    for _ in range(DEATHS_ALONE):
        search.died(1, 1, 7)
    assert search.plan().set_aside == 7
