"""Streams by their federation file without Spark: apply, the routes in one process, and what verify reports; and plain reads of a topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from confluent_kafka import OFFSET_END, TopicPartition

from harness.bridge.kafka_join import consumed, join, publish, wait
from harness.server.kafka_broker import KafkaBroker, broker
from isthmus.connectors.administration import Administrations
from isthmus.connectors.kafka.group import GroupOffsets
from isthmus.connectors.kafka.spark.option import read_options, write_options
from isthmus.connectors.kafka.spark.topic import RecordsMissingError, Topic
from isthmus.connectors.kafka.spark.writing import Writing
from isthmus.errors import InvalidArgumentError
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.route_spec import route_spec
from isthmus.replication.verification.verify import verify
from isthmus.supervisor.watch.watch import BacklogMeter
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.topology import plan
from isthmus.topology.file.source import load
from isthmus.topology.model import Federation
from isthmus.topology.route import routes

CONFIG = """
queues:
  departures: {requires_duplicate_detection: true, requires_session: true}
  outgoing: {}
  old: {}
topics: {news: {subscriptions: {audit: {}}}}
"""
FILE = """
isthmus: 1
namespaces:
  ewr: {connection: "file:%s#ewr", ca_file: %s}
  hub: {kind: kafka, bootstrap: '%s'}
tasks:
  departures:
    {pattern: stream-to-queue, source: hub, stream: flights, target: ewr, queue: departures, sessions: true}
  arrivals: {pattern: queue-to-stream, source: ewr, queue: outgoing, target: hub, stream: arrivals, partitions: 2}
  mirror: {pattern: copy, source: hub, topic: flights, target: hub, target_topic: flights-copy, start: existing}
  emptied: {pattern: move, source: ewr, queue: old, target: hub, target_topic: old, partitioning: single}
  news: {pattern: copy, source: ewr, topic: news, target: hub, filter: "kind = 'good'", audit: 1d}
"""
LOOK_SECONDS = 0.5


@pytest.fixture(name="kafka", scope="module")
def _kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(name="served", scope="module")
def _served(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProcess]:
    with namespace(tmp_path_factory.mktemp("ewr"), config=CONFIG) as running:
        yield running


@pytest.fixture(name="federation", scope="module")
def _federation(kafka: KafkaBroker, served: NamespaceProcess, tmp_path_factory: pytest.TempPathFactory) -> Federation:
    folder = tmp_path_factory.mktemp("federation")
    secrets = folder / "secrets.json"
    secrets.write_text(json.dumps({"ewr": served.connection_string}))
    file = folder / "isthmus.yaml"
    file.write_text(FILE % (secrets, served.ca_file, kafka.address))
    return load(file)


def test_what_streams_move_is_proved(federation: Federation, kafka: KafkaBroker, served: NamespaceProcess) -> None:
    kafka.create("flights", 3)
    publish(kafka.address, "flights", 9000, 9010, keys=5)  # is there before `apply`
    with Administrations(federation) as administrations:
        made = plan(federation, administrations.observe())
        assert sum("records published before `apply` are not moved" in note for note in made.notes) == 1
        applied = administrations.apply(made)
        assert applied.error is None, applied.error
        assert not plan(federation, administrations.observe()).changes
    assert kafka.admin().list_topics("flights-copy", timeout=10).topics["flights-copy"].partitions.keys() == {0, 1, 2}
    publish(kafka.address, "flights", 0, 500, keys=5)
    publish(kafka.address, "flights", 500, 505, partition=2)  # without keys
    _send(served)
    # What nothing is moved of yet waits, and nothing is lost.
    before = {each.task: (each.total("waiting"), each.total("lost")) for each in verify(federation)}
    assert before == {
        "departures": (505, 0),
        "arrivals": (100, 0),
        "mirror": (515, 0),
        "emptied": (50, 0),
        "news": (20, 0),
    }
    _move(federation)
    results = {each.task: each for each in verify(federation, by_hour=True)}
    for each in results.values():
        sums = {kind: sum(hour.counts[kind] for hour in each.hours) for kind in ("entered", "arrived", "filtered")}
        assert sums == {kind: each.total(kind) for kind in sums}
        assert all(hour.hour is not None for hour in each.hours), each.to_dict()
    found = {task: (each.total("arrived"), each.total("earlier"), each.verdict.name) for task, each in results.items()}
    assert found == {
        "departures": (505, 10, "CLEAN"),
        "arrivals": (100, 0, "CLEAN"),
        "mirror": (515, 0, "CLEAN"),
        "emptied": (50, 0, "CLEAN"),
        "news": (20, 0, "CLEAN"),
    }, [each.to_dict() for each in results.values()]
    at = {topic: _reported(consumed(kafka.address, topic, 515)) for topic in ("flights", "flights-copy")}
    assert at["flights"] == at["flights-copy"]
    (old,) = consumed(kafka.address, "old", 50).values()
    assert [(int(each.value()), each.key()) for each in old] == [(n, b"s%d" % (n % 3)) for n in range(50)]
    # The routes have ended: what the retention removes now was not moved.
    publish(kafka.address, "flights", 600, 610, partition=1)
    admin = kafka.admin()
    (removed,) = admin.delete_records([TopicPartition("flights", 1, OFFSET_END)]).values()
    removed.result(60)
    (result,) = verify(federation, task="mirror")
    assert result.verdict.name == "UNCLEAR"
    assert sum("were removed before" in doubt for doubt in result.doubts) == 1, result.doubts


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
        with client.get_topic_sender("news") as sender:
            kinds = ("good", "bad")
            sender.send_messages(
                [ServiceBusMessage(f"{n}", application_properties={"kind": kinds[n % 2]}) for n in range(40)]
            )


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


def _reported(records: dict[int, list[Any]]) -> dict[int, list[tuple[Any, ...]]]:
    """What a copy keeps of records, by partition."""
    return {
        partition: [(each.key(), each.value(), each.timestamp()[1], _own(each.headers())) for each in found]
        for partition, found in records.items()
    }


def _own(headers: Any) -> list[tuple[str, bytes]]:
    return [each for each in headers or () if not each[0].startswith(("repl-", "isthmus-", "amqp-"))]


def test_a_topic_is_read_between_offsets_and_what_was_removed_is_said(kafka: KafkaBroker, tmp_path: Path) -> None:
    kafka.create("plain", 2)
    options = {"bootstrap_servers": kafka.address, "topic": "plain"}
    writing = Writing(write_options(options))
    for number in range(50):
        writing.send({"value": b"%d" % number, "key": None, "partition": 0})
    writing.send({"value": None, "key": b"gone", "partition": 1})
    writing.finish()
    with pytest.raises(InvalidArgumentError, match="2 partitions"):
        writing.send({"value": b"", "key": None, "partition": 2})
    with Topic(read_options(options), "plain", group="shown") as topic:
        assert topic.edges() == {0: (0, 50), 1: (0, 1)}
        pages = list(topic.records(0, 10, 30))
        assert [int(each.value()) for page in pages for each in page] == list(range(10, 30))
        ((gone,),) = topic.records(1, 0, 1)
        assert (gone.value(), gone.key()) == (None, b"gone")
        topic.commit({0: 30}, {})
        admin = kafka.admin()
        (low,) = admin.delete_records([TopicPartition("plain", 0, 20)]).values()
        assert low.result(60).low_watermark == 20
        with pytest.raises(RecordsMissingError, match="from offset 10 up to 20"):
            list(topic.records(0, 10, 30))
    with Topic(read_options(options), "plain", may_miss=True) as topic:
        pages = list(topic.records(0, 10, 30))
        assert [int(each.value()) for page in pages for each in page] == list(range(20, 30))
    assert GroupOffsets({"bootstrap_servers": kafka.address}).committed("shown", "plain") == {0: 30}
