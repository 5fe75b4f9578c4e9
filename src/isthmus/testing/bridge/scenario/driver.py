"""Scenarios: commands of the driver to a running lease."""

from __future__ import annotations

from isthmus.bridge.lease.crash_search import SET_ASIDE_REASON, Plan
from isthmus.bridge.report import RouteState
from isthmus.testing.bridge.bench import Bench
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.bridge.scenario.registry import scenario

SCRIPT = Ability.SCRIPT
MOVES = 6


@scenario()
def routes_come_and_go_while_others_run(bench: Bench) -> None:
    """A route is added, another removed: the removed one keeps nothing locked, the others keep moving in the same lease."""
    first, second, third = (bench.route(f"r{number}") for number in range(3))
    with bench.driver(first, second) as driver:
        for route in (first, second):
            bench.publish(route, 50)
        bench.wait_moved(first, second)
        driver.query.add(third)
        bench.publish(third, 50)
        driver.query.remove(second.name, "the test removes it")
        bench.publish(first, 50)
        bench.wait_moved(first, third)
        bench.wait(lambda: driver.report(second).state is RouteState.ENDED, "the removed route to end")
        assert driver.join.leases == 0
    for route in (first, second, third):
        bench.check(route)


@scenario(SCRIPT)
def a_removed_route_comes_back(bench: Bench) -> None:
    """A route that is removed while messages are in flight, and added again, loses and duplicates nothing."""
    route = bench.route()
    bench.target(route).faults.latency_seconds = 0.01
    bench.publish(route, 200)
    with bench.driver(route) as driver:
        bench.wait_accepted(route, 1)
        driver.query.remove(route.name, "the test removes it")
        driver.query.add(route)
        bench.wait_moved(route)
    bench.check(route)


@scenario()
def a_route_moves_from_slot_to_slot(bench: Bench) -> None:
    """Two readers; a route goes back and forth between them while messages flow, and keeps its order. The other one is not affected."""
    moving, staying = bench.route("moving"), bench.route("staying")
    with bench.driver(moving, staying, slots=2) as driver:
        for round_ in range(MOVES):
            for route in (moving, staying):
                bench.publish(route, 40)
            bench.wait_accepted(moving, round_ * 40 + 1)
            driver.query.move(moving.name, (round_ + 1) % 2)
        bench.wait_moved(moving, staying)
        bench.wait(lambda: driver.report(moving).settled >= MOVES * 40, "the driver to be told")
        assert driver.report(moving).settled == MOVES * 40, "counts go on over the readers"
        assert not driver.deaths
    for route in (moving, staying):
        bench.check(route)


@scenario()
def the_driver_stops_a_lease(bench: Bench) -> None:
    """STOP drains, and the driver gets a report that the lease ended in order."""
    route = bench.route()
    bench.publish(route, 200)
    with bench.driver(route) as driver:
        bench.wait_accepted(route, 20)
        driver.join.restarts = False
        driver.query.stop("the test stops it")
        driver.join.wait_ended(bench.end_seconds)
        assert driver.join.ends == [("", None)], driver.join.ends
        assert not driver.deaths
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)


@scenario()
def nothing_moves_without_the_claim(bench: Bench) -> None:
    """No message is delivered before the claim is confirmed; a route without a claim does not wait."""
    claimed, free = bench.route("claimed", claim="c"), bench.route("free")
    for route in (claimed, free):
        bench.publish(route, 30)
    with bench.driver(claimed, free) as driver:
        bench.wait_moved(free)
        assert not bench.pair.accepted(claimed)
        driver.claims["c"] = 60.0
        bench.wait_moved(claimed)
    for route in (claimed, free):
        bench.check(route)


@scenario(SCRIPT)
def the_fence_closes_while_messages_are_under_way(bench: Bench) -> None:
    """The claim expires: nothing more is sent, unsettled messages are released; it continues when the claim is renewed."""
    route = bench.route(claim="c")
    bench.mend(bench.target(route).faults, hangs=True)
    bench.publish(route, 30)
    with bench.driver(route) as driver:
        driver.claims["c"] = 3.6  # minus the margin of 3 s
        bench.wait(lambda: bench.source(route).locked > 0)
        driver.claims["c"] = 0.0
        bench.wait(lambda: bench.source(route).locked == 0, "everything to be given back")
        assert not bench.pair.accepted(route)
        bench.mend(bench.target(route).faults, hangs=False)
        driver.claims["c"] = 60.0
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def a_position_is_set_aside_as_planned(bench: Bench) -> None:
    """The message that killed workers is dead-lettered unread; a narrow window limits the number of messages in flight."""
    route = bench.route()
    bench.publish(route, 20)
    with bench.memory.system.lock:
        position = next(at for at, stored in bench.source(route)._items.items() if stored.key == f"{route.name}/5")
    with bench.driver() as driver:
        driver.plans[route.name] = Plan(window=1, span=10, set_aside=position, deaths=2)
        driver.query.add(route)
        bench.wait_moved(route)
        bench.wait(lambda: driver.report(route).set_aside == (position,), "the driver to be told")
    assert bench.pair.dead(route) == {f"{route.name}/5": SET_ASIDE_REASON}
    bench.check(route, dead=[5])


@scenario(SCRIPT)
def a_killed_sink_is_reported_with_what_was_outstanding(bench: Bench) -> None:
    """The driver gets a report of the crash, and of the messages that may have caused it."""
    route = bench.route()
    bench.mend(bench.target(route).faults, hangs=True)
    bench.publish(route, 10)
    with bench.driver(route) as driver:
        bench.wait(lambda: bench.source(route).locked > 0)
        driver.join.kill_sink()
        bench.wait(lambda: driver.deaths, "the driver to be told")
        assert driver.deaths[0][route.name].outstanding > 0
        bench.mend(bench.target(route).faults, hangs=False)
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def a_killed_reader_is_reported(bench: Bench) -> None:
    """The driver sees the connection end without ENDED."""
    route = bench.route(source_lock_seconds=0.2)
    bench.mend(bench.target(route).faults, hangs=True)
    bench.publish(route, 10)
    with bench.driver(route) as driver:
        bench.wait(lambda: bench.source(route).locked > 0)
        driver.join.kill_reader()
        bench.wait(lambda: driver.deaths, "the driver to be told")
        bench.mend(bench.target(route).faults, hangs=False)
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def reports_tell_what_was_moved(bench: Bench) -> None:
    """Counts are exact: moved, dead-lettered, settled; a paused route reports its reason."""
    route = bench.route(target_seconds=10.0)
    bench.target(route).faults.verdict = bench.refuses(route, 3)
    bench.publish(route, 20)
    with bench.driver(route) as driver:
        bench.wait_moved(route)
        bench.wait(lambda: driver.report(route).settled == 20, "the report")
        report = driver.report(route)
        assert (report.moved, report.dead_lettered, report.outstanding) == (19, 1, 0)
        bench.mend(bench.target(route).faults, busy=bench.BUSY)
        bench.publish(route, 5)
        bench.wait(lambda: driver.report(route).state is RouteState.PAUSED, "the pause to be reported")
        assert "server-busy" in driver.report(route).paused
        bench.mend(bench.target(route).faults, busy=None)
        bench.wait_moved(route)
    bench.check(route, dead=[3])
