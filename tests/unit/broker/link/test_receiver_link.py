"""Sending links: what is accepted, when, and what is rejected."""

import zlib

from harness.check.until import passes
from isthmus.amqp import BATCH_FORMAT, Disposed
from isthmus.amqp.performative import Accepted, Rejected, Source, Target, TransactionalState, Transfer
from isthmus.broker.link.receiver_link import BATCH_BYTES, CREDIT
from isthmus.entities import QueueDescription
from isthmus.errors import StoreError
from isthmus.message.compression import DEFLATE, DEFLATED_FORMAT, compress


def outcomes(client):
    """Delivery ids and the types of their outcomes, in order."""
    return [
        (delivery_id, type(event.state))
        for event in client.seen(Disposed)
        for delivery_id in range(event.first, event.last + 1)
    ]


def envelope(messages):
    return b"".join(b"\0Su\xb0" + len(each).to_bytes(4, "big") + each for each in messages)


async def test_accepted_leaves_only_after_the_sync_i1(broker, message):
    client = broker.client()
    link = client.sender("orders")
    broker.store.gate.clear()
    link.send(message("a"), b"1")
    client.pump()
    await passes(10)
    client.pump()
    assert outcomes(client) == []
    broker.store.gate.set()
    await client.settle()
    assert outcomes(client) == [(0, Accepted)]
    assert broker.store.syncs >= 1


async def test_one_sync_serves_many_sends_i1(broker, message):
    client = broker.client()
    link = client.sender("orders")
    before = broker.store.syncs
    link.send_many([message("a")] * 500, [n.to_bytes(4, "big") for n in range(500)])
    await client.settle()
    assert outcomes(client) == [(n, Accepted) for n in range(500)]
    assert broker.store.syncs == before + 1


async def test_an_envelope_has_a_limit_of_its_own_however_large_messages_may_be(broker, message):
    broker.engine.create_queue("big", QueueDescription(max_message_size_in_kilobytes=102_400))
    client = broker.client()
    link, small = client.sender("big"), client.sender("orders", name="small")
    assert link.properties == {"com.microsoft:max-message-batch-size": BATCH_BYTES}
    assert small.properties is None
    one = message("x" * (BATCH_BYTES // 2 - 200))
    largest = envelope([one, one])
    link.send(largest, b"1", message_format=BATCH_FORMAT)
    await client.settle()
    link.send(largest + envelope([message("x" * 400)]), b"2", message_format=BATCH_FORMAT)
    await client.settle()
    assert BATCH_BYTES - 500 < len(largest) <= BATCH_BYTES
    assert outcomes(client) == [(0, Accepted), (1, Rejected)]
    error = client.seen(Disposed)[-1].state.error
    assert (error.condition, str(BATCH_BYTES) in error.description) == ("amqp:link:message-size-exceeded", True)
    link.send(envelope([message("x" * 2 * BATCH_BYTES)]), b"3", message_format=BATCH_FORMAT)
    await client.settle()
    assert outcomes(client)[2:] == [(2, Accepted)]  # one message is no batch


async def test_an_envelope_has_so_many_messages_at_most(broker, message):
    most = broker.namespace.limits.max_messages_per_batch
    client = broker.client()
    link = client.sender("orders")
    link.send(envelope([message("")] * most), b"1", message_format=BATCH_FORMAT)
    link.send(envelope([message("")] * (most + 1)), b"2", message_format=BATCH_FORMAT)
    link.send(envelope([message("after")]), b"3", message_format=BATCH_FORMAT)
    await client.settle()
    assert outcomes(client) == [(1, Rejected), (0, Accepted), (2, Accepted)]
    error = next(event.state.error for event in client.seen(Disposed) if isinstance(event.state, Rejected))
    assert (error.condition, str(most) in error.description) == ("amqp:link:message-size-exceeded", True)
    assert broker.engine.runtime("orders").active_message_count == most + 1


async def test_a_batch_is_taken_whole_and_in_order_i2(broker, message):
    client = broker.client()
    link = client.sender("orders")
    link.send(envelope([message(str(n)) for n in range(10)]), b"1", message_format=BATCH_FORMAT)
    await client.settle()
    receiver = client.receiver("orders", credit=20)
    await client.settle()
    assert outcomes(client) == [(0, Accepted)]
    assert client.bodies(receiver) == [str(n).encode() for n in range(10)]


async def test_a_deflated_envelope_is_taken_where_the_link_was_offered_that(broker, message, caplog):
    client = broker.client()
    link = client.session.attach_sender(
        "far", Target(address="orders"), source=Source(address="me"), desired_capabilities=[DEFLATE]
    )
    plain = client.sender("orders")
    whole = envelope([message(f"{n} of all the messages of an envelope") for n in range(30)])
    deflated = compress(whole)
    link.send(deflated, b"1", message_format=DEFLATED_FORMAT)
    link.send(deflated[:-1], b"2", message_format=DEFLATED_FORMAT)
    link.send(zlib.compress(bytes(BATCH_BYTES * 2)), b"3", message_format=DEFLATED_FORMAT)
    link.send(zlib.compress(b"no envelope" * 20), b"4", message_format=DEFLATED_FORMAT)
    plain.send(deflated, b"5", message_format=DEFLATED_FORMAT)
    link.send(whole, b"6", message_format=BATCH_FORMAT)
    await client.settle()
    receiver = client.receiver("orders", credit=100)
    await client.settle()
    assert link.peer.offered_capabilities == [DEFLATE]
    assert plain.peer.offered_capabilities is None
    assert sorted(outcomes(client), key=lambda pair: pair[0]) == [
        (0, Accepted), (1, Rejected), (2, Rejected), (3, Rejected), (4, Rejected), (5, Accepted),
    ]  # fmt: skip
    bodies = [f"{n} of all the messages of an envelope".encode() for n in range(30)]
    assert client.bodies(receiver) == bodies + bodies


async def test_a_batch_with_a_bad_message_is_rejected_whole_i2(broker, message, caplog):
    client = broker.client()
    link = client.sender("orders")
    link.send(envelope([message("good"), b"bad"]), b"1", message_format=BATCH_FORMAT)
    link.send(b"no envelope", b"2", message_format=BATCH_FORMAT)
    await client.settle()
    receiver = client.receiver("orders", credit=20)
    await client.settle()
    assert outcomes(client) == [(0, Rejected), (1, Rejected)]
    assert client.bodies(receiver) == []
    assert len([each for each in caplog.records if "send rejected" in each.message]) == 2


async def test_a_bad_message_in_a_run_is_rejected_alone_i2(broker, message):
    client = broker.client()
    link = client.sender("orders")
    payloads = [message("a"), b"bad", message("b"), message(b"x" * (1 << 20)), message("c")]
    link.send_many(payloads, [bytes([n]) for n in range(5)])
    await client.settle()
    receiver = client.receiver("orders", credit=20)
    await client.settle()
    assert sorted(outcomes(client), key=lambda pair: pair[0]) == [
        (0, Accepted), (1, Rejected), (2, Accepted), (3, Rejected), (4, Accepted),
    ]  # fmt: skip
    assert client.bodies(receiver) == [b"a", b"b", b"c"]
    conditions = {str(event.state.error.condition) for event in client.seen(Disposed) if type(event.state) is Rejected}
    assert "amqp:link:message-size-exceeded" in conditions
    assert client.attached(link)


async def test_settled_sends_get_no_disposition_i4(broker, message):
    client = broker.client()
    link = client.sender("orders")
    link.send(message("a"), b"1", settled=True)
    link.send(b"bad", b"2", settled=True)
    await client.settle()
    receiver = client.receiver("orders", credit=20)
    await client.settle()
    assert outcomes(client) == []
    assert client.bodies(receiver) == [b"a"]


async def test_a_failed_sync_rejects_and_the_next_send_is_taken(broker, message):
    client = broker.client()
    link = client.sender("orders")
    broker.store.error = StoreError("no space left on device")
    link.send(message("lost"), b"1")
    await client.settle()
    link.send(message("kept"), b"2")
    await client.settle()
    receiver = client.receiver("orders", credit=20)
    await client.settle()
    assert outcomes(client) == [(0, Rejected), (1, Accepted)]
    assert client.seen(Disposed)[0].state.error.description == "The namespace could not store the change."
    assert client.bodies(receiver) == [b"kept"]


async def test_credit_is_topped_up(broker, message):
    client = broker.client()
    link = client.sender("orders")
    assert link.credit == CREDIT
    for start in range(0, 2 * CREDIT, 100):
        link.send_many([message("a")] * 100, [(start + n).to_bytes(4, "big") for n in range(100)])
        await client.settle()
    assert len(outcomes(client)) == 2 * CREDIT
    assert link.credit > CREDIT // 2


async def test_an_undeclared_transaction_is_rejected(broker, message):
    client = broker.client()
    link = client.sender("orders")
    writer = link._writer
    frame = writer.whole([message("a")], [b"1234"], 0, 0, False)
    state = TransactionalState(b"t", None).encode()
    # The template's fields after `more` are rcv-settle-mode (null) and state (null): put a state there.
    marker = b"\x43\x42\x42\x40\x40\x42\x42\x42"
    at = frame.index(marker)
    changed = bytearray(frame[:at] + b"\x43\x42\x42\x40" + state + b"\x42\x42\x42" + frame[at + len(marker) :])
    changed[0:4] = len(changed).to_bytes(4, "big")
    changed[12] += len(state) - 1
    client.connection.write(bytes(changed))
    client.session.remember_sent(link, 0, 1, False)
    await client.settle()
    assert outcomes(client) == [(0, Rejected)]


async def test_a_client_that_aborts_many_deliveries_keeps_its_credit(broker, message):
    client = broker.client()
    link = client.sender("orders")
    aborted = Transfer(link.handle, 0, b"1", 0, False, False, aborted=True)
    for _ in range(CREDIT + 10):
        link.credit -= 1
        link.delivery_count += 1
        link.amqp_session.write(aborted)
        client.pump()
        assert link.credit >= CREDIT // 2
    link.send(message("a"), b"2")
    await client.settle()
    assert outcomes(client) == [(0, Accepted)]
