"""Scenarios: reader or sink is killed at each step; Spark begins a new lease."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from isthmus.testing.bridge.bench import Bench
from isthmus.testing.bridge.fault import Killed, Step
from isthmus.testing.bridge.join import Join
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.bridge.scenario.registry import scenario

SCRIPT, STEPS = Ability.SCRIPT, Ability.STEPS
LOCK_SECONDS = 0.25


def _has_ended(join: Join, count: int) -> bool:
    return join.leases >= count


def _killed(bench: Bench, side: str, step: Step, *, detects: bool = False) -> None:
    route = bench.route(source_lock_seconds=LOCK_SECONDS, target_detects_duplicates=detects, window=20)
    faults = bench.pair.faults(route, "source" if "deliver" in step.value or "settle" in step.value else "target")
    joins: list[Join] = []

    def kill() -> NoReturn:
        (joins[0].kill_reader if side == "reader" else joins[0].kill_sink)()
        raise Killed

    faults.run(step, kill, after=15)
    with bench.join(route) as join:
        joins.append(join)
        bench.publish(route, 60)
        bench.wait(lambda: join.leases >= 1, "the lease to fail")
        bench.wait_moved(route)
    assert not faults.is_planned
    bench.check(route, may_double=not detects)


@scenario(STEPS)
def sink_killed_before_a_store(bench: Bench) -> None:
    """Its messages are delivered again."""
    _killed(bench, "sink", Step.BEFORE_STORE)


@scenario(STEPS)
def sink_killed_after_a_store(bench: Bench) -> None:
    """Its messages are delivered again; duplicate detection suppresses those that were stored."""
    _killed(bench, "sink", Step.AFTER_STORE, detects=True)


@scenario(STEPS)
def reader_killed_before_a_delivery(bench: Bench) -> None:
    """Its locks remain after it; the next reader waits for them, and keeps the order."""
    _killed(bench, "reader", Step.BEFORE_DELIVERY)


@scenario(STEPS)
def reader_killed_after_a_delivery(bench: Bench) -> None:
    """Delivered messages are delivered again when their locks have ended."""
    _killed(bench, "reader", Step.AFTER_DELIVERY, detects=True)


@scenario(STEPS)
def reader_killed_before_a_settlement(bench: Bench) -> None:
    """The target has stored it, and the source has not settled it."""
    _killed(bench, "reader", Step.BEFORE_SETTLE, detects=True)


@scenario(STEPS)
def reader_killed_after_a_settlement(bench: Bench) -> None:
    """Settled messages are not delivered again."""
    _killed(bench, "reader", Step.AFTER_SETTLE, detects=True)


@scenario(STEPS)
def both_are_killed_again_and_again(bench: Bench) -> None:
    """The whole worker dies three times while messages flow."""
    route = bench.route(source_lock_seconds=LOCK_SECONDS, target_detects_duplicates=True)
    with bench.join(route) as join:
        for count in range(1, 4):
            bench.publish(route, 40)
            bench.wait_accepted(route, 40 * count - 20)
            join.kill()
            bench.wait(partial(_has_ended, join, count), "the lease to fail")
        bench.publish(route, 40)
        bench.wait_moved(route)
    bench.check(route)


@scenario(STEPS)
def an_idle_sink_is_killed(bench: Bench) -> None:
    """Nothing is in flight; the next lease moves what comes."""
    route = bench.route()
    bench.publish(route, 10)
    with bench.join(route) as join:
        bench.wait_moved(route)
        join.kill_sink()
        bench.wait(lambda: join.leases >= 1, "the lease to fail")
        bench.publish(route, 10)
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def a_killed_sink_frees_its_messages_at_once(bench: Bench) -> None:
    """The reader still runs: it releases unsettled messages, so that no one has to wait for locks to end."""
    route = bench.route(source_lock_seconds=3600.0)
    bench.publish(route, 30)
    bench.mend(bench.target(route).faults, hangs=True)
    with bench.join(route) as join:
        bench.wait(lambda: bench.source(route).locked > 0)
        join.kill_sink()
        bench.wait(lambda: join.leases >= 1, "the lease to fail")
        bench.mend(bench.target(route).faults, hangs=False)
        bench.wait_moved(route)
    bench.check(route)
