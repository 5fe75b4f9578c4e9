"""@azure/event-hubs for JavaScript and azeventhubs for Go, unmodified, against a served namespace.

What they do is looked at with azure-eventhub too, which reads what they send and sends what they read.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient

from harness.client.sdk_program import SdkError
from isthmus.testing.namespace import namespace

EVENT_HUBS = """
event_hubs:
  sent: {partition_count: 2}
  read: {partition_count: 2}
  telemetry: {partition_count: 4, consumer_groups: [audit]}
  keyed: {partition_count: 4}
  buffered: {partition_count: 4}
  positions: {partition_count: 1}
  owned: {partition_count: 1}
  shared: {partition_count: 4, consumer_groups: [workers]}
  told: {partition_count: 2}
  routed: {partition_count: 1}
  recovered: {partition_count: 1}
"""
EARLIEST = {"earliest": True}
PATIENT = 100  # retries, a fifth of a second apart
STOLEN = {"javascript": "ReceiverDisconnectedError", "go": "ownershiplost"}


@pytest.fixture(scope="module")
def served(language):
    with namespace(config=EVENT_HUBS) as running:
        yield running


@pytest.fixture
def producing(program, served):
    """Opens a producer, over TCP unless something else is said."""

    def opened(hub, transport="tcp", **options):
        return program.open("producer", connection=served.connection_string, transport=transport, hub=hub, **options)

    return opened


@pytest.fixture
def reading(program, served):
    """Opens a reader of a partition from its beginning, over TCP, unless something else is said."""

    def opened(hub, partition="0", *, position=EARLIEST, transport="tcp", **options):
        where = {"connection": served.connection_string, "transport": transport, "hub": hub, "partition": partition}
        return program.open("read", position=position, **where, **options)

    return opened


@pytest.fixture
def processing(program, served):
    """Opens a processor, which reads its partitions from the last checkpoint on."""

    def opened(hub, store, group, position=EARLIEST):
        where = {"connection": served.connection_string, "transport": "tcp", "hub": hub, "group": group}
        return program.open("read", position=position, store=store.handle, **where)

    return opened


def events(*bodies, **rest):
    return [{"body": body, **rest} for body in bodies]


def so_far(reader, count):
    """What was read, once there are so many events."""
    seen = reader.read_so_far(count=count, wait_ms=20_000)
    assert seen["errors"] == []
    return seen["events"]


def texts(reported):
    return [event["body"] for event in reported]


def first_error(reader):
    seen = reader.read_so_far(error=True, wait_ms=20_000)
    assert seen["errors"]
    return seen["errors"][0]


def received(served, hub, count):
    """What azure-eventhub receives of all partitions: partition and event."""
    found = []
    client = EventHubConsumerClient.from_connection_string(
        f"{served.connection_string};EntityPath={hub}", consumer_group="$Default", retry_total=0
    )

    def on_event(context, event):
        found.append((context.partition_id, event))

    thread = threading.Thread(target=client.receive, args=(on_event,), kwargs={"starting_position": "-1"})
    thread.start()
    limit = time.monotonic() + 30
    while len(found) < count and time.monotonic() < limit:
        time.sleep(0.02)
    client.close()
    thread.join()
    return found


EVENT = {"body": "body", "message_id": "m-1", "correlation_id": "c-1", "content_type": "text/plain"}
PROPERTIES = {
    # As the program gets them, and as azure-eventhub then reads them.
    "javascript": {
        "text": ({"string": "tä"}, "tä".encode()),
        "flag": ({"boolean": True}, True),
        "number": ({"number": 7}, 7),
        "ratio": ({"number": 1.5}, 1.5),
    },
    "go": {
        "text": ({"string": "tä"}, "tä".encode()),
        "flag": ({"bool": True}, True),
        "number": ({"int64": 2**40}, 2**40),
        "ratio": ({"float64": 1.5}, 1.5),
        "bytes": ({"bytes": "00ff"}, b"\x00\xff"),
        "id": ({"uuid": uuid.UUID(int=3).hex}, uuid.UUID(int=3)),
    },
}


def test_what_it_sends_is_read_by_another_language(language, producing, served):
    properties = {name: given for name, (given, _) in PROPERTIES[language].items()}
    with producing("sent") as producer:
        assert producer.send_events(events=[{**EVENT, "properties": properties}], partition="1") == 1
    [(partition, event)] = received(served, "sent", 1)
    assert (partition, event.body_as_str()) == ("1", "body")
    assert (event.message_id, event.correlation_id, event.content_type) == ("m-1", "c-1", "text/plain")
    assert event.properties == {name.encode(): read for name, (_, read) in PROPERTIES[language].items()}


def test_what_another_language_sends_is_read(language, reading, served):
    sent = EventData(b"body")
    sent.message_id, sent.correlation_id, sent.content_type = "m-1", "c-1", "text/plain"
    sent.properties = {"text": "tä", "number": 7, "ratio": 1.5}
    before = time.time() * 1000
    producer = EventHubProducerClient.from_connection_string(f"{served.connection_string};EntityPath=read")
    with producer:
        producer.send_event(sent, partition_id="1")
    with reading("read", "1") as reader:
        [event] = so_far(reader, 1)
    assert {name: event[name] for name in EVENT} == EVENT
    assert (event["number"], event["offset"]) == (0, "0")
    assert abs(event["enqueued_ms"] - before) < 10_000
    whole, ratio = {"javascript": ("number", "number"), "go": ("int32", "float64")}[language]
    assert event["properties"] == {"text": {"string": "tä"}, "number": {whole: 7}, "ratio": {ratio: 1.5}}


def test_batches_by_partition_and_consumer_groups(producing, reading):
    with producing("telemetry") as producer:
        for partition in "0123":
            bodies = [f"{partition}-{number}" for number in range(50)]
            assert producer.send_events(events=events(*bodies), partition=partition) == 50
    for partition, group in (("0", None), ("3", None), ("3", "audit")):
        with reading("telemetry", partition, group=group) as reader:
            reported = so_far(reader, 50)
        assert texts(reported) == [f"{partition}-{number}" for number in range(50)]
        assert [event["number"] for event in reported] == list(range(50))


def by_key(hub, count, producing, reading):
    """The contents of the partitions of a hub, by the key of each event: partition and number."""
    with producing(hub) as producer:
        filled = {partition: producer.partition(partition=partition)["last"] + 1 for partition in "0123"}
    assert sum(filled.values()) == count
    homes = {}
    for partition, wanted in filled.items():
        with reading(hub, partition) as reader:
            for event in so_far(reader, wanted):
                homes.setdefault(int(event["body"]) % 8, []).append((partition, int(event["body"]), event.get("key")))
    return homes


def test_keys_stay_together(producing, reading):
    with producing("keyed") as producer:
        for number in range(16):
            producer.send_events(events=events(f"{number}"), key=f"key-{number % 8}")
    homes = by_key("keyed", 16, producing, reading)
    for key, placed in homes.items():
        [partition] = {partition for partition, _, _ in placed}
        assert placed == [(partition, key, f"key-{key}"), (partition, key + 8, f"key-{key}")]
    assert len({placed[0][0] for placed in homes.values()}) > 1


@pytest.mark.parametrize("language", ["javascript"], indirect=True)
def test_a_buffered_producer(program, producing, reading, served):
    """It sends to the partition that it has chosen for a key, which is not always the one that the namespace chooses."""
    given = [{"body": f"{number}", "key": f"key-{number % 8}"} for number in range(40)]
    where = {"connection": served.connection_string, "transport": "tcp", "hub": "buffered"}
    assert program.call("send_buffered", events=given, **where) == []
    for key, placed in by_key("buffered", 40, producing, reading).items():
        [partition] = {partition for partition, _, _ in placed}
        assert placed == [(partition, number, None) for number in range(key, 40, 8)]


def test_starting_positions(producing, reading):
    with producing("positions") as producer:
        producer.send_events(events=events("a", "b"))
        time.sleep(0.1)
        producer.send_events(events=events("c", "d"))
        with reading("positions") as reader:
            marks = so_far(reader, 4)
        assert texts(marks) == ["a", "b", "c", "d"]
        cases = [
            ({"offset": marks[1]["offset"]}, "cd"),
            ({"offset": marks[1]["offset"], "inclusive": True}, "bcd"),
            ({"number": marks[2]["number"]}, "d"),
            ({"number": marks[2]["number"], "inclusive": True}, "cd"),
            ({"enqueued_ms": marks[1]["enqueued_ms"]}, "cd"),
        ]
        for position, wanted in cases:
            with reading("positions", position=position) as reader:
                assert "".join(texts(so_far(reader, len(wanted)))) == wanted, position
        with reading("positions", position={"latest": True}) as reader:
            limit = time.monotonic() + 20
            while not (seen := reader.read_so_far(count=1, wait_ms=300)["events"]) and time.monotonic() < limit:
                producer.send_events(events=events("new"))
            assert {event["body"] for event in seen} == {"new"}


def test_a_higher_owner_level_takes_over(language, producing, reading):
    with producing("owned") as producer:
        producer.send_events(events=events("a"))
        with reading("owned", owner_level=1) as first:
            so_far(first, 1)
            with reading("owned", owner_level=2) as second:
                so_far(second, 1)
                assert first_error(first)["code"] == STOLEN[language]
                with reading("owned", owner_level=1) as late:
                    assert "epoch" in first_error(late)["message"]
                    assert late.read_so_far(count=0, wait_ms=0)["events"] == []
                producer.send_events(events=events("b"))
                assert texts(so_far(second, 2)) == ["a", "b"]


def test_properties_of_hubs_and_partitions(producing):
    with producing("told") as producer:
        reported = producer.hub()
        assert (reported["name"], reported["partitions"]) == ("told", ["0", "1"])
        assert abs(reported["created_ms"] - time.time() * 1000) < 600_000
        empty = producer.partition(partition="1")
        assert (empty["empty"], empty["last"]) == (True, -1)
        producer.send_events(events=events("a", "b"), partition="1")
        filled = producer.partition(partition="1")
        assert (filled["empty"], filled["first"], filled["last"]) == (False, 0, 1)
        assert int(filled["last_offset"]) > 0


def test_a_processor_continues_where_it_was(program, producing, processing):
    store = program.open("store")
    with producing("shared") as producer:
        for partition in "0123":
            bodies = [f"first-{partition}-{number}" for number in range(5)]
            producer.send_events(events=events(*bodies), partition=partition)
        with processing("shared", store, "$Default") as processor:
            reported = so_far(processor, 20)
            assert Counter(event["partition"] for event in reported) == dict.fromkeys("0123", 5)
        for partition in "0123":
            producer.send_events(events=events(f"second-{partition}"), partition=partition)
        with processing("shared", store, "$Default") as processor:
            reported = so_far(processor, 4)
    assert sorted(texts(reported)) == [f"second-{partition}" for partition in "0123"]


def test_processors_share_the_partitions_and_take_over(program, producing, processing):
    store = program.open("store")

    def wait_for(shares):
        limit = time.monotonic() + 30
        while (owners := sorted(Counter(store.owners()).values())) != shares and time.monotonic() < limit:
            time.sleep(0.1)
        assert owners == shares

    def partitions(processor, body):
        limit = time.monotonic() + 5
        while True:
            reported = processor.read_so_far(count=0, wait_ms=0)["events"]
            found = {event["partition"] for event in reported if event["body"] == body}
            if len(found) >= 2 or time.monotonic() > limit:
                return found
            time.sleep(0.05)

    with producing("shared") as producer, processing("shared", store, "workers", {"latest": True}) as one:
        wait_for([4])
        with processing("shared", store, "workers", {"latest": True}) as two:
            wait_for([2, 2])
            # What they have lost and got is attached again a while later: what is sent before that may reach no receiver, or both.
            for number in range(10):
                for partition in "0123":
                    producer.send_events(events=events(f"shared-{number}"), partition=partition)
                parts = [partitions(each, f"shared-{number}") for each in (one, two)]
                if [len(part) for part in parts] == [2, 2] and not parts[0] & parts[1]:
                    break
            assert [len(part) for part in parts] == [2, 2]
            assert parts[0] | parts[1] == {"0", "1", "2", "3"}
        wait_for([4])


@pytest.mark.parametrize("transport", ["tls", "websocket"])
def test_over_tls_and_websockets(transport, producing, reading):
    with producing("routed", transport) as producer:
        assert producer.hub()["name"] == "routed"
        last = producer.partition(partition="0")["last"]
        producer.send_events(events=events(*map(str, range(100))))
    with reading("routed", transport=transport, position={"number": last}) as reader:
        assert texts(so_far(reader, 100)) == [str(number) for number in range(100)]


def test_clients_continue_after_a_restart(producing, reading, served):
    with producing("recovered", retries=PATIENT) as producer, reading("recovered", retries=PATIENT) as reader:
        producer.send_events(events=events("before"))
        assert texts(so_far(reader, 1)) == ["before"]
        served.restart()
        producer.send_events(events=events("after"))
        assert [(event["body"], event["number"]) for event in so_far(reader, 2)] == [("before", 0), ("after", 1)]


def test_refusals(program, producing, served):
    with producing("nothing") as producer, pytest.raises(SdkError, match="nothing"):
        producer.send_events(events=events("a"))
    with producing("told") as producer, pytest.raises(SdkError):
        producer.send_events(events=events("a"), partition="9")
    wrong = served.connection_string.replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    with (
        program.open("producer", connection=wrong, transport="tcp", hub="told") as producer,
        pytest.raises(SdkError, match=r"(?i)unauthorized"),
    ):
        producer.send_events(events=events("a"))
