"""Sessions by azure-servicebus, synchronous and asynchronous, unmodified, against a served namespace."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    AutoLockRenewer,
    ServiceBusMessage,
    ServiceBusSubQueue,
)
from azure.servicebus.aio import AutoLockRenewer as AsyncAutoLockRenewer
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from harness.client.sdk_client import DELETE, areceive, bodies, outlast, receive
from isthmus.testing.namespace import namespace

ENTITIES = """
limits: {min_lock_duration: 1s}
queues:
  orders: {requires_session: true, lock_duration: 30s, max_delivery_count: 3}
  brief: {requires_session: true, lock_duration: 3s}
  renewed: {requires_session: true, lock_duration: 6s}
  empty: {requires_session: true}
  states: {requires_session: true}
  turns: {requires_session: true}
topics:
  flights:
    subscriptions:
      byflight: {requires_session: true}
"""


@pytest.fixture(scope="module")
def served():
    with namespace(config=ENTITIES) as running:
        yield running


@pytest.fixture
def session():
    return uuid.uuid4().hex


@pytest.fixture(scope="module")
def send(client):
    """Sends, by one sender for each queue: opening and closing one takes the SDK a second."""
    with contextlib.ExitStack() as stack:
        senders = {}

        def send(session, *bodies, queue="orders"):
            if queue not in senders:
                senders[queue] = stack.enter_context(client.get_queue_sender(queue))
            senders[queue].send_messages([ServiceBusMessage(body, session_id=session) for body in bodies])

        yield send


def test_a_session_comes_in_order_and_alone(client, session, send):
    other = uuid.uuid4().hex
    send(session, "1", "2")
    send(other, "x")
    send(session, "3")
    with client.get_queue_receiver("orders", session_id=session) as receiver:
        assert receiver.session.session_id == session
        messages = receive(receiver, 3)
        assert receiver.receive_messages(max_wait_time=1) == []
        assert bodies(messages) == ["1", "2", "3"]
        assert {message.session_id for message in messages} == {session}
        left = receiver.session.locked_until_utc - datetime.now(UTC)
        assert timedelta(seconds=20) < left <= timedelta(seconds=31)
        for message in messages:
            receiver.complete_message(message)
    with client.get_queue_receiver("orders", session_id=other, receive_mode=DELETE) as receiver:
        assert bodies(receive(receiver, 1)) == ["x"]


def test_what_is_refused(client, session):
    with client.get_queue_sender("orders") as sender, pytest.raises(ServiceBusError, match="SessionId"):
        sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(ServiceBusError, match="session"), client.get_queue_receiver("orders") as plain:
        plain.receive_messages(max_wait_time=1)
    with client.get_queue_receiver("orders", session_id=session) as holder:
        assert holder.session.session_id == session
        with (
            pytest.raises(SessionCannotBeLockedError),
            client.get_queue_receiver("orders", session_id=session) as second,
        ):
            second.receive_messages(max_wait_time=1)


def test_no_session_in_time(client):
    began = time.monotonic()
    with (
        pytest.raises(OperationTimeoutError),
        client.get_queue_receiver("empty", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1) as receiver,
    ):
        receiver.receive_messages()
    assert 0.9 < time.monotonic() - began < 20  # by itself the namespace waits for a minute


def test_the_next_available_session_in_turn(client, send):
    for name in ("a", "b"):
        send(name, f"{name}1", f"{name}2", queue="turns")
    got = {}
    for _ in range(2):
        with client.get_queue_receiver("turns", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) as receiver:
            messages = receive(receiver, 2)
            got[receiver.session.session_id] = bodies(messages)
            for message in messages:
                receiver.complete_message(message)
    assert got == {name: [f"{name}1", f"{name}2"] for name in ("a", "b")}


def test_every_settlement_in_a_session(client, session, send):
    send(session, "complete", "abandon", "defer", "bury")
    with client.get_queue_receiver("orders", session_id=session) as receiver:
        complete, abandon, defer, bury = receive(receiver, 4)
        receiver.complete_message(complete)
        receiver.abandon_message(abandon)
        receiver.defer_message(defer)
        receiver.dead_letter_message(bury, reason="r", error_description="d")
        [again] = receive(receiver, 1)
        assert (bodies([again]), again.delivery_count) == (["abandon"], 1)
        receiver.complete_message(again)
        assert bodies(receiver.peek_messages(max_message_count=9)) == ["defer"]
        [deferred] = receiver.receive_deferred_messages(defer.sequence_number)
        receiver.complete_message(deferred)
        assert receiver.peek_messages() == []
    with client.get_queue_receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER, receive_mode=DELETE) as dead:
        [buried] = receive(dead, 1)
    assert (bodies([buried]), buried.dead_letter_reason, buried.session_id) == (["bury"], "r", session)


def test_scheduled_messages_in_a_session(client, session):
    due = datetime.now(UTC) + timedelta(seconds=4)
    with client.get_queue_sender("orders") as sender:
        sender.schedule_messages(ServiceBusMessage("later", session_id=session), due)
        [cancelled] = sender.schedule_messages(ServiceBusMessage("never", session_id=session), due)
        sender.cancel_scheduled_messages(cancelled)
    with client.get_queue_receiver("orders", session_id=session, receive_mode=DELETE) as receiver:
        assert bodies(receiver.peek_messages()) == ["later"]
        assert bodies(receive(receiver, 1)) == ["later"]


def test_state(client, session):
    with client.get_queue_receiver("states", session_id=session) as receiver:
        assert receiver.session.get_state() is None
        receiver.session.set_state(b"half way")
        assert receiver.session.get_state() == b"half way"
        with pytest.raises(MessageSizeExceededError):
            receiver.session.set_state(b"x" * ((1 << 20) + 1))
    with client.get_queue_receiver("states", session_id=session) as receiver:
        assert receiver.session.get_state() == b"half way"
        receiver.session.set_state(None)
        assert receiver.session.get_state() is None


def test_the_lock_renewed_and_lost(client, session, send):
    send(session, "1", "2", queue="brief")
    with client.get_queue_receiver("brief", session_id=session) as receiver:
        [message] = receive(receiver, 1)
        first = receiver.session.locked_until_utc
        assert receiver.session.renew_lock() > first
        outlast(first, receiver.session.renew_lock)
        receiver.complete_message(message)
        [message] = receive(receiver, 1)
        outlast(receiver.session.locked_until_utc)
        with pytest.raises(SessionLockLostError):
            receiver.session.renew_lock()
        with pytest.raises(SessionLockLostError):
            receiver.complete_message(message)
    with client.get_queue_receiver("brief", session_id=session, receive_mode=DELETE) as receiver:
        [again] = receive(receiver, 1)
    assert (bodies([again]), again.delivery_count) == (["2"], 1)


def test_the_auto_renewer_keeps_a_session(client, session, send):
    send(session, "1", queue="renewed")
    with AutoLockRenewer() as renewer, client.get_queue_receiver("renewed", session_id=session) as receiver:
        renewer.register(receiver, receiver.session, max_lock_renewal_duration=30)
        [message] = receive(receiver, 1)
        time.sleep(7)
        receiver.complete_message(message)


def test_released_sessions_keep_their_delivery_count(client, session, send):
    send(session, "1")
    for _ in range(2):
        with client.get_queue_receiver("orders", session_id=session) as receiver:
            [message] = receive(receiver, 1)
            assert message.delivery_count == 0
    with client.get_queue_receiver("orders", session_id=session, receive_mode=DELETE) as receiver:
        receive(receiver, 1)


def test_administration_makes_entities_with_sessions(served, client, send):
    name = f"made-{uuid.uuid4().hex[:8]}"
    with ServiceBusAdministrationClient.from_connection_string(
        served.connection_string, connection_verify=str(served.ca_file)
    ) as administration:
        assert administration.create_queue(name, requires_session=True).requires_session is True
        send("s", "1", queue=name)
        properties = administration.get_queue(name)
        assert properties.requires_session is True
        assert administration.get_queue_runtime_properties(name).active_message_count == 1
        administration.create_subscription("flights", name, requires_session=True)
        assert administration.get_subscription("flights", name).requires_session is True
        administration.delete_subscription("flights", name)
        with client.get_queue_receiver(name, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) as receiver:
            assert bodies(receive(receiver, 1)) == ["1"]
        administration.delete_queue(name)


async def test_a_subscription_with_sessions_asynchronously(aclient):
    async with aclient.get_topic_sender("flights") as sender:
        for flight in ("UA1", "UA2"):
            await sender.send_messages([ServiceBusMessage(f"{flight}-{n}", session_id=flight) for n in range(3)])
    got = {}
    for _ in range(2):
        async with aclient.get_subscription_receiver(
            "flights", "byflight", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5
        ) as receiver:
            messages = await areceive(receiver, 3)
            got[receiver.session.session_id] = bodies(messages)
            for message in messages:
                await receiver.complete_message(message)
    assert got == {flight: [f"{flight}-{n}" for n in range(3)] for flight in ("UA1", "UA2")}


async def test_state_locks_and_settlements_asynchronously(aclient, session):
    async with aclient.get_queue_sender("renewed") as sender:
        await sender.send_messages([ServiceBusMessage(body, session_id=session) for body in ("1", "2", "3")])
    async with (
        AsyncAutoLockRenewer() as renewer,
        aclient.get_queue_receiver("renewed", session_id=session) as receiver,
    ):
        renewer.register(receiver, receiver.session, max_lock_renewal_duration=30)
        await receiver.session.set_state("state")
        one, two = await areceive(receiver, 2)
        await receiver.defer_message(one)
        await receiver.abandon_message(two)
        await asyncio.sleep(7)
        assert await receiver.session.get_state() == b"state"
        assert await receiver.session.renew_lock() > datetime.now(UTC)
        [deferred] = await receiver.receive_deferred_messages(one.sequence_number)
        await receiver.complete_message(deferred)
        rest = await areceive(receiver, 2)
        assert [(message.delivery_count, *bodies([message])) for message in rest] == [(1, "2"), (0, "3")]
        for message in rest:
            await receiver.complete_message(message)
        await receiver.session.set_state(None)


async def test_a_waiting_receiver_gets_the_session_that_comes(aclient, session):
    async def wait():
        async with aclient.get_queue_receiver("empty", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20) as receiver:
            messages = await areceive(receiver, 1)
            await receiver.complete_message(messages[0])
            return receiver.session.session_id

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0.5)
    async with aclient.get_queue_sender("empty") as sender:
        await sender.send_messages(ServiceBusMessage("x", session_id=session))
    assert await asyncio.wait_for(waiting, 10) == session
