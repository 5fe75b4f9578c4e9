"""The reader's process of a lease, over real sockets and with sources in memory."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.bridge.reader_peer import FakePeer, FakeSink, eventually
from harness.bridge.reader_source import FakePool, FakeSystem
from isthmus.bridge.frame import Kind, pack_flushed, pack_json, unpack_json, unpack_numbers
from isthmus.bridge.host.channel import Channel
from isthmus.bridge.host.reader import control as reader_control
from isthmus.bridge.host.reader import reader
from isthmus.bridge.host.reader.reader import LeaseEnd, LeaseName, ReaderHost, Rows
from isthmus.bridge.port import SourceLost
from isthmus.bridge.route_spec import End, RouteSpec


def route(name: str, **settings: Any) -> RouteSpec:
    return RouteSpec(name=name, source=End("fake", "a", {"queue": name}), target=End("fake", "b"), **settings)


class Bed:
    """A reader's host with its sink, and the driver where there is one."""

    def __init__(self, path: Path, system: FakeSystem, *, has_driver: bool = False, **settings: Any) -> None:
        self.system = system
        self.path = path
        self.driver: FakePeer | None = None
        self.host = ReaderHost(
            channel=path,
            lease=LeaseName("q", 7, 0),
            control=("driver:1", "key") if has_driver else None,
            lease_seconds=settings.pop("lease_seconds", 3600.0),
            connectors=lambda kind: system,  # type: ignore[arg-type,return-value]
            **settings,
        )
        self._sink: FakeSink | None = None

    @property
    def sink(self) -> FakeSink:
        if self._sink is None:
            self._sink = FakeSink(self.path)
        return self._sink

    def take(self) -> Rows | LeaseEnd:
        item = self.host.take(time.monotonic() + 10)
        assert item is not None, "nothing came"
        return item

    def rows(self) -> Rows:
        item = self.take()
        assert isinstance(item, Rows), item
        return item

    def end(self) -> LeaseEnd:
        item = self.take()
        assert isinstance(item, LeaseEnd), item
        return item

    def open(self, *handles: int) -> None:
        self.sink.opens(max(handles))
        for handle in handles:
            self.sink.ready(handle)

    def answer(self, kind: int, payload: bytes) -> None:
        assert self.driver is not None
        self.driver.send(kind, payload)

    def reports(self, name: str) -> list[dict[str, Any]]:
        assert self.driver is not None
        reported = [unpack_json(payload)["routes"] for payload in self.driver.of(Kind.REPORT)]
        return [routes[name] for routes in reported if name in routes]

    def report(self, name: str, **expected: Any) -> dict[str, Any]:
        """The first report of a route with these values."""

        def found() -> dict[str, Any] | None:
            assert self.driver is not None
            self.driver.receive(0.01)
            matching = (each for each in self.reports(name) if expected.items() <= each.items())
            return next(matching, None)

        return eventually(found, f"a report of {name} with {expected}; have {self.reports(name)}")  # type: ignore[no-any-return]


@pytest.fixture
def system() -> FakeSystem:
    return FakeSystem()


@pytest.fixture
def make(system: FakeSystem, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    beds: list[Bed] = []
    with tempfile.TemporaryDirectory() as folder:

        def make(*, has_driver: bool = False, **settings: Any) -> Bed:
            bed = Bed(Path(folder) / f"{len(beds)}.lease", system, has_driver=has_driver, **settings)
            if has_driver:
                ours, theirs = socket.socketpair()
                bed.driver = FakePeer(Channel(ours))
                monkeypatch.setattr(reader_control, "dial_control", lambda *_: Channel(theirs))
            beds.append(bed)
            bed.host.start()
            return bed

        yield make
        for bed in beds:
            bed.host.stop("the test is over")
            if bed._sink is not None:
                bed._sink.close()
            if bed.driver is not None:
                bed.driver.close()
        for bed in beds:
            bed.host._thread.join(30)
            assert not bed.host._thread.is_alive()


# ---- without a driver


def test_rows_come_in_order_and_are_settled_at_their_source(make: Any, system: FakeSystem) -> None:
    bed = make(routes=[route("a"), route("b")])
    reported = {each["spec"]["name"]: each["handle"] for each in bed.sink.opens(2)}
    assert sorted(reported.values()) == [1, 2]
    assert {each["origin_identity"] for each in bed.sink.opens(2)} == {"ns"}
    system.put("a", 1, 2, 3)
    system.put("b", 10)
    bed.open(1, 2)
    came: dict[int, list[int]] = {1: [], 2: []}
    while sum(map(len, came.values())) < 4:
        rows = bed.rows()
        came[rows.handle] += rows.positions
        assert len(rows.payloads) == len(rows.positions)
        bed.sink.settle(rows.handle, rows.positions[0], rows.positions[-1])
    assert came[reported["a"]] == [1, 2, 3]
    assert came[reported["b"]] == [10]
    eventually(lambda: len(system.settled) == 4, "all settled")
    assert system.released == []


def test_the_sink_gets_window_and_clock_before_rows_come(make: Any, system: FakeSystem) -> None:
    bed = make(routes=[route("a")])
    bed.open(1)
    assert unpack_numbers(bed.sink.wait(Kind.WINDOW)[0]) == (1, 256)
    assert unpack_numbers(bed.sink.wait(Kind.CLOCK)[0]) == (1, 1000)
    system.clock_offset_ms = 1001
    system.put("a", 1)
    bed.rows()
    system.clock_offset_ms = 1005
    system.put("a", 2)
    bed.rows()
    # What is reported before the rows has been written when they are there.
    bed.sink.receive()
    assert [unpack_numbers(each) for each in bed.sink.of(Kind.CLOCK)] == [(1, 1000), (1, 1005)]


def test_a_lease_that_is_stopped_settles_all_and_informs_the_sink(make: Any, system: FakeSystem) -> None:
    bed = make(routes=[route("a")])
    bed.open(1)
    system.put("a", 1)
    rows = bed.rows()
    bed.host.stop("enough")
    bed.sink.settle(1, rows.positions[0], rows.positions[-1])
    assert bed.end() == LeaseEnd(None)
    bed.sink.wait(Kind.STOPPED)
    kinds = [kind for kind, _ in bed.sink.frames]
    assert kinds.index(Kind.CLOSE) < kinds.index(Kind.STOPPED)
    assert [(name, position) for name, position, _ in system.settled] == [("a", 1)]
    bed.sink.send(Kind.END)
    eventually(lambda: not bed.host._thread.is_alive(), "the thread ends")
    assert not bed.path.exists()


def test_i3_a_lease_without_time_waits_for_its_sink(make: Any, system: FakeSystem) -> None:
    bed = make(routes=[route("a")], lease_seconds=0.0)
    assert bed.host.take(time.monotonic() + 0.05) is None
    assert bed.sink
    assert bed.end() == LeaseEnd(None)
    bed.sink.wait(Kind.STOPPED)


def test_a_lease_of_what_is_present_ends_by_itself(make: Any, system: FakeSystem) -> None:
    system.put("a", 1, 2)
    bed = make(routes=[route("a", only_present=True)])
    bed.open(1)
    moved = 0
    while moved < 2:
        rows = bed.rows()
        moved += len(rows.positions)
        bed.sink.settle(1, rows.positions[0], rows.positions[-1])
    assert bed.end() == LeaseEnd(None)
    assert len(system.settled) == 2


def test_i1_a_sink_that_goes_away_fails_the_lease_after_all_was_given_back(make: Any, system: FakeSystem) -> None:
    bed = make(routes=[route("a")])
    bed.open(1)
    system.put("a", 1)
    bed.rows()
    bed.sink.close()
    end = bed.end()
    assert "the sink ended without notice" in str(end.error)
    assert system.released == [("a", 1)]
    assert system.settled == []


def test_who_only_looks_whether_anybody_listens_disturbs_no_lease(make: Any, system: FakeSystem) -> None:
    bed = make(routes=[route("a")])
    bed.open(1)
    with socket.socket(socket.AF_UNIX) as look:
        look.connect(str(bed.path))
    system.put("a", 1)
    assert bed.rows() == Rows(1, [1], [b"x"])


@pytest.mark.parametrize("kind", [Kind.END, Kind.ERROR])
def test_a_sink_that_ends_before_the_lease_fails_it(make: Any, system: FakeSystem, kind: Kind) -> None:
    bed = make(routes=[route("a")])
    bed.open(1)
    bed.sink.send(kind, pack_json({"error": "disk full", "died": False}))
    error = str(bed.end().error)
    assert ("disk full" if kind == Kind.ERROR else "ended before") in error


def test_a_target_that_fails_begins_again_and_does_not_touch_the_others(make: Any, system: FakeSystem) -> None:
    bed = make(routes=[route("a"), route("b")])
    bed.open(1, 2)
    reported = {each["spec"]["name"]: each["handle"] for each in bed.sink.opens(2)}
    system.put("a", 1)
    bed.rows()
    bed.sink.send(Kind.FAILED, pack_json({"handle": reported["a"], "error": "full", "is_fatal": False}))
    assert bed.sink.closes() == [reported["a"]]
    system.put("b", 5)
    assert bed.rows() == Rows(reported["b"], [5], [b"x"])
    bed.sink.settle(reported["a"], 1, 1)  # reported of an opening that has ended
    again = bed.sink.opens(3)[-1]
    assert (again["spec"]["name"], again["handle"]) == ("a", 3)
    bed.sink.ready(3)
    assert bed.rows() == Rows(3, [1], [b"x"])
    assert system.settled == []


def test_a_lost_source_is_opened_again_and_what_was_under_way_is_settled(make: Any, system: FakeSystem) -> None:
    bed = make(routes=[route("a")])
    bed.open(1)
    system.put("a", 1)
    bed.rows()
    system.lose("a", SourceLost("reset"))
    eventually(lambda: system.opened == ["a", "a"], "it is opened again")
    bed.sink.settle(1, 1, 1)
    system.put("a", 2)
    assert bed.rows().positions == [2]
    eventually(lambda: [position for _, position, _ in system.settled] == [1], "the first is settled")
    assert bed.sink.of(Kind.CLOSE) == []


def test_i2_a_source_that_raises_ends_its_own_opening_only(make: Any, system: FakeSystem) -> None:
    bed = make(routes=[route("a"), route("b")])
    bed.open(1, 2)
    reported = {each["spec"]["name"]: each["handle"] for each in bed.sink.opens(2)}
    system.raising.add("a")
    system.wake("a")
    assert bed.sink.closes() == [reported["a"]]
    system.put("b", 1)
    assert bed.rows().handle == reported["b"]
    system.raising.clear()
    assert bed.sink.opens(3)[-1]["spec"]["name"] == "a"


def test_rows_that_a_step_removed_are_known_by_the_counts_of_flush_rows(make: Any, system: FakeSystem) -> None:
    bed = make(routes=[route("a", steps=("cleanse",))])
    bed.open(1)
    system.put("a", 1)
    assert bed.rows().positions == [1]
    system.put("a", 2)
    assert bed.rows().positions == [2]
    bed.host.note_flush(1, {1: 2})
    bed.sink.settle(1, 1, 1)
    bed.sink.send(Kind.FLUSHED, pack_flushed(1, {1: 1}))
    assert bed.sink.closes() == [1]
    eventually(lambda: system.released == [("a", 2)], "it is given back")


def test_an_option_that_is_of_no_use_makes_its_route_retry(make: Any, system: FakeSystem) -> None:
    broken = RouteSpec(name="x", source=End("fake", "a", {}), target=End("fake", "b"))
    bed = make(routes=[broken, route("a")])
    assert bed.sink.opens(1)[0]["spec"]["name"] == "a"


def test_many_idle_routes_cost_one_busy_route_nothing(make: Any, system: FakeSystem) -> None:
    names = [f"r{number}" for number in range(300)]
    bed = make(routes=[route(name) for name in names])
    for reported in bed.sink.opens(len(names)):
        bed.sink.ready(reported["handle"])
    handle = next(reported["handle"] for reported in bed.sink.opens() if reported["spec"]["name"] == "r7")
    eventually(lambda: len(system.credits) == len(names), "all have credit")
    eventually(lambda: not any(pool.ready for pool in system.pools), "all is quiet")
    polls = system.polls
    for position in range(1, 51):
        system.put("r7", position)
        assert bed.rows().positions == [position]
        bed.sink.settle(handle, position, position)
    eventually(lambda: len(system.settled) == 50, "all settled")
    assert system.polls - polls < 6 * 50  # the others were not looked at


# ---- with a driver


def assigned(make: Any, *specs: RouteSpec, plans: dict[str, Any] | None = None) -> Bed:
    bed: Bed = make(has_driver=True)
    assert bed.driver is not None
    reported = unpack_json(bed.driver.wait(Kind.LEASE)[0])
    assert reported == {"query": "q", "lease": 7, "slot": 0, "slots": 1, "process": os.getpid()}
    routes = [spec.to_json() for spec in specs]
    bed.answer(Kind.ASSIGN, pack_json({"routes": routes, "plans": plans or {}, "lease_seconds": 3600}))
    return bed


def test_the_driver_says_what_to_carry_and_gets_its_reports(make: Any, system: FakeSystem) -> None:
    bed = assigned(make, route("a"))
    bed.open(1)
    bed.report("a", state="running", window=256)
    system.put("a", 1, 2)
    rows = bed.rows()
    bed.sink.settle(1, rows.positions[0], rows.positions[-1])
    rows = bed.rows()
    bed.sink.settle(1, rows.positions[0], rows.positions[-1])
    report = bed.report("a", settled=2, moved=2)
    assert report.get("outstanding", 0) == 0
    assert bed.driver is not None
    assert unpack_json(bed.driver.of(Kind.REPORT)[-1])["processes"] == [os.getpid(), 4711]


def test_only_routes_that_have_changed_are_reported(make: Any, system: FakeSystem) -> None:
    bed = assigned(make, route("a"), route("b"))
    bed.open(1, 2)
    bed.report("b", state="running")
    bed.report("a", state="running")
    assert bed.driver is not None
    bed.driver.frames.clear()
    system.put("a", 1)
    bed.rows()
    bed.report("a", outstanding=1)
    assert bed.reports("b") == []


def test_i2_what_may_kill_the_worker_is_reported_before_it_is_handed_on(make: Any, system: FakeSystem) -> None:
    bed = assigned(make, route("a"), plans={"a": {"window": 1, "span": 8}})
    bed.open(1)
    system.put("a", 41)
    assert bed.rows().positions == [41]
    assert bed.driver is not None
    bed.driver.receive()
    assert bed.reports("a")[-1]["head"] == 41
    assert bed.reports("a")[-1]["outstanding"] == 1


def test_a_message_over_which_workers_died_is_set_aside(make: Any, system: FakeSystem) -> None:
    system.put("a", 5, 6)
    bed = assigned(make, route("a"), plans={"a": {"window": 1, "span": 8, "set_aside": 5, "deaths": 2}})
    bed.open(1)
    assert bed.rows().positions == [6]
    bed.report("a", set_aside=[5], dead_lettered=1)
    assert system.settled[0][1] == 5
    assert system.settled[0][2] is not None
    assert system.settled[0][2].kind == "dead-letter"


def test_a_sink_that_died_is_reported_with_the_routes_that_had_something_under_way(
    make: Any, system: FakeSystem
) -> None:
    bed = assigned(make, route("a"), route("b"))
    bed.open(1, 2)
    system.put("a", 1)
    bed.rows()
    bed.sink.close()
    assert bed.driver is not None
    assert unpack_json(bed.driver.wait(Kind.DIED)[0]) == {"routes": ["a"]}
    assert bed.report("a", outstanding=1)["head"] == 1
    assert "ended without notice" in unpack_json(bed.driver.wait(Kind.ENDED)[0])["error"]
    kinds = [kind for kind, _ in bed.driver.frames]
    assert kinds.index(Kind.DIED) < kinds.index(Kind.ENDED)
    bed.driver.close()
    assert bed.end().error is not None


def test_the_driver_ends_the_lease_and_learns_that_it_is_over(make: Any, system: FakeSystem) -> None:
    bed = assigned(make, route("a"))
    bed.open(1)
    bed.report("a", state="running")
    bed.answer(Kind.STOP, b"shutdown")
    assert bed.driver is not None
    assert unpack_json(bed.driver.wait(Kind.ENDED)[0]) == {"error": ""}
    assert bed.reports("a")[-1]["state"] == "ended"
    bed.driver.close()
    assert bed.end() == LeaseEnd(None)
    bed.sink.wait(Kind.STOPPED)


def test_routes_come_and_go_while_a_lease_runs(make: Any, system: FakeSystem) -> None:
    bed = assigned(make, route("a"))
    bed.open(1)
    bed.answer(Kind.ADD, pack_json(route("b").to_json() | {"plan": {"window": 8, "span": 64}}))
    assert bed.sink.opens(2)[1]["spec"]["name"] == "b"
    bed.sink.ready(2)
    bed.report("b", state="running", window=8)
    bed.answer(Kind.REMOVE, pack_json({"name": "a", "why": "moved"}))
    bed.report("a", state="ended")
    assert bed.sink.closes() == [1]
    bed.answer(Kind.ADD, pack_json(route("a").to_json()))
    assert bed.sink.opens(3)[2]["handle"] == 3


def test_a_route_that_is_added_otherwise_ends_first(make: Any, system: FakeSystem) -> None:
    bed = assigned(make, route("a"))
    bed.open(1)
    bed.report("a", state="running")
    bed.answer(Kind.ADD, pack_json(route("a", window=100).to_json()))
    assert bed.sink.closes() == [1]
    assert bed.sink.opens(2)[1]["spec"]["window"] == 100


def test_i4_a_route_has_ended_only_after_its_source_has_left(make: Any, system: FakeSystem) -> None:
    """A log commits in the background: a reader that continues before that reads again what was settled."""
    system.staying.add("a")
    bed = assigned(make, route("a"))
    bed.open(1)
    bed.answer(Kind.REMOVE, pack_json({"name": "a", "why": "moved"}))
    bed.report("a", state="ending")
    assert bed.sink.closes() == [1]
    bed.answer(Kind.ADD, pack_json(route("a").to_json()))
    assert system.opened == ["a"]
    system.staying.clear()
    assert bed.sink.opens(2)[1]["handle"] == 2
    assert system.opened == ["a", "a"]


def test_i4_a_route_that_retries_is_opened_only_after_its_source_has_left(make: Any, system: FakeSystem) -> None:
    system.staying.add("a")
    bed = make(routes=[route("a"), route("b")])
    reported = {each["spec"]["name"]: each["handle"] for each in bed.sink.opens(2)}
    for name in "ab":
        bed.sink.send(Kind.FAILED, pack_json({"handle": reported[name], "error": "full", "is_fatal": False}))
    assert bed.sink.opens(3)[2]["spec"]["name"] == "b", "both waited as long"
    assert system.opened.count("a") == 1
    system.staying.clear()
    assert bed.sink.opens(4)[3]["spec"]["name"] == "a"


def test_a_plan_reaches_its_route(make: Any, system: FakeSystem) -> None:
    bed = assigned(make, route("a"))
    bed.open(1)
    bed.answer(Kind.PLAN, pack_json({"name": "a", "window": 8, "span": 64, "set_aside": 0, "deaths": 0}))
    bed.report("a", window=8)


def test_routes_with_a_claim_wait_until_the_driver_holds_it(make: Any, system: FakeSystem) -> None:
    system.put("a", 1)
    bed = assigned(make, route("a", claim="task"))
    bed.open(1)
    assert bed.driver is not None
    asked = [number for number in (unpack_json(each)["asked"] for each in bed.driver.wait(Kind.REPORT)) if number]
    bed.report("a", state="paused")
    assert system.credits == []
    bed.answer(Kind.GRANT, pack_json({"asked": asked[0], "claims": {"task": 15.0}}))
    assert bed.rows().positions == [1]
    fence = unpack_json(bed.sink.wait(Kind.FENCE)[0])
    assert fence["claim"] == "task"
    assert 0 < fence["until_ns"] - time.monotonic_ns() <= 12 * 10**9


def test_a_driver_that_goes_away_ends_the_lease_in_good_order(make: Any, system: FakeSystem) -> None:
    bed = assigned(make, route("a"))
    bed.open(1)
    bed.report("a", state="running")
    assert bed.driver is not None
    bed.driver.close()
    assert bed.end() == LeaseEnd(None)


def test_a_spark_thread_that_has_ended_fails_the_lease(
    make: Any, system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LONGEST_WAIT_SECONDS", 0.01)
    host = make(routes=[route("a")]).host
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    host._life.owner = thread
    end = host.take(time.monotonic() + 10)
    assert isinstance(end, LeaseEnd)
    assert "the thread that takes rows is gone" in str(end.error)


def test_take_waits_for_ever_where_it_is_asked_to(make: Any, system: FakeSystem) -> None:
    bed = make(routes=[route("a")])
    bed.host.stop("x")
    assert isinstance(bed.host.take(math.inf), LeaseEnd)
    bed.host.join(5)


def test_a_driver_that_cannot_be_reached_is_reported_to_spark(
    system: FakeSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Channel:
        raise reader_control.ChannelError("no driver")

    monkeypatch.setattr(reader_control, "dial_control", refuse)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        host = ReaderHost(
            channel=Path(folder) / "x", lease=LeaseName("q", 1, 0), control=("d:1", "k"), lease_seconds=1.0
        )
        host.start()
        stack.callback(host.join, 5)
        end = host.take(time.monotonic() + 10)
        assert isinstance(end, LeaseEnd)
        assert "no driver" in str(end.error)


@pytest.mark.parametrize("has_driver", [False, True])
def test_an_idle_lease_sleeps(make: Any, system: FakeSystem, monkeypatch: pytest.MonkeyPatch, has_driver: bool) -> None:
    bed = assigned(make, route("a")) if has_driver else make(routes=[route("a")])
    bed.open(1)
    eventually(lambda: len(system.credits) == 1, "it runs")
    waits: list[float] = []
    wait = reader.PollSet.wait
    monkeypatch.setattr(
        reader.PollSet, "wait", lambda polled, wanted, seconds: waits.append(seconds) or wait(polled, wanted, seconds)
    )
    eventually(lambda: waits and waits[-1] > 0.9, "it waits for long")
    assert len(waits) < 20


def test_join_returns_after_the_systems_have_taken_in_what_was_settled(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_over: list[bool] = []
    beds: list[Any] = []
    is_made = threading.Event()  # the lease, which is over at once, may end before `make` has returned
    closes = FakePool.close

    def close(pool: FakePool) -> None:
        assert is_made.wait(10.0)
        was_over.append(beds[0].host._over.is_set())
        closes(pool)

    monkeypatch.setattr(FakePool, "close", close)
    beds.append(make(routes=[route("a")], lease_seconds=0.0))
    is_made.set()
    beds[0].open(1)
    assert beds[0].end() == LeaseEnd(None)
    beds[0].host.join(10.0)
    assert was_over == [False]
