"""Scenarios: how a lease ends, and how the next one continues."""

from __future__ import annotations

from isthmus.testing.bridge.bench import Bench
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.bridge.scenario.registry import scenario

SCRIPT = Ability.SCRIPT


@scenario()
def stop_drains(bench: Bench) -> None:
    """A request to stop: messages in flight are settled or released, and nothing is locked afterwards."""
    route = bench.route()
    bench.publish(route, 300)
    with bench.join(route) as join:
        bench.wait_accepted(route, 50)
        join.stop()
        assert join.ends == [("", None)], join.ends
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def stop_gives_back_what_a_hanging_target_has(bench: Bench) -> None:
    """The end waits only a limited time for a target that accepts nothing, then releases."""
    route = bench.route(target_seconds=0.5)
    bench.mend(bench.target(route).faults, hangs=True)
    bench.publish(route, 30)
    with bench.join(route) as join:
        bench.wait(lambda: bench.source(route).locked > 0)
        join.stop()
    assert bench.source(route).locked == 0
    bench.mend(bench.target(route).faults, hangs=False)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def stop_while_the_target_is_busy(bench: Bench) -> None:
    """A paused route does not delay the end."""
    route, other = bench.route("r", target_seconds=20.0), bench.route("other")
    bench.target(route).faults.verdict = bench.refuses(route, *range(100), refusal=bench.BUSY)
    bench.publish(route, 30)
    bench.publish(other, 30)
    with bench.join(route, other) as join:
        bench.wait(lambda: bench.refusals > 0)
        bench.wait_moved(other)
        join.stop()
        assert join.ends[-1][1] is None
    assert bench.source(route).locked == 0
    bench.mend(bench.target(route).faults, verdict=None)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def leases_follow_each_other(bench: Bench) -> None:
    """Leases end by time while messages flow: exactly once, in order."""
    route = bench.route()
    bench.target(route).faults.latency_seconds = 0.005
    with bench.join(route, lease_seconds=0.15) as join:
        while join.leases < 4:
            bench.publish(route, 10)
            bench.wait_accepted(route, len(bench.published[route.name]) - 5)
        bench.wait_moved(route)
    assert all(end == ("", None) for end in join.ends), join.ends
    bench.check(route)


@scenario()
def only_what_is_present_is_moved(bench: Bench) -> None:
    """`only_present`: the lease ends by itself when the messages present at the source are settled; later ones stay."""
    route = bench.route(only_present=True)
    bench.publish(route, 100)
    with bench.join(route, restarts=False) as join:
        join.wait_ended(bench.end_seconds)
        assert join.ends == [("", None)], join.ends
    bench.check(route)


@scenario()
def only_present_of_an_empty_source_ends(bench: Bench) -> None:
    """The source is empty: the lease ends when the source has reported so."""
    route = bench.route(only_present=True)
    with bench.join(route, restarts=False) as join:
        join.wait_ended(bench.end_seconds)
    bench.check(route)


@scenario(SCRIPT)
def locks_are_renewed_while_the_target_is_slow(bench: Bench) -> None:
    """Outcomes take longer than a lock lasts without renewal: nothing is delivered twice."""
    route = bench.route(source_lock_seconds=0.2)
    bench.target(route).faults.latency_seconds = 0.7
    bench.publish(route, 10)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)
    assert bench.source(route).delivered == 10


@scenario(SCRIPT, Ability.DEDUPLICATES)
def locks_that_end_all_the_same(bench: Bench) -> None:
    """The source refuses renewal: messages are delivered again while the sink has them; detection suppresses the second copy."""
    route = bench.route(source_lock_seconds=0.15, target_detects_duplicates=True)
    bench.source(route).faults.refuses_renewal = True
    bench.target(route).faults.latency_seconds = 0.3
    bench.publish(route, 20)
    with bench.join(route):
        bench.wait_accepted(route, 20)
        bench.mend(bench.target(route).faults, latency_seconds=0.0)
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def the_clock_of_the_source_counts(bench: Bench) -> None:
    """A source whose wall clock is an hour ahead: copies are made by its clock."""
    route = bench.route()
    system = bench.memory.system
    system.wall_skew_ms = 3_600_000
    bench.publish(route, 10)
    with bench.join(route):
        bench.wait_moved(route)
        system.wall_skew_ms = -3_600_000
        bench.publish(route, 10)
        bench.wait_moved(route)
    bench.check(route)
    first, last = bench.target(route).copied_at_ms[0], bench.target(route).copied_at_ms[-1]
    assert abs(first - last - 7_200_000) < 60_000, (first, last)
