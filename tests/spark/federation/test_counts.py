"""What a run reports of messages that it moved, and of those that it did not."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Long, Symbol, Timestamp
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.supervisor.watch.survey import survey
from isthmus.testing.federation import TOPIC, FederationProcess
from isthmus.topology.model import Endpoint
from isthmus.transport import Sender

pytestmark = pytest.mark.spark


def been_at_the_target(count: int, namespace: str) -> list[bytes]:
    """Copies that a route discards, since they come from the namespace, by its identity, to which it would send them."""
    annotations = {Symbol("x-opt-sequence-number"): Long(1), Symbol("x-opt-enqueued-time"): Timestamp(1)}
    rewriter = MessageRewriter(f"jfk/{TOPIC}", "ewr", origin_namespace=namespace)
    copies = [
        rewriter.copy(
            section.encode_message(b"body", annotations=annotations, properties={"message_id": f"back-{number}"}),
            time.time_ns() // 1_000_000,
        )
        for number in range(count)
    ]
    return [copy for copy in copies if isinstance(copy, bytes)]


def test_moved_is_distinguished_from_what_was_discarded_also_after_the_run(tmp_path: Path) -> None:
    with FederationProcess(tmp_path) as federation:
        federation.publish("ewr", 200)
        with NamespaceClients(federation.federation) as clients, clients.open(Endpoint("ewr", TOPIC)) as client:
            (jfk,) = clients.identities(["jfk"]).keys() - {"jfk"}
            Sender(client, TOPIC).wait_ready().send_all(been_at_the_target(7, jfk))
        run = federation.run("--available-now", "--json", "--retry-first", "1")
        assert run.wait(300) == 0, run.log()[-3000:]
        reported = json.loads(run.log().strip().splitlines()[-1])
        assert (reported["state"], reported["moved"], reported["discarded"], reported["dead_lettered"]) == (
            "ended",
            200,
            7,
            0,
        )
        found = survey(federation.federation, federation.state)
        assert (found["alive"], found["state"]) == (False, "ended")
        route = next(each for each in found["routes"] if each["name"] == "flights.ewr.jfk")
        assert (route["phase"], route["moved"], route["discarded"], route["waiting"]) == ("stopped", 200, 7, 0)
        assert {(each["namespace"], each["limit_bytes"]) for each in found["fill"]} == {
            ("ewr", 5 << 30),
            ("jfk", 5 << 30),
        }
