"""Kafka and a namespace in one federation file: records become messages, messages become records, through lint, apply and run."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from typer.testing import CliRunner

from harness.bridge.kafka_join import consumed, publish, wait
from harness.server.kafka_broker import PASSWORD, USER, KafkaBroker, broker
from isthmus.cli.app import create_app
from isthmus.connectors.administration import Administrations
from isthmus.replication.verification.verify import verify
from isthmus.supervisor.status import read_status
from isthmus.supervisor.watch.survey import survey
from isthmus.testing.federation import RunProcess
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.topology import plan
from isthmus.topology.file.source import load

pytestmark = pytest.mark.spark

CONFIG = """
queues:
  departures: {requires_duplicate_detection: true, requires_session: true}
  outgoing: {}
  old: {}
"""
TASKS = """
tasks:
  departures:
    {pattern: stream-to-queue, source: hub, stream: flights, target: ewr, queue: departures, sessions: true, partitions: 3}
  arrivals:
    {pattern: queue-to-stream, source: ewr, queue: outgoing, target: hub, stream: arrivals, partitions: 2}
  mirror: {pattern: copy, source: hub, topic: flights, target: hub, target_topic: flights-copy}
  kept: {pattern: archive, source: hub, stream: flights, table: lake/flights, batch_interval: 1s}
  emptied: {pattern: move, source: ewr, queue: old, target: hub, target_topic: old, partitioning: single}
"""
LOOK_SECONDS = 0.5
MOVED = {"departures": 1010, "arrivals": 300, "mirror": 1010, "emptied": 50}
"""What the tasks that keep no table have moved once the first test's messages are."""


class Streams:
    """A federation of one cluster, reached by TLS and a password, and one namespace."""

    def __init__(self, folder: Path, kafka: KafkaBroker, served: NamespaceProcess) -> None:
        self.folder = folder
        self.kafka = kafka
        self.served = served
        secrets = folder / "secrets.json"
        secrets.write_text(json.dumps({"ewr": served.connection_string, "kafka": PASSWORD}))
        self.file = folder / "isthmus.yaml"
        self.file.write_text(
            "isthmus: 1\nnamespaces:\n"
            f'  ewr: {{connection: "file:secrets.json#ewr", ca_file: {served.ca_file}}}\n'
            f"  hub: {{kind: kafka, bootstrap: '{kafka.secure['sasl_ssl']}', security: sasl_ssl, mechanism: SCRAM-SHA-512, "
            f'username: {USER}, password: "file:secrets.json#kafka", ca_file: {kafka.ca_file}}}\n{TASKS}'
        )
        self.federation = load(self.file)
        self.runs: list[RunProcess] = []

    def apply(self) -> list[str]:
        """Makes the entities; the paths of what was changed."""
        with Administrations(self.federation) as administrations:
            applied = administrations.apply(plan(self.federation, administrations.observe()))
        assert applied.error is None, applied.error
        return [f"{change.alias} {change.kind} {change.path}" for change in applied.done]

    def run(self, *arguments: str) -> RunProcess:
        run = RunProcess(
            [str(self.file), "--retry-first", "1", *arguments],
            self.folder / "state",
            self.folder / f"run-{len(self.runs)}.log",
        )
        self.runs.append(run)
        return run

    def running(self) -> RunProcess:
        """The run that continues from one test to the next, once its routes are open."""
        alive = [run for run in self.runs if run.is_alive()]
        run = alive[0] if alive else self.run("--json")
        run.wait_phase(("waiting", "moving"))
        return run

    def survey(self) -> dict[str, Any]:
        """What `isthmus status` reports of each route."""
        return {route["name"]: route for route in survey(self.federation, self.folder / "state")["routes"]}

    def bus(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.served.connection_string)

    def received(self, session: str) -> list[Any]:
        """Everything in a session."""
        found: list[Any] = []
        with self.bus() as client, client.get_queue_receiver("departures", session_id=session) as receiver:
            while batch := receiver.receive_messages(500, max_wait_time=2):
                found += batch
                for each in batch:
                    receiver.complete_message(each)
        return found


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    folder = tmp_path_factory.mktemp("streams")
    (folder / "kafka").mkdir()
    with broker(folder / "kafka", is_secure=True) as kafka, namespace(folder / "ewr", config=CONFIG) as served:
        made = Streams(folder, kafka, served)
        made.kafka.create("flights", 3)
        publish(
            kafka.address, "flights", 9000, 9010, keys=5
        )  # is there before `apply`, and is passed over: start is now
        with Administrations(made.federation) as administrations:
            noted = plan(made.federation, administrations.observe()).notes
        assert sum("records published before `apply` are not moved" in note for note in noted) == 3
        assert sorted(made.apply()) == [
            "ewr queue old",
            "ewr subscription isthmus.claims/Subscriptions/arrivals",
            "ewr subscription isthmus.claims/Subscriptions/departures",
            "ewr subscription isthmus.claims/Subscriptions/emptied",
            "ewr topic isthmus.claims",
            "hub group flights/Groups/isthmus.departures",
            "hub group flights/Groups/isthmus.kept",
            "hub group flights/Groups/isthmus.mirror.hub",
            "hub log arrivals",
            "hub log flights-copy",
            "hub log old",
        ]
        assert made.apply() == []
        try:
            yield made
        finally:
            for run in made.runs:
                run.end(signal.SIGKILL)


def numbers(records: dict[int, list[Any]]) -> dict[int, list[int]]:
    """The numbers of records by partition."""
    return {partition: [int(each.value()) for each in found] for partition, found in records.items()}


def counted(run: RunProcess) -> dict[str, int]:
    """Messages that each task but the archive has moved, as the run reports it."""
    document = read_status(run.state)
    assert document is not None
    return {route["task"]: int(route["moved"]) for route in document["routes"] if route["task"] != "kept"}


def moved(run: RunProcess) -> int:
    """Messages that the route from the stream to the queue has moved."""
    return counted(run)["departures"]


def test_both_directions_in_one_run(streams: Streams) -> None:
    publish(streams.kafka.address, "flights", 0, 1000, keys=5)
    publish(streams.kafka.address, "flights", 1000, 1010, partition=2)
    assert streams.survey()["departures.hub.ewr"]["waiting"] == 1010
    with streams.bus() as client, client.get_queue_sender("outgoing") as sender:
        for number in range(300):
            sender.send_messages(
                ServiceBusMessage(f"{number}", message_id=f"m{number}", partition_key=f"p{number % 4}", subject="s")
            )
    with streams.bus() as client, client.get_queue_sender("old") as sender:
        sender.send_messages([ServiceBusMessage(f"{number}", session_id=f"s{number % 3}") for number in range(50)])
    run = streams.running()
    # Counts, not what waits: that is unknown until the first look, and the archive takes records off its source before its table has them.
    wait(lambda: counted(run) == MOVED and len(archived(streams)) == 1010, "all to be moved", 240, LOOK_SECONDS)
    proofs = {each.task: each for each in verify(streams.federation)}
    assert {
        task: (proof.total("earlier"), proof.total("arrived"), proof.verdict.name) for task, proof in proofs.items()
    } == {
        "departures": (10, 1010, "CLEAN"),
        "arrivals": (0, 300, "CLEAN"),
        "mirror": (10, 1010, "CLEAN"),
        "kept": (10, 1010, "CLEAN"),
        "emptied": (0, 50, "CLEAN"),
    }, [proof.to_dict() for proof in proofs.values()]
    at = {alias: numbers(consumed(streams.kafka.address, alias, 1010)) for alias in ("flights", "flights-copy")}
    assert at["flights-copy"] == {key: [n for n in each if n < 9000] for key, each in at["flights"].items()}
    (old,) = consumed(streams.kafka.address, "old", 50).values()
    assert [(int(each.value()), each.key()) for each in old] == [(n, b"s%d" % (n % 3)) for n in range(50)]
    for key in range(5):
        found = streams.received(f"key-{key}")
        assert [int(str(each)) for each in found] == list(range(key, 1000, 5))
        assert {each.partition_key for each in found} == {f"key-{key}"}
        assert all(each.message_id.startswith("flights/") for each in found)
        assert len({each.message_id for each in found}) == 200
    assert [int(str(each)) for each in streams.received("partition-2")] == list(range(1000, 1010))
    arrived = consumed(streams.kafka.address, "arrivals", 300)
    by_key: dict[bytes, list[int]] = {}
    for records in arrived.values():
        for each in records:
            by_key.setdefault(each.key(), []).append(int(each.value()))
    assert by_key == {b"p%d" % key: list(range(key, 300, 4)) for key in range(4)}
    after = streams.survey()
    assert after["departures.hub.ewr"]["waiting"] == after["arrivals.ewr.hub"]["waiting"] == 0
    assert PASSWORD not in run.log() + json.dumps(after)


@pytest.mark.soak  # two further starts of Spark; what a kill does is asked of every kind by the conformance scenarios
def test_a_kill_doubles_nothing_and_a_second_run_is_refused(streams: Streams) -> None:
    run = streams.running()
    before = moved(run)
    kept = sorted(archived(streams))
    reported("pause", streams)
    wait(lambda: run.phases()["kept.hub.archive"] == "paused", "the archive to be paused", 120)
    other = streams.run("--state", str(streams.folder / "other"))
    assert other.wait(120) == 1
    assert f"is run by process {run.pid}" in other.log()
    publish(streams.kafka.address, "flights", 2000, 6000, keys=5)

    wait(lambda: moved(run) > before, "messages to move")
    run.end(signal.SIGKILL)
    assert sorted(archived(streams)) == kept, "a task that is paused archives nothing"
    reported("resume", streams)
    again = streams.run("--available-now")
    assert again.wait(240) == 0, again.log()[-3000:]
    (proof,) = verify(streams.federation, task="departures")
    assert proof.total("lost") == proof.total("duplicated") == 0, proof.to_dict()
    found = {key: [int(str(each)) for each in streams.received(f"key-{key}")] for key in range(5)}
    assert found == {key: list(range(2000 + key, 6000, 5)) for key in range(5)}
    assert sorted(archived(streams)) == [*kept, *range(2000, 6000)]
    assert {proof.total("lost") for proof in verify(streams.federation, task="kept")} == {0}


def archived(streams: Streams) -> list[int]:
    """The numbers that the table has, each as often as it is there."""
    files = (streams.folder / "lake" / "flights").glob("date=*/hour=*/*.parquet")
    return [int(body) for file in files for body in pq.ParquetFile(file).read(["body"]).column(0).to_pylist()]


def reported(verb: str, streams: Streams) -> None:
    command = [verb, str(streams.file), "kept", "--state", str(streams.folder / "state")]
    result = CliRunner().invoke(create_app(verb), command)
    assert result.exit_code == 0, result.output
