"""Messages near the greatest size of the service's largest tier, over sockets and through the store."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError

from harness.client.fault_client import AnsweredReceiver, Raw, connected, make_message, read_message
from harness.client.transaction_client import attach_coordinator, declare, discharge, send_with_state
from isthmus.amqp import BATCH_FORMAT, LinkDetached
from isthmus.amqp.frame import frame
from isthmus.amqp.performative import Accepted, Source, Target, TransactionalState, Transfer, decode
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Sender
from isthmus.transport.sender import envelope

CONFIG = """
queues:
  big: {max_message_size_in_kilobytes: 102400, max_delivery_count: 2}
  sessions: {max_message_size_in_kilobytes: 102400, requires_session: true}
  detected: {max_message_size_in_kilobytes: 102400, requires_duplicate_detection: true}
  first: {max_message_size_in_kilobytes: 102400, forward_to: second}
  second: {max_message_size_in_kilobytes: 102400}
  quota: {max_message_size_in_kilobytes: 102400, max_size_in_megabytes: 10}
  limited: {max_message_size_in_kilobytes: 3072}
  quick: {max_message_size_in_kilobytes: 102400, lock_duration: 5s}
topics:
  news:
    max_message_size_in_kilobytes: 102400
    subscriptions: {a: {}, b: {}}
"""
MEGABYTE = 1 << 20
BODY = os.urandom(MEGABYTE) * 99
MIDDLE = os.urandom(5 * MEGABYTE)


@pytest.fixture(scope="module")
def ns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProcess]:
    with namespace(tmp_path_factory.mktemp("large") / "data", config=CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def client(ns: NamespaceProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(ns.connection_string, retry_total=0, socket_timeout=30) as made:
        yield made


def bodies(ns: NamespaceProcess) -> list[Path]:
    """The files of large messages."""
    return sorted((ns.data / "large").glob("*"))


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def body_of(message: Any) -> bytes:
    return b"".join(message.body)


def test_a_message_of_99_megabytes_comes_as_it_was_sent_after_a_kill(tmp_path: Path) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        with connected(ns, "big") as client:
            Sender(client, "big").wait_ready().send_all([make_message(BODY, "large")], timeout_seconds=60.0)
        ns.kill()
        ns.start()
        with connected(ns, "big") as client:
            receiver = AnsweredReceiver(client, "big")
            receiver.grant(1)
            client.wait_until(lambda: receiver.arrived, 60, "the message")
            (run,) = receiver.take()
            assert read_message(run.payloads[0]).body == BODY
            receiver.ask(run.first_id, run.first_id)
            client.wait_until(lambda: receiver.answers, 20, "an answer")
        eventually(lambda: not bodies(ns))


def test_the_sdk_sends_and_receives_100_megabytes(ns: NamespaceProcess, client: ServiceBusClient) -> None:
    """As large as the service's limit allows with what comes before the body."""
    body = BODY + BODY[: MEGABYTE - 4096]
    with client.get_queue_sender("big") as sender, client.get_queue_receiver("big") as receiver:
        sender.send_messages(ServiceBusMessage(body, message_id="hundred", application_properties={"number": 7}))
        [message] = receiver.receive_messages(max_wait_time=60)
        assert hashlib.sha256(body_of(message)).digest() == hashlib.sha256(body).digest()
        assert (message.message_id, message.application_properties) == ("hundred", {b"number": 7})
        receiver.complete_message(message)
    eventually(lambda: not bodies(ns))


def test_one_whose_file_is_damaged_is_not_lost_to_receive_and_delete(ns: NamespaceProcess) -> None:
    """Those behind it come, and itself once it can be read."""
    with (
        ServiceBusClient.from_connection_string(ns.connection_string, retry_total=0, socket_timeout=30) as client,
        client.get_queue_sender("quick") as sender,
    ):
        sender.send_messages(ServiceBusMessage(MIDDLE, message_id="large"))
        sender.send_messages(ServiceBusMessage(b"small", message_id="small"))
        [file] = bodies(ns)
        whole = file.read_bytes()
        file.write_bytes(whole[: 3 * MEGABYTE])
        receiver = client.get_queue_receiver("quick", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
        with receiver, pytest.raises(ServiceBusError):
            receiver.receive_messages(max_wait_time=30)
        came: list[tuple[str, bytes]] = []
        receiver = client.get_queue_receiver("quick", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
        with receiver:
            came += [(each.message_id, body_of(each)) for each in receiver.receive_messages(max_wait_time=3)]
            file.write_bytes(whole)
            came += [(each.message_id, body_of(each)) for each in receiver.receive_messages(max_wait_time=30)]
        assert came == [("small", b"small"), ("large", MIDDLE)]
    eventually(lambda: not bodies(ns))


def test_one_over_the_limit_is_refused_and_leaves_nothing(ns: NamespaceProcess) -> None:
    with connected(ns, "limited") as client:
        sender = Sender(client, "limited").wait_ready()
        sender.send([make_message(MIDDLE)])
        client.wait_until(lambda: sender.settled == 1, 60, "an outcome")
        assert "3145728" in str(sender.outcomes[0].error)
    eventually(lambda: not bodies(ns))


def test_a_batch_holds_a_megabyte_where_messages_may_be_larger(ns: NamespaceProcess, client: ServiceBusClient) -> None:
    with client.get_queue_sender("limited") as sender, client.get_queue_receiver("limited") as receiver:
        batch = sender.create_message_batch()
        assert batch.max_size_in_bytes == MEGABYTE
        with pytest.raises(ValueError, match="acceptable max batch size is: 1048576"):
            sender.create_message_batch(max_size_in_bytes=MEGABYTE + 1)
        for _ in range(10):
            batch.add_message(ServiceBusMessage(MIDDLE[:100_000]))
        sender.send_messages(batch)
        got = 0
        while got < 10:
            for message in receiver.receive_messages(max_message_count=10, max_wait_time=20):
                receiver.complete_message(message)
                got += 1
    with connected(ns, "limited") as raw:
        own = Sender(raw, "limited").wait_ready()
        own.send([envelope([make_message(MIDDLE[:500_000])] * 3)], message_format=BATCH_FORMAT)
        raw.wait_until(lambda: own.settled == 1, 60, "an outcome")
        assert str(MEGABYTE) in str(own.outcomes[0].error)
    eventually(lambda: not bodies(ns))


def test_the_order_of_a_link_holds_with_large_messages_in_between(client: ServiceBusClient) -> None:
    sizes = [10, 5 * MEGABYTE, 20, 2 * MEGABYTE, 3 * MEGABYTE, 30]
    with client.get_queue_sender("big") as sender, client.get_queue_receiver("big") as receiver:
        for size in sizes:
            sender.send_messages(ServiceBusMessage(MIDDLE[:size]))
        got: list[int] = []
        while len(got) < len(sizes):
            for message in receiver.receive_messages(max_message_count=10, max_wait_time=20):
                got.append(len(body_of(message)))
                receiver.complete_message(message)
        assert got == sizes


def test_pipelined_messages_keep_their_order(ns: NamespaceProcess) -> None:
    """Sent without waiting for one outcome: what is small and comes last must not overtake."""
    with connected(ns, "big") as client:
        sender = Sender(client, "big").wait_ready()
        sizes = [2 * MEGABYTE, 10, 3 * MEGABYTE, 5 * MEGABYTE, 20, 30]
        sender.send([make_message(MIDDLE[:size]) for size in sizes])
        client.wait_until(lambda: sender.settled == len(sizes), 20, "outcomes")
        sender.raise_refusal()
        receiver = AnsweredReceiver(client, "big", settled=True)
        receiver.grant(100)
        client.wait_until(lambda: receiver.received == len(sizes), 20, "messages")
        assert [len(read_message(each).body) for run in receiver.take() for each in run.payloads] == sizes


def test_every_settlement(ns: NamespaceProcess, client: ServiceBusClient) -> None:
    with (
        client.get_queue_sender("big") as sender,
        client.get_queue_receiver("big") as receiver,
        client.get_queue_receiver("big", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead,
    ):
        sender.send_messages(ServiceBusMessage(MIDDLE, application_properties={"a": 1}))
        [message] = receiver.receive_messages(max_wait_time=20)
        receiver.abandon_message(message)
        [message] = receiver.receive_messages(max_wait_time=20)
        assert (message.delivery_count, body_of(message)) == (1, MIDDLE)
        receiver.defer_message(message)
        [message] = receiver.receive_deferred_messages([message.sequence_number])
        assert body_of(message) == MIDDLE
        receiver.dead_letter_message(message, reason="because", error_description="it is large")
        [message] = dead.receive_messages(max_wait_time=20)
        assert (message.dead_letter_reason, body_of(message)) == ("because", MIDDLE)
        assert message.application_properties[b"a"] == 1
        dead.complete_message(message)
    eventually(lambda: not bodies(ns))


def test_peek_shows_large_messages_and_small_ones(client: ServiceBusClient) -> None:
    with (
        client.get_queue_sender("big") as sender,
        client.get_queue_receiver("big", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        for body in (b"small", MIDDLE, b"last"):
            sender.send_messages(ServiceBusMessage(body, message_id=str(len(body))))
        peeked = receiver.peek_messages(10)
        assert [body_of(message) for message in peeked] == [b"small", MIDDLE, b"last"]
        assert peeked[1].message_id == str(len(MIDDLE))
        got: list[bytes] = []
        while len(got) < 3:
            got += [body_of(message) for message in receiver.receive_messages(3, max_wait_time=20)]
        assert got == [b"small", MIDDLE, b"last"]


def test_a_topic_has_one_body_for_all_copies(ns: NamespaceProcess, client: ServiceBusClient) -> None:
    eventually(lambda: not bodies(ns))  # those of the tests before
    with client.get_topic_sender("news") as sender:
        sender.send_messages(ServiceBusMessage(MIDDLE))
    assert len(bodies(ns)) == 1
    for name in ("a", "b"):
        with client.get_subscription_receiver("news", name) as receiver:
            [message] = receiver.receive_messages(max_wait_time=20)
            assert body_of(message) == MIDDLE
            receiver.complete_message(message)
    eventually(lambda: not bodies(ns))


def test_sessions_schedules_forwarding_and_detection(ns: NamespaceProcess, client: ServiceBusClient) -> None:
    with (
        client.get_queue_sender("sessions") as sender,
        client.get_queue_sender("first") as first,
        client.get_queue_sender("detected") as detected,
    ):
        sender.send_messages(ServiceBusMessage(MIDDLE, session_id="s"))
        first.send_messages(ServiceBusMessage(MIDDLE))
        for _ in range(2):
            detected.send_messages(ServiceBusMessage(MIDDLE, message_id="same"))
    eventually(lambda: len(bodies(ns)) == 3)
    for path, session in (("sessions", {"session_id": "s"}), ("second", {}), ("detected", {})):
        with client.get_queue_receiver(path, **session) as receiver:
            [message] = receiver.receive_messages(5, max_wait_time=5)
            assert body_of(message) == MIDDLE
            receiver.complete_message(message)
            assert receiver.peek_messages(5) == []
    eventually(lambda: not bodies(ns))


def test_bodies_count_to_the_quota(ns: NamespaceProcess, client: ServiceBusClient) -> None:
    with client.get_queue_sender("quota") as sender, client.get_queue_receiver("quota") as receiver:
        sender.send_messages(ServiceBusMessage(MIDDLE))
        with pytest.raises(ServiceBusError, match="size"):
            sender.send_messages(ServiceBusMessage(MIDDLE + MIDDLE))
        for is_last in (False, True):
            [message] = receiver.receive_messages(max_wait_time=20)
            receiver.complete_message(message)
            if not is_last:
                sender.send_messages(ServiceBusMessage(MIDDLE))
    eventually(lambda: not bodies(ns))


def begin_large(ns: NamespaceProcess, size: int, path: str = "quota") -> tuple[Raw, Any]:
    """A connection with a message of which so many bytes came, and no end."""
    client = Raw(ns).opened()
    link = client.session.attach_sender("s", Target(path), source=Source("me"))
    client.wait_until(lambda: link.credit)
    piece = b"\0Su\xb0" + (100 * MEGABYTE).to_bytes(4, "big") + bytes(59_000)
    for number in range(size // len(piece)):
        transfer = Transfer(link.handle, 0, b"t" if not number else None, 0, False, True)
        client.push(frame(client.session.channel, transfer.encode() + (bytes(len(piece)) if number else piece)))
        client.session.sent_frames(1)
        client.pump(0)
    return client, link


def test_parts_of_messages_that_do_not_end_count_to_the_quota(ns: NamespaceProcess, client: ServiceBusClient) -> None:
    """Neither do several together pass it, nor is the room lost when they are abandoned."""
    begun = [begin_large(ns, 6 * MEGABYTE)]
    try:
        # Five that came evenly could all be refused, and leave room.
        eventually(lambda: sum(path.stat().st_size for path in bodies(ns)) > 5.5 * MEGABYTE)
        begun += [begin_large(ns, 6 * MEGABYTE) for _ in range(4)]
        eventually(lambda: sum(path.stat().st_size for path in bodies(ns)) <= 10 * MEGABYTE)
        with client.get_queue_sender("quota") as sender, pytest.raises(ServiceBusError, match="size"):
            sender.send_messages(ServiceBusMessage(MIDDLE))
    finally:
        for raw, _ in begun:
            raw.socket.close()
    eventually(lambda: not bodies(ns))
    with client.get_queue_sender("quota") as sender, client.get_queue_receiver("quota") as receiver:
        sender.send_messages(ServiceBusMessage(MIDDLE))
        [message] = receiver.receive_messages(max_wait_time=20)
        receiver.complete_message(message)
    eventually(lambda: not bodies(ns))


@pytest.mark.parametrize("end", ["abort", "detach", "end"])
def test_an_abandoned_message_gives_its_room_back(ns: NamespaceProcess, client: ServiceBusClient, end: str) -> None:
    raw, link = begin_large(ns, 8 * MEGABYTE)
    with raw:
        # Before that a busy namespace has not read so much that another message finds no room.
        eventually(lambda: sum(path.stat().st_size for path in bodies(ns)) > 7 * MEGABYTE)
        with client.get_queue_sender("quota") as sender, pytest.raises(ServiceBusError, match="size"):
            sender.send_messages(ServiceBusMessage(MIDDLE))
        if end == "abort":
            aborted = Transfer(link.handle, 0, None, 0, False, False, aborted=True)
            raw.push(frame(raw.session.channel, aborted))
        elif end == "detach":
            link.detach()
        else:
            raw.session.end()
        raw.push(b"")
        eventually(lambda: not bodies(ns))
        with client.get_queue_sender("quota") as sender, client.get_queue_receiver("quota") as receiver:
            sender.send_messages(ServiceBusMessage(MIDDLE))
            [message] = receiver.receive_messages(max_wait_time=20)
            receiver.complete_message(message)
    eventually(lambda: not bodies(ns))


def send_large_within(link: Any, payload: bytes, txn_id: bytes) -> int:
    """Send a message over several frames in a transaction; its delivery id."""
    session = link.amqp_session
    delivery_id = int(session.next_delivery_id)
    size = 60_000
    for at in range(0, len(payload), size):
        transfer = Transfer(
            handle=link.handle,
            delivery_id=delivery_id,
            delivery_tag=delivery_id.to_bytes(4, "big"),
            message_format=0,
            more=at + size < len(payload),
            state=TransactionalState(txn_id),
        )
        data = frame(session.channel, transfer)
        piece = payload[at : at + size]
        session.connection.write((len(data) + len(piece)).to_bytes(4, "big") + data[4:] + piece)
        session.sent_frames(1)
    session.remember_sent(link, delivery_id, 1, False)
    link.credit -= 1
    link.delivery_count += 1
    return delivery_id


def test_a_large_message_is_part_of_its_transaction(ns: NamespaceProcess, client: ServiceBusClient) -> None:
    """Discharged in the same read: what came before the discharge belongs to it, written or not."""
    for fail in (True, False):
        with Raw(ns).opened() as raw:
            control = attach_coordinator(raw.session)
            sender = raw.session.attach_sender("s", Target("big"), source=Source("me"))
            raw.wait_until(lambda: control.credit and sender.credit)  # noqa: B023
            txn_id = raw.outcome(declare(control)).txn_id
            send_large_within(sender, make_message(MIDDLE), txn_id)
            small = send_with_state(sender, make_message(b"behind"), TransactionalState(txn_id))
            assert isinstance(raw.outcome(discharge(control, txn_id, fail=fail)), Accepted)
            assert small
    with client.get_queue_receiver("big", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        got: list[bytes] = []
        while len(got) < 2:
            got += [body_of(message) for message in receiver.receive_messages(2, max_wait_time=20)]
        assert got == [MIDDLE, b"behind"]
        assert receiver.peek_messages(5) == []
    eventually(lambda: not bodies(ns))


def test_a_large_message_is_answered_before_the_end_of_its_link(ns: NamespaceProcess) -> None:
    with Raw(ns).opened() as raw:
        link = raw.session.attach_sender("leaving", Target("big"), source=Source("me"))
        raw.wait_until(lambda: link.credit > 0)
        said = len(raw.bytes)
        link.send(make_message(MIDDLE), b"1")
        link.detach()
        raw.wait(LinkDetached)
        names = [type(value).__name__ for value in performatives(raw.bytes[said:])]
    assert [name for name in names if name in {"Disposition", "Detach"}] == ["Disposition", "Detach"]


def performatives(data: bytes) -> Iterator[Any]:
    """What the frames of a stream say."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size > 8:
            yield decode(data[at + 4 * data[at + 4] : at + size])[0]
        at += size
