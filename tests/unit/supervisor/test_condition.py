"""A route's condition follows what moved, not what runs."""

from __future__ import annotations

from isthmus.replication.query.route_progress import RouteProgress
from isthmus.replication.query.tally import Counts
from isthmus.supervisor.condition import MOVING_SECONDS, Condition, Phase


def test_i1_moving_needs_a_count_that_rises() -> None:
    condition = Condition()
    condition.starting(0)
    condition.backlog_seen(0, 0, 0.0)
    condition.seen(1, RouteProgress(counts=Counts(0, 0)))
    assert condition.phase is Phase.WAITING
    condition.seen(2, RouteProgress(counts=Counts(5, 5)))
    assert condition.phase is Phase.MOVING
    condition.seen(2.5 + MOVING_SECONDS, RouteProgress(counts=Counts(5, 5)))
    assert condition.phase is Phase.WAITING


def test_i2_messages_that_wait_while_none_moves_make_a_stall() -> None:
    condition = Condition(stalled_after_seconds=10)
    condition.starting(0)
    condition.backlog_seen(0, 7, 1.0)
    condition.seen(1, RouteProgress(counts=Counts(3, 3)))
    condition.seen(12, RouteProgress(counts=Counts(3, 3)))
    assert condition.phase is Phase.STALLED
    assert condition.text(12) == "stalled: nothing moved for 11 s, and a message waits for 13 s"
    condition.seen(13, RouteProgress(counts=Counts(4, 4)))
    assert condition.phase is Phase.MOVING


def test_i2_how_long_a_route_was_idle_before_a_message_came_is_no_stall() -> None:
    condition = Condition(stalled_after_seconds=10)
    condition.starting(0)
    condition.seen(1, RouteProgress(counts=Counts(3, 3)))
    condition.backlog_seen(600, 1, 0.5)
    condition.seen(600, RouteProgress(counts=Counts(3, 3)))
    assert condition.phase is Phase.WAITING
    condition.seen(610, RouteProgress(counts=Counts(3, 3)))
    assert condition.text(610) == "stalled: nothing moved for 10 s"
    assert condition.stuck_seconds(610) == 10.5


def test_i2_where_no_age_is_known_messages_wait_from_the_look_that_first_saw_some() -> None:
    """RabbitMQ, Event Hubs and others report how many messages wait, and not since when."""
    condition = Condition(15)
    condition.starting(0)
    condition.seen(1, RouteProgress())
    for now in range(100, 114, 2):
        condition.backlog_seen(now, 5, None)
        condition.seen(now, RouteProgress())
        assert condition.phase is not Phase.STALLED
    condition.backlog_seen(116, 5, None)
    condition.seen(116, RouteProgress())
    assert (condition.phase, condition.oldest_age_seconds) == (Phase.STALLED, None)
    assert condition.stuck_seconds(116) == 16
    condition.backlog_seen(118, 0, 0.0)
    condition.backlog_seen(120, 5, None)
    condition.seen(120, RouteProgress())
    assert condition.phase is not Phase.STALLED


def test_i2_what_may_be_hidden_makes_no_stall_where_no_age_is_known() -> None:
    """Queue Storage counts messages that are hidden for days, Kafka the marks of transactions."""
    condition = Condition(15)
    condition.starting(0)
    for now in range(0, 600, 2):
        condition.backlog_seen(now, 5, None, are_ready=False)
        condition.seen(now, RouteProgress())
        assert condition.phase is not Phase.STALLED


def test_i4_what_is_set_aside_is_not_moved_and_yet_no_stall() -> None:
    condition = Condition(stalled_after_seconds=10)
    condition.starting(0)
    condition.backlog_seen(0, 500, 60.0)
    condition.seen(20, RouteProgress(counts=Counts(settled=7, moved=0, dead_lettered=5, discarded=2)))
    assert (condition.moved, condition.counts.dead_lettered, condition.counts.discarded) == (0, 5, 2)
    assert condition.phase is Phase.MOVING
    condition.failed(21, "boom", 1)
    condition.starting(22)
    condition.seen(23, RouteProgress(counts=Counts(settled=3, moved=1, dead_lettered=1, discarded=1)))
    assert condition.counts == Counts(settled=10, moved=1, dead_lettered=6, discarded=3)


def test_a_route_is_well_while_it_moves_what_there_is() -> None:
    condition = Condition(stalled_after_seconds=10)
    condition.pending("waiting for the claim")
    assert not condition.is_well()
    condition.starting(0)
    assert condition.is_well()
    condition.failed(1, "jfk (h:1): Connection refused", 5, away="jfk")
    assert not condition.is_well()
    condition.starting(6)
    assert not condition.is_well()
    assert condition.away == ("jfk", "jfk (h:1): Connection refused")
    condition.seen(7, RouteProgress(counts=Counts(1, 1)))
    assert condition.is_well()
    assert condition.away == ("", "")
    condition.backlog_seen(8, 4, 1.0)
    condition.seen(30, RouteProgress(counts=Counts(1, 1)))
    assert condition.phase is Phase.STALLED
    assert not condition.is_well()


def test_i2_a_route_that_never_moved_what_waits_is_starting_and_then_stalled() -> None:
    condition = Condition(stalled_after_seconds=10)
    condition.starting(0)
    condition.backlog_seen(0, 1, 4.0)
    condition.seen(5, RouteProgress())
    assert condition.phase is Phase.STARTING
    condition.seen(10, RouteProgress())
    assert condition.phase is Phase.STALLED


def test_a_route_whose_target_has_not_answered_says_so_and_is_not_stuck() -> None:
    condition = Condition(stalled_after_seconds=10)
    condition.starting(0)
    condition.backlog_seen(0, 1, 0.0)
    for now in (5, 70):
        condition.seen(now, RouteProgress(is_awaited=True))
    assert condition.text(70) == "stalled: nothing moved for 70 s; its target has not answered"
    assert condition.stuck_seconds(70) == 0.0
    condition.seen(71, RouteProgress())
    assert condition.stuck_seconds(71) == 71.0


def test_i2_a_route_whose_target_is_away_says_so() -> None:
    condition = Condition()
    condition.starting(0)
    condition.seen(1, RouteProgress(paused_reason="jfk: connection refused"))
    assert condition.text(1) == "stalled: jfk: connection refused"


def test_i3_a_failure_shows_when_it_is_tried_again() -> None:
    condition = Condition()
    condition.starting(0)
    condition.failed(1, "boom", 12)
    assert condition.text(4) == "failed, retry in 9 s"
    assert (condition.last_error, condition.last_error_at, condition.restarts) == ("boom", 1, 1)


def test_counts_continue_over_restarts() -> None:
    condition = Condition()
    condition.starting(0)
    condition.seen(1, RouteProgress(counts=Counts(10, 10)))
    condition.failed(2, "boom", 5)
    condition.starting(7)
    assert not condition.has_moved_since_start()
    condition.seen(8, RouteProgress(counts=Counts(4, 4)))
    assert condition.moved == 14
    assert condition.has_moved_since_start()


def test_the_rate_is_that_of_the_last_seconds() -> None:
    condition = Condition()
    condition.starting(0)
    for second in range(1, 11):
        condition.seen(second, RouteProgress(counts=Counts(100 * second, 100 * second)))
    assert condition.rate_per_second(10) == 100
    assert condition.rate_per_second(15) < 60


def test_a_route_that_is_no_longer_looked_at_has_no_rate() -> None:
    """E.g. one that waits for its claim, or that is done while others continue."""
    for end in (lambda each: each.pending("the claim is lost"), lambda each: each.done()):
        condition = Condition()
        condition.starting(0)
        for now in range(1, 7):
            condition.seen(now, RouteProgress(counts=Counts(now * 1000, now * 1000)))
        end(condition)
        assert condition.rate_per_second(7) > 0
        assert condition.rate_per_second(11) == 0.0


def test_draining_is_not_overwritten_by_what_is_seen() -> None:
    condition = Condition()
    condition.starting(0)
    condition.draining()
    condition.seen(1, RouteProgress(counts=Counts(1, 1)))
    assert condition.phase is Phase.DRAINING
    assert condition.moved == 1


def test_a_route_whose_source_does_not_look_yet_is_starting() -> None:
    condition = Condition()
    condition.starting(0)
    condition.seen(1, RouteProgress(ready=False))
    assert condition.phase is Phase.STARTING
    condition.seen(2, RouteProgress())
    assert condition.phase is Phase.WAITING


def test_a_namespace_that_is_back_is_not_reported_as_away_though_nothing_moves() -> None:
    condition = Condition()
    condition.starting(0.0)
    condition.failed(1.0, "jfk (10.0.0.7:5671): refused", 5.0, "jfk")
    condition.seen(2.0, RouteProgress(ready=False))
    assert condition.away == ("jfk", "jfk (10.0.0.7:5671): refused")
    condition.seen(3.0, RouteProgress())
    assert condition.away == ("", "")


def test_i6_a_rate_that_explains_why_nothing_moves_makes_no_stall() -> None:
    condition = Condition(stalled_after_seconds=10)
    condition.starting(0)
    condition.backlog_seen(0, 50, 0.0)
    slow = RouteProgress(counts=Counts(1, 1), limit="2/m", limit_per_second=2 / 60)
    condition.seen(1, slow)
    assert condition.text(1) == "moving, at most 2/m"
    condition.seen(40, slow)
    assert condition.text(40) == "waiting, at most 2/m"
    assert condition.is_well()
    condition.seen(75, slow)
    assert condition.phase is Phase.STALLED
    closed = RouteProgress(counts=Counts(1, 1), limit="0/s until 06:00 UTC", limit_per_second=0.0)
    condition.seen(9000, closed)
    assert condition.text(9000) == "waiting, at most 0/s until 06:00 UTC"
    assert condition.is_well()
    condition.seen(9001, RouteProgress(counts=Counts(1, 1)))
    assert condition.phase is Phase.STALLED


def test_i7_a_canary_that_does_not_arrive_makes_a_stall_where_nothing_explains_it() -> None:
    condition = Condition(stalled_after_seconds=10)
    condition.starting(0)
    condition.backlog_seen(0, 0, 0.0)
    condition.canary = (5.0, 0.02, 0.0)
    condition.seen(1, RouteProgress(counts=Counts(1, 1)))
    assert condition.phase is Phase.MOVING
    condition.canary = (95.0, 0.02, 90.0)
    condition.seen(2, RouteProgress(counts=Counts(1, 1)))
    assert condition.phase is Phase.MOVING  # the route has only begun
    # The target has acknowledged something, and yet nothing arrives.
    condition.seen(20, RouteProgress(counts=Counts(2, 2)))
    assert condition.text(20) == "stalled: a canary that was sent 90 s ago has not arrived"
    assert not condition.is_well()
    assert condition.stuck_seconds(200) == 0  # to start it again would not help
    # A backlog moves, and the canary is in it.
    condition.backlog_seen(21, 5000, 95.0)
    condition.seen(21, RouteProgress(counts=Counts(900, 900)))
    assert condition.phase is Phase.MOVING
    # A rate explains it.
    condition.seen(30, RouteProgress(counts=Counts(900, 900), limit="1/m", limit_per_second=1 / 60))
    assert condition.phase is Phase.WAITING


def test_a_route_whose_backlog_is_no_longer_known_is_not_stalled_for_what_waited_once() -> None:
    condition = Condition(15.0)
    condition.starting(0.0)
    condition.backlog_seen(1.0, 5, 1.0)
    condition.seen(40.0, RouteProgress(ready=True))
    assert condition.phase is Phase.STALLED
    condition.backlog_unknown()
    condition.seen(41.0, RouteProgress(ready=True))
    assert (condition.phase, condition.waiting, condition.stuck_seconds(41.0)) == (Phase.WAITING, None, 0.0)
