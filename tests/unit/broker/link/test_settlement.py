"""isthmus.broker.link.settlement: what dispositions of the client lead to, and how they are answered."""

import uuid

import pytest

from isthmus.amqp import Error, SentSettled, Transfers, section
from isthmus.amqp.performative import Accepted, Modified, Received, Rejected, Released
from isthmus.amqp.types import Symbol
from isthmus.errors import StoreError


async def fill(client, message, *texts):
    link = client.sender("orders", f"s{uuid.uuid4()}")
    for start in range(0, len(texts), 1000):
        part = texts[start : start + 1000]
        link.send_many([message(text) for text in part], [n.to_bytes(4, "big") for n in range(len(part))])
        await client.settle()


def settled(client):
    return [
        (delivery_id, type(event.state))
        for event in client.seen(SentSettled)
        for delivery_id in range(event.first, event.last + 1)
    ]


def header(payload):
    return section.decode_header(payload, section.locate(payload).header)


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        (Accepted(), Accepted),
        (Released(), Released),
        (Modified(delivery_failed=True), Modified),
        (Modified(delivery_failed=False), Modified),
        (Modified(undeliverable_here=True), Modified),
        (Rejected(Error(Symbol("com.microsoft:dead-letter"), None, {"DeadLetterReason": "r"})), Rejected),
        (Rejected(None), Rejected),
    ],
    ids=["accepted", "released", "abandoned", "abandoned softly", "deferred", "dead-lettered", "rejected"],
)
async def test_an_unsettled_outcome_is_answered_with_its_own_type_i1(broker, message, state, answer):
    client = broker.client()
    await fill(client, message, "a")
    link = client.receiver("orders", credit=1)
    await client.settle()
    link.dispose(0, 0, state, settled=False)
    await client.settle()
    assert settled(client) == [(0, answer)]
    assert getattr(client.seen(SentSettled)[0].state, "error", None) is None


async def test_the_answer_waits_for_the_sync_i1(broker, message):
    client = broker.client()
    await fill(client, message, "a")
    link = client.receiver("orders", credit=1)
    await client.settle()
    broker.store.gate.clear()
    link.dispose(0, 0, Accepted(), settled=False)
    client.pump()
    assert settled(client) == []
    broker.store.gate.set()
    await client.settle()
    assert settled(client) == [(0, Accepted)]


async def test_a_settled_outcome_is_answered_with_nothing_i1(broker, message):
    client = broker.client()
    await fill(client, message, "a", "b")
    link = client.receiver("orders", credit=2)
    await client.settle()
    link.dispose(0, 1, Accepted(), settled=True)
    await client.settle()
    assert settled(client) == []
    assert broker.engine.runtime("orders").message_count == 0


async def test_a_range_with_a_lost_lock_is_answered_in_parts_i1(broker, message):
    client = broker.client()
    await fill(client, message, *"abc")
    link = client.receiver("orders", credit=3)
    await client.settle()
    tags = [tag for event in client.seen(Transfers) for tag in event.tags]
    broker.engine.receiver("orders").complete([tags[1]])
    link.dispose(0, 2, Accepted(), settled=False)
    await client.settle()
    assert settled(client) == [(0, Accepted), (1, Rejected), (2, Accepted)]
    [lost] = [event.state for event in client.seen(SentSettled) if isinstance(event.state, Rejected)]
    assert lost.error.condition == "com.microsoft:message-lock-lost"


async def test_an_expired_lock_is_lost_and_the_message_returns_with_its_count_raised(broker, message):
    client = broker.client()
    await fill(client, message, "a")
    link = client.receiver("orders", credit=1)
    await client.settle()
    broker.clock.advance(61_000)
    broker.engine.tick()
    link.dispose(0, 0, Accepted(), settled=False)
    await client.settle()
    assert settled(client) == [(0, Rejected)]
    link.grant(1)
    await client.settle()
    assert client.bodies(link) == [b"a", b"a"]
    assert header(client.payloads(link)[1]).delivery_count == 1


async def test_released_messages_return_at_once_with_their_count_unchanged(broker, message):
    client = broker.client()
    await fill(client, message, "a", "b")
    link = client.receiver("orders", credit=2)
    await client.settle()
    link.dispose(0, 1, Released(), settled=True)
    link.grant(2)
    await client.settle()
    assert client.bodies(link) == [b"a", b"b", b"a", b"b"]
    assert {header(payload).delivery_count for payload in client.payloads(link)} == {0}


async def test_what_is_settled_without_an_outcome_has_the_default_one(broker, message):
    client = broker.client()
    await fill(client, message, "a")
    link = client.receiver("orders", credit=1)
    await client.settle()
    link.dispose(0, 0, Received(0, 0), settled=True)  # no outcome (OASIS AMQP 1.0 3.4), and nothing is said after it
    await client.settle()
    link.grant(1)
    await client.settle()
    assert client.bodies(link) == [b"a", b"a"]


async def test_a_failed_commit_rejects_the_settlement_i1(broker, message):
    client = broker.client()
    await fill(client, message, "a")
    link = client.receiver("orders", credit=1)
    await client.settle()
    broker.store.error = StoreError("no space left on device")
    link.dispose(0, 0, Accepted(), settled=False)
    await client.settle()
    assert settled(client) == [(0, Rejected)]
    assert broker.engine.runtime("orders").message_count == 1


async def test_dead_lettering_takes_reason_description_and_properties(broker, message, body):
    client = broker.client()
    await fill(client, message, "a")
    link = client.receiver("orders", credit=1)
    await client.settle()
    info = {"DeadLetterReason": "r", "DeadLetterErrorDescription": "d", "extra": "e"}
    link.dispose(0, 0, Rejected(Error(Symbol("com.microsoft:dead-letter"), None, info)), settled=False)
    await client.settle()
    buried = client.receiver("orders/$DeadLetterQueue", credit=1, name="dlq")
    await client.settle()
    [payload] = client.payloads(buried)
    properties = section.decode_map(payload, section.locate(payload).application_properties)
    assert properties == info
    assert body(payload) == b"a"


async def test_a_detached_link_leaves_its_locks_i2(broker, message):
    client = broker.client()
    await fill(client, message, "a")
    link = client.receiver("orders", credit=1)
    await client.settle()
    link.detach()
    client.pump()
    other = client.receiver("orders", credit=5, name="other")
    await client.settle()
    assert client.bodies(other) == []
    broker.clock.advance(61_000)
    broker.engine.tick()
    await client.settle()
    assert client.bodies(other) == [b"a"]


async def test_what_was_settled_before_counts_once_i3(broker, message):
    client = broker.client()
    await fill(client, message, "a")
    link = client.receiver("orders", credit=1)
    await client.settle()
    for _ in range(3):
        link.dispose(0, 0, Accepted(), settled=False)
    link.dispose(0, 1000, Accepted(), settled=False)
    await client.settle()
    assert settled(client) == [(0, Accepted)]
