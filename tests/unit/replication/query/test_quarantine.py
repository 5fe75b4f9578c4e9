"""A route whose messages crash workers is found among the routes that share its query, and only its own messages are set aside."""

from __future__ import annotations

from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.report import RouteReport, RouteState
from isthmus.replication.query.quarantine import Quarantine


def under_way(head: int, outstanding: int = 100, window: int = 16_000) -> RouteReport:
    return RouteReport(
        state=RouteState.RUNNING, head=head if outstanding else 0, outstanding=outstanding, window=window
    )


def suspected(quarantine: Quarantine) -> None:
    quarantine.died({"a": under_way(7), "b": under_way(1)})
    assert quarantine.died({"a": under_way(7), "b": under_way(50)}) == ["a"]


def test_i1_deaths_of_a_shared_query_set_no_message_aside() -> None:
    quarantine = Quarantine()
    for _ in range(20):
        quarantine.died({"a": under_way(7, 1, 1), "b": under_way(3, 1, 1)})
    assert not quarantine.plan("a").set_aside
    assert not quarantine.plan("b").set_aside


def test_the_same_first_message_at_two_deaths_in_a_row_is_suspected() -> None:
    quarantine = Quarantine()
    suspected(quarantine)
    assert quarantine.is_alone("a")
    assert not quarantine.is_alone("b")


def test_a_first_message_that_moved_between_two_deaths_is_not_suspected() -> None:
    quarantine = Quarantine()
    for head in (7, 8, 7):
        assert quarantine.died({"a": under_way(head), "b": under_way(0, 0)}) == []


def test_i2_a_route_that_had_nothing_under_way_is_not_suspected() -> None:
    quarantine = Quarantine()
    for outstanding in (1, 0, 1):
        assert quarantine.died({"a": under_way(7, outstanding), "b": under_way(0, 0)}) == []


def test_a_route_alone_is_searched_and_its_message_set_aside() -> None:
    quarantine = Quarantine()
    suspected(quarantine)
    deaths = 0
    while not quarantine.plan("a").set_aside:
        window = quarantine.plan("a").window
        quarantine.died({"a": under_way(7, min(window, 100), window)}, is_shared=False)
        deaths += 1
    assert quarantine.plan("a").set_aside == 7
    assert deaths == 3  # with 8 at a time, and twice alone
    assert not quarantine.plan("b").set_aside
    assert quarantine.set_aside("a", 7) == 2
    quarantine.settled("a", 1, 8, 99)
    assert not quarantine.is_alone("a")


def test_i3_a_route_returns_when_its_first_message_has_moved() -> None:
    quarantine = Quarantine()
    suspected(quarantine)
    quarantine.settled("a", 0, 7, 100)
    assert quarantine.is_alone("a")
    quarantine.settled("a", 0, 0, 0)  # nothing has come yet: a dead reader's locks have to expire first
    assert quarantine.is_alone("a")
    quarantine.settled("a", 64, 71, 100)
    assert not quarantine.is_alone("a")


def test_i3_a_route_does_not_return_while_its_message_is_searched_for() -> None:
    quarantine = Quarantine()
    suspected(quarantine)
    quarantine.settled("a", 10, 17, 8)
    assert quarantine.is_alone("a")
    quarantine.settled("a", 60, 77, 8)
    assert not quarantine.is_alone("a")


def test_a_route_that_returned_is_suspected_again_only_after_two_more_deaths() -> None:
    quarantine = Quarantine()
    suspected(quarantine)
    quarantine.settled("a", 64, 71, 100)
    assert quarantine.died({"a": under_way(7), "b": under_way(60)}) == []


def test_i4_a_search_left_from_before_does_not_keep_the_window_of_a_shared_query_large() -> None:
    quarantine = Quarantine()
    quarantine.died(
        {"a": under_way(0, 0)}
    )  # alone then: of 16,000 messages one killed the reader before it was reported
    for _ in range(3):
        quarantine.died({"a": under_way(0, 0, quarantine.plan("a").window), "b": under_way(0, 0)})
    assert quarantine.plan("a").window == 8  # each message is reported: the head is known at the next deaths
    for head in (7, 7):
        quarantine.died({"a": under_way(head, 1, 8), "b": under_way(0, 0)})
    assert quarantine.is_alone("a")


def test_the_only_route_of_a_query_is_searched_at_once() -> None:
    quarantine = Quarantine()
    quarantine.died({"a": under_way(7)}, is_shared=False)
    assert quarantine.plan("a") == Plan(64, 16_000, 0, 0)
    assert not quarantine.is_alone("a")


def test_after_a_death_all_routes_of_the_query_have_few_messages_under_way_until_as_many_have_moved() -> None:
    quarantine = Quarantine()
    quarantine.died({"a": under_way(0, 0), "b": RouteReport()})
    assert quarantine.plan("a") == Plan(64, 16_000)
    assert quarantine.plan("b") == Plan(64, 256)
    quarantine.died({"a": under_way(0, 0), "b": under_way(0, 0)})
    assert quarantine.plan("a") == Plan(8, 64)
    quarantine.settled("a", 63, 0, 0)
    assert quarantine.plan("a") == Plan(8, 1)
    quarantine.settled("a", 1, 0, 0)
    assert quarantine.plan("a") == Plan()
