import asyncio
from collections import Counter

import pytest

from isthmus.amqp import Disposed, LinkDetached, Transfers
from isthmus.broker.connection.link_table import LinkTable
from isthmus.broker.link.sender_link import SenderLink
from isthmus.entities import EntityStatus, QueueDescription


async def fill(client, message, count):
    link = client.sender("orders", "filler")
    for start in range(0, count, 1000):
        part = range(start, min(start + 1000, count))
        link.send_many([message(str(n)) for n in part], [n.to_bytes(4, "big") for n in part])
        await client.settle()


@pytest.mark.parametrize("echoed", [True, False])
async def test_links_with_equal_credit_get_about_the_same_i1(broker, message, echoed):
    filler = broker.client()
    await fill(filler, message, 2000)
    clients = [broker.client() for _ in range(20)]
    links = [client.receiver("orders", credit=1) for client in clients]
    counts = Counter()
    for _ in range(200):
        for number, client in enumerate(clients):
            await asyncio.sleep(0)
            client.pump()
            for event in client.seen(Transfers):
                counts[number] += len(event.tags)
                event.link.dispose(event.first_delivery_id, event.first_delivery_id, settled=not echoed)
                event.link.grant(1)
            client.events.clear()
            client.pump()
        if sum(counts.values()) >= 2000:
            break
    assert sum(counts.values()) == 2000
    assert all(80 <= count <= 120 for count in counts.values())
    assert len(links) == 20


async def test_a_greedy_link_leaves_some_to_the_others_i1(broker, message):
    filler = broker.client()
    await fill(filler, message, 1000)
    clients = [broker.client() for _ in range(4)]
    links = [client.receiver("orders", credit=10_000) for client in clients]
    for client in clients:
        await client.settle()
    counts = [len(client.payloads(link)) for client, link in zip(clients, links, strict=True)]
    assert sum(counts) == 1000
    assert min(counts) >= 100


async def test_a_queue_without_receivers_has_no_round_i3(broker, message):
    client = broker.client()
    link = client.receiver("orders", credit=5)
    assert broker.namespace.statistics()["receiving_queues"] == 1
    link.detach()
    client.pump()
    assert broker.namespace.statistics()["receiving_queues"] == 0
    await fill(client, message, 3)
    again = client.receiver("orders", credit=5, name="again")
    await client.settle()
    assert len(client.payloads(again)) == 3


async def test_a_lost_connection_leaves_nothing_behind(broker, message):
    client = broker.client()
    client.receiver("orders", credit=5)
    client.sender("orders")
    client.peer.lost()
    assert broker.namespace.statistics() | {"commits": 0} == {
        "connections": 0, "links": 0, "receiving_queues": 0, "commits": 0, "commit_failures": 0,
        "event_hubs": 0, "event_receivers": 0,
    }  # fmt: skip


async def test_links_of_a_deleted_queue_are_detached(broker, message):
    client = broker.client()
    sender, receiver = client.sender("orders"), client.receiver("orders", credit=5)
    broker.engine.delete_queue("orders")
    await client.settle()
    sender.send(message("x"), b"1")
    await client.settle()
    client.peer.tick()
    await client.settle()
    assert client.detached(receiver) == client.detached(sender) == "amqp:not-found"
    [disposed] = client.seen(Disposed)
    assert disposed.state.error.condition == "amqp:not-found"
    broker.engine.create_queue("orders")
    await client.settle()
    again, other = client.receiver("orders", credit=5, name="again"), client.sender("orders", "other")
    other.send(message("y"), b"1")
    await client.settle()
    assert client.bodies(again) == [b"y"]


async def test_a_queue_that_is_disabled_under_a_link_gives_nothing_more(broker, message):
    client = broker.client()
    receiver = client.receiver("orders", credit=5)
    broker.engine.update_queue("orders", QueueDescription(status=EntityStatus.RECEIVE_DISABLED))
    await client.settle()
    await fill(client, message, 2)
    assert client.bodies(receiver) == []
    assert client.detached(receiver) in {"", "com.microsoft:entity-disabled"}
    broker.engine.update_queue("orders", QueueDescription())
    await client.settle()
    again = client.receiver("orders", credit=5, name="again")
    await client.settle()
    assert len(client.bodies(again)) + len(client.bodies(receiver)) == 2


async def test_a_fault_at_one_link_costs_the_others_no_message(broker, message, monkeypatch, caplog):
    unlucky, other = broker.client(), broker.client()
    first, second = unlucky.receiver("orders", credit=5), other.receiver("orders", credit=5)
    deliver = SenderLink.deliver

    def fail_once(sender_link, limit):
        monkeypatch.setattr(SenderLink, "deliver", deliver)
        raise KeyError("a fault")

    monkeypatch.setattr(SenderLink, "deliver", fail_once)
    await fill(broker.client(), message, 3)
    await unlucky.settle()
    await other.settle()
    lost, left = (
        [(unlucky, first), (other, second)] if not unlucky.payloads(first) else [(other, second), (unlucky, first)]
    )
    assert len(left[0].payloads(left[1])) == 3
    [detached] = lost[0].seen(LinkDetached)
    assert str(detached.error.condition) == "amqp:internal-error"
    assert "a fault" in caplog.text


async def test_a_fault_at_one_connection_costs_the_others_no_tick(broker, monkeypatch, caplog):
    clients = [broker.client() for _ in range(3)]
    ticked = []
    tick = LinkTable.tick

    def fail_once(links, now):
        ticked.append(links)
        if len(ticked) == 1:
            raise KeyError("a fault")
        tick(links, now)

    monkeypatch.setattr(LinkTable, "tick", fail_once)
    broker.namespace._tick_peers()
    assert len(ticked) == len(clients)
    assert len(broker.namespace.peers) == len(clients) - 1
    assert "a fault" in caplog.text
