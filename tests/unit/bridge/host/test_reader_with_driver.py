"""A reader's host led by the driver's real control port."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.bridge.reader_peer import FakeSink, eventually
from harness.bridge.reader_source import FakeSystem
from isthmus.bridge.host.control.server import ControlServer
from isthmus.bridge.host.reader.reader import LeaseEnd, LeaseName, ReaderHost, Rows
from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.report import RouteReport, RouteState
from isthmus.bridge.route_spec import End, RouteSpec


def route(name: str, **settings: Any) -> RouteSpec:
    return RouteSpec(name=name, source=End("fake", "a", {"queue": name}), target=End("fake", "b"), **settings)


@pytest.fixture
def deaths() -> list[Mapping[str, RouteReport]]:
    return []


@pytest.fixture
def server(deaths: list[Mapping[str, RouteReport]]) -> Iterator[ControlServer]:
    server = ControlServer(
        "key",
        claim_seconds=lambda claim: 15.0,
        plan_of=lambda name: Plan(8, 64),
        on_death=lambda query, reports: deaths.append(reports),
    )
    server.start()
    yield server
    server.close()


def test_a_lease_from_assignment_to_its_end(server: ControlServer, deaths: list[Any]) -> None:
    system = FakeSystem()
    query = server.query("q")
    query.assign([route("a", claim="task")])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.lease"
        host = ReaderHost(
            channel=path,
            lease=LeaseName("q", 1, 0),
            control=(server.address, "key"),
            lease_seconds=3600.0,
            connectors=lambda kind: system,  # type: ignore[arg-type,return-value]
        )
        host.start()
        sink = FakeSink(path)
        reported = sink.opens()[0]
        sink.ready(reported["handle"])
        system.put("a", 1, 2)
        moved = 0
        while moved < 2:
            rows = host.take(time.monotonic() + 10)
            assert isinstance(rows, Rows)
            moved += len(rows.positions)
            sink.settle(rows.handle, rows.positions[0], rows.positions[-1])
        eventually(lambda: query.reports()["a"].moved == 2, "the driver hears of it")
        report = query.reports()["a"]
        assert (report.state, report.window) == (RouteState.RUNNING, 8)
        query.stop("enough")
        assert host.take(time.monotonic() + 10) == LeaseEnd(None)
        eventually(lambda: not query.busy(), "the driver knows that it is over")
        assert query.reports()["a"].moved == 2
        assert deaths == []
        sink.close()
        host._thread.join(30)


def test_a_sink_that_dies_is_a_death_with_what_was_under_way(server: ControlServer, deaths: list[Any]) -> None:
    system = FakeSystem()
    query = server.query("q")
    query.assign([route("a")])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.lease"
        host = ReaderHost(
            channel=path,
            lease=LeaseName("q", 1, 0),
            control=(server.address, "key"),
            lease_seconds=3600.0,
            connectors=lambda kind: system,  # type: ignore[arg-type,return-value]
        )
        host.start()
        sink = FakeSink(path)
        sink.ready(sink.opens()[0]["handle"])
        system.put("a", 31)
        assert isinstance(host.take(time.monotonic() + 10), Rows)
        sink.close()
        end = host.take(time.monotonic() + 10)
        assert isinstance(end, LeaseEnd)
        assert end.error is not None
        host._thread.join(30)
    (reports,) = eventually(lambda: deaths, "the death is reported")
    assert (reports["a"].outstanding, reports["a"].head, reports["a"].window) == (1, 31, 8)
