"""AMQP transactions: the coordinator, transfers and dispositions in transactions, and their ends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.management.test_management import Node

from harness.client.cbs import put_token, send_token
from harness.client.transaction_client import attach_coordinator, declare, discharge, send_with_state, within
from isthmus.amqp import BATCH_FORMAT, Disposed, SentSettled, Transfers, codec, section
from isthmus.amqp.frame import frame
from isthmus.amqp.performative import (
    Accepted,
    Declared,
    Discharge,
    Error,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from isthmus.amqp.types import Array, Symbol, Timestamp
from isthmus.broker.link.request import Replies
from isthmus.entities import AuthorizationRule, QueueDescription
from isthmus.entities.catalog.tier import TIERS
from isthmus.entities.hub import EventHubDescription
from isthmus.errors import NotAllowedError, StoreError, UnauthorizedError
from isthmus.store import BlobFolder
from isthmus.transport.sender import envelope


class Control:
    """A client with a coordinator's link."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.link = attach_coordinator(client.session)
        client.pump()

    async def outcome(self, delivery_id: int) -> Any:
        """The state that the broker gave a delivery of ours."""
        await self.client.settle()
        found = [e for e in self.client.seen(Disposed) if e.first <= delivery_id <= e.last]
        assert found, "no outcome came"
        assert found[-1].settled
        return found[-1].state

    async def declare(self) -> bytes:
        state = await self.outcome(declare(self.link))
        assert isinstance(state, Declared)
        return state.txn_id

    async def discharge(self, txn_id: bytes, *, fail: bool = False) -> Any:
        return await self.outcome(discharge(self.link, txn_id, fail=fail))

    async def send(self, link: Any, payload: bytes, txn_id: bytes, **how: Any) -> Any:
        return await self.outcome(send_with_state(link, payload, within(txn_id), **how))

    async def dispose(self, link: Any, delivery_id: int, txn_id: bytes, outcome: Any) -> Any:
        """The broker's answer to a disposition within a transaction."""
        link.dispose(delivery_id, delivery_id, within(txn_id, outcome), settled=False)
        await self.client.settle()
        found = [e for e in self.client.seen(SentSettled) if e.first <= delivery_id <= e.last]
        assert found, "no answer came"
        return found[-1].state


def condition(state: Any) -> str:
    assert isinstance(state, Rejected)
    assert state.error is not None
    return str(state.error.condition)


def contents(broker: Any, path: str = "orders") -> list[str]:
    queue = broker.engine.receiver(path)
    payloads = queue.peek(0, 1000)
    return [str(section.decode_properties(one, section.locate(one).properties)["message_id"]) for one in payloads]


def make(name: str, **parts: Any) -> bytes:
    return section.encode_message(name.encode(), properties={"message_id": name}, **parts)


@pytest.fixture
async def control(broker: Any) -> Control:
    return Control(broker.client())


async def put(broker: Any, *names: str, queue: str = "orders") -> None:
    broker.engine.sender(queue).accept([make(name) for name in names])
    await broker.namespace.commits.wait_idle()


async def delivered(control: Control, link: Any, count: int) -> list[int]:
    await control.client.settle()
    ids = []
    for event in control.client.seen(Transfers):
        if event.link is link:
            ids += range(event.first_delivery_id, event.first_delivery_id + len(event.payloads))
    assert len(ids) == count
    return ids


async def test_sends_become_visible_together_with_the_discharge(broker: Any, control: Control) -> None:
    link = control.client.sender("orders")
    txn_id = await control.declare()
    state = await control.send(link, make("a"), txn_id)
    assert (type(state), state.txn_id, type(state.outcome)) == (TransactionalState, txn_id, Accepted)
    batch = envelope([make("b"), make("c")])
    assert isinstance(await control.send(link, batch, txn_id, message_format=BATCH_FORMAT), TransactionalState)
    assert contents(broker) == []
    syncs = broker.store.syncs
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert contents(broker) == ["a", "b", "c"]
    assert broker.store.syncs == syncs + 1


async def test_a_failing_discharge_undoes_sends_and_settlements(broker: Any, control: Control) -> None:
    await put(broker, "old")
    sender, receiver = control.client.sender("orders"), control.client.receiver("orders", 10)
    (delivery,) = await delivered(control, receiver, 1)
    txn_id = await control.declare()
    await control.send(sender, make("new"), txn_id)
    state = await control.dispose(receiver, delivery, txn_id, Accepted())
    assert (type(state), state.txn_id, type(state.outcome)) == (TransactionalState, txn_id, Accepted)
    assert isinstance(await control.discharge(txn_id, fail=True), Accepted)
    assert contents(broker) == ["old"]
    assert broker.engine.runtime("orders").locked_message_count == 1
    receiver.dispose(delivery, delivery, Accepted(), settled=False)
    await control.client.settle()
    assert contents(broker) == []
    assert broker.engine.runtime("orders").locked_message_count == 0


def reported(control: Control, delivery: int) -> list[tuple[bool, Any]]:
    """What the broker said of a delivery that it sent: settled, and the state."""
    return [(e.settled, e.state) for e in control.client.seen(SentSettled) if e.first <= delivery <= e.last]


async def test_a_delivery_is_settled_when_the_commit_is_durable_i5(broker: Any, control: Control) -> None:
    await put(broker, "one", "two")
    receiver = control.client.receiver("orders", 10)
    one, two = await delivered(control, receiver, 2)
    txn_id = await control.declare()
    await control.dispose(receiver, one, txn_id, Accepted())
    await control.dispose(receiver, two, txn_id, Modified(delivery_failed=True))
    assert [settled for settled, _ in reported(control, one)] == [False]
    discharged = discharge(control.link, txn_id)
    assert isinstance(await control.outcome(discharged), Accepted)
    for delivery, outcome in ((one, Accepted), (two, Modified)):
        _, (settled, state) = reported(control, delivery)
        assert settled
        assert (state.txn_id, type(state.outcome)) == (txn_id, outcome)
    events = control.client.events
    last = next(n for n, e in enumerate(events) if isinstance(e, SentSettled) and e.settled)
    assert last < next(n for n, e in enumerate(events) if isinstance(e, Disposed) and e.first == discharged)
    receiver.dispose(one, one, Accepted(), settled=False)
    await control.client.settle()
    assert len(reported(control, one)) == 2


async def test_after_a_roll_back_a_delivery_may_be_settled_otherwise_i5(broker: Any, control: Control) -> None:
    await put(broker, "one", "two", "three")
    receiver = control.client.receiver("orders", 3)
    deliveries = await delivered(control, receiver, 3)
    txn_id = await control.declare()
    for delivery in deliveries:
        await control.dispose(receiver, delivery, txn_id, Accepted())
    await control.discharge(txn_id, fail=True)
    assert all([settled for settled, _ in reported(control, delivery)] == [False] for delivery in deliveries)
    one, two, three = deliveries
    receiver.dispose(one, one, Released(), settled=True)
    receiver.dispose(two, two, Modified(delivery_failed=True), settled=False)
    txn_id = await control.declare()
    await control.dispose(receiver, three, txn_id, Accepted())
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert contents(broker) == ["one", "two"]
    assert broker.engine.runtime("orders").locked_message_count == 0
    (settled, state) = reported(control, two)[-1]
    assert settled
    assert isinstance(state, Modified)


@pytest.mark.parametrize(
    ("default", "count"), [(None, 0), (Released(), 0), (Modified(delivery_failed=True), 1), (Source(), 0)]
)
@pytest.mark.parametrize("when", ["at once", "later"])
async def test_what_a_client_has_settled_gets_the_default_outcome_after_a_roll_back_i5(
    broker: Any, control: Control, default: Any, count: int, when: str
) -> None:
    await put(broker, "one")
    client = control.client
    source = Source(address="orders", default_outcome=default)
    receiver = client.session.attach_receiver("d", source, target=Target(address="me"), rcv_settle_mode=1)
    receiver.grant(1)
    client.pump()
    (delivery,) = await delivered(control, receiver, 1)
    txn_id = await control.declare()
    if when == "later":
        await control.dispose(receiver, delivery, txn_id, Accepted())
    receiver.dispose(delivery, delivery, within(txn_id, Accepted()), settled=True)
    await client.settle()
    assert broker.engine.runtime("orders").locked_message_count == 1
    await control.discharge(txn_id, fail=True)
    assert broker.engine.runtime("orders").locked_message_count == 0
    again = broker.client()
    link = again.receiver("orders", 1)
    await again.settle()
    (payload,) = again.payloads(link)
    assert section.decode_header(payload, section.locate(payload).header).delivery_count == count


async def test_what_a_client_releases_within_a_transaction_waits_for_its_end_i5(broker: Any, control: Control) -> None:
    await put(broker, "one", "two")
    receiver = control.client.receiver("orders", 2)
    one, two = await delivered(control, receiver, 2)
    txn_id = await control.declare()
    for delivery in (one, two):
        await control.dispose(receiver, delivery, txn_id, Accepted())
    receiver.dispose(one, one, Modified(delivery_failed=True), settled=False)
    await control.client.settle()
    settled, state = reported(control, one)[-1]
    assert not settled
    assert condition(state) == "amqp:not-allowed"
    assert condition(await control.dispose(receiver, one, txn_id, Released())) == "amqp:not-allowed"
    receiver.dispose(two, two, Modified(delivery_failed=True), settled=True)
    await control.client.settle()
    assert broker.engine.runtime("orders").locked_message_count == 2
    await control.discharge(txn_id, fail=True)
    assert broker.engine.runtime("orders").locked_message_count == 1
    receiver.dispose(one, one, Accepted(), settled=False)
    await control.client.settle()
    assert contents(broker) == ["two"]


async def test_a_settled_disposition_that_is_refused_dooms_its_transaction(broker: Any, control: Control) -> None:
    """The client takes no answer: it must not get one that says that all is done."""
    await put(broker, "one", "two")
    broker.engine.create_queue("other")
    await put(broker, "far", queue="other")
    here, there = control.client.receiver("orders", 1), control.client.receiver("other", 1, "r2")
    (delivery,) = await delivered(control, here, 1)
    (far,) = await delivered(control, there, 1)
    txn_id = await control.declare()
    await control.dispose(here, delivery, txn_id, Accepted())
    there.dispose(far, far, within(txn_id, Accepted()), settled=True)
    await control.client.settle()
    assert broker.engine.runtime("other").locked_message_count == 0
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert (contents(broker), contents(broker, "other")) == (["one", "two"], ["far"])


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("what", ["a message", "a message in two frames", "a settlement"])
async def test_what_arrives_behind_the_end_of_its_link_dooms_its_transaction_i6(
    broker: Any, control: Control, what: str, settled: bool
) -> None:
    """The client has not been told yet that this side has ended the link, and waits for no outcome before it discharges."""
    await put(broker, "a")
    client = control.client
    link = client.receiver("orders", credit=1) if what == "a settlement" else client.sender("orders", "s")
    await client.settle()
    txn_id = await control.declare()
    if what == "a message in two frames":
        first = Transfer(handle=link.handle, delivery_id=9, delivery_tag=b"9", more=True, state=within(txn_id))
        link.amqp_session.write(first)
        client.peer.receive(client.connection.take())
    [attached] = [each for each in client.peer._links.handlers if each.name == link.name]
    client.peer._links.drop(attached, UnauthorizedError("expired"))
    if what == "a settlement":
        link.dispose(0, 0, within(txn_id, Accepted()), settled)
        link.detach()  # as a client does that closes its consumer before it commits
    elif what == "a message":
        send_with_state(link, make("b"), within(txn_id), settled=settled)
    else:
        link.amqp_session.write(Transfer(handle=link.handle, delivery_id=9, settled=settled, more=False))
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert contents(broker) == ["a"]


async def test_a_message_that_ends_its_link_dooms_its_transaction_i6(broker: Any, control: Control) -> None:
    """As one that is far above the limit of its entity."""
    link = control.client.sender("orders", "s")
    [attached] = [each for each in control.client.peer._links.handlers if each.name == link.name]
    attached.max_message_size_bytes = 10
    txn_id = await control.declare()
    send_with_state(link, make("b"), within(txn_id))
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert control.client.detached(link) == "amqp:link:message-size-exceeded"


@pytest.mark.parametrize("what", ["an event", "a request"])
async def test_what_is_settled_and_refused_dooms_its_transaction_i6(broker: Any, control: Control, what: str) -> None:
    """An event hub takes no transactions, and a request may be unreadable: neither has an answer."""
    broker.engine.hubs.create("hub", EventHubDescription(partition_count=1))
    client, orders = control.client, control.client.sender("orders")
    link = client.sender("hub" if what == "an event" else "orders/$management", "refused")
    txn_id = await control.declare()
    await control.send(orders, make("a"), txn_id)
    send_with_state(link, make("b"), within(txn_id), settled=True)
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert contents(broker) == []


async def test_a_settled_large_message_that_is_refused_dooms_its_transaction(
    broker: Any, control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.engine.blobs.files = BlobFolder(tmp_path)
    monkeypatch.setattr("isthmus.broker.link.receiver_link.LARGE_BYTES", 100)
    link = control.client.sender("orders", "s")
    monkeypatch.setattr(broker.engine.blobs.files, "create", refuse)
    txn_id = await control.declare()
    session, payload = link.amqp_session, section.encode_message(bytes(300), properties={"message_id": "b"})
    for content, more in ((payload[:150], True), (payload[150:], False)):
        state = within(txn_id) if more else None
        transfer = Transfer(handle=link.handle, delivery_id=0, delivery_tag=b"1", settled=True, more=more, state=state)
        data = frame(session.channel, transfer)
        session.connection.write((len(data) + len(content)).to_bytes(4, "big") + data[4:] + content)
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"


def refuse(number: int) -> Any:
    raise StoreError("no space left on device")


async def test_what_the_disk_refuses_settles_deliveries_as_lost_i5(broker: Any, control: Control) -> None:
    await put(broker, "one")
    receiver = control.client.receiver("orders", 1)
    (delivery,) = await delivered(control, receiver, 1)
    txn_id = await control.declare()
    await control.dispose(receiver, delivery, txn_id, Accepted())
    broker.store.error = StoreError("the disk is gone")
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    settled, state = reported(control, delivery)[-1]
    assert settled
    assert condition(state) == "com.microsoft:message-lock-lost"


async def test_a_link_that_closes_leaves_its_part_to_the_discharge_i5(broker: Any, control: Control) -> None:
    await put(broker, "one", "two")
    receiver = control.client.receiver("orders", 2)
    one, two = await delivered(control, receiver, 2)
    txn_id = await control.declare()
    await control.dispose(receiver, one, txn_id, Accepted())
    receiver.dispose(two, two, within(txn_id, Accepted()), settled=True)
    receiver.detach()
    await control.client.settle()
    other = await control.declare()
    await control.discharge(other)
    assert contents(broker) == ["one", "two"]
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert contents(broker) == []


# ---- sessions


def in_session(session_id: str, name: str) -> bytes:
    return section.encode_message(name.encode(), properties={"message_id": name, "group_id": session_id})


@pytest.fixture
async def sessions(broker: Any) -> Any:
    """A queue of two sessions with two messages each."""
    broker.engine.create_queue("sessions", QueueDescription(requires_session=True, lock_duration_ms=30_000))
    queue = broker.engine.sender("sessions")
    queue.accept([in_session(name[0], name) for name in ("a1", "b1", "a2", "b2")])
    await broker.namespace.commits.wait_idle()
    return queue


def session_receiver(client: Any, session_id: str | None, credit: int = 10) -> Any:
    link = client.session.attach_receiver(
        f"session-{session_id}",
        Source(address="sessions", filter={Symbol("com.microsoft:session-filter"): session_id}),
        target=Target(address="me"),
        rcv_settle_mode=1,
    )
    client.pump()
    link.grant(credit)
    client.pump()
    return link


async def test_a_transaction_over_two_sessions(broker: Any, control: Control, sessions: Any) -> None:
    sender = control.client.sender("sessions")
    a, b = session_receiver(control.client, "a"), session_receiver(control.client, "b")
    a1, _ = await delivered(control, a, 2)
    b1, _ = await delivered(control, b, 2)
    txn_id = await control.declare()
    await control.send(sender, in_session("a", "a3"), txn_id)
    await control.send(sender, in_session("c", "c1"), txn_id)
    await control.dispose(a, a1, txn_id, Accepted())
    await control.dispose(b, b1, txn_id, Rejected(Error(Symbol("com.microsoft:dead-letter"), None, {})))
    assert sorted(contents(broker, "sessions")) == ["a1", "a2", "b1", "b2"]
    assert isinstance(await control.discharge(txn_id), Accepted)
    await control.client.settle()
    assert sorted(contents(broker, "sessions")) == ["a2", "a3", "b2", "c1"]
    assert contents(broker, "sessions/$DeadLetterQueue") == ["b1"]
    assert [settled for settled, _ in reported(control, a1)] == [False, True]
    assert control.client.bodies(a) == [b"a1", b"a2", b"a3"]


async def test_a_session_continues_in_order_after_a_roll_back(broker: Any, control: Control, sessions: Any) -> None:
    sender, receiver = control.client.sender("sessions"), session_receiver(control.client, "a")
    a1, a2 = await delivered(control, receiver, 2)
    txn_id = await control.declare()
    for delivery in (a1, a2):
        await control.dispose(receiver, delivery, txn_id, Accepted())
    await control.send(sender, in_session("a", "a3"), txn_id)
    await control.discharge(txn_id, fail=True)
    for delivery in (a1, a2):
        receiver.dispose(delivery, delivery, Released(), settled=True)
    await control.client.settle()
    assert control.client.bodies(receiver) == [b"a1", b"a2", b"a1", b"a2"]
    assert sorted(contents(broker, "sessions")) == ["a1", "a2", "b1", "b2"]


@pytest.mark.parametrize("how", ["closed", "expired"])
async def test_the_end_of_a_session_rolls_back_what_was_settled_in_it(
    broker: Any, control: Control, sessions: Any, how: str
) -> None:
    sender, receiver = control.client.sender("sessions"), session_receiver(control.client, "a")
    a1, a2 = await delivered(control, receiver, 2)
    txn_id = await control.declare()
    await control.send(sender, in_session("a", "a3"), txn_id)
    await control.dispose(receiver, a1, txn_id, Accepted())
    receiver.dispose(a2, a2, within(txn_id, Accepted()), settled=True)
    if how == "closed":
        receiver.detach()
    else:
        broker.clock.advance(31_000)
        broker.engine.tick()
    await control.client.settle()
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert sorted(contents(broker, "sessions")) == ["a1", "a2", "b1", "b2"]
    client = broker.client()
    again = session_receiver(client, "a")
    await client.settle()
    assert client.bodies(again) == [b"a1", b"a2"]


async def test_a_message_without_session_is_refused_and_the_rest_continues(
    broker: Any, control: Control, sessions: Any
) -> None:
    sender = control.client.sender("sessions")
    txn_id = await control.declare()
    assert condition(await control.send(sender, make("x"), txn_id)) == "amqp:not-allowed"
    await control.send(sender, in_session("d", "d1"), txn_id)
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert sorted(contents(broker, "sessions")) == ["a1", "a2", "b1", "b2", "d1"]


async def test_messages_to_the_coordinator_are_not_sent_settled(broker: Any, control: Control) -> None:
    link = control.client.sender("orders")
    txn_id = await control.declare()
    await control.send(link, make("a"), txn_id)
    send_with_state(control.link, b"\0Sw" + Discharge(txn_id).encode(), None, settled=True)
    control.client.pump()
    assert control.client.detached(control.link) == "amqp:not-allowed"
    assert control.client.peer.statistics()["open_transactions"] == 0
    assert contents(broker) == []


@pytest.mark.parametrize(
    ("outcome", "place"),
    [
        (Accepted(), ""),
        (Modified(delivery_failed=True), "orders"),
        (Modified(undeliverable_here=True), "deferred"),
        (Rejected(Error(Symbol("com.microsoft:dead-letter"), None, {"DeadLetterReason": "bad"})), "dead"),
        (Released(), "orders"),
    ],
)
async def test_every_settlement_waits_for_the_discharge(
    broker: Any, control: Control, outcome: Any, place: str
) -> None:
    await put(broker, "one")
    receiver = control.client.receiver("orders", 1)
    (delivery,) = await delivered(control, receiver, 1)
    txn_id = await control.declare()
    state = await control.dispose(receiver, delivery, txn_id, outcome)
    assert type(state.outcome) is type(outcome)
    runtime = broker.engine.runtime("orders")
    assert (runtime.locked_message_count, runtime.message_count, runtime.dead_letter_message_count) == (1, 1, 0)
    assert isinstance(await control.discharge(txn_id), Accepted)
    runtime = broker.engine.runtime("orders")
    found = {
        "orders": runtime.active_message_count,
        "deferred": runtime.deferred_message_count,
        "dead": runtime.dead_letter_message_count,
    }
    assert [name for name, count in found.items() if count] == ([place] if place else [])
    assert runtime.locked_message_count == 0


async def test_receive_and_send_via_in_one_transaction(broker: Any, control: Control) -> None:
    broker.engine.create_queue("next")
    await put(broker, "in")
    receiver = control.client.receiver("orders", 1)
    (delivery,) = await delivered(control, receiver, 1)
    via = control.client.session.attach_sender(
        "via",
        Target(address="orders"),
        source=Source(address="me"),
        properties={Symbol("com.microsoft:transfer-destination-address"): "next"},
    )
    control.client.pump()
    txn_id = await control.declare()
    await control.send(via, make("out"), txn_id)
    await control.dispose(receiver, delivery, txn_id, Accepted())
    assert (contents(broker), contents(broker, "next")) == (["in"], [])
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert (contents(broker), contents(broker, "next")) == ([], ["out"])


async def test_a_second_entity_is_refused_unless_via(broker: Any, control: Control) -> None:
    """As simple clients do: each link has an AMQP session of its own."""
    broker.engine.create_queue("next")
    client = control.client
    first = client.sender("orders", "s1")
    second = client.connection.begin().attach_sender("s2", Target(address="next"), source=Source(address="me"))
    client.pump()
    txn_id = await control.declare()
    await control.send(first, make("a"), txn_id)
    second_id = send_with_state(second, make("b"), within(txn_id))
    await client.settle()
    answers = [e for e in client.seen(Disposed) if e.link is second and e.first == second_id]
    assert condition(answers[-1].state) == "amqp:not-allowed"
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert (contents(broker), contents(broker, "next")) == (["a"], [])


@pytest.mark.parametrize("fail", [False, True])
async def test_sends_to_other_entities_on_the_same_amqp_session_go_via_the_first_i4(
    broker: Any, control: Control, fail: bool
) -> None:
    broker.engine.create_queue("next")
    broker.engine.create_topic("news")
    broker.engine.create_subscription("news", "all")
    await put(broker, "in")
    await put(broker, "far", queue="next")
    client = control.client
    receiver, other = client.receiver("orders", 1), client.receiver("next", 1, "r2")
    (delivery,) = await delivered(control, receiver, 1)
    (far,) = await delivered(control, other, 1)
    to_next, to_news = client.sender("next", "s1"), client.sender("news", "s2")
    txn_id = await control.declare()
    await control.dispose(receiver, delivery, txn_id, Accepted())
    for name in ("out", "out too"):
        assert isinstance(await control.send(to_next, make(name), txn_id), TransactionalState)
    assert isinstance(await control.send(to_news, make("told"), txn_id), TransactionalState)
    assert condition(await control.dispose(other, far, txn_id, Accepted())) == "amqp:not-allowed"
    assert isinstance(await control.discharge(txn_id, fail=fail), Accepted)
    subscription = "news/Subscriptions/all"
    found = contents(broker), contents(broker, "next"), contents(broker, subscription)
    assert found == ((["in"], ["far"], []) if fail else ([], ["far", "out", "out too"], ["told"]))


async def test_unknown_ids_are_reported(broker: Any, control: Control) -> None:
    await put(broker, "one")
    sender, receiver = control.client.sender("orders"), control.client.receiver("orders", 1)
    (delivery,) = await delivered(control, receiver, 1)
    unknown = "amqp:transaction:unknown-id"
    assert condition(await control.send(sender, make("a"), b"none")) == unknown
    assert condition(await control.dispose(receiver, delivery, b"none", Accepted())) == unknown
    assert condition(await control.discharge(b"none")) == unknown
    txn_id = await control.declare()
    await control.discharge(txn_id)
    assert condition(await control.discharge(txn_id)) == unknown
    other = Control(broker.client())
    txn_id = await control.declare()
    assert condition(await other.discharge(txn_id, fail=True)) == unknown
    assert contents(broker) == ["one"]


async def test_a_transaction_ends_after_two_minutes(broker: Any, control: Control) -> None:
    link = control.client.sender("orders")
    txn_id = await control.declare()
    await control.send(link, make("a"), txn_id)
    broker.clock.advance(119_000)
    await control.send(link, make("b"), txn_id)
    broker.clock.advance(1_000)
    assert condition(await control.send(link, make("c"), txn_id)) == "amqp:transaction:timeout"
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:timeout"
    assert contents(broker) == []


@pytest.mark.parametrize("how", ["link", "session", "connection"])
async def test_the_end_of_the_coordinator_rolls_back(broker: Any, how: str) -> None:
    client = broker.client()
    control = Control(client)
    link = client.sender("orders")
    txn_id = await control.declare()
    await control.send(link, make("a"), txn_id)
    if how == "link":
        control.link.detach()
    elif how == "session":
        client.session.end()
    else:
        client.peer.lost()
    await client.settle()
    assert contents(broker) == []
    assert not broker.engine.has_staged
    assert client.peer.statistics()["open_transactions"] == 0


async def test_a_lost_lock_rolls_back_all(broker: Any, control: Control) -> None:
    await put(broker, "one")
    sender, receiver = control.client.sender("orders"), control.client.receiver("orders", 1)
    (delivery,) = await delivered(control, receiver, 1)
    txn_id = await control.declare()
    await control.send(sender, make("a"), txn_id)
    await control.dispose(receiver, delivery, txn_id, Accepted())
    broker.clock.advance(61_000)
    broker.engine.tick()
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert contents(broker) == ["one"]


async def test_what_does_not_fit_any_more_rolls_back_all(broker: Any, control: Control) -> None:
    broker.engine.create_queue("small", QueueDescription(max_size_in_megabytes=1))
    link = control.client.sender("small")
    txn_id = await control.declare()
    for name in ("a", "b"):
        state = await control.send(link, make(name, annotations={"x-fill": "x" * 40_000}), txn_id)
        assert isinstance(state, TransactionalState)
    broker.engine.sender("small").accept([section.encode_message(b"x" * 1_000_000)])
    await broker.namespace.commits.wait_idle()
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert len(contents(broker, "small")) == 1


async def test_a_refused_settled_send_dooms_its_transaction(broker: Any, control: Control) -> None:
    link = control.client.sender("orders")
    txn_id = await control.declare()
    await control.send(link, make("a"), txn_id)
    send_with_state(link, b"no message", within(txn_id), settled=True)
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert contents(broker) == []


async def test_a_hundred_messages_and_no_more(broker: Any, control: Control) -> None:
    link = control.client.sender("orders")
    txn_id = await control.declare()
    batch = envelope([make(str(number)) for number in range(100)])
    await control.send(link, batch, txn_id, message_format=BATCH_FORMAT)
    assert condition(await control.send(link, make("more"), txn_id)) == "amqp:resource-limit-exceeded"
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert len(contents(broker)) == 100


async def test_so_many_transactions_and_no_more(control: Control) -> None:
    for _ in range(20):
        await control.declare()
    assert condition(await control.outcome(declare(control.link))) == "amqp:resource-limit-exceeded"


async def test_what_the_disk_refuses_is_reported_at_the_discharge(broker: Any, control: Control) -> None:
    link = control.client.sender("orders")
    txn_id = await control.declare()
    await control.send(link, make("a"), txn_id)
    broker.store.error = StoreError("the disk is gone")
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert contents(broker) == []


async def test_what_the_coordinator_cannot_read_is_refused(broker: Any, control: Control) -> None:
    for payload in (b"", b"\0Sw\x40", make("x"), b"\0Sw\0\x53\x31\xc0"):
        assert condition(await control.outcome(send_with_state(control.link, payload, None))) == (
            "com.microsoft:argument-error"
        )
    assert condition(await control.outcome(declare(control.link, global_id=b"g"))) == "amqp:not-allowed"
    assert await control.declare()


async def test_a_coordinator_is_there_before_the_first_token(broker: Any) -> None:
    """The Java SDK attaches it first; what takes part in a transaction needs its own right."""
    client = broker.client(None)
    control = Control(client)
    txn_id = await control.declare()
    assert client.detached(client.sender("orders", "early")) == "amqp:unauthorized-access"
    put_token(client, broker.token("sb://host/orders"))
    link = client.sender("orders")
    await control.send(link, make("a"), txn_id)
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert contents(broker) == ["a"]


# ---- rights that end before the discharge


async def test_a_transaction_whose_right_to_send_was_revoked_is_rolled_back(broker: Any) -> None:
    client = broker.client(None)
    put_token(client, broker.token("sb://host/orders"))
    control = Control(client)
    txn_id = await control.declare()
    await control.send(client.sender("orders"), make("a"), txn_id)
    broker.namespace.authority.keyring.put(AuthorizationRule("root", "new", "other", ["Send", "Listen", "Manage"]))
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert contents(broker) == []


async def test_a_transaction_whose_token_has_expired_is_rolled_back(broker: Any) -> None:
    client = broker.client(None)
    put_token(client, broker.token("sb://host/orders", seconds=30))
    control = Control(client)
    txn_id = await control.declare()
    await put(broker, "old")
    (delivery,) = await delivered(control, (receiver := client.receiver("orders", 10)), 1)
    await control.dispose(receiver, delivery, txn_id, Accepted())
    broker.clock.advance(31_000)
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert contents(broker) == ["old"]


async def test_a_transaction_without_the_right_to_send_on_is_rolled_back(broker: Any) -> None:
    broker.engine.create_queue("next")
    client = broker.client(None)
    requests, _ = put_token(client, broker.token("sb://host/orders"))
    send_token(client, requests, broker.token("sb://host/next", seconds=30), "sb://host/next")
    control = Control(client)
    txn_id = await control.declare()
    link = client.session.attach_sender(
        "via", Target(address="orders"), properties={Symbol("com.microsoft:transfer-destination-address"): "next"}
    )
    client.pump()
    await control.send(link, make("a"), txn_id)
    broker.clock.advance(31_000)
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert contents(broker, "next") == []


async def test_a_request_whose_right_was_revoked_at_the_discharge_is_not_carried_out(broker: Any) -> None:
    client = broker.client(None)
    requests, _ = put_token(client, broker.token("sb://host/orders"))
    control = Control(client)
    node = Node(client, "orders")
    txn_id = await control.declare()
    assert (await ask(node, "schedule-message", later(broker, "a"), txn_id))[0] == 200
    send_token(client, requests, broker.token("sb://host/orders", name="reader"))
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert broker.engine.runtime("orders").scheduled_message_count == 0


async def test_a_renewed_token_with_the_same_rights_lets_the_transaction_commit(broker: Any) -> None:
    client = broker.client(None)
    requests, _ = put_token(client, broker.token("sb://host/orders", seconds=30))
    control = Control(client)
    txn_id = await control.declare()
    await control.send(client.sender("orders"), make("a"), txn_id)
    send_token(client, requests, broker.token("sb://host/orders", seconds=300))
    broker.clock.advance(31_000)
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert contents(broker) == ["a"]


# ---- requests


async def ask(
    node: Node, operation: str, body: dict[str, Any], txn_id: bytes, *, settled: bool = False
) -> tuple[int, str]:
    """A request to a node within a transaction: status and condition of the reply."""
    reported, _ = await ask_for(node, operation, body, txn_id, settled=settled)
    return reported["statusCode"], str(reported.get("errorCondition", ""))


async def ask_for(
    node: Node, operation: str, body: dict[str, Any], txn_id: bytes, *, settled: bool = False
) -> tuple[dict[str, Any], Any]:
    """As the Java SDK asks, whose requests come settled: application properties and body of the reply."""
    request = section.encode_message(
        body,
        properties={"message_id": "asked", "reply_to": node.reply_to},
        application_properties={"operation": f"com.microsoft:{operation}"},
        value_body=True,
    )
    before = len(node.client.payloads(node.replies))
    send_with_state(node.requests, request, within(txn_id), settled=settled)
    await node.client.settle()
    assert len(node.client.payloads(node.replies)) == before + 1
    reply = node.client.payloads(node.replies)[-1]
    sections = section.locate(reply)
    assert section.decode_properties(reply, sections.properties)["correlation_id"] == "asked"
    value, _ = codec.decode(reply, sections.body[0] + 3)
    return {str(key): value for key, value in section.decode_map(reply, sections.application_properties).items()}, value


def later(broker: Any, *names: str, ms: int = 60_000, **properties: Any) -> dict[str, Any]:
    """A request to schedule."""
    due = Timestamp(broker.clock.wall_ms() + ms)
    payloads = [
        section.encode_message(
            b"x", properties={"message_id": name, **properties}, annotations={"x-opt-scheduled-enqueue-time": due}
        )
        for name in names
    ]
    return {"messages": [{"message-id": name, "message": one} for name, one in zip(names, payloads, strict=True)]}


def off(*numbers: int) -> dict[str, Any]:
    """A request to cancel."""
    return {"sequence-numbers": Array(0x81, list(numbers))}


async def schedule(node: Node, request: dict[str, Any], txn_id: bytes, *, settled: bool = False) -> list[int]:
    reported, body = await ask_for(node, "schedule-message", request, txn_id, settled=settled)
    assert reported["statusCode"] == 200
    return list(body["sequence-numbers"])


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("entity", ["orders", "flights"])
async def test_messages_are_scheduled_in_a_transaction(
    broker: Any, control: Control, entity: str, fail: bool, settled: bool
) -> None:
    """The numbers come at once, the messages with the discharge."""
    scheduled = partial(getattr, broker.engine.sender(entity), "scheduled_count")
    node, link = Node(control.client, entity), control.client.sender(entity)
    txn_id = await control.declare()
    await control.send(link, make("now"), txn_id)
    numbers = await schedule(node, later(broker, "a", "b"), txn_id, settled=settled)
    await node.ask("schedule-message", later(broker, "beside"))
    assert scheduled() == 1
    assert isinstance(await control.discharge(txn_id, fail=fail), Accepted)
    assert scheduled() == (1 if fail else 3)
    status, _, _ = await node.ask("cancel-scheduled-message", off(*numbers))
    assert status == (404 if fail else 200)
    assert scheduled() == 1


@pytest.mark.parametrize("fail", [False, True])
async def test_scheduled_messages_are_cancelled_in_a_transaction(broker: Any, control: Control, fail: bool) -> None:
    node = Node(control.client, "orders")
    _, body, _ = await node.ask("schedule-message", later(broker, "a", "b"))
    first, second = body["sequence-numbers"]
    txn_id = await control.declare()
    not_found = 404, "com.microsoft:message-not-found"
    own = await schedule(node, later(broker, "own"), txn_id)
    assert await ask(node, "cancel-scheduled-message", off(first, 1000), txn_id) == not_found
    assert await ask(node, "cancel-scheduled-message", off(*own), txn_id) == not_found
    assert await ask(node, "cancel-scheduled-message", off(first, first), txn_id, settled=True) == (200, "")
    assert await ask(node, "cancel-scheduled-message", off(first, second), txn_id) == not_found
    assert contents(broker) == ["a", "b"]
    assert isinstance(await control.discharge(txn_id, fail=fail), Accepted)
    assert contents(broker) == (["a", "b"] if fail else ["b", "own"])


async def test_a_message_that_is_due_before_its_cancellation_is_committed_rolls_back_all(
    broker: Any, control: Control
) -> None:
    node = Node(control.client, "orders")
    _, body, _ = await node.ask("schedule-message", later(broker, "a", ms=1_000))
    txn_id = await control.declare()
    assert await ask(node, "cancel-scheduled-message", off(*body["sequence-numbers"]), txn_id) == (200, "")
    await schedule(node, later(broker, "b"), txn_id)
    broker.clock.advance(2_000)
    broker.engine.tick()
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    await control.client.settle()
    assert contents(broker) == ["a"]
    assert broker.engine.runtime("orders").scheduled_message_count == 0


async def test_what_is_scheduled_in_a_transaction_comes_when_it_is_due_and_once(broker: Any, control: Control) -> None:
    broker.engine.create_queue("once", QueueDescription(requires_duplicate_detection=True))
    node = Node(control.client, "once")
    txn_id = await control.declare()
    numbers = await schedule(node, later(broker, "a", "a"), txn_id)
    past = await schedule(node, later(broker, "b", ms=-1), txn_id)
    assert isinstance(await control.discharge(txn_id), Accepted)
    await node.ask("schedule-message", later(broker, "a"))
    broker.engine.tick()
    await control.client.settle()
    assert broker.engine.receiver("once").active_count == 1
    broker.clock.advance(60_000)
    broker.engine.tick()
    await control.client.settle()
    assert contents(broker, "once") == ["b", "a"]
    assert len({*numbers, *past}) == 3


async def test_numbers_are_reported_once_nothing_else_can_get_them(broker: Any, control: Control) -> None:
    """Not even after a kill that ended the transaction: a cancellation must never hit another message."""
    node = Node(control.client, "orders")
    txn_id = await control.declare()
    syncs = broker.store.syncs
    (number,) = await schedule(node, later(broker, "a"), txn_id)
    assert broker.store.syncs == syncs + 1
    await control.discharge(txn_id, fail=True)
    await put(broker, "other")
    assert broker.engine.sender("orders").last == number + 1


async def test_numbers_that_the_disk_refuses_end_their_transaction(broker: Any, control: Control) -> None:
    node, link = Node(control.client, "orders"), control.client.sender("orders")
    txn_id = await control.declare()
    await control.send(link, make("now"), txn_id)
    broker.store.error = StoreError("the disk is gone")
    assert (await ask(node, "schedule-message", later(broker, "a"), txn_id))[0] >= 500
    broker.store.error = None
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert contents(broker) == []


async def test_scheduling_keeps_the_limits_of_a_transaction(broker: Any, control: Control) -> None:
    broker.engine.create_queue("other")
    node, other = Node(control.client, "orders"), Node(control.client, "other")
    _, body, _ = await node.ask("schedule-message", later(broker, "old"))
    txn_id = await control.declare()
    await schedule(node, later(broker, *map(str, range(99))), txn_id)
    over = 403, "amqp:resource-limit-exceeded"
    assert (await ask(node, "schedule-message", later(broker, "a", "b"), txn_id)) == over
    assert (await ask(other, "schedule-message", later(broker, "a"), txn_id)) == (400, "amqp:not-allowed")
    assert (await ask(other, "cancel-scheduled-message", off(1), txn_id)) == (400, "amqp:not-allowed")
    assert (await ask(node, "schedule-message", {"messages": []}, txn_id))[0] == 400
    assert (await ask(node, "cancel-scheduled-message", off(*body["sequence-numbers"]), txn_id)) == (200, "")
    assert (await ask(node, "cancel-scheduled-message", off(*body["sequence-numbers"]), txn_id)) == over
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert broker.engine.runtime("orders").scheduled_message_count == 99


@pytest.mark.parametrize("fail", [False, True])
async def test_deferred_messages_are_settled_by_request_in_a_transaction(
    broker: Any, control: Control, fail: bool
) -> None:
    await put(broker, "one")
    receiver = control.client.receiver("orders", 1)
    (delivery,) = await delivered(control, receiver, 1)
    receiver.dispose(delivery, delivery, Modified(undeliverable_here=True), settled=True)
    await control.client.settle()
    node = Node(control.client, "orders")
    _, body, _ = await node.ask("receive-by-sequence-number", {"sequence-numbers": Array(0x81, [1])})
    tokens = Array(0x98, [body["messages"][0]["lock-token"]])
    request = {"disposition-status": "completed", "lock-tokens": tokens}
    txn_id = await control.declare()
    assert await ask(node, "update-disposition", request, txn_id) == (200, "")
    assert await ask(node, "update-disposition", request, txn_id) == (410, "com.microsoft:message-lock-lost")
    assert (await ask(node, "renew-lock", {"lock-tokens": tokens}, txn_id))[0] == 200
    assert contents(broker) == ["one"]
    assert isinstance(await control.discharge(txn_id, fail=fail), Accepted)
    assert contents(broker) == (["one"] if fail else [])
    status, _, _ = await node.ask("update-disposition", request)
    assert status == (200 if fail else 410)
    assert contents(broker) == []


async def test_what_cannot_take_part_is_refused_by_a_reply(broker: Any, control: Control) -> None:
    """Clients wait for it: the Java SDK for minutes."""
    node = Node(control.client, "orders")
    txn_id = await control.declare()
    assert await ask(node, "peek-message", {}, txn_id) == (400, "amqp:not-allowed")
    assert await ask(node, "peek-message", {}, b"none") == (404, "amqp:transaction:unknown-id")
    dead = Node(control.client, "orders/$DeadLetterQueue")
    request = {"disposition-status": "suspended", "lock-tokens": Array(0x98, [])}
    assert (await ask(dead, "update-disposition", request, txn_id))[0] == 400
    requests, replies = put_token(control.client, broker.token("sb://host/orders"))
    before = len(control.client.payloads(replies))
    payload = section.encode_message(
        "token", properties={"message_id": "t"}, application_properties={"operation": "put-token"}, value_body=True
    )
    assert condition(await control.send(requests, payload, txn_id)) == "amqp:not-allowed"
    assert len(control.client.payloads(replies)) == before + 1
    for _ in range(60):  # such requests use up no credit for good
        await ask(node, "peek-message", {}, txn_id)


async def test_a_request_whose_reply_has_no_room_dooms_its_transaction_i6(
    broker: Any, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(control.client, "orders")
    txn_id = await control.declare()
    monkeypatch.setattr(Replies, "has_room", lambda *_: False)
    request = section.encode_message(
        later(broker, "a"),
        properties={"message_id": "asked", "reply_to": node.reply_to},
        application_properties={"operation": "com.microsoft:schedule-message"},
        value_body=True,
    )
    send_with_state(node.requests, request, within(txn_id))
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert control.client.detached(node.requests) == "amqp:resource-limit-exceeded"


async def test_a_tier_without_transactions_refuses_the_coordinator(broker: Any) -> None:
    """Microsoft Learn, Service Bus pricing: Basic has neither transactions nor sends via another entity."""
    broker.engine._limits = replace(broker.engine.limits, tier=TIERS["basic"])
    client = broker.client()
    link = attach_coordinator(client.session)
    client.pump()
    assert client.detached(link) == "amqp:not-allowed"
    with pytest.raises(NotAllowedError, match="'Basic' tier"):
        broker.engine.via("orders", "orders")
