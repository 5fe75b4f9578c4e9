"""AMQP transactions: the coordinator, transfers and dispositions in transactions, and their ends."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.amqp import BATCH_FORMAT, Disposed, SentSettled, Transfers, section
from isthmus.amqp.performative import (
    Accepted,
    Declared,
    Error,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
)
from isthmus.amqp.types import Symbol
from isthmus.entities import QueueDescription
from isthmus.errors import StoreError
from isthmus.transport.sender import envelope
from transaction_client import attach_coordinator, declare, discharge, send_with_state, within


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


def held(broker: Any, path: str = "orders") -> list[str]:
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
    assert held(broker) == []
    syncs = broker.store.syncs
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert held(broker) == ["a", "b", "c"]
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
    assert held(broker) == ["old"]
    assert broker.engine.runtime("orders").locked_message_count == 1
    receiver.dispose(delivery, delivery, Accepted(), settled=False)
    await control.client.settle()
    assert held(broker) == []


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
    assert (held(broker), held(broker, "next")) == (["in"], [])
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert (held(broker), held(broker, "next")) == ([], ["out"])


async def test_a_second_entity_is_refused_unless_via(broker: Any, control: Control) -> None:
    broker.engine.create_queue("next")
    first, second = control.client.sender("orders", "s1"), control.client.sender("next", "s2")
    txn_id = await control.declare()
    await control.send(first, make("a"), txn_id)
    assert condition(await control.send(second, make("b"), txn_id)) == "amqp:not-allowed"
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert (held(broker), held(broker, "next")) == (["a"], [])


async def test_unknown_ids_are_told(broker: Any, control: Control) -> None:
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
    assert held(broker) == ["one"]


async def test_a_transaction_ends_after_two_minutes(broker: Any, control: Control) -> None:
    link = control.client.sender("orders")
    txn_id = await control.declare()
    await control.send(link, make("a"), txn_id)
    broker.clock.advance(119_000)
    await control.send(link, make("b"), txn_id)
    broker.clock.advance(1_000)
    assert condition(await control.send(link, make("c"), txn_id)) == "amqp:transaction:timeout"
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:timeout"
    assert held(broker) == []


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
    assert held(broker) == []
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
    assert held(broker) == ["one"]


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
    assert len(held(broker, "small")) == 1


async def test_a_refused_settled_send_dooms_its_transaction(broker: Any, control: Control) -> None:
    link = control.client.sender("orders")
    txn_id = await control.declare()
    await control.send(link, make("a"), txn_id)
    send_with_state(link, b"no message", within(txn_id), settled=True)
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert held(broker) == []


async def test_a_hundred_messages_and_no_more(broker: Any, control: Control) -> None:
    link = control.client.sender("orders")
    txn_id = await control.declare()
    batch = envelope([make(str(number)) for number in range(100)])
    await control.send(link, batch, txn_id, message_format=BATCH_FORMAT)
    assert condition(await control.send(link, make("more"), txn_id)) == "amqp:resource-limit-exceeded"
    assert isinstance(await control.discharge(txn_id), Accepted)
    assert len(held(broker)) == 100


async def test_so_many_transactions_and_no_more(control: Control) -> None:
    for _ in range(20):
        await control.declare()
    assert condition(await control.outcome(declare(control.link))) == "amqp:resource-limit-exceeded"


async def test_what_the_disk_refuses_is_told_at_the_discharge(broker: Any, control: Control) -> None:
    link = control.client.sender("orders")
    txn_id = await control.declare()
    await control.send(link, make("a"), txn_id)
    broker.store.error = StoreError("the disk is gone")
    assert condition(await control.discharge(txn_id)) == "amqp:transaction:rollback"
    assert held(broker) == []


async def test_what_the_coordinator_cannot_read_is_refused(broker: Any, control: Control) -> None:
    for payload in (b"", b"\0Sw\x40", make("x"), b"\0Sw\0\x53\x31\xc0"):
        assert condition(await control.outcome(send_with_state(control.link, payload, None))) == (
            "com.microsoft:argument-error"
        )
    assert condition(await control.outcome(declare(control.link, global_id=b"g"))) == "amqp:not-allowed"
    assert await control.declare()


async def test_a_coordinator_needs_a_token(broker: Any) -> None:
    client = broker.client(None)
    link = attach_coordinator(client.session)
    client.pump()
    assert client.detached(link) == "amqp:unauthorized-access"


async def test_a_request_to_a_node_takes_no_part(broker: Any, control: Control) -> None:
    link = control.client.sender("orders/$management", "m")
    txn_id = await control.declare()
    assert condition(await control.send(link, make("x"), txn_id)) == "amqp:not-allowed"
