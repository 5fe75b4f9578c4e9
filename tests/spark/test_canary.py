"""Canaries of a real run: status tells their age, applications do not get them, and a route that brings none is not shown as running."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.connectors.administration import Administrations
from isthmus.operations.look import messages
from isthmus.operations.message import read
from isthmus.replication.reach import Reach
from isthmus.supervisor.status import read_status
from isthmus.testing.federation import TOPIC, FederationProcess, RunProcess
from isthmus.topology import plan
from isthmus.topology.change import Change
from isthmus.topology.model import Endpoint
from isthmus.topology.state import RuleState

WAIT_SECONDS = 180.0
COUNT = 200


@pytest.fixture(name="federation")
def _federation(tmp_path: Path) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path, settings=["canary: 1s", "rate: 2000/s"]) as running:
        yield running


def wait(federation: FederationProcess, run: RunProcess, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The status by route, once it holds for each."""
    limit = time.monotonic() + WAIT_SECONDS
    while True:
        document = read_status(federation.state)
        routes = {each["name"]: each for each in document["routes"]} if document else {}
        if routes and all(map(condition, routes.values())):
            return routes
        assert time.monotonic() < limit, (routes, run.log()[-3000:])
        assert run.is_alive(), run.log()[-3000:]
        time.sleep(0.2)


def properties(federation: FederationProcess, alias: str, subscription: str) -> list[dict[str, Any]]:
    with Reach(federation.federation) as reach, reach.open(Endpoint(alias, TOPIC)) as client:
        path = f"{TOPIC}/Subscriptions/{subscription}"
        client.authorize(path)
        return [read(each).properties for each in messages(client, path)]


def test_the_true_age_is_shown_and_applications_see_nothing_of_it(federation: FederationProcess) -> None:
    run = federation.run()
    run.wait_phase(["moving", "waiting"])
    found = wait(federation, run, lambda route: (route["canary_latency_seconds"] or 99) < 5 and route["moved"] >= 3)
    for route in found.values():
        assert 0 < route["canary_latency_seconds"] <= route["canary_age_seconds"] + 1
        assert route["limit"] == "2000/s"
        assert route["state"].endswith("at most 2000/s")
        assert route["well"]
    federation.publish("ewr", COUNT)
    federation.publish("jfk", COUNT)
    federation.wait_moved()
    for alias in federation.namespaces:
        told = properties(federation, alias, "audit")
        assert len(told) == 2 * COUNT
        assert not [each for each in told if "isthmus-canary" in each]
    result = federation.verify()
    assert result.clean, result.to_dict()

    # What the target acknowledges arrives nowhere: its subscription selects nothing any more.
    with Administrations(federation.federation) as administrations:
        rule = RuleState("isthmus-canary", "[isthmus-canary] = 'nobody'")
        change = Change(
            alias="jfk",
            action="update",
            kind="rule",
            topic=TOPIC,
            subscription=f"isthmus.{TOPIC}.canary",
            after=rule,
            before=rule,
        )
        assert administrations.make((change,)).error is None
    stalled = f"{TOPIC}.ewr.jfk"
    found = wait(
        federation, run, lambda route: route["name"] != stalled or (route["phase"] == "stalled" and not route["well"])
    )
    assert "has not arrived" in found[stalled]["state"]
    assert found[stalled]["canary_age_seconds"] > 10
    assert found[f"{TOPIC}.jfk.ewr"]["well"]

    # Applied again, canaries arrive, and the route is well.
    with Administrations(federation.federation) as administrations:
        assert administrations.apply(plan(federation.federation, administrations.observe())).error is None
    wait(federation, run, lambda route: route["well"] and route["canary_age_seconds"] < 10)
    assert run.end() == 0
