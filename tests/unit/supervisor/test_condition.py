"""A route's condition follows what moved, not what runs."""

from __future__ import annotations

from isthmus.replication.sighting import Sighting
from isthmus.supervisor.condition import MOVING_SECONDS, Condition, Phase


def test_i1_moving_needs_a_count_that_rises() -> None:
    condition = Condition()
    condition.starting(0)
    condition.stands(0, 0.0)
    condition.seen(1, Sighting(moved=0))
    assert condition.phase is Phase.WAITING
    condition.seen(2, Sighting(moved=5))
    assert condition.phase is Phase.MOVING
    condition.seen(2.5 + MOVING_SECONDS, Sighting(moved=5))
    assert condition.phase is Phase.WAITING


def test_i2_messages_that_wait_while_none_moves_make_a_stall() -> None:
    condition = Condition(stalled_after_seconds=10)
    condition.starting(0)
    condition.stands(7, 1.0)
    condition.seen(1, Sighting(moved=3))
    condition.seen(12, Sighting(moved=3))
    assert condition.phase is Phase.STALLED
    assert condition.text(12) == "stalled: nothing moved for 11 s"
    condition.seen(13, Sighting(moved=4))
    assert condition.phase is Phase.MOVING


def test_i2_a_route_that_never_moved_what_waits_is_starting_and_then_stalled() -> None:
    condition = Condition(stalled_after_seconds=10)
    condition.starting(0)
    condition.stands(1, 4.0)
    condition.seen(5, Sighting())
    assert condition.phase is Phase.STARTING
    condition.seen(10, Sighting())
    assert condition.phase is Phase.STALLED


def test_i2_a_route_whose_target_is_away_says_so() -> None:
    condition = Condition()
    condition.starting(0)
    condition.seen(1, Sighting(held="jfk: connection refused"))
    assert condition.text(1) == "stalled: jfk: connection refused"


def test_i3_a_failure_tells_when_it_is_tried_again() -> None:
    condition = Condition()
    condition.starting(0)
    condition.failed(1, "boom", 12)
    assert condition.text(4) == "failed, retry in 9 s"
    assert (condition.last_error, condition.last_error_at, condition.restarts) == ("boom", 1, 1)


def test_counts_go_on_over_restarts() -> None:
    condition = Condition()
    condition.starting(0)
    condition.seen(1, Sighting(moved=10))
    condition.failed(2, "boom", 5)
    condition.starting(7)
    assert not condition.has_moved_since_start()
    condition.seen(8, Sighting(moved=4))
    assert condition.moved == 14
    assert condition.has_moved_since_start()


def test_the_rate_is_that_of_the_last_seconds() -> None:
    condition = Condition()
    condition.starting(0)
    for second in range(1, 11):
        condition.seen(second, Sighting(moved=100 * second))
    assert condition.rate_per_second(10) == 100
    assert condition.rate_per_second(15) < 60


def test_draining_is_not_overwritten_by_what_is_seen() -> None:
    condition = Condition()
    condition.starting(0)
    condition.draining()
    condition.seen(1, Sighting(moved=1))
    assert condition.phase is Phase.DRAINING
    assert condition.moved == 1


def test_a_route_whose_source_does_not_look_yet_is_starting() -> None:
    condition = Condition()
    condition.starting(0)
    condition.seen(1, Sighting(ready=False))
    assert condition.phase is Phase.STARTING
    condition.seen(2, Sighting())
    assert condition.phase is Phase.WAITING
