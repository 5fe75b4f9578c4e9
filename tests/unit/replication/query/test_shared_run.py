"""Routes share one query: they join it, leave it, fail with it, and get a query of their own if their messages crash workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.report import RouteReport, RouteState
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.replication.query import shared_query, shared_route
from isthmus.replication.query.shared_run import Group, SharedRun
from isthmus.replication.query.tally import Counts

RUNNING = RouteReport(state=RouteState.RUNNING, window=16_000)


def spec(name: str, **more: Any) -> RouteSpec:
    return RouteSpec(name=name, source=End("servicebus", "ewr"), target=End("servicebus", "jfk"), **more)


class FakeQuery:
    """A Spark query."""

    def __init__(self) -> None:
        self.isActive = True
        self.error: str | None = None
        self.stopped = False
        self.status = {"isDataAvailable": False, "message": "Waiting"}

    def exception(self) -> str | None:
        return self.error

    def stop(self) -> None:
        self.isActive, self.stopped = False, True


class FakeControl:
    """The control connection of a query, whose reader does at once what it is sent."""

    def __init__(self) -> None:
        self.routes: list[str] = []
        self.journal: list[str] = []
        self.found: dict[str, RouteReport] = {}
        self.errors: tuple[str, ...] = ()
        self.leases = True
        self.lets_go = True

    def assign(self, routes: Sequence[RouteSpec]) -> None:
        self.routes = [each.name for each in routes]

    def add(self, spec: RouteSpec) -> None:
        self.routes.append(spec.name)

    def remove(self, name: str, why: str) -> None:
        self.journal.append(f"remove {name}")
        self.routes.remove(name)
        if self.lets_go:
            self.report(name, state=RouteState.ENDED)

    def plan(self, name: str) -> None:
        self.journal.append(f"plan {name}")

    def stop(self, why: str) -> None:
        self.journal.append("stop")
        self.leases = False

    def reports(self) -> Mapping[str, RouteReport]:
        return dict(self.found)

    def busy(self) -> bool:
        return self.leases

    def processes(self) -> set[int]:
        return {41, 42}

    def ended_errors(self) -> Sequence[str]:
        return self.errors

    def report(self, name: str, **values: Any) -> None:
        self.found[name] = replace(self.found.get(name, RUNNING), **values)


class Bench:
    """A run over fakes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queries: dict[str, FakeQuery] = {}
        self.controls: dict[str, FakeControl] = {}
        self.groups: list[Group] = []
        self.closed = False
        self.run = SharedRun(self.listen, self.start_query, lambda: self.now)

    def listen(
        self, plan_of: Callable[[str], Plan], on_death: Callable[[str, Mapping[str, RouteReport]], None]
    ) -> Bench:
        self.plan_of, self.on_death = plan_of, on_death
        return self

    def query(self, name: str) -> FakeControl:
        return self.controls.setdefault(name, FakeControl())

    def close(self) -> None:
        self.closed = True

    def start_query(self, group: Group, name: str) -> Any:
        self.groups.append(group)
        self.queries[name] = FakeQuery()
        return self.queries[name]

    def tick(self) -> None:
        self.now += 1

    def die(self, name: str, error: str = "Python worker exited unexpectedly") -> None:
        """A worker of the query is killed, which ends the query."""
        found = {each: self.controls[name].found[each] for each in self.controls[name].routes}
        self.on_death(name, found)
        self.queries[name].isActive, self.queries[name].error = False, error
        self.controls[name].leases = False
        self.tick()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_all_routes_of_a_chain_of_steps_share_one_query(bench: Bench) -> None:
    for each in (spec("a"), spec("b"), spec("c", steps=("x.y:z",))):
        assert bench.run.start(each).is_active()
    assert [group.steps for group in bench.groups] == [(), ("x.y:z",)]
    assert bench.controls["routes-1"].routes == ["a", "b"]
    assert len({group.name for group in bench.groups}) == 2


def test_a_route_that_stops_leaves_the_query_to_the_others(bench: Bench) -> None:
    first, second = bench.run.start(spec("a")), bench.run.start(spec("b"))
    first.drain()
    assert first.drained()
    first.stop()
    assert second.is_active()
    assert bench.controls["routes-1"].routes == ["b"]
    assert not bench.queries["routes-1"].stopped


def test_i1_the_death_of_the_query_ends_all_its_routes_and_one_start_serves_them_again(bench: Bench) -> None:
    running = [bench.run.start(spec(name)) for name in "ab"]
    for name in "ab":
        bench.controls["routes-1"].report(name)
    bench.die("routes-1")
    assert not any(each.is_active() for each in running)
    assert {each.failure() for each in running} == {running[0].failure()}
    assert "was killed, or crashed" in running[0].failure()
    for each in running:
        each.stop()
    assert all(bench.run.start(spec(name)).is_active() for name in "ab")
    assert list(bench.queries) == ["routes-1", "routes-2"]
    assert bench.controls["routes-2"].routes == ["a", "b"]
    assert bench.groups[0].name == bench.groups[1].name == "routes"


def test_an_error_with_which_the_lease_ended_is_reported_where_spark_shows_none(bench: Bench) -> None:
    route = bench.run.start(spec("a"))
    bench.controls["routes-1"].errors = ("the sink is gone",)
    bench.queries["routes-1"].isActive = False
    assert not route.is_active()
    assert route.failure() == "the sink is gone"


def test_counts_are_those_since_the_start_of_the_route(bench: Bench) -> None:
    first = bench.run.start(spec("a"))
    bench.controls["routes-1"].report("a", settled=10, moved=8, discarded=2)
    assert first.progress().counts == Counts(10, 8, 0, 2, 0)
    first.stop()
    bench.tick()
    again = bench.run.start(spec("a"))
    bench.tick()
    assert again.progress().counts == Counts()
    bench.controls["routes-1"].report("a", settled=13, moved=11)
    bench.tick()
    assert again.progress().counts == Counts(3, 3, 0, 0, 0)


@pytest.mark.parametrize("ends", ["it leaves", "its query dies"])
def test_what_is_settled_last_is_counted(bench: Bench, ends: str) -> None:
    """The look that finds a route removed is newer than the last look at its counts."""
    route = bench.run.start(spec("a"))
    control = bench.controls["routes-1"]
    control.report("a", moved=5, settled=5)
    assert route.progress().counts == Counts(settled=5, moved=5)
    control.report("a", moved=8, settled=8)
    if ends == "it leaves":
        route.drain()
        assert route.drained()
    else:
        bench.queries["routes-1"].isActive = control.leases = False
        assert not route.is_active()
        route.stop()
    assert route.progress().counts == Counts(settled=8, moved=8)


def test_a_pause_and_a_failure_are_reported_with_the_namespace(bench: Bench) -> None:
    route = bench.run.start(spec("a"), lambda text: text.replace("10.0.0.7:5671", "jfk (10.0.0.7:5671)"))
    assert not route.progress().ready
    control = bench.controls["routes-1"]
    bench.tick()
    control.report("a", state=RouteState.PAUSED, paused="10.0.0.7:5671: refused")
    assert route.progress().paused_reason == "jfk (10.0.0.7:5671): refused"
    bench.tick()
    control.report("a", state=RouteState.RETRYING, error="10.0.0.7:5671: gone", retry_in_seconds=4.0)
    seen = route.progress()
    assert (seen.paused_reason, seen.error, seen.retry_in_seconds) == ("", "jfk (10.0.0.7:5671): gone", 4.0)
    bench.tick()
    control.leases = False  # the query ends in a moment, and reports more
    assert not route.progress().error
    control.leases = True
    bench.tick()
    control.report("a", state=RouteState.RUNNING, error="", blocked_by=17)
    assert "message 17" in route.progress().paused_reason
    assert route.progress().processes == (41, 42)
    assert not route.progress().is_awaited
    bench.tick()
    control.report("a", is_awaited=True, outstanding=1)
    assert route.progress().is_awaited


def test_a_route_with_an_end_is_done_when_everything_is_settled(bench: Bench) -> None:
    route = bench.run.start(spec("a", only_present=True))
    bench.controls["routes-1"].report("a", state=RouteState.ENDED)
    assert route.is_active()  # a lease ended, and the next one continues
    bench.tick()
    bench.controls["routes-1"].report("a", is_exhausted=True)
    assert not route.is_active()
    assert route.failure() == ""


def test_a_query_that_does_not_let_a_route_go_is_stopped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_route, "_STEP_SECONDS", 0.0)
    monkeypatch.setattr(shared_query, "LEASE_END_SECONDS", 0.0)
    monkeypatch.setattr(shared_route, "LEAVE_SECONDS", 0.0)
    stuck, other = bench.run.start(spec("a")), bench.run.start(spec("b"))
    bench.controls["routes-1"].report("a")
    bench.controls["routes-1"].lets_go = False
    stuck.stop()
    assert not other.is_active()
    assert "has not ended route a" in other.failure()
    bench.run.close()
    assert bench.queries["routes-1"].stopped


def test_the_end_of_the_run_ends_the_lease_before_the_query_and_then_the_control_port(bench: Bench) -> None:
    bench.run.start(spec("a"))
    bench.run.close()
    assert bench.controls["routes-1"].journal == ["stop"]
    assert bench.queries["routes-1"].stopped
    assert bench.closed


def killed_twice(bench: Bench) -> None:
    for name in ("routes-1", "routes-2"):
        for each in "ab":
            bench.run.start(spec(each))
        bench.controls[name].report("a", head=7, outstanding=9)
        bench.controls[name].report("b", head=len(bench.queries), outstanding=1)
        bench.die(name)


def test_a_route_whose_first_message_was_the_same_at_two_deaths_gets_a_query_of_its_own(bench: Bench) -> None:
    killed_twice(bench)
    for each in "ab":
        bench.run.start(spec(each))
    assert bench.controls["alone-a-1"].routes == ["a"]
    assert bench.controls["routes-3"].routes == ["b"]
    assert bench.groups[-2].name == "alone-a"


def test_deaths_of_its_own_query_narrow_the_window_and_set_the_message_aside(bench: Bench) -> None:
    killed_twice(bench)
    number = 0
    while not bench.plan_of("a").set_aside:
        number += 1
        window = bench.plan_of("a").window or 16_000
        bench.run.start(spec("a"))
        bench.controls[f"alone-a-{number}"].report("a", head=7, outstanding=1, window=window)
        bench.die(f"alone-a-{number}")
    assert number == 3
    assert bench.plan_of("a").set_aside == 7
    assert not bench.plan_of("b").set_aside


def test_where_every_message_kills_one_is_set_aside_and_no_more(bench: Bench) -> None:
    """It is no message's fault then: the route stays alone and fails. What was set aside counts as settled, and did not move."""

    def carrier() -> FakeControl:
        (name,) = [
            each for each, query in bench.queries.items() if query.isActive and "a" in bench.controls[each].routes
        ]
        names.append(name)
        return bench.controls[name]

    head, aside, names = 7, list[int](), list[str]()
    for _ in range(20):
        plan = bench.plan_of("a")
        bench.run.start(spec("b"))
        route = bench.run.start(spec("a"))
        if plan.set_aside:
            aside.append(plan.set_aside)
            head += 1
            carrier().report("a", settled=1, dead_lettered=1, set_aside=(plan.set_aside,), window=1)
            for _ in range(2):
                bench.tick()
                route.progress()
                assert route.is_active()
        if "b" in carrier().routes:
            carrier().report("b")
        carrier().report("a", head=head, outstanding=1, window=bench.plan_of("a").window or 256)
        bench.die(names[-1])
    assert aside == [7]
    assert names[-1].startswith("alone-a")


def test_i2_a_route_that_moved_past_the_message_joins_the_others_and_keeps_its_counts(bench: Bench) -> None:
    killed_twice(bench)
    alone = bench.run.start(spec("a"))
    bench.run.start(spec("b"))
    own = bench.controls["alone-a-1"]
    own.report("a", settled=64, moved=64, head=71, outstanding=4)
    bench.tick()
    assert alone.progress().counts == Counts(64, 64, 0, 0, 0)
    assert own.journal[-1] == "remove a"
    assert bench.controls["routes-3"].routes == ["b"]
    bench.tick()
    assert alone.is_active()
    assert bench.controls["routes-3"].routes == ["b", "a"]
    bench.controls["routes-3"].report("a", settled=2, moved=2)
    bench.tick()
    assert alone.progress().counts == Counts(66, 66, 0, 0, 0)
    bench.run.close()
    assert bench.queries["alone-a-1"].stopped


def test_a_plan_that_changes_is_reported_to_the_reader(bench: Bench) -> None:
    bench.run.start(spec("a"))
    bench.controls["routes-1"].report("a", head=7, outstanding=9)
    bench.die("routes-1")
    assert bench.plan_of("a").window == 64
    route = bench.run.start(spec("a"))
    bench.controls["routes-2"].report("a", settled=20_000)
    bench.tick()
    route.progress()
    assert bench.controls["routes-2"].journal == ["plan a"]
    assert bench.plan_of("a") == Plan()


def test_a_query_that_continues_after_a_death_does_not_end_with_that_later(bench: Bench) -> None:
    """The control connection of a reader was cut, and nothing died."""
    route = bench.run.start(spec("a"))
    bench.controls["routes-1"].report("a", outstanding=1, head=5)
    bench.on_death("routes-1", dict(bench.controls["routes-1"].found))
    assert route.is_active()
    bench.now += shared_query.DEATH_SECONDS
    bench.queries["routes-1"].isActive, bench.queries["routes-1"].error = False, "the disk is full"
    assert not route.is_active()
    assert "the disk is full" in route.failure()


def test_queries_come_and_go_under_the_lock_of_the_reporter_of_a_death() -> None:
    """The control port's thread looks through them: one that is added meanwhile would end it, and no further death would be counted."""
    bench = Bench()
    run = bench.run

    class Queries(dict[Any, Any]):
        def __setitem__(self, group: Any, query: Any) -> None:
            assert run._lock._is_owned()  # type: ignore[attr-defined]
            super().__setitem__(group, query)

        def pop(self, *of: Any) -> Any:
            assert run._lock._is_owned()  # type: ignore[attr-defined]
            return super().pop(*of)

    run._queries = Queries()
    run.start(spec("a"))
    assert len(run._queries) == 1
