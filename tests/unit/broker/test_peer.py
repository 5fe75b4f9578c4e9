"""Deadlines of a connection, its end, and malformed input."""

import gc
import weakref
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.check.until import until_async
from harness.client.cbs import put_token
from isthmus.amqp import Disposed, Transfers, section
from isthmus.amqp.performative import Rejected, Source, Target


async def test_no_token_in_twenty_seconds_closes_the_connection_i1(broker):
    silent, shown = broker.client(None), broker.client()
    broker.clock.advance(19_000)
    silent.peer.tick()
    silent.pump()
    assert not silent.closed
    broker.clock.advance(1_100)
    for client in (silent, shown):
        client.peer.tick()
        client.pump()
    assert silent.closed
    assert silent.closed_with() == "amqp:unauthorized-access"
    assert not shown.closed


@pytest.mark.parametrize("said", [b"", b"AMQP\3\1\0\0", b"AMQP\0\1\0\0\0\0"], ids=["nothing", "sasl", "half a frame"])
async def test_a_half_open_connection_is_closed_i1(broker, new_client, said):
    client = new_client(broker)
    client.peer.receive(said)
    broker.clock.advance(20_100)
    client.peer.tick()
    assert client.closed
    assert client.peer not in broker.namespace.peers


async def test_heartbeats_keep_an_idle_client(broker, new_client):
    client = new_client(broker, idle_timeout_ms=10_000).open()
    client.peer.tick()
    for _ in range(5):
        broker.clock.advance(5_100)
        client.wrote.clear()
        client.peer.tick()
        assert client.wrote == [b"\0\0\0\x08\x02\0\0\0"]


async def test_a_process_that_was_stopped_reads_before_it_calls_anybody_idle(broker):
    client = broker.client()
    broker.namespace._tick_peers()
    broker.clock.advance(300_000)
    broker.namespace._tick_peers()
    assert not client.closed
    client.connection.tick(0.0)
    client.peer.receive(b"\0\0\0\x08\x02\0\0\0")
    for _ in range(4):
        broker.clock.advance(500)
        broker.namespace._tick_peers()
    assert not client.closed
    broker.clock.advance(1_000)
    for _ in range(300):
        broker.clock.advance(1_000)
        broker.namespace._tick_peers()
    assert client.closed


async def test_connections_without_a_token_take_no_places_of_others(broker, new_client):
    broker.namespace.limits = replace(broker.namespace.limits, max_connections=1)
    strangers = [new_client(broker) for _ in range(5)]
    strangers += [broker.client(None) for _ in range(5)]
    known = broker.client()
    assert known.attached(known.sender("orders"))
    assert (known.admitted, strangers[-1].admitted) == (True, False)
    put_token(strangers[-1], broker.token("sb://host/orders"))
    assert strangers[-1].closed_with() == "amqp:resource-limit-exceeded"
    assert broker.client().closed_with() == broker.client(None).closed_with() == "amqp:resource-limit-exceeded"
    known.peer.lost()
    again = broker.client(None)
    put_token(again, broker.token("sb://host/orders"))
    assert again.admitted
    assert again.attached(again.sender("orders"))


async def test_requests_before_the_first_token_are_counted_i3(broker):
    client = broker.client(None)
    requests, _ = put_token(client, "nothing")
    for _ in range(100):
        if requests.credit and not client.closed:
            requests.send(b"no message", b"x", settled=True)
            client.pump()
    assert client.closed_with() == "amqp:resource-limit-exceeded"


async def test_a_client_that_is_ahead_of_the_disk_is_read_no_further(broker, message):
    client = broker.client()
    link = client.sender("orders")
    broker.store.gate.clear()
    payload = message(b"x" * 1_000_000)
    for number in range(40):
        link.send(payload, number.to_bytes(4, "big"))
        client.pump()
    assert not client.reading
    broker.store.gate.set()
    await client.settle()
    assert client.reading
    assert sum(event.last - event.first + 1 for event in client.seen(Disposed)) == 40


async def test_a_client_that_is_not_read_is_not_called_silent(broker, message):
    client = broker.client()
    link = client.sender("orders")
    broker.store.gate.clear()
    payload = message(b"x" * 1_000_000)
    for number in range(40):
        link.send(payload, number.to_bytes(4, "big"))
        client.pump()
    assert not client.reading
    for _ in range(20):  # ten minutes in which the disk hangs, and the client's heartbeats are not read
        broker.clock.advance(30_000)
        client.peer.tick()
    assert not client.closed
    broker.store.gate.set()
    await client.settle()
    assert sum(event.last - event.first + 1 for event in client.seen(Disposed)) == 40


async def test_a_request_that_cannot_be_read_is_rejected(broker):
    client = broker.client()
    link = client.session.attach_sender("m", Target(address="orders/$management"), source=Source(address="me"))
    client.pump()
    link.send(b"nonsense", b"1")
    client.pump()
    [disposed] = client.seen(Disposed)
    assert isinstance(disposed.state, Rejected)
    assert client.attached(link)


HANDSHAKE = b"AMQP\0\1\0\0"


@pytest.mark.parametrize(
    "data",
    [
        b"AMQP\7\7\7\7",
        HANDSHAKE + b"\xff\xff\xff\xff\2\0\0\0",
        HANDSHAKE + b"\0\0\0\7\2\0\0\0",
        HANDSHAKE + b"\0\0\0\x0c\2\0\0\0\0S\x99\x45",
        HANDSHAKE + b"\0\0\0\x0c\2\0\0\0\0S\x14\x45",
        HANDSHAKE + b"\0\0\0\x10\2\0\0\0\0S\x10\xc1garba",
    ],
    ids=["header", "oversize", "undersize", "unknown performative", "transfer first", "open is a map"],
)
async def test_malformed_input_closes_one_connection_and_is_logged_i2(broker, new_client, caplog, data):
    bad, good = new_client(broker), broker.client()
    caplog.clear()
    bad.peer.receive(data)
    assert bad.closed
    assert len(caplog.records) == 1
    assert "Traceback" not in caplog.text
    assert good.attached(good.sender("orders"))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_mutated_traffic_never_raises_i2(broker, new_client, data):
    recorded = record(broker, new_client)
    at = data.draw(st.integers(8, len(recorded) - 1))
    change = data.draw(st.binary(min_size=1, max_size=8))
    mutated = recorded[:at] + change + recorded[at + data.draw(st.integers(0, 8)) :]
    client = new_client(broker)
    client.peer.receive(mutated)
    client.peer.lost()
    assert client.peer not in broker.namespace.peers


def record(broker, new_client):
    """What a client sends that opens, attaches, sends, grants and settles."""
    client = new_client(broker)
    sent = []
    receive = client.peer.receive

    def tee(data):
        sent.append(data)
        receive(data)

    client.peer.receive = tee
    client.open()
    link = client.sender("orders")
    link.send(section.encode_message(b"x", properties={"message_id": "m"}), b"1")
    receiver = client.receiver("orders", credit=5)
    receiver.dispose(0, 0, settled=False)
    client.pump()
    client.peer.lost()
    return b"".join(sent)


async def test_a_fault_of_ours_costs_one_connection_only_i2(broker, message, caplog, monkeypatch):
    client, other = broker.client(), broker.client()
    link = client.sender("orders")
    monkeypatch.setattr(type(broker.engine.sender("orders")), "accept", lambda *_: 1 // 0)
    link.send(message("x"), b"1")
    client.pump()
    assert client.closed_with() == "amqp:internal-error"
    assert "division" not in str(client.seen(Transfers))
    monkeypatch.undo()
    assert other.attached(other.sender("orders"))


async def test_a_connection_that_has_ended_is_forgotten_at_once(broker, message):
    """The garbage collector runs seldom, and checks old objects last."""
    client = broker.client()
    sender, receiver = client.sender("orders"), client.receiver("orders", 10)
    client.receiver("orders/$management", 5, name="replies")
    sender.send(message("a"), b"1")
    await client.settle()
    assert len(client.payloads(receiver)) == 1
    gone = [weakref.ref(each) for each in (client.peer, client.peer._connection, *client.peer._links.handlers)]
    gc.disable()
    try:
        client.peer.lost()
        await client.settle()
        client.peer = None
        # A commit in another thread may still have one of them.
        await until_async(
            lambda: all(ref() is None for ref in gone), lambda: [ref() for ref in gone if ref() is not None]
        )
    finally:
        gc.enable()
