"""Scenarios: order and back-pressure while nothing fails."""

from __future__ import annotations

import random

from isthmus.testing.bridge.bench import Bench
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.bridge.scenario.registry import scenario

SCRIPT = Ability.SCRIPT


@scenario()
def order_is_kept(bench: Bench) -> None:
    """Waiting messages, and those published later, arrive in order."""
    route = bench.route()
    bench.publish(route, 300)
    with bench.join(route):
        bench.wait_accepted(route, 200)
        bench.publish(route, 200)
        bench.wait_moved(route)
    bench.check(route)


@scenario()
def an_idle_route_moves_its_first_message(bench: Bench) -> None:
    """Nothing waits at the beginning; each of a few single messages arrives without another after it."""
    route = bench.route()
    with bench.join(route):
        for count in range(1, 6):
            bench.publish(route, 1)
            bench.wait_accepted(route, count)
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def the_window_bounds_what_is_outstanding(bench: Bench) -> None:
    """A target that gives no outcome gets no more than in_flight, and the source delivers no more than the window."""
    route = bench.route(window=40, in_flight=10)
    bench.publish(route, 200)
    bench.target(route).faults.latency_seconds = 0.005
    with bench.join(route):
        peak = bench.wait_settled(route)
    assert 10 <= peak <= 40, peak
    bench.check(route)


@scenario(SCRIPT)
def the_bytes_bound_what_is_outstanding(bench: Bench) -> None:
    """Large messages: the route's bytes bound what is delivered and not settled, though the window would allow more."""
    route = bench.route(window_bytes=300_000)
    bench.publish(route, 60, b"x" * 20_000)
    bench.target(route).faults.latency_seconds = 0.005
    with bench.join(route):
        peak = bench.wait_settled(route)
    assert 5 <= peak <= 32, peak  # twice the bound, plus or minus one
    bench.check(route)


@scenario(SCRIPT)
def outcomes_may_come_out_of_order(bench: Bench) -> None:
    """Acknowledged messages are settled, in whatever order; no others are."""
    route = bench.route()
    faults = bench.target(route).faults
    faults.shuffle = random.Random(7).shuffle
    faults.latency_seconds = 0.002
    bench.publish(route, 300)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def envelopes_hold_many_messages(bench: Bench) -> None:
    """Messages that share deliveries: order is kept; of a refused envelope only the refused message is set aside."""
    route = bench.route(envelope_messages=10)
    bench.target(route).faults.verdict = bench.refuses(route, 25)
    bench.publish(route, 100)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route, dead=[25], ordered=False)


@scenario(SCRIPT)
def a_target_that_grants_one_credit_gets_everything(bench: Bench) -> None:
    """Credit of 1 at the target: slow, in order, without a stall."""
    route = bench.route(target_credit=1)
    bench.publish(route, 50)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def slow_settlement_at_the_source(bench: Bench) -> None:
    """Settlements take effect late: nothing is delivered twice, and the end of the lease waits for them."""
    route = bench.route(window=20)
    bench.source(route).faults.settle_seconds = 0.02
    bench.publish(route, 100)
    with bench.join(route):
        bench.wait_accepted(route, 100)
    bench.check(route)


@scenario(SCRIPT)
def many_routes_at_once(bench: Bench) -> None:
    """200 routes in one lease: each is complete and in order."""
    routes = [bench.route(f"r{number}") for number in range(200)]
    with bench.join(*routes):
        for route in routes:
            bench.publish(route, 5)
        bench.wait_moved(*routes)
    for route in routes:
        bench.check(route)
