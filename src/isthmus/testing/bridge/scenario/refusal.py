"""Scenarios: a target that refuses one message, all, or hangs."""

from __future__ import annotations

from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.testing.bridge.bench import Bench
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.bridge.scenario.registry import scenario

SCRIPT = Ability.SCRIPT
BUSY = Refusal(RefusalKind.BLOCKED, "server-busy", "come back later")
DISABLED = Refusal(RefusalKind.BLOCKED, "entity-disabled", "sending is disabled")
UNCLEAR = Refusal(RefusalKind.UNCLEAR, "x:unknown", "no")
MISSING = Refusal(RefusalKind.FATAL, "not-found", "there is no such entity")


@scenario(SCRIPT)
def one_is_refused_for_itself(bench: Bench) -> None:
    """The refusal names the message as the cause: it is set aside at once, the others continue in order."""
    route = bench.route()
    bench.target(route).faults.verdict = bench.refuses(route, 7)
    bench.publish(route, 50)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route, dead=[7])


@scenario(SCRIPT)
def the_first_and_the_last_are_refused(bench: Bench) -> None:
    """Also where no message is before or after the refused one."""
    route = bench.route()
    bench.target(route).faults.verdict = bench.refuses(route, 0, 9)
    bench.publish(route, 10)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route, dead=[0, 9])


@scenario(SCRIPT)
def one_is_refused_without_a_reason(bench: Bench) -> None:
    """The refusal names no cause: the message is set aside when others are accepted meanwhile."""
    route = bench.route(in_flight=1)
    bench.target(route).faults.verdict = bench.refuses(route, 3, refusal=UNCLEAR)
    bench.publish(route, 12)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route, dead=[3], ordered=False)


@scenario(SCRIPT)
def a_lone_message_that_is_refused_waits_for_another(bench: Bench) -> None:
    """Alone, it is not set aside, because the cause is unknown. Once another message passes, it is."""
    route = bench.route()
    bench.target(route).faults.verdict = bench.refuses(route, 0, refusal=UNCLEAR)
    bench.publish(route, 1)
    with bench.join(route):
        bench.wait(lambda: bench.refusals >= 3)
        assert not bench.pair.dead(route)
        bench.publish(route, 1)
        bench.wait_moved(route)
    bench.check(route, dead=[0])


@scenario(SCRIPT)
def a_refused_message_blocks_where_that_is_wished(bench: Bench) -> None:
    """`block_refused`: nothing is reordered or set aside; when the message is accepted, all is in order."""
    route = bench.route(block_refused=True, in_flight=1, target_seconds=10.0)
    bench.target(route).faults.verdict = bench.refuses(route, 5, refusal=Refusal(RefusalKind.MESSAGE, "bad", "no"))
    bench.publish(route, 30)
    with bench.join(route):
        bench.wait(lambda: bench.refusals >= 2)
        assert len(bench.pair.accepted(route)) == 5
        bench.mend(bench.target(route).faults, verdict=None)
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def a_busy_target_pauses_and_resumes(bench: Bench) -> None:
    """While it is busy the source delivers no more than its window, nothing is set aside; afterwards all is in order."""
    route = bench.route(window=20, target_seconds=10.0)
    bench.target(route).faults.verdict = bench.refuses(route, *range(200), refusal=BUSY)
    bench.publish(route, 100)
    with bench.join(route):
        bench.wait(lambda: bench.refusals >= 23)
        assert bench.source(route).delivered <= 20
        bench.mend(bench.target(route).faults, verdict=None)
        bench.wait_moved(route)
    bench.check(route)
    assert bench.source(route).delivered == 100


@scenario(SCRIPT)
def all_is_refused_for_longer_than_the_target_may(bench: Bench) -> None:
    """After `target_seconds` everything is released, and the route begins again until the target accepts it."""
    route = bench.route(target_seconds=0.2)
    bench.mend(bench.target(route).faults, busy=DISABLED)
    bench.publish(route, 30)
    with bench.join(route):
        bench.wait(lambda: bench.source(route).delivered > 0)
        bench.wait(lambda: bench.source(route).locked == 0, "everything to be given back")
        bench.mend(bench.target(route).faults, busy=None)
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def a_target_that_does_not_exist_holds_up_nobody(bench: Bench) -> None:
    """No such entity: the route retries without locked messages; the others move; it recovers when the entity exists."""
    route, *others = [bench.route(f"r{number}") for number in range(4)]
    bench.mend(bench.target(route).faults, is_gone=True)
    for each in (route, *others):
        bench.publish(each, 50)
    with bench.join(route, *others):
        bench.wait_moved(*others)
        assert bench.source(route).delivered == 0
        bench.mend(bench.target(route).faults, is_gone=False)
        bench.wait_moved(route)
    for each in (route, *others):
        bench.check(each)


@scenario(SCRIPT)
def a_target_vanishes_while_messages_are_under_way(bench: Bench) -> None:
    """A fatal end of the connection: everything is released; nothing is lost when the entity returns."""
    route = bench.route()
    bench.target(route).faults.latency_seconds = 0.01
    bench.publish(route, 100)
    with bench.join(route):
        bench.wait_accepted(route, 1)
        bench.mend(bench.target(route).faults, is_gone=True)
        bench.wait(lambda: bench.source(route).locked == 0, "everything to be given back")
        bench.mend(bench.target(route).faults, is_gone=False)
        bench.publish(route, 20)
        bench.wait_moved(route)
    bench.check(route, may_double=True)


@scenario(SCRIPT)
def a_fatal_refusal_gives_everything_back(bench: Bench) -> None:
    """An outcome that says that waiting does not help ends the connection, not the message."""
    route = bench.route()
    bench.mend(bench.target(route).faults, busy=MISSING)
    bench.publish(route, 20)
    with bench.join(route):
        bench.wait(lambda: bench.source(route).delivered > 0)
        bench.wait(lambda: bench.source(route).locked == 0, "everything to be given back")
        bench.mend(bench.target(route).faults, busy=None)
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def a_hanging_target_pauses_only_its_own_route(bench: Bench) -> None:
    """One of ten gives no outcome: nine keep moving; after `target_seconds` its messages are released."""
    routes = [bench.route(f"r{number}", target_seconds=0.3) for number in range(10)]
    hanging, *others = routes
    bench.mend(bench.target(hanging).faults, hangs=True)
    for route in routes:
        bench.publish(route, 20)
    with bench.join(*routes):
        for _ in range(5):
            for route in others:
                bench.publish(route, 20)
            bench.wait_moved(*others)
        assert bench.pair.accepted(hanging) == []
        bench.wait(lambda: bench.source(hanging).delivered > 0)
        bench.wait(lambda: bench.source(hanging).locked == 0, "the hanging route to give back")
        bench.mend(bench.target(hanging).faults, hangs=False)
        bench.wait_moved(hanging)
    for route in routes:
        bench.check(route)


@scenario(SCRIPT)
def a_target_that_refuses_connections(bench: Bench) -> None:
    """Before it is open no message is locked; then everything moves."""
    route = bench.route()
    bench.target(route).faults.refuse_opens = 3
    bench.publish(route, 20)
    with bench.join(route):
        bench.wait(lambda: bench.target(route).faults.refuse_opens == 0)
        bench.wait_moved(route)
    bench.check(route)
