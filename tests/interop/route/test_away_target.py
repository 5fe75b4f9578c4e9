"""A target that accepts nothing for a long time: what its routes hold at their sources is given back each time without a failed delivery."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from harness.bridge.hosted_lease import carried, queue_route
from isthmus.amqp import section
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Management, Sender

ENTITIES = """
queues:
  plain: {}
  toplain: {status: SendDisabled}
  insessions: {requires_session: true}
  tosessions: {requires_session: true, status: SendDisabled}
  strict: {}
  tostrict: {status: SendDisabled}
"""
COUNT = 30
TARGETS = ("toplain", "tosessions", "tostrict")


@pytest.fixture(scope="module")
def served() -> Iterator[NamespaceProcess]:
    with namespace(config=ENTITIES) as running:
        yield running


def remaining(served: NamespaceProcess, path: str) -> list[tuple[str, int]]:
    """MessageId and DeliveryCount of what is in a queue, in order."""
    found = []
    with open_client(endpoint_of_string(ConnectionString.parse(served.connection_string)), path, "test") as client:
        for message in Management(client, path).peek(0, 250):
            at = section.locate(message)
            header = section.decode_header(message, at.header)
            found.append(
                (str(section.decode_properties(message, at.properties)["message_id"]), header.delivery_count or 0)
            )
    return found


def test_no_delivery_count_rises_while_the_target_is_unavailable(
    served: NamespaceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWAY_TEST", served.connection_string)
    names = [f"s{number % 3}/{number}" for number in range(COUNT)]
    for source in ("plain", "insessions", "strict"):
        with open_client(
            endpoint_of_string(ConnectionString.parse(served.connection_string)), source, "test"
        ) as client:
            messages = [
                section.encode_message(b"x", properties={"message_id": name, "group_id": name.partition("/")[0]})
                for name in names
            ]
            Sender(client, source).wait_ready().send_all(messages, batch=COUNT)
    there = {"connection": "env:AWAY_TEST"}
    # An opening that ends after a second: in a run it is half a minute.
    routes = [
        queue_route({**there, "entity": "plain"}, {**there, "entity": "toplain"}, target_seconds=1.0),
        queue_route(
            {**there, "entity": "insessions", "sessions": "2"}, {**there, "entity": "tosessions"}, target_seconds=1.0
        ),
        queue_route({**there, "entity": "strict"}, {**there, "entity": "tostrict"}, target_seconds=1.0, is_strict=True),
    ]
    named = [route.__class__.from_json({**route.to_json(), "name": f"a/{n}"}) for n, route in enumerate(routes)]
    with carried(tmp_path, named):
        time.sleep(6.0)
        for source in ("plain", "insessions", "strict"):
            assert sorted(remaining(served, source)) == sorted((name, 0) for name in names), source
        with ServiceBusAdministrationClient.from_connection_string(
            served.admin_connection_string, connection_verify=str(served.ca_file)
        ) as admin:
            for target in TARGETS:
                queue = admin.get_queue(target)
                queue.status = "Active"
                admin.update_queue(queue)
        limit = time.monotonic() + 60
        while any(len(remaining(served, target)) < COUNT for target in TARGETS):
            assert time.monotonic() < limit, {target: remaining(served, target) for target in TARGETS}
            time.sleep(0.2)
    for target in TARGETS:
        arrived = [name for name, _ in remaining(served, target)]
        assert sorted(arrived) == sorted(names)
        by_session = [[name for name in arrived if name.startswith(f"s{n}/")] for n in range(3)]
        assert by_session == [[name for name in names if name.startswith(f"s{n}/")] for n in range(3)]
    assert [name for name, _ in remaining(served, "tostrict")] == names
