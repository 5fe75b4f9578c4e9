"""The messages that existed at the first opening."""

from typing import Any

from isthmus.connectors.servicebus.port.peek.present import IDLE_SECONDS, Present


def opened(entity: Any, now: float = 0.0, *, in_order: bool = True) -> Present:
    present = Present(in_order=in_order)
    query = present.begin(now)
    assert query is not None
    entity.serve(query)
    assert present.begin(now) is None
    return present


def test_an_empty_entity_is_over_at_once(entity_of: Any) -> None:
    assert opened(entity_of([])).is_over


def test_what_came_later_does_not_belong_i1(entity_of: Any) -> None:
    present = opened(entity_of([3, 4, 5]))
    assert present.belong(range(3, 6)) is True
    assert present.belong([5, 6]) == [True, False]
    assert present.belong([6, 7]) is False
    present.given([3, 4, 5], 1.0)
    assert present.is_over
    assert present.belong([4]) is False


def test_it_ends_when_nothing_comes_and_nothing_is_locked_i2(entity_of: Any) -> None:
    present = opened(entity_of([3, 4, 5]))
    present.given([3], 10.0)
    assert present.check(10.0 + IDLE_SECONDS / 2, 0, is_idle=True) is None
    assert present.check(10.0 + IDLE_SECONDS, 0, is_idle=False) is None
    assert 11.0 < present.deadline() < 12.0
    query = present.check(12.0, 0, is_idle=True)
    assert query is not None
    entity_of([5]).serve(query)
    present.peeked(12.0)
    assert (present.locked, present.is_over) == (5, False)
    query = present.check(12.0 + IDLE_SECONDS, 0, is_idle=True)
    assert query is not None
    entity_of([6]).serve(query)
    present.peeked(13.0)
    assert (present.locked, present.is_over) == (0, True)
    assert present.deadline() == float("inf")


def test_over_a_lost_link_it_begins_again_i3(entity_of: Any) -> None:
    present = opened(entity_of([3, 4, 5]))
    present.given([3, 4, 5], 1.0)
    present.link_lost()
    assert not present.is_over
    assert present.begin(20.0) is None
    assert present.belong([4, 6]) == [True, False]
    present.given([5], 20.0)
    assert not present.is_over
    query = present.check(22.0, 0, is_idle=True)
    assert query is not None
    entity_of([6]).serve(query)
    present.peeked(22.0)
    assert present.is_over


def test_every_fragment_has_to_be_reached(entity_of: Any) -> None:
    fragment = 2 << 48
    present = opened(entity_of([7, fragment + 3]))
    assert present.belong([7, 8, fragment + 3, fragment + 4]) == [True, False, True, False]
    present.given([fragment + 3], 1.0)
    assert not present.is_over
    present.given([7], 1.0)
    assert present.is_over


def test_where_deliveries_have_no_order_the_last_one_shows_nothing_i2(entity_of: Any) -> None:
    present = opened(entity_of([3, 4, 5]), in_order=False)
    present.given([5], 1.0)
    assert not present.is_over
    query = present.check(1.0 + IDLE_SECONDS, 0, is_idle=True)
    assert query is not None
    entity_of([]).serve(query)
    present.peeked(3.0)
    assert present.is_over
    assert opened(entity_of([]), in_order=False).is_over
