"""isthmus.broker.connection.link_table and attachment: what links are attached to, and what is refused."""

from __future__ import annotations

import pytest

from isthmus.amqp import Transfers
from isthmus.amqp.performative import Accepted, Released, Source, Target
from isthmus.amqp.types import Described, Symbol
from isthmus.entities import EntityStatus, QueueDescription, TopicDescription
from isthmus.errors import UnauthorizedError

HEARTBEAT = b"\0\0\0\x08\2\0\0\0"


def tick(broker, client, milliseconds=0):
    broker.clock.advance(milliseconds)
    client.peer.receive(HEARTBEAT)
    client.peer.tick()
    client.pump()


@pytest.mark.parametrize(
    ("name", "sends", "receives"), [("reader", False, True), ("writer", True, False), ("root", True, True)]
)
async def test_links_need_their_right_i1(broker, name, sends, receives):
    client = broker.client(name)
    assert client.attached(client.sender("orders")) is sends
    assert client.attached(client.receiver("orders")) is receives


@pytest.mark.parametrize(
    ("address", "condition"),
    [("nowhere", "amqp:not-found"), ("flights/subscriptions/none", "amqp:not-found"), ("flights", "amqp:not-allowed"),
     ("", "com.microsoft:argument-error"), (None, "com.microsoft:argument-error"), ("x" * 5000, "amqp:not-found"),
     ("nowhere/$management", "amqp:not-found")],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
async def test_what_cannot_be_received_from_is_refused_with_a_line_in_the_log_i1(broker, caplog, address, condition):
    client = broker.client()
    caplog.clear()
    assert client.detached(client.receiver(address)) == condition
    assert len(caplog.records) == 1
    assert client.attached(client.receiver("orders", name="next"))


async def test_a_refused_link_has_a_null_terminus(broker):
    client = broker.client()
    receiver, sender = client.receiver("nowhere"), client.sender("nowhere")
    assert receiver.source is None
    assert sender.target is None


async def test_a_dead_letter_queue_takes_no_sends(broker):
    client = broker.client()
    assert client.detached(client.sender("orders/$DeadLetterQueue")) == "amqp:not-allowed"


@pytest.mark.parametrize("described", [True, False])
async def test_a_session_receiver_on_a_plain_queue_is_refused(broker, described):
    client = broker.client()
    name = "com.microsoft:session-filter"
    wanted = Described(Symbol(name), "s") if described else "s"
    link = client.session.attach_receiver(
        "r", Source(address="orders", filter={Symbol(name): wanted}), target=Target(address="me")
    )
    client.pump()
    assert client.detached(link) == "amqp:not-allowed"


async def test_addresses_and_limits_are_echoed(broker):
    client = broker.client()
    link = client.sender("amqps://Host:5671/Orders")
    assert link.peer.target.address == "amqps://Host:5671/Orders"
    assert link.peer.max_message_size == 1 << 20
    assert link.credit > 0


@pytest.mark.parametrize("end", ["detach", "session"])
async def test_who_gives_up_in_the_same_breath_loses_nothing_else(broker, caplog, end):
    client = broker.client()
    session = client.connection.begin()
    client.pump()
    hasty = session.attach_sender("hasty", Target(address="orders"), source=Source(address="me"))
    if end == "detach":
        hasty.detach()
    else:
        session.end()
    client.pump()
    assert client.attached(client.sender("orders"))
    assert not client.closed
    assert not caplog.records


async def test_a_link_whose_entity_is_deleted_is_detached_i2(broker):
    client = broker.client()
    sender, other = client.sender("orders"), client.sender("flights", name="other")
    broker.engine.delete_queue("orders")
    client.peer.tick()
    client.pump()
    assert client.detached(sender) == "amqp:not-found"
    assert client.attached(other)


async def test_while_nothing_more_is_taken_what_the_client_settles_is_i4(broker, message):
    client = broker.client()
    sender, receiver = client.sender("orders"), client.receiver("orders", 1)
    sender.send(message("a"), b"1")
    await client.settle()
    [delivery] = client.seen(Transfers)
    client.peer.take_no_more()
    sender.send(message("b"), b"2")
    receiver.dispose(delivery.first_delivery_id, delivery.first_delivery_id, Accepted())
    await client.settle()
    runtime = broker.engine.runtime("orders")
    assert runtime.active_message_count == 0, "b was not taken, and a was settled"


async def test_what_comes_behind_the_end_of_its_link_is_reported_with_its_state_i5(broker, message, monkeypatch):
    client = broker.client()
    sender, receiver = client.sender("orders"), client.receiver("orders", 1)
    sender.send(message("a"), b"1")
    await client.settle()
    lost = []
    monkeypatch.setattr(client.peer._links, "on_lost", lost.append)
    [attached] = [each for each in client.peer._links.handlers if each.name == receiver.name]
    client.peer._links.drop(attached, UnauthorizedError("expired"))
    receiver.dispose(0, 0, Released())
    await client.settle()
    assert lost == [Released()]


async def test_the_links_of_replies_are_known_until_they_end(broker):
    client = broker.client()
    client.receiver("orders")
    replies = client.receiver("orders/$management", name="replies")
    assert [each.node for each in client.peer.replies()] == ["orders/$management"]
    replies.detach()
    client.pump()
    assert list(client.peer.replies()) == []


@pytest.mark.parametrize(
    ("status", "sends", "receives"),
    [
        (EntityStatus.ACTIVE, True, True),
        (EntityStatus.DISABLED, False, False),
        (EntityStatus.SEND_DISABLED, False, True),
        (EntityStatus.RECEIVE_DISABLED, True, False),
    ],
)
async def test_status_is_judged_when_a_link_attaches_and_while_it_is_attached_i2(broker, status, sends, receives):
    client = broker.client()
    earlier = client.sender("orders"), client.receiver("orders")
    broker.engine.update_queue("orders", QueueDescription(status=status))
    fresh = client.sender("orders", "s2"), client.receiver("orders", name="r2")
    tick(broker, client)
    for links in (earlier, fresh):
        assert [client.attached(link) for link in links] == [sends, receives]
        for link, passes in zip(links, (sends, receives), strict=True):
            assert client.detached(link) == ("" if passes else "com.microsoft:entity-disabled")


async def test_a_disabled_topic_and_subscription_refuse_their_links_i2(broker):
    client = broker.client()
    sender, receiver = client.sender("flights"), client.receiver("flights/Subscriptions/all")
    broker.engine.update_topic("flights", TopicDescription(status=EntityStatus.DISABLED))
    tick(broker, client)
    assert client.detached(sender) == "com.microsoft:entity-disabled"
    assert client.attached(receiver)


async def test_a_dead_letter_queue_is_open_while_its_queue_only_receives_no_more_i2(broker):
    client = broker.client()
    assert client.attached(client.receiver("closed/$DeadLetterQueue"))
