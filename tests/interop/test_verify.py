"""What `verify` tells of copies that real duplicate detection dropped, and of such as were lost."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from isthmus.amqp import section
from isthmus.connectors.servicebus.splice import Splicer
from isthmus.replication.reach import Reach
from isthmus.testing.federation import TOPIC, FederationProcess
from isthmus.topology.model import Endpoint
from isthmus.topology.route import routes
from isthmus.transport import Receiver, Sender

COUNT = 25


@pytest.fixture(name="federation", scope="module")
def _federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path_factory.mktemp("federation"), settings=["duplicates: message-id"]) as running:
        yield running


def publish(federation: FederationProcess, alias: str, names: list[str]) -> None:
    messages = [section.encode_message(b"body", properties={"message_id": name}) for name in names]
    with Reach(federation.federation) as reach, reach.open(Endpoint(alias, TOPIC)) as client:
        Sender(client, TOPIC).wait_ready().send_all(messages)


def move(federation: FederationProcess, source: str, count: int, *, lose: bool = False) -> None:
    """Moves what waits before a route as its sink would; or loses it."""
    route = next(route for route in routes(federation.federation) if route.source.alias == source)
    splicer = Splicer(f"{source}/{TOPIC}", route.target.alias)
    with (
        Reach(federation.federation) as reach,
        reach.open(route.source) as client,
        reach.open(route.target) as target,
    ):
        sender = Sender(target, route.target.entity).wait_ready()
        receiver = Receiver(client, route.source.entity).wait_attached()
        receiver.grant(count)
        client.wait_until(lambda: receiver.received >= count, 20, "messages")
        for run in receiver.take():
            for payload in () if lose else run.payloads:
                copy = splicer.copy(payload, time.time_ns() // 1_000_000)
                assert isinstance(copy, bytes)
                sender.send_all([copy])
            receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1)


def test_dropped_copies_are_told_from_lost_ones(federation: FederationProcess) -> None:
    both = [f"both-{number}" for number in range(COUNT)]
    publish(federation, "ewr", [*both, "once"])
    publish(federation, "jfk", both)
    assert federation.verify().total("waiting") == 2 * COUNT + 1
    move(federation, "ewr", COUNT + 1)
    move(federation, "jfk", COUNT)
    result = federation.verify()
    told = [result.total(kind) for kind in ("arrived", "waiting", "dropped", "lost", "duplicated")]
    assert (told, result.clean) == ([1, 0, 2 * COUNT, 0, 0], True)

    publish(federation, "ewr", ["gone"])
    move(federation, "ewr", 1, lose=True)
    result = federation.verify()
    assert (result.total("dropped"), result.total("lost"), result.clean) == (2 * COUNT, 1, False)
