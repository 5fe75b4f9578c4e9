"""All-active with RabbitMQ, verified: a stream beside the exchange records what passes, and `isthmus verify` judges every flow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.bridge.hosted_run import HostedRun
from harness.client.rabbitmq_client import RabbitClient
from harness.matrix.any_to_any import typed
from harness.server.rabbitmq_server import PASSWORD, USER, RabbitServer, rabbit_server
from isthmus.connectors.administration import Administrations
from isthmus.connectors.rabbitmq.mapping.outward import to_record
from isthmus.connectors.rabbitmq.port.stream import StreamPeek
from isthmus.connectors.rabbitmq.system import SYSTEM
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.connectors.servicebus.head import peeked_message
from isthmus.errors import EntityNotFoundError, NotAllowedError
from isthmus.replication.verification.reconciliation.count import Verdict
from isthmus.replication.verification.reconciliation.reconcile import Reconciliation
from isthmus.replication.verification.verify import verify
from isthmus.testing.bridge.message import key_of, message
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.topology import plan
from isthmus.topology.file.source import load
from isthmus.topology.model import Federation
from isthmus.transport import Sender

SECONDS = 120.0
MESSAGES = 100
AUDIT = "isthmus.flights.$audit"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    with rabbit_server(tmp_path_factory.mktemp("rabbit")) as made:
        yield made


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBIT_PASSWORD", PASSWORD)


def options(server: RabbitServer) -> dict[str, str]:
    return {"host": f"127.0.0.1:{server.port}", "username": USER, "password": "env:RABBIT_PASSWORD"}


class World:
    """A namespace and an exchange that are members of one task."""

    def __init__(self, folder: Path, ewr: NamespaceProcess, server: RabbitServer) -> None:
        self.folder, self.ewr, self.server = folder, ewr, server
        file = folder / "isthmus.yaml"
        file.write_text(
            "isthmus: 1\nnamespaces:\n"
            f"  ewr: {{connection: env:EWR, ca_file: {ewr.ca_file}}}\n"
            f"  lga: {{kind: rabbitmq, host: '127.0.0.1:{server.port}', username: {USER}, password: env:RABBIT_PASSWORD, "
            f"management: 'http://127.0.0.1:{server.management_port}'}}\n"
            "tasks:\n  flights: {pattern: all-active, topic: flights, members: [ewr, lga], audit: 1d}\n"
        )
        self.federation: Federation = load(str(file))
        self.run: HostedRun | None = None

    def apply(self) -> int:
        """Makes what is missing; how much it was."""
        with Administrations(self.federation) as administrations:
            made = plan(self.federation, administrations.observe())
            assert not made.faults
            assert administrations.apply(made).error is None
            return len(made.changes)

    def publish(self, alias: str, first: int, count: int) -> None:
        messages = [typed(f"{alias}/{number}") for number in range(first, first + count)]
        if alias == "ewr":
            endpoint = endpoint_of_string(ConnectionString.parse(self.ewr.connection_string))
            with open_client(endpoint, "flights", "publisher") as client:
                Sender(client, "flights").wait_ready().send_all(messages)
            return
        with RabbitClient(self.server.port) as client:
            client.publish([to_record(each)._replace(exchange="flights", routing_key="a.b") for each in messages])

    def start(self) -> None:
        """Routes run."""
        self.run = HostedRun(self.folder / "isthmus.yaml", self.folder / f"run{time.monotonic_ns()}")

    def stop(self) -> None:
        """They do not."""
        if self.run is not None:
            self.run.end()
            self.run = None

    def verdict(self) -> Reconciliation:
        return next(iter(verify(self.federation, by_hour=True)))

    def wait(self, is_done: Callable[[Reconciliation], bool]) -> Reconciliation:
        limit = time.monotonic() + SECONDS
        while not is_done(found := self.verdict()):
            assert time.monotonic() < limit, found.to_dict()
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, server: RabbitServer) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with namespace(folder / "ewr") as ewr, pytest.MonkeyPatch.context() as patch:
        patch.setenv("EWR", ewr.connection_string)
        patch.setenv("RABBIT_PASSWORD", PASSWORD)
        made = World(folder, ewr, server)
        yield made
        made.stop()


def test_apply_binds_a_stream_once(world: World, server: RabbitServer) -> None:
    assert world.apply() > 0
    found = server.call("GET", f"queues/%2F/{AUDIT.replace('$', '%24')}")
    assert found["type"] == "stream"
    assert found["arguments"]["x-max-age"] == "86400s"
    assert world.apply() == 0


def test_every_flow_is_judged(world: World) -> None:
    world.publish("lga", 0, MESSAGES)
    waits = world.verdict()
    assert {kind: waits.total(kind) for kind in ("entered", "arrived", "waiting", "lost")} == {
        "entered": MESSAGES,
        "arrived": 0,
        "waiting": MESSAGES,
        "lost": 0,
    }
    world.start()
    world.publish("ewr", 0, MESSAGES)
    world.publish("lga", MESSAGES, MESSAGES)
    found = world.wait(lambda result: result.total("arrived") == 3 * MESSAGES)
    reported = found.to_dict()
    assert found.verdict is Verdict.CLEAN, reported
    assert not found.doubts
    # The stream contains no time: the copies do.
    assert sum(each.counts["arrived"] for each in found.hours if each.hour is not None) == 3 * MESSAGES
    assert {(each["origin"], each["member"]) for each in reported["comparisons"]} == {
        (a, b) for a in ("ewr", "lga") for b in ("ewr", "lga")
    }
    assert [found.total(kind) for kind in ("lost", "duplicated", "out_of_order", "unequal", "forged", "unknown")] == [
        0
    ] * 6


def test_a_loss_at_either_end_is_reported(world: World, server: RabbitServer) -> None:
    """What a queue of the task loses, e.g. because it is purged, is lost: the record knows that it entered."""
    world.stop()
    world.publish("lga", 2 * MESSAGES, 10)
    server.call("DELETE", "queues/%2F/isthmus.flights.ewr/contents")
    found = world.wait(lambda result: not result.total("waiting"))
    assert found.total("lost") == 10
    assert found.verdict is Verdict.FAULTY


def test_a_stream_is_read_whole_from_any_offset(server: RabbitServer) -> None:
    """isthmus.connectors.rabbitmq.port.stream, I1 to I3"""
    name = server.queue(f"s{AUDIT}", "stream")
    with closing(StreamPeek(options(server), name)) as peek:
        assert peek(0, 10) == ()
        with RabbitClient(server.port) as client:
            for start in range(0, 5000, 500):
                client.publish(
                    [to_record(message(f"k/{each}"))._replace(routing_key=name) for each in range(start, start + 500)]
                )
        assert [key_of(each) for each in peek(0, 7)] == [f"k/{each}" for each in range(7)]
        keys: list[str] = []
        while page := peek(len(keys), 250):
            assert peeked_message(page[0]).sequence == len(keys)
            keys += [key_of(each) for each in page]
        assert keys == [f"k/{each}" for each in range(5000)]
        assert [key_of(each) for each in peek(4321, 2)] == ["k/4321", "k/4322"]
        assert peek(5000, 1) == ()
        with RabbitClient(server.port) as client:
            client.publish([to_record(message("k/5000"))._replace(routing_key=name)])
        assert [key_of(each) for each in peek(5000, 9)] == ["k/5000"]


def test_a_queue_is_not_browsed(server: RabbitServer) -> None:
    with pytest.raises(NotAllowedError, match="without taking"):
        SYSTEM.peek(options(server), server.queue("plain"))
    with pytest.raises(EntityNotFoundError):
        SYSTEM.peek(options(server), f"nothing{AUDIT}")
