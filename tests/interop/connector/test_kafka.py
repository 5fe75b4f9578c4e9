"""The Kafka connector against a real broker, through the reader's and the sink's host."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.cimpl import NewPartitions

from harness.bridge.kafka_join import consumed, join, kafka_end, publish, route, wait
from harness.server.kafka_broker import KafkaBroker, broker
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.route_spec import End
from isthmus.connectors.kafka.administration import KafkaAdministration
from isthmus.connectors.kafka.cluster import KafkaFailureError
from isthmus.connectors.kafka.consumer import consumer
from isthmus.connectors.kafka.group import GroupOffsets
from isthmus.errors import EntityExistsError
from isthmus.testing.bridge.join import Keep
from isthmus.testing.namespace import NamespaceProcess, namespace

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def committed(kafka: KafkaBroker, group: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": group})
    try:
        return [
            each.offset
            for each in consumer.committed([TopicPartition(topic, number) for number in range(partitions)], timeout=30)
        ]
    finally:
        consumer.close()


def stored(kafka: KafkaBroker, topic: str, partitions: int) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "stored"})
    try:
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)[1] for number in range(partitions)
        )
    finally:
        consumer.close()


def first_arrivals(found: dict[int, list[Any]]) -> dict[int, list[int]]:
    """Values by partition, without what came again."""
    return {number: list(dict.fromkeys(int(each.value()) for each in of)) for number, of in found.items()}


def test_copy_keeps_order_and_contents(kafka: KafkaBroker) -> None:
    source, target = kafka.create("copy.source", 3), kafka.create("copy.target", 3)
    publish(kafka.address, source, 0, 10_000, keys=50, size=100)
    with join(route(kafka_end(kafka.address, source, group="copy"), kafka_end(kafka.address, target))):
        arrived = consumed(kafka.address, target, 10_000)
    published = consumed(kafka.address, source, 10_000)
    assert published.keys() == arrived.keys() == {0, 1, 2}
    for number, records in published.items():
        reported = [(each.key(), each.value(), each.headers(), each.timestamp()) for each in arrived[number]]
        assert reported == [(each.key(), each.value(), each.headers(), each.timestamp()) for each in records]
    assert committed(kafka, "copy", source, 3) == [len(published[number]) for number in range(3)]


def test_records_without_key_keep_their_partition(kafka: KafkaBroker) -> None:
    source, target = kafka.create("bare.source", 3), kafka.create("bare.target", 3)
    for number in range(3):
        publish(kafka.address, source, number * 1000, number * 1000 + 1000, partition=number)
    with join(route(kafka_end(kafka.address, source, group="bare"), kafka_end(kafka.address, target))):
        arrived = consumed(kafka.address, target, 3000)
    values = {number: [int(each.value()) for each in of] for number, of in arrived.items()}
    assert values == {number: list(range(number * 1000, number * 1000 + 1000)) for number in range(3)}


def test_only_what_is_present_is_moved_and_the_route_ends(kafka: KafkaBroker) -> None:
    source, target = kafka.create("present.source", 2), kafka.create("present.target", 2)
    publish(kafka.address, source, 0, 500, keys=7)
    spec = route(kafka_end(kafka.address, source, group="present"), kafka_end(kafka.address, target), only_present=True)
    with join(spec, restarts=False) as running:
        running.wait_ended(60)
    assert sum(map(len, consumed(kafka.address, target, 500).values())) == 500


def test_kill_of_the_process_loses_nothing(kafka: KafkaBroker) -> None:
    source, target = kafka.create("kill.source", 3), kafka.create("kill.target", 3)
    publish(kafka.address, source, 0, 10_000, keys=50)
    command = [sys.executable, "-m", "harness.bridge.kafka_copy", kafka.address, source, target, "one"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    total = [len(of) for _, of in sorted(consumed(kafka.address, source, 10_000).items())]
    for part in (0.1, 0.4, 1.0):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
        try:
            wait(
                lambda process=process, part=part: (
                    sum(committed(kafka, f"{source}-copy", source, 3)) >= part * sum(total)
                    or process.poll() is not None
                ),
                "the commits",
            )
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    arrived = first_arrivals(consumed(kafka.address, target, 10_000))
    published = first_arrivals(consumed(kafka.address, source, 10_000))
    assert arrived == published


def test_broker_restart_neither_loses_nor_doubles(kafka: KafkaBroker) -> None:
    """Where the broker is back before the group takes the reader for dead, and before the target gives its connection up."""
    source, target = kafka.create("restart.source", 3), kafka.create("restart.target", 3)
    publish(kafka.address, source, 0, 30_000, keys=50)
    spec = route(
        kafka_end(kafka.address, source, group="restart", session_seconds="240"),
        kafka_end(kafka.address, target, stall_seconds="240"),
        target_seconds=240.0,
    )
    with join(spec):
        wait(lambda: stored(kafka, target, 3) > 1_000, "the first copies")
        kafka.stop()
        kafka.start()
        publish(kafka.address, source, 30_000, 35_000, keys=50)
        arrived = consumed(kafka.address, target, 35_000, 240)
    published = consumed(kafka.address, source, 35_000)
    assert {number: [each.value() for each in of] for number, of in arrived.items()} == {
        number: [each.value() for each in of] for number, of in published.items()
    }


@pytest.mark.parametrize(
    "grown", [pytest.param(0, marks=pytest.mark.soak), 10, pytest.param(50, marks=pytest.mark.soak)]
)
def test_log_that_was_truncated_while_nobody_read_is_read_from_there(kafka: KafkaBroker, grown: int) -> None:
    """The group's offset is in the log again, and those before it are other records: they were passed over. Of a log that
    has not grown past it everything was moved again.
    """
    name = f"truncated{grown}"
    source, target = kafka.create(f"{name}.source"), kafka.create(f"{name}.target")
    publish(kafka.address, source, 0, 80)
    publish(kafka.address, source, 80, 100)
    spec = route(kafka_end(kafka.address, source, group=name), kafka_end(kafka.address, target))
    with join(spec):
        wait(lambda: _is_committed(kafka, name, source, 100), "the commit", every_seconds=0.5)
    kafka.stop(signal.SIGKILL)
    kafka.truncate(source, 80)
    kafka.start()
    publish(kafka.address, source, 1_000, 1_000 + grown)
    with join(spec):
        if not grown:
            publish(kafka.address, source, 1_000, 1_010)
        count = grown or 10
        wait(lambda: _is_committed(kafka, name, source, 80 + count), "the commit", every_seconds=0.5)
    assert _values(kafka, target, 100 + count) == [*range(100), *range(1_000, 1_000 + count)]


def test_log_that_is_truncated_while_a_route_reads_is_read_from_there(kafka: KafkaBroker) -> None:
    source, target = kafka.create("cut.source"), kafka.create("cut.target")
    publish(kafka.address, source, 0, 80)
    publish(kafka.address, source, 80, 100)
    spec = route(
        kafka_end(kafka.address, source, group="cut", session_seconds="60"),
        kafka_end(kafka.address, target, stall_seconds="60"),
        target_seconds=60.0,
    )
    with join(spec):
        wait(lambda: _is_committed(kafka, "cut", source, 100), "the commit", every_seconds=0.5)
        kafka.stop(signal.SIGKILL)
        kafka.truncate(source, 80)
        kafka.start()
        publish(kafka.address, source, 1_000, 1_050)
        wait(lambda: _is_committed(kafka, "cut", source, 130), "the commit", every_seconds=0.5)
    assert _values(kafka, target, 150) == [*range(100), *range(1_000, 1_050)]


def _is_committed(kafka: KafkaBroker, group: str, topic: str, offset: int) -> bool:
    """A broker that has just started may not know yet."""
    with contextlib.suppress(KafkaException):
        return committed(kafka, group, topic, 1) == [offset]
    return False


def test_message_that_is_set_aside_goes_to_the_dead_letter_topic(kafka: KafkaBroker) -> None:
    source, target, dead = (kafka.create(f"dead.{name}") for name in ("source", "target", "letters"))
    publish(kafka.address, source, 0, 300)
    spec = route(
        kafka_end(kafka.address, source, group="dead", dead_letter_topic=dead), kafka_end(kafka.address, target)
    )

    def step(payload: bytes) -> Keep:
        return Keep(disposition=Disposition("dead-letter", "Odd", "it is 77")) if payload.endswith(b"77") else Keep()

    with join(spec, step=step):
        arrived = consumed(kafka.address, target, 297)
        letters = consumed(kafka.address, dead, 3)[0]
        wait(lambda: committed(kafka, "dead", source, 1) == [300], "the commit")
    assert [int(each.value()) for each in arrived[0]] == [number for number in range(300) if number % 100 != 77]
    assert [each.value() for each in letters] == [b"77", b"177", b"277"]
    assert dict(letters[0].headers())["isthmus-dead-letter-reason"] == b"Odd"
    assert dict(letters[0].headers())["isthmus-dead-letter-source"] == f"{source}/0/77".encode()


def test_without_a_dead_letter_topic_the_route_blocks_and_loses_nothing(kafka: KafkaBroker) -> None:
    source, target = (kafka.create(f"undead.{name}") for name in ("source", "target"))
    publish(kafka.address, source, 0, 100)
    spec = route(kafka_end(kafka.address, source, group="undead", member="m"), kafka_end(kafka.address, target))
    refuses = threading.Event()
    refuses.set()

    def step(payload: bytes) -> Keep:
        is_bad = payload.endswith(b"50") and refuses.is_set()
        return Keep(disposition=Disposition("dead-letter", "Odd", "")) if is_bad else Keep()

    with join(spec, step=step):
        consumed(kafka.address, target, 50)
        wait(lambda: committed(kafka, "undead", source, 1) == [50], "the commit")
        refuses.clear()
        wait(lambda: committed(kafka, "undead", source, 1) == [100], "the rest")
    assert set(first_arrivals(consumed(kafka.address, target, 100))[0]) == set(range(100))


# ---- with Service Bus


@pytest.fixture(scope="module")
def served() -> Iterator[NamespaceProcess]:
    with namespace(config="queues: {to-kafka: {}, from-kafka: {}, there: {}, back: {}}") as running:
        yield running


@pytest.fixture
def bus(served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceBusClient]:
    monkeypatch.setenv("KAFKA_TEST_BUS", served.connection_string)
    with ServiceBusClient.from_connection_string(served.connection_string) as client:
        yield client


def bus_end(entity: str) -> End:
    return End("servicebus", "bus", {"connection": "env:KAFKA_TEST_BUS", "entity": entity})


def received(bus: ServiceBusClient, queue: str, count: int) -> list[Any]:
    found: list[Any] = []
    with bus.get_queue_receiver(queue) as receiver:
        while len(found) < count:
            batch = receiver.receive_messages(count - len(found), max_wait_time=30)
            assert batch, f"{len(found)} of {count}"
            found += batch
            for each in batch:
                receiver.complete_message(each)
    return found


def test_service_bus_over_kafka_to_service_bus(kafka: KafkaBroker, bus: ServiceBusClient) -> None:
    topic = kafka.create("over", 3)
    with bus.get_queue_sender("there") as sender:
        for number in range(200):
            sender.send_messages(
                ServiceBusMessage(
                    f"{number}",
                    session_id=f"s{number % 5}",
                    subject="s",
                    message_id=f"m{number}",
                    correlation_id="c",
                    content_type="text/plain",
                    application_properties={"n": number, "half": 0.5, "yes": True, "text": "ü"},
                )
            )
    there = route(bus_end("there"), kafka_end(kafka.address, topic))
    back = route(kafka_end(kafka.address, topic, group="back"), bus_end("back"))
    with join(there), join(back):
        found = received(bus, "back", 200)
    by_session: dict[str, list[str]] = {}
    for each in found:
        by_session.setdefault(each.session_id, []).append(each.message_id)
    assert by_session == {f"s{part}": [f"m{number}" for number in range(part, 200, 5)] for part in range(5)}
    one = next(each for each in found if each.message_id == "m7")
    assert (str(one), one.subject, one.correlation_id, one.content_type) == ("7", "s", "c", "text/plain")
    assert one.application_properties == {b"n": 7, b"half": 0.5, b"yes": True, b"text": "ü".encode()}
    record = next(iter(consumed(kafka.address, topic, 200).values()))[0]
    assert record.key().startswith(b"s")
    assert dict(record.headers())["text"] == "ü".encode()


def test_kafka_over_service_bus_to_kafka(kafka: KafkaBroker, bus: ServiceBusClient) -> None:
    source, target = kafka.create("through.source", 3), kafka.create("through.target", 3)
    publish(kafka.address, source, 0, 2000, keys=20)
    there = route(kafka_end(kafka.address, source, group="through"), bus_end("to-kafka"))
    back = route(bus_end("to-kafka"), kafka_end(kafka.address, target))
    with join(there), join(back):
        arrived = consumed(kafka.address, target, 2000)
    published = consumed(kafka.address, source, 2000)
    for number, records in published.items():
        # The namespace gives a MessageId to messages that have none.
        reported = [(each.key(), each.value(), _own_headers(each), each.timestamp()) for each in arrived[number]]
        assert reported == [(each.key(), each.value(), each.headers(), each.timestamp()) for each in records]


def _own_headers(record: Any) -> list[Any] | None:
    return [each for each in record.headers() if each[0] not in ("amqp-message-id", "isthmus-amqp")] or None


# ---- administration


def test_topics_are_made_and_described(kafka: KafkaBroker) -> None:
    administration = KafkaAdministration({"bootstrap_servers": kafka.address})
    assert administration.describe("made") is None
    administration.create("made", 4, config={"max.message.bytes": "5000"})
    view = administration.describe("made")
    assert view is not None
    assert (view.partitions, view.message_bytes) == (4, 5000)
    assert view.cluster_id
    with pytest.raises(EntityExistsError):
        administration.create("made", 4)
    with contextlib.suppress(Exception):
        administration.delete("made")


@pytest.mark.parametrize("more", [50, pytest.param(700, marks=pytest.mark.soak)])
def test_topic_that_is_made_again_is_read_from_its_first_record(
    kafka: KafkaBroker, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has more records by then than were read of the one before."""
    monkeypatch.setattr(consumer, "TOPIC_SECONDS", 1.0)
    name = f"again{more}"
    source, target = kafka.create(f"{name}.source"), kafka.create(f"{name}.target")
    publish(kafka.address, source, 0, 500)
    with join(route(kafka_end(kafka.address, source, group=name), kafka_end(kafka.address, target))):
        consumed(kafka.address, target, 500)
        wait(lambda: committed(kafka, name, source, 1) == [500], "the commit")
        admin = kafka.admin()
        admin.delete_topics([source])[source].result(30)
        wait(lambda: _is_made(kafka, source), "the topic")
        publish(kafka.address, source, 1_000, 1_000 + more)
        wanted = [*range(500), *range(1_000, 1_000 + more)]
        wait(lambda: set(_values(kafka, target, len(wanted))) == set(wanted), "all records")
        if more < 500:
            assert list(dict.fromkeys(_values(kafka, target, len(wanted)))) == wanted


def _values(kafka: KafkaBroker, topic: str, count: int) -> list[int]:
    return [int(each.value()) for each in consumed(kafka.address, topic, count, 120)[0]]


def _is_made(kafka: KafkaBroker, topic: str) -> bool:
    """A topic is deleted in the background."""
    try:
        kafka.create(topic)
    except KafkaException:
        return False
    return True


def test_latest_passes_over_nothing_but_what_was_before_its_first_reader(kafka: KafkaBroker) -> None:
    """An offset that the retention has removed is no reason to begin at the end again, nor is a partition without a commit."""
    source, target = kafka.create("latest.source", 2), kafka.create("latest.target")
    publish(kafka.address, source, 0, 10, partition=0)
    spec = route(kafka_end(kafka.address, source, group="latest", start="latest"), kafka_end(kafka.address, target))
    with join(spec):
        wait(lambda: committed(kafka, "latest", source, 2) == [10, 0], "the first commit", every_seconds=0.5)
        publish(kafka.address, source, 10, 20, partition=0)
        consumed(kafka.address, target, 10)
        wait(lambda: committed(kafka, "latest", source, 2) == [20, 0], "the commit", every_seconds=0.5)
    publish(kafka.address, source, 20, 50, partition=0)
    publish(kafka.address, source, 50, 55, partition=1)
    admin = kafka.admin()
    (removed,) = admin.delete_records([TopicPartition(source, 0, 30)]).values()
    removed.result(30)
    with join(spec):
        arrived = consumed(kafka.address, target, 35)
    assert sorted(int(each.value()) for each in arrived[0]) == [*range(10, 20), *range(30, 55)]


def test_latest_reads_a_partition_from_its_first_record_that_was_added_without_a_reader(kafka: KafkaBroker) -> None:
    """Of two readers that begin at once, one commits where the group begins; the other reads nothing that was before."""
    source, target = kafka.create("grown.source", 2), kafka.create("grown.target")
    publish(kafka.address, source, 0, 10, partition=0)
    publish(kafka.address, source, 10, 20, partition=1)
    spec = route(kafka_end(kafka.address, source, group="grown", start="latest"), kafka_end(kafka.address, target))
    with join(spec), join(spec):
        wait(lambda: committed(kafka, "grown", source, 2) == [10, 10], "the first commit", every_seconds=0.5)
        publish(kafka.address, source, 20, 25, partition=0)
        publish(kafka.address, source, 25, 30, partition=1)
        consumed(kafka.address, target, 10)
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(source, 3)])[source].result(30)
    kafka._wait_for_leaders(admin, source, 3)
    publish(kafka.address, source, 30, 40, partition=2)
    with join(spec):
        arrived = consumed(kafka.address, target, 20)
    assert sorted(int(each.value()) for each in arrived[0]) == list(range(20, 40))


def test_where_a_group_with_a_reader_begins_cannot_be_set(kafka: KafkaBroker) -> None:
    topic = kafka.create("begun", 2)
    reader = Consumer({"bootstrap.servers": kafka.address, "group.id": "begun", "enable.auto.commit": False})
    reader.subscribe([topic])
    wait(lambda: reader.poll(0.2) is None and bool(reader.assignment()), "the partitions")
    groups = GroupOffsets({"bootstrap_servers": kafka.address})
    with pytest.raises(KafkaFailureError, match="group 'begun' has a reader"):
        groups.begin("begun", topic, from_end=True)
    assert groups.committed("begun", topic) == {}
    reader.close()
    groups.begin("begun", topic, from_end=True)
    assert groups.committed("begun", topic) == {0: 0, 1: 0}


def test_of_transactions_what_was_committed_is_moved_and_their_marks_do_not_wait(kafka: KafkaBroker) -> None:
    source, target = kafka.create("marked.source"), kafka.create("marked.target")
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": "marked"})
    producer.init_transactions(60)
    for first, is_kept in ((0, True), (100, False), (200, True), (300, False)):
        producer.begin_transaction()
        for number in range(first, first + 10):
            producer.produce(source, b"%d" % number)
        producer.flush(60)
        if is_kept:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    offsets = GroupOffsets({"bootstrap_servers": kafka.address})
    assert 20 <= offsets.waiting("marked", source).records <= 44
    with join(route(kafka_end(kafka.address, source, group="marked"), kafka_end(kafka.address, target))):
        arrived = consumed(kafka.address, target, 20)
        wait(lambda: committed(kafka, "marked", source, 1) == [32], "the commit")
    assert [int(each.value()) for each in arrived[0]] == [*range(10), *range(200, 210)]
    assert offsets.waiting("marked", source).records == 0
