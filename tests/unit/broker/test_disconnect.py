"""A namespace that stops under load: what it keeps is acknowledged, and what it does not acknowledge it does not keep."""

import asyncio
import os
import sys

import pytest

from harness.check.until import passes, until_async
from harness.client.transaction_client import attach_coordinator, declare, discharge
from isthmus.amqp import Disposed, section
from isthmus.amqp.performative import Accepted, Source, Target
from isthmus.amqp.types import Array, UInt
from isthmus.broker.config.limit import ConnectionLimits
from isthmus.entities import Engine, EntityStatus, FragmentStores, Limits, QueueDescription
from isthmus.errors import QuotaExceededError, StoreError


async def run_loop(client, count=5):
    for _ in range(count):
        client.pump()
        await asyncio.sleep(0)


async def stop(broker, client, meanwhile):
    """Stops while a sync is under way; `meanwhile` is what the client does until it ends."""
    broker.store.gate.clear()
    client.sender("orders", "first").send(b"\0Sw\xa1\1a", b"1")
    await run_loop(client)
    stopping = asyncio.create_task(broker.namespace.disconnect())
    await run_loop(client)
    meanwhile()
    await run_loop(client)
    broker.store.gate.set()
    while not stopping.done():
        await run_loop(client, 1)
    await stopping
    client.pump()
    await broker.namespace.commits.wait_idle()


@pytest.fixture
def client(broker):
    return broker.client()


def accepted(client):
    return sum(event.last - event.first + 1 for event in client.seen(Disposed) if type(event.state) is Accepted)


async def test_no_message_is_kept_whose_acceptance_is_not_reported_i6(broker, client, message):
    link = client.sender("orders", "second")
    await stop(broker, client, lambda: link.send(message("b"), b"2"))
    assert client.closed_with() == "amqp:connection:forced"
    assert accepted(client) == broker.engine.runtime("orders").active_message_count


async def test_no_request_is_carried_out_whose_reply_would_be_lost_i6(broker, client, message):
    node = client.sender("orders/$management", "node")
    request = message("", application_properties={"operation": "com.microsoft:peek-message"})
    await stop(broker, client, lambda: node.send(request, b"2"))
    assert not [event for event in client.seen(Disposed) if event.link is node]


async def test_receive_and_delete_loses_nothing_to_a_stop_i6(broker, client, message, body):
    filler = client.sender("orders", "filler")
    for number in range(4):
        filler.send(message(str(number)), bytes([number]))
    await client.settle()
    link = client.receiver("orders", snd_settle_mode=1, rcv_settle_mode=0)

    def grant():
        link.grant(3)

    await stop(broker, client, grant)
    left = broker.engine.runtime("orders").active_message_count
    assert len(client.payloads(link)) + left == 5  # with the one of `stop`


async def test_settlements_of_the_last_moment_are_kept_i6(broker, client, message):
    client.sender("orders", "filler").send(message("x"), b"0")
    await client.settle()
    link = client.receiver("orders", credit=1)
    await client.settle()
    await stop(broker, client, lambda: link.dispose(0, 0, Accepted(), settled=True))
    assert broker.engine.runtime("orders").active_message_count == 1  # the one of `stop`


async def test_the_stream_of_a_busy_client_ends_once_it_has_read_all_i6(broker, client, message):
    link = client.sender("orders")
    link.send(message("a"), b"1")
    client.peer.receive(client.connection.take())
    stopping = asyncio.create_task(broker.namespace.disconnect())
    await asyncio.sleep(0)
    await broker.namespace.commits.wait_idle()
    for _ in range(20):
        await asyncio.sleep(0)
    assert any(b"amqp:connection:forced" in data for data in client.wrote)
    assert not client.closed  # bytes that it still sends would reset the connection, with those that it has not read
    while not stopping.done():
        await run_loop(client, 1)
    assert accepted(client) == 1
    assert client.closed


async def test_a_client_that_is_silent_delays_no_stop(broker, client):
    broker.clock.advance(60_000)
    await broker.namespace.disconnect()
    assert client.closed


async def test_a_message_that_is_still_written_is_reported_before_the_end_i6(broker, client):
    client.sender("orders")
    [handler] = [each for each in client.peer._links.handlers.values() if each.owed is not None]
    handler.owed.add()  # as for a large message whose last bytes are with the disk
    stopping = asyncio.create_task(broker.namespace.disconnect())
    for _ in range(50):
        await run_loop(client, 1)
    assert not client.closed_with()
    handler.owed.paid()
    await until_async(lambda: client.pump() or stopping.done())
    assert client.closed_with() == "amqp:connection:forced"


@pytest.mark.parametrize(("size", "window"), [(3 << 19, 1), (40_000, 2)])
async def test_a_message_that_was_deleted_for_a_client_is_sent_to_its_end_i6(broker, message, size, window):
    broker.engine.create_queue("big", QueueDescription(max_message_size_in_kilobytes=4096))
    other = broker.client()
    other.sender("big").send_many([message("M" * size), message("M" * size)], [b"1", b"2"])
    await other.settle()
    other.peer.lost()
    client = broker.client(incoming_window=window, max_frame_size_bytes=1 << 12)
    link = client.receiver("big", snd_settle_mode=1, rcv_settle_mode=0)
    link.grant(1)
    await until_async(lambda: client.send_only() or broker.engine.runtime("big").active_message_count < 2)
    await passes(20, client.send_only)
    await broker.namespace.commits.wait_idle()
    link.grant(9)
    stopping = asyncio.create_task(broker.namespace.disconnect())
    await until_async(lambda: client.pump() or stopping.done())
    assert client.closed_with() == "amqp:connection:forced"
    assert client.bodies(link) == [b"M" * size]
    assert broker.engine.runtime("big").active_message_count == 1


@pytest.mark.parametrize("late", ["the window", "credit"])
async def test_a_deferred_message_that_was_deleted_for_a_client_is_sent_to_its_end_i6(broker, message, late):
    """The reply to the request that took it, in parts."""
    broker.engine.create_queue("big", QueueDescription(max_message_size_in_kilobytes=4096))
    other = broker.client()
    other.sender("big").send(message("M" * (3 << 19)), b"1")
    await other.settle()
    queue = broker.engine.receiver("big")
    queue.defer(queue.acquire(1).tags)
    await other.settle()
    other.peer.lost()
    client = broker.client(incoming_window=1 if late == "the window" else 5000, max_frame_size_bytes=1 << 12)
    requests = client.session.attach_sender("q", Target(address="big/$management"), source=Source(address="me"))
    replies = client.session.attach_receiver("a", Source(address="big/$management"), target=Target(address="me"))
    client.pump()
    if late == "the window":
        replies.grant(10)
    requests.send(
        section.encode_message(
            {"sequence-numbers": Array(0x81, [1]), "receiver-settle-mode": UInt(0)},
            properties={"message_id": "1", "reply_to": "me"},
            application_properties={"operation": "com.microsoft:receive-by-sequence-number"},
            value_body=True,
        ),
        b"1",
    )
    await until_async(lambda: client.send_only() or broker.engine.runtime("big").message_count == 0)
    await passes(20, client.send_only)
    stopping = asyncio.create_task(broker.namespace.disconnect())
    await passes(5, client.send_only)
    replies.grant(10)
    await until_async(lambda: client.pump() or stopping.done())
    assert client.closed_with() == "amqp:connection:forced"
    assert [len(reply) > 3 << 19 for reply in client.payloads(replies)] == [True]


@pytest.mark.parametrize(("mode", "waits"), [(1, True), (0, False)], ids=["receive-and-delete", "peek-lock"])
async def test_what_was_deleted_for_a_client_leaves_the_socket_s_buffer_before_the_end_i6(
    broker, client, message, mode, waits
):
    """The process may end right after the stop, and its buffers with it."""
    client.sender("orders").send(message("a"), b"1")
    link = client.receiver("orders", credit=1, snd_settle_mode=mode, rcv_settle_mode=0)
    await until_async(lambda: client.pump() or client.payloads(link))
    client.unsent_bytes = 100
    stopping = asyncio.create_task(broker.namespace.disconnect())
    await passes(20, client.pump)
    assert stopping.done() is not waits
    client.unsent_bytes = 0
    await until_async(lambda: client.pump() or stopping.done())
    assert client.closed_with() == "amqp:connection:forced"


@pytest.mark.parametrize("what", ["a reply", "a large reply", "an outcome", "the end of a transaction"])
async def test_what_a_slow_client_waits_for_leaves_the_socket_s_buffer_before_the_end_i6(broker, client, message, what):
    """Without it, the client sends or schedules its messages again."""
    if what == "an outcome":
        client.unsent_bytes = 1
        client.sender("orders").send(message("a"), b"1")
    elif what == "the end of a transaction":
        coordinator = attach_coordinator(client.session)
        client.pump()
        declare(coordinator)
        client.pump()
        client.unsent_bytes = 1
        discharge(coordinator, client.seen(Disposed)[-1].state.txn_id)
    else:
        if what == "a large reply":
            client.sender("orders").send_many([message("M" * 700_000), message("N" * 700_000)], [b"1", b"2"])
            await client.settle()
        requests = client.session.attach_sender("q", Target(address="orders/$management"), source=Source(address="me"))
        replies = client.session.attach_receiver("a", Source(address="orders/$management"), target=Target(address="me"))
        client.pump()
        replies.grant(10)
        operation = {"operation": "com.microsoft:peek-message"}
        client.unsent_bytes = 1
        requests.send(
            section.encode_message(
                {"from-sequence-number": 0, "message-count": 2},
                properties={"message_id": "1", "reply_to": "me"},
                application_properties=operation,
                value_body=True,
            ),
            b"1",
        )
        await until_async(lambda: client.pump() or client.payloads(replies))
    await client.settle()
    stopping = asyncio.create_task(broker.namespace.disconnect())
    await passes(20, client.pump)
    assert not stopping.done()
    client.unsent_bytes = 0
    await until_async(lambda: client.pump() or stopping.done())
    assert client.closed_with() == "amqp:connection:forced"


async def test_what_a_store_of_fragments_has_deleted_although_it_failed_is_sent_before_the_end_i6(
    broker, message, monkeypatch
):
    monkeypatch.setattr("isthmus.broker.namespace._BODY_SECONDS", 0.2)
    limits, fragments = Limits(partitions_per_entity=1, partition_stores=1), type(broker.store)()
    monkeypatch.setattr(fragments, "reopen", lambda: None)  # a disk without room: what was written before remains
    monkeypatch.setattr(
        sys.modules[type(broker).__module__],
        "Engine",
        lambda store, clock: Engine(
            store, clock, limits=limits, stores=FragmentStores(lambda _: fragments, clock, limits, os.urandom)
        ),
    )
    broker = type(broker)()
    broker.engine.create_queue("parts", QueueDescription(enable_partitioning=True))
    client = broker.client()
    await client.settle()
    client.sender("parts").send(message("a"), b"1")
    await until_async(lambda: client.pump() or accepted(client))
    link = client.receiver("parts", snd_settle_mode=1, rcv_settle_mode=0)
    fragments.error = StoreError("no space left on device")
    link.grant(1)
    await until_async(lambda: client.pump() or fragments.error is None)
    await passes(20, client.pump)
    assert client.payloads(link) == []
    await broker.namespace.disconnect()
    client.pump()
    assert len(client.payloads(link)) == 1
    await broker.namespace.close()


async def test_what_was_deleted_for_a_client_leaves_the_socket_though_its_link_was_ended_before_i6(
    broker, client, message
):
    """As where an operator disables the entity, and then stops the namespace."""
    client.sender("orders").send(message("a" * 5000), b"1")
    link = client.receiver("orders", credit=1, snd_settle_mode=1, rcv_settle_mode=0)
    client.unsent_bytes = 100
    await until_async(lambda: client.pump() or client.payloads(link))
    broker.engine.update_queue("orders", QueueDescription(status=EntityStatus.RECEIVE_DISABLED))
    await client.settle()
    client.peer.tick()
    client.pump()
    assert client.detached(link) == "com.microsoft:entity-disabled"
    client.unsent_bytes = 2000
    stopping = asyncio.create_task(broker.namespace.disconnect())
    await passes(20, client.pump)
    assert not stopping.done()
    client.unsent_bytes = 0
    await until_async(lambda: client.pump() or stopping.done())
    assert client.closed_with() == "amqp:connection:forced"


@pytest.mark.parametrize("size", [10, 300_000])
async def test_what_was_deleted_for_a_client_is_sent_before_its_connection_is_given_up_i5(broker, message, size):
    """As where messages that are not whole fill the memory."""
    await fill(broker, message, "M" * size)
    broker.namespace.limits = ConnectionLimits(max_partial_bytes=1 << 20)
    client = broker.client(incoming_window=5000, max_frame_size_bytes=1 << 12)
    link = client.receiver("orders", snd_settle_mode=1, rcv_settle_mode=0)
    sender = client.sender("orders")
    broker.store.gate.clear()
    link.grant(1)
    await until_async(lambda: client.send_only() or broker.engine.runtime("orders").active_message_count == 0)
    sender.begin_parts(b"1")
    while not client.peer._is_closing:
        sender.send_part(b"x" * 50_000, more=True)
        client.send_only()
    assert client.payloads(link) == []
    broker.store.gate.set()
    await until_async(lambda: client.pump() or client.closed_with())
    assert client.bodies(link) == [b"M" * size]
    assert client.closed_with() == "com.microsoft:server-busy"
    assert broker.namespace.partial_bytes == 0


async def test_a_client_that_reads_nothing_does_not_delay_the_end_of_its_connection_for_long(
    broker, message, monkeypatch
):
    monkeypatch.setattr("isthmus.broker.connection.link_table._LAST_SECONDS", 0.01)
    await fill(broker, message, "M" * 300_000)
    client = broker.client(incoming_window=1, max_frame_size_bytes=1 << 12)
    link = client.receiver("orders", snd_settle_mode=1, rcv_settle_mode=0)
    link.grant(1)
    await until_async(lambda: client.send_only() or broker.engine.runtime("orders").active_message_count == 0)
    await broker.namespace.commits.wait_idle()
    client.peer._give_up(QuotaExceededError("too much"))
    await until_async(lambda: client.closed)


async def fill(broker, message, text):
    other = broker.client()
    other.sender("orders").send(message(text), b"1")
    await other.settle()
    other.peer.lost()
