"""The run of `isthmus drill`, with routes of a lease without Spark: the loss of a member under load loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.bridge.hosted_lease import carried
from isthmus.amqp import section
from isthmus.demo.drill import drill
from isthmus.demo.drill.drill import Drill, DrillPlan
from isthmus.errors import InvalidArgumentError
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.route_spec import route_spec
from isthmus.testing.federation import FederationProcess
from isthmus.topology.model import Endpoint
from isthmus.topology.route import routes
from isthmus.transport import Sender

TASKS = {
    "active-passive": "  drill: {pattern: active-passive, queue: drill, primary: ewr, secondary: jfk, failover_within: 5m}\n",
    "all-active": "  drill: {pattern: all-active, queue: drill, members: [ewr, jfk]}\n",
}


class Killed:
    """Members that are killed, and their states as they are asked for."""

    def __init__(self, federation: FederationProcess) -> None:
        self._namespaces = federation.namespaces
        self.asked: list[str] = []

    def lose(self, alias: str) -> None:
        self.asked.append(f"lose {alias}")
        self._namespaces[alias].kill()

    def bring_back(self, alias: str) -> None:
        self.asked.append(f"bring back {alias}")
        self._namespaces[alias].start()


@pytest.mark.parametrize("pattern", TASKS)
def test_nothing_is_lost_or_handled_twice(pattern: str, tmp_path: Path) -> None:
    plan = DrillPlan(pattern=pattern, rate_per_second=50, before_seconds=1, away_seconds=2, after_seconds=1)
    with FederationProcess(tmp_path, written=TASKS[pattern]) as opened:
        specs = [route_spec(route, opened.federation) for route in routes(opened.federation)]
        with carried(tmp_path, specs):
            members = Killed(opened)
            report = Drill(opened.federation, plan, members).play()
        assert members.asked == ["lose ewr", "bring back ewr"]
        assert report.sent >= 150
        assert report.handled == report.sent
        assert (report.lost, report.handled_twice) == (0, 0)
        assert report.rto_seconds is not None

        # A message of another sender ends a drill, and stays.
        with NamespaceClients(opened.federation) as clients, clients.open(Endpoint("ewr", "drill")) as client:
            other = section.encode_message(b"order", properties={"message_id": "order-1"})
            Sender(client, "drill").wait_ready().send_all([other])
        with pytest.raises(InvalidArgumentError, match="'order-1'"):
            Drill(opened.federation, plan, Killed(opened)).play()
        with NamespaceClients(opened.federation) as clients:
            peek = clients.peek(Endpoint("ewr", f"drill/Subscriptions/{drill.CONSUMERS}"))
            assert any(b"order-1" in each for each in peek(0, 1000))
