"""The memory system of the testing kit fulfils the ports' contracts; the clock is the system's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from isthmus.bridge.delivery_event import Disposition, Granted, Lost, Opened, Outcome, Send
from isthmus.bridge.host.guarded_pools import GuardedPools
from isthmus.bridge.port import Arrived, Blocked, Drained, Exhausted, SourceLost, SourceOpened
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.bridge.registry import connector
from isthmus.errors import ConfigError
from isthmus.testing.bridge import Killed, MemoryConnector, MemorySource, MemoryTarget, Step, System, key_of, message
from isthmus.testing.bridge.join import Join, Side

BUSY = Refusal(RefusalKind.BLOCKED, "server-busy", "later")


def source_of(system: System, name: str = "a", **settings: bool) -> MemorySource:
    pool = MemoryConnector(system).sources()
    made = pool.source(1, {"entity": name}, **settings)
    assert isinstance(made, MemorySource)
    return made


def target_of(system: System, name: str = "b") -> MemoryTarget:
    made = MemoryConnector(system).targets().target(1, {"entity": name})
    assert isinstance(made, MemoryTarget)
    return made


def positions(events: Sequence[object]) -> list[int]:
    return [position for event in events if isinstance(event, Arrived) for position in event.positions]


def opened(made: MemorySource, credit: int) -> list[int]:
    made.open()
    made.grant(0)
    reported = list(made.poll(time.monotonic()))
    assert isinstance(reported[0], SourceOpened)
    made.grant(credit)
    return positions(made.poll(time.monotonic()))


@pytest.fixture
def system() -> Iterator[System]:
    made = System()
    made.queue("a", lock_seconds=5.0)
    made.queue("b")
    made.log("log", partitions=2)
    yield made
    made.close()


def test_a_key_is_read_from_its_message_i1() -> None:
    assert key_of(message("a/1", b"x" * 300)) == "a/1"
    assert (key_of(b""), key_of(b"\xff"), key_of(b"\0Ss\xc0")) == ("", "", "")


def test_credit_bounds_what_comes_and_a_drain_ends_it_i1(system: System) -> None:
    system.publish("a", 0, 10)
    made = source_of(system)
    assert opened(made, 4) == [1, 2, 3, 4]
    assert list(made.poll(time.monotonic())) == []
    made.drain()
    assert list(made.poll(time.monotonic())) == [Drained()]


def test_a_lock_that_ended_settles_nothing_and_the_message_comes_again_in_its_place(system: System) -> None:
    system.publish("a", 0, 3)
    first, second = source_of(system), source_of(system)
    assert opened(first, 2) == [1, 2]
    system.advance(6.0)
    assert opened(second, 10) == [1, 2, 3]
    first.settle(1, 2)
    first.poll(time.monotonic())
    assert system.entity("a").left == ["a/0", "a/1", "a/2"]
    second.settle(1, 3)
    second.poll(time.monotonic())
    assert system.entity("a").is_empty


def test_locks_are_renewed_while_they_are_needed(system: System) -> None:
    system.publish("a", 0, 1)
    made = source_of(system)
    assert opened(made, 1) == [1]
    for _ in range(4):
        system.advance(3.0)
        made.poll(made.deadline(time.monotonic()) + 3.0)
    assert (system.entity("a").renewals, system.entity("a").locked) == (4, 1)


def test_an_ordered_source_waits_for_what_another_has_locked(system: System) -> None:
    system.put("a", message("a/0"), "a/0")
    system.put("a", message("a/1"), "a/1")
    first, second = source_of(system), source_of(system)
    assert opened(first, 1) == [1]
    second.open()
    second.poll(time.monotonic())
    second.grant(5)
    assert list(second.poll(time.monotonic())) == [Blocked(1)]
    first.settle(1, 1)
    first.poll(time.monotonic())
    assert list(second.poll(time.monotonic())) == [Arrived([2], [message("a/1")]), Blocked(0)]


def test_what_was_asked_while_the_connection_was_away_is_done_at_the_next_i2(system: System) -> None:
    system.publish("a", 0, 3)
    made = source_of(system)
    system.entity("a").faults.lose(Step.AFTER_DELIVERY, after=1)
    made.open()
    made.poll(time.monotonic())
    made.grant(3)
    events = list(made.poll(time.monotonic()))
    assert (positions(events), events[-1]) == ([1, 2], SourceLost("the connection was lost"))
    made.settle(1, 2)
    made.release(2, 2)
    assert system.entity("a").settled == []
    made.open()
    made.grant(0)
    made.poll(time.monotonic())
    assert system.entity("a").settled == ["a/0", "a/1"]


def test_a_log_continues_behind_the_offset_and_gives_again_what_was_settled_beyond(system: System) -> None:
    system.publish("log", 0, 6)
    first = source_of(system, "log")
    got = opened(first, 6)
    assert len(got) == 6
    assert got != sorted(got), "two partitions by turns"
    for position in (got[0], got[1], got[4]):
        first.settle(position, position)
    first.poll(time.monotonic())
    second = source_of(system, "log")
    assert sorted(opened(second, 10)) == sorted(set(got) - set(got[:2]))
    first.settle(got[2], got[2])
    first.poll(time.monotonic())
    assert len(system.entity("log").left) == 4


def test_only_what_is_present_is_reported(system: System) -> None:
    system.publish("a", 0, 2)
    made = source_of(system, only_present=True)
    made.open()
    made.poll(time.monotonic())
    system.publish("a", 2, 4)
    made.grant(10)
    events = list(made.poll(time.monotonic()))
    assert (positions(events), events[-1]) == ([1, 2], Exhausted())


def test_dispositions_end_where_they_belong(system: System) -> None:
    system.publish("a", 0, 3)
    made = source_of(system)
    opened(made, 3)
    for position, kind in ((1, "dead-letter"), (2, "defer"), (3, "abandon")):
        made.settle(position, position, Disposition(kind, "Why", "because"))
    made.grant(0)
    made.poll(time.monotonic())
    entity = system.entity("a")
    assert ([dead.key for dead in entity.dead_letters], entity.deferred, entity.left) == (["a/0"], ["a/1"], ["a/2"])


# ---- the target


def sent(made: MemoryTarget, *keys: str) -> list[object]:
    made.send(Send([message(key) for key in keys]))
    return list(made.poll(time.monotonic()))


def ready(made: MemoryTarget) -> MemoryTarget:
    made.open()
    assert made.poll(time.monotonic()) == [Opened(0), Granted(1000)]
    return made


def test_outcomes_come_as_ranges_and_credit_is_renewed(system: System) -> None:
    made = ready(target_of(system))
    assert sent(made, "a/0", "a/1") == [Outcome(0, 1), Granted(1000)]
    assert sent(made, "a/2") == [Outcome(2, 2), Granted(1000)]
    assert system.entity("b").accepted == ["a/0", "a/1", "a/2"]


@pytest.mark.parametrize(("step", "stored"), [(Step.BEFORE_STORE, 1), (Step.AFTER_STORE, 2), (Step.AFTER_OUTCOME, 3)])
def test_a_target_is_lost_where_it_is_planned(system: System, step: Step, stored: int) -> None:
    made = ready(target_of(system))
    system.entity("b").faults.lose(step, after=1)
    events = sent(made, "a/0", "a/1", "a/2")
    assert isinstance(events[-1], Lost)
    assert len(system.entity("b").accepted) == stored
    made.open()
    assert made.poll(time.monotonic()) == [Opened(0), Granted(1000)]


def test_a_target_refuses_one_and_all_and_hangs(system: System) -> None:
    made, faults = ready(target_of(system)), system.entity("b").faults
    bad = Refusal(RefusalKind.MESSAGE, "bad", "no")
    faults.verdict = lambda key: bad if key == "a/1" else None
    assert sent(made, "a/0", "a/1", "a/2")[:3] == [Outcome(0, 0), Outcome(1, 1, bad), Outcome(2, 2)]
    faults.busy = BUSY
    assert sent(made, "a/3")[0] == Outcome(3, 3, BUSY)
    faults.busy, faults.hangs = None, True
    assert sent(made, "a/4") == []
    faults.hangs = False
    assert made.poll(time.monotonic())[0] == Outcome(4, 4)


def test_duplicates_are_taken_and_not_stored(system: System) -> None:
    entity = system.queue("c", detects_duplicates=True)
    assert sent(ready(target_of(system, "c")), "a/0", "a/0")[0] == Outcome(0, 1)
    assert (entity.accepted, entity.suppressed) == (["a/0"], ["a/0"])


def test_outcomes_come_late_and_out_of_order(system: System) -> None:
    made, faults = ready(target_of(system)), system.entity("b").faults
    faults.shuffle = lambda order: order.reverse()
    faults.latency_seconds = 1.0
    assert sent(made, "a/0", "a/1") == [Granted(998)]
    due = made.deadline(time.monotonic())
    assert made.poll(due)[:2] == [Outcome(1, 1), Outcome(0, 0)]


@pytest.mark.parametrize("end", [source_of, target_of])
def test_what_does_not_exist_is_fatal(system: System, end: Callable[..., MemorySource | MemoryTarget]) -> None:
    made = end(system, "nowhere")
    made.open()
    reported = made.poll(time.monotonic())[0]
    assert reported.is_fatal if isinstance(reported, SourceLost) else reported.refusal.kind is RefusalKind.FATAL  # type: ignore[union-attr]


def test_a_pool_names_the_ends_that_have_something_to_report_i1(system: System) -> None:
    pool = MemoryConnector(system).sources()
    made = pool.source(7, {"entity": "a"})
    made.open()
    ((descriptor, events),) = pool.descriptors()
    assert list(pool.service({descriptor: events}, 0.0)) == [7]
    assert list(pool.service({}, 0.0)) == []
    system.publish("a", 0, 1)
    assert list(pool.service({descriptor: events}, 0.0)) == [7]
    with pytest.raises(ConfigError, match="option 'x' is unknown"):
        pool.source(8, {"entity": "a", "x": "1"})


def test_a_killed_connector_changes_nothing_i2(system: System) -> None:
    system.publish("a", 0, 1)
    connector = MemoryConnector(system)
    pool = connector.sources()
    made = pool.source(1, {"entity": "a"})
    made.open()
    made.poll(0.0)
    made.grant(1)
    made.poll(0.0)
    connector.kill()
    made.settle(1, 1)
    made.close()
    assert list(made.poll(0.0)) == []
    with pytest.raises(Killed):
        pool.service({}, 0.0)
    assert system.entity("a").locked == 1


def test_a_kill_passes_the_net_under_a_connectors_faults() -> None:
    class Dead:
        def flush(self) -> None:
            raise Killed

    pools = GuardedPools[Any](lambda _: Dead())
    pools.get("memory")
    with pytest.raises(Killed):
        pools.flush()
    assert pools.take_faults() == {}


def test_both_sides_of_one_lease_are_killed_though_another_begins_meanwhile() -> None:
    """Where the sink of one and the reader of the next are killed, the next would not end: its sink still runs."""
    join = Join((), lambda: Side(connector, lambda: None, lambda: None))
    killed: list[tuple[str, str]] = []

    class Lease:
        def __init__(self, name: str) -> None:
            self.name = name

        def kill_sink(self) -> None:
            killed.append((self.name, "sink"))
            join._lease = Lease("second")  # type: ignore[assignment]

        def kill_reader(self) -> None:
            killed.append((self.name, "reader"))

    join._lease = Lease("first")  # type: ignore[assignment]
    join.kill()
    assert killed == [("first", "sink"), ("first", "reader")]
