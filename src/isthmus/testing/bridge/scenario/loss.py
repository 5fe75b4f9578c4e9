"""Scenarios: connections that are lost at each step."""

from __future__ import annotations

from typing import Any

from isthmus.testing.bridge.bench import Bench
from isthmus.testing.bridge.fault import Step
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.bridge.scenario.registry import scenario

SCRIPT, STEPS = Ability.SCRIPT, Ability.STEPS


def _source_lost(bench: Bench, step: Step) -> None:
    route = bench.route(window=10)  # so that credit is granted, and settled, in small parts
    faults = bench.pair.faults(route, "source")
    faults.lose(step, after=5)
    faults.lose(step, after=11)
    faults.lose(step)
    bench.publish(route, 60)
    with bench.join(route):
        bench.wait_moved(route)
    assert not faults.is_planned
    bench.check(route, may_double=False)


@scenario(STEPS)
def source_lost_before_a_delivery(bench: Bench) -> None:
    """The connection ends while messages are in transit."""
    _source_lost(bench, Step.BEFORE_DELIVERY)


@scenario(STEPS)
def source_lost_after_a_delivery(bench: Bench) -> None:
    """Delivered messages are settled over the next connection."""
    _source_lost(bench, Step.AFTER_DELIVERY)


@scenario(STEPS)
def source_lost_before_a_settlement(bench: Bench) -> None:
    """The settlement is done over the next connection."""
    _source_lost(bench, Step.BEFORE_SETTLE)


@scenario(STEPS)
def source_lost_after_a_settlement(bench: Bench) -> None:
    """A settlement that took effect, and whose answer was lost, is no error."""
    _source_lost(bench, Step.AFTER_SETTLE)


@scenario(SCRIPT)
def source_refuses_connections(bench: Bench) -> None:
    """At the beginning, and in the middle."""
    route = bench.route()
    faults = bench.source(route).faults
    faults.refuse_opens = 2
    bench.publish(route, 40)
    with bench.join(route):
        bench.wait_moved(route)
        with bench.memory.system.lock:
            faults.refuse_opens = 2
            faults.lose(Step.AFTER_DELIVERY, after=3)
        bench.publish(route, 20)
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def source_vanishes_and_returns(bench: Bench) -> None:
    """The entity no longer exists: the route retries, the others move."""
    route, other = bench.route("r"), bench.route("other")
    bench.publish(route, 20)
    with bench.join(route, other):
        bench.wait_accepted(route, 1)
        bench.mend(bench.source(route).faults, is_gone=True)
        bench.publish(other, 50)
        bench.wait_moved(other)
        bench.mend(bench.source(route).faults, is_gone=False)
        bench.memory.system.advance(61.0)  # delivered messages are locked until then
        bench.publish(route, 20)
        bench.wait_moved(route)
    bench.check(route, may_double=True)
    bench.check(other)


@scenario(SCRIPT)
def source_lost_while_the_target_is_slow(bench: Bench) -> None:
    """Messages at the sink are settled after the source has returned; none is sent twice."""
    route = bench.route()
    bench.target(route).faults.latency_seconds = 0.15
    bench.source(route).faults.lose(Step.AFTER_DELIVERY, after=9)
    bench.publish(route, 30)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)


def _target_lost(bench: Bench, step: Step, *, may_double: bool, **settings: Any) -> None:
    route = bench.route(target_credit=10, in_flight=10, **settings)
    faults = bench.pair.faults(route, "target")
    faults.lose(step, after=5)
    faults.lose(step, after=7)
    faults.lose(step)
    bench.publish(route, 100)
    with bench.join(route):
        bench.wait_moved(route)
    assert not faults.is_planned
    # With a real connection, outcomes of messages stored before are lost too.
    bench.check(route, may_double=may_double or SCRIPT not in bench.pair.abilities)


@scenario(STEPS)
def target_lost_before_it_stored(bench: Bench) -> None:
    """Nothing is duplicated: messages without outcome were not stored."""
    _target_lost(bench, Step.BEFORE_STORE, may_double=False)


@scenario(STEPS)
def target_lost_after_it_stored(bench: Bench) -> None:
    """The outcomes of the last messages are unknown: they are sent again, in order."""
    _target_lost(bench, Step.AFTER_STORE, may_double=True)


@scenario(STEPS)
def target_lost_after_it_stored_with_detection(bench: Bench) -> None:
    """The target's duplicate detection makes it exactly once."""
    _target_lost(bench, Step.AFTER_STORE, may_double=False, target_detects_duplicates=True)


@scenario(STEPS)
def target_lost_after_an_outcome(bench: Bench) -> None:
    """Messages with an outcome are not sent again."""
    _target_lost(bench, Step.AFTER_OUTCOME, may_double=True)


@scenario(STEPS)
def target_lost_with_envelopes(bench: Bench) -> None:
    """The same where many messages share a delivery."""
    _target_lost(bench, Step.BEFORE_STORE, may_double=False, envelope_messages=4)


@scenario(STEPS)
def both_ends_are_lost_at_once(bench: Bench) -> None:
    """Source and target lose their connections again and again."""
    route = bench.route(target_detects_duplicates=True, window=10)
    source, target = bench.pair.faults(route, "source"), bench.pair.faults(route, "target")
    source.lose(Step.AFTER_DELIVERY, after=7, times=3)
    source.lose(Step.BEFORE_SETTLE, after=9, times=3)
    target.lose(Step.AFTER_STORE, after=11, times=3)
    bench.publish(route, 100)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)
