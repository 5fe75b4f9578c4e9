"""The hours of messages from the reported times, and counts by hour that add up."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from isthmus.connectors.servicebus.head import FRAGMENT_BITS
from isthmus.replication.verification.hour.hour import HOUR_MS, UNKNOWN, HourCounts, Times, counted, hours_of, summed
from isthmus.replication.verification.reconciliation.count import COUNTS
from isthmus.replication.verification.reconciliation.reconcile import Comparison, Holding, Undelivered, reconcile

LAST_MS = 253_402_300_799_999  # of the year 9999


def reported(*pairs: tuple[int, int]) -> Times:
    """Numbers and hours."""
    times = Times()
    for number, hour in pairs:
        times.add(number, hour * HOUR_MS + number % HOUR_MS)
    return times


def test_i1_each_number_has_the_hour_of_its_time_and_of_the_first_that_is_reported() -> None:
    hour_of = hours_of(reported((5, 7), (1, 7), (2, 8), (3, 7), (5, 9), (2, 7)))
    assert [hour_of(number) for number in (1, 2, 3, 5)] == [7, 8, 7, 7]


def test_i2_a_gap_has_the_hour_of_its_neighbours_where_they_agree() -> None:
    hour_of = hours_of(reported((10, 7), (20, 7), (30, 8), (40, 8)))
    assert [hour_of(number) for number in (9, 15, 25, 35, 41)] == [UNKNOWN, 7, UNKNOWN, 8, UNKNOWN]


def test_i2_no_neighbour_is_in_another_partition() -> None:
    next_one = 1 << FRAGMENT_BITS
    hour_of = hours_of(reported((10, 7), (next_one + 3, 7), (next_one + 5, 7)))
    assert [hour_of(number) for number in (11, next_one + 1, next_one + 4)] == [UNKNOWN, UNKNOWN, 7]


def test_a_time_that_no_calendar_has_and_a_number_that_is_none_show_nothing() -> None:
    times = Times()
    for number, at_ms in ((1, 0), (2, -1), (3, LAST_MS + 1), (4, 1 << 80), (-1, 1000), (6, LAST_MS)):
        times.add(number, at_ms)
    hour_of = hours_of(times)
    assert [hour_of(number) for number in (-1, 1, 2, 3, 4)] == [UNKNOWN] * 5
    (last,) = counted({"lost": [6]}, hour_of)
    assert last.name == "9999-12-31T23:00:00Z"


def test_nothing_reported_nothing_known() -> None:
    assert hours_of(Times())(1) == UNKNOWN
    assert counted({"lost": [3, 4]}, hours_of(Times())) == (
        HourCounts(None, dict.fromkeys((each.name for each in COUNTS), 0) | {"lost": 2}),
    )


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=40))
def test_hours_are_those_of_a_search_through_all_times(pairs: list[tuple[int, int]]) -> None:
    first: dict[int, int] = {}
    for number, hour in pairs:
        first.setdefault(number, hour)
    hour_of = hours_of(reported(*pairs))
    for number in range(-1, 32):
        low = max((each for each in first if each <= number), default=None)
        high = min((each for each in first if each >= number), default=None)
        agree = low is not None and high is not None and first[low] == first[high]
        assert hour_of(number) == (first[low] if agree and low is not None else UNKNOWN)


def test_i4_what_is_looked_up_grows_with_the_changes_of_the_hour() -> None:
    times = reported(*((number, 7 + (number > 5000)) for number in range(10_000)))
    hour_of = hours_of(times)
    assert {len(cell.cell_contents) for cell in hour_of.__closure__ or ()} == {2}
    assert times.numbers.itemsize + times.hours.itemsize == 12


def test_hours_are_in_order_and_what_is_not_known_comes_last() -> None:
    found = counted({"lost": [1, 2, 3], "arrived": [2, 9]}, hours_of(reported((1, 30), (2, 6), (3, 30))))
    assert [(each.hour, each.counts["lost"], each.counts["arrived"]) for each in found] == [
        (datetime(1970, 1, 1, 6, tzinfo=UTC), 1, 1),
        (datetime(1970, 1, 2, 6, tzinfo=UTC), 2, 0),
        (None, 0, 1),
    ]
    assert [each.to_dict()["hour"] for each in found] == ["1970-01-01T06:00:00Z", "1970-01-02T06:00:00Z", "unknown"]
    assert all(set(each.counts) == {count.name for count in COUNTS} for each in found)


def test_an_hour_in_which_nothing_counts_is_left_out() -> None:
    assert summed([HourCounts(datetime(2026, 1, 1, tzinfo=UTC), {"lost": 0})]) == ()


NUMBERS = st.integers(1, 40)
SOME = st.lists(NUMBERS, max_size=12)
SETS = st.sets(NUMBERS, max_size=8)
UNDELIVERED = [
    "waiting",
    "before_route",
    "expired",
    "dead_lettered",
    "dropped",
    "copy_expired",
    "resent",
    "consumed",
    "delivered",
    "ended",
    "elsewhere",
]
KEPT = ["filtered", "earlier", "held_back", "returned", "stopped", "incomparable"]
ALIASES = ("ewr", "jfk")
HOLDINGS = st.fixed_dictionaries(
    {
        alias: st.builds(
            Holding,
            entered=st.lists(NUMBERS, max_size=30, unique=True),
            arrived=st.fixed_dictionaries({each: st.lists(NUMBERS, max_size=40) for each in ALIASES}),
            unequal=st.fixed_dictionaries(dict.fromkeys(ALIASES, SOME)),
            forged=st.fixed_dictionaries(dict.fromkeys(ALIASES, SOME)),
            unknown=st.fixed_dictionaries(dict.fromkeys(ALIASES, SOME)),
            kept=st.fixed_dictionaries(dict.fromkeys(KEPT, SOME)),
        )
        for alias in ALIASES
    }
)
REST = st.fixed_dictionaries(
    {
        (origin, member): st.builds(Undelivered, **dict.fromkeys(UNDELIVERED, SETS))
        for origin in ALIASES
        for member in ALIASES
    }
)
TIMES = st.fixed_dictionaries({alias: st.dictionaries(NUMBERS, st.integers(1, 5), max_size=30) for alias in ALIASES})


def sums(hours: Sequence[HourCounts] | None) -> dict[str, int]:
    assert hours is not None
    assert len({each.hour for each in hours}) == len(hours)
    return {count.name: sum(each.counts[count.name] for each in hours) for count in COUNTS}


@given(holdings=HOLDINGS, rest=REST, times=TIMES)
def test_i3_the_counts_of_all_hours_add_up_to_the_totals(
    holdings: dict[str, Holding], rest: dict[tuple[str, str], Undelivered], times: dict[str, dict[int, int]]
) -> None:
    hours = {alias: hours_of(reported(*each.items())) for alias, each in times.items()}
    result = reconcile("flights", holdings, rest, hours=hours.__getitem__)
    without = reconcile("flights", holdings, rest)
    for each, plain in zip(result.comparisons, without.comparisons, strict=True):
        assert sums(each.hours) == dict(each.counts) == dict(plain.counts)
        assert each.samples == plain.samples
        _in_their_hours(each, hours[each.origin])
    assert sums(result.hours) == {count.name: result.total(count.name) for count in COUNTS}
    assert result.verdict is without.verdict
    assert result.to_dict()["hours"] == [each.to_dict() for each in result.hours]
    assert (without.hours, without.comparisons[0].hours) == ((), None)
    assert "hours" not in without.to_dict()
    assert "hours" not in without.comparisons[0].to_dict()


def _in_their_hours(compared: Comparison, hour_of) -> None:
    """What a comparison names is in the row of its hour: of a kind of which all are named, and no more."""
    for kind, numbers in compared.samples.items():
        expected = counted({kind: numbers}, hour_of)
        if len(numbers) == compared.counts[kind]:
            found = {each.hour: each.counts[kind] for each in compared.hours or () if each.counts[kind]}
            assert found == {each.hour: each.counts[kind] for each in expected}
