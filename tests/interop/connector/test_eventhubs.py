"""Event hubs by their federation file without Spark: apply, the routes in one process, and what verify reports; azure-eventhub is the application."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from harness.bridge.kafka_join import join, wait
from isthmus.connectors.administration import Administrations
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.route_spec import route_spec
from isthmus.replication.verification.verify import verify
from isthmus.supervisor.watch.watch import BacklogMeter
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.topology import plan
from isthmus.topology.file.source import load
from isthmus.topology.model import Federation
from isthmus.topology.route import routes

QUEUES = """
queues:
  departures: {requires_duplicate_detection: true, requires_session: true}
  outgoing: {}
  old: {}
"""
HUBS = "event_hubs: {flights: {partition_count: 3}}\n"
FILE = """
isthmus: 1
namespaces:
  ewr: {connection: "file:%s#ewr", ca_file: %s}
  hub: {kind: eventhubs, connection: "file:%s#hub", ca_file: %s, checkpoints: checkpoints}
tasks:
  departures:
    {pattern: stream-to-queue, source: hub, stream: flights, target: ewr, queue: departures, sessions: true}
  arrivals: {pattern: queue-to-stream, source: ewr, queue: outgoing, target: hub, stream: arrivals, partitions: 2}
  mirror: {pattern: copy, source: hub, topic: flights, target: hub, target_topic: flights-copy, start: existing}
  emptied: {pattern: move, source: ewr, queue: old, target: hub, target_topic: old, partitioning: single}
"""
LOOK_SECONDS = 0.5
READ_SECONDS = 60.0


@pytest.fixture(name="hubs", scope="module")
def _hubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProcess]:
    with namespace(tmp_path_factory.mktemp("hubs"), config=HUBS) as running:
        yield running


@pytest.fixture(name="served", scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProcess]:
    with namespace(tmp_path_factory.mktemp("ewr"), config=QUEUES) as running:
        yield running


@pytest.fixture(name="federation", scope="module")
def _federation(
    hubs: NamespaceProcess, served: NamespaceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Federation:
    folder = tmp_path_factory.mktemp("federation")
    secrets = folder / "secrets.json"
    secrets.write_text(json.dumps({"ewr": served.connection_string, "hub": hubs.connection_string}))
    file = folder / "isthmus.yaml"
    file.write_text(FILE % (secrets, served.ca_file, secrets, hubs.ca_file))
    return load(file).anchored(folder)


def test_what_event_hubs_move_is_proved(
    federation: Federation, hubs: NamespaceProcess, served: NamespaceProcess
) -> None:
    _publish(hubs, range(9000, 9010))  # is there before `apply`
    with Administrations(federation) as administrations:
        made = plan(federation, administrations.observe())
        assert sum("records published before `apply` are not moved" in note for note in made.notes) == 1
        applied = administrations.apply(made)
        assert applied.error is None, applied.error
        assert not plan(federation, administrations.observe()).changes
    _publish(hubs, range(500))
    _publish(hubs, range(500, 505), partition="2")
    _send(served)
    # What nothing is moved of yet waits, and nothing is lost.
    before = {each.task: (each.total("waiting"), each.total("lost")) for each in verify(federation)}
    assert before == {"departures": (505, 0), "arrivals": (100, 0), "mirror": (515, 0), "emptied": (50, 0)}
    _move(federation)
    results = {each.task: each for each in verify(federation)}
    found = {task: (each.total("arrived"), each.total("earlier"), each.verdict.name) for task, each in results.items()}
    assert found == {
        "departures": (505, 10, "CLEAN"),
        "arrivals": (100, 0, "CLEAN"),
        "mirror": (515, 0, "CLEAN"),
        "emptied": (50, 0, "CLEAN"),
    }, [each.to_dict() for each in results.values()]
    original, copy = (_read(hubs, hub, 515) for hub in ("flights", "flights-copy"))
    # By key everything is in its order, and what had a partition and no key kept it.
    assert _bodies_by_key(original) == _bodies_by_key(copy)
    assert [each.body_as_str() for each in copy["2"] if not _key(each)] == [str(n) for n in range(500, 505)]
    (old,) = (events for events in _read(hubs, "old", 50).values() if events)
    assert [each.body_as_str() for each in old] == [str(n) for n in range(50)]
    arrivals = [each for events in _read(hubs, "arrivals", 100).values() for each in events]
    assert {_key(each) for each in arrivals} == {"p0", "p1", "p2", "p3"}
    with (
        ServiceBusClient.from_connection_string(served.connection_string) as client,
        client.get_queue_receiver("departures", session_id="k1") as receiver,
    ):
        first = receiver.receive_messages(1, max_wait_time=READ_SECONDS)[0]
    assert (str(first), first.partition_key) == ("1", "k1")
    assert str(first.message_id).startswith("flights/")


def _publish(hubs: NamespaceProcess, numbers: Sequence[int], partition: str | None = None) -> None:
    with EventHubProducerClient.from_connection_string(hubs.connection_string, eventhub_name="flights") as producer:
        for key in range(5 if partition is None else 1):
            where = {"partition_key": f"k{key}"} if partition is None else {"partition_id": partition}
            mine = [number for number in numbers if partition is not None or number % 5 == key]
            producer.send_batch([EventData(str(number)) for number in mine], **where)


def _send(served: NamespaceProcess) -> None:
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        for entity, messages in (
            (
                "outgoing",
                [ServiceBusMessage(f"{n}", message_id=f"m{n}", partition_key=f"p{n % 4}") for n in range(100)],
            ),
            ("old", [ServiceBusMessage(f"{n}", session_id=f"s{n % 3}") for n in range(50)]),
        ):
            with client.get_queue_sender(entity) as sender:
                sender.send_messages(messages)


def _move(federation: Federation) -> None:
    """Carries all routes until nothing waits."""
    specs = [replace(route_spec(route, federation), claim="") for route in routes(federation)]

    with NamespaceClients(federation, "test") as clients, join(*specs):
        meter = BacklogMeter()
        wait(
            lambda: not any(meter.measure(clients, route).waiting for route in routes(federation)),
            "everything to be moved",
            240,
            LOOK_SECONDS,
        )


def _read(hubs: NamespaceProcess, hub: str, count: int) -> dict[str, list[EventData]]:
    """The events of a hub by partition, as an application reads them."""
    found: dict[str, list[EventData]] = defaultdict(list)

    def take(context: object, event: EventData) -> None:
        found[context.partition_id].append(event)  # type: ignore[attr-defined]

    def reader() -> EventHubConsumerClient:
        return EventHubConsumerClient.from_connection_string(
            hubs.connection_string, consumer_group="$Default", eventhub_name=hub
        )

    with reader() as look:
        consumers = {number: reader() for number in look.get_partition_ids()}
    threads = [
        threading.Thread(
            target=consumer.receive,
            args=(take,),
            kwargs={"partition_id": number, "starting_position": "-1"},
            daemon=True,
        )
        for number, consumer in consumers.items()
    ]
    for thread in threads:
        thread.start()
    wait(lambda: sum(map(len, found.values())) >= count, f"{count} events of {hub}", READ_SECONDS)
    for consumer in consumers.values():
        consumer.close()
    for thread in threads:
        thread.join(READ_SECONDS)
    return found


def _bodies_by_key(events: dict[str, list[EventData]]) -> dict[str, list[str]]:
    bodies: dict[str, list[str]] = defaultdict(list)
    for of_partition in events.values():
        for event in of_partition:
            bodies[_key(event)].append(event.body_as_str())
    return bodies


def _key(event: EventData) -> str:
    """The SDK gives a key as its producer encoded it."""
    key = event.partition_key
    return key.decode() if isinstance(key, bytes) else key or ""
