"""What a new route begins with, at real namespaces: what `start` says, and which remedy is named where it cannot be kept."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient
from typer.testing import CliRunner

from harness.bridge.hosted_run import HostedRun
from harness.bridge.port_host import message_id
from isthmus.amqp import section
from isthmus.cli.app import create_app
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.connectors.servicebus.head import peeked_message as sequence_of
from isthmus.demo.example.application import publish
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.testing.namespace import NamespaceProcess
from isthmus.topology.file.source import load
from isthmus.topology.model import Endpoint
from isthmus.transport import Management

HEAD = """isthmus: 1
namespaces:
  ewr: {{connection: "file:{folder}/ewr.txt", ca_file: "{ewr}"}}
  jfk: {{connection: "file:{folder}/jfk.txt", ca_file: "{jfk}"}}
tasks:
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NamespaceProcess]]:
    made = {alias: NamespaceProcess(tmp_path_factory.mktemp(alias)) for alias in ("ewr", "jfk")}
    try:
        for each in made.values():
            each.start()
        yield made
    finally:
        for each in made.values():
            each.stop()


def written(pair: dict[str, NamespaceProcess], folder: Path, *tasks: str) -> Path:
    for alias, each in pair.items():
        (folder / f"{alias}.txt").write_text(each.admin_connection_string)
    path = folder / "isthmus.yaml"
    head = HEAD.format(folder=folder, **{alias: each.ca_file for alias, each in pair.items()})
    path.write_text(head + "".join(f"  {each}\n" for each in tasks))
    return path


def verb(name: str, file: Path) -> str:
    answer = CliRunner().invoke(create_app(name), [name, str(file)])
    assert answer.exit_code == 0, answer.output
    return " ".join(answer.output.split())


def send(served: NamespaceProcess, names: list[str], *, queue: str = "", topic: str = "") -> None:
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        sender = client.get_queue_sender(queue) if queue else client.get_topic_sender(topic)
        with sender:
            sender.send_messages([ServiceBusMessage(b"x", message_id=each) for each in names])


def remaining(served: NamespaceProcess, path: str) -> Counter[str]:
    with open_client(endpoint_of_string(ConnectionString.parse(served.connection_string)), path, "test") as client:
        return Counter(message_id(each) for each in Management(client, path).peek(0, 1000))


def administration(served: NamespaceProcess) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        served.admin_connection_string, connection_verify=str(served.ca_file)
    )


@contextmanager
def carried(file: Path, name: str) -> Iterator[None]:
    run = HostedRun(file, file.parent / name)
    try:
        yield
        assert run.is_alive(), run.log()
    finally:
        run.end()


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("task", "queue", "target"),
    [
        ("pattern: move, source: ewr, queue: moved, target: jfk, start: existing", "moved", "moved"),
        ("pattern: split, source: ewr, queue: parted, start: existing, targets: [{to: jfk, queue: p}]", "parted", "p"),
    ],
)
def test_what_is_in_a_queue_that_a_task_empties_goes_with_it(
    pair: dict[str, NamespaceProcess], tmp_path: Path, task: str, queue: str, target: str
) -> None:
    early, late = [f"early{number}" for number in range(20)], [f"late{number}" for number in range(20)]
    with administration(pair["ewr"]) as admin:
        admin.create_queue(queue)
    send(pair["ewr"], early, queue=queue)
    file = written(pair, tmp_path, f"t{queue}: {{{task}}}")
    verb("apply", file)
    send(pair["ewr"], late, queue=queue)
    with carried(file, "run"):
        eventually(lambda: len(remaining(pair["jfk"], target)) == 40)
    assert remaining(pair["jfk"], target) == Counter(early + late)


def test_dead_letters_that_are_there_spill_too(pair: dict[str, NamespaceProcess], tmp_path: Path) -> None:
    with administration(pair["ewr"]) as admin:
        admin.create_queue("failing")
    send(pair["ewr"], ["early"], queue="failing")
    with (
        ServiceBusClient.from_connection_string(pair["ewr"].connection_string) as client,
        client.get_queue_receiver("failing") as receiver,
    ):
        for each in receiver.receive_messages(max_wait_time=5):
            receiver.dead_letter_message(each, reason="MaxDeliveryCountExceeded")
    task = "pattern: spillover, members: [ewr, jfk], queue: failing, deadline: 1h, start: existing"
    file = written(pair, tmp_path, f"spills: {{{task}}}")
    verb("apply", file)
    with carried(file, "run"):
        eventually(lambda: remaining(pair["jfk"], "failing") == Counter(["early"]))


def test_what_was_sent_to_a_topic_before_is_taken_along_as_plan_says(
    pair: dict[str, NamespaceProcess], tmp_path: Path
) -> None:
    early, late = [f"early{number}" for number in range(20)], [f"late{number}" for number in range(20)]
    for each in pair.values():
        with administration(each) as admin:
            admin.create_topic("flights")
            admin.create_subscription("flights", "boards")
    with administration(pair["ewr"]) as admin:
        admin.create_subscription("flights", "kept")
    send(pair["ewr"], early, topic="flights")
    shared = "flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}"
    file = written(pair, tmp_path, shared)
    reported = verb("plan", file)
    assert "topic flights at ewr exists: messages sent before `apply` creates isthmus.flights.jfk" in reported
    assert (
        "are not moved to jfk/flights (start: now). To include them, empty a subscription that has these messages"
        in reported
    )
    verb("apply", file)
    assert "messages sent before" not in verb("plan", file)
    send(pair["ewr"], late, topic="flights")
    with carried(file, "run"):
        eventually(lambda: len(remaining(pair["jfk"], "flights/Subscriptions/boards")) == 20)
    assert remaining(pair["jfk"], "flights/Subscriptions/boards") == Counter(late)
    # For once, from a subscription that no application reads.
    file = written(
        pair, tmp_path, shared, "early: {pattern: move, source: ewr, topic: flights, subscription: kept, target: jfk}"
    )
    verb("apply", file)
    with carried(file, "run2"):
        eventually(lambda: len(remaining(pair["jfk"], "flights/Subscriptions/boards")) == 40)
        eventually(lambda: not remaining(pair["ewr"], "flights/Subscriptions/kept"))
        eventually(lambda: not remaining(pair["jfk"], "flights/Subscriptions/isthmus.flights.ewr"))
    assert remaining(pair["jfk"], "flights/Subscriptions/boards") == Counter(early + late)
    assert remaining(pair["ewr"], "flights/Subscriptions/boards") == Counter(early + late), "nothing has come back"


HUBS = """isthmus: 1
namespaces:
  one: {{kind: eventhubs, connection: "file:{folder}/one.txt", ca_file: "{one}", checkpoints: checkpoints}}
  two: {{kind: eventhubs, connection: "file:{folder}/two.txt", ca_file: "{two}", checkpoints: checkpoints}}
tasks:
  {task}: {{pattern: all-active, topic: flights, members: [one, two], start: {start}}}
"""


@pytest.mark.parametrize("start", ["now", "existing"])
def test_members_that_are_logs_begin_as_the_task_says(
    pair: dict[str, NamespaceProcess], tmp_path: Path, start: str
) -> None:
    hubs = {"one": pair["ewr"], "two": pair["jfk"]}
    for alias, each in hubs.items():
        (tmp_path / f"{alias}.txt").write_text(each.admin_connection_string)
    where = {alias: each.ca_file for alias, each in hubs.items()}
    topic = f"hub-{start}"

    def task(name: str) -> Path:
        path = tmp_path / "isthmus.yaml"
        path.write_text(HUBS.format(folder=tmp_path, task=name, start=start, **where).replace("flights", topic))
        return path

    def send_to_all(prefix: str) -> None:
        federation = load(str(tmp_path / "isthmus.yaml")).anchored(tmp_path)
        for alias in hubs:
            names = [f"{prefix}-{alias}-{number}" for number in range(10)]
            messages = [section.encode_message(b"x", properties={"message_id": each}) for each in names]
            assert len(list(publish(federation, Endpoint(alias, topic), messages))) == 10

    def at(alias: str) -> Counter[str]:
        found: Counter[str] = Counter()
        federation = load(str(tmp_path / "isthmus.yaml")).anchored(tmp_path)
        with NamespaceClients(federation, "test") as clients:
            peek, first = clients.peek(Endpoint(alias, topic)), 0
            while page := peek(first, 250):
                found.update(map(message_id, page))
                first = sequence_of(page[-1]).sequence + 1
        return found

    def has(alias: str, expected: Counter[str]) -> bool:
        return at(alias) >= expected

    verb("apply", task("before"))
    send_to_all("early")
    file = task("after")  # groups of its own
    verb("apply", file)
    send_to_all("late")
    late = {f"late-{alias}-{number}" for alias in hubs for number in range(10)}
    early = {alias: {f"early-{alias}-{number}" for number in range(10)} for alias in hubs}
    every = early["one"] | early["two"]
    with carried(file, "run"):
        for alias in hubs:
            expected = Counter(late | (every if start == "existing" else early[alias]))
            eventually(partial(has, alias, expected))
        time.sleep(1.0)
    for alias in hubs:
        assert at(alias) == Counter(late | (every if start == "existing" else early[alias])), "nothing goes round"
