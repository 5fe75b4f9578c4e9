"""Which slot carries a route: placement by rate, and the moves that follow from rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.bridge.placement import ADOPT_SECONDS, LEAST_RATE, REST_SECONDS, UPDATE_SECONDS, Move, Placement

BOTH = frozenset({0, 1})


class Bench:
    """A placement whose routes settle at steady rates."""

    def __init__(self, rates: Mapping[str, float], slots: int = 2) -> None:
        self.placement = Placement()
        self.placement.slots = slots
        self.rates = dict(rates)
        self.now = 1000.0
        for name in rates:
            self.placement.slot_of(name)

    def update(self, live: frozenset[int] = BOTH) -> list[Move]:
        self.now += UPDATE_SECONDS
        assert self.placement.is_due(self.now)
        return self.placement.update({name: int(rate * self.now) for name, rate in self.rates.items()}, live, self.now)

    def moves(self, live: frozenset[int] = BOTH, looks: int = 40) -> list[Move]:
        return [move for _ in range(looks) for move in self.update(live)]

    def slots(self) -> dict[str, int]:
        return {name: self.placement.slot_of(name) for name in self.rates}

    def load(self, slot: int) -> float:
        return sum(self.rates[name] for name, each in self.slots().items() if each == slot)


def test_new_routes_go_where_least_is_done() -> None:
    placement = Placement()
    assert [placement.slot_of(name) for name in "abc"] == [0, 0, 0]
    placement = Placement()
    placement.slots = 3
    assert [placement.slot_of(name) for name in "abcdab"] == [0, 1, 2, 0, 0, 1]


def test_i1_a_slot_that_is_no_more_gives_its_routes_to_the_others() -> None:
    bench = Bench({"a": 0, "b": 0})
    bench.placement.slots = 1
    assert bench.slots() == {"a": 0, "b": 0}


def test_i2_a_busy_slot_gives_a_route_to_an_idle_one() -> None:
    bench = Bench({"a": 3000, "b": 0, "c": 2000, "d": 0})
    assert bench.slots() == {"a": 0, "b": 1, "c": 0, "d": 1}
    assert bench.moves() == [Move("a", 1)]
    assert bench.slots()["a"] == 1


@pytest.mark.parametrize(
    "rates",
    [
        pytest.param({"a": 9000, "b": 0}, id="the only busy route"),
        pytest.param({"a": LEAST_RATE / 2, "b": 0, "c": LEAST_RATE / 3, "d": 0}, id="little to do"),
        pytest.param({"a": 1000, "b": 900, "c": 100, "d": 100}, id="a small difference"),
    ],
)
def test_i2_what_would_gain_nothing_moves_nothing(rates: dict[str, float]) -> None:
    assert Bench(rates).moves() == []


def test_i3_a_route_that_has_moved_rests() -> None:
    bench = Bench({"a": 3000, "b": 0, "c": 3000, "d": 0})
    assert bench.moves(looks=5) == [Move("a", 1)]
    bench.rates |= {"b": 1000, "c": 0, "d": 1500}  # "a" would be better where it was
    moves = [bench.update() for _ in range(int(REST_SECONDS / UPDATE_SECONDS) - 3)]
    assert [move for each in moves for move in each] == [Move("d", 0), Move("b", 0)]


def test_i4_routes_of_a_slot_without_a_reader_are_adopted() -> None:
    bench = Bench({"a": 0, "b": 0, "c": 0, "d": 0})
    began = bench.now
    found = [(move, bench.now - began) for _ in range(10) for move in bench.update(frozenset({0}))]
    assert [move for move, _ in found] == [Move("b", 0), Move("d", 0)]
    assert all(ADOPT_SECONDS <= seconds <= ADOPT_SECONDS + 2 * UPDATE_SECONDS for _, seconds in found)


def test_i4_nothing_is_adopted_where_no_slot_has_a_reader() -> None:
    assert Bench({"a": 0, "b": 0}).moves(frozenset()) == []


@given(rates=st.lists(st.integers(0, 20_000), min_size=1, max_size=12), slots=st.integers(2, 4))
def test_moves_come_to_an_end_and_leave_no_slot_much_busier(rates: list[int], slots: int) -> None:
    names: Iterator[int] = count()
    bench = Bench({f"r{next(names)}": rate for rate in rates}, slots)
    live = frozenset(range(slots))
    before = max(map(bench.load, live)) - min(map(bench.load, live))
    bench.moves(live, looks=200)
    assert bench.moves(live, looks=50) == []
    after = max(map(bench.load, live)) - min(map(bench.load, live))
    assert after <= before


def test_i5_a_route_that_is_carried_no_more_weighs_on_no_slot() -> None:
    bench = Bench({"busy": 5000, "a": 1000, "b": 1000})
    bench.placement.put("busy", 0)
    bench.placement.put("a", 0)
    bench.placement.put("b", 1)
    bench.update()
    bench.update()
    bench.placement.left("busy")
    del bench.rates["busy"]
    assert bench.moves() == []
    assert bench.slots() == {"a": 0, "b": 1}
    assert [bench.placement.slot_of(name) for name in ("new", "busy")] == [0, 0]
