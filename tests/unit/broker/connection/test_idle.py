"""isthmus.broker.connection.idle."""

import asyncio
from dataclasses import replace

import pytest

from isthmus.amqp import Role
from isthmus.amqp.performative import Source, Target
from isthmus.amqp.types import Symbol
from isthmus.entities import QueueDescription

HEARTBEAT = b"\0\0\0\x08\2\0\0\0"


def limited(broker, **changes):
    broker.namespace.limits = replace(broker.namespace.limits, **changes)


def tick(broker, client, milliseconds=0):
    broker.clock.advance(milliseconds)
    client.peer.receive(HEARTBEAT)
    client.peer.tick()
    client.pump()


async def test_an_idle_link_is_detached_by_force_i1(broker, message):
    client = broker.client()
    sender, receiver = client.sender("orders"), client.receiver("orders", credit=5)
    tick(broker, client)
    for _ in range(9):
        tick(broker, client, 60_000)
    assert client.attached(sender)
    assert client.attached(receiver)
    tick(broker, client, 60_000)
    assert client.detached(sender) == client.detached(receiver) == "amqp:link:detach-forced"
    again = client.sender("orders", "again")
    again.send(message("x"), b"1")
    await client.settle()
    assert client.attached(again)


@pytest.mark.parametrize("moves", ["send", "grant", "settle"])
async def test_what_moves_keeps_its_link_i1(broker, message, moves):
    client = broker.client()
    sender, receiver = client.sender("orders"), client.receiver("orders", credit=1)
    for number in range(12):
        sender.send(message(str(number)), number.to_bytes(4, "big"))
    receiver.grant(12)
    await client.settle()
    for number in range(12):
        if moves == "send":
            sender.send(message("more"), number.to_bytes(4, "big"))
        elif moves == "grant":
            receiver.grant(1)
        else:
            receiver.dispose(number, number, settled=False)
        await client.settle()
        tick(broker, client, 60_000)
    moved, other = (sender, receiver) if moves == "send" else (receiver, sender)
    assert client.attached(moved)
    assert client.detached(other) == "amqp:link:detach-forced"


async def test_a_large_message_that_comes_slowly_keeps_its_link_i1(broker, message):
    client = broker.client()
    link, other = client.sender("orders"), client.sender("orders", "other")
    frames = link._writer.split(message(b"x" * 150_000), b"1", 0, 0, False, 10_000)
    for frame in frames:
        link.amqp_session.write_transfers(link, [frame])
        client.pump()
        tick(broker, client, 60_000)
    await client.settle()
    assert broker.engine.runtime("orders").message_count == 1
    assert client.attached(link)
    assert client.detached(other) == "amqp:link:detach-forced"


async def test_a_large_message_that_is_taken_slowly_keeps_its_link_i1(broker, message):
    broker.engine.create_queue("big", QueueDescription(max_message_size_in_kilobytes=102_400))
    client = broker.client()
    client.sender("big").send(message(b"x" * (10 << 20)), b"1")
    await client.settle()
    link = client.receiver("big", credit=1, snd_settle_mode=1)
    await asyncio.sleep(0)  # it is being taken from the queue
    client.is_writable = False
    await client.settle()
    assert not client.payloads(link)
    [sender_link] = [handler for handler in client.peer._links.handlers.values() if handler.link.role is Role.SENDER]
    for _ in range(100):
        client.is_writable = True
        sender_link.resume()
        client.is_writable = False
        await client.settle()
        tick(broker, client, 60_000)
        if client.payloads(link):
            break
    assert [len(payload) for payload in client.bodies(link)] == [10 << 20]
    assert client.attached(link)


@pytest.mark.parametrize("renews", [True, False])
async def test_a_session_whose_lock_is_renewed_is_not_idle_i1(broker, renews):
    broker.engine.create_queue("sessions", QueueDescription(requires_session=True, lock_duration_ms=300_000))
    await broker.namespace.commits.wait_idle()
    client = broker.client()
    link = client.session.attach_receiver(
        "r",
        Source(address="sessions", filter={Symbol("com.microsoft:session-filter"): "s"}),
        target=Target(address="me"),
    )
    client.pump()
    assert client.attached(link)
    [sender_link] = [handler for handler in client.peer._links.handlers.values() if handler.path == "sessions"]
    for _ in range(12):
        tick(broker, client, 60_000)
        if renews:
            sender_link.hold.renew()
    assert client.detached(link) == ("" if renews else "amqp:link:detach-forced")


async def test_no_link_is_idle_where_the_timeout_is_off(broker):
    limited(broker, link_idle_timeout_ms=0)
    client = broker.client()
    sender = client.sender("orders")
    tick(broker, client, 86_400_000)
    tick(broker, client, 86_400_000)
    assert client.attached(sender)
    assert not client.closed
