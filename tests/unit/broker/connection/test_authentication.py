"""isthmus.broker.connection.authentication: SASL, tokens over `$cbs`, and what becomes of links whose token ends."""

from __future__ import annotations

import pytest

from harness.client.cbs import put_token, send_token
from isthmus.amqp import section
from isthmus.amqp.performative import Source, Target
from isthmus.amqp.types import Symbol
from isthmus.entities import AuthorizationRule, QueueDescription


async def test_a_key_by_sasl_plain_opens_the_namespace(broker):
    client = broker.client()
    assert client.attached(client.sender("orders"))
    assert client.attached(client.receiver("flights/Subscriptions/all"))
    assert client.attached(client.receiver("amqps://host:5671/Orders/$DeadLetterQueue", name="dlq"))


async def test_an_entity_s_key_by_sasl_plain_opens_that_entity(broker, new_client):
    rule = AuthorizationRule("partner", "partner-key", "partner-key-2", ["Send"])
    broker.engine.create_queue("mine", QueueDescription(authorization_rules=[rule]))
    broker.engine.create_queue("mine-too", QueueDescription())
    client = new_client(broker).open("partner", "partner-key-2")
    earlier = client.sender("sb://host/Mine")
    assert client.attached(earlier)
    for refused in (client.receiver("mine"), client.sender("mine-too", "t"), client.sender("orders", "o")):
        assert client.detached(refused) == "amqp:unauthorized-access"
    # Its own token opens more, as on any connection.
    put_token(client, broker.token("sb://host/orders"))
    assert client.attached(client.sender("orders", "late"))
    # A key that is taken away opens nothing more.
    broker.engine.update_queue("mine", QueueDescription())
    broker.clock.advance(3_000)
    client.peer.tick()
    client.pump()
    assert client.detached(earlier) == "amqp:unauthorized-access"


async def test_a_wrong_key_is_refused(broker, new_client, caplog):
    client = new_client(broker)
    client.connection.start("PLAIN", b"\0root\0wrong-secret")
    client.pump()
    assert client.closed
    assert client.closed_with() == "amqp:unauthorized-access"
    assert "wrong-secret" not in caplog.text
    assert len(caplog.records) >= 1


async def test_a_token_opens_its_entity(broker):
    client = broker.client(None)
    assert client.detached(client.sender("orders", "early")) == "amqp:unauthorized-access"
    _, replies = put_token(client, broker.token("sb://host/orders"))
    [reply] = client.payloads(replies)
    properties = section.decode_map(reply, section.locate(reply).application_properties)
    assert properties["status-code"] == 202
    assert client.attached(client.sender("orders", "late"))
    assert client.detached(client.receiver("flights/subscriptions/all")) == "amqp:unauthorized-access"


async def test_an_expired_token_detaches_its_links_i2(broker, message):
    client = broker.client(None)
    requests, _ = put_token(client, broker.token("sb://host/orders", seconds=30))
    sender, receiver = client.sender("orders"), client.receiver("orders")
    broker.clock.advance(31_000)
    client.peer.tick()
    client.pump()
    assert client.detached(sender) == client.detached(receiver) == "amqp:unauthorized-access"
    assert not client.closed
    send_token(client, requests, broker.token("sb://host/orders"))
    again = client.sender("orders", "again")
    again.send(message("x"), b"1")
    await client.settle()
    assert client.attached(again)


def sender_via(client, destination="next"):
    properties = {Symbol("com.microsoft:transfer-destination-address"): destination}
    link = client.session.attach_sender(
        "via", Target(address="orders"), source=Source(address="me"), properties=properties
    )
    client.pump()
    return link


@pytest.mark.parametrize("short", ["orders", "next"])
async def test_a_sender_via_an_entity_ends_with_the_token_of_either_i2(broker, short):
    broker.engine.create_queue("next")
    client = broker.client(None)
    requests, _ = put_token(client, broker.token(f"sb://host/{short}", seconds=30), f"sb://host/{short}")
    other = "orders" if short == "next" else "next"
    send_token(client, requests, broker.token(f"sb://host/{other}"), f"sb://host/{other}")
    link = sender_via(client, "sb://host/Next")
    assert client.attached(link)
    broker.clock.advance(31_000)
    client.peer.tick()
    client.pump()
    assert client.detached(link) == "amqp:unauthorized-access"


async def test_a_sender_via_an_entity_ends_with_the_key_of_its_destination_i2(broker):
    rules = [AuthorizationRule("mine", "key-1", "other", ["Send"])]
    broker.engine.create_queue("next", QueueDescription(authorization_rules=rules))
    client = broker.client(None)
    requests, _ = put_token(client, broker.token("sb://host/orders"))
    send_token(client, requests, broker.token("sb://host/next", name="mine"), "sb://host/next")
    link = sender_via(client)
    assert client.attached(link)
    rotated = [AuthorizationRule("mine", "fresh", "other", ["Send"])]
    broker.engine.update_queue("next", QueueDescription(authorization_rules=rotated))
    broker.clock.advance(5_000)
    client.peer.tick()
    client.pump()
    assert client.detached(link) == "amqp:unauthorized-access"


async def test_a_token_with_fewer_rights_that_replaces_another_drops_what_it_does_not_permit_i2(broker):
    client = broker.client(None)
    requests, _ = put_token(client, broker.token("sb://host/orders"))
    sender, receiver = client.sender("orders"), client.receiver("orders")
    send_token(client, requests, broker.token("sb://host/orders", name="reader"))
    assert client.detached(sender) == "amqp:unauthorized-access"
    assert client.attached(receiver)


async def test_a_token_refreshed_in_time_keeps_the_links_i2(broker):
    client = broker.client(None)
    requests, _ = put_token(client, broker.token("sb://host/orders", seconds=30))
    sender = client.sender("orders")
    send_token(client, requests, broker.token("sb://host/orders", seconds=300))
    broker.clock.advance(31_000)
    client.peer.tick()
    client.pump()
    assert client.attached(sender)


async def test_tokens_that_open_nothing_close_the_connection_after_a_while_i3(broker, caplog):
    client = broker.client()
    requests, replies = put_token(client, "nothing")
    replies.grant(1000)
    for _ in range(10):
        for _ in range(20):
            if requests.credit and not client.closed:
                send_token(client, requests, "nothing")
    assert client.closed_with() == "amqp:unauthorized-access"
    assert len(caplog.records) <= 110
    good = broker.client()
    requests, replies = put_token(good, "nothing")
    replies.grant(1000)
    for number in range(150):
        send_token(good, requests, "nothing" if number % 50 else broker.token("sb://host/orders"))
    assert not good.closed


async def test_a_client_is_admitted_once_i1(broker, monkeypatch):
    client = broker.client(None)
    admitted = []
    monkeypatch.setattr(client, "admit", lambda: admitted.append(client))
    requests, _ = put_token(client, "nothing")
    assert admitted == []
    send_token(client, requests, broker.token("sb://host/orders"))
    send_token(client, requests, broker.token("sb://host/orders"))
    assert admitted == [client]
    assert broker.namespace.known_peers == {client.peer}


async def test_a_key_that_was_taken_away_opens_nothing_any_more_i2(broker, monkeypatch):
    client = broker.client()
    sender = client.sender("orders")
    monkeypatch.setattr(client.peer._access, "drop_revoked", lambda: True)
    monkeypatch.setattr(client.peer._access, "permits", lambda *_: False)
    client.peer.tick()
    client.pump()
    assert client.attached(sender), "keys are looked at now and then"
    broker.clock.advance(2_000)
    client.peer.tick()
    client.pump()
    assert client.detached(sender) == "amqp:unauthorized-access"
