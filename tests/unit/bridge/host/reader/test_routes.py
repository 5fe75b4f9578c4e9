"""The routes of a reader, by the time alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.bridge.reader_source import FakeSystem
from isthmus.bridge.frame import Kind, pack_numbers
from isthmus.bridge.host.reader.claim_book import ClaimBook
from isthmus.bridge.host.reader.routes import ReaderRoutes
from isthmus.bridge.lease.content_name import content_name
from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.port import Arrived, Capabilities, SourceEvent
from isthmus.bridge.report import RouteState
from isthmus.bridge.route_spec import End, RouteSpec


class Line:
    """What was sent to the sink."""

    def __init__(self) -> None:
        self.reported: list[tuple[int, bytes]] = []

    def send(self, kind: int, payload: bytes = b"") -> None:
        self.reported.append((kind, payload))


class Routes:
    """The routes of a reader, with sources in memory."""

    def __init__(self) -> None:
        self.system = FakeSystem()
        line: Any = Line()
        self.made = ReaderRoutes(lambda kind: self.system, line, ClaimBook())  # type: ignore[arg-type,return-value]
        self.spec = RouteSpec(name="a", source=End("fake", "a", {"queue": "a"}), target=End("fake", "b"))
        self.handle = 0

    def open(self, now: float) -> None:
        """Begins to carry the route; its target opens at once."""
        self.handle += 1
        self.made.add(self.spec, Plan(), now)
        self.made.service({}, now)
        self.made.on_frame(Kind.READY, pack_numbers(self.handle), now)
        self.made.service({}, now)

    def run_until(self, now: float, until: float) -> None:
        """Everything that is due until then."""
        while (now := max(now + 0.001, self.made.deadline(now))) < until:
            self.made.service({}, now)


def test_a_route_that_was_carried_before_shows_nothing_of_the_one_that_is() -> None:
    routes = Routes()
    routes.open(0.0)
    routes.system.put("a", 1)
    routes.made.service({}, 0.1)
    routes.made.remove("a", 0.2)  # a message is under way: until 20.2 s its settlement is waited for
    routes.made.on_frame(Kind.SETTLE, pack_numbers(1, 1, 1), 0.3)
    routes.run_until(0.3, 1.0)
    assert routes.made.take_reports(1.0)["a"].state is RouteState.ENDED
    routes.open(1.0)
    assert routes.made.take_reports(2.0)["a"].state is RouteState.RUNNING
    routes.run_until(2.0, 60.0)
    reported = routes.made.take_reports(60.0)
    assert all(report.state is RouteState.RUNNING for report in reported.values()), reported


@pytest.mark.parametrize("keeps_positions", [True, False])
def test_messages_are_reported_to_the_driver_by_what_the_next_process_knows_them_by(keeps_positions: bool) -> None:
    routes = Routes()
    routes.system.capabilities = Capabilities(keeps_positions=keeps_positions)
    routes.open(0.0)
    routes.system.put("a", 7, payload=b"x")
    routes.made.service({}, 0.1)
    assert routes.made.take_reports(0.2)["a"].head == (7 if keeps_positions else content_name(b"x"))


def test_credit_is_granted_only_when_everything_is_known_that_came_before() -> None:
    routes = Routes()
    routes.spec = replace(routes.spec, rate="4/s")
    routes.open(0.0)
    routes.system.put("a", 1)
    routes.made.service({}, 0.1)
    assert routes.system.credits[-1] == ("a", 3)
    (source,) = routes.system.pools[0].by_key.values()
    reported: list[SourceEvent] = [Arrived([2], [b"x"]), Arrived([3, 4], [b"x", b"x"])]
    source.poll = lambda now: [reported.pop(0) for _ in range(len(reported))]  # type: ignore[method-assign]
    routes.system.wake("a")
    routes.made.service({}, 0.25)  # one token more
    assert routes.system.credits[-1] == ("a", 1)


def test_a_message_that_comes_twice_at_once_is_handed_on_once() -> None:
    routes = Routes()
    routes.open(0.0)
    (source,) = routes.system.pools[0].by_key.values()
    reported: list[SourceEvent] = [Arrived([1], [b"x"]), Arrived([2], [b"x"]), Arrived([1, 3], [b"x", b"x"])]
    source.poll = lambda now: [reported.pop(0) for _ in range(len(reported))]  # type: ignore[method-assign]
    routes.system.wake("a")
    routes.made.service({}, 0.1)
    assert [position for rows in routes.made.take_rows() for position in rows.positions] == [1, 2, 3]


@pytest.mark.parametrize("call", ["service", "flush", "descriptors", "deadline"])
def test_a_fault_of_the_connections_of_one_kind_ends_no_other_route_i2(call: str) -> None:
    routes = Routes()
    routes.open(0.0)
    other = replace(routes.spec, name="b", source=End("other", "a", {"queue": "b"}))
    routes.made.add(other, Plan(), 0.0)
    routes.made.service({}, 0.0)
    routes.made.on_frame(Kind.READY, pack_numbers(2), 0.0)

    def faulty(*_: object) -> None:
        raise ValueError("a fault")

    assert len(routes.system.pools) == 2
    setattr(routes.system.pools[1], call, faulty)
    routes.system.put("a", 1)
    routes.made.descriptors()
    routes.made.deadline(0.1)
    routes.made.flush()
    routes.made.service({}, 0.1)
    reported = routes.made.take_reports(0.1)
    assert "a fault" in reported["b"].error
    assert reported["a"].state is RouteState.RUNNING
    assert [rows.handle for rows in routes.made.take_rows()] == [1]
    routes.run_until(0.1, 2.0)  # the route is opened again, with connections of its own
    assert len(routes.system.pools) == 3
    assert routes.system.opened == ["a", "b", "b"]
