"""Scenarios: the contents of messages, duplicates, and custom steps."""

from __future__ import annotations

from isthmus.bridge.delivery_event import Disposition
from isthmus.testing.bridge.bench import Bench
from isthmus.testing.bridge.join import Keep
from isthmus.testing.bridge.message import UNREADABLE, key_of, number_of
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.bridge.scenario.registry import scenario

SCRIPT = Ability.SCRIPT


@scenario()
def large_messages(bench: Bench) -> None:
    """Messages of a megabyte between small ones."""
    route = bench.route(window_bytes=3 << 20)
    for _ in range(4):
        bench.publish(route, 5)
        bench.publish(route, 2, b"x" * 1_000_000)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def one_message_larger_than_all_that_may_be_outstanding(bench: Bench) -> None:
    """One message alone may be larger than the route's bytes."""
    route = bench.route(window_bytes=100_000)
    bench.publish(route, 3)
    bench.publish(route, 1, b"x" * 1_000_000)
    bench.publish(route, 3)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)


@scenario(Ability.DEAD_LETTERS, Ability.LIMITS_SIZE)
def a_message_that_is_too_large_for_the_target(bench: Bench) -> None:
    """It is set aside with a reason that says so, without being sent."""
    route = bench.route(target_limits_size=True, source_takes_large=True)
    bench.publish(route, 5)
    bench.publish(route, 1, b"x" * bench.pair.too_large)
    bench.publish(route, 5)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route, dead=[5])
    assert bench.pair.dead(route) == {f"{route.name}/5": "MessageTooLarge"}


@scenario()
def empty_messages(bench: Bench) -> None:
    """Bodies of no bytes."""
    route = bench.route()
    bench.publish(route, 20)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def a_message_of_no_bytes(bench: Bench) -> None:
    """An encoded message of length 0 passes, or is set aside; it does not stop other messages."""
    route = bench.route()
    bench.publish(route, 5)
    bench.memory.system.put(f"{route.name}.source", b"", "")
    bench.publish(route, 5)
    with bench.join(route):
        bench.wait_moved(route)
    bench.target(route).accepted.remove("")
    bench.check(route)


@scenario(SCRIPT)
def an_unreadable_message(bench: Bench) -> None:
    """Bytes that are no AMQP message are set aside, at any position; also alone."""
    route = bench.route()
    bench.memory.system.put(f"{route.name}.source", UNREADABLE, f"{route.name}/0")
    bench.published[route.name].append(f"{route.name}/0")
    with bench.join(route):
        bench.wait_moved(route)
        bench.publish(route, 9)
        bench.memory.system.put(f"{route.name}.source", UNREADABLE, f"{route.name}/10")
        bench.published[route.name].append(f"{route.name}/10")
        bench.publish(route, 9)
        bench.wait_moved(route)
    bench.check(route, dead=[0, 10])
    assert set(bench.pair.dead(route).values()) == {"Unreadable"}


@scenario(Ability.DEDUPLICATES)
def duplicates_at_the_source_are_suppressed_by_key(bench: Bench) -> None:
    """The publisher sent some messages twice."""
    route = bench.route(target_detects_duplicates=True)
    bench.publish(route, 20)
    bench.pair.publish(route, 5, 15)
    bench.publish(route, 5)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT)
def a_message_is_delivered_twice_to_the_same_reader(bench: Bench) -> None:
    """The same position is delivered again while it is outstanding: it is not sent twice."""
    route = bench.route()
    bench.source(route).faults.duplicate_deliveries = 10
    bench.publish(route, 50)
    with bench.join(route):
        bench.wait_moved(route)
    bench.check(route)


@scenario(SCRIPT, Ability.DEDUPLICATES)
def a_step_removes_a_row(bench: Bench) -> None:
    """The removed message is released, not lost and not settled; once the step lets it pass, it arrives."""
    route = bench.route(steps=("filter",), target_detects_duplicates=True)
    removes = {13}

    def step(payload: bytes) -> Keep:
        return Keep(number_of(key_of(payload)) not in removes)

    bench.publish(route, 30)
    with bench.join(route, step=step):
        bench.wait(
            lambda: bench.source(route).locked == 0 and bench.source(route).delivered >= 30, "it to be given back"
        )
        assert f"{route.name}/13" in bench.source(route).left
        removes.clear()
        bench.wait_moved(route)
    bench.check(route, ordered=False)


@scenario(SCRIPT)
def a_step_marks_rows(bench: Bench) -> None:
    """Rows with a disposition of their own are not sent, and get that disposition at the source."""
    route = bench.route(steps=("mark",))
    marks = {4: Disposition("dead-letter", "Invalid", "no schema"), 5: Disposition("complete"), 6: Disposition("defer")}
    bench.publish(route, 20)
    with bench.join(route, step=lambda payload: Keep(disposition=marks.get(number_of(key_of(payload))))):
        bench.wait_moved(route)
    source = bench.source(route)
    assert [dead[0::2] for dead in source.dead_letters] == [(f"{route.name}/4", "Invalid")]
    assert f"{route.name}/5" in source.settled
    assert source.deferred == [f"{route.name}/6"]
    expected = [f"{route.name}/{number}" for number in range(20) if number not in marks]
    assert sorted(bench.pair.accepted(route)) == sorted(expected)
