"""Scenarios: an end that cannot be reached, says nothing, refuses everything, or whose server is killed; a clock that is wrong.

What it is: faults that can be caused from outside at any pair of systems. What it is not: steps (`loss`, `kill`).
"""

from __future__ import annotations

from dataclasses import replace

from isthmus.testing.bridge.bench import Bench
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.bridge.scenario.registry import scenario

HOUR_SECONDS = 3600


def _away_at_the_beginning(bench: Bench, side: str) -> None:
    route = bench.route()
    bench.pair.take_away(route, side)
    bench.publish(route, 30)
    with bench.join(route):
        bench.wait(lambda: bench.pair.attempts(route, side) >= 2, "attempts to connect")
        assert not bench.pair.accepted(route)
        bench.pair.take_away(route, side, False)
        bench.wait_moved(route)
    bench.check(route)


@scenario()
def the_source_is_away_at_the_beginning(bench: Bench) -> None:
    """It is connected once it can be reached."""
    _away_at_the_beginning(bench, "source")


@scenario()
def the_target_is_away_at_the_beginning(bench: Bench) -> None:
    """Nothing is delivered before it can be reached."""
    _away_at_the_beginning(bench, "target")


def _away_for_a_while(bench: Bench, side: str) -> None:
    route, other = bench.route("r", window=20, target_detects_duplicates=True), bench.route("other")
    bench.publish(route, 60)
    with bench.join(route, other):
        bench.wait_accepted(route, 10)
        bench.pair.take_away(route, side)
        bench.publish(other, 30)
        bench.wait_moved(other)
        bench.wait(lambda: bench.pair.attempts(route, side) >= 2, "attempts to connect")
        bench.pair.take_away(route, side, False)
        bench.publish(route, 30)
        bench.wait_moved(route)
    bench.check(route)
    bench.check(other)


@scenario()
def the_source_is_away_for_a_while(bench: Bench) -> None:
    """The route continues where it was; the other one is not affected."""
    _away_for_a_while(bench, "source")


@scenario()
def the_target_is_away_for_a_while(bench: Bench) -> None:
    """What had no outcome is sent again, in order; the other route is not affected."""
    _away_for_a_while(bench, "target")


@scenario()
def both_ends_are_away_for_a_while(bench: Bench) -> None:
    """The network of the process is gone."""
    route = bench.route(window=20, target_detects_duplicates=True)
    bench.publish(route, 60)
    with bench.join(route):
        bench.wait_accepted(route, 10)
        for side in ("source", "target"):
            bench.pair.take_away(route, side)
        bench.wait(lambda: bench.pair.attempts(route, "source") >= 1, "attempts to connect")
        for side in ("target", "source"):
            bench.pair.take_away(route, side, False)
        bench.wait_moved(route)
    bench.check(route)


@scenario()
def a_target_that_says_nothing_holds_back_the_source(bench: Bench) -> None:
    """No more than the window is delivered; when the target continues, all is there in order, once."""
    route = bench.route(window=20)
    bench.publish(route, 100)
    with bench.join(route):
        bench.wait_accepted(route, 5)
        bench.pair.hang(route, "target")
        bench.wait(lambda: _is_still(bench, lambda: bench.pair.delivered(route)), "the source to be held back")
        assert bench.pair.delivered(route) <= len(bench.pair.accepted(route)) + 20
        bench.pair.hang(route, "target", False)
        bench.wait_moved(route)
    bench.check(route)


@scenario()
def a_target_that_says_nothing_holds_up_only_its_own_route(bench: Bench) -> None:
    """One of four is silent for longer than `target_seconds`: the others move, and it recovers."""
    silent, *others = routes = [
        bench.route(f"r{number}", target_seconds=1.0, target_detects_duplicates=True) for number in range(4)
    ]
    for route in routes:
        bench.publish(route, 10)
    with bench.join(*routes):
        bench.wait_moved(*routes)
        bench.pair.hang(silent, "target")
        for _ in range(3):
            for route in routes:
                bench.publish(route, 10)
            bench.wait_moved(*others)
        bench.pair.hang(silent, "target", False)
        bench.wait_moved(silent)
    for route in routes:
        bench.check(route)


@scenario()
def a_source_that_says_nothing_goes_on(bench: Bench) -> None:
    """Nothing arrives for a while, and nothing is lost."""
    route = bench.route(window=20)
    bench.publish(route, 50)
    with bench.join(route):
        bench.wait_accepted(route, 5)
        bench.pair.hang(route, "source")
        bench.publish(route, 20)
        bench.wait(lambda: _is_still(bench, lambda: len(bench.pair.accepted(route))), "silence")
        bench.pair.hang(route, "source", False)
        bench.wait_moved(route)
    bench.check(route)


@scenario(Ability.LOCKS)
def locks_are_kept_while_the_target_says_nothing(bench: Bench) -> None:
    """For several times as long as a lock lasts: nothing is delivered twice."""
    route = bench.route(source_lock_seconds=bench.pair.lock_seconds, window=10)
    bench.publish(route, 5)
    with bench.join(route):
        bench.wait_moved(route)
        bench.pair.hang(route, "target")
        bench.publish(route, 10)
        bench.pause(3 * bench.pair.lock_seconds)
        bench.pair.hang(route, "target", False)
        bench.wait_moved(route)
    bench.check(route)
    assert bench.pair.delivered(route) == 15


@scenario(Ability.REFUSES)
def everything_is_refused_for_a_while(bench: Bench) -> None:
    """Nothing is set aside or reordered; when the target takes messages again all is in order."""
    route, other = bench.route("r", target_seconds=20.0), bench.route("other")
    bench.publish(route, 10)
    with bench.join(route, other):
        bench.wait_moved(route)
        bench.pair.refuse(route)
        bench.publish(route, 30)
        bench.publish(other, 30)
        bench.wait_moved(other)
        assert len(bench.pair.accepted(route)) < 40
        bench.pair.refuse(route, False)
        bench.wait_moved(route)
    bench.check(route)
    bench.check(other)


@scenario(Ability.REFUSES)
def everything_is_refused_and_the_lease_ends(bench: Bench) -> None:
    """The end of the lease releases what the target does not accept; the next lease moves it."""
    route = bench.route(target_seconds=1.0)
    bench.pair.refuse(route)
    bench.publish(route, 30)
    with bench.join(route) as join:
        bench.pause(0.5)
        join.stop()
    assert not bench.pair.accepted(route)
    bench.pair.refuse(route, False)
    # Time enough for a target on a busy machine: a message without an outcome in time is sent again.
    with bench.join(replace(route, target_seconds=60.0)):
        bench.wait_moved(route)
    bench.check(route)


@scenario(Ability.RESTARTS)
def the_server_of_the_source_is_killed(bench: Bench) -> None:
    """It restarts with the messages that it had."""
    _restarted(bench, "source")


@scenario(Ability.RESTARTS)
def the_server_of_the_target_is_killed(bench: Bench) -> None:
    """Acknowledged messages are stored, the others are sent again."""
    _restarted(bench, "target")


def _restarted(bench: Bench, side: str) -> None:
    route = bench.route(window=20, target_detects_duplicates=True, target_seconds=60.0)
    bench.publish(route, 200)
    with bench.join(route):
        bench.wait_accepted(route, 20)
        bench.pair.restart(side)
        bench.publish(route, 50)
        bench.wait_moved(route)
    bench.check(route)


@scenario(Ability.SKEWS)
def the_clock_of_the_source_is_an_hour_ahead(bench: Bench) -> None:
    """Messages with a TimeToLive of two minutes there do not expire on the way."""
    _skewed(bench, HOUR_SECONDS)


@scenario(Ability.SKEWS)
def the_clock_of_the_source_is_an_hour_behind(bench: Bench) -> None:
    """The same, the other way round."""
    _skewed(bench, -HOUR_SECONDS)


def _skewed(bench: Bench, seconds: int) -> None:
    route = bench.route(source_skew_seconds=seconds, source_ttl_ms=120_000)
    bench.publish(route, 20)
    with bench.join(route):
        bench.wait_moved(route)
        bench.publish(route, 20)
        bench.wait_moved(route)
    bench.check(route)


@scenario()
def the_driver_is_lost_and_another_goes_on(bench: Bench) -> None:
    """The control connection is lost while messages flow; the next driver's lease loses and duplicates nothing."""
    route = bench.route(window=20, target_detects_duplicates=True)
    bench.publish(route, 100)
    with bench.driver(route) as driver:
        bench.wait_accepted(route, 10)
        driver.join.restarts = False
        driver.server.close()
        driver.join.wait_ended(bench.end_seconds)
    with bench.driver(route):
        bench.publish(route, 20)
        bench.wait_moved(route)
    bench.check(route)


def _is_still(bench: Bench, count: object) -> bool:
    assert callable(count)
    before = count()
    bench.pause(0.3)
    return bool(before == count())
