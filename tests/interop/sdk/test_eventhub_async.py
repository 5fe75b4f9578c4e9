"""azure-eventhub, asynchronous and unmodified, against a served namespace."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.eventhub import EventData, TransportType
from azure.eventhub.aio import CheckpointStore, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import EventHubError

from isthmus.testing.namespace import namespace

EVENT_HUBS = """
event_hubs:
  telemetry: {partition_count: 4}
  owned: {partition_count: 1}
  shared: {partition_count: 4}
  buffered: {partition_count: 2}
  restarted: {partition_count: 1}
  tls: {partition_count: 1}
"""


@pytest.fixture(scope="module")
def served():
    with namespace(config=EVENT_HUBS) as running:
        yield running


def connection(served, hub):
    return f"{served.connection_string};EntityPath={hub}"


@pytest.fixture
def producing(served):
    @asynccontextmanager
    async def made(hub, **options):
        client = EventHubProducerClient.from_connection_string(connection(served, hub), **options)
        async with client:
            yield client

    return made


async def send(producer, bodies, **where):
    batch = await producer.create_batch(**where)
    for body in bodies:
        batch.add(EventData(body))
    await producer.send_batch(batch)


class Reading:
    """A consumer at work in a task."""

    def __init__(self, served, hub, *, batches=False, store=None, client=None, **options):
        self.client = client or EventHubConsumerClient.from_connection_string(
            connection(served, hub),
            consumer_group="$Default",
            checkpoint_store=store,
            load_balancing_strategy="greedy",
            load_balancing_interval=0.1,
        )
        self.events, self.tracked, self.errors = [], [], []
        options.setdefault("starting_position", "-1")
        options["on_error"] = self.on_error
        if batches:
            self.call = self.client.receive_batch(self.on_batch, **options)
        else:
            self.call = self.client.receive(options.pop("on_event", self.on_event), **options)

    async def on_event(self, context, event):
        if event is not None:
            self.tracked.append(context.last_enqueued_event_properties)
            self.events.append((context.partition_id, event))

    async def on_batch(self, context, events):
        self.events += [(context.partition_id, event) for event in events]

    async def on_error(self, context, error):
        self.errors.append(error)

    def bodies(self, partition=None):
        return [event.body_as_str() for at, event in self.events if partition in (None, at)]

    async def wait_until(self, condition, seconds=40.0):
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():  # noqa: ASYNC110 - what is waited for happens in the SDK
                    await asyncio.sleep(0.02)
        assert condition(), (len(self.events), self.errors)

    async def wait(self, count):
        await self.wait_until(lambda: len(self.events) >= count)

    async def __aenter__(self):
        self.task = asyncio.create_task(self.call)
        return self

    async def __aexit__(self, *exception):
        await self.client.close()
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


async def test_send_and_receive(served, producing):
    async with producing("telemetry") as producer:
        for partition in "0123":
            await send(producer, [f"{partition}-{number}" for number in range(30)], partition_id=partition)
        properties = await producer.get_eventhub_properties()
        assert properties["partition_ids"] == ["0", "1", "2", "3"]
        assert (await producer.get_partition_properties("2"))["last_enqueued_sequence_number"] == 29
    async with Reading(served, "telemetry", track_last_enqueued_event_properties=True) as reading:
        await reading.wait(120)
        for partition in "0123":
            assert reading.bodies(partition) == [f"{partition}-{number}" for number in range(30)]
        assert {reported["sequence_number"] for reported in reading.tracked} == {29}


async def test_buffered_mode(served):
    sent, failed = [], []

    async def on_success(events, partition):
        sent.extend(events)

    async def on_error(events, partition, error):
        failed.append(error)

    producer = EventHubProducerClient.from_connection_string(
        connection(served, "buffered"), buffered_mode=True, on_success=on_success, on_error=on_error, max_wait_time=0.2
    )
    async with producer:
        for number in range(200):
            await producer.send_event(EventData(f"{number}"))
        await producer.flush(timeout=30)
    assert (len(sent), failed) == (200, [])
    async with Reading(served, "buffered", batches=True, max_batch_size=40) as reading:
        await reading.wait(200)
        assert sorted(reading.bodies(), key=int) == [f"{number}" for number in range(200)]


async def test_a_higher_owner_level_takes_over(served, producing):
    async with producing("owned") as producer:
        await send(producer, ["a"])
    async with Reading(served, "owned", partition_id="0", owner_level=1) as first:
        await first.wait(1)
        async with Reading(served, "owned", partition_id="0", owner_level=2) as second:
            await second.wait(1)
            await first.wait_until(lambda: first.errors)
            assert isinstance(first.errors[0], EventHubError)


class MemoryCheckpoints(CheckpointStore):
    """Ownership and checkpoints in a dictionary."""

    def __init__(self):
        self.owners, self.checkpoints = {}, {}

    async def list_ownership(self, fully_qualified_namespace, eventhub_name, consumer_group, **kwargs):
        return [dict(owner) for owner in self.owners.values()]

    async def claim_ownership(self, ownership_list, **kwargs):
        for number, wanted in enumerate(ownership_list):
            self.owners[wanted["partition_id"]] = {
                **wanted, "etag": f"{number}", "last_modified_time": asyncio.get_running_loop().time() + 2e9
            }  # fmt: skip
        return [dict(self.owners[wanted["partition_id"]]) for wanted in ownership_list]

    async def update_checkpoint(self, checkpoint, **kwargs):
        self.checkpoints[checkpoint["partition_id"]] = dict(checkpoint)

    async def list_checkpoints(self, fully_qualified_namespace, eventhub_name, consumer_group, **kwargs):
        return [dict(checkpoint) for checkpoint in self.checkpoints.values()]


async def test_the_checkpointing_processor_continues_where_it_was(served, producing):
    store = MemoryCheckpoints()
    seen = []

    async def on_event(context, event):
        seen.append(event.body_as_str())
        await context.update_checkpoint(event)

    for text in ("first", "second"):
        async with producing("shared") as producer:
            for partition in "0123":
                await send(producer, [f"{text}-{partition}"], partition_id=partition)
        async with Reading(served, "shared", store=store, on_event=on_event) as reading:
            await reading.wait_until(lambda text=text: sum(body.startswith(text) for body in seen) == 4)
    assert sorted(seen) == sorted(f"{text}-{partition}" for text in ("first", "second") for partition in "0123")


async def test_a_consumer_continues_over_a_restart(served, producing):
    async with producing("restarted") as producer:
        await send(producer, ["a", "b"])
        async with Reading(served, "restarted", partition_id="0") as reading:
            await reading.wait(2)
            await asyncio.to_thread(served.restart)
            await send(producer, ["c"])
            await reading.wait(3)
            assert reading.bodies() == ["a", "b", "c"]


async def test_over_tls_and_websocket_with_a_named_key(served):
    parts = dict(part.split("=", 1) for part in served.connection_string.split(";") if part)
    credential = AzureNamedKeyCredential(parts["SharedAccessKeyName"], parts["SharedAccessKey"])
    options = {
        "transport_type": TransportType.AmqpOverWebsocket,
        "custom_endpoint_address": f"sb://localhost:{served.ports['tls']}",
        "connection_verify": str(served.ca_file),
    }
    async with EventHubProducerClient("localhost", "tls", credential, **options) as producer:
        await send(producer, ["a", "b"])
    client = EventHubConsumerClient("localhost", "tls", "$Default", credential, **options)
    async with Reading(served, "tls", client=client, partition_id="0") as reading:
        await reading.wait(2)
        assert reading.bodies() == ["a", "b"]
