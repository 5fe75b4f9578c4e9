"""Detach, End and Close: they are answered behind the outcomes of what came before them."""

import asyncio

import pytest

from harness.client.transaction_client import attach_coordinator, declare, discharge, send_with_state, within
from isthmus.amqp import BATCH_FORMAT, Disposed, Role, performative
from isthmus.amqp.performative import Accepted, Close, Detach, Disposition, End, Modified, Rejected, Source
from isthmus.broker.link.departure import Departures, Owed
from isthmus.entities.hub import EventHubDescription
from isthmus.errors import StoreError
from isthmus.transport.sender import envelope

NAMES = {Disposition: "outcome", Detach: "detach", End: "end", Close: "close"}


def frames(data):
    """The performatives in what the broker wrote."""
    at, found = 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size > 8:
            found.append(performative.decode(data[at + 4 * data[at + 4] : at + size])[0])
        at += size
    return found


class Wire:
    """Everything that the broker writes to a client from now on."""

    def __init__(self, client):
        self.client = client
        self.data = b""
        write = client.write

        def tapped(data):
            self.data += data
            write(data)

        client.write = tapped

    def said(self):
        return [value for value in frames(self.data) if type(value) in NAMES]

    def order(self):
        return [NAMES[type(value)] for value in self.said()]

    def outcomes(self):
        return [type(value.state) for value in self.said() if isinstance(value, Disposition)]


def leave(client, link, how):
    if how == "detach":
        link.detach()
    elif how == "end":
        client.session.end()
    else:
        client.connection.close()


async def ready(client, message, count=1):
    """A receiver that has so many messages of `orders`."""
    sender = client.sender("orders", "filler")
    sender.send_many([message(str(n)) for n in range(count)], [n.to_bytes(4, "big") for n in range(count)])
    await client.settle()
    link = client.receiver("orders", credit=count)
    await client.settle()
    assert len(client.payloads(link)) == count
    return link


ENDS = ["detach", "end", "close"]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("state", [Accepted(), Modified(True, False), Rejected()])
async def test_a_settlement_is_answered_before_the_end_of_its_link_i1(broker, message, how, state):
    client = broker.client()
    link = await ready(client, message)
    wire = Wire(client)
    link.dispose(0, 0, state, settled=False)
    leave(client, link, how)
    await client.settle()
    assert wire.order() == ["outcome", how]
    assert wire.outcomes() == [type(state)]


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("kind", ["message", "batch"])
async def test_a_send_is_answered_before_the_end_of_its_link_i1(broker, message, how, kind):
    client = broker.client()
    link = client.sender("orders")
    wire = Wire(client)
    if kind == "batch":
        link.send(envelope([message("a"), message("b")]), b"1", message_format=BATCH_FORMAT)
    else:
        link.send(message("a"), b"1")
    leave(client, link, how)
    await client.settle()
    assert wire.order() == ["outcome", how]
    assert wire.outcomes() == [Accepted]
    assert broker.engine.runtime("orders").active_message_count == (2 if kind == "batch" else 1)


@pytest.mark.parametrize("how", ENDS)
async def test_a_disk_that_stalls_holds_the_answer_and_nothing_else_i1(broker, message, how):
    client, other = broker.client(), broker.client()
    link = client.sender("orders")
    wire = Wire(client)
    broker.store.gate.clear()
    link.send(message("a"), b"1")
    leave(client, link, how)
    for _ in range(5):
        client.pump()
        await asyncio.sleep(0)
    broker.namespace._tick_peers()
    assert wire.order() == []
    assert not client.closed
    assert other.attached(other.sender("orders"))
    broker.store.gate.set()
    await client.settle()
    assert wire.order() == ["outcome", how]
    assert client.closed == (how == "close")


@pytest.mark.parametrize("how", ENDS)
async def test_a_commit_that_fails_is_reported_before_the_end_i1(broker, message, how):
    client = broker.client()
    link = await ready(client, message)
    wire = Wire(client)
    broker.store.error = StoreError("no space")
    link.dispose(0, 0, Accepted(), settled=False)
    leave(client, link, how)
    await client.settle()
    assert wire.order() == ["outcome", how]
    assert wire.outcomes() == [Rejected]


async def test_all_ends_at_once_are_answered_in_their_order_i1(broker, message):
    client = broker.client()
    link = client.sender("orders")
    wire = Wire(client)
    link.send(message("a"), b"1")
    link.detach()
    client.session.end()
    client.connection.close()
    await client.settle()
    assert wire.order() == ["outcome", "detach", "end", "close"]


async def test_who_owes_nothing_is_answered_in_the_same_iteration_i2(broker):
    client = broker.client()
    link = client.sender("orders")
    wire = Wire(client)
    link.detach()
    client.pump()
    assert wire.order() == ["detach"]


async def test_the_connection_s_loss_while_it_closes_is_its_end(broker, message):
    client = broker.client()
    link = client.sender("orders")
    broker.store.gate.clear()
    link.send(message("a"), b"1")
    client.connection.close()
    client.pump()
    client.peer.lost()
    assert client.peer not in broker.namespace.peers
    broker.store.gate.set()
    await client.settle()
    assert broker.engine.runtime("orders").active_message_count == 1


async def test_a_server_that_stops_answers_who_is_leaving(broker, message):
    client = broker.client()
    link = client.sender("orders")
    wire = Wire(client)
    link.send(message("a"), b"1")
    link.detach()
    client.pump()
    stopping = asyncio.create_task(broker.namespace.disconnect())
    while not stopping.done():
        client.pump()
        await asyncio.sleep(0)
    assert wire.order() == ["outcome", "detach", "close"]


@pytest.mark.parametrize("cause", ["deleted", "expired"])
async def test_a_link_that_is_detached_from_this_side_has_its_outcomes_first_i3(broker, message, cause):
    client = broker.client()
    link = client.sender("orders")
    wire = Wire(client)
    broker.store.gate.clear()
    link.send(message("a"), b"1")
    client.pump()
    for _ in range(3):
        await asyncio.sleep(0)
    if cause == "deleted":
        broker.engine.delete_queue("orders")
        client.peer.tick()
    else:
        client.peer._access.permits = lambda *_: False
        client.peer._links.end_unauthorised(client.peer._access, "ExpiredToken: The token is expired.")
    link.send(message("late"), b"2")  # comes on a link that takes nothing any more
    client.pump()
    assert wire.order() == []
    broker.store.gate.set()
    await client.settle()
    assert wire.order() == ["outcome", "detach"]
    assert wire.outcomes() == [Accepted]
    assert client.detached(link) == {"deleted": "amqp:not-found", "expired": "amqp:unauthorized-access"}[cause]


async def test_both_sides_detach_while_an_outcome_is_owed_i3(broker, message):
    client = broker.client()
    link = client.sender("orders")
    wire = Wire(client)
    broker.store.gate.clear()
    link.send(message("a"), b"1")
    client.pump()
    broker.engine.delete_queue("orders")
    client.peer.tick()
    link.detach()
    client.pump()
    broker.store.gate.set()
    await client.settle()
    assert wire.order() == ["outcome", "detach"]
    assert len(client.peer._connection._by_local[0]._handles) == 0


async def test_a_link_of_the_same_name_waits_for_the_one_before_i4(broker, message):
    client = broker.client()
    link = client.sender("orders", "same")
    wire = Wire(client)
    broker.store.gate.clear()
    link.send(message("a"), b"1")
    link.detach()
    client.pump()
    # An SDK's engine would wait; this one is made to forget that the name is in use.
    client.session.release_link(link)
    again = client.session.attach_sender("same", link.target, source=link.source)
    client.pump()
    assert wire.data == b""
    broker.store.gate.set()
    await client.settle()
    assert [type(value).__name__ for value in frames(wire.data)][:3] == ["Disposition", "Detach", "Attach"]
    again.send(message("b"), b"2")
    await client.settle()
    assert wire.outcomes() == [Accepted, Accepted]


@pytest.mark.parametrize("kind", ["queue", "browser", "hub"])
async def test_credit_that_comes_with_the_attach_counts_once_that_is_answered(broker, message, kind):
    client = broker.client()
    if kind == "hub":
        broker.engine.hubs.create("hub", EventHubDescription(partition_count=1))
        client.sender("hub", "events").send(message("0"), b"0")
        await client.settle()
    first = await ready(client, message, 2)  # has a message of `orders`
    more = client.sender("orders", "more")
    address = "hub/ConsumerGroups/$Default/Partitions/0" if kind == "hub" else "orders"
    broker.store.gate.clear()
    first.dispose(0, 0, Accepted(), settled=False)
    first.detach()
    client.pump()
    client.session.release_link(first)
    mode = "copy" if kind == "browser" else None
    again = client.session.attach_receiver("r", Source(address=address, distribution_mode=mode), target=first.target)
    again.grant(1)
    client.pump()
    broker.store.gate.set()
    await client.settle()
    more.send(message("1"), b"1")
    await client.settle()
    assert len(client.payloads(again)) == 1


async def test_a_discharge_is_answered_before_the_end_of_its_link_i1(broker, message):
    client = broker.client()
    control = attach_coordinator(client.session)
    client.pump()
    declare(control)
    await client.settle()
    txn_id = client.seen(Disposed)[-1].state.txn_id
    sender = client.sender("orders")
    send_with_state(sender, message("a"), within(txn_id))
    await client.settle()
    wire = Wire(client)
    discharge(control, txn_id)
    control.detach()
    await client.settle()
    assert wire.order() == ["outcome", "detach"]
    assert wire.outcomes() == [Accepted]


async def test_a_link_that_oversteps_its_credit_has_its_outcomes_first_i3(broker, message):
    client = broker.client()
    link = client.sender("orders")
    wire = Wire(client)
    link.send(message("a"), b"1")
    client.pump()
    link.credit = 3000
    link.send_many([message("x")] * 3000, [n.to_bytes(4, "big") for n in range(3000)])
    await client.settle()
    assert wire.order()[-1] == "detach"
    assert wire.outcomes()[0] is Accepted


def test_the_two_directions_have_names_of_their_own_i4():
    amqp_session = object()
    reported = []

    class Leaving:
        name = "same"

        def __init__(self, role):
            self.role = role
            self.amqp_session = amqp_session

        def finish_detach(self):
            reported.append(f"left {self.role.name}")

    departures = Departures(lambda: None)
    owed = {role: Owed() for role in Role}
    for role in Role:
        owed[role].add()
        departures.detach(Leaving(role), owed[role])
        assert departures.after(Leaving(role), lambda role=role: reported.append(f"attached {role.name}"))
    owed[Role.SENDER].paid()
    assert reported == ["left SENDER", "attached SENDER"]
    owed[Role.RECEIVER].paid()
    assert reported[2:] == ["left RECEIVER", "attached RECEIVER"]


async def test_a_client_that_is_sent_away_has_its_outcomes_first_i1(broker, message, monkeypatch):
    client = broker.client(max_frame_size_bytes=512)
    link = client.sender("orders")
    wire = Wire(client)
    broker.store.gate.clear()
    link.send(message("a"), b"1")
    client.pump()
    monkeypatch.setattr(client.peer._partial, "_limit_bytes", 1000)
    parts = client.session.attach_sender("parts", link.target, source=link.source)
    client.pump()
    parts.begin_parts(b"2")
    parts.send_part(message(b"b" * 5000), more=True)  # too much of messages that are not whole
    client.pump()
    assert "close" not in wire.order()
    assert broker.namespace.partial_bytes == 0
    broker.store.gate.set()
    await client.settle()
    assert wire.order() == ["outcome", "close"]
    assert client.closed
    assert broker.engine.runtime("orders").active_message_count == 1
