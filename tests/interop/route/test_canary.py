"""Canaries between served namespaces: their age is reported, applications do not get them, and what brings none is stalled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.bridge.hosted_lease import carried
from isthmus.connectors.administration import Administrations
from isthmus.operations.message import read
from isthmus.operations.peek import messages
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.query.route_progress import RouteProgress
from isthmus.replication.route_spec import route_spec
from isthmus.supervisor.condition import Condition, Phase
from isthmus.supervisor.watch.canary_watch import CanaryWatch
from isthmus.testing.federation import TOPIC, FederationProcess
from isthmus.topology import plan
from isthmus.topology.model import Endpoint, Route
from isthmus.topology.planning.change import Change
from isthmus.topology.route import routes
from isthmus.topology.state import RuleState

WAIT_SECONDS = 180.0
COUNT = 100


@pytest.fixture(name="federation", scope="module")
def _federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path_factory.mktemp("federation"), settings=["canary: 1s"]) as running:
        yield running


def wait(condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)


def properties(federation: FederationProcess, alias: str, subscription: str) -> list[dict[str, Any]]:
    path = f"{TOPIC}/Subscriptions/{subscription}"
    with NamespaceClients(federation.federation) as clients, clients.open(Endpoint(alias, path)) as client:
        return [read(each).properties for each in messages(client, path)]


def test_the_true_age_is_reported_and_applications_see_nothing_of_it(
    federation: FederationProcess, tmp_path: Path
) -> None:
    there, back = routes(federation.federation)
    forbidden: set[str] = set()
    watch = CanaryWatch(
        (there, back), lambda: NamespaceClients(federation.federation), lambda route: route.task not in forbidden
    ).start()
    specs = [route_spec(route, federation.federation) for route in (there, back)]

    def reported(route: Route) -> tuple[float | None, float | None, float]:
        return watch.figures(route, time.monotonic())

    try:
        with carried(tmp_path, specs):
            wait(lambda: all(reported(route)[1] is not None and reported(route)[2] == 0 for route in (there, back)))
            for route in (there, back):
                age, latency, _ = reported(route)
                assert age is not None
                assert latency is not None
                assert 0 < latency <= age
            federation.publish("ewr", COUNT)
            federation.publish("jfk", COUNT)
            wait(lambda: all(len(properties(federation, alias, "audit")) == 2 * COUNT for alias in ("ewr", "jfk")))
            for alias in ("ewr", "jfk"):
                assert not [each for each in properties(federation, alias, "audit") if "isthmus-canary" in each]
                # Canaries bring no canary back.
                other = "jfk" if alias == "ewr" else "ewr"
                assert not [
                    each
                    for each in properties(federation, alias, f"isthmus.{TOPIC}.{other}")
                    if str(each.get("isthmus-canary")).startswith(f"{TOPIC}.{other}.")
                ]
            result = federation.verify()
            assert result.clean, result.to_dict()

            # What the target acknowledges arrives nowhere: its subscription selects nothing any more.
            deaf = RuleState("isthmus-canary", "[isthmus-canary] = 'nobody'")
            subscription = f"isthmus.{TOPIC}.canary"
            change = Change(
                alias="jfk",
                action="update",
                kind="rule",
                topic=TOPIC,
                subscription=subscription,
                after=deaf,
            )
            with Administrations(federation.federation) as administrations:
                administrations.observe()
                assert administrations.make((change,)).error is None
            wait(lambda: reported(there)[2] > 0)
            wait(lambda: reported(back)[2] == 0)
            wait(lambda: reported(there)[2] > 0)
            condition = Condition()
            condition.starting(0.0)
            condition.canary = reported(there)
            condition.seen(time.monotonic(), RouteProgress())
            assert condition.phase is Phase.STALLED

            # Applied again, canaries arrive.
            with Administrations(federation.federation) as administrations:
                assert administrations.apply(plan(federation.federation, administrations.observe())).error is None
            wait(lambda: reported(there)[2] == 0)

            forbidden.add(TOPIC)  # paused, or the claim is lost: nothing is sent
            time.sleep(0.5)
            age = reported(back)[0]
            assert age is not None
            wait(lambda: (reported(back)[0] or 0) > age + 3)
    finally:
        watch.close()
