"""Attach decisions, SASL, tokens, deadlines, and input that no honest client sends."""

import gc
import weakref
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isthmus.amqp import Disposed, Transfers, section
from isthmus.amqp.performative import Rejected, Source, Target
from isthmus.amqp.types import Described, Symbol
from isthmus.entities import AuthorizationRule, QueueDescription
from until import until_async


def put_token(client, token, audience="sb://host/orders", message_id="t1"):
    requests = client.session.attach_sender("cbs-s", Target(address="$cbs"), source=Source(address="$cbs"))
    replies = client.session.attach_receiver("cbs-r", Source(address="$cbs"), target=Target(address="$cbs"))
    client.pump()
    replies.grant(10)
    send_token(client, requests, token, audience, message_id)
    return requests, replies


def send_token(client, requests, token, audience="sb://host/orders", message_id="t2"):
    requests.send(
        section.encode_message(
            token,
            properties={"message_id": message_id},
            application_properties={"operation": "put-token", "type": "jwt", "name": audience},
            value_body=True,
        ),
        b"\0\0\0\1",
    )
    client.pump()


async def test_a_key_by_sasl_plain_opens_the_namespace(broker):
    client = broker.client()
    assert client.attached(client.sender("orders"))
    assert client.attached(client.receiver("flights/Subscriptions/all"))
    assert client.attached(client.receiver("amqps://host:5671/Orders/$DeadLetterQueue", name="dlq"))


async def test_an_entity_s_key_by_sasl_plain_opens_that_entity_i1(broker, new_client):
    rule = AuthorizationRule("partner", "partner-key", "partner-key-2", ["Send"])
    broker.engine.create_queue("mine", QueueDescription(authorization_rules=[rule]))
    broker.engine.create_queue("mine-too", QueueDescription())
    client = new_client(broker).open("partner", "partner-key-2")
    standing = client.sender("sb://host/Mine")
    assert client.attached(standing)
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
    assert client.detached(standing) == "amqp:unauthorized-access"


async def test_a_wrong_key_is_refused(broker, new_client, caplog):
    client = new_client(broker)
    client.connection.start("PLAIN", b"\0root\0wrong-secret")
    client.pump()
    assert client.closed
    assert client.closed_with() == "amqp:unauthorized-access"
    assert "wrong-secret" not in caplog.text
    assert len(caplog.records) >= 1


async def test_a_token_opens_its_entity_i1(broker):
    client = broker.client(None)
    assert client.detached(client.sender("orders", "early")) == "amqp:unauthorized-access"
    _, replies = put_token(client, broker.token("sb://host/orders"))
    [reply] = client.payloads(replies)
    properties = section.decode_map(reply, section.locate(reply).application_properties)
    assert properties["status-code"] == 202
    assert client.attached(client.sender("orders", "late"))
    assert client.detached(client.receiver("flights/subscriptions/all")) == "amqp:unauthorized-access"


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


async def test_no_token_in_twenty_seconds_closes_the_connection_i2(broker):
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
async def test_a_half_open_connection_is_closed_i2(broker, new_client, said):
    client = new_client(broker)
    client.peer.receive(said)
    broker.clock.advance(20_100)
    client.peer.tick()
    assert client.closed
    assert client.peer not in broker.namespace.peers


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


async def test_tokens_that_open_nothing_close_the_connection_after_a_while(broker, caplog):
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


async def test_requests_before_the_first_token_are_counted_i4(broker):
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
    for _ in range(20):  # ten minutes in which the disk stands still, and the client's heartbeats are not read
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
async def test_malformed_input_closes_one_connection_and_is_logged_i3(broker, new_client, caplog, data):
    bad, good = new_client(broker), broker.client()
    caplog.clear()
    bad.peer.receive(data)
    assert bad.closed
    assert len(caplog.records) == 1
    assert "Traceback" not in caplog.text
    assert good.attached(good.sender("orders"))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_mutated_traffic_never_raises_i3(broker, new_client, data):
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


async def test_a_fault_of_ours_costs_one_connection_only_i3(broker, message, caplog, monkeypatch):
    client, other = broker.client(), broker.client()
    link = client.sender("orders")
    monkeypatch.setattr(type(broker.engine.sender("orders")), "accept", lambda *_: 1 // 0)
    link.send(message("x"), b"1")
    client.pump()
    assert client.closed_with() == "amqp:internal-error"
    assert "division" not in str(client.seen(Transfers))
    monkeypatch.undo()
    assert other.attached(other.sender("orders"))


@pytest.mark.parametrize("end", ["detach", "session"])
async def test_who_gives_up_in_the_same_breath_loses_nothing_else_i3(broker, caplog, end):
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


async def test_a_connection_that_has_ended_is_forgotten_at_once(broker, message):
    """The collector of circles comes by seldom, and old objects it looks at last."""
    client = broker.client()
    sender, receiver = client.sender("orders"), client.receiver("orders", 10)
    client.receiver("orders/$management", 5, name="replies")
    sender.send(message("a"), b"1")
    await client.settle()
    assert len(client.payloads(receiver)) == 1
    gone = [weakref.ref(each) for each in (client.peer, client.peer._connection, *client.peer._handlers)]
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
