"""azure-eventhub, synchronous and unmodified, against a served namespace."""

from __future__ import annotations

import threading
import time
import urllib.request
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from azure.eventhub import (
    CheckpointStore,
    EventData,
    EventHubConsumerClient,
    EventHubProducerClient,
    EventHubSharedKeyCredential,
)
from azure.eventhub.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.eventhub.exceptions import (
    AuthenticationError,
    ConnectError,
    EventDataSendError,
    EventHubError,
)

from isthmus.testing.namespace import namespace

EVENT_HUBS = """
queues: {plain: {}}
event_hubs:
  telemetry: {partition_count: 4, consumer_groups: [audit]}
  keyed: {partition_count: 4}
  whole: {partition_count: 2}
  positions: {partition_count: 1}
  owned: {partition_count: 1}
  shared: {partition_count: 4, consumer_groups: [workers]}
  buffered: {partition_count: 4}
  tracked: {partition_count: 1}
  live: {partition_count: 1}
  large: {partition_count: 1}
  small: {partition_count: 1, max_message_size_in_kilobytes: 64}
  closed: {partition_count: 1, status: Disabled}
"""


@pytest.fixture(scope="module")
def served():
    with namespace(config=EVENT_HUBS) as running:
        yield running


def connection(served, hub):
    return f"{served.connection_string};EntityPath={hub}"


def administer(served, method, path, inside, kind):
    """A request to the REST API, which no SDK wraps any more; its status."""
    namespace_ = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
    body = (
        f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><{kind} xmlns="{namespace_}">'
        f"{inside}</{kind}></content></entry>"
    )
    fields = dict(part.split("=", 1) for part in served.connection_string.split(";") if "=" in part)
    root = f"http://127.0.0.1:{served.ports['http']}/"
    credential = EventHubSharedKeyCredential(fields["SharedAccessKeyName"], fields["SharedAccessKey"])
    request = urllib.request.Request(f"{root}{path}?api-version=2014-01", body.encode(), method=method)
    request.add_header("Authorization", credential.get_token(root).token)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as reply:
        return reply.status


def test_hubs_and_consumer_groups_over_the_administration_api(served, producing):
    hub = "made"
    count = "<MessageRetentionInDays>1</MessageRetentionInDays><PartitionCount>2</PartitionCount>"
    assert administer(served, "PUT", hub, count, "EventHubDescription") == 201
    assert administer(served, "PUT", f"{hub}/consumergroups/late", "", "ConsumerGroupDescription") == 201
    with producing(hub) as producer:
        assert producer.get_partition_ids() == ["0", "1"]
        send(producer, ["one"], partition_id="1")
        with Reading(served, hub, "late", partition_id="1") as reading:
            assert reading.wait(1)
            assert reading.bodies() == ["one"]
        assert administer(served, "DELETE", hub, "", "EventHubDescription") == 200
        with pytest.raises(EventHubError):
            send(producer, ["two"], partition_id="1")


@pytest.fixture
def producing(served):
    @contextmanager
    def made(hub, **options):
        with EventHubProducerClient.from_connection_string(connection(served, hub), retry_total=0, **options) as client:
            yield client

    return made


def send(producer, bodies, **where):
    batch = producer.create_batch(**where)
    for body in bodies:
        batch.add(EventData(body))
    producer.send_batch(batch)


class Reading:
    """A consumer at work in a thread: what came, and what went wrong."""

    def __init__(self, served, hub, group="$Default", *, batches=False, client=None, store=None, **options):
        self.client = client or EventHubConsumerClient.from_connection_string(
            connection(served, hub), consumer_group=group, retry_total=0, checkpoint_store=store,
            load_balancing_strategy="greedy", load_balancing_interval=0.1, partition_ownership_expiration_interval=3.0,
        )  # fmt: skip
        self.events = []
        self.batches = []
        self.tracked = []
        self.errors = []
        self.closed = []
        options.setdefault("starting_position", "-1")
        options.setdefault("on_error", self.on_error)
        options.setdefault("on_partition_close", lambda context, reason: self.closed.append(reason))
        if batches:
            run = lambda: self.client.receive_batch(self.on_batch, **options)  # noqa: E731 - one of two calls
        else:
            options.setdefault("on_event", self.on_event)
            run = lambda: self.client.receive(**options)  # noqa: E731 - the other
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def on_event(self, context, event):
        if event is not None:
            self.tracked.append(context.last_enqueued_event_properties)
            self.events.append((context.partition_id, event))

    def on_batch(self, context, events):
        if events:
            self.batches.append(len(events))
            self.events += [(context.partition_id, event) for event in events]

    def on_error(self, context, error):
        self.errors.append(error)

    def bodies(self, partition=None):
        return [event.body_as_str() for at, event in list(self.events) if partition in (None, at)]

    def wait(self, count, seconds=30.0):
        return self.wait_until(lambda: len(self.events) >= count, seconds)

    def wait_until(self, condition, seconds=30.0):
        limit = time.monotonic() + seconds
        while not condition() and time.monotonic() < limit:
            time.sleep(0.02)
        assert condition(), (len(self.events), self.errors)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.client.close()
        self.thread.join(30)
        assert not self.thread.is_alive()


def test_an_event_comes_as_it_was_sent(served, producing):
    sent = EventData(b"\x00\x01body")
    sent.properties = {"text": "t", "number": 7, "ratio": 1.5, "flag": True, "id": uuid.UUID(int=3)}
    sent.message_id = "m-1"
    sent.correlation_id = "c-1"
    sent.content_type = "text/plain"
    before = datetime.now(UTC) - timedelta(seconds=1)
    with producing("whole") as producer:
        producer.send_event(sent, partition_id="1")
    with Reading(served, "whole").wait(1) as reading:
        [(partition, event)] = reading.events
    assert partition == "1"
    assert b"".join(event.body) == b"\x00\x01body"
    assert event.properties == {
        b"text": b"t", b"number": 7, b"ratio": 1.5, b"flag": True, b"id": uuid.UUID(int=3)
    }  # fmt: skip
    assert (event.message_id, event.correlation_id, event.content_type) == ("m-1", "c-1", "text/plain")
    assert (event.sequence_number, event.offset, event.partition_key) == (0, "0", None)
    assert before <= event.enqueued_time <= datetime.now(UTC) + timedelta(seconds=1)


def test_bodies_of_every_kind(served, producing):
    value = AmqpAnnotatedMessage(value_body={"a": [1, "b"]}, annotations={"x-mine": 5})
    sequence = AmqpAnnotatedMessage(sequence_body=[[1, 2], [b"x"]])
    with producing("whole") as producer:
        batch = producer.create_batch(partition_id="0")
        batch.add(value)
        batch.add(sequence)
        producer.send_batch(batch)
        producer.send_batch([AmqpAnnotatedMessage(data_body=[b"a", b"b"])], partition_id="0")
    with Reading(served, "whole", partition_id="0").wait(3) as reading:
        found = [event.raw_amqp_message for _, event in reading.events]
    assert [each.body_type for each in found] == [
        AmqpMessageBodyType.VALUE, AmqpMessageBodyType.SEQUENCE, AmqpMessageBodyType.DATA
    ]  # fmt: skip
    assert found[0].body == {b"a": [1, b"b"]}
    assert found[0].annotations[b"x-mine"] == 5
    assert [list(each) for each in found[1].body] == [[1, 2], [b"x"]]
    assert list(found[2].body) == [b"a", b"b"]


def test_batches_by_partition_and_consumer_groups(served, producing):
    with producing("telemetry") as producer:
        for partition in "0123":
            send(producer, [f"{partition}-{number}" for number in range(50)], partition_id=partition)
    with Reading(served, "telemetry").wait(200) as one, Reading(served, "telemetry", "audit").wait(200) as two:
        for reading in (one, two):
            for partition in "0123":
                assert reading.bodies(partition) == [f"{partition}-{number}" for number in range(50)]


def test_keys_stay_together_and_buffered_producers_agree(served, producing):
    with producing("keyed") as producer:
        for number in range(27):
            send(producer, [f"{number}"], partition_key=f"key-{number % 9}")
    placed = []
    with EventHubProducerClient.from_connection_string(
        connection(served, "keyed"),
        buffered_mode=True,
        max_wait_time=0.2,
        on_success=lambda events, partition: placed.extend((event.body_as_str(), partition) for event in events),
        on_error=lambda events, partition, error: placed.append(error),
    ) as producer:
        for number in range(27, 45):
            producer.send_event(EventData(f"{number}"), partition_key=f"key-{number % 9}")
        producer.flush(timeout=30)
    with Reading(served, "keyed").wait(45) as reading:
        events = list(reading.events)
    home = {}
    for partition, event in events:
        key = event.partition_key
        number = int(event.body_as_str())
        if key is not None:
            assert key == b"key-%d" % (number % 9)
        home.setdefault(number % 9, set()).add(partition)
    assert all(len(partitions) == 1 for partitions in home.values()), home
    assert len({partition for partition, _ in events}) > 1
    assert len(placed) == 18


def test_events_without_a_key_go_round(served, producing):
    with producing("shared") as producer:
        for number in range(40):
            send(producer, [f"{number}"])
        properties = [producer.get_partition_properties(str(number)) for number in range(4)]
    assert [each["last_enqueued_sequence_number"] for each in properties] == [9] * 4


def test_buffered_mode(served):
    sent, failed = [], []
    with EventHubProducerClient.from_connection_string(
        connection(served, "buffered"),
        buffered_mode=True,
        max_wait_time=0.2,
        max_buffer_length=100,
        on_success=lambda events, partition: sent.extend(events),
        on_error=lambda events, partition, error: failed.append(error),
    ) as producer:
        for number in range(400):
            producer.send_event(EventData(f"{number}"))
        producer.flush(timeout=30)
        assert producer.total_buffered_event_count == 0
    assert (len(sent), failed) == (400, [])
    with Reading(served, "buffered").wait(400) as reading:
        assert Counter(reading.bodies()) == Counter(map(str, range(400)))


def test_receive_batch(served, producing):
    with producing("live") as producer:
        send(producer, [f"{number}" for number in range(300)], partition_id="0")
    with Reading(served, "live", partition_id="0", batches=True, max_batch_size=50, max_wait_time=2).wait(
        300
    ) as reading:
        assert reading.bodies() == [f"{number}" for number in range(300)]
        assert max(reading.batches) <= 50
        # What comes later is received as well.
        with producing("live") as producer:
            send(producer, ["late"], partition_id="0")
        reading.wait(301)
        assert reading.bodies()[-1] == "late"


def test_starting_positions(served, producing):
    with producing("positions") as producer:
        send(producer, ["a", "b"])
        time.sleep(0.1)
        send(producer, ["c", "d"])
    with Reading(served, "positions").wait(4) as reading:
        marks = [event for _, event in reading.events]
    cases = [
        ({"starting_position": marks[1].offset}, "cd"),
        ({"starting_position": {"0": marks[2].sequence_number}}, "d"),
        ({"starting_position": marks[1].enqueued_time}, "cd"),
        ({"starting_position": marks[2].enqueued_time, "starting_position_inclusive": True}, "cd"),
    ]
    for options, wanted in cases:
        with Reading(served, "positions", partition_id="0", **options).wait(len(wanted)) as reading:
            assert "".join(reading.bodies()) == wanted, options
    with Reading(served, "positions", starting_position="@latest", partition_id="0") as reading:
        limit = time.monotonic() + 20
        while not reading.events and time.monotonic() < limit:
            with producing("positions") as producer:
                send(producer, ["x"])
            time.sleep(0.3)
        assert reading.events
        assert set(reading.bodies()) == {"x"}


def test_last_enqueued_event_properties(served, producing):
    with producing("tracked") as producer:
        send(producer, ["a", "b", "c"])
    with Reading(served, "tracked", partition_id="0", track_last_enqueued_event_properties=True).wait(3) as reading:
        last = reading.events[-1][1]
        for reported in reading.tracked:
            assert reported["sequence_number"] == 2
            assert reported["offset"] == last.offset
            assert reported["enqueued_time"] == last.enqueued_time
            assert abs(reported["retrieval_time"] - datetime.now(UTC)) < timedelta(minutes=1)
    with Reading(served, "tracked", partition_id="0").wait(3) as reading:
        assert reading.tracked == [None] * 3


def test_properties(served, producing):
    with producing("tracked") as producer:
        hub = producer.get_eventhub_properties()
        assert (hub["eventhub_name"], hub["partition_ids"]) == ("tracked", ["0"])
        assert abs(hub["created_at"] - datetime.now(UTC)) < timedelta(minutes=10)
        assert producer.get_partition_ids() == ["0"]
        before = producer.get_partition_properties("0")
        send(producer, ["x"])
        after = producer.get_partition_properties("0")
    assert after["beginning_sequence_number"] == 0
    assert after["last_enqueued_sequence_number"] == before["last_enqueued_sequence_number"] + 1
    assert after["is_empty"] is False
    assert int(after["last_enqueued_offset"]) > int(before["last_enqueued_offset"] or -1)
    with producing("closed") as producer:
        empty = producer.get_partition_properties("0")
    assert (empty["is_empty"], empty["last_enqueued_sequence_number"]) == (True, -1)


def test_a_higher_owner_level_takes_over(served, producing):
    with producing("owned") as producer:
        send(producer, ["a"])
    with (
        Reading(served, "owned", partition_id="0", owner_level=1).wait(1) as first,
        Reading(served, "owned", partition_id="0", owner_level=2).wait(1) as second,
    ):
        first.wait_until(lambda: first.errors)
        assert isinstance(first.errors[0], EventHubError)
        assert "epoch" in str(first.errors[0]).lower()
        with Reading(served, "owned", partition_id="0", owner_level=1) as third:
            third.wait_until(lambda: third.errors)
            assert "epoch" in str(third.errors[0])
            assert third.events == []
        with producing("owned") as producer:
            send(producer, ["b"])
        second.wait(2)
        assert second.bodies() == ["a", "b"]


def test_five_receivers_without_an_owner_level(served):
    with ExitStack() as readings:
        for _ in range(5):
            readings.enter_context(Reading(served, "owned", partition_id="0")).wait(1)
        with Reading(served, "owned", partition_id="0") as sixth:
            sixth.wait_until(lambda: sixth.errors)
            assert "maximum number of allowed receivers" in str(sixth.errors[0])


class MemoryCheckpoints(CheckpointStore):
    """Ownership and checkpoints in a dictionary, with compare-and-swap by etag as a shared store has it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.owners = {}
        self.checkpoints = {}

    def list_ownership(self, fully_qualified_namespace, eventhub_name, consumer_group, **kwargs):
        with self.lock:
            return [dict(owner) for owner in self.owners.values()]

    def claim_ownership(self, ownership_list, **kwargs):
        claimed = []
        with self.lock:
            for wanted in ownership_list:
                existing = self.owners.get(wanted["partition_id"])
                if existing is None or existing["etag"] == wanted.get("etag"):
                    made = {**wanted, "etag": str(uuid.uuid4()), "last_modified_time": time.time()}
                    self.owners[wanted["partition_id"]] = made
                    claimed.append(dict(made))
        return claimed

    def update_checkpoint(self, checkpoint, **kwargs):
        with self.lock:
            self.checkpoints[checkpoint["partition_id"]] = dict(checkpoint)

    def list_checkpoints(self, fully_qualified_namespace, eventhub_name, consumer_group, **kwargs):
        with self.lock:
            return [dict(checkpoint) for checkpoint in self.checkpoints.values()]


def test_the_checkpointing_processor_continues_where_it_was(served, producing):
    store = MemoryCheckpoints()
    with producing("shared") as producer:
        for partition in "0123":
            send(producer, [f"first-{partition}-{number}" for number in range(5)], partition_id=partition)
    seen = []

    def on_event(context, event):
        seen.append(event.body_as_str())
        context.update_checkpoint(event)

    def after(text):
        return [body for body in list(seen) if body.startswith(text)]

    with Reading(served, "shared", "workers", store=store, on_event=on_event) as reading:
        reading.wait_until(lambda: len(after("first")) == 20 and len(store.checkpoints) == 4)
    with producing("shared") as producer:
        for partition in "0123":
            send(producer, [f"second-{partition}"], partition_id=partition)
    seen.clear()
    with Reading(served, "shared", "workers", store=store, on_event=on_event) as reading:
        reading.wait_until(lambda: len(after("second")) == 4)
    assert sorted(seen) == [f"second-{partition}" for partition in "0123"]


def test_two_processors_share_the_partitions(served, producing):
    store = MemoryCheckpoints()
    with (
        Reading(served, "shared", "workers", store=store, starting_position="@latest") as one,
        Reading(served, "shared", "workers", store=store, starting_position="@latest") as two,
    ):
        limit = time.monotonic() + 40
        number = 0
        # Greedy or balanced, in the end each has two partitions and events of all four come.
        while time.monotonic() < limit:
            with producing("shared") as producer:
                for partition in "0123":
                    send(producer, [f"share-{number}"], partition_id=partition)
            number += 1
            time.sleep(0.3)
            recent = [{at for at, event in list(each.events)[-4:]} for each in (one, two)]
            owners = Counter(owner["owner_id"] for owner in store.owners.values() if owner["owner_id"])
            if sorted(owners.values()) == [2, 2] and all(recent):
                break
        assert sorted(owners.values()) == [2, 2]
        assert one.events
        assert two.events


def test_sizes(served, producing):
    body = b"x" * 1_000_000
    with producing("large") as producer:
        producer.send_event(EventData(body))
        with pytest.raises((EventDataSendError, ValueError)):
            producer.send_event(EventData(b"x" * 1_100_000))
        batch = producer.create_batch()
        for _ in range(2):
            batch.add(EventData(b"y" * 500_000))
        with pytest.raises(ValueError, match="size limit"):
            batch.add(EventData(b"y" * 500_000))
        producer.send_batch(batch)
    with Reading(served, "large", partition_id="0").wait(3) as reading:
        assert [len(b"".join(event.body)) for _, event in reading.events] == [1_000_000, 500_000, 500_000]
    with producing("small") as producer, pytest.raises((EventDataSendError, ValueError)):
        producer.send_event(EventData(b"x" * 100_000))


def test_refusals(served, producing):
    with producing("closed") as producer, pytest.raises(EventHubError):
        send(producer, ["a"])
    with producing("nothing") as producer, pytest.raises((ConnectError, AuthenticationError)):
        send(producer, ["a"])
    with producing("telemetry") as producer, pytest.raises(EventHubError):
        send(producer, ["a"], partition_id="9")
    with Reading(served, "telemetry", "unknown", partition_id="0") as reading:
        reading.wait_until(lambda: reading.errors)
    host = served.connection_string.split("//")[1].split("/")[0]
    wrong = EventHubProducerClient(
        host, "telemetry", EventHubSharedKeyCredential("RootManageSharedAccessKey", "d3Jvbmc="), use_tls=False,
        retry_total=0,
    )  # fmt: skip
    with wrong, pytest.raises((AuthenticationError, ConnectError)):
        send(wrong, ["a"])
