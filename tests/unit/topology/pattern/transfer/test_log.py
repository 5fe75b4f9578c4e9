"""isthmus.topology.pattern.transfer.log: transfers from and to logs. Their faults: fixtures/topology/faults/logs.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.replication.route_spec import route_spec
from isthmus.topology import read
from isthmus.topology.claim import claims
from isthmus.topology.model import Endpoint, Flow, Route
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.state import GroupState, LogState, QueueState

FILE = Path(__file__).parents[4] / "fixtures" / "topology" / "faults" / "logs_sound.yaml"
FEDERATION = read(FILE.read_text())


def wanted(task: str) -> list[tuple[str, Any]]:
    declared = FEDERATION.tasks[task]
    return list(PATTERNS[declared.pattern].wanted(declared))


def routes(task: str) -> list[Route]:
    declared = FEDERATION.tasks[task]
    return list(PATTERNS[declared.pattern].routes(declared))


def flows(task: str) -> list[Flow]:
    declared = FEDERATION.tasks[task]
    return list(PATTERNS[declared.pattern].audit(declared))


def test_a_log_is_copied_by_a_group_to_a_log_of_as_many_partitions() -> None:
    assert wanted("mirror") == [
        ("hub", LogState(name="flights", groups=(GroupState(name="isthmus.mirror.lake", start="now"),))),
        ("lake", LogState(name="flights", like=("hub", "flights"))),
    ]
    (route,) = routes("mirror")
    assert (route.options.log.group, route.options.log.partitioning) == ("isthmus.mirror.lake", "source")
    assert (route.options.mark, route.options.refused) == ("", "block")
    spec = route_spec(route, FEDERATION)
    assert spec.source.options["topic"] == spec.target.options["topic"] == "flights"
    assert "policy" not in spec.target.options


def test_what_no_namespace_can_hold_a_claim_of_is_not_claimed_and_shares_its_partitions() -> None:
    assert list(claims(FEDERATION.tasks["mirror"])) == []
    spec = route_spec(routes("mirror")[0], FEDERATION)
    assert spec.claim == ""
    assert spec.source.options["member"] == ""
    assert [alias for alias, _ in claims(FEDERATION.tasks["merge2"])] == ["ewr"]
    assert [route.is_claimed for route in routes("merge2")] == [True, False]


def test_a_topic_is_copied_to_a_log_by_a_subscription() -> None:
    topic, log = wanted("out")
    assert [each.name for each in topic[1].subscriptions] == ["audit", "isthmus.out.hub"]
    assert log == ("hub", LogState(name="flights-ewr"))
    (route,) = routes("out")
    assert route.options.mark
    assert route.options.log.partitioning == "key"


@pytest.mark.parametrize(("task", "partitions"), [("merge", None), ("emptied", 3)])
def test_a_queue_is_emptied_into_a_log_with_its_policy(task: str, partitions: int | None) -> None:
    queue, log = wanted(task)[0][1], wanted(task)[1][1]
    assert isinstance(queue, QueueState)
    assert log == LogState(name=queue.name, initial_partitions=partitions)
    assert '"dead_letters_returning": true' in route_spec(routes(task)[0], FEDERATION).target.options["policy"]


def test_what_is_compared() -> None:
    assert flows("mirror") == [
        Flow(
            origin=Endpoint("hub", "flights"),
            witness=Endpoint("hub", "flights"),
            target=Endpoint("lake", "flights"),
            routes=("mirror.hub.lake",),
            target_is_consumed=False,
        )
    ]
    (flow,) = flows("out")
    assert flow.witness.entity == "flights/Subscriptions/audit"
    assert (flow.target, flow.target_is_consumed) == (Endpoint("hub", "flights-ewr"), False)
    (flow,) = flows("emptied")
    assert (flow.witness.entity, flow.origin_is_consumed, flow.target_is_consumed) == ("", False, False)
