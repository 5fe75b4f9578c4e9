"""Every operation against every right: what a client may do is decided here and nowhere else.

Each row is one operation with the rights that open it. A new operation of `$management` without a row fails the test.
"""

from __future__ import annotations

import pytest
from aiohttp.test_utils import TestClient, TestServer

from isthmus.amqp import section
from isthmus.amqp.performative import Source, Target
from isthmus.broker.admin import build_admin_app
from isthmus.broker.management.node import _OPERATIONS
from isthmus.broker.security.authority import Authority
from isthmus.broker.security.grant import Right
from isthmus.broker.security.keyring import Keyring
from isthmus.broker.security.sas import make_token
from isthmus.entities import AuthorizationRule

KEY = "key-1"
ALL = {Right.SEND, Right.LISTEN, Right.MANAGE}
# The rights of a client. Manage includes all three, as in the service.
HOLDERS = {
    "nothing": set(),
    "Send": {Right.SEND},
    "Listen": {Right.LISTEN},
    "Send and Listen": {Right.SEND, Right.LISTEN},
    "Manage": ALL,
}

LINKS = [
    ("send to a queue", "sender", "orders", {Right.SEND}),
    ("send to a topic", "sender", "flights", {Right.SEND}),
    ("receive from a queue", "receiver", "orders", {Right.LISTEN}),
    ("receive dead letters", "receiver", "orders/$DeadLetterQueue", {Right.LISTEN}),
    ("receive from a subscription", "receiver", "flights/Subscriptions/all", {Right.LISTEN}),
    ("receive dead letters of a subscription", "receiver", "flights/Subscriptions/all/$DeadLetterQueue",
     {Right.LISTEN}),
    ("ask a management node", "sender", "orders/$management", ALL),
    ("take a management node's answers", "receiver", "orders/$management", ALL),
    ("put a token", "sender", "$cbs", None),
    ("take a token's answer", "receiver", "$cbs", None),
]  # fmt: skip

MANAGEMENT = {
    "peek-message": {Right.LISTEN},
    "receive-by-sequence-number": {Right.LISTEN},
    "renew-lock": {Right.LISTEN},
    "update-disposition": {Right.LISTEN},
    "batch-delete-messages": {Right.LISTEN},
    "schedule-message": {Right.SEND},
    "cancel-scheduled-message": {Right.SEND},
    "add-rule": {Right.LISTEN},
    "remove-rule": {Right.LISTEN},
    "enumerate-rules": {Right.LISTEN},
    "get-message-sessions": {Right.LISTEN},
    "renew-session-lock": {Right.LISTEN},
    "get-session-state": {Right.LISTEN},
    "set-session-state": {Right.LISTEN},
}

RESOURCES = [
    "orders", "flights", "flights/Subscriptions/all", "flights/Subscriptions/all/Rules/$Default", "absent",
    "flights/Subscriptions", "flights/Subscriptions/all/Rules", "$Resources/queues", "$Resources/topics",
    "$namespaceinfo",
]  # fmt: skip
HTTP = [(verb, path) for verb in ("GET", "HEAD", "PUT", "DELETE", "POST", "PATCH", "OPTIONS") for path in RESOURCES]


@pytest.fixture(params=HOLDERS)
def rights(request, broker):
    """The rights that the client holds; the broker has a rule "holder" with them."""
    rights = HOLDERS[request.param]
    rules = [AuthorizationRule("root", KEY, "key-2", sorted(map(str, Right)))]
    if rights:
        rules.append(AuthorizationRule("holder", KEY, "key-2", sorted(map(str, rights))))
    broker.namespace.authority = Authority(Keyring(rules))
    return rights


def client_of(broker, rights):
    return broker.client("holder" if rights else None)


@pytest.mark.parametrize(("what", "kind", "address", "needed"), LINKS, ids=[row[0] for row in LINKS])
async def test_links(broker, rights, what, kind, address, needed):
    client = client_of(broker, rights)
    link = getattr(client, kind)(address)
    allowed = needed is None or bool(rights & needed)
    assert client.attached(link) is allowed
    assert client.detached(link) == ("" if allowed else "amqp:unauthorized-access")


def test_the_table_has_every_management_operation():
    assert set(_OPERATIONS) == set(MANAGEMENT)


@pytest.mark.parametrize("operation", MANAGEMENT)
async def test_management_operations(broker, rights, operation):
    client = client_of(broker, rights)
    if not rights:
        assert client.detached(client.sender("orders/$management")) == "amqp:unauthorized-access"
        return
    requests = client.sender("orders/$management", "m")
    replies = client.session.attach_receiver("mr", Source(address="orders/$management"), target=Target(address="here"))
    client.pump()
    replies.grant(5)
    requests.send(
        section.encode_message(
            {},
            properties={"message_id": "1", "reply_to": "here"},
            application_properties={"operation": f"com.microsoft:{operation}"},
            value_body=True,
        ),
        b"1",
    )
    await client.settle()
    [reply] = client.payloads(replies)
    status = section.decode_map(reply, section.locate(reply).application_properties)["statusCode"]
    assert (status == 401) is not bool(rights & MANAGEMENT[operation])


@pytest.mark.parametrize(("verb", "path"), HTTP, ids=[f"{verb} {path}" for verb, path in HTTP])
async def test_http(broker, rights, verb, path):
    async def commit():
        return None

    app = build_admin_app(
        broker.engine, broker.namespace.authority, broker.clock, "ns", commit=commit, token_clock=broker.clock
    )
    token = make_token("https://h/", "holder", KEY, broker.clock.wall_ms() + 60_000)
    before = broker.engine.list_queues(), broker.engine.list_topics()
    async with TestClient(TestServer(app)) as http:
        answer = await http.request(verb, f"/{path}", headers={"Authorization": token})
        assert (answer.status == 401) is (Right.MANAGE not in rights)
        bare = await http.request(verb, f"/{path}")
        assert bare.status == 401
    if Right.MANAGE not in rights:
        assert (broker.engine.list_queues(), broker.engine.list_topics()) == before


@pytest.mark.parametrize("how", ["put", "rule"])
async def test_a_key_that_is_taken_away_drops_what_it_opened(broker, how):
    keyring = broker.namespace.authority.keyring
    client, other = broker.client("reader"), broker.client("root")
    links = client.receiver("orders"), other.sender("orders")
    if how == "put":
        keyring.put(AuthorizationRule("reader", "fresh", "key-2", ["Listen"]))
    else:
        keyring.replace([rule for rule in keyring.rules if rule.key_name != "reader"])
    for each in (client, other):
        broker.clock.advance(5_000)
        each.peer.tick()
        each.pump()
    assert client.detached(links[0]) == "amqp:unauthorized-access"
    assert other.attached(links[1])


async def test_a_rotated_key_closes_no_connection_with_the_other(broker):
    keyring = broker.namespace.authority.keyring
    client = broker.client("reader")
    link = client.receiver("orders")
    keyring.put(AuthorizationRule("reader", KEY, "fresh", ["Listen"]))
    broker.clock.advance(5_000)
    client.peer.tick()
    client.pump()
    assert client.attached(link)


async def test_a_right_that_is_taken_away_drops_its_links(broker):
    keyring = broker.namespace.authority.keyring
    client = broker.client("reader")
    link = client.receiver("orders")
    keyring.put(AuthorizationRule("reader", KEY, "key-2", ["Send"]))
    broker.clock.advance(5_000)
    client.peer.tick()
    client.pump()
    assert client.detached(link) == "amqp:unauthorized-access"
