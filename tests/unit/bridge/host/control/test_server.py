"""The control port over real connections."""

from __future__ import annotations

import json
import logging
import select
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.check.until import until
from isthmus.bridge.frame import Kind, pack_json
from isthmus.bridge.host.channel import Channel
from isthmus.bridge.host.control.client import ControlKeyError, dial_control, hang_up, split_address
from isthmus.bridge.host.control.server import ControlServer, QueryControl
from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.report import RouteReport, RouteState
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.errors import InvalidArgumentError

KEY = "the-key-of-the-run"
END = End("memory", "here")
A = RouteSpec(name="a", source=END, target=END, claim="claim-a")
B = RouteSpec(name="b", source=END, target=END)
WIDE = RouteSpec(name="wide", source=END, target=END, ordered=False, claim="claim-wide")


@dataclass
class Driver:
    """What the callbacks return, and were called with."""

    claims_seconds: dict[str, float] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    deaths: list[tuple[str, Mapping[str, RouteReport]]] = field(default_factory=list)
    is_broken: bool = False
    server: ControlServer = field(init=False)

    def __post_init__(self) -> None:
        self.server = ControlServer(
            KEY,
            claim_seconds=lambda claim: self.claims_seconds[claim],
            plan_of=self.plan_of,
            on_death=self.on_death,
        ).start()

    def plan_of(self, name: str) -> Plan:
        if self.is_broken:
            raise RuntimeError("the supervisor is confused")
        return self.plans.get(name, Plan())

    def on_death(self, query: str, reports: Mapping[str, RouteReport]) -> None:
        self.deaths.append((query, reports))
        self.plans["a"] = Plan(64, 1000)
        self.server.query(query).plan("a")  # callbacks may use it

    def query(self, *routes: RouteSpec) -> QueryControl:
        query = self.server.query("shared")
        query.assign(routes, lease_seconds=60.0)
        return query


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.server.close()


@dataclass
class Reader:
    """A reader's end of a connection."""

    channel: Channel
    frames: list[tuple[int, bytes]] = field(default_factory=list)

    @classmethod
    def connect(cls, driver: Driver) -> Reader:
        return cls(dial_control(driver.server.address, KEY, 10.0))

    @classmethod
    def lease(cls, driver: Driver, slot: int = 0, lease: int = 1, process: int = 77) -> Reader:
        reader = cls.connect(driver)
        reader.send(Kind.LEASE, query="shared", lease=lease, slot=slot, process=process)
        return reader

    def send(self, kind: Kind, **values: Any) -> None:
        self.channel.send(kind, pack_json(values))
        self.channel.flush()

    def report(self, asked: int = 0, **settled: int) -> None:
        routes = {
            name: RouteReport(state=RouteState.RUNNING, settled=count, outstanding=1).to_json()
            for name, count in settled.items()
        }
        self.send(Kind.REPORT, routes=routes, asked=asked, processes=[78])

    def next(self) -> tuple[Kind, Any]:
        while not self.frames:
            assert select.select([self.channel], [], [], 10.0)[0]
            self.frames += self.channel.receive()
            assert self.frames or not self.channel.closed, "the driver has closed the connection"
        kind, payload = self.frames.pop(0)
        return Kind(kind), payload.decode() if kind == Kind.STOP else json.loads(payload)

    def assigned(self) -> list[str]:
        kind, reported = self.next()
        assert kind is Kind.ASSIGN
        return [RouteSpec.from_json(each).name for each in reported["routes"]]

    def wait_processed(self) -> None:
        """Everything that was sent was processed: the request after it is answered."""
        self.send(Kind.LOOK, query="shared")
        while self.next()[0] is not Kind.LOOKED:
            pass

    def is_cut_off(self) -> bool:
        while not self.channel.closed:
            assert select.select([self.channel], [], [], 10.0)[0]
            self.channel.receive()
        return True

    def die(self) -> None:
        self.channel.close()


def test_a_lease_gets_its_routes_and_every_change_at_once(driver: Driver) -> None:
    driver.plans["a"] = Plan(8, 64, 5, 2)
    query = driver.query(A, B)
    reader = Reader.lease(driver)
    kind, reported = reader.next()
    assert kind is Kind.ASSIGN
    assert [RouteSpec.from_json(each) for each in reported["routes"]] == [A, B]
    assert Plan(**reported["plans"]["a"]) == Plan(8, 64, 5, 2)
    assert reported["lease_seconds"] == 60.0
    query.add(WIDE)
    kind, reported = reader.next()
    assert (kind, reported.pop("plan")) == (Kind.ADD, Plan()._asdict())
    assert RouteSpec.from_json(reported) == WIDE
    query.remove("b", "no longer wanted")
    assert reader.next() == (Kind.REMOVE, {"name": "b", "why": "no longer wanted"})
    driver.plans["a"] = Plan(1, 8)
    query.plan("a")
    assert reader.next() == (Kind.PLAN, {"name": "a", **Plan(1, 8)._asdict()})
    query.stop("the run ends")
    assert reader.next() == (Kind.STOP, "the run ends")
    assert query.stopping
    reader.die()


def test_a_lease_lasts_as_long_as_its_data_source_is_set_to_unless_the_run_says_otherwise(driver: Driver) -> None:
    query = driver.query(A)
    query.assign([A])
    reader = Reader.lease(driver)
    kind, reported = reader.next()
    assert (kind, set(reported)) == (Kind.ASSIGN, {"routes", "plans"})
    reader.die()


def test_two_readers_of_one_query_are_added_up(driver: Driver) -> None:
    query = driver.query(A, WIDE)
    first, second = Reader.lease(driver), Reader.lease(driver, slot=1)
    assert (first.assigned(), second.assigned()) == (["a", "wide"], ["wide"])
    first.report(a=3, wide=4)
    second.report(wide=5)
    first.wait_processed()
    second.wait_processed()
    reports = query.reports()
    assert (reports["a"].settled, reports["wide"].settled, reports["wide"].outstanding) == (3, 9, 2)
    assert query.processes() == {77, 78}
    assert query.has_been_met
    first.die()
    second.die()


def test_counts_never_fall_over_deaths_and_ends(driver: Driver) -> None:
    query = driver.query(A)
    seen: list[int] = []
    for lease, end in enumerate(("dies", "ends", "dies")):
        reader = Reader.lease(driver, lease=lease)
        assert reader.assigned() == ["a"]
        for settled in (0, 10):
            reader.report(a=settled)
            reader.wait_processed()
            seen.append(query.reports()["a"].settled)
        if end == "ends":
            reader.send(Kind.ENDED, error="time is over")
            hang_up(reader.channel, 10.0)
        else:
            reader.die()
        until(lambda: not query.busy())
        seen.append(query.reports()["a"].settled)
    assert seen == [0, 10, 10, 10, 20, 20, 20, 30, 30]
    assert query.ended_errors() == ("time is over",)
    driver.server.close()
    assert query.reports()["a"].settled == 30
    assert not query.busy()


def test_a_death_is_reported_before_the_next_lease_gets_its_plan(driver: Driver) -> None:
    query = driver.query(A)
    first = Reader.lease(driver)
    assert first.assigned() == ["a"]
    second = Reader.connect(driver)  # it is there already, and begins as soon as the other has ended
    first.report(a=3)
    first.wait_processed()
    first.die()
    second.send(Kind.LEASE, query="shared", lease=2, slot=0, process=79)
    kind, reported = second.next()
    assert (kind, Plan(**reported["plans"]["a"])) == (Kind.ASSIGN, Plan(64, 1000))
    ((name, reports),) = driver.deaths
    assert (name, reports["a"].settled, reports["a"].outstanding) == ("shared", 3, 1)
    assert query.busy()
    second.die()


def test_the_death_of_a_sink_is_reported_by_the_reader(driver: Driver) -> None:
    driver.query(A, B)
    reader = Reader.lease(driver)
    reader.assigned()
    reader.report(a=1, b=2)
    reader.send(Kind.DIED, routes=["a"])
    assert reader.next()[0] is Kind.PLAN, "on_death asked for it"
    reader.send(Kind.ENDED, error="the sink is gone")
    hang_up(reader.channel, 10.0)
    until(lambda: not driver.server.query("shared").busy())
    ((_, reports),) = driver.deaths
    assert reports["a"].settled == 1
    assert reports["b"] == RouteReport(), "it had nothing under way"


def test_stop_reaches_those_that_connect_later_and_is_no_death(driver: Driver) -> None:
    query = driver.query(A)
    early = Reader.lease(driver)
    assert early.assigned() == ["a"]
    query.stop("the run ends")
    assert early.next() == (Kind.STOP, "the run ends")
    early.die()
    late = Reader.lease(driver)
    assert late.assigned() == []
    assert late.next() == (Kind.STOP, "the run ends")
    late.send(Kind.LOOK, query="shared")
    assert late.next() == (Kind.LOOKED, {"stopping": True})
    late.die()
    until(lambda: not query.busy())
    assert driver.deaths == []


def test_a_query_that_the_run_does_not_have_starts_nothing(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    stray = Reader.connect(driver)
    stray.send(Kind.LOOK, query="another")
    assert stray.next() == (Kind.LOOKED, {"stopping": True})
    stray.send(Kind.LEASE, query="another", lease=1, slot=0, process=1)
    assert stray.assigned() == []
    assert stray.next() == (Kind.STOP, "this run has no query 'another'")
    stray.report(asked=1, a=5)
    stray.die()
    assert len([each for each in caplog.records if "another" in each.getMessage()]) == 1


def test_an_answer_shows_how_long_claims_are_held_when_it_is_given(driver: Driver) -> None:
    driver.query(A, B, WIDE)
    reader = Reader.lease(driver)
    reader.assigned()
    for asked, seconds in ((1, 12.5), (2, 0.0)):
        driver.claims_seconds = {"claim-a": seconds, "claim-wide": seconds + 1}
        reader.report(asked=asked, a=1)
        assert reader.next() == (
            Kind.GRANT,
            {"asked": asked, "claims": {"claim-a": seconds, "claim-wide": seconds + 1}},
        )
    reader.die()


def test_an_unknown_claim_is_not_held(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    driver.query(A)
    reader = Reader.lease(driver)
    reader.assigned()
    reader.report(asked=1)
    assert reader.next() == (Kind.GRANT, {"asked": 1, "claims": {"claim-a": 0.0}})
    assert "KeyError" in caplog.text
    reader.die()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 20,
        bytes([Kind.REPORT]) + (1).to_bytes(4, "little") + b"{",
        bytes([Kind.REPORT]) + (40).to_bytes(4, "little") + b'{"routes": {"a": {"settled": "a great many"}}}'[:40],
        bytes([Kind.REPORT]) + (2).to_bytes(4, "little") + b"{}",
        bytes([Kind.GRANT]) + (2).to_bytes(4, "little") + b"{}",
        bytes([Kind.LEASE]) + (0xFFFFFFFF).to_bytes(4, "little"),
    ],
)
def test_who_sends_what_is_no_report_is_cut_off_and_others_are_served(
    driver: Driver, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    query = driver.query(A)
    good, bad = Reader.lease(driver), Reader.connect(driver)
    good.assigned()
    bad.channel._out.append(data)
    bad.channel.flush()
    assert bad.is_cut_off()
    good.report(a=3)
    good.wait_processed()
    assert query.reports()["a"].settled == 3
    assert driver.deaths == []
    assert "cut off" in caplog.text
    assert KEY not in caplog.text
    good.die()
    bad.die()


def test_a_callback_that_fails_ends_nothing(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    query = driver.query(A)
    driver.is_broken = True
    reader = Reader.lease(driver)
    kind, reported = reader.next()
    assert (kind, Plan(**reported["plans"]["a"])) == (Kind.ASSIGN, Plan())
    assert "the supervisor is confused" in caplog.text
    assert query.busy()
    reader.die()


def test_without_the_key_every_client_is_refused(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    query = driver.query(A)
    with pytest.raises(ControlKeyError):
        dial_control(driver.server.address, "another", 10.0)
    with socket.create_connection(split_address(driver.server.address), 10.0) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        assert received(sock) == b""
    reader = Reader.lease(driver)
    assert reader.assigned() == ["a"]
    assert query.busy()
    assert KEY not in caplog.text
    reader.die()


def test_a_recorded_connection_cannot_be_played_again(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    query = driver.query(A)
    host, port = split_address(driver.server.address)
    recorded = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as relay:

        def run() -> None:
            ours, _ = relay.accept()
            with ours, socket.create_connection((host, port), 10.0) as theirs:
                while True:
                    for each in select.select([ours, theirs], [], [], 10.0)[0]:
                        data = each.recv(4096)
                        if not data:
                            return
                        if each is ours:
                            recorded.extend(data)
                        (theirs if each is ours else ours).sendall(data)

        thread = threading.Thread(target=run)
        thread.start()
        reader = Reader(dial_control(f"127.0.0.1:{relay.getsockname()[1]}", KEY, 10.0))
        reader.send(Kind.LEASE, query="shared", lease=1, slot=0, process=1)
        assert reader.assigned() == ["a"]
        reader.send(Kind.ENDED, error="")
        hang_up(reader.channel, 10.0)
        thread.join(10.0)
    until(lambda: not query.busy())
    with socket.create_connection((host, port), 10.0) as sock:
        sock.sendall(bytes(recorded))
        received(sock)
    assert "another key" in caplog.text
    other = Reader.connect(driver)
    other.wait_processed()
    assert not query.busy()
    assert driver.deaths == []
    other.die()


def received(sock: socket.socket) -> bytes:
    """What comes until the driver cuts the connection off."""
    data = b""
    while True:
        try:
            piece = sock.recv(4096)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


def test_where_readers_connect() -> None:
    def server(**values: Any) -> ControlServer:
        return ControlServer(
            KEY, claim_seconds=lambda _: 0.0, plan_of=lambda _: Plan(), on_death=lambda *_: None, **values
        )

    near, far = server(), server(host="0.0.0.0", advertised="driver.example")
    assert near.address.startswith("127.0.0.1:")
    assert far.address.startswith("driver.example:")
    for each in (near, far):
        each.close()
    with pytest.raises(InvalidArgumentError, match=r"spark\.driver\.host"):
        server(host="0.0.0.0")


def test_nothing_remains_of_a_closed_port(driver: Driver) -> None:
    query = driver.query(A)
    reader = Reader.lease(driver)
    reader.assigned()
    driver.server.close()
    assert reader.is_cut_off()
    assert not query.busy()
    query.stop("late")
    assert not any(each.name == "control" and each.is_alive() for each in threading.enumerate())
    reader.die()
